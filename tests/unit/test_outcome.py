"""What became of a restart and of its cells."""

from __future__ import annotations

from typing import Any

import pytest

from specsweep import outcome
from specsweep.record import Attestation, Cell, Client, Configuration, Difference, Failure, Witness


def cell(concurrency: int = 1, **fields: Any) -> Cell:
    given = {
        "cell_id": "1", "sweep_id": "s", "host": "h", "configuration_id": "c", "label": "l", "engine": "e",
        "method": "none", "budget": 0, "concurrency": concurrency, "status": "pending", **fields,
    }  # fmt: skip
    return Cell(**given)


def configuration() -> Configuration:
    return Configuration(
        sweep_id="s", host="h", configuration_id="c", label="l", engine="e", method="none", budget=0, status="pending"
    )


DEAD = Failure(klass="proc.killed")


def test_cells_that_have_a_status_keep_it_and_the_others_say_whether_they_were_reached() -> None:
    cells = [cell(1, status="ok"), cell(2), cell(4), cell(8, status="skipped", reason="excluded")]
    whole = configuration()
    outcome.settle_cells(whole, cells, status="failed", reason="killed", failure=DEAD, reached="c2")
    assert [(item.status, item.reached, item.reason) for item in cells] == [
        ("ok", True, ""),
        ("failed", True, "killed"),
        ("failed", False, "not reached: killed"),
        ("skipped", True, "excluded"),
    ]
    assert [item.failure for item in cells] == [None, DEAD, DEAD, None]
    assert (whole.status, whole.reason, whole.failure) == ("failed", "killed", DEAD)


def test_before_any_load_no_cell_was_reached_and_the_reason_is_said_once() -> None:
    cells = [cell(1), cell(2)]
    outcome.settle_cells(configuration(), cells, status="not_applied", reason="stale", failure=None, reached=None)
    assert [(item.status, item.reached, item.reason) for item in cells] == [("not_applied", False, "stale")] * 2


def test_a_good_end_makes_the_configuration_no_failure() -> None:
    whole = configuration()
    whole.status = "ok"
    outcome.settle_cells(whole, [cell(1, status="ok")], status="ok", reason="x", failure=None, reached=None)
    assert (whole.status, whole.reason) == ("ok", "")


def judged(point: dict[str, Any] | None = None, **fields: Any) -> Cell:
    made = cell(**{"requests_asked": 4, "requests_completed": 4, **fields})
    outcome.judge_cell(made, point or {})
    return made


@pytest.mark.parametrize(
    ("fields", "point", "status", "reason"),
    [
        ({}, {}, "ok", ""),
        ({"requests_completed": 0, "requests_failed": 4}, {}, "failed", "none of 4 requests was answered"),
        ({"requests_completed": 0, "requests_failed": 4, "phantom_successes": 4}, {}, "failed", "none of 4"),
        ({"requests_completed": 3, "requests_failed": 1, "phantom_successes": 1}, {}, "invalid", "1 answers only"),
        ({"requests_completed": 3, "requests_failed": 1}, {}, "invalid", "1 of 4 requests failed"),
        ({}, {"running_before": 2.0}, "invalid", "2 requests that are not ours"),
        ({}, {"running_before": 0.0}, "ok", ""),
        ({"client": Client(lag_ms_p99=250.4, overloaded=True)}, {}, "invalid", "250 ms late at p99"),
        ({"client": Client(lag_ms_p99=25.0)}, {}, "ok", ""),
    ],
)  # fmt: skip
def test_a_measured_cell_is_judged(fields: dict[str, Any], point: dict[str, Any], status: str, reason: str) -> None:
    made = judged(point, **fields)
    assert made.status == status
    assert reason in made.reason
    assert bool(made.reason) == (status != "ok")


def test_remarks_tell_what_a_reader_must_know() -> None:
    made = judged({"warmup_failed": 1, "flush": "not flushed: HTTP 400"}, cached_prompt_tokens=7)
    assert made.status == "ok"
    assert made.remarks == [
        "1 warm-up requests failed",
        "the cache was not flushed: HTTP 400",
        "7 prompt tokens came from the cache",
    ]
    assert judged({"warmup_failed": 0, "flush": "flushed"}, cached_prompt_tokens=0).remarks == []


@pytest.mark.parametrize("step", sorted(outcome.CLASS_OF_STEP))
def test_a_step_that_knows_its_cause_gives_a_known_class_with_advice(step: str) -> None:
    failure = outcome.from_step(step, "port 8000 is held")
    assert failure is not None
    assert failure.klass == outcome.CLASS_OF_STEP[step]
    assert failure.advice, "no rule of that class"
    assert failure.evidence[0].text == "port 8000 is held"


def test_other_steps_leave_it_to_the_log() -> None:
    assert outcome.from_step("ready", "x") is None


@pytest.mark.parametrize(
    ("witness", "klass"),
    [
        (Witness(name="port_owner", verdict="wrong_process"), "deploy.not_applied.stale_process"),
        (Witness(name="start_time", verdict="not_applied"), "deploy.not_applied.stale_process"),
        (Witness(name="unit", verdict="not_applied", detail="changed and was not reloaded: older"),
         "unit.daemon_reload_needed"),
        (Witness(name="engine_report", verdict="not_applied"), None),
        (Witness(name="unit", verdict="applied"), None),
        (Witness(name="command_line", verdict="unknown"), None),
    ],
)  # fmt: skip
def test_the_class_of_an_attestation(witness: Witness, klass: str | None) -> None:
    failure = outcome.from_attestation(Attestation(verdict=witness.verdict, witnesses=[witness]), "why")
    assert (failure.klass if failure else None) == klass
    assert outcome.from_attestation(None, "why") is None


def test_only_what_is_swept_is_told_as_a_difference() -> None:
    differences = [
        Difference(name="max_running_requests", asked=256, effective=64, witness="engine_report"),
        Difference(name="page_size", asked=1, effective=16, witness="engine_report"),
    ]
    attestation = Attestation(verdict="adjusted", differences=differences)
    assert outcome.swept_differences(attestation, {"max_running_requests": 256}) == [
        "max_running_requests: asked 256, the engine runs 64"
    ]
    assert outcome.swept_differences(attestation, {}) == []
    assert outcome.swept_differences(None, {"page_size": 1}) == []
