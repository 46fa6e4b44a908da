"""python -m analysis.compare: a regression gate."""

import json

import pytest

from analysis.compare import compare, main
from benchmarks.make_results import Plan, Truth, write_sweep
from specsweep import record
from tests.made import cell, restarts, results

FAST, SLOW = [100.0, 100.5, 99.5, 100.2], [90.0, 90.5, 89.5, 90.2]


def verdicts_of(a, b):
    return {(one.label, one.concurrency): one.verdict for one in compare(results(a), results(b)).cells}


def test_each_verdict():
    a, b = [], []
    for budget, before, after in ((2, FAST, SLOW), (4, SLOW, FAST), (8, FAST, [100.1, 100.4, 99.6, 100.0])):
        a += restarts(before, budget=budget)
        b += restarts(after, budget=budget)
    a += restarts([100.0, 110.0, 90.0, 105.0], budget=16)
    b += restarts([101.0, 108.0, 92.0, 104.0], budget=16)
    a += restarts(FAST, budget=32)
    b += [cell(budget=32, tok_s=None, failure=record.Failure(klass="cuda.oom"))]
    a += [cell(budget=64, tok_s=None)]
    b += restarts(FAST, budget=64)
    a += restarts(FAST, budget=3)
    b += restarts(FAST, budget=5)
    a += [cell(budget=7, tok_s=100.0)]
    b += [cell(budget=7, tok_s=50.0)]
    found = {label.removeprefix("ddtree b"): verdict for (label, _), verdict in verdicts_of(a, b).items()}
    assert found == {
        "2": "worse",
        "4": "better",
        "8": "tie",
        "16": "underpowered",
        "32": "broken",
        "64": "fixed",
        "3": "only in A",
        "5": "only in B",
        "7": "no verdict",
    }


def test_the_direction_is_b_against_a():
    found = compare(results(restarts(FAST)), results(restarts(SLOW))).cells[0]
    assert found.ratio == pytest.approx(0.9, rel=0.01)
    assert found.a > found.b
    assert found.low < found.ratio < found.high


def test_different_prompts_are_not_comparable():
    other = restarts(SLOW, prompts_sha256="1" * 64)
    found = compare(results(restarts(FAST)), results(other)).cells[0]
    assert (found.verdict, found.ratio) == ("not comparable", None)
    assert "prompt sets differ" in found.sentence


def test_two_prompt_sets_of_one_sweep_are_never_pooled():
    """Set 1 is twice as fast as set 0, and B measured set 0 only: nothing got slower."""
    a = restarts(FAST) + restarts([200.0, 201.0, 199.0, 200.4], prompts_sha256="1" * 64)
    b = restarts([100.1, 100.4, 99.6, 100.0])
    assert sorted(one.verdict for one in compare(results(a), results(b)).cells) == ["only in A", "tie"]


def test_two_hosts_are_compared_and_said_and_several_hosts_are_never_pooled():
    found = compare(results(restarts(FAST)), results(restarts(SLOW, host="host2")))
    assert found.cells[0].verdict == "worse"
    assert "host: host1 -> host2" in found.differs
    a = restarts(FAST) + restarts(SLOW, host="host2")
    b = restarts([100.1, 100.4, 99.6, 100.0]) + restarts(SLOW, host="host3")
    found = compare(results(a), results(b))
    assert {one.host: one.verdict for one in found.cells} == {
        "host1": "tie",
        "host2": "only in A",
        "host3": "only in B",
    }
    assert any("not compared: host2, host3" in line for line in found.differs)


def test_a_thousand_equal_sweeps_give_few_false_alarms():
    import numpy as np

    from analysis import statistics

    rng = np.random.default_rng(8)
    a, b = [], []
    for number in range(1000):
        a += restarts(100 * np.exp(rng.normal(0, 0.02, 4)), label=f"c{number}", settings={"n": number})
        b += restarts(100 * np.exp(rng.normal(0, 0.02, 4)), label=f"c{number}", settings={"n": number})
    found = compare(results(a), results(b))
    assert found.summary.get("worse", 0) / 1000 <= statistics.false_rate_bound(1000, 0.05)
    assert len(found.cells) == 1000


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare")
    plan = {"budgets": (8,), "concurrencies": (1, 8), "repeats": 4, "request_files": False}
    write_sweep(root / "a", Plan(**plan))
    write_sweep(root / "same", Plan(**plan, seed=2))
    slower = Truth(gain=lambda method, *_: 0.9 if method != "none" else 1.0)
    write_sweep(root / "b", Plan(**plan, seed=3, engine_version="0.0.1+made"), slower)
    return root


def test_the_gate(sweeps, capsys):
    a, b, same = (str(sweeps / name) for name in ("a", "b", "same"))
    assert main([a, b]) == 0
    text = capsys.readouterr().out
    assert "engine_version: 0.0.0+made -> 0.0.1+made" in text
    assert "ddtree b8 k4 at concurrency 8: worse" in text
    assert main([a, b, "--strict"]) == 1
    assert main([a, same, "--strict"]) == 0


def test_json_is_plain_json(sweeps, capsys):
    main([str(sweeps / "a"), str(sweeps / "b"), "--json"])
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert found["got_worse"] is True
    assert found["summary"]["worse"] == 2
    assert {one["label"] for one in found["cells"]} == {"none", "ddtree b8 k4"}


def test_unusable_input_is_one_line_and_exit_2(sweeps, tmp_path, capsys):
    (tmp_path / "x.txt").write_text("hello")
    other = write_sweep(tmp_path / "other", Plan(budgets=(5,), concurrencies=(3,), repeats=1, request_files=False))
    for arguments in (
        [str(sweeps / "a"), str(tmp_path / "nothing")],
        [str(sweeps / "a"), str(tmp_path / "x.txt")],
        [str(sweeps / "a"), str(other)],
        [str(sweeps / "a"), str(sweeps / "b"), "--margin", "7"],
    ):
        assert main(arguments) == 2
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.count("\n") == 1 and streams.err.startswith("analysis.compare: ")
    with pytest.raises(SystemExit) as caught:
        main(["only-one"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
