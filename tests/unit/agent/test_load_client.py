"""The load client against a made-up engine over real sockets: what counts as an answer, and what is kept."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specsweep_agent import load_client
from specsweep_agent.generate import PLACEHOLDER

from tests.unit.agent.stand_in import DIALECT, Exchange, StandIn, answer, event

AGENT = Path(load_client.__file__).parents[1]


def items(count: int, prefix: str = "p") -> list[dict[str, str]]:
    return [{"id": f"{prefix}{n}", "category": "code", "prompt": f"prompt {prefix}{n}"} for n in range(count)]


def job(stand_in: StandIn, folder: Path, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "folder": str(folder),
        "url": stand_in.url,
        "headers": {},
        "dialect": {**DIALECT, **changes.pop("dialect", {})},
        "body": {"prompt": PLACEHOLDER},
        "exact": True,
        "max_tokens": 4,
        "speculative": True,
        "request_timeout_s": 20.0,
        "point_timeout_s": 30.0,
        "points": [{"id": "c2", "concurrency": 2, "warmup": items(2, "w"), "load": items(6)}],
        **changes,
    }
    return given


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Run a job in this process; its status file."""
    client = load_client.Client(given)
    client.tell()
    asyncio.run(client.run())
    return status(Path(given["folder"]))


def status(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "status.json").read_text()))


def point(folder: Path, name: str = "c2") -> dict[str, Any]:
    return dict(json.loads((folder / "points" / f"{name}.json").read_text()))


def requests(folder: Path, name: str = "c2", warmup: bool = False) -> list[dict[str, Any]]:
    with gzip.open(folder / "requests" / f"{name}.jsonl.gz", "rt") as lines:
        return [record for record in map(json.loads, lines) if record["warmup"] is warmup]


def one(stand_in: StandIn, folder: Path, post: Callable[[Exchange], None], **changes: Any) -> dict[str, Any]:
    """The record of a single measured request."""
    stand_in.post = lambda exchange, _: post(exchange)
    stand_in.listen()
    points = [{"id": "c1", "concurrency": 1, "warmup": [], "load": items(1)}]
    run(job(stand_in, folder, **{"points": points, "speculative": False, **changes}))
    [record] = requests(folder, "c1")
    return record


# what is measured


def test_a_point_is_measured_and_the_warm_up_is_kept_apart(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.listen()
    assert run(job(stand_in, tmp_path))["state"] == "done"
    assert {record["id"] for record in requests(tmp_path, warmup=True)} == {"w0", "w1"}
    measured = requests(tmp_path)
    assert sorted(record["id"] for record in measured) == [f"p{n}" for n in range(6)]
    for record in measured:
        assert record["ok"] is True
        assert (record["output_tokens"], record["drafted_tokens"], record["accepted_tokens"]) == (4, 2, 1)
        assert (record["server_ms"], record["finish_reason"]) == (1.5, "length")
        assert 0 < record["ttft_ms"] <= record["e2e_ms"]
        assert record["tpot_ms"] == pytest.approx((record["e2e_ms"] - record["ttft_ms"]) / 3, abs=0.01)
    whole = point(tmp_path)
    assert whole["window_s"] == pytest.approx(max(r["sent_s"] + r["e2e_ms"] / 1000 for r in measured), abs=1e-6)
    assert whole["warmup_failed"] == 0
    assert whole["lag_ms_max"] is None or whole["lag_ms_max"] >= 0
    assert {body["prompt"] for body in stand_in.bodies[:2]} == {"prompt w0", "prompt w1"}
    assert len({body["prompt"] for body in stand_in.bodies}) == 8


def test_so_many_requests_are_in_flight_and_never_more(stand_in: StandIn, tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=20)
    lock, now, most = threading.Lock(), [0], [0]

    def post(exchange: Exchange, number: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if number > 3:
            # Only when three are there at once does any of them go on.
            together.wait()
        with lock:
            now[0] -= 1
        exchange.stream(answer())

    stand_in.post = post
    stand_in.listen()
    points = [{"id": "c3", "concurrency": 3, "warmup": items(3, "w"), "load": items(9)}]
    assert run(job(stand_in, tmp_path, points=points))["state"] == "done"
    assert most[0] == 3
    assert all(record["ok"] for record in requests(tmp_path, "c3"))


def test_every_point_is_written_as_soon_as_it_is_done(stand_in: StandIn, tmp_path: Path) -> None:
    seen: list[bool] = []

    def post(exchange: Exchange, number: int) -> None:
        if number == 4:
            seen.append((tmp_path / "points" / "c1.json").exists() and (tmp_path / "requests/c1.jsonl.gz").exists())
        exchange.stream(answer())

    stand_in.post = post
    stand_in.listen()
    points = [
        {"id": "c1", "concurrency": 1, "warmup": items(1, "w"), "load": items(2)},
        {"id": "c2", "concurrency": 2, "warmup": items(2, "v"), "load": items(4, "q")},
    ]
    assert run(job(stand_in, tmp_path, points=points))["points"] == {"c1": "done", "c2": "done"}
    assert seen == [True]


def test_counters_are_those_of_the_window(stand_in: StandIn, tmp_path: Path) -> None:
    """They lag behind the answers here, as SGLang's do."""
    asked = [0]

    def get(exchange: Exchange) -> None:
        asked[0] += 1
        tokens = (0, 8, 8, 32)[min(asked[0] - 1, 3)]
        page = f'out_total{{model="m"}} {tokens}\nrunning 0\npos_total{{p="0"}} 5\npos_total{{p="1"}} 2\n'
        exchange.status(200, page.encode())

    stand_in.get = get
    stand_in.listen()
    rules = {
        "path": "/metrics",
        "counters": {"output_tokens": "out_total", "unknown": "nothing_total"},
        "accepted_per_position": {"name": "pos_total", "label": "p"},
        "requests_running": "running",
    }
    run(job(stand_in, tmp_path, metrics=rules))
    found = point(tmp_path)
    assert found["running_before"] == 0
    assert (found["counters_before"]["output_tokens"], found["counters_after"]["output_tokens"]) == (8, 32)
    assert found["counters_after"]["accepted_per_position"] == [5, 2]
    assert "unknown" not in found["counters_after"]


def test_the_cache_is_flushed_before_every_point_or_it_is_said(stand_in: StandIn, tmp_path: Path) -> None:
    tries = [0]

    def post(exchange: Exchange, _: int) -> None:
        if exchange.path != "/flush":
            return exchange.stream(answer())
        tries[0] += 1
        return exchange.status(400 if tries[0] == 1 else 200)

    stand_in.post = post
    stand_in.listen()
    run(job(stand_in, tmp_path, flush={"method": "POST", "path": "/flush"}))
    assert point(tmp_path)["flush"] == "flushed"
    assert tries[0] == 2


# what is no answer


def test_an_error_inside_a_200_stream_is_a_phantom(stand_in: StandIn, tmp_path: Path) -> None:
    broken = [event(text="w"), event(error={"message": "CUDA error", "code": 500}), *answer()]
    record = one(stand_in, tmp_path, lambda exchange: exchange.stream(broken))
    assert (record["ok"], record["phantom"]) == (False, True)
    assert record["error"] == "error inside a 200 stream: CUDA error"
    assert record.get("e2e_ms") is None


@pytest.mark.parametrize(
    ("pieces", "why", "phantom"),
    [
        ([b"data: [DONE]\n\n"], "HTTP 200 with an empty text", True),
        ([], "HTTP 200 with an empty text", True),
        ([event(text="", finish="length", usage={"completion": 4})], "HTTP 200 with an empty text", True),
        ([event(text=5, finish="length", usage={"completion": 4})], "HTTP 200 with an empty text", True),
        ([event(text=["a"], finish="length", usage={"completion": 4})], "HTTP 200 with an empty text", True),
        (answer(finish="abort"), "the server ended it: abort", False),
        ([event(text="w", finish="length")], "gave no count of output tokens", True),
        (answer(tokens=3), "ended after 3 of exactly 4 tokens", False),
        ([event(text="w", usage={"completion": 4})], "no finish reason came", False),
        ([b"<html>busy</html>\n"], "HTTP 200 with an empty text", True),
    ],
)
def test_what_only_looks_like_a_success(
    stand_in: StandIn, tmp_path: Path, pieces: list[bytes], why: str, phantom: bool
) -> None:
    record = one(stand_in, tmp_path, lambda exchange: exchange.stream(pieces))
    assert record["ok"] is False
    assert why in record["error"]
    assert record["phantom"] is phantom


def test_a_natural_end_may_come_early(stand_in: StandIn, tmp_path: Path) -> None:
    record = one(stand_in, tmp_path, lambda exchange: exchange.stream(answer(tokens=3, finish="stop")), exact=False)
    assert (record["ok"], record["output_tokens"], record["finish_reason"]) == (True, 3, "stop")


@pytest.mark.parametrize("body", [b'{"error": "no"}', b"\xff\xfe broken", b""])
def test_http_500_is_a_failure_that_says_so(stand_in: StandIn, tmp_path: Path, body: bytes) -> None:
    record = one(stand_in, tmp_path, lambda exchange: exchange.status(500, body))
    assert record["ok"] is False
    assert record["error"].startswith("HTTP 500: ")
    assert not record.get("phantom")


def test_a_connection_that_breaks_in_the_stream(stand_in: StandIn, tmp_path: Path) -> None:
    record = one(stand_in, tmp_path, lambda exchange: exchange.stream(answer()[:-2], whole=False))
    assert record["ok"] is False
    assert "Error" in record["error"]


def test_a_stream_that_ends_in_the_middle_of_a_line_is_no_answer(stand_in: StandIn, tmp_path: Path) -> None:
    cut = b"".join(answer())[:-40]
    record = one(stand_in, tmp_path, lambda exchange: exchange.until_close([cut]), exact=False)
    assert record["ok"] is False


def test_a_request_without_an_end_is_given_up(stand_in: StandIn, tmp_path: Path) -> None:
    over = threading.Event()

    def post(exchange: Exchange) -> None:
        exchange.stream([event(text="w")], whole=True) if over.wait(20) else None

    record = one(stand_in, tmp_path, post, request_timeout_s=0.3)
    over.set()
    assert record["error"] == "no end within 0.3 s"


# how bytes arrive


def test_chunks_may_be_cut_at_any_byte(tmp_path: Path) -> None:
    text = "“☃ 漢字” 🎈"
    whole = b"".join(answer(tokens=4, text=text)).replace(b"\n\n", b"\r\n\r\n")
    for size in (1, 2, 3, 7):
        folder = tmp_path / str(size)
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        server = StandIn()
        try:
            record = one(server, folder, lambda exchange, pieces=pieces: exchange.stream(pieces))  # type: ignore[misc]
        finally:
            server.close()
        assert record["ok"] is True, record
        assert record["text_sha256"] == load_client.hashlib.sha256((text * 4).encode()).hexdigest()


def test_a_line_may_be_longer_than_any_buffer(stand_in: StandIn, tmp_path: Path) -> None:
    long = "☃" * 200_000
    pieces = [event(text=long, finish="length", usage={"completion": 4})]
    record = one(stand_in, tmp_path, lambda exchange: exchange.stream(pieces))
    assert record["ok"] is True
    assert record["text_sha256"] == load_client.hashlib.sha256(long.encode()).hexdigest()


def test_the_last_line_may_have_no_end(stand_in: StandIn, tmp_path: Path) -> None:
    pieces = [event(text="w"), event(text="w", finish="length", usage={"completion": 4}).rstrip()]
    assert one(stand_in, tmp_path, lambda exchange: exchange.stream(pieces))["ok"] is True


def test_a_cumulative_text_is_not_added_up(stand_in: StandIn, tmp_path: Path) -> None:
    pieces = [event(text="a"), event(text="ab"), event(text="abc", finish="length", usage={"completion": 4})]
    record = one(stand_in, tmp_path, lambda exchange: exchange.stream(pieces), dialect={"text_is_cumulative": True})
    assert record["text_sha256"] == load_client.hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("reuse", [True, False])
def test_a_server_that_closes_after_each_stream(stand_in: StandIn, tmp_path: Path, reuse: bool) -> None:
    """llama.cpp announces keep-alive and closes; the profile then says that connections are not used again."""
    stand_in.post = lambda exchange, _: exchange.until_close(answer())
    stand_in.listen()
    assert run(job(stand_in, tmp_path, dialect={"reuse_connections": reuse}))["state"] == "done"
    assert [record["ok"] for record in requests(tmp_path)] == [True] * 6


# speculation that does not happen, and ends


def test_no_draft_after_the_warm_up_is_not_applied(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.post = lambda exchange, _: exchange.stream(answer(drafted=0))
    stand_in.listen()
    found = run(job(stand_in, tmp_path))
    assert found["state"] == "not_applied"
    assert "no draft was counted" in found["reason"]
    assert len(stand_in.bodies) == 2, "the load was sent all the same"
    assert point(tmp_path)["no_drafts"] is True
    assert requests(tmp_path) == []


def test_an_engine_that_never_tells_of_drafts_is_no_proof_against_it(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.post = lambda exchange, _: exchange.stream(answer(drafted=None))
    stand_in.listen()
    silent = {"drafted_tokens": [], "accepted_tokens": []}
    assert run(job(stand_in, tmp_path, dialect=silent))["state"] == "done"
    assert point(tmp_path)["drafted_after_warmup"] is None


def test_a_server_that_dies_half_way_ends_the_load_and_loses_nothing(stand_in: StandIn, tmp_path: Path) -> None:
    def post(exchange: Exchange, number: int) -> None:
        if number < 6:
            exchange.stream(answer())
        else:
            stand_in.server.socket.close()
            exchange.stream(answer()[:2], whole=False)

    stand_in.post = post
    stand_in.listen()
    points = [
        {"id": "c1", "concurrency": 1, "warmup": items(1, "w"), "load": items(40)},
        {"id": "c2", "concurrency": 2, "warmup": items(2, "v"), "load": items(4, "q")},
    ]
    given = job(stand_in, tmp_path, points=points, dialect={"reuse_connections": False})
    found = run(given)
    assert (found["state"], found["reason"]) == ("interrupted", "the server is gone")
    assert found["points"] == {"c1": "ended"}
    measured = requests(tmp_path, "c1")
    assert len(measured) == 40, "a request was lost"
    assert sum(record["ok"] for record in measured) == 4
    assert sum("Cannot connect" in str(record.get("error")) for record in measured) == 3
    # One more may have reached the socket before it closed.
    assert sum(record.get("error") == "not sent: the server is gone" for record in measured) >= 31


def test_a_server_that_dies_near_the_end_of_a_point_ends_the_load_there(stand_in: StandIn, tmp_path: Path) -> None:
    """As seen on a GPU: the queue was used up by refusals, and the next load point was blamed."""

    def post(exchange: Exchange, number: int) -> None:
        if number < 6:
            exchange.stream(answer())
        else:
            stand_in.server.socket.close()
            exchange.stream(answer()[:2], whole=False)

    stand_in.post = post
    stand_in.listen()
    points = [
        {"id": "c1", "concurrency": 1, "warmup": items(1, "w"), "load": items(7)},
        {"id": "c2", "concurrency": 2, "warmup": items(2, "v"), "load": items(4, "q")},
    ]
    found = run(job(stand_in, tmp_path, points=points, dialect={"reuse_connections": False}))
    assert (found["state"], found["reason"]) == ("interrupted", "the server is gone")
    assert (found["point"], found["points"]) == ("c1", {"c1": "ended"})
    measured = requests(tmp_path, "c1")
    assert (len(measured), sum(record["ok"] for record in measured)) == (7, 4)


def test_a_point_has_a_time_limit(stand_in: StandIn, tmp_path: Path) -> None:
    over = threading.Event()

    def post(exchange: Exchange, number: int) -> None:
        if number > 4:
            over.wait(20)
        exchange.stream(answer())

    stand_in.post = post
    stand_in.listen()
    found = run(job(stand_in, tmp_path, point_timeout_s=1.0))
    over.set()
    assert (found["state"], found["reason"]) == ("interrupted", "not done within 1 s")
    assert len(requests(tmp_path)) == 6
    assert sum(record["ok"] for record in requests(tmp_path)) == 2


def start(given: dict[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    """The client as the program that runs on a host."""
    path = folder / "job.json"
    path.write_text(json.dumps(given))
    argv = [sys.executable, "-m", "specsweep_agent.load_client", str(path)]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(AGENT)}, stderr=subprocess.PIPE)


def test_sigterm_keeps_what_was_measured(stand_in: StandIn, tmp_path: Path) -> None:
    reached, over = threading.Event(), threading.Event()

    def post(exchange: Exchange, number: int) -> None:
        if number == 6:
            exchange.send_response(200)
            exchange.end_headers()
            exchange.wfile.write(event(text="w"))
            exchange.wfile.flush()
            reached.set()
            over.wait(20)
            exchange.hang_up()
        else:
            exchange.stream(answer())

    stand_in.post = post
    stand_in.listen()
    points = [{"id": "c1", "concurrency": 1, "warmup": items(1, "w"), "load": items(10)}]
    process = start(job(stand_in, tmp_path, points=points), tmp_path)
    assert reached.wait(20)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    over.set()
    assert process.returncode == 0, errors.decode()
    found = status(tmp_path)
    assert (found["state"], found["reason"], found["points"]) == ("interrupted", "ended from outside", {"c1": "ended"})
    measured = requests(tmp_path, "c1")
    assert len(measured) == 10
    assert [record["ok"] for record in measured].count(True) == 4
    assert sum(str(record.get("error")).startswith("cancelled") for record in measured) == 1
    assert sum(str(record.get("error")) == "not sent: ended from outside" for record in measured) == 5


def test_sigterm_while_the_counters_catch_up_keeps_what_was_measured(stand_in: StandIn, tmp_path: Path) -> None:
    asked, reached = [0], threading.Event()

    def get(exchange: Exchange) -> None:
        asked[0] += 1
        # The first two pages are those before the warm-up and before the load; then they never catch up.
        if asked[0] > 3:
            reached.set()
        exchange.status(200, b"out_total 0\n")

    stand_in.get = get
    stand_in.listen()
    rules = {"path": "/metrics", "counters": {"output_tokens": "out_total"}}
    process = start(job(stand_in, tmp_path, metrics=rules), tmp_path)
    assert reached.wait(20)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors.decode()
    assert [record["ok"] for record in requests(tmp_path)] == [True] * 6
    assert point(tmp_path)["interrupted"] == "ended from outside"
    assert status(tmp_path)["state"] == "interrupted"


def test_a_job_that_is_none_is_told_as_broken(stand_in: StandIn, tmp_path: Path) -> None:
    given = job(stand_in, tmp_path)
    del given["points"]
    process = start(given, tmp_path)
    process.communicate(timeout=20)
    assert process.returncode == 1
    assert status(tmp_path)["state"] == "broken"
    assert "KeyError" in status(tmp_path)["reason"]
