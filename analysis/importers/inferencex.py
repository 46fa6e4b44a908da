"""InferenceX's client: times in seconds, in fields that carry no unit."""

from __future__ import annotations

from analysis.importers.source import Imported, Place, Row, cell, need, per_user, positive, quantiles, settle, whole

TOOL = "InferenceX"


def matches(row: Row) -> bool:
    return "median_ttft" in row and "median_tpot" in row and "output_throughput" in row


def convert(row: Row, place: Place) -> Imported:
    completed = int(need(row, "completed"))
    asked = whole(row.get("num_prompts")) or completed
    concurrency = whole(row.get("max_concurrency"))
    remarks = [
        "times converted from seconds",
        "the file does not say which server, speculation or settings it measured: compared with nothing",
    ]
    if not concurrency:
        remarks.append("no concurrency limit in the file: the number of prompts is given")
    tpot = quantiles(row, "tpot", completed, 1000.0, "")
    made = cell(
        place,
        TOOL,
        label=str(row.get("model_id") or place.path.stem),
        engine="not recorded",
        model=str(row.get("model_id") or ""),
        method="unknown",
        budget=0,
        concurrency=concurrency or max(1, asked),
        prompts="not recorded",
        window_s=positive(row.get("duration")),
        requests_asked=asked,
        requests_completed=completed,
        requests_failed=max(0, asked - completed),
        prompt_tokens_total=whole(row.get("total_input_tokens")),
        output_tokens_total=whole(row.get("total_output_tokens")),
        system_tok_s=positive(row.get("output_throughput")),
        ttft_ms=quantiles(row, "ttft", completed, 1000.0, ""),
        tpot_ms=tpot,
        e2e_ms=quantiles(row, "e2el", completed, 1000.0, ""),
        per_user_tok_s=per_user(tpot),
        remarks=remarks,
    )
    imported = Imported()
    imported.add(settle(made))
    return imported
