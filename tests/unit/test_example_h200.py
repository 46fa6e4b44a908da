"""The example of a real GPU: one H200, SGLang 0.5.17, SmolLM2-135M (examples/h200-sglang).

Everything here was measured, so these tests hold the loader, the statistics and the records to real data.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

import analysis
from analysis import verdicts
from analysis.classify import classify
from analysis.results import Results

EXAMPLE = Path(__file__).parents[2] / "examples/h200-sglang"
#: Configurations of the sweep: the baseline, NGRAM budgets x breadths, one tree of STANDALONE.
LABELS = {
    "none",
    *(f"ngram b{budget} k{topk}" for budget in (8, 16, 32, 64) for topk in (4, 8)),
    "standalone b16 k4",
}


@pytest.fixture(scope="module")
def sweep() -> Results:
    return analysis.load(EXAMPLE / "results")


@pytest.fixture(scope="module")
def failures() -> Results:
    return analysis.load(EXAMPLE / "failures", "all")


def test_every_cell_of_the_plan_is_there(sweep: Results) -> None:
    assert sweep.problems == []
    ran = sweep.cells[sweep.cells["status"].eq("ok")]
    assert {(row.label, row.concurrency) for row in ran.itertuples()} == {
        (label, concurrency) for label in LABELS for concurrency in (1, 8, 32)
    }
    left = sweep.cells[~sweep.cells["status"].eq("ok")]
    assert set(left["status"]) == {"skipped"}
    assert len(left) == 21, "seven trees of STANDALONE at three load points were excluded"
    assert left["reason"].str.startswith("excluded: method standalone").all()
    assert set(ran["origin"]) == {"measured"}
    assert set(ran["engine_version"]) == {"0.5.17"}


def test_what_ran_is_what_was_asked(sweep: Results) -> None:
    ran = sweep.cells[sweep.cells["status"].eq("ok")]
    assert set(ran["attestation"]) == {"applied"}
    assert sweep.differences.empty
    assert (ran["output_tokens_total"] == ran["requests_asked"] * 128).all()
    assert (ran["requests_failed"] == 0).all()
    assert (ran["batch_product_max"] == 32 * ran["verify_width"]).all()
    assert verdicts.what_differs(sweep) == []


def test_nine_stops_left_no_remark_and_no_failure(sweep: Results) -> None:
    """However 0.5.17 ends when we stop it for the next configuration, that is clean."""
    assert sweep.failures == []
    for configuration in sweep.configuration_records:
        assert configuration.remarks == [], configuration.label


def test_one_restart_gives_no_verdict(sweep: Results) -> None:
    frame = verdicts.verdicts(sweep)
    compared = frame[frame["status"].eq("ok") & ~frame["baseline"]]
    assert len(compared) == 27
    assert set(compared["verdict"]) == {"no verdict"}
    measured = frame[frame["status"].eq("ok")]
    assert set(verdicts.winners(measured, sweep)["standing"]) == {"no verdict"}
    report = (EXAMPLE / "report/report.html").read_text()
    assert "no verdict" in report


def test_windows_are_too_short_to_judge_the_clocks(sweep: Results) -> None:
    ran = sweep.cells[sweep.cells["status"].eq("ok")]
    assert set(ran["validity"]) == {"unobserved"}
    assert ran["throttle_reasons"].map(len).eq(0).all()
    assert ran["power_w_mean"].max() < 0.5 * ran["power_limit_w"].min(), "a model this small leaves the GPU idle"


def test_acceptance_from_requests_agrees_with_the_counters(sweep: Results) -> None:
    speculating = sweep.cells[sweep.cells["status"].eq("ok") & ~sweep.cells["baseline"]]
    assert len(speculating) == 27
    assert ((speculating["al"] / speculating["al_counters"] - 1).abs() < 0.01).all()
    baseline = sweep.cells[sweep.cells["baseline"]]
    assert (baseline["al"] == 1).all()


def test_a_drafter_that_is_the_target_is_accepted_nearly_whole(sweep: Results) -> None:
    """Five draft steps and the bonus token: 6 at most; the last step of a request commits less."""
    standalone = sweep.cells[sweep.cells["status"].eq("ok") & sweep.cells["method"].eq("standalone")]
    assert len(standalone) == 3
    assert set(standalone["settings.steps"]) == {5}
    assert standalone["al"].between(5.2, 6.0).all()


def test_step_time_is_that_of_the_requests(sweep: Results) -> None:
    """running x AL / step time = tok/s, with the step time taken from every request's own time and steps."""
    time_ms: defaultdict[tuple[str, int], float] = defaultdict(float)
    steps: defaultdict[tuple[str, int], float] = defaultdict(float)
    requests = sweep.requests
    for row in requests[~requests["warmup"].astype(bool)].itertuples():
        key = (row.cell_id.rsplit("-", 1)[0], row.concurrency)
        time_ms[key] += row.e2e_ms
        steps[key] += row.output_tokens if row.label == "none" else row.steps
    ran = sweep.cells[sweep.cells["status"].eq("ok")]
    assert len(steps) == len(ran) == 30
    for cell in ran.itertuples():
        key = (cell.cell_id.rsplit("-", 1)[0], cell.concurrency)
        step_s = time_ms[key] / steps[key] / 1000
        assert cell.running_mean * cell.al / step_s == pytest.approx(cell.system_tok_s, rel=1e-3), cell.label
        assert cell.running_mean <= cell.concurrency * 1.001


def test_every_failure_on_purpose_has_its_class(failures: Results) -> None:
    notes = {sweep.sweep_id: sweep.variables["sweep_note"] for sweep in failures.sweeps}
    found = {notes[one.sweep_id]: (one.failure.klass, one.failure.phase) for one in failures.failures}
    assert found == {
        "on purpose: a flag of SGLang 0.5.23 on a host with 0.5.17": ("config.arg.unrecognized", "deploy"),
        "on purpose: a flag that no engine knows": ("config.arg.unrecognized", "unit_start"),
        "on purpose: another server holds the port": ("proc.port_in_use", "unit_start"),
        "on purpose: another process takes the GPU memory after the preflight": ("proc.gpu_occupied", "unit_start"),
        # The line says which process holds the memory; the class could be proc.gpu_occupied here too.
        "on purpose: another process holds the GPU memory before the sweep": ("mem.gpu.oom_load", "model_load"),
        "on purpose: the scheduler is killed under load": ("proc.killed", "serving_under_load"),
    }
    for one in failures.failures:
        assert one.failure.evidence and one.failure.advice


def test_the_classifier_finds_nothing_in_the_logs_of_runs_that_went_well() -> None:
    logs = sorted((EXAMPLE / "results").glob("*/h200/*/r1/evidence/engine.log.gz"))
    assert len(logs) == 10
    for log in [*logs, *(EXAMPLE / "longer").glob("*/h200/*/r1/evidence/engine.log.gz")]:
        assert classify({"engine": log}).klass == "none", log.parts[-4]


def test_what_was_measured_before_the_scheduler_was_killed_stands(failures: Results) -> None:
    ids = [s.sweep_id for s in failures.sweeps if "killed under load" in s.variables["sweep_note"]]
    cells = {cell.concurrency: cell for cell in failures.cell_records if cell.sweep_id in ids}
    assert {concurrency: cell.status for concurrency, cell in cells.items()} == {1: "ok", 8: "invalid", 32: "failed"}
    assert (cells[8].requests_completed, cells[8].requests_failed) == (7, 21)
    assert cells[8].failure is not None and cells[8].failure.klass == "proc.killed"


def test_length_of_the_answers_changes_what_is_measured(sweep: Results) -> None:
    """The same configuration with answers of 1024 tokens: they repeat themselves, and acceptance nearly doubles."""
    longer = analysis.load(EXAMPLE / "longer")
    assert set(longer.cells["status"]) == {"ok"}
    short = sweep.cells[sweep.cells["label"].eq("ngram b8 k4")].set_index("concurrency")["al"]
    for cell in longer.cells.itertuples():
        assert cell.label == "ngram b8 k4"
        assert cell.al > 1.8 * short[cell.concurrency]


def test_nothing_points_to_where_it_was_made() -> None:
    for path in EXAMPLE.rglob("*.json"):
        assert json.loads(path.read_text()) is not None
        assert "/home/" not in path.read_text(), path
    size = sum(path.stat().st_size for path in EXAMPLE.rglob("*") if path.is_file())
    assert size < 5_000_000
