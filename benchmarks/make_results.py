"""Make a results folder whose truth is known: the records of a sweep that never ran.

    python benchmarks/make_results.py OUT [--cells N] [--log-mib M] [--requests N] [--seed S]

The numbers come from a small model of a server (a step that gets slower with the batch product, an acceptance
length that saturates with the budget) plus noise of known size: restarts differ, requests of one restart
differ less.  Nothing here was measured; every host record says so.  Tests plant gains and look for them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specsweep import record

CATEGORIES = ("chat", "code", "json", "reasoning")
_CATEGORY_AL = {"chat": 0.88, "code": 1.16, "json": 1.06, "reasoning": 0.96}
MADE = "made up by benchmarks/make_results.py: not a measurement"


@dataclass(frozen=True)
class Truth:
    """The server that the records pretend to come from.

    al(budget) = 1 + al_gain x (1 - al_decay ^ budget); one step takes step_ms + width_ms x running x width
    milliseconds; the launch fails when max_running x width exceeds `largest_product`.
    """

    step_ms: float = 7.0
    width_ms: float = 0.004
    al_gain: float = 3.0
    al_decay: float = 0.85
    restart_sd: float = 0.006
    """relative sd of the throughput between restarts"""
    request_sd: float = 0.03
    """relative sd of one request's TPOT inside a restart"""
    drift: float = 0.0
    """relative loss of throughput from the first to the last restart"""
    largest_product: float = math.inf
    gain: Callable[[str, int, int], float] = lambda *_: 1.0
    """planted factor on the throughput, of method, budget, concurrency"""

    def al(self, budget: int) -> float:
        return 1.0 if budget == 0 else 1.0 + self.al_gain * (1.0 - self.al_decay**budget)

    def step_time_ms(self, running: float, width: int) -> float:
        return self.step_ms + self.width_ms * running * width


@dataclass(frozen=True)
class Plan:
    """What the made sweep asks for."""

    sweep_id: str = "made-0001"
    hosts: tuple[str, ...] = ("gpu1",)
    budgets: tuple[int, ...] = (8, 16, 32)
    topks: tuple[int | None, ...] = (4,)
    concurrencies: tuple[int, ...] = (1, 8, 32)
    repeats: int = 3
    anchors: tuple[str, ...] = ("start", "end")
    max_running: int = 128
    requests: int = 24
    """requests of one cell, spread over the categories"""
    output_tokens: int = 128
    method: str = "ddtree"
    engine: str = "sglang"
    engine_version: str = "0.0.0+made"
    prompts: str = "made"
    log_mib: float = 0.0
    """uncompressed size of each restart's engine log"""
    request_files: bool = True
    same_prompts: bool = True
    """every configuration gets the same prompts"""
    seed: int = 1


@dataclass(frozen=True)
class _Restart:
    host: str
    budget: int
    topk: int | None
    repeat: int
    anchor: str | None


def write_sweep(out: Path, plan: Plan | None = None, truth: Truth | None = None) -> Path:
    """Write one made sweep under `out`; returns its folder."""
    plan, truth = plan or Plan(), truth or Truth()
    folder = out / plan.sweep_id
    start = 1_790_000_000.0
    for host in plan.hosts:
        order = list(_restarts(host, plan))
        clock = start
        for position, restart in enumerate(order, start=1):
            share = (position - 1) / max(1, len(order) - 1)
            clock = _write_restart(folder, plan, truth, restart, position, share, clock)
        record.write(
            folder / host / "host.json",
            record.Host(
                sweep_id=plan.sweep_id,
                name=host,
                supervisor="systemd",
                engine=plan.engine,
                engine_version=plan.engine_version,
                cpu="made-up CPU",
                cpu_count=64,
                gpus=[{"name": "made-up GPU", "memory_mib": 141_000, "power_limit_w": 700.0}],
                driver="made up",
                facts={"made_up": MADE},
            ),
        )
    record.write(
        folder / "sweep.json",
        record.Sweep(
            sweep_id=plan.sweep_id,
            created_unix_s=start,
            hosts=list(plan.hosts),
            variables={"budgets": list(plan.budgets), "concurrency": list(plan.concurrencies)},
            plan={"made_up": MADE},
            finished_unix_s=clock,
        ),
    )
    return folder


def _restarts(host: str, plan: Plan) -> Iterator[_Restart]:
    rng = random.Random(f"{plan.seed}/{host}/order")
    if "start" in plan.anchors:
        yield _Restart(host, 0, None, 1, "start")
    for repeat in range(1, plan.repeats + 1):
        block = [_Restart(host, 0, None, repeat, None)]
        block += [_Restart(host, budget, topk, repeat, None) for budget in plan.budgets for topk in plan.topks]
        rng.shuffle(block)
        yield from block
        if "middle" in plan.anchors and repeat == (plan.repeats + 1) // 2:
            yield _Restart(host, 0, None, 1, "middle")
    if "end" in plan.anchors:
        yield _Restart(host, 0, None, 1, "end")


def label_of(plan: Plan, budget: int, topk: int | None) -> str:
    if budget == 0:
        return "none"
    return f"{plan.method} b{budget}" + (f" k{topk}" if topk is not None else "")


def _write_restart(
    folder: Path,
    plan: Plan,
    truth: Truth,
    restart: _Restart,
    position: int,
    share: float,
    clock: float,
) -> float:
    method = "none" if restart.budget == 0 else plan.method
    label = label_of(plan, restart.budget, restart.topk)
    width = restart.budget + 1
    identity = f"{plan.engine_version}/{plan.prompts}/{label}/{plan.max_running}"
    configuration_id = hashlib.sha256(identity.encode()).hexdigest()[:12]
    name = f"a-{restart.anchor}" if restart.anchor else f"r{restart.repeat}"
    place = folder / restart.host / configuration_id / name
    rng = random.Random(f"{plan.seed}/{restart.host}/{label}/{name}")
    factor = math.exp(rng.gauss(0.0, truth.restart_sd)) * (1.0 - truth.drift * share)
    failed = plan.max_running * width > truth.largest_product
    failure = _failure(width, plan) if failed else None
    ready_s = round(rng.uniform(35.0, 50.0), 2)
    phases = [
        record.Phase(name="stop", start_unix_s=clock, end_unix_s=clock + 3),
        record.Phase(name="load", start_unix_s=clock + 3, end_unix_s=clock + 3 + ready_s),
    ]
    clock += 3 + ready_s
    common = {
        "sweep_id": plan.sweep_id,
        "host": restart.host,
        "configuration_id": configuration_id,
        "label": label,
        "engine": plan.engine,
        "engine_version": plan.engine_version,
        "model": "made-up-model",
        "drafter": None if restart.budget == 0 else "made-up-drafter",
        "method": method,
        "budget": restart.budget,
        "topk": restart.topk,
        "candidates": restart.budget,
        "verify_width": width,
        "max_running": plan.max_running,
        "settings": {"mem_fraction_static": 0.85},
        "baseline": restart.budget == 0,
        "repeat": restart.repeat,
        "anchor": restart.anchor,
    }
    paths = []
    for concurrency in plan.concurrencies:
        cell, requests = _cell(common, plan, truth, restart, concurrency, factor, clock, rng, failure)
        paths.append(f"cells/c{concurrency}.json")
        if requests and plan.request_files:
            cell.requests_file = f"requests/c{concurrency}.jsonl.gz"
            record.write_requests(place / cell.requests_file, requests)
        record.write(place / paths[-1], cell)
        if cell.window_s:
            phases.append(
                record.Phase(
                    name="measure",
                    start_unix_s=clock,
                    end_unix_s=clock + cell.window_s,
                    detail=f"c{concurrency}",
                )
            )
            clock += cell.window_s + 2.0
    phases.append(record.Phase(name="collect", start_unix_s=clock, end_unix_s=clock + 4.0))
    record.write(
        place / "configuration.json",
        record.Configuration(
            **common,  # type: ignore[arg-type]
            position=position,
            status="failed" if failed else "ok",
            reason="the engine died while it captured its graphs" if failed else "",
            failure=failure,
            attestation=record.Attestation(
                verdict="unknown" if failed else "applied",
                witnesses=[record.Witness(name="command_line", verdict="applied", detail="made up")],
            ),
            service=record.Service(supervisor="systemd", unit="made.service", properties={"NRestarts": "0"}),
            ready_s=None if failed else ready_s,
            ready_timeline=[
                record.ReadyEvent(at_s=0.2, event="refused"),
                record.ReadyEvent(at_s=ready_s, event="unit failed" if failed else "generated"),
            ],
            phases=phases,
            overhead_s=7.0,
            cells=paths,
        ),
    )
    if plan.log_mib:
        write_log(place / "evidence" / "engine.log.gz", plan.log_mib, f"{plan.seed}/{label}/{name}", failure)
    return clock + 4.0


def _failure(width: int, plan: Plan) -> record.Failure:
    text = "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmStridedBatchedEx(...)`"
    return record.Failure(
        klass="cuda.cublas.execution_failed",
        tier=1,
        phase="graph_capture",
        evidence=[record.Line(source="engine", line=1204, text=text)],
        fingerprint="made-cublas",
        advice=f"{plan.max_running} x {width} rows in one launch: lower the budget or max-running-requests",
    )


def _cell(
    common: dict[str, object],
    plan: Plan,
    truth: Truth,
    restart: _Restart,
    concurrency: int,
    factor: float,
    clock: float,
    rng: random.Random,
    failure: record.Failure | None,
) -> tuple[record.Cell, list[record.Request]]:
    base = record.Cell(
        **common,  # type: ignore[arg-type]
        cell_id=f"{common['configuration_id']}-c{concurrency}-{restart.anchor or restart.repeat}",
        concurrency=concurrency,
        prompts=plan.prompts,
        prompts_sha256=hashlib.sha256(plan.prompts.encode()).hexdigest(),
        output_mode="exact",
        output_tokens=plan.output_tokens,
        temperature=0.0,
        status="ok" if failure is None else "failed",
        attestation="applied" if failure is None else "unknown",
        requests_asked=plan.requests,
        remarks=[],
    )
    if failure is not None:
        base.reason = "the engine died while it captured its graphs"
        base.reached = False
        base.failure = failure
        return base, []
    width = restart.budget + 1
    running = concurrency * 0.97 if concurrency > 1 else 1.0
    step_ms = truth.step_time_ms(running, width) / (
        factor * truth.gain(str(common["method"]), restart.budget, concurrency)
    )
    requests = _requests(plan, truth, restart, concurrency, step_ms, rng)
    return _measured(base, concurrency, running, requests, clock, rng), requests


def _requests(
    plan: Plan, truth: Truth, restart: _Restart, concurrency: int, step_ms: float, rng: random.Random
) -> list[record.Request]:
    requests = []
    prompts = random.Random(f"{plan.prompts}/{concurrency}/{0 if plan.same_prompts else restart}")
    share = [0.0] * concurrency
    for index in range(plan.requests):
        category = CATEGORIES[index % len(CATEGORIES)]
        prompt = prompts.gauss(0.0, 0.08)
        al = truth.al(restart.budget)
        if restart.budget:
            al = min(1.0 + restart.budget, max(1.0, 1.0 + (al - 1.0) * _CATEGORY_AL[category] * math.exp(prompt)))
        steps = max(1, round(plan.output_tokens / al))
        tpot = step_ms * steps / plan.output_tokens * math.exp(rng.gauss(0.0, truth.request_sd))
        ttft = 20.0 + 2.0 * concurrency * rng.uniform(0.7, 1.3)
        lane = min(range(concurrency), key=share.__getitem__)
        e2e = ttft + tpot * (plan.output_tokens - 1)
        accepted = plan.output_tokens - steps
        requests.append(
            record.Request(
                id=f"{index}",
                prompt_id=f"{category}-{concurrency}-{index}",
                category=category,
                sent_s=round(share[lane], 6),
                ttft_ms=round(ttft, 3),
                e2e_ms=round(e2e, 3),
                tpot_ms=round(tpot, 4),
                prompt_tokens=96,
                output_tokens=plan.output_tokens,
                cached_tokens=0,
                finish_reason="length",
                ok=True,
                steps=steps,
                drafts=steps if restart.budget else None,
                drafted_tokens=steps * restart.budget if restart.budget else None,
                accepted_tokens=accepted if restart.budget else None,
            )
        )
        share[lane] += e2e / 1000.0
    return requests


def _measured(
    cell: record.Cell,
    concurrency: int,
    running: float,
    requests: Sequence[record.Request],
    clock: float,
    rng: random.Random,
) -> record.Cell:
    tokens = sum(request.output_tokens or 0 for request in requests)
    steps = sum(request.steps or 0 for request in requests)
    al = tokens / steps
    tpots = [request.tpot_ms or 0.0 for request in requests]
    # The rate of a long window: what the steps cost, without the ragged end of a short one.
    per_token_ms = statistics.fmean(tpots)
    rate = running * 1000.0 / per_token_ms
    cell.window_start_unix_s = clock
    cell.window_s = tokens / rate
    cell.requests_completed = len(requests)
    cell.prompt_tokens_total = sum(request.prompt_tokens or 0 for request in requests)
    cell.cached_prompt_tokens = 0
    cell.output_tokens_total = tokens
    cell.system_tok_s = rate
    cell.running_mean = running
    cell.per_user_tok_s = 1000.0 / statistics.median(tpots)
    cell.step_time_ms = running * al / rate * 1000.0
    cell.ttft_ms = quantiles([request.ttft_ms or 0.0 for request in requests])
    cell.tpot_ms = quantiles(tpots)
    cell.e2e_ms = quantiles([request.e2e_ms or 0.0 for request in requests])
    cell.acceptance = _acceptance(cell.budget, tokens, steps, requests)
    cell.categories = {
        name: _category([request for request in requests if request.category == name])
        for name in CATEGORIES
        if any(request.category == name for request in requests)
    }
    cell.client = record.Client(version="made", lag_ms_p99=round(rng.uniform(0.2, 1.5), 3))
    cell.telemetry = [
        record.Telemetry(
            gpu="made-up GPU 0",
            samples=max(60, int(cell.window_s)),
            sm_clock_mhz_median=1980.0,
            sm_clock_spread=round(rng.uniform(0.0, 0.01), 4),
            memory_clock_mhz_median=2619.0,
            power_w_mean=round(min(690.0, 260.0 + 1.6 * concurrency + rng.uniform(-5, 5)), 1),
            power_w_max=695.0,
            power_limit_w=700.0,
            temperature_c_max=round(rng.uniform(55, 68)),
            utilization_mean=0.97,
            memory_used_mib_max=101_000.0,
        )
    ]
    return cell


def _acceptance(budget: int, tokens: int, steps: float, requests: Sequence[record.Request]) -> record.Acceptance:
    al = tokens / steps
    by_request = statistics.fmean((request.output_tokens or 0) / (request.steps or 1) for request in requests)
    acceptance = record.Acceptance(
        estimator="request: output tokens / steps (made up)",
        tokens=tokens,
        steps=steps,
        al_token_weighted=al,
        al_request_weighted=by_request,
    )
    if budget:
        rate = _position_rate(al - 1.0, budget)
        acceptance.drafts = int(steps)
        acceptance.drafted_tokens = int(steps) * budget
        acceptance.accepted_tokens = tokens - int(steps)
        acceptance.length_of_drafted_steps = al
        acceptance.accepted_per_position = [round(steps * rate ** (k + 1)) for k in range(budget)]
        survivors = [float(steps)] + [steps * rate ** (k + 1) for k in range(budget)] + [0.0]
        acceptance.histogram = [round(survivors[k] - survivors[k + 1]) for k in range(budget + 1)]
        acceptance.counters_al = al * 1.002
    return acceptance


def _position_rate(accepted: float, budget: int) -> float:
    """Rate r with r + r^2 + ... + r^budget = accepted, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**k for k in range(1, budget + 1)) < accepted:
            low = middle
        else:
            high = middle
    return low


def _category(requests: Sequence[record.Request]) -> record.Category:
    tokens = sum(request.output_tokens or 0 for request in requests)
    tpots = [request.tpot_ms or 0.0 for request in requests]
    return record.Category(
        requests=len(requests),
        output_tokens=tokens,
        al_token_weighted=tokens / sum(request.steps or 0 for request in requests),
        tpot_ms=quantiles(tpots),
        per_user_tok_s=1000.0 / statistics.median(tpots),
    )


def quantiles(values: Sequence[float]) -> record.Quantiles:
    """Quantiles as the record defines them: p99 only from 100 values on."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]

    return record.Quantiles(
        n=len(ordered),
        mean=statistics.fmean(ordered),
        median=statistics.median(ordered),
        p90=at(0.9),
        p99=at(0.99) if len(ordered) >= 100 else None,
        min=ordered[0],
        max=ordered[-1],
    )


_BLOCK_LINES = 8_000


def write_log(path: Path, mib: float, seed: str, failure: record.Failure | None) -> None:
    """Write a gzipped engine log of about `mib` MiB uncompressed, its failure at the end.

    One block of lines is made and compressed once and repeated as gzip members: a gigabyte takes a second.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    block = "".join(_log_line(rng, number) for number in range(_BLOCK_LINES)).encode()
    member = gzip.compress(block, 6)
    with path.open("wb") as out:
        for _ in range(max(1, round(mib * 1024 * 1024 / len(block)))):
            out.write(member)
        tail = _log_line(rng, 0)
        if failure is not None:
            tail += "Traceback (most recent call last):\n" + failure.evidence[0].text + "\n"
        out.write(gzip.compress(tail.encode(), 6))


def _log_line(rng: random.Random, number: int) -> str:
    stamp = f"[2026-09-01 10:{number // 60 % 60:02d}:{number % 60:02d} TP{number % 8}]"
    if number % 40 == 7:
        return f'{stamp} INFO:     127.0.0.1:{rng.randint(30000, 60000)} - "POST /v1/completions HTTP/1.1" 200 OK\n'
    if number % 40 == 9:
        return f"{stamp} Prefill batch, #new-seq: 1, #new-token: {rng.randint(20, 900)}, #queue-req: 0\n"
    return (
        f"{stamp} Decode batch, #running-req: {rng.randint(1, 128)}, #token: {rng.randint(100, 90000)}, "
        f"token usage: {rng.random():.2f}, accept len: {rng.uniform(1, 5):.2f}, cuda graph: True, "
        f"gen throughput (token/s): {rng.uniform(100, 5000):.2f}, #queue-req: 0\n"
    )


def plan_of_cells(cells: int, plan: Plan) -> Plan:
    """A plan with about `cells` cells: more concurrencies first, then budgets, then repeats."""
    concurrencies = (1, 2, 4, 8, 16, 32, 64, 128)
    budgets = tuple(range(2, 2 + 24)) if cells >= 1000 else (4, 8, 16, 32)
    per_repeat = len(concurrencies) * (len(budgets) + 1)
    repeats = max(1, round(cells / per_repeat))
    return replace(plan, concurrencies=concurrencies, budgets=budgets, repeats=repeats)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="results folder to write the sweep into")
    parser.add_argument("--cells", type=int, default=0, help="about how many cells (default: a small sweep)")
    parser.add_argument("--requests", type=int, default=24, help="requests of one cell")
    parser.add_argument("--log-mib", type=float, default=0.0, help="uncompressed log of all restarts, MiB")
    parser.add_argument("--largest-product", type=float, default=math.inf, help="max_running x width that runs")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    plan = Plan(requests=given.requests, seed=given.seed)
    if given.cells:
        plan = plan_of_cells(given.cells, plan)
    restarts = len(list(_restarts(plan.hosts[0], plan)))
    plan = replace(plan, log_mib=given.log_mib / restarts)
    folder = write_sweep(given.out, plan, Truth(largest_product=given.largest_product))
    sys.stdout.write(f"{folder}: {restarts} restarts, {restarts * len(plan.concurrencies)} cells\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
