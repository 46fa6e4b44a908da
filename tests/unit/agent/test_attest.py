"""Did the configuration take effect: every witness, and the verdict over all of them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from specsweep_agent import attest, procfs

from tests.unit.agent.stand_in import Exchange, StandIn

ARGV = ["/usr/bin/engine", "--budget", "8", "--name", "a b"]


def word(witness: dict[str, str]) -> str:
    return witness["verdict"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["applied", "applied"], "applied"),
        (["applied", "unknown"], "applied"),
        (["applied", "adjusted"], "adjusted"),
        (["adjusted", "not_applied", "applied"], "not_applied"),
        (["not_applied", "wrong_process", "unknown"], "wrong_process"),
        (["unknown", "unknown"], "unknown"),
        ([], "unknown"),
    ],
)
def test_the_worst_verdict_heard_counts(words: list[str], expected: str) -> None:
    assert attest.verdict([{"name": "x", "verdict": word, "detail": ""} for word in words]) == expected


def test_the_unit_on_disk_is_the_rendered_one_and_was_read() -> None:
    assert word(attest.unit("[Unit]\n", "[Unit]", {"NeedDaemonReload": "no"})) == "applied"
    assert attest.unit("a", None, {})["detail"] == "the unit file is not there"
    changed = attest.unit("a", "b", {})
    assert (word(changed), "was changed after it was written" in changed["detail"]) == ("not_applied", True)
    stale = attest.unit("a", "a", {"NeedDaemonReload": "yes"})
    assert (word(stale), "not reloaded" in stale["detail"]) == ("not_applied", True)


@pytest.mark.parametrize(
    ("actual", "expected", "detail"),
    [
        (ARGV, "applied", ""),
        (["/usr/bin/python3", *ARGV], "applied", ""),
        (["/usr/bin/python3", "/opt/engine", *ARGV[1:]], "applied", ""),
        (["/usr/bin/engine", "--budget", "16", "--name", "a b"], "not_applied", "not in the process's arguments: 8"),
        (["/usr/bin/engine", "--budget", "8"], "not_applied", "not in the process's arguments: --name a b"),
        ([*ARGV, "--budget", "4"], "not_applied", "in another order or more: /usr/bin/engine --budget 8 --name"),
        (["/usr/bin/engine", "--name", "8", "--budget", "a b"], "not_applied", "in another order or more"),
        (["sglang::scheduler"], "unknown", "renamed itself: sglang::scheduler"),
        (None, "unknown", "cannot be read"),
    ],
)
def test_the_command_line(actual: list[str] | None, expected: str, detail: str) -> None:
    found = attest.command_line(ARGV, actual)
    assert word(found) == expected
    assert detail in found["detail"]


def test_the_environment_is_compared_and_never_told() -> None:
    wanted = {"A": "1", "HF_TOKEN": "hf_secret", "B": ""}
    assert word(attest.environment(wanted, {**wanted, "MORE": "x"})) == "applied"
    found = attest.environment(wanted, {"A": "2", "B": ""})
    assert (word(found), found["detail"]) == ("not_applied", "other or no value: A, HF_TOKEN")
    assert word(attest.environment(wanted, None)) == "unknown"


def test_a_process_older_than_its_unit() -> None:
    assert word(attest.start_time(1000.0, 1000.0)) == "applied"
    assert word(attest.start_time(1000.0, 999.8)) == "applied"  # the clock of /proc is coarse
    found = attest.start_time(1000.0, 940.0)
    assert (word(found), found["detail"]) == ("not_applied", "the process is 60.0 s older than the unit")
    assert word(attest.start_time(1000.0, None)) == "unknown"


def test_start_time_and_command_line_of_a_real_process() -> None:
    started = procfs.start_time(os.getpid())
    assert started is not None
    assert started < time.time() + 1
    assert word(attest.start_time(started - 5, started)) == "applied"
    assert procfs.command_line(2**22 + 1) is None
    assert procfs.environment(2**22 + 1) is None
    assert procfs.start_time(2**22 + 1) is None


def test_the_owner_of_the_port(stand_in: StandIn) -> None:
    nobody = attest.port_owner(stand_in.port, {os.getpid()})
    assert (word(nobody), nobody["detail"]) == ("not_applied", f"nobody listens on port {stand_in.port}")
    stand_in.listen()
    assert word(attest.port_owner(stand_in.port, {os.getpid()})) == "applied"
    other = attest.port_owner(stand_in.port, {1})
    assert (word(other), other["detail"]) == ("wrong_process", f"port {stand_in.port} is held by pid {os.getpid()}")
    assert word(attest.port_owner(stand_in.port, set())) == "wrong_process"


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        (8, 8), (8, "8"), ("8", 8), (0.3, "0.30"), ("0.30", 0.3), (1, 1.0), ("1e3", 1000), (None, True), (True, "true"),
        ("True", True), ("false", False), ("FlashInfer", "flashinfer"), ("none", None), ([1, 2], [1, 2]),
        (["1", "2"], [1, 2]), ("[1,2]", [1, 2]), ('{"a": 8}', {"a": 8}), ('{"a": "8"}', {"a": 8, "b": 1}),
        ({"a": 8}, {"a": "8", "b": 1}), ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}),
    ],
)  # fmt: skip
def test_the_same_value_in_another_spelling(asked: Any, effective: Any) -> None:
    assert attest.same(asked, effective)


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        (8, 16), ("8", "8x"), (None, False), (None, None), (True, False), ("true", 1), ([1, 2], [1]), ([1, 2], [2, 1]),
        ("[1", [1]), ("{", {"a": 1}), ({"a": 8}, {"b": 8}), ('{"a": 8}', {"a": 4}), ("nan", "nan0"), (8, None),
    ],
)  # fmt: skip
def test_another_value(asked: Any, effective: Any) -> None:
    assert not attest.same(asked, effective)


RULES: dict[str, Any] = {
    "reports": ["/report"],
    "arguments_report": "/args",
    "arguments_prefix": "server.args",
    "ignore": ["drafter"],
    "checks": [],
}


def serve(stand_in: StandIn, pages: dict[str, Any]) -> None:
    def get(exchange: Exchange) -> None:
        page = pages.get(exchange.path)
        if page is None:
            exchange.status(404)
        else:
            exchange.status(200, page if isinstance(page, bytes) else json.dumps(page).encode())

    stand_in.get = get
    stand_in.listen()


def heard(stand_in: StandIn, flags: dict[str, Any], **rules: Any) -> tuple[Any, Any, Any]:
    return attest.engine_report(stand_in.url, {**RULES, **rules}, flags, {})


FLAGS = {"--max-running-requests": 256, "--mem-fraction": "0.80", "--drafter": "d", "--unheard-of": 1, "--trust": None}


def test_the_engine_runs_what_was_asked(stand_in: StandIn) -> None:
    report = {"max_running_requests": 256, "mem_fraction": 0.8, "drafter": "other", "trust": True}
    serve(stand_in, {"/args": {"server": {"args": report}}, "/report": {}})
    witness, differences, pages = heard(stand_in, FLAGS)
    assert (word(witness), differences) == ("applied", [])
    assert set(pages) == {"/report", "/args"}


def test_a_value_that_the_engine_clamped_is_named(stand_in: StandIn) -> None:
    serve(stand_in, {"/args": {"server": {"args": {"max_running_requests": 64, "trust": True}}}})
    witness, differences, _ = heard(stand_in, FLAGS)
    assert word(witness) == "adjusted"
    assert witness["detail"] == "max_running_requests: asked 256, runs 64"
    assert differences == [{"name": "max_running_requests", "asked": 256, "effective": 64, "witness": "engine_report"}]


SPECULATION = {
    "name": "speculation", "path": "/slots", "select": "*.speculative", "expect": True, "otherwise": "not_applied"
}  # fmt: skip
ALIAS = {"name": "alias", "path": "/models", "select": "data.0.id", "expect": "ours", "otherwise": "wrong_process"}


@pytest.mark.parametrize(
    ("slots", "models", "expected"),
    [
        ([{"speculative": True}] * 2, {"data": [{"id": "ours"}]}, "applied"),
        ([{"speculative": True}, {"speculative": False}], {"data": [{"id": "ours"}]}, "not_applied"),
        ([], {"data": [{"id": "ours"}]}, "not_applied"),
        ([{"speculative": False}], {"data": [{"id": "theirs"}]}, "wrong_process"),
        ([{"speculative": True}], {"data": []}, "wrong_process"),
        (b"<html>", {"data": [{"id": "ours"}]}, "applied"),
        (b"<html>", b"<html>", "unknown"),
        (None, None, "unknown"),
    ],
)
def test_checks_of_the_profile(stand_in: StandIn, slots: Any, models: Any, expected: str) -> None:
    serve(stand_in, {"/slots": slots, "/models": models})
    witness, differences, _ = heard(stand_in, {}, checks=[SPECULATION, ALIAS], arguments_report=None, reports=[])
    assert word(witness) == expected
    assert bool(differences) == (expected in ("not_applied", "wrong_process"))


def test_the_number_of_positions_tells_the_budget(stand_in: StandIn) -> None:
    page = "".join(f'pos_total{{position="{n}"}} 0\n' for n in range(8)).encode()
    serve(stand_in, {"/metrics": page})
    rule = {
        "name": "n",
        "path": "/metrics",
        "select": "positions",
        "metric": {"name": "pos_total", "label": "position"},
    }
    for budget, expected in ((8, "applied"), (16, "adjusted")):
        checks = [{**rule, "expect": budget, "otherwise": "adjusted"}]
        witness, _, _ = heard(stand_in, {}, checks=checks, arguments_report=None, reports=[])
        assert word(witness) == expected


def test_an_engine_that_does_not_answer_is_unknown_and_says_so(stand_in: StandIn) -> None:
    witness, differences, pages = heard(stand_in, FLAGS)
    assert (word(witness), differences, pages) == ("unknown", [], {})
    assert "/args: " in witness["detail"]
    assert "refused" in witness["detail"]


def test_a_report_that_is_no_json_is_unknown(stand_in: StandIn) -> None:
    serve(stand_in, {"/args": b"\xff{"})
    assert word(heard(stand_in, FLAGS)[0]) == "unknown"


def test_all_witnesses_of_a_real_process(stand_in: StandIn) -> None:
    stand_in.listen()
    mine = procfs.command_line(os.getpid())
    plan = {
        "unit_text": "u",
        "argv": mine,
        "environment": {"PATH": (procfs.environment(os.getpid()) or {})["PATH"]},
        "written_unix_s": (procfs.start_time(os.getpid()) or 0) - 1,
    }
    witnesses = attest.main_process(plan, {"MainPID": str(os.getpid())}, "u", {os.getpid()}, stand_in.url)
    assert {item["name"]: item["verdict"] for item in witnesses} == dict.fromkeys(
        ("unit", "command_line", "environment", "start_time", "port_owner"), "applied"
    )
    stale = {**plan, "argv": ["engine", "--budget", "16"], "written_unix_s": time.time() + 100}
    witnesses = attest.main_process(stale, {"MainPID": str(os.getpid())}, "v", {1}, stand_in.url)
    assert attest.verdict(witnesses) == "wrong_process"
    assert [item["verdict"] for item in witnesses].count("not_applied") == 3
