"""llama.cpp's own HTTP server from the wheel xllamacpp, under llama-server's flag names.

    python -m specsweep_agent.llama_server -m MODEL --port 8080 --spec-type ngram-mod --spec-ngram-mod-n-max 16

Takes the flags listed by --help (a subset of llama-server's); another flag ends it with 1, as llama-server does.
SIGTERM ends it with 0.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, Callable

#: flag -> (other spellings, value's name or None for a switch, where it goes)
Target = Callable[[Any, Any], None]


def _set(*path: str, kind: Callable[[str], Any] = int) -> Target:
    def put(parameters: Any, value: Any) -> None:
        for name in path[:-1]:
            parameters = getattr(parameters, name)
        setattr(parameters, path[-1], kind(value))

    return put


def _both(*targets: Target) -> Target:
    def put(parameters: Any, value: Any) -> None:
        for target in targets:
            target(parameters, value)

    return put


def _spec_type(parameters: Any, value: str) -> None:
    import xllamacpp

    kinds = []
    for name in value.split(","):
        kind = getattr(
            xllamacpp.common_speculative_type,
            "COMMON_SPECULATIVE_TYPE_" + name.strip().upper().replace("-", "_"),
            None,
        )
        if kind is None:
            raise ValueError(f"unknown speculative type: {name}")
        kinds.append(kind)
    parameters.speculative.types = kinds


def _hosts(parameters: Any, value: str) -> None:
    parameters.hostnames = value.split(",")


def _alias(parameters: Any, value: str) -> None:
    parameters.model_alias = {value}


def _ignore(parameters: Any, value: Any) -> None:
    """Known to llama-server, without meaning here."""


FLAGS: dict[str, tuple[tuple[str, ...], str | None, Target]] = {
    "-m": (("--model",), "FNAME", _set("model", "path", kind=str)),
    "-a": (("--alias",), "STRING", _alias),
    "--host": ((), "HOST", _hosts),
    "--port": ((), "PORT", _set("port")),
    "-c": (("--ctx-size",), "N", _set("n_ctx")),
    "-np": (("--parallel",), "N", _set("n_parallel")),
    "-t": (("--threads",), "N", _both(_set("cpuparams", "n_threads"), _set("cpuparams_batch", "n_threads"))),
    "-tb": (("--threads-batch",), "N", _set("cpuparams_batch", "n_threads")),
    "-b": (("--batch-size",), "N", _set("n_batch")),
    "-ub": (("--ubatch-size",), "N", _set("n_ubatch")),
    "-lv": (("--verbosity", "--log-verbosity"), "N", _set("verbosity")),
    "--metrics": ((), None, _set("endpoint_metrics", kind=bool)),
    "--slots": ((), None, _set("endpoint_slots", kind=bool)),
    "--log-colors": ((), "on|off|auto", _ignore),
    "--spec-type": ((), "TYPE", _spec_type),
    "--spec-ngram-mod-n-match": ((), "N", _set("speculative", "ngram_mod", "n_match")),
    "--spec-ngram-mod-n-min": ((), "N", _set("speculative", "ngram_mod", "n_min")),
    "--spec-ngram-mod-n-max": ((), "N", _set("speculative", "ngram_mod", "n_max")),
    "--spec-ngram-simple-size-n": ((), "N", _set("speculative", "ngram_simple", "size_n")),
    "--spec-ngram-simple-size-m": ((), "N", _set("speculative", "ngram_simple", "size_m")),
    "-md": (("--spec-draft-model",), "FNAME", _set("speculative", "draft", "mparams", "path", kind=str)),
    "--spec-draft-n-max": ((), "N", _set("speculative", "draft", "n_max")),
    "--spec-draft-n-min": ((), "N", _set("speculative", "draft", "n_min")),
}


class UsageError(Exception):
    """Arguments that cannot be used; the message is llama-server's own wording."""


def apply(parameters: Any, arguments: list[str]) -> None:
    """Set the parameters from llama-server's flags."""
    by_spelling = {spelling: flag for flag, rule in FLAGS.items() for spelling in (flag, *rule[0])}
    todo = list(arguments)
    while todo:
        given = todo.pop(0)
        if given not in by_spelling:
            raise UsageError(f"error: invalid argument: {given}")
        _, value_name, target = FLAGS[by_spelling[given]]
        if value_name is None:
            target(parameters, True)
            continue
        if not todo:
            raise UsageError(f'error while handling argument "{given}": expected value for argument')
        try:
            target(parameters, todo.pop(0))
        except ValueError as error:
            raise UsageError(f'error while handling argument "{given}": {error}') from None


def help_text() -> str:
    lines = ["llama.cpp's server from the wheel xllamacpp; flags of llama-server:"]
    for flag, (others, value_name, _) in FLAGS.items():
        lines.append("  " + ", ".join((flag, *others)) + (" " + value_name if value_name else ""))
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(help_text())
        return 0
    import xllamacpp

    if "--version" in arguments:
        from importlib.metadata import version

        print("version: xllamacpp {} (llama.cpp b{})".format(version("xllamacpp"), version("xllamacpp").split(".")[-1]))
        return 0
    parameters = xllamacpp.CommonParams()
    try:
        apply(parameters, arguments)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    stop.wait()
    del server
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
