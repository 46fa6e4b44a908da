"""A cross-check on this machine: the embedded engine, our client, and a stand-in for a native load tool.

The stand-in really sends its prompts, so counters and acceptance are the server's; what it timed is no measurement.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specsweep import engine, record
from tests.integration.test_sweep_here import REPOSITORY, play

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

TOOL = "stand-in, no measurement"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama.cpp's profile with the stand-in as its tool, called as SGLang's is."""
    path = tmp_path_factory.mktemp("profile") / "stand-in.yaml"
    real = engine.native_tool(engine.load("sglang"))
    tools = [
        {
            "name": TOOL,
            "commands": [[sys.executable, str(REPOSITORY / "tests" / "stand_in_tool.py")]],
            "arguments": real.arguments,
            "prompt": real.prompt,
            "result": real.result,
            "form": real.form,
        }
    ]
    path.write_text(json.dumps({"extends": "llamacpp", "native": tools}))
    return path


SAME = ("budgets=16", "concurrencies=[1,2]", "requests=4", "output_tokens=32")


@pytest.fixture(scope="module")
def shown(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the cross-check, and what it printed."""
    folder = tmp_path_factory.mktemp("crosscheck")
    own = (*SAME, f"engine={profile}")
    try:
        done = play("playbooks/deploy.yml", folder, *own)
        assert done.returncode == 0, done.stdout + done.stderr
        done = play("playbooks/crosscheck.yml", folder, *own)
        assert done.returncode == 0, done.stdout + done.stderr
        again = play("playbooks/bench.yml", folder, *own)
        assert again.returncode == 0, again.stdout + again.stderr
    finally:
        ended = play("playbooks/restore.yml", folder)
    assert ended.returncode == 0, ended.stdout
    assert "running again" not in ended.stdout, "a deployment that was measured is ended with one command"
    return sorted((folder / "results").iterdir())[1], done.stdout


@pytest.fixture(scope="module")
def cells(shown: tuple[Path, str]) -> dict[tuple[str, int], record.Cell]:
    found = [record.read(path, record.Cell) for path in shown[0].glob("here/*/r1/cells/*.json")]
    return {(cell.source, cell.concurrency): cell for cell in found}


def test_both_are_measured_and_recorded_apart(cells: dict[tuple[str, int], record.Cell]) -> None:
    assert sorted(cells) == [("specsweep", 1), ("specsweep", 2), (TOOL, 1), (TOOL, 2)]
    for (source, _), cell in cells.items():
        assert cell.status == "ok", cell.reason
        assert (cell.requests_completed, cell.output_tokens_total) == (4, 4 * 32)
        # The server counted exactly these requests: the warm-up is ours, and outside.
        assert cell.counters["output_tokens"] == 4 * 32
        assert cell.attestation == "applied"
        assert (source in cell.label) == (source == TOOL)
    ours, theirs = cells["specsweep", 1], cells[TOOL, 1]
    assert ours.configuration_id != theirs.configuration_id


def test_acceptance_is_the_servers_and_not_the_tools(cells: dict[tuple[str, int], record.Cell]) -> None:
    for concurrency in (1, 2):
        found = cells[TOOL, concurrency].acceptance
        assert found is not None and found.al_token_weighted
        assert 1 <= found.al_token_weighted < 9
        assert found.estimator.startswith("counters")
        # The stand-in says 9.99, as SGLang's tool tells the average of the server's life.
        assert any("9.99" in remark and "not used" in remark for remark in cells[TOOL, concurrency].remarks)


def test_prompts_that_the_same_process_has_seen_are_told(
    shown: tuple[Path, str], cells: dict[tuple[str, int], record.Cell]
) -> None:
    assert not any(cell.prompts_reused for cell in cells.values())
    paths = sorted(max(shown[0].parent.iterdir()).glob("here/*/r1/cells/*.json"))
    later = [record.read(path, record.Cell) for path in paths]
    assert all(cell.prompts_reused for cell in later)
    # The same slices again, each a warm-up wave and four requests.
    told = [cell.remarks[0].split(" of its prompts had been sent to this process before")[0] for cell in later]
    assert told == ["5", "6"]


def test_both_are_printed_side_by_side(shown: tuple[Path, str]) -> None:
    lines = [line.removeprefix("[here] ") for line in shown[1].splitlines()]
    assert "concurrency 2, 4 requests each, of 32 tokens" in lines
    rates = [line.split() for line in lines if line.startswith("  system tok/s")]
    assert len(rates) == 2
    for row in rates:
        ours, theirs, ratio = map(float, row[2:5])
        assert ratio == pytest.approx(theirs / ours, rel=0.02)


def test_log_command_and_result_of_the_tool_are_kept(shown: tuple[Path, str]) -> None:
    for point in ("c1", "c2"):
        (kept,) = shown[0].glob(f"here/*/r1/evidence/{point}")
        assert {path.name for path in kept.iterdir()} == {"argv.json", "result.jsonl.gz", "tool.log.gz"}
        assert "stand-in" in kept.parents[2].name
    assert not list(shown[0].glob("here/*/*/.state.json"))
    assert not list(shown[0].glob("here/*/r1/*/tool-*"))
