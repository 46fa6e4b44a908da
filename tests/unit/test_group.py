"""One engine over several hosts: who follows whom, and what a leader takes over from a follower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specsweep import record
from specsweep.controller.group import FollowsError, Meeting, adopt, followers, without_cells
from specsweep.controller.runfolder import RunFolder
from tests import made

HOSTS: dict[str, dict[str, Any]] = {
    "gpu-01": {},
    "gpu-02": {"serve_follows": "gpu-01"},
    "gpu-03": {"serve_follows": "gpu-01"},
    "gpu-04": {"serve_follows": ""},
}


def test_followers_come_from_the_inventory() -> None:
    assert followers(HOSTS, HOSTS) == {"gpu-01": ["gpu-02", "gpu-03"]}
    assert followers(["gpu-04"], HOSTS) == {}


@pytest.mark.parametrize(
    ("playing", "changes", "said"),
    [
        (["gpu-01", "gpu-02", "gpu-04"], {}, "gpu-03 follows gpu-01 and is not in this play"),
        (["gpu-02"], {}, "serve_follows of gpu-02: expected a host of this play; got 'gpu-01'"),
        (list(HOSTS), {"gpu-04": {"serve_follows": "gpu-02"}}, "serve_follows of gpu-04: gpu-02 is a follower itself"),
        (list(HOSTS), {"gpu-04": {"serve_follows": "gpu-04"}}, "gpu-04 is a follower itself"),
        (list(HOSTS), {"gpu-04": {"serve_follows": "gpu-1"}}, "expected a host of this play; got 'gpu-1'"),
    ],
)
def test_a_group_that_cannot_run_is_refused_in_one_line(
    playing: list[str], changes: dict[str, dict[str, Any]], said: str
) -> None:
    with pytest.raises(FollowsError) as raised:
        followers(playing, {**HOSTS, **changes})
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_meeting_leaves_nothing_behind(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    assert meeting.heard("gpu-02") == {"state": "", "position": 0}
    meeting.tell("gpu-02", "collected", 3, first=True, run="somewhere")
    assert Meeting(tmp_path).heard("gpu-02") == {"state": "collected", "position": 3, "first": True, "run": "somewhere"}
    meeting.close()
    assert list(tmp_path.iterdir()) == []


def restart(folder: Path, host: str, status: record.Status = "ok") -> RunFolder:
    """A restart with one cell, as the sweep leaves it."""
    cell = made.cell(host=host)
    shared = {name: getattr(cell, name) for name in record.Configuration.__struct_fields__ if hasattr(cell, name)}
    failure = record.Failure(klass="proc.killed", evidence=[record.Line(source="unit", line=2, text="status=9/KILL")])
    failed = {"reason": "proc.killed: it was killed", "failure": failure} if status == "failed" else {}
    configuration = record.Configuration(
        **{**shared, "attestation": None, "cells": ["cells/c1.json"], "status": status, **failed}
    )
    run = RunFolder(folder / host / "ngram-b8" / "r1")
    run.save(configuration, [cell])
    run.evidence.mkdir(exist_ok=True)
    (run.evidence / "engine.log.gz").write_text(host)
    (run.path / "unit").mkdir()
    (run.path / "unit" / "engine.service").write_text(host)
    return run


@pytest.mark.parametrize(
    ("status", "first", "blamed"), [("ok", True, False), ("failed", True, True), ("failed", False, False)]
)
def test_a_leader_takes_over_evidence_and_the_cause(
    tmp_path: Path, status: record.Status, first: bool, blamed: bool
) -> None:
    leader, follower = restart(tmp_path, "gpu-01"), restart(tmp_path, "gpu-02", status)
    without_cells(follower)
    assert follower.cells() == [] and follower.configuration().status == status
    adopt(leader, follower, "gpu-02", 1, first=first)
    assert (leader.evidence / "rank-1.engine.log.gz").read_text() == "gpu-02"
    assert (leader.evidence / "engine.log.gz").read_text() == "gpu-01"
    assert (leader.path / "unit" / "rank-1.engine.service").read_text() == "gpu-02"
    assert not (tmp_path / "gpu-02" / "ngram-b8").exists()
    told = leader.state().get("blamed")
    assert (told is not None) == blamed
    if told:
        assert told["reason"] == "rank 1 on gpu-02: proc.killed: it was killed"
        assert told["failure"]["evidence"][0]["source"] == "rank-1.unit on gpu-02"
