"""The plan: grid -> configurations (need a restart) -> load points (do not) -> cells.

`make` turns the sweep variables into a Plan without touching a host.  What the engine cannot run is skipped
with the reason; two requests that give the engine the same command line become one configuration.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import msgspec

from specsweep import engine as engines
from specsweep import prompts as prompt_sets
from specsweep.expression import evaluate

#: From this many configurations on the baseline is measured again as an anchor, if `anchors` is auto.
ANCHORS_FROM = 6


#: Value of `load_driver` that only a cross-check has: our client and the native tool, one after the other.
CROSSCHECK = "both"


class PlanError(ValueError):
    """Variables that do not make a plan; the message is one line for the user."""


class LoadPoint(msgspec.Struct, kw_only=True):
    id: str
    concurrency: int
    requests: int
    warmup_prompts: list[int]
    """positions in the prompt set"""
    load_prompts: list[int]
    prompts_reused: bool = False
    tool_warmup_prompts: list[int] = []
    """of a cross-check: the native tool's own slice"""
    tool_load_prompts: list[int] = []


class PlannedConfiguration(msgspec.Struct, kw_only=True):
    """What needs a restart."""

    key: str
    """hash of what was asked; the record's configuration_id adds the engine's version, model and prompts"""
    label: str
    method: str
    budget: int
    topk: int
    candidates: int
    verify_width: int
    max_running: int | None
    settings: dict[str, Any]
    baseline: bool
    requests_of: list[str]
    load_points: list[str]
    """ids of the load points measured here"""


class Restart(msgspec.Struct, kw_only=True):
    position: int
    configuration: str
    """key of the configuration"""
    repeat: int
    anchor: str | None = None


class SkippedCell(msgspec.Struct, kw_only=True):
    label: str
    method: str
    budget: int
    topk: int
    settings: dict[str, Any]
    concurrency: int
    reason: str


class Plan(msgspec.Struct, kw_only=True):
    engine: str
    replay: bool
    prompts: str
    prompts_sha256: str
    configurations: list[PlannedConfiguration]
    load_points: list[LoadPoint]
    restarts: list[Restart]
    skipped: list[SkippedCell]
    load_tool: str | None = None
    """the native load tool that sends the measured requests, or sends them too"""
    predicted_s: float | None = None
    """None until something was measured before"""

    @property
    def cells(self) -> int:
        """Cells to be measured on one host."""
        points = {item.key: len(item.load_points) for item in self.configurations}
        return sum(points[restart.configuration] for restart in self.restarts)


def make(variables: Mapping[str, Any]) -> Plan:
    """Plan of normalised variables.  Raises PlanError, EngineError or PromptError with one line."""
    profile = engines.load(variables["engine"])
    _check_names(profile, variables)
    ours = variables["load_driver"] == "specsweep"
    tool = None if ours else engines.native_tool(profile, variables["load_tool"]).name
    prompt_set = prompt_sets.load(variables["prompts"])
    points = _load_points(variables, prompt_set)
    configurations: dict[str, PlannedConfiguration] = {}
    skipped: list[tuple[str, SkippedCell]] = []
    for method, budget, topk, settings in _grid(profile, variables):
        names = _names(profile, variables, method, budget, topk, settings)
        effective = engines.effective_settings(profile, method, settings, names)
        label = _label(variables, method, budget, topk, effective)
        request = f"{method} b{budget} k{topk}" + "".join(f" {k}={v}" for k, v in settings.items())
        reason = engines.impossible(profile, method, names)
        rendered = None if reason else engines.render(profile, method, effective, names)
        key = digest([rendered.arguments, rendered.environment]) if rendered else ""
        facts = {**effective, "method": method, "budget": budget, "topk": topk}
        measured: list[str] = []
        for point in points:
            why = reason or _excluded(variables["exclude"], {**facts, "concurrency": point.concurrency})
            if why is None:
                measured.append(point.id)
            else:
                cell = SkippedCell(
                    label=label,
                    method=method,
                    budget=budget,
                    topk=topk,
                    settings=effective,
                    concurrency=point.concurrency,
                    reason=why,
                )
                skipped.append((key, cell))
        if not measured:
            continue
        rule = profile.methods[method]
        if key in configurations:
            # Asked twice, run once, at every load point that one of the requests wants.
            same = configurations[key]
            same.requests_of.append(request)
            same.load_points = [point.id for point in points if point.id in (*same.load_points, *measured)]
            continue
        configurations[key] = PlannedConfiguration(
            key=key,
            label=label,
            method=method,
            budget=budget,
            topk=topk,
            candidates=int(evaluate(rule.candidates, names)),
            verify_width=int(evaluate(rule.verify_width, names)),
            max_running=_max_running(profile, names),
            settings=effective,
            baseline=method == "none",
            requests_of=[request],
            load_points=measured,
        )
    if not configurations:
        reasons = "; ".join(dict.fromkeys(cell.reason for _, cell in skipped))
        raise PlanError(f"budgets: nothing is left to run: {reasons or 'every combination is excluded'}")
    _tell_apart(list(configurations.values()))
    return Plan(
        engine=profile.name,
        replay=profile.replay,
        prompts=prompt_set.name,
        prompts_sha256=prompt_set.sha256,
        configurations=list(configurations.values()),
        load_points=points,
        restarts=_restarts(list(configurations.values()), variables),
        skipped=[cell for key, cell in skipped if not _is_measured(configurations.get(key), cell)],
        load_tool=tool,
    )


def _is_measured(configuration: PlannedConfiguration | None, cell: SkippedCell) -> bool:
    """Whether another request for the same effective configuration has this cell measured."""
    return configuration is not None and f"c{cell.concurrency}" in configuration.load_points


def _check_names(profile: engines.Profile, variables: Mapping[str, Any]) -> None:
    for method in variables["methods"]:
        if method not in profile.methods:
            known = ", ".join(profile.methods)
            close = difflib.get_close_matches(method, profile.methods, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise PlanError(f"methods: expected methods of {profile.name} ({known}); got {method!r}{hint}")
    for source in ("axes", "settings"):
        for name in variables[source]:
            _check_setting(profile, source, name)
    for group in variables["linked"]:
        for name in group:
            _check_setting(profile, "linked", name)
    both = {*variables["axes"]} & ({*variables["settings"]} | {name for group in variables["linked"] for name in group})
    if both:
        raise PlanError(f"axes: {min(both)} is also in settings or linked; name it in one of them")
    swept = {"method", "budget", "topk", "concurrency"}
    for case in variables["exclude"]:
        for name in case:
            if name not in swept:
                _check_setting(profile, "exclude", name)


def _check_setting(profile: engines.Profile, source: str, name: str) -> None:
    try:
        engines.check_setting(profile, name)
    except engines.EngineError as error:
        raise PlanError(f"{source}: {error}") from None


def _grid(profile: engines.Profile, variables: Mapping[str, Any]) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """Every asked combination: the baseline first, then method x budget x top-k x axes x linked."""
    axes: dict[str, list[Any]] = variables["axes"]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    linked: list[dict[str, Any]] = variables["linked"] or [{}]
    settings = [{**variables["settings"], **point, **group} for group in linked for point in points]
    asked = variables["baseline"] or 0 in variables["budgets"] or "none" in variables["methods"]
    if "none" in profile.methods and asked:
        for chosen in settings:
            yield "none", 0, 1, chosen
    methods = [method for method in variables["methods"] or [profile.default_method] if method != "none"]
    for method in methods:
        for chosen in settings:
            for topk in variables["topks"]:
                for budget in variables["budgets"]:
                    if budget > 0:
                        yield method, budget, topk, chosen


def _names(
    profile: engines.Profile,
    variables: Mapping[str, Any],
    method: str,
    budget: int,
    topk: int,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    place = {
        "model": variables["model"] or "MODEL",
        "drafter": variables["drafter"] or None,
        "address": "127.0.0.1",
        "port": 0,
        "engine_python": "python3",
        "concurrency_max": max(variables["concurrencies"]),
        "output_tokens": variables["output_tokens"],
        "seed": variables["seed"],
    }
    return engines.scope(profile, method=method, budget=budget, topk=topk, settings=settings, place=place)


def _max_running(profile: engines.Profile, names: Mapping[str, Any]) -> int | None:
    value = evaluate(profile.max_running, names) if profile.max_running else None
    return int(value) if value is not None else None


def _excluded(cases: list[dict[str, Any]], facts: Mapping[str, Any]) -> str | None:
    for case in cases:
        if all(str(facts.get(name)) == str(value) for name, value in case.items()):
            return "excluded: " + ", ".join(f"{name} {value}" for name, value in case.items())
    return None


def _load_points(variables: Mapping[str, Any], prompt_set: prompt_sets.PromptSet) -> list[LoadPoint]:
    concurrencies = sorted(variables["concurrencies"])
    requests = [max(variables["requests"], 2 * concurrency) for concurrency in concurrencies]
    sizes = list(zip(concurrencies, requests, strict=True))
    both = variables["load_driver"] == CROSSCHECK
    slices = prompt_sets.deal(prompt_set, sizes * 2 if both else sizes, reuse=variables["prompts_reuse"])
    of_tool: list[prompt_sets.Slice | None] = [*slices[len(sizes) :]] or [None] * len(sizes)
    return [
        LoadPoint(
            id=f"c{concurrency}",
            concurrency=concurrency,
            requests=count,
            warmup_prompts=list(part.warmup),
            load_prompts=list(part.load),
            # A second slice of a used-up set repeats the first: then both are marked.
            prompts_reused=part.reused or bool(second and second.reused),
            tool_warmup_prompts=list(second.warmup) if second else [],
            tool_load_prompts=list(second.load) if second else [],
        )
        for (concurrency, count), part, second in zip(sizes, slices[: len(sizes)], of_tool, strict=True)
    ]


def _label(
    variables: Mapping[str, Any],
    method: str,
    budget: int,
    topk: int,
    effective: Mapping[str, Any],
) -> str:
    """`none`, or method, budget and top-k, with every setting that is swept."""
    swept = [*variables["axes"], *dict.fromkeys(name for group in variables["linked"] for name in group)]
    parts = ["none"] if method == "none" else [method, f"b{budget}", f"k{topk}"]
    parts += [f"{name}={effective[name]}" for name in swept if name in effective]
    return " ".join(parts)


def _tell_apart(configurations: list[PlannedConfiguration]) -> None:
    seen: dict[str, int] = {}
    for configuration in configurations:
        seen[configuration.label] = seen.get(configuration.label, 0) + 1
        if seen[configuration.label] > 1:
            configuration.label += f" #{seen[configuration.label]}"


def _restarts(configurations: list[PlannedConfiguration], variables: Mapping[str, Any]) -> list[Restart]:
    """Blocks in seeded random order (or as given), with the anchors between them."""
    chooser = random.Random(variables["seed"])
    order: list[tuple[str, int]] = []
    for repeat in range(1, variables["repeats"] + 1):
        block = [configuration.key for configuration in configurations]
        if variables["order"] == "random":
            chooser.shuffle(block)
        order += [(key, repeat) for key in block]
    baseline = next((item.key for item in configurations if item.baseline), None)
    anchors = variables["anchors"]
    wanted = len(configurations) >= ANCHORS_FROM if anchors == "auto" else bool(anchors)
    if anchors is True and baseline is None:
        raise PlanError("anchors: expected a baseline to measure again; got anchors=true with baseline=false")
    places: dict[int, str] = {}
    if wanted and baseline is not None:
        # The later key wins: with a single restart the middle is the start.
        places = {len(order) // 2: "middle", len(order): "end", 0: "start"}
    restarts: list[Restart] = []

    def add(key: str, repeat: int, anchor: str | None) -> None:
        restarts.append(Restart(position=len(restarts) + 1, configuration=key, repeat=repeat, anchor=anchor))

    for index in range(len(order) + 1):
        if index in places and baseline is not None:
            add(baseline, 0, places[index])
        if index < len(order):
            add(*order[index], None)
    return restarts


def digest(data: Any) -> str:
    """Short hash of plain data or structs."""
    data = msgspec.to_builtins(data)
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def configuration_id(
    configuration: PlannedConfiguration,
    *,
    engine: str,
    engine_version: str | None,
    model: str,
    drafter: str | None,
    prompts_sha256: str,
) -> str:
    """Identity of a configuration: what was asked and the engine's version, model, drafter and prompt set."""
    return digest([configuration.key, engine, engine_version, model, drafter, prompts_sha256])


def _count(items: Sized, name: str) -> str:
    return f"{len(items)} {name}{'' if len(items) == 1 else 's'}"


def as_text(plan: Plan, hosts: list[str]) -> str:
    """The plan for people: configurations, load points, order, what is skipped, the time it will take."""
    lines = [f"engine {plan.engine}, prompts {plan.prompts} ({plan.prompts_sha256[:8]})"]
    lines.append(f"{_count(plan.configurations, 'configuration')}:")
    for item in plan.configurations:
        also = f", also asked as {'; '.join(item.requests_of[1:])}" if len(item.requests_of) > 1 else ""
        running = f", max running {item.max_running}" if item.max_running else ""
        lines.append(f"  {item.label:32} verify width {item.verify_width}{running}{also}")
    points = ", ".join(f"{point.concurrency} ({point.requests} requests)" for point in plan.load_points)
    lines.append(f"load points: concurrency {points}{f', load tool {plan.load_tool}' if plan.load_tool else ''}")
    labels = {item.key: item.label for item in plan.configurations}
    lines.append(f"{_count(plan.restarts, 'restart')} on {_count(hosts, 'host')}, in this order:")
    for restart in plan.restarts:
        role = f"anchor, {restart.anchor}" if restart.anchor else f"block {restart.repeat}"
        lines.append(f"  {restart.position:3} {labels[restart.configuration]} ({role})")
    lines.append(f"{plan.cells} cells on each host, {plan.cells * len(hosts)} in all")
    reasons: dict[str, list[str]] = {}
    for cell in plan.skipped:
        reasons.setdefault(cell.reason, []).append(f"{cell.label} c{cell.concurrency}")
    for reason, cells in reasons.items():
        lines.append(f"skipped ({len(cells)}): {reason}: {', '.join(cells[:6])}{' ...' if len(cells) > 6 else ''}")
    if plan.predicted_s is None:
        lines.append("predicted time: unknown, nothing comparable was measured before")
    else:
        lines.append(f"predicted time: {plan.predicted_s / 60:.1f} minutes, from what was measured before")
    return "\n".join(lines)
