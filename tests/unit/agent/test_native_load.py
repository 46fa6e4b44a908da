"""Native load tools: what their recorded results are worth, and that no way of ending hides what happened."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from specsweep_agent import load_client, native_load, procfs

from tests.unit.agent.stand_in import StandIn
from tests.unit.agent.test_load_client import items, job, point, requests, run

TESTS = Path(__file__).parents[2]
RECORDED = TESTS / "data" / "imports"
STAND_IN = [sys.executable, str(TESTS / "stand_in_tool.py")]
TOOL = {"name": "stand-in", "form": "details", "commands": [STAND_IN], "help": ["--help"], "flags": ["--output-file"]}


def part(folder: Path, asked: int = 4, tokens: int = 8) -> dict[str, Any]:
    result = folder / "out" / "result.jsonl"
    return {
        "arguments": ["--output-file", str(result)],
        "prompts": [{"text": f"prompt {n}"} for n in range(asked)],
        "prompts_file": str(folder / "in" / "prompts.jsonl"),
        "result_file": str(result),
        "output_tokens": tokens,
        "exact": True,
    }


def measured(folder: Path, mode: str | Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    monkeypatch.setenv("STAND_IN", str(mode))
    given = part(folder, **changes)
    return asyncio.run(native_load.measure(TOOL, STAND_IN, given, folder / "out", 30.0))


def counted(requests: int, tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"requests": 10, "output_tokens": 1000}, {"requests": 10 + requests, "output_tokens": 1000 + tokens}


def test_half_of_the_requests_fail_and_the_status_is_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, RECORDED / "sglang_stand_in_half.jsonl", monkeypatch)
    assert [record["ok"] for record in found["records"]] == [True, False, True, False]
    assert "KV cache full" in found["records"][1]["error"]
    assert found["records"][0]["ttft_ms"] == pytest.approx(2.8, abs=0.001)
    assert found["window_s"] == pytest.approx(0.00713524699995105)
    told = native_load.judge(found, *counted(4, 16))
    assert (told["failed"], told["void"]) == ("", "")
    assert "it ended with status 0 although 2 of 4 requests failed" in told["remarks"]


@pytest.mark.parametrize("name", ["sglang_stand_in_errchunk", "sglang_stand_in_abort"])
def test_phantom_successes_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = measured(tmp_path, RECORDED / f"{name}.jsonl", monkeypatch)
    # The tool says: 4 completed, 32 tokens.
    assert found["native"]["claimed_tokens"] == 32
    assert [(record["ok"], record["phantom"]) for record in found["records"]] == [(False, True)] * 4
    assert "counted as a success of 8 tokens" in found["records"][0]["error"]
    told = native_load.judge(found, *counted(4, 0))
    assert "claims 32 output tokens, and their texts have none" in told["void"]


def test_the_servers_counter_beats_the_tools_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, RECORDED / "sglang_stand_in_half.jsonl", monkeypatch)
    assert native_load.judge(found, *counted(4, 16))["void"] == ""
    assert "claims 16 output tokens, the server counted 8" in native_load.judge(found, *counted(4, 8))["void"]
    # Without counters nothing can be said.
    assert native_load.judge(found, {}, {})["void"] == ""


def test_a_good_recorded_run_has_no_complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = RECORDED / "sglang_0.5.17" / "ngram_b8_k4_c8.jsonl"
    row = json.loads(path.read_text().split("\n")[0])
    found = measured(tmp_path, path, monkeypatch, asked=row["completed"], tokens=128)
    assert all(record["ok"] for record in found["records"])
    tokens = sum(record["output_tokens"] for record in found["records"])
    assert tokens / found["window_s"] == pytest.approx(row["output_throughput"])
    tpots = sorted(record["tpot_ms"] for record in found["records"])
    half = len(tpots) // 2
    assert (tpots[half - 1] + tpots[half]) / 2 == pytest.approx(row["median_tpot_ms"], rel=0.01)
    told = native_load.judge(found, *counted(row["completed"], tokens))
    assert (told["failed"], told["void"]) == ("", "")
    # 1.98 and the like: of the server's whole life, so it is told and not used.
    assert any(f"{row['accept_length']:.2f} is the server's since the last flush" in text for text in told["remarks"])


@pytest.mark.parametrize(
    ("mode", "status", "line"),
    [
        ("all_fail", 1, "IndexError: index -1 is out of bounds for axis 0 with size 0"),
        ("dies", 1, "ConnectionError: HTTPConnectionPool: Max retries exceeded with url: /server_info"),
        ("silent", 0, "its log is empty"),
    ],
)
def test_a_missing_result_file_is_a_failure_that_says_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, status: int, line: str
) -> None:
    found = measured(tmp_path, mode, monkeypatch)
    assert [record["error"] for record in found["records"]] == ["its result is lost"] * 4
    told = native_load.judge(found, *counted(3, 24))
    assert told["failed"] == (
        f"stand-in ended with status {status} and left no result file: {line}; "
        "lost: the server counted 3 requests and 24 output tokens"
    )
    assert "lost" not in native_load.judge(found, *counted(0, 0))["failed"]


def test_a_cut_result_file_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, "cut", monkeypatch)
    assert "a result file that cannot be read" in native_load.judge(found, {}, {})["failed"]


def test_what_the_tool_did_not_send_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, RECORDED / "sglang_stand_in_half.jsonl", monkeypatch, asked=6)
    assert [record["error"] for record in found["records"]][4:] == ["the tool did not send it"] * 2


def test_an_answer_of_another_length_is_not_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, RECORDED / "sglang_stand_in_half.jsonl", monkeypatch, tokens=9)
    assert found["records"][0]["error"] == "ended after 8 of exactly 9 tokens"


def test_a_tool_that_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hangs")
    monkeypatch.setattr(native_load, "END_S", 0.2)
    found = asyncio.run(native_load.measure(TOOL, STAND_IN, part(tmp_path), tmp_path / "out", 1.5))
    assert found["interrupted"] == "not done within 1.5 s"
    pid = int((tmp_path / "out" / "tool.log").read_text())
    deadline = time.monotonic() + 3
    while procfs.alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not procfs.alive(pid)


def test_the_tool_is_found_by_its_help() -> None:
    gone = ["/no/such/tool", "serve"]
    assert asyncio.run(native_load.find({**TOOL, "commands": [gone, STAND_IN]})) == STAND_IN
    with pytest.raises(native_load.ToolError, match=r"on this host \(/no/such/tool serve: .*No such file"):
        asyncio.run(native_load.find({**TOOL, "commands": [gone]}))
    with pytest.raises(native_load.ToolError, match="this build does not know --output-files"):
        asyncio.run(native_load.find({**TOOL, "flags": ["--output-files", "--tag"]}))
    module = [sys.executable, "-m", "no_such_module"]
    with pytest.raises(native_load.ToolError, match="No module named no_such_module"):
        asyncio.run(native_load.find({**TOOL, "commands": [module]}))


def test_the_tools_environment_is_not_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/home/site")
    monkeypatch.setenv("no_proxy", "example.org")
    found = native_load.environment()
    assert "PYTHONPATH" not in found and found["no_proxy"] == "example.org,127.0.0.1,localhost"


def aiperf_line(number: int, phase: str = "profiling", **changes: Any) -> str:
    """One line of AIPerf's profile_export.jsonl as version 0.13 writes it; its numbers are made up."""
    start = 1_000_000_000_000 + number * 500_000_000
    metrics = {
        "time_to_first_token": {"value": 45.5, "unit": "ms"},
        "request_latency": {"value": 0.9, "unit": "sec"},
        "output_sequence_length": {"value": 8, "unit": "tokens"},
        "input_sequence_length": {"value": 50, "unit": "tokens"},
    }
    row = {
        "metadata": {"request_start_ns": start, "request_end_ns": start + 900_000_000, "benchmark_phase": phase},
        "metrics": metrics,
        "error": None,
    }
    return json.dumps({**row, **changes})


def test_the_records_of_aiperf(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    failed = aiperf_line(2, metrics={}, error={"code": 500, "message": "no memory"})
    phantom = aiperf_line(3, metrics={"request_latency": {"value": 3.0, "unit": "ms"}})
    path.write_text("\n".join([aiperf_line(0, "warmup"), aiperf_line(1), failed, phantom]) + "\n")
    found = native_load.read("aiperf", path)
    good, bad, empty = found["requests"]
    assert (good["ttft_ms"], good["e2e_ms"], good["output_tokens"]) == (45.5, 900.0, 8)
    assert good["tpot_ms"] == pytest.approx((900 - 45.5) / 7, abs=1e-4)
    assert (bad["ok"], bad["error"], bad["phantom"]) == (False, "no memory", False)
    assert (empty["ok"], empty["phantom"]) == (False, True)
    assert found["duration_s"] == pytest.approx(1.9)


# Through the load client


def test_the_client_warms_up_and_counts_around_the_tool(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.listen()
    monkeypatch.setenv("STAND_IN", str(RECORDED / "sglang_stand_in_half.jsonl"))
    folder = tmp_path / "evidence" / "tool-c2"
    native = {**part(tmp_path), "result_file": str(folder / "result.jsonl")}
    native["arguments"] = ["--output-file", native["result_file"]]
    points = [
        {"id": "c2", "concurrency": 2, "warmup": items(2, "w"), "load": items(4)},
        {"id": "tool-c2", "concurrency": 2, "warmup": items(2, "v"), "native": native},
    ]
    told = run(job(stand_in, tmp_path, points=points, tool=TOOL))
    assert (told["state"], told["points"]) == ("done", {"c2": "done", "tool-c2": "done"})
    assert all(record["ok"] for record in requests(tmp_path))
    assert "client" not in point(tmp_path)
    assert point(tmp_path, "tool-c2")["client"] == "stand-in"
    assert len(requests(tmp_path, "tool-c2", warmup=True)) == 2
    assert [record["ok"] for record in requests(tmp_path, "tool-c2")] == [True, False, True, False]
    assert {path.name for path in folder.iterdir()} == {"argv.json", "tool.log", "result.jsonl"}
    assert len((tmp_path / "in" / "prompts.jsonl").read_text().splitlines()) == 4


def test_a_tool_that_the_host_lacks_costs_its_points_only(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.listen()
    points = [
        {"id": "tool-c2", "concurrency": 2, "warmup": items(2, "v"), "native": part(tmp_path)},
        {"id": "c2", "concurrency": 2, "warmup": items(2, "w"), "load": items(4)},
    ]
    told = run(job(stand_in, tmp_path, points=points, tool={**TOOL, "commands": [["/no/such/tool"]]}))
    assert told["state"] == "done"
    assert "stand-in cannot be used on this host" in point(tmp_path, "tool-c2")["failed"]
    assert {record["ok"] for record in requests(tmp_path, "tool-c2")} == {False}
    assert all(record["ok"] for record in requests(tmp_path))


def test_an_end_from_outside_ends_the_tool_too(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.listen()
    monkeypatch.setenv("STAND_IN", "hangs")
    monkeypatch.setattr(native_load, "END_S", 0.2)
    folder = tmp_path / "evidence" / "tool-c2"
    points = [{"id": "tool-c2", "concurrency": 2, "warmup": items(2, "v"), "native": part(tmp_path)}]
    client = load_client.Client(job(stand_in, tmp_path, points=points, tool=TOOL))

    async def ended() -> None:
        task = asyncio.ensure_future(client.run())
        log = folder / "tool.log"
        while not (log.exists() and log.read_text()):
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(ended(), 30))
    assert not procfs.alive(int((folder / "tool.log").read_text()))
    assert point(tmp_path, "tool-c2")["interrupted"] == "ended from outside"
    assert {record["error"] for record in requests(tmp_path, "tool-c2")} == {"its result is lost"}
