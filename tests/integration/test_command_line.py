"""What the user sees of a command that cannot be planned: one line, exit code 2, and no host is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")

pytestmark = pytest.mark.skipif(not PLAYBOOK.exists(), reason="ansible-playbook is not in this environment")


def sweep(folder: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """The documented command, over a host that would show every touch: its folder is of this test."""
    own = {"specsweep_home": str(folder / "home"), "sweep_results": str(folder / "results")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment.update(ANSIBLE_NOCOLOR="1", ANSIBLE_LOCAL_TEMP=str(folder / "tmp"), HOME=str(folder))
    argv = [str(PLAYBOOK), "sweep.yml", "-e", json.dumps(own), *extra]
    return subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, text=True, env=environment, timeout=120, check=False
    )


def error_line(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stdout
    assert [line for line in done.stdout.splitlines() if line.strip()] == lines, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (folder / "home").exists(), "a host was touched"
    assert not (folder / "results").exists()
    return lines[0]


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        (
            ["-e", "budgets=[8,x]"],
            ["error: budgets: expected whole numbers", "got '[8,x]'", "'x' is not a whole number"],
        ),
        (["-e", "budgets=[8, 16, 32]"], ["error: budgets: ", "got '[8,'", "'16, 32]'", "cut off at a space"]),
        (["-e", "budgest=[8]"], ["error: budgest: no such sweep variable; did you mean budgets"]),
        (["-e", '{"axes": {"thraeds": [1]}}'], ["error: axes: thraeds: ", "did you mean threads"]),
        (["-e", "prompts=mixd"], ["error: prompts: expected a name in prompts/ (mixed)"]),
    ],
    ids=["wrong item", "cut by spaces", "misspelt", "unknown axis", "no prompts"],
)
def test_a_plan_that_fails_is_one_line(tmp_path: Path, extra: list[str], parts: list[str]) -> None:
    line = error_line(sweep(tmp_path, *extra), tmp_path)
    for part in parts:
        assert part in line


def test_a_plan_only_touches_nothing_and_ends_well(tmp_path: Path) -> None:
    done = sweep(tmp_path, "-e", "budgets=[8,16]", "-e", "topks=1,2", "-e", "sweep_plan_only=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 configurations:" in done.stdout
    assert "skipped (4): llama.cpp's server drafts a chain" in done.stdout
    assert "predicted time: unknown" in done.stdout
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "results").exists()
