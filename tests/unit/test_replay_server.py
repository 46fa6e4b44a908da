"""The replay engine as a process: what a sweep meets, from the refused port to the crash."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specsweep import engine

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "plugins" / "module_utils"
FILES = engine.ENGINES / "replay"
FAST = {"load_s": 0.0, "warmup_s": 0.0, "pace": {"base_ms": 1.0, "draft_ms": 0.1}}
NGRAM = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"]
NGRAM += ["--speculative-ngram-max-bfs-breadth", "4"]
EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "5"]
EAGLE += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "16"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Replay:
    """A running replay engine."""

    def __init__(self, folder: Path, scenario: dict[str, Any] | str, *arguments: str, **environment: str) -> None:
        self.port = free_port()
        self.log = folder / f"{self.port}.log"
        text = scenario if isinstance(scenario, str) else json.dumps({**FAST, **scenario})
        argv = [sys.executable, "-m", "specsweep_agent.replay_server", "--port", str(self.port)]
        argv += ["--replay-scenario", text, "--replay-files", str(FILES), *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(AGENT), **environment}
            )

    def ask(self, path: str, body: Any = None, verb: str | None = None, timeout_s: float = 10) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"the answer broke off: {error!r}") from error

    def ready(self) -> Replay:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                if self.ask("/health")[0] == 200:
                    return self
            except OSError:
                assert self.process.poll() is None, self.text()
            time.sleep(0.02)
        raise AssertionError(self.text())

    def generate(self, prompt: str = "say it", tokens: int = 40, stream: bool = True) -> list[dict[str, Any]]:
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        status, text = self.ask("/generate", {"text": prompt, "sampling_params": sampling, "stream": stream})
        assert status == 200, text
        if not stream:
            return [json.loads(text)]
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def counter(self, name: str) -> float | None:
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in self.ask("/metrics")[1].splitlines()
            if line.startswith((name + "{", name + " "))
        ]
        return sum(values) if values else None

    def until(self, name: str, value: float) -> None:
        """Wait until a counter has a value."""
        deadline = time.monotonic() + 5
        while self.counter(name) != value:
            assert time.monotonic() < deadline, (name, self.counter(name))
            time.sleep(0.02)

    def text(self) -> str:
        return self.log.read_text()

    def ended(self) -> int:
        return self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    running: list[Replay] = []

    def starting(scenario: dict[str, Any] | str, *arguments: str, **environment: str) -> Replay:
        running.append(Replay(tmp_path, scenario, *arguments, **environment))
        return running[-1]

    yield starting
    for replay in running:
        replay.process.kill()
        replay.process.wait()


def test_port_is_refused_then_503_then_200(start: Any) -> None:
    replay = start({"load_s": 0.4, "warmup_s": 0.4})
    seen: list[Any] = []
    while not seen or seen[-1] != 200:
        try:
            word: Any = replay.ask("/health")[0]
        except OSError:
            word = "refused"
        if not seen or seen[-1] != word:
            seen.append(word)
        time.sleep(0.02)
    assert seen == ["refused", 503, 200]


def test_everything_it_says_names_itself_a_replay(start: Any) -> None:
    replay = start("plain", "--replay-load-s", "0", "--replay-warmup-s", "0", "--model-path", "/m").ready()
    info = json.loads(replay.ask("/server_info")[1])
    assert (info["replay"], info["version"], info["internal_states"][0]["replay"]) == (True, "replay", True)
    assert "sglang:replay{" in replay.ask("/metrics")[1]
    event = replay.generate()[-1]
    assert event["text"].startswith(" replay")
    assert event["meta_info"]["id"].startswith("replay-")
    assert json.loads(replay.ask("/v1/models")[1])["data"][0]["owned_by"] == "replay"
    assert replay.stop() == 0
    assert all(" replay] " in line for line in replay.text().splitlines())
    shown = subprocess.run(
        [sys.executable, "-m", "specsweep_agent.replay_server", "--version"],
        env={**os.environ, "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "replay"


def test_counters_agree_with_the_answers(start: Any) -> None:
    replay = start({}, *NGRAM).ready()
    last = [replay.generate(f"prompt {index}", 60 + index)[-1]["meta_info"] for index in range(6)]
    for meta in last:
        histogram = meta["spec_correct_drafts_histogram"]
        assert sum(histogram) == meta["spec_verify_ct"]
        assert sum(k * n for k, n in enumerate(histogram)) == meta["spec_num_correct_drafts"]
        assert meta["completion_tokens"] == 1 + meta["spec_verify_ct"] + meta["spec_num_correct_drafts"]
        assert meta["spec_accept_length"] == meta["completion_tokens"] / meta["spec_verify_ct"]
        assert max(k for k, n in enumerate(histogram) if n) <= 7
    assert replay.counter("sglang:generation_tokens_total") == sum(meta["completion_tokens"] for meta in last)
    assert replay.counter("sglang:spec_verify_calls_total") == sum(meta["spec_verify_ct"] for meta in last)
    state = json.loads(replay.ask("/server_info")[1])["internal_states"][0]
    tokens, steps = (sum(meta[key] for meta in last) for key in ("completion_tokens", "spec_verify_ct"))
    assert state["avg_spec_accept_length"] == pytest.approx(tokens / steps)
    assert replay.ask("/flush_cache", verb="POST")[0] == 200
    assert "avg_spec_accept_length" not in json.loads(replay.ask("/server_info")[1])["internal_states"][0]


def test_a_baseline_has_one_token_a_step_and_no_speculative_number(start: Any) -> None:
    replay = start({}).ready()
    events = replay.generate(tokens=20)
    assert len(events) == 20
    assert not [key for key in events[-1]["meta_info"] if key.startswith("spec_")]
    assert replay.counter("sglang:spec_verify_calls_total") is None


def test_the_same_request_has_the_same_answer_whatever_else_runs(start: Any) -> None:
    first = start({}, *NGRAM).ready().generate("the prompt", 80)[-1]["meta_info"]
    second = start({}, *NGRAM).ready()
    others = [threading.Thread(target=second.generate, args=(f"other {index}", 80)) for index in range(5)]
    for other in others:
        other.start()
    again = second.generate("the prompt", 80)[-1]["meta_info"]
    for other in others:
        other.join()
    assert first["spec_correct_drafts_histogram"] == again["spec_correct_drafts_histogram"]


def test_the_pace_is_the_model_of_the_scenario(start: Any) -> None:
    pace = {"base_ms": 10.0, "draft_ms": 0.0, "sequence_ms": 0.0, "token_ms": 0.0, "prefill_token_ms": 0.0}
    replay = start({"pace": pace}).ready()
    began = time.monotonic()
    replay.generate(tokens=30)
    assert 0.3 <= time.monotonic() - began < 2  # 30 steps of 10 ms, on a machine that may be busy


def test_requests_above_the_limit_wait(start: Any) -> None:
    replay = start({"pace": {"base_ms": 20.0}}, "--max-running-requests", "2").ready()
    asking = [threading.Thread(target=replay.generate, args=(f"prompt {index}", 100)) for index in range(4)]
    for thread in asking:
        thread.start()
    replay.until("sglang:num_running_reqs", 2)
    replay.until("sglang:num_queue_reqs", 2)
    assert replay.counter("sglang:num_running_reqs") == 2
    assert replay.ask("/flush_cache", verb="POST")[0] == 400
    for thread in asking:
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (NGRAM, {}, {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8, "speculative_num_steps": 2}),
        (EAGLE, {}, {"speculative_num_draft_tokens": 6}),
        (
            ["--speculative-algorithm", "DFLASH", "--speculative-dflash-block-size", "8"],
            {},
            {"speculative_eagle_topk": 1},
        ),
        (
            ["--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "16"],
            {"SGLANG_DDTREE_MAX_TOPK": "4"},
            {"speculative_num_draft_tokens": 17, "max_running_requests": 48},
        ),
        (
            ["--any-other-flag", "x", "--mem-fraction-static=0.3"],
            {},
            {"any_other_flag": "x", "mem_fraction_static": 0.3},
        ),
    ],
)
def test_it_rewrites_silently_what_sglang_rewrites(
    start: Any, arguments: list[str], environment: dict[str, str], expected: dict[str, Any]
) -> None:
    info = json.loads(start({}, *arguments, **environment).ready().ask("/server_info")[1])
    assert {key: info[key] for key in expected} == expected


def test_a_value_can_be_clamped(start: Any) -> None:
    replay = start({"clamp": {"max_running_requests": 64}}, "--max-running-requests", "256").ready()
    info = json.loads(replay.ask("/server_info")[1])
    assert info["max_running_requests"] == 64
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 64
    assert "--max-running-requests 256" in info["launch_command"]


@pytest.mark.parametrize(("speculation", "claimed"), [("off", None), ("silent", "NGRAM")])
def test_speculation_can_be_left_out_although_asked(start: Any, speculation: str, claimed: str | None) -> None:
    replay = start({"speculation": speculation}, *NGRAM).ready()
    assert json.loads(replay.ask("/server_info")[1])["speculative_algorithm"] == claimed
    assert "spec_verify_ct" not in replay.generate()[-1]["meta_info"]
    assert replay.counter("sglang:spec_verify_calls_total") is None


def test_errors_inside_a_200_stream_aborts_and_500(start: Any) -> None:
    replay = start({"errors": {"error_in_stream": 2, "abort": 3, "http_500": 5}}).ready()
    assert replay.generate()[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert "replay" in replay.generate()[-1]["error"]["message"]
    assert replay.generate()[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    replay.generate()
    assert replay.ask("/generate", {"text": "x", "sampling_params": {}})[0] == 500


@pytest.mark.parametrize(("at", "answered"), [("start", False), ("load", False), ("warmup", True)])
def test_crash_before_serving(start: Any, at: str, answered: bool) -> None:
    replay = start({"warmup_s": 0.3, "failures": [{"at": at, "log": "logs/kv_pool.log", "signal": 9}]})
    assert replay.ended() == -signal.SIGKILL
    assert "ValueError: Loaded weights leave no GPU memory for the KV cache" in replay.text()
    assert "##" not in replay.text()
    assert "{time}" not in replay.text()
    assert ("Uvicorn running" in replay.text()) == answered


def test_crash_with_an_exit_code_after_some_requests(start: Any) -> None:
    replay = start({"failures": [{"after_requests": 2, "exit": 3}]}).ready()
    replay.generate()
    replay.generate()
    with pytest.raises(OSError):
        replay.generate()
    assert replay.ended() == 3


def test_crash_when_running_times_width_exceeds_a_limit(start: Any) -> None:
    replay = start(
        {"failures": [{"running_x_width_above": 16, "signal": 9}], "pace": {"base_ms": 20.0}},
        *NGRAM,
    ).ready()
    replay.generate()
    asking = [threading.Thread(target=_try, args=(replay,), daemon=True) for _ in range(3)]
    for thread in asking:
        thread.start()
    assert replay.ended() == -signal.SIGKILL


def _try(replay: Replay) -> None:
    with contextlib.suppress(OSError):
        replay.generate(tokens=50)


@pytest.mark.parametrize(
    ("budget", "limit", "dies"), [(8, 128, False), (16, 128, True), (8, 256, True), (0, 256, False)]
)
def test_the_story_dies_where_the_product_passes_what_ran(start: Any, budget: int, limit: int, dies: bool) -> None:
    arguments = ["--max-running-requests", str(limit), "--replay-load-s", "0", "--replay-warmup-s", "0.05"]
    if budget:
        arguments += ["--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", str(budget)]
    replay = start("kimi-b300", *arguments, SGLANG_DDTREE_MAX_TOPK="4")
    if not dies:
        replay.ready()
        assert replay.generate()[-1]["meta_info"]["completion_tokens"] == 40
        assert replay.stop() == 0
        return
    assert replay.ended() == -signal.SIGKILL
    text = replay.text()
    assert "Scheduler hit an exception" in text
    assert "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmStridedBatchedEx" in text
    assert text.index("CUBLAS_STATUS") < text.index("SIGQUIT received")


def test_the_story_has_the_three_known_numbers() -> None:
    """303 and 133 tok/s at concurrency 1 and 4723 at 128, from the scenario's model itself."""
    sys.path.insert(0, str(AGENT))
    try:
        from specsweep_agent import replay_server
    finally:
        sys.path.remove(str(AGENT))
    scenario = replay_server.scenario_of("kimi-b300", FILES)

    def rate(budget: int, running: int) -> float:
        options = {"max_running_requests": 128}
        if budget:
            options |= {"speculative_algorithm": "DDTREE", "speculative_ddtree_budget": budget}
        settings = replay_server.Settings(options, {"SGLANG_DDTREE_MAX_TOPK": "4"}, scenario)
        steps = tokens = 0
        for index in range(200):
            request = replay_server.Request(index, f"prompt {index}", 256, False, settings, scenario)
            while not request.finished:
                request.advance()
            tokens += request.tokens
            steps += request.steps + 1
        return 1000 * running * tokens / steps / replay_server.step_ms(scenario["pace"], settings, running)

    assert rate(0, 1) == pytest.approx(133, rel=0.02)
    assert rate(8, 1) == pytest.approx(303, rel=0.05)
    assert rate(8, 128) == pytest.approx(4723, rel=0.05)


def test_hang_leaves_the_flags_at_200_and_answers_nothing_else(start: Any) -> None:
    replay = start({"failures": [{"kind": "hang", "after_requests": 1}]}).ready()
    replay.generate()
    threading.Thread(target=_try, args=(replay,), daemon=True).start()
    replay.until("sglang:num_running_reqs", 1)
    assert replay.ask("/ready")[0] == 200
    for path in ("/server_info", "/health"):
        with pytest.raises(OSError):
            replay.ask(path, timeout_s=0.3)
    assert replay.process.poll() is None


def test_a_client_that_leaves_aborts_its_request(start: Any) -> None:
    replay = start({"pace": {"base_ms": 20.0}}).ready()
    with socket.create_connection(("127.0.0.1", replay.port)) as connection:
        body = json.dumps(
            {"text": "x", "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}, "stream": True}
        )
        connection.sendall(f"POST /generate HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        connection.recv(100)
    replay.until("sglang:num_aborted_requests_total", 1)
    replay.until("sglang:num_running_reqs", 0)


def test_a_taken_port_is_found_after_the_load_and_ends_with_3(start: Any) -> None:
    first = start({}).ready()
    second = start({}, "--port", str(first.port))
    assert second.ended() == 3
    assert "error while attempting to bind on address" in second.text()


def test_a_clean_stop_can_end_by_a_signal_like_the_recorded_one(start: Any) -> None:
    assert start({"stop": {"signal": 9}}).ready().stop() == -signal.SIGKILL


def test_a_vllm_like_service(start: Any) -> None:
    asked = {"method": "ngram", "num_speculative_tokens": 4}
    replay = start({"service": "vllm"}, "--speculative-config", json.dumps(asked), "--max-num-seqs", "8").ready()
    assert replay.counter("vllm:spec_decode_num_drafts_total") == 0
    positions = [line for line in replay.ask("/metrics")[1].splitlines() if 'position="' in line]
    assert len(positions) == 4
    body = {
        "prompt": "a",
        "max_tokens": 30,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    text = replay.ask("/v1/completions", body)[1]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert events[-1]["usage"]["completion_tokens"] == 30
    assert sum(event["choices"][0]["text"].count(" r") for event in events[:-1]) == 30
    drafts = replay.counter("vllm:spec_decode_num_drafts_total")
    accepted = replay.counter("vllm:spec_decode_num_accepted_tokens_total")
    assert drafts is not None and accepted is not None
    assert 1 + drafts + accepted == 30
    assert replay.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert replay.ask("/server_info")[0] == 404


def test_a_llamacpp_like_service(start: Any) -> None:
    replay = start(
        {"service": "llamacpp"},
        "-np",
        "3",
        "--alias",
        "specsweep",
        "--spec-type",
        "ngram-mod",
        "--spec-ngram-mod-n-max",
        "8",
    ).ready()
    assert [slot["speculative"] for slot in json.loads(replay.ask("/slots")[1])] == [True] * 3
    assert json.loads(replay.ask("/v1/models")[1])["data"][0]["id"] == "specsweep"
    text = replay.ask("/completion", {"prompt": "a", "n_predict": 30, "stream": True, "ignore_eos": True})[1]
    last = json.loads([line[6:] for line in text.splitlines() if line.startswith("data: {")][-1])
    assert last["stop_type"] == "limit"
    timings = last["timings"]
    assert timings["predicted_n"] == 30
    assert timings["draft_n"] == 8 * (30 - 1 - timings["draft_n_accepted"])
    assert replay.counter("llamacpp:tokens_predicted_total") == 30


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("nowhere", "expected a scenario of"),
        ("{", "is not JSON"),
        ('{"pase": {}}', "got 'pase'"),
        ('{"service": "tgi"}', "expected sglang, vllm or llamacpp; got 'tgi'"),
        ('{"failures": [{"at": "noon"}]}', "expected start, load, warmup or serving; got 'noon'"),
        ('{"failures": [{"when": 1}]}', "got 'when'"),
        ('{"failures": [{"log": "logs/none.log"}]}', "it is not there"),
        ('{"speculation": "maybe"}', "got 'maybe'"),
    ],
)
def test_a_bad_scenario_is_one_line_and_exit_2(start: Any, scenario: str, reason: str) -> None:
    replay = start(scenario)
    assert replay.ended() == 2
    assert replay.text().count("\n") == 1
    assert reason in replay.text()


def test_every_shipped_scenario_and_log_is_used_and_says_what_it_is() -> None:
    readme = (FILES / "README.md").read_text()
    for path in [*FILES.glob("*.json"), *FILES.glob("logs/*")]:
        assert path.name in readme
    for log in FILES.glob("logs/*"):
        assert log.read_text().startswith(("## Recorded: ", "## Composed, not recorded: "))
    for path in FILES.glob("*.json"):
        assert json.loads(path.read_text())["note"]


def test_the_captured_help_is_what_it_prints() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "specsweep_agent.replay_server", "--help"],
        env={**os.environ, "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert engine.flags_in(shown.stdout) == engine.flags_in((engine.ENGINES / "help" / "replay.txt").read_text())


@pytest.mark.parametrize("method", ["none", "ngram", "eagle", "ddtree"])
def test_what_the_replay_profile_renders_is_what_it_reports(start: Any, method: str) -> None:
    profile = engine.load("replay")
    assert profile.replay
    replay_flags = engine.flags_in((engine.ENGINES / "help" / "replay.txt").read_text())
    place = {"model": "/m", "drafter": "/d", "address": "127.0.0.1", "concurrency_max": 4, "seed": 1}
    settings = {"scenario": "plain", "replay_load_s": 0, "replay_warmup_s": 0}
    names = engine.scope(profile, method=method, budget=8, topk=4, settings=settings, place={**place, "port": 0})
    chosen = engine.effective_settings(profile, method, settings, names)
    result = engine.render(profile, method, chosen, names, replay_flags)
    assert engine.missing_flags(result, replay_flags) == []
    arguments = [word for index, word in enumerate(result.arguments) if _not_port(result.arguments, index)]
    replay = start("plain", *arguments, **result.environment).ready()
    info = json.loads(replay.ask("/server_info")[1])
    for flag, asked in result.flags.items():
        key = flag.lstrip("-").replace("-", "_")
        if key != "port" and key in info:
            assert info[key] == (True if asked is None else asked), key


def _not_port(arguments: list[str], index: int) -> bool:
    return "--port" not in (arguments[index], arguments[index - 1])


def ranks(start: Any, scenario: dict[str, Any] | None = None) -> tuple[Replay, Replay]:
    """Two ranks of one engine, rank 0 ready."""
    nodes = ["--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}"]
    follower = start(scenario or {}, *nodes, "--node-rank", "1")
    leader = start(scenario or {}, *nodes, "--node-rank", "0").ready()
    return leader, follower.ready()


def test_a_follower_is_healthy_answers_nothing_and_outlives_sigterm_until_rank_0_is_gone(start: Any) -> None:
    leader, follower = ranks(start)
    assert leader.generate()[-1]["meta_info"]["completion_tokens"] == 40
    assert follower.ask("/generate", {"text": "say it"}) == (200, "")
    follower.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 5
    while "Waiting for rank 0" not in follower.text():
        assert time.monotonic() < deadline, follower.text()
        time.sleep(0.02)
    assert follower.process.poll() is None
    assert leader.stop() == 0
    assert follower.ended() == 0


def test_rank_0_waits_for_its_follower_before_it_listens_and_hangs_without_it(start: Any) -> None:
    nodes = ["--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}"]
    leader = start({}, *nodes, "--node-rank", "0")
    time.sleep(0.5)
    with pytest.raises(OSError, match="refused"):
        leader.ask("/health")
    follower = start({}, *nodes, "--node-rank", "1")
    leader.ready()
    follower.process.kill()
    deadline = time.monotonic() + 5
    while "rank 1 of 2 is gone" not in leader.text():
        assert time.monotonic() < deadline, leader.text()
        time.sleep(0.02)
    with pytest.raises(OSError, match="timed out"):
        leader.ask("/generate", {"text": "say it"}, timeout_s=0.5)
    assert leader.process.poll() is None


def test_several_nodes_without_an_address_are_refused(start: Any) -> None:
    replay = start({}, "--nnodes", "2")
    assert replay.ended() == 2
    assert "--dist-init-addr: expected address:port" in replay.text()
