"""Did the configuration take effect?  Witnesses: unit, command line, environment, start time, port, report.

The sixth, behaviour (speculation asked for and drafts counted), is heard by the load client after its warm-up.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import urlsplit

from . import generate, metrics, paths, procfs

#: From the worst to the best; the verdict is the worst one heard.
ORDER = ("wrong_process", "not_applied", "adjusted", "applied")

Witness = dict[str, str]
Difference = dict[str, Any]


def verdict(witnesses: list[Witness]) -> str:
    """The worst verdict of the witnesses that know something; `unknown` when none does."""
    heard = {witness["verdict"] for witness in witnesses}
    for word in ORDER:
        if word in heard:
            return word
    return "unknown"


def _witness(name: str, word: str, detail: str = "") -> Witness:
    return {"name": name, "verdict": word, "detail": detail}


def unit(wanted: str, installed: str | None, properties: dict[str, str]) -> Witness:
    """The unit on disk is the rendered one, and the manager has read it."""
    if installed is None:
        return _witness("unit", "not_applied", "the unit file is not there")
    if installed.strip() != wanted.strip():
        digest = hashlib.sha256(installed.encode()).hexdigest()[:12]
        return _witness("unit", "not_applied", f"the unit file was changed after it was written (now sha256 {digest})")
    if properties.get("NeedDaemonReload") == "yes":
        return _witness(
            "unit", "not_applied", "the unit changed on disk and was not reloaded: an older definition runs"
        )
    return _witness("unit", "applied")


def command_line(wanted: list[str], actual: list[str] | None) -> Witness:
    """The main process was started with our arguments (an interpreter may stand before them)."""
    if actual is None:
        return _witness("command_line", "unknown", "cannot be read")
    if actual[-len(wanted) :] == wanted or actual[-(len(wanted) - 1) :] == wanted[1:]:
        return _witness("command_line", "applied")
    if not any(argument.startswith("-") for argument in actual):
        return _witness("command_line", "unknown", "the process renamed itself: {}".format(" ".join(actual)[:120]))
    missing = [argument for argument in wanted[1:] if argument not in actual]
    if not missing:
        shown = " ".join(actual)[:200]
        return _witness(
            "command_line", "not_applied", f"the process has the arguments in another order or more: {shown}"
        )
    return _witness("command_line", "not_applied", "not in the process's arguments: {}".format(" ".join(missing)[:200]))


def environment(wanted: dict[str, str], actual: dict[str, str] | None) -> Witness:
    """The main process has our variables (values are compared, never told)."""
    if actual is None:
        return _witness("environment", "unknown", "cannot be read")
    wrong = sorted(name for name, value in wanted.items() if actual.get(name) != value)
    if wrong:
        return _witness("environment", "not_applied", "other or no value: {}".format(", ".join(wrong)))
    return _witness("environment", "applied")


def start_time(written_unix_s: float, started_unix_s: float | None) -> Witness:
    """The process is younger than the unit that it should have been started from."""
    if started_unix_s is None:
        return _witness("start_time", "unknown", "cannot be read")
    if started_unix_s + 0.5 < written_unix_s:
        age = written_unix_s - started_unix_s
        return _witness("start_time", "not_applied", f"the process is {age:.1f} s older than the unit")
    return _witness("start_time", "applied")


def port_owner(port: int, unit_pids: Any) -> Witness:
    """The socket on the port belongs to our unit."""
    if not procfs.available():
        return _witness("port_owner", "unknown", "no /proc on this host")
    if procfs.port_owner(port, unit_pids) is not None:
        return _witness("port_owner", "applied")
    owner = procfs.port_owner(port)
    if owner is None and not procfs.listening_inodes(port):
        return _witness("port_owner", "not_applied", "nobody listens on port %d" % port)
    return _witness("port_owner", "wrong_process", "port %d is held by pid %s" % (port, owner or "of another user"))


def same(asked: Any, effective: Any) -> bool:
    """Whether two settings mean the same, whatever their spelling (8 and "8", 0.30 and 0.3, lists)."""
    if asked is None:
        return effective is True
    if isinstance(asked, bool) or isinstance(effective, bool):
        return str(asked).lower() == str(effective).lower()
    try:
        return float(asked) == float(effective)
    except (TypeError, ValueError):
        pass
    if isinstance(asked, str) and isinstance(effective, (dict, list)):
        asked = _json(asked)
    if isinstance(asked, (list, tuple)) and isinstance(effective, (list, tuple)):
        return len(asked) == len(effective) and all(map(same, asked, effective))
    if isinstance(asked, dict) and isinstance(effective, dict):
        return all(key in effective and same(value, effective[key]) for key, value in asked.items())
    return str(asked).lower() == str(effective).lower()


def arguments_report(flags: dict[str, Any], report: dict[str, Any], ignore: list[str]) -> list[Difference]:
    """Every flag that was given against the engine's own report of its effective arguments."""
    found = []
    for flag, asked in flags.items():
        key = flag.lstrip("-").replace("-", "_")
        if key in ignore or key not in report:
            continue
        if not same(asked, report[key]):
            effective = report[key]
            found.append({"name": key, "asked": asked, "effective": effective, "witness": "engine_report"})
    return found


def check(rule: dict[str, Any], answer: Any) -> Difference | None:
    """One check of the profile against a report; None when it agrees."""
    if rule["select"] == "positions":
        effective: Any = len(metrics.by_position(answer, rule["metric"]["name"], rule["metric"]["label"]))
    else:
        found = paths.values(answer, rule["select"])
        wrong = [value for value in found if not same(rule["expect"], value)]
        effective = wrong[0] if wrong else rule["expect"] if found else None
    if same(rule["expect"], effective):
        return None
    return {"name": rule["name"], "asked": rule["expect"], "effective": effective, "witness": "engine_report"}


def engine_report(
    url: str, rules: dict[str, Any], flags: dict[str, Any], headers: dict[str, str]
) -> tuple[Witness, list[Difference], dict[str, str]]:
    """The engine's own words: (witness, differences, path -> report text).  Every call has a time limit."""
    pages: dict[str, str] = {}
    silent: list[str] = []
    wanted = [*rules["reports"], *(rule["path"] for rule in rules["checks"])]
    if rules["arguments_report"]:
        wanted.append(rules["arguments_report"])
    for path in dict.fromkeys(wanted):
        try:
            status, body = generate.get(url + path, 10.0, headers)
        except OSError as error:
            silent.append(f"{path}: {error}")
            continue
        if status == 200:
            pages[path] = body.decode(errors="replace")
        else:
            silent.append("%s: HTTP %d" % (path, status))
    differences: list[Difference] = []
    words = []
    heard = False
    if rules["arguments_report"] in pages:
        report = _json(pages[rules["arguments_report"]])
        if rules["arguments_prefix"]:
            report = paths.first(report, [rules["arguments_prefix"]])
        if isinstance(report, dict):
            heard = True
            differences += arguments_report(flags, report, rules["ignore"])
            words += ["adjusted"] * bool(differences)
    for rule in rules["checks"]:
        page = pages.get(rule["path"])
        if page is None:
            continue
        answer = page if rule["select"] == "positions" else _json(page)
        if answer is None:
            continue
        heard = True
        difference = check(rule, answer)
        if difference:
            differences.append(difference)
            words.append(rule["otherwise"])
    if not heard:
        return _witness("engine_report", "unknown", "; ".join(silent) or "the engine has no report"), [], pages
    word = next((word for word in ORDER if word in words), "applied")
    shown = "; ".join("{name}: asked {asked}, runs {effective}".format(**item) for item in differences)
    return _witness("engine_report", word, shown), differences, pages


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def main_process(
    plan: dict[str, Any], properties: dict[str, str], installed: str | None, pids: Any, url: str
) -> list[Witness]:
    """The witnesses that need no answer of the engine."""
    pid = int(properties.get("MainPID") or 0)
    return [
        unit(plan["unit_text"], installed, properties),
        command_line(plan["argv"], procfs.command_line(pid) if pid else None),
        environment(plan["environment"], procfs.environment(pid) if pid else None),
        start_time(plan["written_unix_s"], procfs.start_time(pid) if pid else None),
        port_owner(urlsplit(url).port or 80, pids),
    ]
