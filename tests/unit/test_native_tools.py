"""Native load tools: their command lines, flag by flag, and the cross-check's plan and table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from specsweep import crosscheck, engine, plan, record
from specsweep.controller.measuring import native_part, native_rules
from specsweep.variables import normalise

STATE = {
    "remote": "/h/runs/s/c/r1",
    "url": "http://127.0.0.1:30000",
    "names": {"model": "/m/kimi", "engine_python": "/e/python"},
}
ITEMS = [{"id": "a", "category": "code", "prompt": 'say {"x": {budget}}'}, {"id": "b", "category": "qa", "prompt": "b"}]


def rendered(profile: str, tool: str = "", **variables: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tool's part of a load point, and its flags with their values (True: no value)."""
    sweep = record.Sweep(sweep_id="s", created_unix_s=0.0, variables=normalise(variables))
    part = native_part(engine.native_tool(engine.load(profile), tool), STATE, sweep, "c8", 8, ITEMS)
    flags: dict[str, Any] = {}
    words = part["arguments"]
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            flags[word] = True if after.startswith("--") else after
    return part, flags


def test_sglang_flag_by_flag() -> None:
    """Names as in the arguments that its recorded runs logged."""
    part, flags = rendered("sglang", output_tokens=64, temperature=0.5, seed=7)
    assert flags == {
        "--backend": "sglang",
        "--base-url": "http://127.0.0.1:30000",
        "--model": "/m/kimi",
        "--tokenizer": "/m/kimi",
        "--dataset-name": "custom",
        "--dataset-path": "/h/runs/s/c/r1/tool/c8.jsonl",
        "--sharegpt-output-len": "64",
        "--num-prompts": "2",
        "--request-rate": "inf",
        "--max-concurrency": "8",
        "--warmup-requests": "0",
        "--temperature": "0.5",
        "--seed": "7",
        "--output-file": "/h/runs/s/c/r1/evidence/c8/result.jsonl",
        "--output-details": True,
        "--disable-tqdm": True,
        "--tag": "asked 2",
    }
    assert part["result_file"] == flags["--output-file"]
    # Its custom data set takes conversations of at least two turns, and sends the first.
    turns = part["prompts"][0]["conversations"]
    assert len(turns) == 2 and turns[0]["content"] == ITEMS[0]["prompt"]
    assert "--disable-ignore-eos" in rendered("sglang", output_mode="natural")[1]


def test_sglangs_flags_are_those_of_a_recorded_run() -> None:
    # The benchmark_args of a recorded 0.5.17 run, without the values.
    known = re.findall(
        r"\w+",
        "backend base_url dataset_name dataset_path model served_model_name tokenizer num_prompts sharegpt_output_len "
        "request_rate max_concurrency output_file output_details disable_tqdm disable_stream seed disable_ignore_eos "
        "temperature top_p extra_request_body flush_cache warmup_requests tag header",
    )
    tool = engine.native_tool(engine.load("sglang"))
    assert {flag.lstrip("-").replace("-", "_") for flag in tool.arguments} <= set(known)


def test_vllm_flag_by_flag() -> None:
    part, flags = rendered("vllm", output_tokens=64)
    assert flags == {
        "--backend": "vllm",
        "--base-url": "http://127.0.0.1:30000",
        "--model": "/m/kimi",
        "--served-model-name": "specsweep",
        "--tokenizer": "/m/kimi",
        "--dataset-name": "custom",
        "--dataset-path": "/h/runs/s/c/r1/tool/c8.jsonl",
        "--output-len": "64",
        "--skip-chat-template": True,
        "--no-oversample": True,
        "--num-prompts": "2",
        "--request-rate": "inf",
        "--max-concurrency": "8",
        "--num-warmups": "0",
        "--ignore-eos": True,
        "--temperature": "0.0",
        "--save-result": True,
        "--save-detailed": True,
        "--result-dir": "/h/runs/s/c/r1/evidence/c8",
        "--result-filename": "result.json",
    }
    assert part["prompts"][0] == {"prompt": ITEMS[0]["prompt"], "output_tokens": 64}
    assert "--ignore-eos" not in rendered("vllm", output_mode="natural")[1]


@pytest.mark.parametrize(
    ("profile", "model"), [("sglang", "/m/kimi"), ("vllm", "specsweep"), ("llamacpp", "specsweep")]
)
def test_aiperf_flag_by_flag(profile: str, model: str) -> None:
    """Names as in the help of AIPerf 0.13, which was run with them against llama.cpp's server."""
    part, flags = rendered(profile, "aiperf", output_tokens=64)
    inputs = json.loads(flags.pop("--extra-inputs"))
    assert inputs == {"max_tokens": 64, "temperature": 0.0, "ignore_eos": True}
    assert flags.pop("--tokenizer") == ("builtin" if profile == "llamacpp" else "/m/kimi")
    # This server closes connections that it announced to keep.
    assert flags.pop("--connection-reuse-strategy", None) == ("never" if profile == "llamacpp" else None)
    assert flags == {
        "--model": model,
        "--url": "http://127.0.0.1:30000",
        "--endpoint-type": "completions",
        "--streaming": True,
        "--use-server-token-count": True,
        "--input-file": "/h/runs/s/c/r1/tool/c8.jsonl",
        "--custom-dataset-type": "single_turn",
        "--dataset-sampling-strategy": "sequential",
        "--request-count": "2",
        "--concurrency": "8",
        "--output-artifact-dir": "/h/runs/s/c/r1/evidence/c8",
        "--ui": "none",
    }
    assert part["prompts"][1] == {"text": "b"}
    assert part["result_file"] == "/h/runs/s/c/r1/evidence/c8/profile_export.jsonl"


def test_how_a_host_finds_the_tool() -> None:
    rules = native_rules(engine.native_tool(engine.load("sglang")), STATE["names"])
    assert rules["commands"] == [
        ["/e/python", "-m", "sglang.benchmark.serving"],
        ["/e/python", "-m", "sglang.bench_serving"],
    ]
    assert "--output-details" in rules["flags"]


def test_an_unknown_tool_is_one_line() -> None:
    with pytest.raises(engine.EngineError, match=r"expected a native load tool of vllm \(vllm bench serve, "):
        plan.make(normalise({"engine": "vllm", "model": "/m", "load_driver": "native", "load_tool": "wrk"}))


def test_a_cross_check_deals_every_side_its_own_prompts() -> None:
    variables = normalise({"engine": "sglang", "model": "/m", "budgets": [8], "requests": 6, "concurrencies": [1, 4]})
    plain = plan.make(variables)
    both = plan.make({**variables, "load_driver": plan.CROSSCHECK})
    assert (plain.load_tool, both.load_tool) == (None, "sglang.benchmark.serving")
    # Our client's slices are those of any other plan; the tool's are unseen.
    assert [point.load_prompts for point in both.load_points] == [point.load_prompts for point in plain.load_points]
    sent = [
        position
        for point in both.load_points
        for part in (point.warmup_prompts, point.load_prompts, point.tool_warmup_prompts, point.tool_load_prompts)
        for position in part
    ]
    assert len(sent) == len(set(sent)) == 2 * (1 + 6 + 4 + 8)


def cell(source: str, **changes: Any) -> record.Cell:
    fields: dict[str, Any] = {
        "cell_id": source,
        "sweep_id": "s",
        "host": "h",
        "configuration_id": "c",
        "label": "ngram b8",
        "source": source,
        "engine": "sglang",
        "method": "ngram",
        "budget": 8,
        "concurrency": 8,
        "output_tokens": 64,
        "requests_asked": 16,
        "requests_completed": 16,
        "status": "ok",
        "system_tok_s": 400.0,
        "ttft_ms": record.Quantiles(n=16, median=40.0),
        "tpot_ms": record.Quantiles(n=16, median=10.0),
        "acceptance": record.Acceptance(estimator="e", al_token_weighted=2.0),
    }
    return record.Cell(**{**fields, **changes})


def test_the_table_shows_both_and_their_ratio() -> None:
    other = cell("bench", system_tok_s=300.0, ttft_ms=record.Quantiles(n=16, median=41.0), remarks=["told"])
    lines = crosscheck.table([cell("specsweep")], [other]).splitlines()
    assert lines[0] == "concurrency 8, 16 requests each, of 64 tokens"
    assert lines[2].split() == ["system", "tok/s", "400", "300", "0.750", "apart"]
    assert lines[3].split() == ["TTFT", "ms,", "median", "40", "41", "1.025"]
    assert lines[6].split() == ["acceptance", "length", "2", "2", "1.000"]
    assert "  bench: told" in lines


def test_the_table_makes_no_ratio_of_a_failure() -> None:
    other = cell("bench", status="failed", reason="it lost its results", system_tok_s=None, acceptance=None)
    text = crosscheck.table([cell("specsweep")], [other])
    assert "  bench: failed: it lost its results" in text.splitlines()
    assert "1.000" not in text and "0.000" not in text
