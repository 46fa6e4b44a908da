"""The folder of one restart on the controller: its records, and what the steps tell each other."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from specsweep import plan as plans
from specsweep import record


class RunFolder:
    """results/SWEEP/HOST/CONFIGURATION/RESTART: `state` is private to the steps, the records are the contract."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def evidence(self) -> Path:
        return self.path / "evidence"

    @property
    def sweep_folder(self) -> Path:
        return self.path.parents[2]

    # state

    def state(self) -> dict[str, Any]:
        path = self.path / ".state.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def note(self, **changes: Any) -> dict[str, Any]:
        """Add to the state, so that a later step (or a later process) finds it."""
        state = self.state() | changes
        path = self.path / ".state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(state))
        temporary.replace(path)
        return state

    def forget_state(self) -> None:
        (self.path / ".state.json").unlink(missing_ok=True)

    # records

    def configuration(self) -> record.Configuration:
        return record.read(self.path / "configuration.json", record.Configuration)

    def cells(self) -> list[record.Cell]:
        return [record.read(self.path / name, record.Cell) for name in self.configuration().cells]

    def save(self, configuration: record.Configuration, cells: list[record.Cell]) -> None:
        for name, cell in zip(configuration.cells, cells, strict=True):
            record.write(self.path / name, cell)
        record.write(self.path / "configuration.json", configuration)

    def add_phases(self, phases: list[Mapping[str, Any]]) -> None:
        """Keep phases that a step reported (host's clock, which the record's host offset relates to ours)."""
        self.note(phases=[*self.state().get("phases", []), *phases])


def slug(text: str) -> str:
    """A text as a folder name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")[:60]


def restart_name(restart: plans.Restart) -> str:
    return f"anchor-{restart.anchor}" if restart.anchor else f"r{restart.repeat}"


def create(
    sweep: record.Sweep,
    folder: Path,
    host: record.Host,
    configuration: plans.PlannedConfiguration,
    restart: plans.Restart,
) -> RunFolder:
    """Make the folder of a restart with its records, all `pending`: nothing is lost from here on."""
    variables = sweep.variables
    plan = load_plan(sweep)
    points = {point.id: point for point in plan.load_points}
    model = str(host.facts.get("identities", {}).get("model") or variables["model"])
    drafter = host.facts.get("identities", {}).get("drafter") or variables["drafter"] or None
    identity = plans.configuration_id(
        configuration,
        engine=sweep.plan["engine"],
        engine_version=host.engine_version,
        model=model,
        drafter=drafter,
        prompts_sha256=plan.prompts_sha256,
    )
    name = f"{slug(configuration.label)}-{identity[:8]}"
    run = RunFolder(folder / host.name / name / restart_name(restart))
    origin: record.Origin = "replay" if plan.replay else "measured"
    shared: dict[str, Any] = {
        "sweep_id": sweep.sweep_id,
        "host": host.name,
        "configuration_id": identity,
        "label": configuration.label,
        "origin": origin,
        "engine": plan.engine,
        "engine_version": host.engine_version,
        "model": model,
        "drafter": drafter if configuration.method != "none" else None,
        "method": configuration.method,
        "budget": configuration.budget,
        "topk": configuration.topk,
        "candidates": configuration.candidates,
        "verify_width": configuration.verify_width,
        "max_running": configuration.max_running,
        "settings": configuration.settings,
        "baseline": configuration.baseline,
        "repeat": restart.repeat,
        "anchor": restart.anchor,
        "status": "pending",
    }
    by_tool = variables.get("load_driver") == "native"
    cells = [
        record.Cell(
            source=str(plan.load_tool) if by_tool else "specsweep",
            cell_id=f"{identity}-{host.name}-{restart_name(restart)}-{point_id}",
            concurrency=points[point_id].concurrency,
            prompts=plan.prompts,
            prompts_sha256=plan.prompts_sha256,
            output_mode=variables["output_mode"],
            output_tokens=variables["output_tokens"],
            temperature=variables["temperature"],
            prompts_reused=points[point_id].prompts_reused,
            requests_asked=points[point_id].requests,
            **shared,
        )
        for point_id in configuration.load_points
    ]
    made = record.Configuration(
        position=restart.position,
        requests_of=configuration.requests_of,
        cells=[f"cells/{point_id}.json" for point_id in configuration.load_points],
        **shared,
    )
    run.save(made, cells)
    run.note(began_unix_s=time.time())
    if variables.get("load_driver") == plans.CROSSCHECK:
        run.note(tool_run=str(_create_for_the_tool(run, str(plan.load_tool)).path))
    return run


def _create_for_the_tool(run: RunFolder, tool: str) -> RunFolder:
    """The same restart as a configuration of its own, for what a native tool measures: never pooled with ours."""
    configuration, cells = run.configuration(), run.cells()
    identity = plans.digest([configuration.configuration_id, tool])
    label = f"{configuration.label}, by {tool}"
    place = run.path.parents[1] / f"{slug(label)}-{identity[:8]}" / run.path.name
    both: list[record.Configuration | record.Cell] = [configuration, *cells]
    for made in both:
        made.configuration_id, made.label, made.baseline = identity, label, False
        made.settings = {**made.settings, "load_tool": tool}
    for cell in cells:
        cell.source = tool
        cell.cell_id = f"{identity}-{cell.host}-{run.path.name}-c{cell.concurrency}"
    other = RunFolder(place)
    other.save(configuration, cells)
    return other


def tool_run(run: RunFolder) -> RunFolder | None:
    """The folder of the native tool's side of a cross-check."""
    path = run.state().get("tool_run")
    return RunFolder(path) if path else None


def load_plan(sweep: record.Sweep) -> plans.Plan:
    """The plan inside a sweep's record."""
    return msgspec.convert(sweep.plan, plans.Plan)
