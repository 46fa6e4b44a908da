"""`sglang.bench_serving` and `sglang.benchmark.serving`: JSON lines, one run a row, several runs a file.

Old rows have no `server_info` and do not say what server they measured.  `accept_length` is the average of
the server's first rank since its last flush, not of the run.
"""

from __future__ import annotations

import statistics
from typing import Any

from analysis.importers.source import (
    Imported,
    Place,
    Row,
    cell,
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

TOOL = "sglang.bench_serving"


def matches(row: Row) -> bool:
    return "output_throughput" in row and "median_ttft_ms" in row and "total_output_tokens_retokenized" in row


def convert(row: Row, place: Place) -> Imported:
    completed = int(need(row, "completed"))
    remarks: list[str] = []
    server = row.get("server_info") if isinstance(row.get("server_info"), dict) else None
    identity = _identity(row, server, place, remarks)
    errors = row.get("errors") if isinstance(row.get("errors"), list) else None
    failed = sum(1 for error in errors if error) if errors is not None else 0
    if errors is None:
        remarks.append("no details in this row: failed requests cannot be told from requests never sent")
    tpot = quantiles(row, "tpot", completed)
    made = cell(
        place,
        TOOL,
        **identity,
        concurrency=_concurrency(row, remarks),
        prompts=_prompts(row),
        output_tokens=whole(row.get("random_output_len")) or whole(row.get("sharegpt_output_len")),
        window_s=positive(row.get("duration")),
        requests_asked=len(errors) if errors is not None else completed,
        requests_completed=completed,
        requests_failed=failed,
        prompt_tokens_total=whole(row.get("total_input_tokens")),
        output_tokens_total=whole(row.get("total_output_tokens")),
        system_tok_s=positive(row.get("output_throughput")),
        running_mean=positive(row.get("concurrency")),
        ttft_ms=quantiles(row, "ttft", completed),
        tpot_ms=tpot,
        e2e_ms=quantiles(row, "e2e_latency", completed),
        per_user_tok_s=per_user(tpot),
        acceptance=_acceptance(row, remarks),
        remarks=remarks,
    )
    made.phantom_successes = _phantoms(row, completed)
    step_time(made)
    imported = Imported()
    settle(made)
    imported.add(made, _requests(row, made.status == "ok"), _launch(server))
    return imported


def _launch(server: Row | None) -> Any:
    """What tells one launch of the server from the next: its random seed, drawn at every launch."""
    return server.get("random_seed") if server else None


def _identity(row: Row, server: Row | None, place: Place, remarks: list[str]) -> dict[str, Any]:
    tag = str(row.get("tag") or "")
    if server is None or "speculative_algorithm" not in server:
        remarks.append("the row does not say which server and settings it measured: compared with nothing")
        name = tag or place.path.stem
        return {
            "label": name,
            "engine": "sglang",
            "engine_version": server.get("version") if server else None,
            "model": "",
            "method": "unknown",
            "budget": 0,
            "settings": {"file": name},
        }
    algorithm = server.get("speculative_algorithm")
    method = str(algorithm).lower() if algorithm else "none"
    budget = whole(server.get("speculative_num_draft_tokens")) or 0 if algorithm else 0
    topk = whole(server.get("speculative_eagle_topk")) if algorithm else None
    settings: dict[str, Any] = {}
    if algorithm and server.get("speculative_num_steps") is not None:
        settings["steps"] = server["speculative_num_steps"]
    return {
        "label": f"{method} b{budget}" + (f" k{topk}" if topk is not None else "") if algorithm else "none",
        "engine": "sglang",
        "engine_version": server.get("version"),
        "model": str(server.get("model_path") or ""),
        "drafter": server.get("speculative_draft_model_path") if algorithm else None,
        "method": method,
        "budget": budget,
        "topk": topk,
        # In SGLang's own count the budget is the width: the root of the tree is one of the draft tokens.
        "verify_width": budget if algorithm else 1,
        "candidates": budget - 1 if algorithm else 0,
        "max_running": whole(server.get("max_running_requests")),
        "settings": settings,
        "baseline": not algorithm,
    }


def _concurrency(row: Row, remarks: list[str]) -> int:
    asked = whole(row.get("max_concurrency"))
    if asked:
        return asked
    rate = finite(row.get("request_rate"))
    shape = f"an open loop at {rate:g} requests/s" if rate is not None else "all requests at once"
    remarks.append(f"{shape}: the concurrency is the measured mean, rounded")
    return max(1, round(finite(row.get("concurrency")) or 1))


def _prompts(row: Row) -> str:
    name = str(row.get("dataset_name") or "not recorded")
    if name.startswith("random"):
        name += f" {row.get('random_input_len')}/{row.get('random_output_len')}"
    rate = finite(row.get("request_rate"))
    return name if rate is None else f"{name}, {rate:g} requests/s"


def _acceptance(row: Row, remarks: list[str]) -> record.Acceptance | None:
    details = row.get("speculative_decoding_stats")
    if isinstance(details, dict) and isinstance(details.get("requests"), list):
        lengths = [
            [float(value) for value in request["stats"]["accept_lengths"]]
            for request in details["requests"]
            if request.get("stats", {}).get("accept_lengths")
        ]
        if lengths:
            flat = [value for values in lengths for value in values]
            remarks.append("AL from the row's accept_lengths; that they count the bonus token is not confirmed")
            return record.Acceptance(
                estimator="request: mean of accept_lengths",
                scope="cell",
                steps=float(len(flat)),
                al_token_weighted=statistics.fmean(flat),
                al_request_weighted=statistics.fmean(statistics.fmean(values) for values in lengths),
            )
    lifetime = positive(row.get("accept_length"))
    if lifetime is None:
        return None
    remarks.append("accept_length is the server's average since its last flush (first rank), not this run's")
    return record.Acceptance(
        estimator="engine: average since the last flush", scope="server_lifetime", al_token_weighted=lifetime
    )


def _phantoms(row: Row, completed: int) -> int:
    """Successes without a token: an aborted stream counts as one in these files."""
    texts, errors = row.get("generated_texts"), row.get("errors")
    if isinstance(texts, list) and isinstance(errors, list) and len(texts) == len(errors):
        return sum(1 for text, error in zip(texts, errors, strict=True) if not text and not error)
    tokens, retokenized = whole(row.get("total_output_tokens")), row.get("total_output_tokens_retokenized")
    return completed if tokens and retokenized == 0 else 0


def _requests(row: Row, good: bool) -> list[record.Request]:
    lists = [row.get(name) for name in ("input_lens", "output_lens", "ttfts", "itls", "errors")]
    if not all(isinstance(values, list) for values in lists) or len({len(values or []) for values in lists}) != 1:
        return []
    made = []
    for index, (prompt, output, ttft, itls, error) in enumerate(zip(*(values or [] for values in lists), strict=True)):
        e2e = (ttft + sum(itls)) * 1000.0
        ok = good and not error and output > 0
        made.append(
            record.Request(
                id=str(index),
                prompt_id=f"{index}/{prompt}",
                category="",
                sent_s=0.0,
                ttft_ms=ttft * 1000.0 if ok else None,
                e2e_ms=e2e if ok else None,
                tpot_ms=sum(itls) * 1000.0 / (output - 1) if ok and output > 1 else None,
                prompt_tokens=prompt,
                output_tokens=output,
                ok=ok,
                error=error or None,
            )
        )
    return made
