"""The ceiling: the simplest limit on the axes, or on a product of two, that parts what ran from what failed.

Two failures that look unrelated (budget 16 with max-running 128, budget 8 with max-running 256) are often one
limit: max-running x verify width is the number of rows in one kernel launch.  This module looks for such a
limit in the cells, says with which margin and which exceptions it holds, and which cells would sharpen it.

Only failures of a class that a limit of size can cause are looked at: a bad flag, a missing model or a port
in use says nothing about size, nor does a failure that nobody could name.  A rule found this way is a reading
of the cells, not a proof; `Ceiling.sentence` carries the counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

#: Failure classes (or the words they begin with) that too large a launch, graph or pool can cause.
SIZE_CLASSES = (
    "attn.flashinfer.workspace_too_small",
    "cuda.capture_invalidated",
    "cuda.cublas.",
    "cuda.illegal_address",
    "cuda.launch_failure",
    "dist.custom_allreduce.",
    "gpu.rocm.memory_access_fault",
    "jit.triton.shared_memory",
    "mem.gpu.kv_pool_nonpositive",
    "mem.gpu.oom_",
    "mem.kv.decode_oom",
    "mem.kv.prefill_oom",
    "proc.host_oom_kill",
    "serve.spec.crash",
)

#: Fewest configurations that failed and that ran before a rule is named.
FEWEST_FAILED = 2
FEWEST_RAN = 1
#: Most exceptions a rule may have, as a share of its points.
MOST_EXCEPTIONS = 0.1

#: What must be equal for cells to share one ceiling.
_PLACE = ("host", "engine", "engine_version", "model", "method", "topk")


_LOOKED_AT = (
    "status",
    "failure_class",
    "reached",
    "max_running",
    "verify_width",
    "concurrency",
    "running",
    "graph_batch",
    "kv_tokens",
)


@dataclass(frozen=True)
class Point:
    """Where on one quantity a configuration (or a cell of it) lies."""

    value: float
    failed: bool
    name: str


@dataclass(frozen=True)
class Rule:
    """One limit: up to `largest_ran` it ran, from `smallest_failed` on it failed, but for the exceptions."""

    quantity: str
    """in words, e.g. `max-running x verify width`"""
    factors: int
    """1 for an axis, 2 for a product of two: fewer is simpler"""
    largest_ran: float
    smallest_failed: float
    ran: int
    failed: int
    exceptions: tuple[str, ...] = ()

    @property
    def margin(self) -> float:
        """smallest failed / largest ran: 1.05 is sharp, 2 leaves an octave unknown."""
        return self.smallest_failed / self.largest_ran


@dataclass(frozen=True)
class NextCell:
    """A cell that would sharpen the rule: it lies inside the gap."""

    budget: int
    max_running: int | None
    concurrency: int | None
    value: float
    """its value of the rule's quantity"""
    tells_apart: str = ""
    """the other quantity that predicts the opposite for this cell"""


@dataclass(frozen=True)
class Ceiling:
    """What can be said about one failure class at one place."""

    where: str
    failure_class: str
    rule: Rule | None
    """None: it cannot be told"""
    equal_rules: tuple[Rule, ...] = ()
    """other rules that part these cells as well"""
    next_cells: tuple[NextCell, ...] = ()
    sentence: str = ""


def counts_for_size(failure_class: str | None) -> bool:
    """Can too large a size cause this failure class?"""
    return bool(failure_class) and any(
        failure_class == known or (known[-1] in "._" and str(failure_class).startswith(known)) for known in SIZE_CLASSES
    )


@dataclass(frozen=True)
class _Quantity:
    words: str
    factors: int
    value: Callable[[dict[str, Any]], float]
    per_cell: bool
    """False: a property of the configuration, whatever the load"""


def _product(*names: str) -> Callable[[dict[str, Any]], float]:
    def value(row: dict[str, Any]) -> float:
        return math.prod(float(row[name]) for name in names)

    return value


def _quantities() -> tuple[_Quantity, ...]:
    return (
        _Quantity("verify width", 1, _product("verify_width"), False),
        _Quantity("max-running", 1, _product("max_running"), False),
        _Quantity("largest graph batch", 1, _product("graph_batch"), False),
        _Quantity("running sequences", 1, _product("running"), True),
        _Quantity("max-running x verify width", 2, _product("max_running", "verify_width"), False),
        _Quantity("largest graph batch x verify width", 2, _product("graph_batch", "verify_width"), False),
        _Quantity("running sequences x verify width", 2, _product("running", "verify_width"), True),
        _Quantity("KV tokens (running sequences x tokens of one)", 2, _product("running", "kv_tokens"), True),
    )


def ceilings(cells: pd.DataFrame) -> list[Ceiling]:
    """One answer per place (host, engine, model, method, top-k) and failure class of size.

    `cells`: `Results.cells`.  Cells that failed with another class, were skipped, invalid or not applied say
    nothing about this limit and are left out.
    """
    prepared = _prepare(cells)
    found = []
    place = [column for column in _PLACE if column in prepared and column not in ("method", "topk")]
    for _, here in prepared.groupby(place, sort=False, dropna=False):
        variants = here[here["method"].ne("none")].groupby(["method", "topk"], sort=False, dropna=False)
        for _, variant in variants:
            failed = variant[variant["status"].eq("failed")]
            for klass in sorted({str(name) for name in failed["failure_class"].dropna()}):
                if counts_for_size(klass):
                    baseline = here[here["method"].eq("none")]
                    found.append(_ceiling(pd.concat([baseline, variant]), klass, _where(variant, prepared)))
    return found


def _where(rows: pd.DataFrame, everything: pd.DataFrame) -> str:
    """Names the place by what differs between places."""
    words = []
    for column in _PLACE:
        if column not in rows:
            continue
        value = rows[column].iloc[0]
        others = everything[everything["method"].ne("none")][column]
        if others.astype(str).nunique() > 1 and not pd.isna(value):
            words.append(f"top-k {value:g}" if column == "topk" else str(value))
    return ", ".join(words)


def _prepare(cells: pd.DataFrame) -> pd.DataFrame:
    rows = cells[cells["status"].isin(["ok", "failed"])].copy()
    nothing = pd.Series(math.nan, index=rows.index)
    for column in ("method", "topk", "failure_class", "max_running", "verify_width", "concurrency"):
        if column not in rows:
            rows[column] = nothing
    limit = rows["max_running"].astype(float)
    rows["running"] = rows["concurrency"].astype(float).where(limit.isna() | (rows["concurrency"] <= limit), limit)
    graph = [column for column in rows.columns if "graph" in str(column) and str(column).endswith("max_bs")]
    rows["graph_batch"] = pd.to_numeric(rows[graph[0]], errors="coerce") if graph else nothing
    prompt = rows["prompt_tokens_total"] / rows["requests_completed"] if "prompt_tokens_total" in rows else nothing
    output = rows["output_tokens"].astype(float) if "output_tokens" in rows else nothing
    rows["kv_tokens"] = prompt.replace([math.inf], math.nan).median() + output + rows["verify_width"]
    if "reached" not in rows:
        rows["reached"] = True
    for column in (*_PLACE, "budget"):
        if column not in rows:
            rows[column] = nothing
    # What a rule looks at: hundreds of other columns would be copied again and again.
    return rows[[*_PLACE, "budget", *_LOOKED_AT]].drop_duplicates()


def _points(rows: pd.DataFrame, klass: str, quantity: _Quantity) -> list[Point]:
    """Distinct configurations (or cells) on this quantity; rows without it give none."""
    found: dict[str, Point] = {}
    for raw in rows.to_dict("records"):
        row = {str(name): value for name, value in raw.items()}
        dead = row["status"] == "failed"
        if dead and row["failure_class"] != klass:
            continue
        if quantity.per_cell and dead and row["reached"] is False:
            continue
        value = quantity.value(row)
        if not math.isfinite(value):
            continue
        name = _name(row, quantity.per_cell)
        before = found.get(name)
        # A configuration that died at one load point did not run, whatever the others say.
        if before is None or (dead and not before.failed):
            found[name] = Point(value, dead, name)
    return list(found.values())


def _name(row: dict[str, Any], per_cell: bool) -> str:
    words = [f"budget {row['budget']:.0f}"]
    if not pd.isna(row["max_running"]):
        words.append(f"max-running {row['max_running']:.0f}")
    if not pd.isna(row["graph_batch"]):
        words.append(f"graph batch {row['graph_batch']:.0f}")
    if per_cell:
        words.append(f"concurrency {row['concurrency']:.0f}")
    return ", ".join(words)


def _rule(points: list[Point], quantity: _Quantity) -> Rule | None:
    """The cut with the fewest exceptions, and among those the widest gap."""
    values = sorted({point.value for point in points})
    best: tuple[int, float, Rule] | None = None
    for low, high in itertools.pairwise(values):
        wrong = [
            f"{point.name} {'failed' if point.failed else 'ran'}"
            for point in points
            if point.failed != (point.value >= high)
        ]
        right_failed = sum(point.failed and point.value >= high for point in points)
        right_ran = sum(not point.failed and point.value <= low for point in points)
        if not right_failed or not right_ran:
            continue
        rule = Rule(quantity.words, quantity.factors, low, high, right_ran, right_failed, tuple(sorted(wrong)))
        key = (len(wrong), -rule.margin)
        if best is None or key < best[:2]:
            best = (*key, rule)
    return best[2] if best else None


def _ceiling(rows: pd.DataFrame, klass: str, where: str) -> Ceiling:
    rules = []
    enough = False
    for quantity in _quantities():
        points = _points(rows, klass, quantity)
        dead = sum(point.failed for point in points)
        if dead < FEWEST_FAILED or len(points) - dead < FEWEST_RAN:
            continue
        enough = True
        rule = _rule(points, quantity)
        if rule is not None and len(rule.exceptions) <= MOST_EXCEPTIONS * len(points):
            rules.append(rule)
    if not rules:
        return Ceiling(where, klass, None, sentence=_silence(rows, klass, enough))
    rules.sort(key=lambda rule: (len(rule.exceptions), rule.factors))
    first = rules[0]
    equal = tuple(rule for rule in rules[1:] if len(rule.exceptions) == len(first.exceptions))
    proposals = next_cells(rows, first) + telling_cells(rows, first, equal)
    return Ceiling(where, klass, first, equal, proposals, _sentence(klass, first, equal, rows, proposals))


def _silence(rows: pd.DataFrame, klass: str, enough: bool) -> str:
    """Why no rule is named."""
    configurations = _points(rows, klass, _Quantity("", 0, lambda row: float(row["budget"]), False))
    failed = sum(point.failed for point in configurations)
    ran = len(configurations) - failed
    have = f"{failed} configuration{'s' * (failed != 1)} failed with {klass}, {ran} ran"
    if not enough:
        need = f"a ceiling needs at least {FEWEST_FAILED} that failed and {FEWEST_RAN} that ran"
        return f"Cannot tell: {have}; {need}."
    return f"Cannot tell: {have}, and no limit on one axis or on a product of two parts them."


def _examples(rows: pd.DataFrame, klass: str, rule: Rule) -> str:
    """The products as people say them: 128 x 17 failed, 128 x 9 ran."""
    if rule.quantity != "max-running x verify width":
        return ""
    factors = rows.dropna(subset=["max_running", "verify_width"])
    product = factors["max_running"] * factors["verify_width"]
    dead = factors["status"].eq("failed") & factors["failure_class"].eq(klass)
    ran = factors["status"].eq("ok") & product.le(rule.largest_ran)

    def pairs(mask: pd.Series[bool], largest: bool) -> str:
        chosen = factors[mask].assign(product=product[mask]).drop_duplicates(["max_running", "verify_width"])
        chosen = chosen.sort_values("product", ascending=not largest).head(1 if largest else 3)
        return " and ".join(
            f"{row['max_running']:.0f} x {row['verify_width']:.0f}" for row in chosen.to_dict("records")
        )

    return f" ({pairs(dead, False)} failed, {pairs(ran, True)} ran)"


def _sentence(
    klass: str, rule: Rule, equal: tuple[Rule, ...], rows: pd.DataFrame, proposals: tuple[NextCell, ...]
) -> str:
    text = (
        f"{klass}: {rule.quantity} parts what ran from what failed{_examples(rows, klass, rule)}: "
        f"{rule.ran} up to {rule.largest_ran:,.0f} ran, {rule.failed} from {rule.smallest_failed:,.0f} on "
        f"failed; between them, a factor of {rule.margin:.2f}, nothing was measured."
    )
    if rule.exceptions:
        text += f" Exceptions: {'; '.join(rule.exceptions)}."
    if equal:
        text += f" These cells cannot tell it from {', '.join(other.quantity for other in equal)}."
    if proposals:
        text += " Next: " + "; ".join(_propose(cell) for cell in proposals) + "."
    return text


def _propose(cell: NextCell) -> str:
    words = [f"budget {cell.budget}"]
    if cell.max_running is not None:
        words.append(f"max-running {cell.max_running}")
    if cell.concurrency is not None:
        words.append(f"concurrency {cell.concurrency}")
    said = f"{' with '.join(words[:2])}{', ' + words[2] if len(words) > 2 else ''} ({cell.value:,.0f})"
    return f"{said}, which {cell.tells_apart} sees otherwise" if cell.tells_apart else said


def next_cells(rows: pd.DataFrame, rule: Rule, most: int = 4) -> tuple[NextCell, ...]:
    """Cells not yet measured whose value lies inside the rule's gap, those nearest its middle first.

    Both factors are moved, so that the answers also test that it is the product that counts.
    """
    middle = math.sqrt(rule.largest_ran * rule.smallest_failed)
    speculative = rows[rows["method"].ne("none")].dropna(subset=["verify_width"])
    if speculative.empty or "verify width" not in rule.quantity:
        return ()
    offset = int((speculative["verify_width"] - speculative["budget"]).median())
    widths = sorted({int(width) for width in speculative["verify_width"]})
    factor = {
        "max-running x verify width": "max_running",
        "largest graph batch x verify width": "graph_batch",
        "running sequences x verify width": "running",
    }.get(rule.quantity)
    if factor is None:
        width = round(middle)
        inside = rule.largest_ran < width < rule.smallest_failed
        return (NextCell(width - offset, None, None, float(width)),) if inside else ()
    amounts = sorted({int(amount) for amount in speculative[factor].dropna()})
    tried = {
        (int(row[factor]), int(row["verify_width"])) for row in speculative.dropna(subset=[factor]).to_dict("records")
    }
    wanted = {(amount, round(middle / amount)) for amount in amounts}
    wanted |= {(_even(middle / width), width) for width in widths}
    inside_gap = [
        (amount, width)
        for amount, width in wanted - tried
        if amount >= 1 and width - offset >= 1 and rule.largest_ran < amount * width < rule.smallest_failed
    ]
    inside_gap.sort(key=lambda pair: (abs(math.log(pair[0] * pair[1] / middle)), pair))
    by_amount = factor != "running"
    return tuple(
        NextCell(
            width - offset,
            amount if by_amount else None,
            None if by_amount else amount,
            float(amount * width),
        )
        for amount, width in inside_gap[:most]
    )


def telling_cells(rows: pd.DataFrame, rule: Rule, equal: tuple[Rule, ...]) -> tuple[NextCell, ...]:
    """One cell for each equal rule that predicts the opposite of `rule`, where changing max-running makes one."""
    speculative = rows[rows["method"].ne("none")].dropna(subset=["verify_width"])
    known = speculative["max_running"].dropna()
    if known.empty:
        return ()
    by_words = {quantity.words: quantity for quantity in _quantities()}
    offset = int((speculative["verify_width"] - speculative["budget"]).median())
    load = float(speculative["concurrency"].max())
    widths = sorted({int(width) for width in speculative["verify_width"]})
    # Large steps first tried near what was run: a proposal should be a cell that people would run.
    amounts = sorted(
        {int(known.max()) * 2**power // 16 for power in range(8)} - {0},
        key=lambda amount: abs(math.log(amount / float(known.median()))),
    )
    tried = set(zip(speculative["max_running"], speculative["verify_width"], strict=True))
    found = []
    for other in equal:
        for amount, width in itertools.product(amounts, widths):
            row = {"max_running": amount, "verify_width": width, "running": min(load, amount)}
            try:
                mine = by_words[rule.quantity].value(row)
                theirs = by_words[other.quantity].value(row)
            except KeyError:
                continue
            if (amount, width) not in tried and _predicts(rule, mine) * _predicts(other, theirs) < 0:
                found.append(NextCell(width - offset, amount, None, mine, other.quantity))
                break
    return tuple(found)


def _predicts(rule: Rule, value: float) -> int:
    """1: fails, -1: runs, 0: inside the gap."""
    if value >= rule.smallest_failed:
        return 1
    return -1 if value <= rule.largest_ran else 0


def _even(value: float) -> int:
    """Rounded to a number people would type: multiples of 8 from 16 on."""
    return round(value / 8) * 8 if value >= 16 else max(1, round(value))
