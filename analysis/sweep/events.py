"""What happens in a sweep, as small plain objects: made from the results of the sweep's own steps.

`str(event)` is one line for people, in the words that `ansible-playbook sweep.yml` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Base of the events.  `host` is the inventory's name of the host, "" where the whole sweep is meant."""

    host: str = ""

    def _line(self, text: str) -> str:
        return f"[{self.host}] {text}" if self.host else text


@dataclass(frozen=True)
class Planned(Event):
    """The variables are valid and the plan is made.  `folder` is "" when only the plan was asked for."""

    sweep_id: str = ""
    folder: str = ""
    restarts: tuple[str, ...] = ()
    """label of the configuration of each restart, in the order in which they run"""
    text: str = ""
    """the whole plan, several lines"""

    def __str__(self) -> str:
        if not self.folder:
            return "plan only: no host was touched"
        return f"plan: {_count(len(self.restarts), 'restart')} on each host; results: {self.folder}"


@dataclass(frozen=True)
class EngineFound(Event):
    """The host is ours, and its engine answered with its version."""

    command: tuple[str, ...] = ()
    version: str = ""

    def __str__(self) -> str:
        return self._line(f"engine {' '.join(self.command)}, version {self.version or 'unknown'}")


@dataclass(frozen=True)
class Started(Event):
    """A configuration begins.  `restart` is its place in the order, such as "1/4"."""

    label: str = ""
    restart: str = ""

    def __str__(self) -> str:
        return self._line(f"{self.restart} {self.label}")


@dataclass(frozen=True)
class Ready(Event):
    """Our own process has answered, and runs what was asked."""

    label: str = ""
    ready_s: float = 0.0
    """seconds from the restart to the first generation"""
    attestation: str = ""

    def __str__(self) -> str:
        return self._line(f"  ready in {self.ready_s:.1f} s, {self.attestation}")


@dataclass(frozen=True)
class Measured(Event):
    """A cell has its final status; `system_tok_s` and `acceptance_length` are None where nothing was measured."""

    label: str = ""
    concurrency: int = 0
    status: str = ""
    system_tok_s: float | None = None
    acceptance_length: float | None = None
    failure_class: str | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.status != "ok":
            return self._line(f"  concurrency {self.concurrency}: {self.status}: {_flat(self.reason)[:300]}")
        speed = f"{self.system_tok_s:.1f} tok/s" if self.system_tok_s is not None else "ok"
        length = f", acceptance length {self.acceptance_length:.2f}" if self.acceptance_length else ""
        return self._line(f"  concurrency {self.concurrency}: {speed}{length}")


@dataclass(frozen=True)
class Failed(Event):
    """A step failed.  The sweep goes on with the next configuration, unless run_sweep raises SweepError."""

    step: str = ""
    """the step's name (host, ready, load, ...), or "" for the sweep as a whole"""
    label: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return self._line(f"  {self.step} failed: {self.reason}" if self.step else self.reason)


@dataclass(frozen=True)
class GivenUp(Event):
    """A host that cannot be used: its cells are recorded as failed."""

    cells: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return self._line(f"cannot be used, {_count(self.cells, 'cell')} recorded as failed: {_flat(self.reason)}")


@dataclass(frozen=True)
class GivenBack(Event):
    """The host is as it was before the sweep.  `running` names what was started again."""

    running: tuple[str, ...] = ()

    def __str__(self) -> str:
        again = f", running again: {', '.join(self.running)}" if self.running else ""
        return self._line(f"given back{again}")


@dataclass(frozen=True)
class GivingBack(Event):
    """The sweep was cancelled, or ended too early: its hosts are given back now."""

    reason: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: giving the hosts back"


@dataclass(frozen=True)
class Finished(Event):
    """Every cell has its final status.  `summary` counts them."""

    summary: str = ""

    def __str__(self) -> str:
        return f"cells: {self.summary}"


@dataclass(frozen=True)
class Reported(Event):
    """The report is written."""

    page: str = ""
    """path of the HTML page"""

    def __str__(self) -> str:
        return f"report: {self.page}"


class Reader:
    """Turns Ansible's events into ours; keeps what later ones and the caller need."""

    def __init__(self) -> None:
        self.plan: Planned | None = None
        #: Line of the failure that ended the sweep, as the terminal shows it (without "error: ").
        self.error = ""
        #: The playbook came to its regular end: every host was given back.
        self.ended = False
        self._step_error = ""
        self._output: list[str] = []
        self._labels: dict[str, str] = {}

    @property
    def why(self) -> str:
        """The line that says best why the sweep ended with an error."""
        complaints = [line for line in self._output if "ERROR" in line]
        return self.error or self._step_error or next(iter(complaints), "") or next(reversed(self._output), "")

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Our events for one of ansible-runner's; most of its events are none of ours."""
        kind, data = event.get("event"), event.get("event_data") or {}
        if kind == "playbook_on_stats":
            self.ended = True
        elif kind == "playbook_on_no_hosts_matched":
            return self._fatal("", "no host matches; look at inventory and limit")
        elif kind == "runner_on_unreachable":
            message = _flat((data.get("res") or {}).get("msg", ""))
            return self._fatal(str(data.get("host", "")), f"unreachable: {message}")
        elif kind == "runner_on_failed":
            return self._failed(str(data.get("host", "")), data)
        elif kind == "runner_on_ok":
            told = getattr(self, f"_{_action(data)}", None)
            answer = data.get("res")
            return told(str(data.get("host", "")), answer) if told and isinstance(answer, Mapping) else []
        elif kind == "verbose" and str(event.get("stdout", "")).strip():
            # Before the first play there are no events: wrong inventories are told in plain text.
            self._output = [*self._output[-49:], _flat(event["stdout"])]
        return []

    def _fatal(self, host: str, line: str) -> list[Event]:
        event = Failed(host=host, reason=line)
        self.error = str(event)
        return [event]

    def _failed(self, host: str, data: Mapping[str, Any]) -> list[Event]:
        answer = data.get("res") or {}
        action = _action(data)
        message = str(answer.get("msg") or answer.get("stderr") or "it failed without a message").strip()
        if action.startswith("specsweep_") and action not in ("specsweep_plan", "specsweep_finish"):
            step = action.removeprefix("specsweep_")
            event = Failed(host=host, step=step, label=self._labels.get(host, ""), reason=_flat(message))
            self._step_error = " ".join(str(event).split())
            return [event]
        if action == "command" and answer.get("stderr"):
            message = f"{data.get('task')}: {str(answer['stderr']).strip().splitlines()[-1]}"
        return self._fatal("", _flat(message))

    # one method a step, named as the step's action

    def _specsweep_plan(self, _host: str, answer: Mapping[str, Any]) -> list[Event]:
        self.plan = Planned(
            sweep_id=answer.get("sweep_id") or "",
            folder=answer.get("sweep_folder") or "",
            restarts=tuple(restart["label"] for restart in answer.get("restarts") or ()),
            text=answer["text"],
        )
        return [self.plan]

    def _specsweep_engine(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        return [EngineFound(host=host, command=tuple(answer["command"]), version=answer.get("version") or "")]

    def _specsweep_render(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        self._labels[host] = answer["name"]
        return [Started(host=host, label=answer["name"], restart=answer["restart"])]

    def _specsweep_ready(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        label = self._labels.get(host, "")
        return [Ready(host=host, label=label, ready_s=answer["ready_s"], attestation=answer["attestation"])]

    def _specsweep_collect(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        return [
            Measured(
                host=host,
                label=answer["name"] if cell["source"] == "specsweep" else f"{answer['name']}, by {cell['source']}",
                concurrency=cell["concurrency"],
                status=cell["status"],
                system_tok_s=cell["system_tok_s"],
                acceptance_length=cell["al"],
                failure_class=cell["class"],
                reason=cell["reason"],
            )
            for cell in answer["cells"]
        ]

    def _specsweep_give_up(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        return [GivenUp(host=host, cells=answer["cells"], reason=answer["reason"])]

    def _specsweep_restore(self, host: str, answer: Mapping[str, Any]) -> list[Event]:
        return [GivenBack(host=host, running=tuple(answer.get("started") or ()))] if answer.get("restored") else []

    def _specsweep_finish(self, _host: str, answer: Mapping[str, Any]) -> list[Event]:
        return [Finished(summary=answer["summary"])]

    def _command(self, _host: str, answer: Mapping[str, Any]) -> list[Event]:
        # The only command of the sweep's playbook is analysis.report, which ends with the page's path.
        last = str(answer.get("stdout") or "").rstrip().rpartition("\n")[2]
        return [Reported(page=last.removeprefix("Report: "))] if last.startswith("Report: ") else []


def _action(data: Mapping[str, Any]) -> str:
    return str(data.get("task_action", "")).rpartition(".")[2]


def _flat(text: object) -> str:
    return " ".join(str(text).split())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
