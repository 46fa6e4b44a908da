"""Telemetry voids a cell, and too little telemetry does not."""

import pytest

from analysis import results as loading
from analysis import validity, verdicts
from analysis.validity import Limits, judge
from benchmarks.make_results import Plan, write_sweep
from specsweep import record
from tests.made import cell


def gpu(**changes):
    fields = {
        "gpu": "GPU 0",
        "samples": 60,
        "sm_clock_mhz_median": 1980.0,
        "sm_clock_spread": 0.01,
        "temperature_c_max": 60.0,
        "utilization_mean": 0.95,
        "power_limit_w": 700.0,
    }
    return record.Telemetry(**{**fields, **changes})


def test_a_quiet_window_is_valid():
    assert judge(cell(telemetry=[gpu()])).verdict == "valid"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"throttle_reasons": ["clocks_event_reasons.hw_thermal_slowdown"]}, "throttled (hw_thermal_slowdown)"),
        ({"throttle_reasons": ["HW Slowdown"]}, "throttled (hw_slowdown)"),
        ({"sm_clock_spread": 0.19}, "clock spread 19.0%"),
        ({"temperature_c_max": 95.0}, "95 C"),
        ({"foreign_processes": ["4242 python"]}, "foreign process 4242 python"),
        ({"power_limit_w": 450.0}, "power limit 450 W, this host's other cells had 700 W"),
    ],
)
def test_each_limit_voids_and_says_why(changes, words):
    found = judge(cell(telemetry=[gpu(), gpu(gpu="GPU 1", **changes)]), usual_power_limit_w=700.0)
    assert found.verdict == "invalid"
    assert words in found.reasons[0] and found.reasons[0].startswith("GPU 1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phantom_successes": 3}, "without output"),
        ({"client": record.Client(overloaded=True)}, "overloaded"),
        ({"counters": {"output_tokens": 2000.0}, "output_tokens_total": 1000}, "requests not ours"),
    ],
)
def test_the_run_itself_can_void_a_cell(changes, words):
    found = judge(cell(telemetry=[gpu()], **changes))
    assert found.verdict == "invalid" and words in found.reasons[0]


def test_a_restart_of_the_unit_voids():
    assert judge(cell(telemetry=[gpu()]), restarts=2.0).verdict == "invalid"
    assert judge(cell(telemetry=[gpu()]), restarts=0.0).verdict == "valid"


def test_too_few_samples_are_unobserved_not_void():
    thin = gpu(samples=9, sm_clock_spread=0.4, throttle_reasons=["hw_slowdown"])
    found = judge(cell(telemetry=[thin]))
    assert found.verdict == "unobserved" and "9 busy samples" in found.reasons[0]
    assert judge(cell()).verdict == "unobserved"
    idle = gpu(samples=60, utilization_mean=0.2)
    assert judge(cell(telemetry=[idle])).verdict == "unobserved"


def test_a_power_cap_is_a_remark_unless_asked():
    capped = cell(telemetry=[gpu(throttle_reasons=["sw_power_cap"])])
    found = judge(capped)
    assert found.verdict == "valid" and "power cap" in found.remarks[0]
    assert judge(capped, Limits(power_cap_voids=True)).verdict == "invalid"


def test_limits_are_settings():
    warm = cell(telemetry=[gpu(temperature_c_max=85.0)])
    assert judge(warm).verdict == "valid"
    assert judge(warm, Limits(temperature_c=80.0)).verdict == "invalid"


def test_a_void_cell_leaves_the_verdicts_and_keeps_its_row(tmp_path):
    folder = write_sweep(tmp_path, Plan(budgets=(8,), concurrencies=(8,), repeats=3, anchors=()))
    paths = [path for path in folder.glob("*/*/*/cells/c8.json") if record.read(path, record.Cell).budget == 8]
    hot = record.read(paths[0], record.Cell)
    hot.telemetry[0].throttle_reasons = ["hw_thermal_slowdown"]
    record.write(paths[0], hot)
    data = loading.load(folder)
    row = data.cells[data.cells["cell_id"] == hot.cell_id].iloc[0]
    assert (row["status"], row["validity"]) == ("invalid", "invalid")
    assert "hw_thermal_slowdown" in row["reason"]
    frame = verdicts.verdicts(data)
    assert frame.set_index("budget").loc[8, "n"] == 2
    relaxed = loading.load(folder, limits=Limits(throttle_reasons=frozenset()))
    assert verdicts.verdicts(relaxed).set_index("budget").loc[8, "n"] == 3


def test_a_cell_whose_service_ran_something_else_is_not_applied():
    other = cell(telemetry=[gpu()], attestation="wrong_process")
    assert validity.apply([other], {}) == [None]
    assert other.status == "not_applied"
