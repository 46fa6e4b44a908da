"""Pictures on made cells: what is drawn, where, and what is left out.  How they look was judged by eye."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis import figures, frames
from analysis.figures import maps, panels, style, tradeoff
from analysis.report import svg
from specsweep import record
from tests.made import cell


def frame(cells):
    return frames.cells_frame(list(cells))


def sweep(budgets=(0, 4, 16, 64), concurrencies=(1, 4), repeats=1, **changes):
    return [
        cell(
            budget=budget,
            concurrency=concurrency,
            repeat=repeat,
            tok_s=100.0 * concurrency**0.7 * (1 + 0.02 * budget - 0.0004 * budget**2) + repeat,
            al=1 + budget / 16,
            **changes,
        )
        for budget in budgets
        for concurrency in concurrencies
        for repeat in range(1, repeats + 1)
    ]


def lines_of(ax):
    """Data lines by legend label."""
    handles, labels = ax.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def test_throughput_has_one_line_a_concurrency_and_even_steps_for_budgets():
    ax = figures.throughput(frame(sweep()))
    drawn = lines_of(ax)
    assert list(drawn) == ["1", "4"]
    assert [tick.get_text().split("\n")[0] for tick in ax.get_xticklabels()] == ["0", "4", "16", "64"]
    line = drawn["1"].lines[0]
    assert list(line.get_xdata()) == [0, 1, 2, 3]
    assert line.get_ydata()[0] == pytest.approx(101.0)


def test_axes_have_units_and_one_restart_is_said_on_the_face():
    ax = figures.throughput(frame(sweep()))
    assert "tok/s" in ax.get_ylabel()
    assert style.ONE_RESTART in ax.get_xlabel()
    assert "(tokens/step)" in figures.acceptance_length(frame(sweep())).get_ylabel()
    assert "(ms)" in figures.step_time(frame(sweep())).get_ylabel()


def test_several_restarts_have_bars_from_lowest_to_highest():
    ax = figures.throughput(frame(sweep(repeats=3)))
    assert "median of 3 restarts" in ax.get_xlabel()
    bars = lines_of(ax)["1"].lines[2][0].get_segments()
    low, high = bars[0][0][1], bars[0][1][1]
    assert (low, high) == (pytest.approx(101.0), pytest.approx(103.0))


def test_series_differ_without_colour():
    looks = {(one.marker, str(one.line)) for one in (style.series(index) for index in range(8))}
    assert len(looks) == 8
    assert len({style.series(index) for index in range(32)}) == 32


def test_replay_is_said_on_every_picture():
    cells = frame(sweep(origin="replay"))
    for draw in (figures.throughput, figures.acceptance_length, figures.step_time, figures.pareto, figures.failure_map):
        assert style.REPLAY in draw(cells).get_xlabel(), draw.__name__
    ratios = panels.speedups(cells).assign(origin="replay")
    assert style.REPLAY in figures.speedup_map(ratios).get_xlabel()


def test_failed_budgets_keep_their_place_on_the_axis():
    cells = sweep() + [
        cell(budget=128, concurrency=c, tok_s=None, failure=record.Failure(klass="mem.gpu.oom_capture")) for c in (1, 4)
    ]
    ax = figures.throughput(frame(cells))
    last = [tick.get_text() for tick in ax.get_xticklabels()][-1]
    assert last.startswith("128")
    assert "✕ failed" in last
    assert len(lines_of(ax)["1"].lines[0].get_xdata()) == 4, "a failed cell was drawn as a number"


def test_the_failure_map_writes_class_status_and_number_into_tiles():
    cells = [
        cell(budget=0, concurrency=1, tok_s=4723.0),
        cell(budget=8, concurrency=1, status="invalid"),
        cell(budget=16, concurrency=1, tok_s=None, failure=record.Failure(klass="cuda.cublas.execution_failed")),
        cell(budget=32, concurrency=1, tok_s=None, status="skipped"),
        cell(budget=64, concurrency=1, tok_s=None, status="not_applied"),
    ]
    texts = [text.get_text() for text in figures.failure_map(frame(cells)).texts]
    assert texts == ["4,720", "invalid", "cuda\ncublas\nexecution_failed", "skipped", "not applied"]


def test_a_load_point_behind_the_death_is_not_reached_but_a_death_at_the_start_keeps_its_class():
    failure = record.Failure(klass="mem.gpu.oom_runtime")
    under_load = [
        cell(budget=8, concurrency=1, tok_s=None, failure=failure),
        cell(budget=8, concurrency=4, tok_s=None, failure=failure, reached=False),
    ]
    assert [text.get_text() for text in figures.failure_map(frame(under_load)).texts][1] == "not reached"
    at_start = [cell(budget=8, concurrency=c, tok_s=None, failure=failure, reached=False) for c in (1, 4)]
    texts = [text.get_text() for text in figures.failure_map(frame(at_start)).texts]
    assert texts == ["mem\ngpu\noom_runtime"] * 2


def test_failure_families_have_fills_and_hatches_of_their_own():
    cells = [
        cell(budget=index + 1, tok_s=None, failure=record.Failure(klass=f"{family}.x"))
        for index, family in enumerate(("cuda", "mem", "proc"))
    ]
    fills = maps.failure_families(frame(cells))
    assert set(fills) == {"cuda", "mem", "proc"}
    assert len(set(fills.values())) == 3


def test_the_speedup_map_prints_ratio_verdict_and_restarts():
    ratios = pd.DataFrame(
        {"budget": [0, 8], "concurrency": [1, 1], "ratio": [1.0, 1.234], "n": [6, 6], "verdict": ["baseline", "better"]}
    )
    texts = [text.get_text() for text in figures.speedup_map(ratios).texts]
    assert texts == ["1.23×\nbetter n=6"]


def test_pareto_front_holds_what_nothing_beats():
    points = pd.DataFrame({"x": [1.0, 2.0, 3.0, 2.0, 0.5], "y": [9.0, 5.0, 1.0, 4.0, 9.0]})
    front = tradeoff.pareto_front(points, "x", "y")
    assert list(zip(front["x"], front["y"], strict=True)) == [(1.0, 9.0), (2.0, 5.0), (3.0, 1.0)]


def test_panels_split_by_what_varies_and_each_has_its_baseline():
    cells = frame(
        [cell(budget=0, max_running=m, settings={"max_running_requests": m}) for m in (64, 128)]
        + [
            cell(budget=8, max_running=m, topk=k, settings={"max_running_requests": m})
            for m in (64, 128)
            for k in (1, 10, 2)
        ]
    )
    found = panels.panels(cells)
    assert [panel.title for panel in found] == [
        f"top-k {k}, max running requests {m}" for k in (1, 2, 10) for m in (64, 128)
    ]
    for panel in found:
        assert sorted(panel.cells["budget"]) == [0, 8]
        assert panel.cells["max_running"].nunique() == 1, "compared with the baseline of another setting"


def test_anchors_are_in_no_panel():
    cells = frame([cell(budget=0), cell(budget=8), cell(budget=0, anchor="start", tok_s=1.0)])
    (panel,) = panels.panels(cells)
    assert len(panel.cells) == 2


def test_repeats_inside_one_restart_count_once():
    cells = frame(
        [cell(budget=8, repeat=1, tok_s=value) for value in (90.0, 110.0)] + [cell(budget=8, repeat=2, tok_s=50)]
    )
    row = panels.over_restarts(cells, ["budget"], "system_tok_s").iloc[0]
    assert (row["n"], row["median"]) == (2, 75.0)


def test_drift_is_relative_to_the_median_of_the_anchors():
    cells = frame(
        cell(budget=0, anchor=name, tok_s=value, window_start_unix_s=1e9 + 60 * index)
        for index, (name, value) in enumerate((("start", 100.0), ("middle", 99.0), ("end", 98.0)))
    )
    line = lines_of(figures.drift(cells, noise_floor=0.02))["1"]
    assert list(line.get_ydata()) == pytest.approx([100 / 99 * 100 - 100, 0, 98 / 99 * 100 - 100])
    assert list(line.get_xdata()) == [0, 1, 2]


def test_the_histogram_is_a_share_of_the_steps_of_each_budget():
    counted = pd.DataFrame(
        {
            "budget": [4, 4, 8, 8],
            "concurrency": 1,
            "accepted": [0, 1, 0, 1],
            "steps": [30, 10, 1, 1],
            "origin": "measured",
        }
    )
    drawn = lines_of(figures.acceptance_histogram(counted))
    assert list(drawn["4"].get_ydata()) == [75, 25]
    assert list(drawn["8"].get_ydata()) == [50, 50]


def made_categories():
    speeds = {0: {"code": 50.0, "open": 50.0}, 8: {"code": 100.0, "open": 40.0}}
    cells = [
        cell(
            budget=budget,
            categories={
                name: record.Category(requests=7, per_user_tok_s=value, al_token_weighted=value / 50)
                for name, value in own.items()
            },
        )
        for budget, own in speeds.items()
    ]
    return panels.of_cells(frames.categories_frame(cells), frame(cells))


def test_category_speedup_shows_who_gains_and_who_loses():
    ax = figures.category_speedup(made_categories())
    drawn = {name: list(line.lines[0].get_ydata()) for name, line in lines_of(ax).items()}
    assert drawn == {"code": [1.0, 2.0], "open": [1.0, 0.8]}
    assert "7 requests a category and cell" in ax.get_xlabel()


def test_category_speed_needs_no_baseline():
    categories = made_categories()
    drawn = lines_of(figures.category_speed(categories[categories["budget"].eq(8)]))
    assert list(drawn["open"].lines[0].get_ydata()) == [40.0]


def test_the_time_line_has_a_bar_a_phase_and_prints_the_overhead():
    phases = pd.DataFrame(
        [
            {"sweep_id": "s", "host": "h", "configuration_id": "c", "repeat": 1, "anchor": None, "label": "b8",
             "name": name, "start_unix_s": 1e9 + start, "end_unix_s": 1e9 + stop, "overhead_s": 1.75}
            for name, start, stop in (("stop", 0, 1), ("load", 1, 5), ("measure", 5, 9))
        ]
    )  # fmt: skip
    ax = figures.timeline(phases)
    spans = {
        bars.get_label(): [(box.x0, box.x1) for box in (path.get_extents() for path in bars.get_paths())]
        for bars in ax.collections
    }
    assert spans == {"stop": [(0, 1)], "load": [(1, 5)], "measure": [(5, 9)]}
    assert [text.get_text() for text in ax.texts] == ["overhead 1.75 s"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["b8"]


def test_numbers_have_three_digits_and_no_exponent():
    assert [style.number(v) for v in (4723.4, 303.2, 4.7234, 0.012345, 999.96, 0.0, float("nan"))] == [
        "4,720", "303", "4.72", "0.0123", "1,000", "0", "–",
    ]  # fmt: skip


def test_text_from_records_is_escaped_in_svg_and_dollars_are_no_mathematics():
    cells = frame(sweep(model="<script>alert(1)</script> $x_1$"))
    ax = figures.throughput(cells)
    ax.set_title(cells["model"].iloc[0])
    drawing = svg.themed(ax.figure, "test")
    assert "<script>" not in drawing
    assert "&lt;script&gt;" in drawing


def test_svg_follows_the_page_and_two_drawings_share_no_id():
    first, second = (svg.themed(figures.throughput(frame(sweep())).figure, name) for name in ("one", "two"))
    assert "var(--ink, #1f2328)" in first
    ids = [{part.split('"')[0] for part in drawing.split(' id="')[1:]} for drawing in (first, second)]
    assert ids[0]
    assert ids[1]
    assert not ids[0] & ids[1]


def test_drawing_needs_no_display_and_keeps_the_style_of_the_caller():
    code = (
        "import matplotlib as mpl; before = str(mpl.rcParams.copy()); from analysis import figures; "
        "from tests.unit.analysis import test_figures as t; figures.throughput(t.frame(t.sweep())); "
        "assert str(mpl.rcParams.copy()) == before; import sys; assert 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
