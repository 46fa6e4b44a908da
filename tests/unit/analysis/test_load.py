"""Our own results folder: what is loaded, and what broken and hostile folders do."""

import gzip
import json
import math
import subprocess
import sys
import time

import msgspec
import pytest

import analysis
from analysis import verdicts, why
from analysis.lines import bounded_lines
from analysis.results import InputError, load
from benchmarks.make_results import Plan, Truth, main, plan_of_cells, write_sweep
from specsweep import record


@pytest.fixture
def sweep(tmp_path):
    plan = Plan(budgets=(8, 16), concurrencies=(1, 8), repeats=2, log_mib=0.1)
    return write_sweep(tmp_path / "results", plan, Truth(largest_product=128 * 9))


def a_cell(sweep, budget=8, concurrency=8):
    for path in sorted(sweep.glob(f"*/*/*/cells/c{concurrency}.json")):
        if record.read(path, record.Cell).budget == budget:
            return path
    raise AssertionError


def change(path, **changes):
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changes}))


def test_every_frame_has_its_columns(sweep):
    data = analysis.load(sweep.parent)
    cells = data.cells
    # Two anchors, two blocks of three configurations, two load points each.
    assert len(cells) == (2 + 2 * 3) * 2
    for name in msgspec.structs.fields(record.Cell):
        nested = ("acceptance", "categories", "client", "telemetry", "counters", "ttft_ms", "tpot_ms", "e2e_ms")
        if name.name not in (*nested, "failure"):
            assert name.name in cells.columns
    ok = cells[cells["status"].eq("ok") & cells["budget"].eq(8)].iloc[0]
    assert ok["al"] == pytest.approx(ok["output_tokens_total"] / ok["al_steps"])
    assert ok["batch_product_max"] == 128 * 9
    assert ok["power_fraction"] == pytest.approx(ok["power_w_mean"] / 700)
    assert ok["settings"] == '{"mem_fraction_static":0.85}' and ok["settings.mem_fraction_static"] == 0.85
    failed = cells[cells["budget"].eq(16)]
    assert set(failed["failure_class"]) == {"cuda.cublas.execution_failed"}
    assert failed["system_tok_s"].isna().all() and failed["ttft_ms_median"].isna().all()
    assert len(data.configurations) == 8 and set(data.configurations["attestation"]) == {"applied", "unknown"}
    assert set(data.categories["category"]) == {"chat", "code", "json", "reasoning"}
    assert (data.positions.groupby("cell_id")["position"].max() == 7).all()
    assert set(data.phases["name"]) == {"stop", "load", "measure", "collect"}
    assert set(data.ready["event"]) == {"refused", "generated", "unit failed"}
    assert data.differences.empty and "asked" in data.differences.columns
    assert [failure.failure.klass for failure in data.failures] == ["cuda.cublas.execution_failed"] * 2
    assert data.failures[0].folder.is_dir()
    requests = data.requests
    assert len(requests) == 24 * 2 * 6
    merged = requests[requests["cell_id"].eq(ok["cell_id"])]
    assert merged["output_tokens"].sum() / merged["steps"].sum() == pytest.approx(ok["al"])
    assert data.problems == []


def test_the_step_time_identity_holds_for_made_cells(sweep):
    cells = load(sweep).cells
    cells = cells[cells["status"].eq("ok")]
    assert (cells["running_mean"] * cells["al"] / cells["step_time_ms"] * 1000).to_numpy() == pytest.approx(
        cells["system_tok_s"].to_numpy()
    )


def test_the_newest_sweep_is_the_default(tmp_path):
    for number, name in enumerate(("b-older", "a-newer")):
        folder = write_sweep(tmp_path, Plan(sweep_id=name, repeats=1, request_files=False))
        change(folder / "sweep.json", created_unix_s=1000.0 + number)
    assert set(load(tmp_path).cells["sweep_id"]) == {"a-newer"}
    assert set(load(tmp_path, "b-older").cells["sweep_id"]) == {"b-older"}
    assert set(load(tmp_path, "all").cells["sweep_id"]) == {"a-newer", "b-older"}
    with pytest.raises(InputError, match="no sweep c; there are: a-newer, b-older"):
        load(tmp_path, "c")


def test_import_is_cheap():
    code = "import sys, analysis; print([m for m in ('pandas', 'matplotlib', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_skipped_cells_of_the_plan_have_rows(sweep):
    skipped = {
        "label": "ddtree b64 k4",
        "method": "ddtree",
        "budget": 64,
        "topk": 4,
        "settings": {"mem_fraction_static": 0.85},
        "concurrency": 8,
        "reason": "the tree is larger than the block",
    }
    change(sweep / "sweep.json", plan={"skipped": [skipped, {"label": "half a row"}]})
    data = load(sweep)
    row = data.cells[data.cells["budget"].eq(64)].iloc[0]
    assert (row["status"], row["reason"]) == ("skipped", "the tree is larger than the block")
    assert verdicts.verdicts(data).set_index("budget").loc[64, "verdict"] == "skipped"
    assert any("skipped cell 1 of the plan is unreadable" in line for line in data.problems)


def test_pending_cells_are_said(sweep):
    change(a_cell(sweep), status="pending")
    assert load(sweep).problems == ["made-0001: 1 cells on gpu1 are still pending: the sweep did not end"]


def test_duplicated_cells_are_said_and_the_later_one_is_used(sweep):
    path = a_cell(sweep)
    first = record.read(path, record.Cell)
    first.window_start_unix_s += 100.0
    first.system_tok_s = 12345.0
    record.write(path.with_name("c8-again.json"), first)
    data = load(sweep)
    assert len(data.cells) == 16
    assert 12345.0 in set(data.cells["system_tok_s"])
    assert len(data.problems) == 1 and "is there twice" in data.problems[0]


def test_a_folder_cut_off_in_the_middle_of_a_write(sweep):
    path = a_cell(sweep)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    path.with_name(".c8.json.4242.tmp").write_bytes(whole[:100])
    requests = path.parent.parent / "requests" / "c1.jsonl.gz"
    requests.write_bytes(requests.read_bytes()[:-200])
    (sweep / "gpu1" / "host.json").write_bytes(b"")
    data = load(sweep)
    assert len(data.cells) == 15
    assert len([line for line in data.problems if str(path) in line]) == 1
    assert len(data.requests) > 0
    assert any("cut off or unreadable" in line for line in data.problems)
    assert all("\n" not in line for line in data.problems)
    assert why.headlines(data)


def test_a_sweep_without_its_own_record_still_loads(sweep):
    (sweep / "sweep.json").unlink()
    data = load(sweep)
    assert len(data.cells) == 16
    assert any("sweep.json" in line for line in data.problems)
    assert len(load(sweep.parent).cells) == 16


def test_a_restart_without_its_record_keeps_its_cells(sweep):
    path = a_cell(sweep)
    (path.parent.parent / "configuration.json").write_text("{")
    data = load(sweep)
    assert len(data.cells) == 16 and len(data.configurations) == 7


def test_a_missing_cell_is_said(sweep):
    path = a_cell(sweep)
    path.unlink()
    assert any("listed by its configuration but missing" in line for line in load(sweep).problems)


def test_an_unknown_schema_is_refused(sweep):
    change(a_cell(sweep), schema=99)
    data = load(sweep)
    assert len(data.cells) == 15
    assert any("schema 99, this version reads schema 1" in line for line in data.problems)


@pytest.mark.parametrize(
    ("field", "value"),
    [("system_tok_s", -5.0), ("window_s", -1.0), ("step_time_ms", 0.0), ("running_mean", -3.0)],
)
def test_numbers_that_cannot_be_are_dropped_and_said(sweep, field, value):
    path = a_cell(sweep)
    cell_id = record.read(path, record.Cell).cell_id
    change(path, **{field: value})
    data = load(sweep)
    assert math.isnan(data.cells.set_index("cell_id").loc[cell_id, field])
    assert len(data.problems) == 1 and f"{field} is {value:g}, which cannot be" in data.problems[0]


def test_nan_in_a_record_is_one_problem_and_the_rest_is_used(sweep):
    path = a_cell(sweep)
    text = path.read_text()
    assert '"system_tok_s": ' in text
    head, tail = text.split('"system_tok_s": ', 1)
    path.write_text(head + '"system_tok_s": NaN' + tail[tail.index(",") :])
    data = load(sweep)
    assert len(data.cells) == 15 and len(data.problems) == 1


def test_a_number_too_large_for_its_column_is_a_problem(sweep):
    change(a_cell(sweep), budget=10**30)
    data = load(sweep)
    assert len(data.cells) == 15 and len(data.problems) == 1


def test_clocks_that_jump_do_not_stop_anything(sweep):
    path = a_cell(sweep).parent.parent / "configuration.json"
    phases = [{"name": "load", "start_unix_s": 2e9, "end_unix_s": 1e9}]
    change(path, phases=phases)
    data = load(sweep)
    assert data.phases["duration_s"].min() >= 0
    assert any("ends before it starts" in line for line in data.problems)


def test_broken_request_lines_are_named(sweep):
    path = min(sweep.glob("*/*/*/requests/c8.jsonl.gz"))
    lines = gzip.decompress(path.read_bytes()).splitlines()
    bad = json.loads(lines[2])
    bad["e2e_ms"] = -4.0
    lines[2] = json.dumps(bad).encode()
    lines[1] = b'{"id": 3}'
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    data = load(sweep)
    assert len(data.requests) == 24 * 12 - 1
    *named, missing = [line.removeprefix(str(path)) for line in data.problems]
    assert [line.split(": ")[0] for line in named] == [":2", ":3"]
    assert missing == ": 23 requests, its cell counts 24 completed: some are missing"


def test_markup_in_names_stays_text(sweep):
    path = a_cell(sweep)
    change(path, label="<script>alert(1)</script>", model="<img src=x>")
    data = load(sweep)
    assert "<script>alert(1)</script>" in set(data.cells["label"])


def test_a_replay_is_loaded_and_marked(tmp_path):
    folder = write_sweep(tmp_path, Plan(repeats=3, request_files=False))
    for path in folder.glob("*/*/*/cells/*.json"):
        change(path, origin="replay")
    data = load(folder)
    assert set(data.cells["origin"]) == {"replay"}
    assert set(verdicts.verdicts(data)["verdict"]) == {"no verdict"}
    assert why.headlines(data)[0].startswith("a rehearsal from a recording")


def test_lines_longer_than_the_limit_are_not_kept(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" + b"x" * 5_000_000 + b"\nlast")
    with path.open("rb") as stream:
        assert list(bounded_lines(stream, 1000)) == [(1, b"short"), (2, None), (3, b"last")]


def test_the_generator_tells_the_truth_it_was_given(tmp_path):
    truth = Truth(restart_sd=0.0, request_sd=0.0)
    folder = write_sweep(tmp_path, Plan(budgets=(8,), concurrencies=(8,), repeats=1, anchors=()), truth)
    cells = load(folder).cells.set_index("budget")
    for budget in (0, 8):
        assert cells.loc[budget, "step_time_ms"] == pytest.approx(truth.step_time_ms(8 * 0.97, budget + 1), rel=0.02)
    assert cells.loc[8, "al"] == pytest.approx(truth.al(8), rel=0.1)
    host = json.loads((folder / "gpu1" / "host.json").read_text())
    assert "not a measurement" in host["facts"]["made_up"]


def test_the_generator_is_deterministic_and_sized(tmp_path, capsys):
    assert main([str(tmp_path / "a"), "--cells", "100", "--requests", "4", "--log-mib", "3"]) == 0
    assert main([str(tmp_path / "b"), "--cells", "100", "--requests", "4", "--log-mib", "3"]) == 0
    capsys.readouterr()
    first, second = load(tmp_path / "a").cells, load(tmp_path / "b").cells
    assert first.equals(second)
    assert 80 <= len(first) <= 140
    logs = list((tmp_path / "a").glob("*/*/*/*/evidence/engine.log.gz"))
    size = sum(len(gzip.decompress(path.read_bytes())) for path in logs)
    assert 0.5 < size / (3 * 2**20) < 8
    assert plan_of_cells(10_000, Plan()).repeats > 1


def test_loading_grows_no_worse_than_linearly(tmp_path):
    """Eight times the cells cost less than three times as much CPU time a cell; quadratic would be eight."""
    cost = []
    for cells in (100, 800):
        out = tmp_path / str(cells)
        main([str(out), "--cells", str(cells), "--requests", "2"])
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            data = load(out)
            assert len(data.cells) > cells * 0.7
            best = min(best, time.process_time() - start)
        cost.append(best / len(data.cells))
    assert cost[1] < 3 * cost[0]
