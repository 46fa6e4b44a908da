"""One engine over several hosts: the leader (rank 0) is swept, its followers start, watch and end with it.

Every host has a worker of its own on the controller.  Leader and followers meet in small files of the sweep's
folder, one a host, written by that host's worker only: the restart it is at, and how far it is.

    leader:    start -> (followers run) -> ready, load -> over -> (followers collected) -> collect
    follower:  waits for start -> unit installed, started, watched -> collected

A follower that ends while its leader has not said `over` has failed.  The leader's unit is then ended too, because
rank 0 would wait for it for as long as its own timeouts allow, and the leader's restart takes over the follower's
failure unless the leader had failed before.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from specsweep import record
from specsweep.controller.hosting import LEASE_S
from specsweep.controller.runfolder import RunFolder
from specsweep.controller.step import Step, StepFailed

POLL_S = 0.2
#: One look at a follower's unit; the lock is renewed with each.
WATCH_S = 2.0
#: Between two renewals of a lock while a host waits for another one.
RENEW_EVERY_S = 30.0
#: Longest wait for the other side, which may bring a model's files first.  Its worker tells when it gives up.
OTHER_SIDE_S = 3600.0

#: A follower's last words of a restart.
FINAL = ("collected", "gone")


class FollowsError(ValueError):
    """`serve_follows` of the inventory that cannot be used; the message is one line."""


def followers(hosts: Iterable[str], variables: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Leader -> its followers, in the order of the inventory, from `serve_follows` of every host in the play.

    Raises FollowsError where a leader is not in the play, follows itself, or lacks one of its followers.
    """
    playing = list(hosts)
    led: dict[str, list[str]] = {}
    for name in variables:
        leader = variables[name].get("serve_follows")
        if not leader:
            continue
        if name in playing and leader not in playing:
            raise FollowsError(f"serve_follows of {name}: expected a host of this play; got {leader!r}")
        if leader in playing and name not in playing:
            raise FollowsError(f"{name} follows {leader} and is not in this play: name both in --limit")
        if leader in playing and variables[leader].get("serve_follows"):
            raise FollowsError(f"serve_follows of {name}: {leader} is a follower itself")
        if leader in playing:
            led.setdefault(str(leader), []).append(str(name))
    return led


class Meeting:
    """The files in which leader and followers meet."""

    def __init__(self, sweep_folder: Path | str) -> None:
        self.folder = Path(sweep_folder)

    def tell(self, host: str, state: str, position: int = 0, **more: Any) -> None:
        path = self._path(host)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"state": state, "position": position, **more}))
        temporary.replace(path)

    def heard(self, host: str) -> dict[str, Any]:
        """What a host told last; the state is empty before it told anything."""
        try:
            return dict(json.loads(self._path(host).read_text()))
        except FileNotFoundError:
            return {"state": "", "position": 0}

    def close(self) -> None:
        for path in self.folder.glob(".rank-*"):
            path.unlink()

    def _path(self, host: str) -> Path:
        return self.folder / f".rank-{host}.json"


class MeetingStep(Step):
    """A step that waits for another host without losing the lock of its own."""

    def keep(self, arguments: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Renew this host's lock, and look at its unit if asked to."""
        sweep = record.read(Path(arguments["sweep_folder"]) / "sweep.json", record.Sweep)
        asked = {"home": arguments["home"], "service": arguments["service"], "sweep_id": sweep.sweep_id}
        return self.call("specsweep_watch", {**asked, "lease_s": LEASE_S, **more})

    def look(self, arguments: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """`keep` that never fails: empty while the host cannot be reached, `ended` when the lock is lost."""
        try:
            return self.keep(arguments, **more)
        except StepFailed as failure:
            if failure.result.get("lost"):
                time.sleep(POLL_S)
                return {}
            return {"ended": True, "reason": str(failure), "properties": {}, "now_unix_s": time.time()}

    def until(self, arguments: Mapping[str, Any], arrived: Callable[[], bool], what: str) -> None:
        """Wait until the other side is where it should be.  Raises StepFailed after OTHER_SIDE_S."""
        began = renewed = time.monotonic()
        while not arrived():
            now = time.monotonic()
            if now - began > OTHER_SIDE_S:
                raise StepFailed(f"{what} did not come within {OTHER_SIDE_S:.0f} s", step="follower")
            if now - renewed > RENEW_EVERY_S:
                self.look(arguments)
                renewed = now
            time.sleep(POLL_S)


class AwaitLeaderStep(MeetingStep):
    """A follower waits for its leader's next restart; `go` is false when the leader does without."""

    needs = ("sweep_folder", "position", "leader", "home", "service")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        meeting, position = Meeting(arguments["sweep_folder"]), int(arguments["position"])

        def arrived() -> bool:
            told = meeting.heard(arguments["leader"])
            return bool(told["state"] == "gone" or told["position"] >= position)

        self.until(arguments, arrived, f"restart {position} of {arguments['leader']}")
        told = meeting.heard(arguments["leader"])
        return {"changed": False, "go": (told["state"], told["position"]) == ("start", position)}


class FollowStep(MeetingStep):
    """Start the follower's unit, tell it, and watch it until the leader is done or the unit ended."""

    needs = ("run", "sweep_folder", "position", "leader", "home", "service")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        run = RunFolder(arguments["run"])
        meeting, position = Meeting(arguments["sweep_folder"]), int(arguments["position"])
        try:
            seen = self.keep(arguments, restart=True)
        except StepFailed as failure:
            told = {"at": "ready", "step": failure.result.get("step"), "reason": str(failure)}
            run.note(failed={**told, "properties": failure.result.get("properties", {})})
            raise
        properties = seen["properties"]
        run.note(
            invocation_id=properties.get("InvocationID", ""),
            main_pid=int(properties.get("MainPID") or 0),
            restarted_unix_s=seen["began_unix_s"],
        )
        meeting.tell(self.host, "started", position)
        while not seen["ended"] and meeting.heard(arguments["leader"])["state"] == "start":
            # As on the leader, a lost connection only interrupts the watching.
            seen = self.look(arguments, watch_s=WATCH_S) or seen
        if meeting.heard(arguments["leader"])["state"] != "start":
            return {"changed": True, "ended": False, "reason": ""}
        failed = {"at": "load", "step": "load", "reason": seen["reason"], "properties": seen["properties"]}
        run.note(failed={**failed, "detected_unix_s": seen["now_unix_s"]})
        return {"changed": True, "ended": True, "reason": seen["reason"]}


class TellLeaderStep(Step):
    """A follower's last word of a restart, or for good.

    `first`: it failed while its leader had not, so that its failure is the cause.
    """

    needs = ("sweep_folder", "state")
    takes = ("position", "run", "first", "rank", "reason")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        more = {name: arguments[name] for name in ("run", "rank", "reason") if arguments.get(name) not in (None, "")}
        position = int(arguments.get("position") or 0)
        meeting = Meeting(arguments["sweep_folder"])
        if arguments["state"] == "gone":
            # The leader may not have seen yet what became of the last restart.
            meeting.tell(self.host, **{**meeting.heard(self.host), **more, "state": "gone"})
        else:
            meeting.tell(self.host, arguments["state"], position, first=bool(arguments.get("first", True)), **more)
        return {"changed": False}


class FollowersStep(MeetingStep):
    """The leader's side: `start` waits until every follower runs, `over` until every one is collected.

    `start` fails when a follower did not come up.  `over` takes the followers' evidence into the leader's restart,
    as rank-N.engine.log.gz and so on, and notes the failure of one that failed first.  `gone`: there is no more.
    """

    needs = ("sweep_folder", "followers", "state")
    takes = ("position", "run", "home", "service")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        meeting, position = Meeting(arguments["sweep_folder"]), int(arguments.get("position") or 0)
        names: list[str] = arguments["followers"]
        meeting.tell(self.host, arguments["state"], position)
        if arguments["state"] == "start":
            wanted: tuple[str, ...] = ("started", *FINAL)
        elif arguments["state"] == "over":
            wanted = FINAL
        else:
            return {"changed": False}
        run = RunFolder(arguments["run"])

        def arrived() -> bool:
            told = [meeting.heard(name) for name in names]
            return all(
                item["state"] == "gone" or (item["position"] == position and item["state"] in wanted) for item in told
            )

        try:
            self.until(arguments, arrived, f"the word of {' and '.join(names)} on restart {position}")
        except StepFailed as failure:
            if arguments["state"] == "start":
                run.note(failed={"at": "ready", "step": "follower", "reason": str(failure)})
                raise
            # The leader's own evidence is collected all the same.
            remark(run, str(failure))
        told = {name: meeting.heard(name) for name in names}
        if arguments["state"] == "start":
            absent = [name for name, item in told.items() if item["state"] != "started"]
            if absent:
                reasons = "; ".join(f"{name}: {told[name].get('reason') or 'it did not start'}" for name in absent)
                run.note(failed={"at": "ready", "step": "follower", "reason": f"a follower is missing: {reasons}"})
                raise StepFailed(f"a follower is missing: {reasons}", step="follower")
            return {"changed": False}
        for rank, name in enumerate(names, 1):
            item = told[name]
            if item.get("run") and item["position"] == position:
                try:
                    adopt(run, RunFolder(item["run"]), name, int(item.get("rank") or rank), first=item["first"])
                except (OSError, ValueError) as error:
                    remark(run, f"the evidence of {name} could not be taken over: {error}")
        return {"changed": True}


def remark(run: RunFolder, text: str) -> None:
    configuration = run.configuration()
    configuration.remarks.append(text)
    record.write(run.path / "configuration.json", configuration)


def without_cells(run: RunFolder) -> None:
    """Make the records of a restart those of a follower, which measures nothing."""
    configuration = run.configuration()
    shutil.rmtree(run.path / "cells")
    configuration.cells = []
    run.save(configuration, [])


def adopt(leader: RunFolder, follower: RunFolder, host: str, rank: int, *, first: bool) -> None:
    """Take a follower's evidence into its leader's restart, and its failure if it failed first."""
    configuration = follower.configuration()
    for folder in ("evidence", "unit"):
        (leader.path / folder).mkdir(parents=True, exist_ok=True)
        for path in (follower.path / folder).glob("*"):
            path.replace(leader.path / folder / f"rank-{rank}.{path.name}")
    if configuration.status == "failed" and first and "blamed" not in leader.state():
        found = configuration.failure or record.Failure(klass="unknown")
        found.evidence = [
            record.Line(source=f"rank-{rank}.{line.source} on {host}", line=line.line, text=line.text)
            for line in found.evidence
        ]
        reason = f"rank {rank} on {host}: {configuration.reason}"
        leader.note(blamed={"reason": reason, "failure": msgspec.to_builtins(found)})
    shutil.rmtree(follower.path)
    if not any(follower.path.parent.iterdir()):
        follower.path.parent.rmdir()
