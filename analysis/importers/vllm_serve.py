"""`vllm bench serve`: one JSON a run.  A run in which every request failed is stored as zeros."""

from __future__ import annotations

from typing import Any

from analysis.importers.source import (
    Imported,
    Place,
    Row,
    cell,
    fail,
    finite,
    need,
    per_user,
    positive,
    quantiles,
    settle,
    step_time,
    whole,
)
from specsweep import record

TOOL = "vllm bench serve"


def matches(row: Row) -> bool:
    return (
        "output_throughput" in row
        and "completed" in row
        and "median_ttft_ms" in row
        and "total_output_tokens_retokenized" not in row
        and ("num_prompts" in row or "failed" in row)
    )


def convert(row: Row, place: Place) -> Imported:
    imported = Imported()
    imported.add(run(row, place, identity(row, place)))
    return imported


def identity(row: Row, place: Place) -> dict[str, Any]:
    """What the run itself tells of the server it measured."""
    base = {"engine": "vllm", "model": str(row.get("model_id") or "")}
    rates = row.get("spec_decode_per_position_acceptance_rates")
    speculates = any(str(name).startswith("spec_decode_") for name in row)
    if not speculates:
        return {**base, "label": "none", "method": "none", "budget": 0, "verify_width": 1, "baseline": True}
    budget = len(rates) if isinstance(rates, list) and rates else 0
    if not budget:
        settings = {"file": place.path.stem}
        return {**base, "label": place.path.stem, "method": "unknown", "budget": 0, "settings": settings}
    return {
        **base,
        "label": f"speculative b{budget}",
        "method": "speculative",
        "budget": budget,
        "candidates": budget,
        "verify_width": budget + 1,
    }


def run(row: Row, place: Place, known: dict[str, Any]) -> record.Cell:
    """One run as a cell; `known` is its configuration."""
    completed = int(need(row, "completed"))
    remarks: list[str] = []
    if known["method"] == "none" and not known.get("settings"):
        remarks.append("no counters of speculation in the file: taken as a server without it")
    failed = whole(row.get("failed"))
    asked = whole(row.get("num_prompts")) or completed + (failed or 0)
    if failed is None:
        failed = max(0, asked - completed)
    tpot = quantiles(row, "tpot", completed)
    made = cell(
        place,
        TOOL,
        **known,
        concurrency=_concurrency(row, remarks),
        prompts=_prompts(row),
        window_s=positive(row.get("duration")),
        requests_asked=asked,
        requests_completed=completed,
        requests_failed=failed,
        prompt_tokens_total=whole(row.get("total_input_tokens")),
        output_tokens_total=whole(row.get("total_output_tokens")),
        system_tok_s=positive(row.get("output_throughput")),
        ttft_ms=quantiles(row, "ttft", completed),
        tpot_ms=tpot,
        e2e_ms=quantiles(row, "e2el", completed),
        per_user_tok_s=per_user(tpot),
        acceptance=_acceptance(row, remarks),
        remarks=remarks,
    )
    step_time(made)
    if completed == 0:
        return fail(
            made,
            f"no request completed of {asked}: the zeros of this file are no measurement",
            "bench.all_requests_failed",
        )
    return settle(made)


def _concurrency(row: Row, remarks: list[str]) -> int:
    asked = whole(row.get("max_concurrency"))
    if asked:
        return asked
    # The rate is text here, "inf" when all requests go at once.
    rate = row.get("request_rate")
    peak = finite(row.get("max_concurrent_requests"))
    remarks.append(f"no concurrency limit (request rate {rate}): the concurrency is the largest seen")
    return max(1, round(peak or finite(row.get("num_prompts")) or 1))


def _prompts(row: Row) -> str:
    name = str(row.get("dataset_name") or "not recorded")
    rate = row.get("request_rate")
    return name if rate in (None, "inf") or row.get("max_concurrency") else f"{name}, {rate} requests/s"


def _acceptance(row: Row, remarks: list[str]) -> record.Acceptance | None:
    drafts = whole(row.get("spec_decode_num_drafts"))
    accepted = whole(row.get("spec_decode_accepted_tokens", row.get("spec_decode_num_accepted_tokens")))
    drafted = whole(row.get("spec_decode_draft_tokens", row.get("spec_decode_num_draft_tokens")))
    length = positive(row.get("spec_decode_acceptance_length"))
    tokens = whole(row.get("total_output_tokens"))
    rates = row.get("spec_decode_per_position_acceptance_rates")
    if length is None and accepted is None and not isinstance(rates, list):
        return None
    made = record.Acceptance(
        estimator="run: output tokens / (output tokens - accepted tokens)",
        scope="cell",
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        length_of_drafted_steps=length,
    )
    if drafts and isinstance(rates, list):
        made.accepted_per_position = [round(drafts * rate) for rate in rates if finite(rate) is not None]
    if tokens and accepted is not None and tokens > accepted:
        # vLLM's own length skips the steps without a draft; every token that was not accepted cost a step.
        made.tokens, made.steps = tokens, float(tokens - accepted)
        made.al_token_weighted = tokens / (tokens - accepted)
    elif length:
        made.estimator = "none: the file has only 1 + accepted / drafts"
        remarks.append("this acceptance length skips steps without a draft: given as length of drafted steps")
    return made
