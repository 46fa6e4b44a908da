"""Pictures of a sweep: each takes a DataFrame of `analysis.load` and returns a matplotlib Axes.

    import matplotlib.pyplot as plt
    import analysis
    from analysis import figures

    results = analysis.load("results/")
    figures.throughput(results.cells, ax=plt.subplots()[1])

Most take one *panel*: cells that differ only in budget, concurrency and repeat (`figures.panels.panels`
splits a frame into such).  Without `ax` they draw on a new figure of their own (`ax.figure`), which pyplot
does not keep.
"""

from analysis.figures.course import clocks, drift, power, timeline
from analysis.figures.lines import (
    acceptance_by_position,
    acceptance_histogram,
    acceptance_length,
    category_acceptance,
    category_speed,
    category_speedup,
    step_time,
    throughput,
)
from analysis.figures.maps import failure_map, speedup_map
from analysis.figures.tradeoff import pareto, pareto_front

__all__ = [
    "acceptance_by_position",
    "acceptance_histogram",
    "acceptance_length",
    "category_acceptance",
    "category_speed",
    "category_speedup",
    "clocks",
    "drift",
    "failure_map",
    "pareto",
    "pareto_front",
    "power",
    "speedup_map",
    "step_time",
    "throughput",
    "timeline",
]
