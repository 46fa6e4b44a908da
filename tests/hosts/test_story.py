"""The story that this tool grew out of, replayed on a real host: two limits that multiply in one kernel launch.

The sweep of docs/fleet.md in small against `engine: replay` (scenario kimi-b300: the failure is composed, nothing is
measured).  By hand it took an afternoon to see that budget 16 and 256 running sequences are one failure.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specsweep import record
from tests.hosts.machines import REPOSITORY, Hosts, cells_of, configurations_of, show

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("hosts")]

BUDGETS, CONCURRENCIES, LIMITS = (8, 16, 32), (1, 32, 64), (128, 256)
CLASS = "cuda.cublas.execution_failed"
SETTINGS = {"scenario": "kimi-b300", "block_size": 8, "tp_size": 8, "replay_load_s": 0.3, "replay_warmup_s": 0.2}
SMALL = {
    "engine": "replay",
    "settings": SETTINGS,
    "budgets": BUDGETS,
    "topks": [4],
    "concurrencies": CONCURRENCIES,
    "anchors": False,
    "requests": 2,
    "output_tokens": 16,
    "client_lag_limit_ms": 5000,
    "report_wanted": False,
}


@pytest.fixture(scope="module")
def swept(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the sweep, which ended with exit code 0."""
    folder = tmp_path_factory.mktemp("story")
    done = hosts.play(
        "sweep.yml",
        hosts.inventory(folder / "hosts.yml"),
        "@inventory/fleet.example/kimi.sweep.yaml",
        json.dumps(SMALL),
        f"sweep_results={folder / 'results'}",
        limit="gpu1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return folder / "results"


@pytest.fixture(scope="module")
def told(swept: Path) -> dict[str, Any]:
    """The report as the documented command writes it: `json` its data, `shown` its output, `page`, `summary`."""
    (sweep,) = swept.iterdir()
    done = subprocess.run(
        [sys.executable, "-m", "analysis.report", str(sweep)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = sweep / "report"
    return {
        "json": json.loads((folder / "report.json").read_text()),
        "shown": " ".join(done.stdout.split()),
        "page": (folder / "report.html").read_text(),
        "summary": (folder / "summary.md").read_text(),
    }


def label(budget: int, limit: int) -> str:
    return f"ddtree b{budget} k4 max_running_requests={limit}"


def test_only_the_product_decides_what_runs(swept: Path) -> None:
    cells = cells_of(swept)
    assert len(cells) == (len(BUDGETS) + 1) * len(LIMITS) * len(CONCURRENCIES)
    for (_, name, concurrency), cell in cells.items():
        assert cell.max_running is not None
        runs = cell.max_running * cell.verify_width <= 128 * 9
        assert cell.status == ("ok" if runs else "failed"), f"{name} at {concurrency}: {show(cell)}"
    assert {cells["gpu1", label(8, 128), n].status for n in CONCURRENCIES} == {"ok"}
    assert {cells["gpu1", label(16, 128), n].status for n in CONCURRENCIES} == {"failed"}
    assert {cells["gpu1", label(8, 256), n].status for n in CONCURRENCIES} == {"failed"}


def test_every_failed_cell_has_the_class_and_the_whole_line(swept: Path) -> None:
    failed = [cell for cell in cells_of(swept).values() if cell.status == "failed"]
    assert len(failed) == 5 * len(CONCURRENCIES)
    for cell in failed:
        assert cell.failure is not None and cell.failure.klass == CLASS, show(cell)
        # The script of that afternoon kept a line that was cut before the name of the kernel.
        assert any("cublasGemmStridedBatchedEx" in line.text for line in cell.failure.evidence), show(cell.failure)
        assert any(line.text.endswith("CUBLAS_GEMM_DEFAULT_TENSOR_OP)`") for line in cell.failure.evidence)
        assert cell.system_tok_s is None


def test_the_unit_died_and_every_log_came_back(swept: Path) -> None:
    for budget, limit in [(16, 128), (32, 128), (8, 256), (16, 256), (32, 256)]:
        configuration = configurations_of(swept)["gpu1", label(budget, limit)]
        assert "signal 9" in configuration.reason, show(configuration)
        (log,) = swept.glob(f"*/gpu1/ddtree-b{budget}-k4-*-{limit}-*/r1/evidence/engine.log.gz")
        lines = gzip.decompress(log.read_bytes()).decode().splitlines()
        assert "REPLAY of sglang" in lines[0] and "the failure is composed" in lines[0]
        assert sum("Scheduler hit an exception" in line for line in lines) == 2


def test_the_unit_holds_what_was_asked(swept: Path) -> None:
    (unit,) = swept.glob("*/gpu1/ddtree-b16-k4-*-256-*/r1/unit/engine.service")
    words = [line.strip(" \\") for line in unit.read_text().splitlines()]
    asked = {
        "--speculative-algorithm": "DDTREE", "--speculative-ddtree-budget": "16", "--max-running-requests": "256",
        "--speculative-dflash-block-size": "8", "--tp-size": "8", "--replay-scenario": "kimi-b300",
    }  # fmt: skip
    for flag, value in asked.items():
        assert words[words.index(f'"{flag}"') + 1] == f'"{value}"'


def test_what_ran_is_attested(swept: Path) -> None:
    configuration = configurations_of(swept)["gpu1", label(8, 128)]
    assert configuration.attestation is not None
    assert configuration.attestation.verdict in ("applied", "adjusted"), show(configuration.attestation)
    assert (configuration.verify_width, configuration.max_running) == (9, 128)
    cell = cells_of(swept)["gpu1", label(8, 128), 64]
    assert cell.requests_completed == 128 and cell.output_tokens_total == 128 * 16
    assert cell.acceptance is not None and cell.acceptance.al_token_weighted > 1


def test_the_report_says_what_took_an_afternoon(told: dict[str, Any]) -> None:
    (ceiling,) = told["json"]["ceilings"]
    said = json.dumps(ceiling)
    assert "max-running x verify width parts what ran from what failed" in said
    for product in ("128 x 17", "256 x 9"):
        assert product in said.partition("failed, ")[0]
    assert "128 x 9 ran" in said
    assert "up to 1,152 ran" in said and "from 2,176 on failed" in said
    for form in ("shown", "page", "summary"):
        assert "128 x 17 and 256 x 9" in told[form] and "128 x 9 ran" in told[form], form
    (card,) = told["json"]["failures"]
    assert (card["klass"], card["count"]) == (CLASS, 5)
    assert {label(16, 128), label(8, 256)} <= set(card["hit"])
    assert "the two limits multiply" in card["advice"]


def test_everything_says_replay(swept: Path, told: dict[str, Any]) -> None:
    (sweep,) = swept.glob("*/sweep.json")
    assert record.read(sweep, record.Sweep).origin == "replay"
    assert {cell.origin for cell in cells_of(swept).values()} == {"replay"}
    assert {cell.engine_version for cell in cells_of(swept).values()} == {"replay"}
    assert {configuration.origin for configuration in configurations_of(swept).values()} == {"replay"}
    assert any("24 cells of 24: replay: a rehearsal, not a measurement" in text for text in told["json"]["notices"])
    assert all(row["replay"] for row in told["json"]["rows"])
    assert {row["verdict"] for row in told["json"]["rows"] if row["status"] == "ok"} == {"no verdict"}
    for form in ("shown", "page", "summary"):
        assert "replay: a rehearsal, not a measurement" in told[form], form
