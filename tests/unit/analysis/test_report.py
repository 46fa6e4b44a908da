"""The report command on made results: what it writes, what it says, and what it must never say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.report import words
from analysis.report.__main__ import main
from analysis.report.build import write_report
from analysis.report.content import content_of
from analysis.report.pictures import NAMES
from analysis.report.summary import summary
from benchmarks.make_results import Plan, Truth, write_sweep
from specsweep import record
from tests.made import cell, restarts, results

ROOT = Path(__file__).parents[3]
HOSTILE = '<script>alert("1")</script>'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A made results folder with failures: three restarts, budgets up to a planted limit."""
    folder = tmp_path_factory.mktemp("results")
    plan = Plan(budgets=(8, 16, 32), concurrencies=(1, 8), repeats=3, requests=16)
    write_sweep(folder, plan, Truth(largest_product=128 * 17))
    return folder


@pytest.fixture(scope="module")
def written(made, tmp_path_factory):
    """The command run once on the made results: folder and standard output of a pipe."""
    folder = tmp_path_factory.mktemp("report")
    done = subprocess.run(
        [sys.executable, "-m", "analysis.report", str(made), "-o", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=True, env={"COLUMNS": "40", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stderr == ""
    return folder, done.stdout


def run(capsys, *arguments):
    """Exit status, stdout and stderr of the command."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_command_writes_every_file_and_ends_with_the_path(written):
    folder, out = written
    there = {path.name for path in folder.iterdir()}
    assert {"report.html", "cells.csv", "cells.parquet", "report.json", "summary.md"} <= there
    assert {"throughput.png", "acceptance_length.png", "speedup_map.png", "failure_map.png", "timeline.png"} <= there
    assert out.splitlines()[-1] == f"Report: {folder / 'report.html'}"


def test_the_table_fits_eighty_columns_in_a_pipe(written):
    lines = written[1].splitlines()[:-1]
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in written[1]
    assert any(re.match(r"\s+32\s+8\s+– .*failed", line) for line in lines), written[1]


def test_by_default_the_report_lies_in_the_newest_sweep(tmp_path, capsys):
    older = write_sweep(tmp_path, Plan(sweep_id="older", budgets=(8,), repeats=1))
    newer = write_sweep(tmp_path, Plan(sweep_id="newer", budgets=(8,), repeats=1))
    sweep = record.read(newer / "sweep.json", record.Sweep)
    sweep.created_unix_s += 60
    record.write(newer / "sweep.json", sweep)
    assert run(capsys, tmp_path)[0] == 0
    assert (newer / "report" / "report.html").exists()
    assert not (older / "report").exists()
    # The report's own folder must not disturb the next reading.
    status, out, err = run(capsys, tmp_path, "--all")
    assert (status, err) == (0, "")
    assert "older" in out
    assert "newer" in out
    assert (tmp_path / "report" / "report.html").exists()


def test_strict_is_content_with_what_ran(tmp_path, capsys):
    write_sweep(tmp_path, Plan(budgets=(8,), concurrencies=(1,), repeats=1, anchors=()))
    assert run(capsys, tmp_path, "--strict")[0] == 0


def test_json_on_stdout_is_the_file(made, tmp_path, capsys):
    status, out, _ = run(capsys, made, "-o", tmp_path, "--json", "--strict")
    assert status == 1, "cells failed"
    data = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data == json.loads((tmp_path / "report.json").read_text())
    assert data["counts"]["failed"] == 6
    assert data["failures"][0]["klass"] == "cuda.cublas.execution_failed"
    assert data["failures"][0]["evidence"][0]["line"] == 1204
    assert {row["verdict"] for row in data["rows"] if row["baseline"]} == {"baseline"}


@pytest.mark.parametrize("case", ["missing", "empty folder", "garbage", "cut off", "unwritable", "option"])
def test_unusable_input_is_one_clear_line_and_exit_2(case, made, tmp_path, capsys):
    arguments = [made, "-o", tmp_path / "out"]
    if case == "missing":
        arguments = [tmp_path / "nowhere"]
    elif case == "empty folder":
        arguments = [tmp_path]
    elif case == "garbage":
        (tmp_path / "noise.json").write_bytes(b"\x00\xff not json")
        arguments = [tmp_path / "noise.json"]
    elif case == "cut off":
        place = tmp_path / "results" / "s1" / "host" / "c" / "r1"
        place.mkdir(parents=True)
        (place / "configuration.json").write_text('{"schema": 1, "sweep')
        arguments = [tmp_path / "results"]
    elif case == "unwritable":
        (tmp_path / "file").write_text("")
        arguments[2] = tmp_path / "file" / "report"
    elif case == "option":
        arguments += ["--nonsense"]
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err


def one_restart():
    return [*restarts([100.0], budget=0), *restarts([150.0], budget=8), *restarts([90.0], budget=64)]


def test_one_restart_names_no_winner():
    content = content_of(results(one_restart()))
    assert any("no verdict" in notice for notice in content.notices)
    assert {row.verdict for row in content.rows} == {"baseline", "no verdict"}
    everything = " ".join([*content.answers, *content.notices, summary(content)]).lower()
    for word in ("best", "winner:", "picked", "better"):
        assert word not in everything, everything


def test_several_restarts_are_not_called_one():
    cells = [*restarts([100, 101, 99, 100, 102, 98], budget=0), *restarts([150, 149, 151, 150, 152, 148], budget=8)]
    content = content_of(results(cells))
    assert not any("One restart" in notice for notice in content.notices)
    assert next(row for row in content.rows if row.budget == 8).verdict == "better"


def test_replay_is_said_wherever_its_numbers_appear(tmp_path):
    cells = [cell(budget=b, origin="replay", tok_s=100.0 + b, al=1 + b / 8) for b in (0, 8, 64)]
    configuration = record.Configuration(
        sweep_id="made", host="host1", configuration_id=cells[1].configuration_id, label="ddtree b8", origin="replay",
        engine="sglang", method="ddtree", budget=8, status="ok",
        phases=[record.Phase(name="load", start_unix_s=1e9, end_unix_s=1e9 + 5)],
    )  # fmt: skip
    report = write_report(results(cells, configuration_records=[configuration]), tmp_path)
    page = report.page.read_text()
    assert any(words.REPLAY in notice for notice in report.content.notices)
    table = page[page.index('id="numbers"') :]
    assert table.count(words.REPLAY) >= 3
    assert (tmp_path / "timeline.png").exists()
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert words.REPLAY in drawing
    rows = [line for line in (tmp_path / "summary.md").read_text().splitlines() if line.startswith("| ")]
    assert all(words.REPLAY in line for line in rows if re.match(r"\| \d", line))
    assert not [row for row in report.content.rows if row.verdict in ("better", "worse", "tie")]


def test_everything_from_a_record_is_escaped(tmp_path):
    failure = record.Failure(
        klass="unknown",
        advice=HOSTILE,
        evidence=[record.Line(source="engine", line=7, text=f"{HOSTILE} & more")],
        directions={HOSTILE: HOSTILE},
        alternatives=[{"class": HOSTILE, "why": HOSTILE}],
        notes=[{"text": HOSTILE}],
    )
    names = {"model": HOSTILE, "host": HOSTILE, "engine": HOSTILE, "prompts": HOSTILE, "remarks": [HOSTILE]}
    cells = [
        cell(budget=0, label=HOSTILE, **names),
        cell(budget=8, label=HOSTILE, method=HOSTILE, al=2.0, **names),
        cell(budget=16, label=HOSTILE, tok_s=None, failure=failure, reason=HOSTILE, **names),
        cell(budget=32, label=HOSTILE, tok_s=None, status="skipped", reason=HOSTILE, **names),
    ]
    report = write_report(results(cells, problems=[HOSTILE]), tmp_path)
    page = report.page.read_text()
    assert HOSTILE not in page
    assert page.count("<script>") == 1, "only the page's own script"
    assert "&lt;script&gt;" in page
    assert "<script" not in (tmp_path / "summary.md").read_text()


def test_a_log_that_looks_like_a_template_is_text(tmp_path):
    failure = record.Failure(
        klass="unknown", evidence=[record.Line(source="engine", line=1, text="{{ 7 * 6 }} {% x %}")]
    )
    report = write_report(results([cell(budget=0), cell(budget=8, tok_s=None, failure=failure)]), tmp_path)
    assert "{{ 7 * 6 }} {% x %}" in report.page.read_text()


def test_the_page_needs_nothing_from_outside(written):
    folder = written[0]
    page = (folder / "report.html").read_text()
    assert not re.findall(r"<(?:link|script|img|iframe)[^>]+(?:src|href)=\"(?!data:)[^\"]*\"", page)
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)
    for href in re.findall(r'<a href="([^"]+)"', page):
        target = href.removeprefix("#")
        assert f'id="{target}"' in page if href.startswith("#") else (folder / href).exists(), href


def test_failures_are_one_card_each_with_evidence_and_what_they_hit(written):
    page = (written[0] / "report.html").read_text()
    assert page.count('class="card"') == 1
    assert "engine:1204" in page
    assert "ddtree b32 k4" in page
    assert "lower the budget or max-running-requests" in page


def test_a_failed_cell_without_a_failure_record_is_not_lost():
    content = content_of(results([cell(budget=0), cell(budget=8, tok_s=None, reason="nobody knows")]))
    assert [card.klass for card in content.failures] == ["unknown"]
    assert content.failures[0].reasons == ["nobody knows"]


def test_pictures_without_data_are_left_out_and_stale_ones_removed(tmp_path):
    (tmp_path / "power.png").write_bytes(b"of an earlier report")
    (tmp_path / "holiday.png").write_bytes(b"not ours")
    write_report(results(one_restart()), tmp_path)
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert "holiday" in drawn
    assert "throughput" in drawn
    assert not drawn & {"power", "clocks", "timeline", "acceptance_length", "failure_map", "drift", "category_speedup"}
    assert drawn - {"holiday"} <= set(NAMES)


def test_tables_hold_every_cell_and_absent_numbers_stay_absent(tmp_path):
    cells = [
        cell(budget=0, settings={"mode": "a"}),
        cell(budget=8, settings={"mode": 3}),
        cell(budget=16, tok_s=None, settings={"mode": [1, 2]}),
    ]
    write_report(results(cells), tmp_path)
    csv = pd.read_csv(tmp_path / "cells.csv")
    parquet = pd.read_parquet(tmp_path / "cells.parquet")
    for table in (csv, parquet):
        assert list(table["budget"]) == [0, 8, 16]
        assert table["system_tok_s"].isna().tolist() == [False, False, True]
    assert list(parquet["settings.mode"]) == ["a", "3", "[1, 2]"]


def test_adjusted_settings_and_void_cells_are_told():
    configuration = record.Configuration(
        sweep_id="made", host="host1", configuration_id="x", label="ddtree b8", engine="sglang", method="ddtree",
        budget=8, status="ok", overhead_s=1.75, ready_s=30.0,
        attestation=record.Attestation(
            verdict="adjusted",
            differences=[record.Difference(name="max_running", asked=256, effective=48, witness="engine_report")],
        ),
    )  # fmt: skip
    cells = [cell(budget=0), cell(budget=8, status="invalid", reason="throttled: HW thermal slowdown")]
    content = content_of(results(cells, configuration_records=[configuration]))
    assert content.adjusted == [
        {"label": "ddtree b8", "name": "max_running", "asked": "256", "effective": "48", "witness": "engine_report"}
    ]
    assert content.uncounted[0].reason == "throttled: HW thermal slowdown"
    assert content.overheads[0].overhead_s == 1.75
    row = next(row for row in content.rows if row.budget == 8)
    assert (row.status, row.system_tok_s, row.verdict) == ("invalid", None, "")


def test_why_has_the_three_factors_and_the_break_even_length(tmp_path):
    cells = [cell(budget=0, tok_s=100.0, al=1.0), cell(budget=8, tok_s=80.0, al=2.0)]
    report = write_report(results(cells), tmp_path)
    (cause,) = report.content.causes
    assert (cause.throughput, cause.al, cause.step_time) == (pytest.approx(0.8), pytest.approx(2), pytest.approx(2.5))
    assert (cause.needs_al, cause.measured_al) == (pytest.approx(2.5), pytest.approx(2.0))
    assert cause.direction == "acceptance up, throughput down"
    assert "acceptance up, throughput down" in report.page.read_text()
    assert (tmp_path / "factors.csv").exists()


def test_markdown_shows_hostile_text_as_it_is():
    text = summary(content_of(results([cell(budget=0), cell(budget=8, label="a|b\n# c @team <b>", tok_s=None)])))
    row = next(line for line in text.splitlines() if "a\\|b" in line)
    assert "\\# c" in row
    assert "@team" not in text
    assert "&lt;b&gt;" in row


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4723.4, "4,720"),
        (303.21, "303"),
        (99.96, "100"),
        (4.7234, "4.72"),
        (0.5, "0.500"),
        (None, "–"),
        (float("inf"), "–"),
    ],
)
def test_numbers_are_for_people(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.25, "4.25 s"), (59.999, "60.0 s"), (61, "1 min 1 s"), (7500, "2 h 5 min"), (None, "–")]
)
def test_durations_are_for_people(seconds, text):
    assert words.duration(seconds) == text


def test_help_does_not_load_the_heavy_libraries():
    code = (
        "import sys, analysis, analysis.report.__main__ as m\n"
        "try: m.main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pandas', 'matplotlib', 'numpy', 'scipy', 'pyarrow', 'jinja2', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--strict" in done.stdout
