"""The embedded engine's flags: llama-server's own, with its words for what is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from specsweep_agent import llama_server
from specsweep_agent.llama_server import UsageError, apply

from specsweep import engine

HELP = engine.flags_in((engine.ENGINES / "help" / "llamacpp-b11434.txt").read_text())


class Parameters(SimpleNamespace):
    """Made-up parameters: every name below exists once it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Parameters())
        return self.__dict__[name]


@pytest.mark.parametrize("flag", sorted(llama_server.FLAGS))
def test_every_flag_is_one_of_llama_server(flag: str) -> None:
    others, _, _ = llama_server.FLAGS[flag]
    for spelling in (flag, *others):
        assert spelling in HELP


def test_the_help_names_every_flag_so_that_a_host_can_be_asked() -> None:
    listed = engine.flags_in(llama_server.help_text())
    assert listed >= {spelling for flag, rule in llama_server.FLAGS.items() for spelling in (flag, *rule[0])}


def test_the_profile_uses_only_flags_that_the_embedded_server_takes() -> None:
    profile = engine.load("llamacpp")
    known = {spelling for flag, rule in llama_server.FLAGS.items() for spelling in (flag, *rule[0])}
    asked = {*profile.arguments, *(rule.flag for rule in profile.settings.values() if rule.flag)}
    for name in ("none", "ngram-mod", "ngram-simple", "draft-simple"):
        asked |= {*profile.methods[name].arguments}
    assert asked <= known


def test_values_go_where_they_belong() -> None:
    parameters = Parameters()
    apply(
        parameters,
        ["-m", "model.gguf", "--port", "8080", "--host", "127.0.0.1", "--ctx-size", "4096", "-np", "2", "-t", "3",
         "--metrics", "--slots", "--log-colors", "off", "--alias", "specsweep", "--spec-ngram-mod-n-max", "16",
         "--spec-ngram-simple-size-m", "8", "-md", "draft.gguf", "--spec-draft-n-max", "4", "--log-verbosity", "4"],
    )  # fmt: skip
    assert parameters.model.path == "model.gguf"
    assert (parameters.port, parameters.hostnames, parameters.n_ctx, parameters.n_parallel) == (
        8080,
        ["127.0.0.1"],
        4096,
        2,
    )
    assert (parameters.cpuparams.n_threads, parameters.cpuparams_batch.n_threads) == (3, 3)
    assert (parameters.endpoint_metrics, parameters.endpoint_slots) == (True, True)
    assert parameters.model_alias == {"specsweep"}
    assert parameters.speculative.ngram_mod.n_max == 16
    assert parameters.speculative.ngram_simple.size_m == 8
    assert parameters.speculative.draft.mparams.path == "draft.gguf"
    assert parameters.speculative.draft.n_max == 4
    assert parameters.verbosity == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-such-flag"], "error: invalid argument: --no-such-flag"),
        (["--port=8080"], "error: invalid argument: --port=8080"),
        (["stray"], "error: invalid argument: stray"),
        (["--port"], 'error while handling argument "--port": expected value for argument'),
        (
            ["--port", "http"],
            "error while handling argument \"--port\": invalid literal for int() with base 10: 'http'",
        ),
        (["-np", "--metrics"], 'error while handling argument "-np": '),
    ],
)
def test_what_cannot_be_used_is_said_in_llama_servers_words(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        apply(Parameters(), arguments)
    assert str(error.value).startswith(message)


def test_speculative_types_of_the_real_library() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    parameters = Parameters()
    apply(parameters, ["--spec-type", "ngram-mod,draft-simple"])
    kinds = xllamacpp.common_speculative_type
    assert parameters.speculative.types == [
        kinds.COMMON_SPECULATIVE_TYPE_NGRAM_MOD, kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    ]  # fmt: skip
    with pytest.raises(UsageError, match="unknown speculative type: ngram-what"):
        apply(Parameters(), ["--spec-type", "ngram-what"])


def test_the_real_parameters_take_every_flag() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    samples = {None: [], "N": ["4"], "TYPE": ["ngram-mod"], "FNAME": ["x.gguf"], "STRING": ["a"], "HOST": ["127.0.0.1"],
               "PORT": ["8080"], "on|off|auto": ["off"]}  # fmt: skip
    arguments = [word for flag, (_, value, _) in llama_server.FLAGS.items() for word in (flag, *samples[value])]
    parameters = xllamacpp.CommonParams()
    apply(parameters, arguments)
    assert parameters.port == 8080
    assert parameters.model.path == "x.gguf"


def test_wrong_usage_ends_with_1_and_help_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    assert llama_server.main(["--help"]) == 0
    assert llama_server.main(["--draft-max", "8"]) == 1
    assert "error: invalid argument: --draft-max" in capsys.readouterr().err
