"""Read a results folder and say which budget pays, up to which concurrency, and why.

`load` reads results; everything else lives in the modules.  Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    from analysis.results import Results
    from analysis.sweep import run_sweep

__all__ = ["Results", "load", "run_sweep"]


def load(path: str | PathLike[str], sweep: str | None = None) -> Results:
    """Load a results folder, one sweep, or another tool's result file; see `analysis.results.load`."""
    from analysis.results import load as load_results

    return load_results(path, sweep)


def __getattr__(name: str) -> Any:
    if name == "Results":
        from analysis.results import Results

        return Results
    if name == "run_sweep":
        from analysis.sweep import run_sweep

        return run_sweep
    raise AttributeError(f"module 'analysis' has no attribute {name!r}")
