"""Show what our client and a native load tool measured on the same service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specsweep import record
from specsweep.controller.step import Step, StepFailed
from specsweep.crosscheck import table


class CrosscheckStep(Step):
    """Read the cells of both and put them side by side; touches no host."""

    needs = ("sweep_folder",)

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        folder = Path(arguments["sweep_folder"]) / self.host
        cells = [record.read(path, record.Cell) for path in sorted(folder.glob("*/*/cells/*.json"))]
        cells.sort(key=lambda cell: cell.concurrency)
        ours = [cell for cell in cells if cell.source == "specsweep"]
        theirs = [cell for cell in cells if cell.source != "specsweep"]
        if not ours or len(ours) != len(theirs):
            raise StepFailed(
                f"{folder}: expected the cells of a cross-check, two of each concurrency; got {len(cells)}"
            )
        return {
            "changed": False,
            "text": table(ours, theirs),
            "ok": all(cell.status == "ok" for cell in cells),
        }
