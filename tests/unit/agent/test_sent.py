"""What a process has been sent is known to the next measurement, and only of that process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from specsweep_agent import procfs, sent


def test_a_prompt_is_seen_by_the_process_it_was_sent_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent.mark(tmp_path, os.getpid(), ["a", "b"]) == 0
    assert sent.mark(tmp_path, os.getpid(), ["b", "c"]) == 1
    assert sent.mark(tmp_path, os.getpid(), ["a", "b", "c", "d"]) == 3
    monkeypatch.setattr(procfs, "start_time", lambda _: 1.0)
    assert sent.mark(tmp_path, os.getpid(), ["a"]) == 0


def test_without_a_process_nothing_is_known(tmp_path: Path) -> None:
    assert sent.mark(tmp_path, 0, ["a"]) is None
    assert not list(tmp_path.iterdir())


def test_a_broken_file_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "prompts_sent.json").write_text('{"pid"')
    assert sent.mark(tmp_path, os.getpid(), ["a"]) == 0
    assert sent.mark(tmp_path, os.getpid(), ["a"]) == 1
