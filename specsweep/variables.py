"""Sweep variables: every name a user can set, what it accepts, its default and its meaning; in one place.

Ansible hands values over in many shapes (``-e budgets=[8,16]`` is the text ``"[8,16]"``, JSON and YAML files
give lists): `normalise` turns all of them into one form or raises VariableError with one line that names the
variable, the value that came and what is accepted.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml


class VariableError(ValueError):
    """A sweep variable that cannot be used; the message is one line for the user."""


@dataclass(frozen=True)
class Variable:
    """One sweep variable.  `read` turns what came into the normal form or raises ValueError(reason)."""

    name: str
    accepts: str
    default: Any
    meaning: str
    read: Callable[[Any], Any]


def _items(value: Any) -> list[Any]:
    """Items of a list in any of its forms: a list, "[8,16]", "8,16", "8 16", 8."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if not isinstance(value, str):
        return [value]
    text = value.strip()
    if text.startswith("[") != text.endswith("]"):
        raise ValueError("the bracket is not closed; write it without spaces, or quote the whole: -e 'budgets=[8,16]'")
    if text.startswith("["):
        text = text[1:-1].strip()
    if not text:
        return []
    parts = [part.strip("\"' ") for part in re.split(r"\s*,\s*|\s+", text)]
    if "" in parts:
        raise ValueError("a value is missing between two commas or at an end")
    return parts


#: Larger numbers fit into no engine's integers, nor into the record.
_LARGEST = 2**63 - 1


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError(f"{value!r} is not a whole number")
        number = int(text)
    if abs(number) > _LARGEST:
        raise ValueError(f"it is not between -{_LARGEST} and {_LARGEST}")
    return number


def _unique(values: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for value in values:
        # True == 1 in Python, but not for an engine.
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in seen):
            raise ValueError(f"{value!r} stands there twice")
        seen.append(value)
    if not values:
        raise ValueError("it is empty")
    return values


def _whole_list(least: int) -> Callable[[Any], list[int]]:
    def read(value: Any) -> list[int]:
        numbers = [_whole(item) for item in _items(value)]
        for number in numbers:
            if number < least:
                raise ValueError(f"{number} is less than {least}")
        return _unique(numbers)

    return read


def _whole_from(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _whole(value)
        if number < least:
            raise ValueError(f"{number} is less than {least}")
        return number

    return read


def _number_from(least: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = float(str(value))
        except (ValueError, RecursionError):
            raise ValueError(f"{_shown(value)} is not a number") from None
        if isinstance(value, bool) or not least <= number < float("inf"):
            raise ValueError(f"{value!r} is not a number of at least {least:g}")
        return number

    return read


def _zero_or_from(least: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = _number_from(0)(value)
        if 0 < number < least:
            raise ValueError(f"{value!r} is neither 0 nor a number of at least {least:g}")
        return number

    return read


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def _names(value: Any) -> list[str]:
    names = [str(item) for item in _items(value)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name")
    return _unique(names) if names else []


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    match str(value).strip().lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError(f"{value!r} is neither true nor false")


def _auto_or_truth(value: Any) -> str | bool:
    return "auto" if str(value).strip().lower() == "auto" else _truth(value)


def _choice(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if str(value) not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return read


#: Everything that ends a line somewhere: in Python, in a unit file, in JSON lines.
_BREAKS = re.compile(r"[\0\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)) or value is None:
        raise ValueError(f"{value!r} is not a text")
    text = str(value)
    if _BREAKS.search(text):
        raise ValueError("it has a line break or a null character")
    return text


def _structure(value: Any) -> Any:
    """Data that may have come as JSON or YAML text."""
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value) if value.strip() else None
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        # PyYAML lets out whatever the constructors of dates, numbers and tags raise.
        raise ValueError(
            "it is neither JSON nor YAML; write it as JSON in quotes or in a file: -e @sweep.yaml"
        ) from None


def _scalar(value: Any) -> bool | int | float | str | None:
    """A setting's value: a number, text or truth, None (leave the profile's default out), or JSON as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number that can be passed on")
    if value is None or isinstance(value, (bool, float, str)):
        return value
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"a {type(value).__name__} cannot be passed on; write it as a text in quotes") from None


def _mapping(value: Any) -> dict[str, Any]:
    data = _structure(value)
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ValueError("it is not a mapping")
    return {name: _scalar(item) for name, item in _setting_names(data).items()}


def _setting_names(data: Mapping[Any, Any]) -> dict[str, Any]:
    """The same mapping with every name in one spelling: max-running and max_running are one setting."""
    named: dict[str, Any] = {}
    for name, value in data.items():
        if not _NAME.fullmatch(str(name)):
            raise ValueError(f"{name!r} is not a name")
        ours = str(name).replace("-", "_")
        if ours in named:
            raise ValueError(f"{ours!r} stands there twice")
        named[ours] = value
    return named


def _axes(value: Any) -> dict[str, list[Any]]:
    data = _structure(value)
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ValueError("it is not a mapping of setting to values")
    axes: dict[str, list[Any]] = {}
    for name, values in _setting_names(data).items():
        if not isinstance(values, (list, tuple)):
            raise ValueError(f"the values of {name!r} are not a list")
        axes[name] = _unique([_scalar(item) for item in values])
    return axes


def _mappings(value: Any) -> list[dict[str, Any]]:
    data = _structure(value)
    if data is None:
        return []
    if isinstance(data, Mapping):
        data = [data]
    if not isinstance(data, (list, tuple)) or not all(isinstance(item, Mapping) and item for item in data):
        raise ValueError("it is not a list of mappings")
    return [_mapping(item) for item in data]


def _cases(value: Any) -> list[dict[str, Any]]:
    """Mappings of `exclude`; a list of values would match nothing, so it is refused."""
    cases = _mappings(value)
    for name, item in ((name, item) for case in cases for name, item in case.items()):
        if isinstance(item, str) and item.startswith("["):
            raise ValueError(f"{name!r} has a list; give one value, and a mapping for each")
    return cases


VARIABLES: tuple[Variable, ...] = (
    # What is swept.
    Variable(
        "budgets",
        "whole numbers of at least 0, such as [8,16,32]; 0 is no speculation",
        [0, 4, 16],
        "The engine's own draft knob; the engine profile says what it means.",
        _whole_list(0),
    ),
    Variable(
        "topks",
        "whole numbers of at least 1, such as [1,4]",
        [1],
        "Branches of the draft tree.",
        _whole_list(1),
    ),
    Variable(
        "concurrencies",
        "whole numbers of at least 1, such as [1,8,32]",
        [1, 4],
        "Requests in flight at once, closed loop: the load points of one restart.",
        _whole_list(1),
    ),
    Variable(
        "methods",
        "method names of the engine profile, such as [ngram-mod]",
        [],
        "How drafts are made; empty is the profile's default method.",
        _names,
    ),
    Variable("baseline", "true or false", True, "Measure without speculation too.", _truth),
    Variable(
        "repeats",
        "a whole number of at least 1",
        1,
        "Blocks; each repeats every configuration by a restart.",
        _whole_from(1),
    ),
    Variable(
        "anchors",
        "auto, true or false",
        "auto",
        "Measure the baseline again at start, middle and end, to see drift; auto: from six configurations.",
        _auto_or_truth,
    ),
    Variable(
        "axes",
        'a mapping of engine setting to values, such as {"max_running_requests": [64,128]}',
        {},
        "Any other engine setting that is swept; every combination is planned.",
        _axes,
    ),
    Variable(
        "linked",
        'a list of mappings, such as [{"max_running_requests": 64, "page_size": 1}]',
        [],
        "Settings that move together: each mapping is one point.",
        _mappings,
    ),
    Variable(
        "exclude",
        'a list of mappings, such as [{"budget": 64, "concurrency": 32}]',
        [],
        "Combinations that are skipped: a configuration or cell that has all values of one mapping.",
        _cases,
    ),
    Variable(
        "order",
        "random or given",
        "random",
        "Order inside a block: seeded random, or as given; sweep_order is the same without Ansible's warning.",
        _choice("random", "given"),
    ),
    Variable("seed", "a whole number of at least 0", 1, "Seed of the order and of sampling.", _whole_from(0)),
    # What is served.
    Variable("engine", "the name of an engine profile, such as llamacpp", "llamacpp", "Engine profile.", _text),
    Variable("model", "a path or model id", "", "Target model; empty is the embedded engine's own.", _text),
    Variable("drafter", "a path or model id", "", "Draft model, for the methods that need one.", _text),
    Variable(
        "settings",
        'a mapping of engine setting to value, such as {"mem_fraction_static": 0.8}',
        {},
        "Engine settings that are the same in every configuration.",
        _mapping,
    ),
    # How it is loaded.
    Variable(
        "prompts",
        "the name of a file in prompts/, or a path to JSON lines with id, category and prompt",
        "mixed",
        "Prompt set, cut into slices: no prompt is sent twice to one server.",
        _text,
    ),
    Variable(
        "prompts_reuse",
        "true or false",
        False,
        "Begin again when the prompt set is used up; every cell is then marked.",
        _truth,
    ),
    Variable(
        "requests",
        "a whole number of at least 1",
        28,
        "Requests of a cell; at least twice the concurrency are sent.",
        _whole_from(1),
    ),
    Variable(
        "output_tokens",
        "a whole number of at least 2",
        128,
        "Length of an answer, or its cap.",
        _whole_from(2),
    ),
    Variable(
        "output_mode",
        "exact or natural",
        "exact",
        "exact ignores the end-of-text token; natural stops there, with output_tokens as the cap.",
        _choice("exact", "natural"),
    ),
    Variable("temperature", "a number of at least 0", 0.0, "Sampling temperature.", _number_from(0)),
    Variable(
        "load_driver",
        "specsweep or native",
        "specsweep",
        "Who sends the measured requests: our load client, or a native load tool of the engine's profile.",
        _choice("specsweep", "native"),
    ),
    Variable(
        "load_tool",
        "the name of a native load tool of the engine profile, such as aiperf",
        "",
        "Which native load tool; empty is the profile's first.",
        _text,
    ),
    # Limits and behaviour.
    Variable(
        "ready_timeout_s",
        "0 or a number of at least 1",
        0.0,
        "Longest wait for the first generation; 0 is the profile's.",
        _zero_or_from(1),
    ),
    Variable("request_timeout_s", "a number of at least 1", 600.0, "Longest time of one request.", _number_from(1)),
    Variable("cell_timeout_s", "a number of at least 1", 3600.0, "Longest time of one load point.", _number_from(1)),
    Variable(
        "reconnect_timeout_s",
        "a number of at least 0",
        120.0,
        "How long to wait for a host whose connection was lost.",
        _number_from(0),
    ),
    Variable(
        "client_lag_limit_ms",
        "a number of at least 1",
        100.0,
        "A cell whose load client was later than this at p99 is invalid: it measured the client.",
        _number_from(1),
    ),
    Variable("sweep_strict", "true or false", False, "End with exit code 2 when a cell failed.", _truth),
    Variable("sweep_plan_only", "true or false", False, "Print the plan and touch no host.", _truth),
    Variable("sweep_results", "a folder", "results", "Where the results go, on the controller.", _text),
    Variable("sweep_note", "a text", "", "Kept with the sweep.", _text),
)
BY_NAME = {variable.name: variable for variable in VARIABLES}
#: Other names: Ansible warns that `order` is a name of its own.
ALIASES = {"sweep_order": "order"}


def normalise(given: Mapping[str, Any], raw_params: str = "") -> dict[str, Any]:
    """All sweep variables in their normal form.

    `given` holds what the user set (other names are ignored); `raw_params` is what Ansible cut off an
    ``-e`` at a space.  Raises VariableError for the first value that is not accepted.
    """
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        if variable.name not in given:
            values[variable.name] = copy.deepcopy(variable.default)
            continue
        came = given[variable.name]
        try:
            values[variable.name] = variable.read(came)
        except ValueError as error:
            reason = _short(str(error))
            rest = f"; the rest of it, {_short(raw_params)!r}, was cut off at a space" if raw_params else ""
            raise VariableError(
                f"{variable.name}: expected {variable.accepts}; got {_shown(came)}: {reason}{rest}"
            ) from None
    if raw_params:
        raise VariableError(
            f"-e: {_short(raw_params)!r} belongs to no variable: it was cut off at a space; write the value without "
            "spaces, or quote the whole: -e 'budgets=[8,16]'"
        )
    return values


def _shown(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__} that cannot be shown"
    return repr(_short(text))


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def misspelt(names: Iterable[str]) -> str | None:
    """One line when an extra variable looks like a misspelt sweep variable, else None."""
    for name in names:
        if name in BY_NAME:
            continue
        close = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.8)
        if close:
            return f"{name}: no such sweep variable; did you mean {close[0]} ({BY_NAME[close[0]].accepts})?"
    return None


def as_markdown() -> str:
    """The table of docs/variables.md."""
    rows = ["| variable | accepts | default | meaning |", "| --- | --- | --- | --- |"]
    for variable in VARIABLES:
        default = json.dumps(variable.default)
        rows.append(f"| `{variable.name}` | {variable.accepts} | `{default}` | {variable.meaning} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print("# Sweep variables\n\nGenerated from specsweep/variables.py by `make docs`.\n")
    print(as_markdown(), end="")
