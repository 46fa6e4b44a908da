"""Engine profiles: how a budget, a top-k and any other setting become the command line of one engine.

A profile is a YAML file in `specsweep/engines/` (its form: the structs below; a worked example:
docs/engines.md).  A new engine, or a fork with other flags, is one new file and no code.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from specsweep.expression import ExpressionError, evaluate, fill

ENGINES = Path(__file__).parent / "engines"


class EngineError(ValueError):
    """A profile, or a request to one, that cannot be used; the message is one line for the user."""


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    """Base of the parts of a profile: a misspelt key is an error."""


class Setting(_Part, kw_only=True):
    """How one engine setting reaches the engine.  Without an entry the name is the flag: a_b -> --a-b."""

    flag: str | None = None
    env: str | None = None
    template_only: bool = False
    """no flag of its own: the templates of the methods use it, for instance inside a JSON argument"""
    methods: list[str] | None = None
    """methods that know this setting; None: all"""


class Impossible(_Part, kw_only=True):
    """A combination that the engine cannot run, known before any restart."""

    when: str
    why: str


class Method(_Part, kw_only=True):
    """One way of drafting.  Values are templates over budget, topk, model, drafter, settings, ..."""

    title: str = ""
    needs_drafter: bool = False
    let: dict[str, str] = {}
    """derived names, in order, for the templates below"""
    arguments: dict[str, Any] = {}
    """flag -> template; true is a flag without value, a mapping is sent as JSON, null leaves the flag out; a
    name without a dash is a positional argument"""
    environment: dict[str, str] = {}
    candidates: str = "0"
    verify_width: str = "1"
    impossible: list[Impossible] = []
    settings: dict[str, Any] = {}
    """defaults of settings for this method"""


class Variant(_Part, kw_only=True):
    """Another spelling of a method in a fork: the one with the most flags that the build knows is used."""

    name: str
    when_flags: list[str]
    method: str
    arguments: dict[str, Any] = {}
    environment: dict[str, str] = {}
    flags: list[str] = []
    """flags of the fork that the captured help does not list"""


class Version(_Part, kw_only=True):
    """Where the engine's version is read: the first group of `pattern` in what a command prints."""

    arguments: list[str] = []
    """given to the engine's own command"""
    commands: list[list[str]] = []
    """instead of the engine's command, where that one does not tell: tried in order"""
    pattern: str


class Ready(_Part, kw_only=True):
    alive: str
    """a cheap path that answers 200 once the server is up; never proof of readiness by itself"""
    timeout_s: float = 1800.0
    generation_timeout_s: float = 600.0
    """longest time of the first generation (it may compile kernels)"""


class Request(_Part, kw_only=True):
    """How to ask for a streamed generation, and where its numbers stand (dotted paths in the events)."""

    path: str
    body: dict[str, Any]
    exact: dict[str, Any] = {}
    """added to the body when exactly max_tokens are wanted"""
    text: list[str]
    text_is_cumulative: bool = False
    output_tokens: list[str] = []
    prompt_tokens: list[str] = []
    cached_tokens: list[str] = []
    steps: list[str] = []
    drafts: list[str] = []
    drafted_tokens: list[str] = []
    accepted_tokens: list[str] = []
    histogram: list[str] = []
    server_ms: list[str] = []
    """summed"""
    server_s: list[str] = []
    finish_reason: list[str] = []
    truncated_by: list[str] = msgspec.field(default_factory=lambda: ["length"])
    failed_by: list[str] = msgspec.field(default_factory=lambda: ["abort", "error"])
    error: list[str] = msgspec.field(default_factory=lambda: ["error.message", "error"])
    absent_is_zero: list[str] = []
    reuse_connections: bool = True


class AcceptanceRule(_Part, kw_only=True):
    """Steps of one request from its own numbers, or None where only the counters tell."""

    steps: str
    estimator: str


class LabelledCounter(_Part, kw_only=True):
    name: str
    label: str


class Metrics(_Part, kw_only=True):
    """Prometheus counters by our names; `steps` is an expression over their differences."""

    path: str = "/metrics"
    counters: dict[str, str]
    steps: str | None = None
    estimator: str = "counters"
    accepted_per_position: LabelledCounter | None = None
    requests_running: str | None = None


class Flush(_Part, kw_only=True):
    path: str
    method: Literal["GET", "POST"] = "POST"


class Check(_Part, kw_only=True):
    """One value of the engine's own report against what was asked."""

    name: str
    path: str
    select: str
    """dotted path into the JSON, `*` for every item; or `positions` for the number of position labels"""
    expect: Any
    when: str = "True"
    otherwise: Literal["not_applied", "adjusted", "wrong_process"] = "adjusted"


class Attest(_Part, kw_only=True):
    reports: list[str] = []
    """paths whose answers are kept as evidence"""
    arguments_report: str | None = None
    """a JSON report whose keys are the flags' names: every flag that we give is compared with it"""
    arguments_prefix: str = ""
    """dotted path to the mapping inside that report"""
    ignore: list[str] = []
    """keys of that report that are spelt differently by design"""
    checks: list[Check] = []


class Stop(_Part, kw_only=True):
    """What a good stop looks like, for the versions that match (`*` or a comparison such as `>=0.5.20`)."""

    versions: str = "*"
    kill_mode: Literal["mixed", "control-group", "process"] = "mixed"
    timeout_s: float = 60.0
    clean_exit: list[int] = msgspec.field(default_factory=lambda: [0])
    clean_signal: list[str] = []


class NativeTool(_Part, kw_only=True):
    """A load tool of others that can send a load point's requests instead of our client.

    Templates know, beside the names of the configuration: url, concurrency, requests, exact, output_tokens,
    temperature, and the places prompts_file, result_file and folder.
    """

    name: str
    """`source` of its cells"""
    commands: list[list[str]]
    """the first whose help answers on the host"""
    help: list[str] = msgspec.field(default_factory=lambda: ["--help"])
    arguments: dict[str, Any]
    prompt: dict[str, Any]
    """one line of prompts_file: a template over prompt and output_tokens"""
    result: str
    """name of its result file inside folder"""
    form: Literal["details", "aiperf"]
    """how the result reads: the lists of requests that SGLang's and vLLM's tools write, or AIPerf's records"""


class Profile(_Part, kw_only=True):
    name: str
    title: str
    replay: bool = False
    """a rehearsal from recordings: its numbers are never a measurement"""
    url: str = "http://{address}:{port}"
    commands: list[list[str]]
    help: list[str] = msgspec.field(default_factory=lambda: ["--help"])
    help_texts: list[str] = []
    """captured help, in engines/help/, that says which flags exist before any host is asked"""
    version: Version | None = None
    files: str | None = None
    """a folder in engines/ that the engine needs on the host; templates know its place there as `files`"""
    arguments: dict[str, Any] = {}
    environment: dict[str, str] = {}
    settings: dict[str, Setting] = {}
    defaults: dict[str, Any] = {}
    max_running: str | None = None
    default_method: str
    methods: dict[str, Method]
    variants: list[Variant] = []
    ready: Ready
    request: Request
    acceptance: AcceptanceRule | None = None
    metrics: Metrics | None = None
    flush: Flush | None = None
    attest: Attest = msgspec.field(default_factory=Attest)
    stop: list[Stop] = msgspec.field(default_factory=lambda: [Stop()])
    fatal_log: list[str] = []
    """regular expressions: a line of the log that matches one means that the engine is dead, whatever its
    process still does and with whatever status it ends"""
    native: list[NativeTool] = []
    """load tools that can measure this engine; the first one is the engine's own"""


class Rendered(msgspec.Struct, kw_only=True):
    """A configuration as the engine gets it: arguments after the command, and environment."""

    arguments: list[str]
    environment: dict[str, str]
    flags: dict[str, Any]
    """flag -> value as given (None: no value)"""


def names() -> list[str]:
    """Names of all profiles."""
    return sorted(path.stem for path in ENGINES.glob("*.yaml"))


@cache
def load(name: str) -> Profile:
    """The profile of an engine: a name in `specsweep/engines/`, or a path to a YAML file.

    A profile with `extends: NAME` starts from that one: its mappings are merged into the other's, all other
    values replace them.  Raises EngineError with one line.
    """
    data = _read(name, ())
    try:
        return msgspec.convert(data, Profile)
    except msgspec.ValidationError as error:
        raise EngineError(f"engine: {name} is not a profile: {' '.join(str(error).split())}") from None


def _read(name: str, extended_by: tuple[str, ...]) -> dict[str, Any]:
    path = Path(name) if name.endswith((".yaml", ".yml")) else ENGINES / f"{name}.yaml"
    if not path.is_file():
        raise EngineError(f"engine: expected one of {', '.join(names())} or a profile's path; got {name!r}")
    if name in extended_by:
        raise EngineError(f"engine: {' extends '.join((*extended_by, name))}: a profile cannot extend itself")
    try:
        data = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise EngineError(f"engine: {name} is not a profile: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise EngineError(f"engine: {name} is not a profile: expected a mapping, got {type(data).__name__}")
    base = data.pop("extends", None)
    return _merged(_read(str(base), (*extended_by, name)), data) if base else data


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: mappings key by key, everything else as a whole."""
    both = {
        key: _merged(base[key], value)
        for key, value in over.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **over, **both}


_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][A-Za-z0-9-]*")


def flags_in(help_text: str) -> set[str]:
    """Flags named in a help text."""
    return set(_FLAG.findall(help_text))


@cache
def _captured_flags(texts: tuple[str, ...]) -> frozenset[str]:
    return frozenset().union(*(flags_in((ENGINES / "help" / text).read_text()) for text in texts))


def known_flags(profile: Profile) -> frozenset[str]:
    """Flags that the captured help texts and the variants name; empty where there is no captured help."""
    variants = (flag for variant in profile.variants for flag in (*variant.flags, *variant.when_flags))
    return _captured_flags(tuple(profile.help_texts)) | frozenset(variants)


def flag_of(profile: Profile, setting: str) -> str | None:
    """The flag of a setting, or None when it goes into the environment or a template only."""
    rule = profile.settings.get(setting)
    if rule and (rule.flag or rule.env or rule.template_only):
        return rule.flag
    return "--" + setting.replace("_", "-")


def check_setting(profile: Profile, setting: str) -> None:
    """Raise EngineError when no build that we know has this setting."""
    rule = profile.settings.get(setting)
    flags = known_flags(profile)
    own = rule and (rule.flag or rule.env or rule.template_only)
    if own or not flags or flag_of(profile, setting) in flags:
        return
    known = sorted({*profile.settings, *(flag.lstrip("-").replace("-", "_") for flag in flags)})
    close = difflib.get_close_matches(setting, known, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise EngineError(f"{setting}: expected a setting of {profile.title}; {profile.name} has none of that name{hint}")


def scope(
    profile: Profile,
    *,
    method: str,
    budget: int,
    topk: int,
    settings: Mapping[str, Any],
    place: Mapping[str, Any],
) -> dict[str, Any]:
    """Every name that a template of this configuration can use.

    `place` holds what does not belong to the configuration: model, drafter, address, port, engine_python,
    concurrency_max, ...  Defaults of the profile fill the settings that were not given.
    """
    rule = profile.methods[method]
    values: dict[str, Any] = {**place, "method": method, "budget": budget, "topk": topk, **settings}
    for name, default in {**profile.defaults, **rule.settings}.items():
        applies = profile.settings.get(name, Setting()).methods
        if name not in settings and (applies is None or method in applies):
            values[name] = fill(default, values)
    for name, text in rule.let.items():
        values[name] = evaluate(text, values)
    values["candidates"] = evaluate(rule.candidates, values)
    values["verify_width"] = evaluate(rule.verify_width, values)
    return values


def effective_settings(
    profile: Profile, method: str, settings: Mapping[str, Any], names: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that reach the engine for this method, with the profile's defaults filled in."""
    chosen: dict[str, Any] = {}
    for name in (*settings, *profile.defaults, *profile.methods[method].settings):
        applies = profile.settings.get(name, Setting()).methods
        if (applies is None or method in applies) and names.get(name) is not None:
            chosen[name] = names[name]
    return chosen


def impossible(profile: Profile, method: str, names: Mapping[str, Any]) -> str | None:
    """Why the engine cannot run this combination, or None."""
    rule = profile.methods[method]
    if rule.needs_drafter and not names.get("drafter"):
        return f"the method {method} needs a draft model: set drafter"
    for case in rule.impossible:
        if evaluate(case.when, names):
            return str(fill(case.why, names))
    return None


def render(
    profile: Profile,
    method: str,
    settings: Mapping[str, Any],
    names: Mapping[str, Any],
    host_flags: Iterable[str] = (),
) -> Rendered:
    """Arguments and environment of one configuration.

    `settings` are those of `effective_settings`; `host_flags`, where known, choose the variant of a fork.
    Raises EngineError when a template cannot be filled.
    """
    try:
        return _render(profile, method, settings, names, set(host_flags))
    except ExpressionError as error:
        raise EngineError(f"engine: profile {profile.name}, method {method}: {error}") from None


def _render(
    profile: Profile, method: str, settings: Mapping[str, Any], names: Mapping[str, Any], host_flags: set[str]
) -> Rendered:
    rule = profile.methods[method]
    variant = chosen_variant(profile, method, host_flags)
    templates = {**profile.arguments, **(variant.arguments if variant else rule.arguments)}
    environment = {**profile.environment, **rule.environment, **(variant.environment if variant else {})}
    flags: dict[str, Any] = {}
    # Sorted: a setting that was given and the same one from a default make the same command line.
    for name, value in sorted(settings.items()):
        setting = profile.settings.get(name, Setting())
        if setting.template_only:
            continue
        if setting.env:
            environment[setting.env] = str(value)
        else:
            flags[setting.flag or "--" + name.replace("_", "-")] = value
    # What the method says wins over a setting of the same flag: it is what is swept.
    for flag, template in templates.items():
        flags[flag] = fill(template, names)
    positional = {name: flags.pop(name) for name in list(flags) if not name.startswith("-")}
    arguments = [str(value) for value in positional.values() if value is not None]
    given: dict[str, Any] = {}
    for flag, value in flags.items():
        arguments.extend(_as_arguments(flag, value, host_flags))
        if value is not None and value is not False:
            given[flag] = None if value is True else value
    filled = {key: str(value) for key, value in fill(environment, names).items()}
    return Rendered(arguments=arguments, environment=filled, flags=given)


def _as_arguments(flag: str, value: Any, host_flags: set[str]) -> list[str]:
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        opposite = flag.replace("--", "--no-", 1)
        return [opposite] if opposite in host_flags else []
    if isinstance(value, Mapping):
        return [flag, msgspec.json.encode(value).decode()]
    if isinstance(value, (list, tuple)):
        return [flag, *(str(item) for item in value)]
    return [flag, str(value)]


def chosen_variant(profile: Profile, method: str, host_flags: set[str]) -> Variant | None:
    """The fork's spelling of a method: of the variants whose flags this build knows, the most specific one.

    Where none fits, or no host was asked yet, the first one stands for a method without a spelling of its own:
    its flags are then missed in the host's help, and nothing starts without speculation unseen.
    """
    candidates = [variant for variant in profile.variants if variant.method == method]
    fitting = [variant for variant in candidates if set(variant.when_flags) <= host_flags]
    if host_flags and fitting:
        return max(fitting, key=lambda variant: len(variant.when_flags))
    own = profile.methods[method].arguments
    return candidates[0] if candidates and not own else None


def native_tool(profile: Profile, name: str = "") -> NativeTool:
    """The load tool of that name, or the profile's first.  Raises EngineError."""
    for tool in profile.native:
        if name in ("", tool.name):
            return tool
    known = ", ".join(tool.name for tool in profile.native) or "none"
    raise EngineError(f"load_tool: expected a native load tool of {profile.name} ({known}); got {name!r}")


def native_arguments(tool: NativeTool, names: Mapping[str, Any]) -> list[str]:
    """Arguments of a native load tool for one load point.  Raises EngineError when one cannot be filled."""
    try:
        filled = {flag: fill(template, names) for flag, template in tool.arguments.items()}
    except ExpressionError as error:
        raise EngineError(f"engine: load tool {tool.name}: {error}") from None
    return [word for flag, value in filled.items() for word in _as_arguments(flag, value, set())]


def missing_flags(rendered: Rendered, host_flags: Iterable[str]) -> list[str]:
    """Flags of a rendered command that the host's build does not name in its help (dotted ones by their root)."""
    known = set(host_flags)
    if not known:
        return []
    return [flag for flag in rendered.flags if flag not in known and flag.split(".", 1)[0] not in known]


def stop_rule(profile: Profile, version: str | None) -> Stop:
    """What a good stop looks like for this engine version."""
    for rule in profile.stop:
        if version_matches(rule.versions, version):
            return rule
    return Stop()


def version_matches(condition: str, version: str | None) -> bool:
    """Whether `version` fulfils `*` or comparisons such as `>=0.5.20,<0.6`."""
    if condition.strip() == "*":
        return True
    have = _numbers(version or "")
    if not have:
        return False
    for part in condition.split(","):
        match = re.fullmatch(r"\s*(<=|>=|==|<|>)\s*([\d.]+)\s*", part)
        if not match:
            raise EngineError(f"engine: {condition!r} is not a version condition such as >=0.5.20")
        want = _numbers(match[2])
        width = max(len(have), len(want))
        left, right = have + (0,) * (width - len(have)), want + (0,) * (width - len(want))
        fulfilled = {
            "<=": left <= right,
            ">=": left >= right,
            "==": left == right,
            "<": left < right,
            ">": left > right,
        }[match[1]]
        if not fulfilled:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.search(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def version_question(profile: Profile, names: Mapping[str, Any]) -> dict[str, Any] | None:
    """How a host is asked for the engine's version: whole commands first, then arguments of the engine's own."""
    if profile.version is None:
        return None
    return {
        "commands": [[str(fill(part, names)) for part in command] for command in profile.version.commands],
        "arguments": profile.version.arguments,
        "pattern": profile.version.pattern,
    }


def commands(profile: Profile, names: Mapping[str, Any]) -> list[list[str]]:
    """Candidate commands of the engine, in the order in which a host is searched for them."""
    return [[str(fill(part, names)) for part in command] for command in profile.commands]
