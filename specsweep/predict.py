"""How long a plan will take, from what was measured before on the same engine and prompt set."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specsweep import record
from specsweep.plan import Plan

#: Newest sweeps that are looked at.
SWEEPS = 5


def seconds(plan: Plan, variables: Mapping[str, Any], results: Path) -> float | None:
    """Predicted wall time of the plan on one host (hosts run side by side), or None without a past.

    A restart costs the median of what restarts cost besides measuring; a load point costs requests x median
    e2e time / concurrency, of past cells of the same method and concurrency, else of the nearest concurrency.
    """
    folders = sorted((path.parent for path in results.glob("*/sweep.json")), reverse=True)[:SWEEPS]
    fixed: list[float] = []
    per_request: dict[tuple[bool, int], list[float]] = {}
    for path in (found for folder in folders for found in folder.glob("*/*/*/configuration.json")):
        try:
            past = record.read(path, record.Configuration)
            cells = [record.read(path.parent / name, record.Cell) for name in past.cells]
        except record.RecordError:
            continue
        if past.engine != plan.engine or (past.origin == "replay") != plan.replay or not past.phases:
            continue
        measuring = sum(
            phase.end_unix_s - phase.start_unix_s for phase in past.phases if phase.name in ("measure", "warmup")
        )
        whole = max(phase.end_unix_s for phase in past.phases) - min(phase.start_unix_s for phase in past.phases)
        fixed.append(max(0.0, whole - measuring))
        for cell in cells:
            if cell.status == "ok" and cell.window_s and cell.requests_completed and cell.output_tokens_total:
                each = cell.window_s * cell.concurrency / cell.output_tokens_total
                per_request.setdefault((cell.method == "none", cell.concurrency), []).append(each)
    if not fixed or not per_request:
        return None
    points = {point.id: point for point in plan.load_points}
    by_key = {item.key: item for item in plan.configurations}
    total = 0.0
    for restart in plan.restarts:
        configuration = by_key[restart.configuration]
        total += statistics.median(fixed)
        for point_id in configuration.load_points:
            point = points[point_id]
            near = min(
                per_request,
                key=lambda known: (known[0] != configuration.baseline, abs(known[1] - point.concurrency)),
            )
            token_s = statistics.median(per_request[near]) * variables["output_tokens"]
            total += token_s * (point.requests / point.concurrency + 1)
    return total
