"""Replay engine: a rehearsal of a recorded SGLang, vLLM or llama.cpp-like service.  Never a measurement.

    python -m specsweep_agent.replay_server --port 30000 --replay-scenario plain [SGLang flags]

It behaves as a JSON scenario says (its form: `DEFAULTS` below): the port is refused while it "loads", 503 while
it warms up, then it streams answers whose pace and acceptance come from a small deterministic model; counters,
reports and log lines agree with the answers; it crashes with a recorded log and exit status, hangs, clamps a
value or leaves speculation out where the scenario wants that.  Whatever it says names itself a replay.

Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import hashlib
import json
import math
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION = "replay"

#: SGLang flags that the rehearsal acts on or that sweeps often set; every other flag is taken as well.
FLAG_NAMES = """
model-path host port enable-metrics nnodes node-rank dist-init-addr random-seed decode-log-interval page-size
max-running-requests served-model-name tp-size dp-size attn-dp-size ep-size pp-size mem-fraction-static
attention-backend sampling-backend grammar-backend kv-cache-dtype quantization dtype context-length
trust-remote-code load-format chunked-prefill-size max-total-tokens max-queued-requests cuda-graph-max-bs-decode
cuda-graph-backend-decode cuda-graph-backend-prefill disable-cuda-graph disable-radix-cache disable-overlap-schedule
enable-nccl-nvls watchdog-timeout moe-runner-backend moe-a2a-backend log-level speculative-algorithm
speculative-draft-model-path speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens
speculative-ngram-max-bfs-breadth speculative-dflash-block-size speculative-draft-window-size
speculative-draft-attention-backend speculative-ddtree-budget
"""

DEFAULTS: dict[str, Any] = {
    "note": "",
    "service": "sglang",  # sglang, vllm or llamacpp: endpoints, counters and log lines
    "load_s": 0.3,  # the port is refused
    "warmup_s": 0.2,  # 503
    "pace": {  # milliseconds of one step with n running sequences of verify width w
        "base_ms": 8.0,
        "draft_ms": 1.0,  # only with speculation
        "sequence_ms": 0.05,  # x n
        "token_ms": 0.01,  # x n x w
        "prefill_token_ms": 0.02,  # once for each token of a prompt
    },
    "acceptance": {  # mean accepted drafts of a step: gain (1 - exp(-candidates / scale)) (1 + branch log2(topk))
        "gain": 2.0,
        "scale": 12.0,
        "branch": 0.1,
        "spread": 0.2,  # a prompt's own share, by its text: 1 +- spread
    },
    "clamp": {},  # option -> most that it can be: asked 256, runs 64
    "speculation": "as asked",  # off: none and the report says so; silent: none, and the report claims it
    "failures": [],  # see Failure
    "errors": {},  # error_in_stream, abort, http_500: every n-th request
    "stop": {"exit": 0},  # or {"signal": 9}, like the recorded SGLang 0.5.17
    "server_info": "",  # file with a recorded report to start from
    "metrics": "",  # file with recorded samples to start from
}


class ReplayError(ValueError):
    """A scenario or argument that cannot be used; the message is one line."""


class Failure:
    """What goes wrong, when.

    Keys: `at` (start, load, warmup, serving), `kind` (crash or hang), `log` (file with the lines to print),
    `exit` or `signal`, `delay_s`; and the conditions `after_requests`, `running_x_width_above` and
    `max_running_x_width_above`, which must all hold.
    """

    KEYS = ("at", "kind", "log", "exit", "signal", "delay_s")
    CONDITIONS = ("after_requests", "running_x_width_above", "max_running_x_width_above")

    def __init__(self, rule: dict[str, Any]) -> None:
        known = (*self.KEYS, *self.CONDITIONS)
        for key in rule:
            if key not in known:
                raise ReplayError(f"failures: expected the keys {', '.join(known)}; got {key!r}")
        self.rule = rule
        self.at: str = rule.get("at", "serving")
        self.kind: str = rule.get("kind", "crash")
        if self.at not in ("start", "load", "warmup", "serving"):
            raise ReplayError(f"failures: at: expected start, load, warmup or serving; got {self.at!r}")
        if self.kind not in ("crash", "hang"):
            raise ReplayError(f"failures: kind: expected crash or hang; got {self.kind!r}")

    def holds(self, at: str, settings: Settings, running: int, finished: int) -> bool:
        rule = self.rule
        return (
            at == self.at
            and finished >= rule.get("after_requests", 0)
            and running * settings.width > rule.get("running_x_width_above", -1)
            and settings.max_running * settings.width > rule.get("max_running_x_width_above", -1)
        )


# ---------------------------------------------------------------- what was asked, and what runs


def number(text: str) -> Any:
    """A flag's value as the report shows it."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if value is None or isinstance(value, (bool, str)) else value


def options_of(argv: list[str]) -> dict[str, Any]:
    """Every `--name value`, `--name=value` and `--name` of a command line, by report key."""
    options: dict[str, Any] = {}
    name = None
    for word in argv:
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            name, equals, value = word.partition("=")
            name = name.lstrip("-").replace("-", "_")
            options[name] = number(value) if equals else True
            name = None if equals else name
        elif name is not None:
            options[name] = number(word)
            name = None
    return options


class Settings:
    """Method, verify width and limits: the options with the rewrites of the engine and of the scenario."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str], scenario: dict[str, Any]) -> None:
        self.asked = dict(options)
        effective = dict(options)
        for name, most in scenario["clamp"].items():
            if isinstance(effective.get(name), (int, float)):
                effective[name] = min(effective[name], most)
        self.method, self.topk = "none", 1
        self.width, self.max_running = 1, 1
        if scenario["service"] == "vllm":
            self._vllm(effective)
        elif scenario["service"] == "llamacpp":
            self._llamacpp(effective)
        else:
            self._sglang(effective, environment)
        if scenario["speculation"] != "as asked":
            self.width, self.topk, self.method = 1, 1, "none"
            if scenario["speculation"] == "off":
                effective.update({key: None for key in effective if key.startswith("speculative_")})
        self.effective = effective
        self.speculates = self.width > 1
        self.host = str(options.get("host", "127.0.0.1"))
        self.port = int(options.get("port", 30000))
        self.model = str(options.get("model_path") or options.get("model") or options.get("m") or "replay-model")
        self.seed = options.get("random_seed", options.get("seed", 1))
        self.log_every = max(1, int(options.get("decode_log_interval", 40)))
        self.nodes, self.rank = int(options.get("nnodes", 1)), int(options.get("node_rank", 0))
        self.rendezvous = str(options.get("dist_init_addr", ""))
        if self.nodes > 1 and not self.rendezvous.rpartition(":")[2].isdigit():
            raise ReplayError(f"--dist-init-addr: expected address:port with --nnodes; got {self.rendezvous!r}")

    def _sglang(self, options: dict[str, Any], environment: dict[str, str]) -> None:
        algorithm = options.get("speculative_algorithm")
        options.setdefault("max_running_requests", 48 if algorithm else 2048)
        options.setdefault("page_size", 1)
        self.max_running = int(options["max_running_requests"])
        if not algorithm:
            options["speculative_algorithm"] = None
            return
        self.method = str(algorithm).upper()
        draft = options.get("speculative_num_draft_tokens")
        topk = int(options.get("speculative_eagle_topk") or 1)
        if self.method == "NGRAM":
            draft = draft or 12
            topk = int(options.get("speculative_ngram_max_bfs_breadth", 10))
            options.update(speculative_eagle_topk=topk, speculative_num_steps=int(draft) // topk)
        elif options.get("speculative_ddtree_budget"):
            draft = int(options["speculative_ddtree_budget"]) + 1
            topk = int(environment.get("SGLANG_DDTREE_MAX_TOPK", 6))
        elif self.method == "DFLASH":
            draft = draft or options.get("speculative_dflash_block_size") or 16
            options.update(speculative_eagle_topk=1, speculative_num_steps=1)
        elif topk == 1:
            draft = int(options.get("speculative_num_steps") or 3) + 1
        options["speculative_num_draft_tokens"] = self.width = int(draft or 4)
        self.topk = topk

    def _vllm(self, options: dict[str, Any]) -> None:
        self.max_running = int(options.setdefault("max_num_seqs", 256))
        asked = options.get("speculative_config")
        if isinstance(asked, dict):
            self.method = str(asked.get("method"))
            self.width = int(asked["num_speculative_tokens"]) + 1

    def _llamacpp(self, options: dict[str, Any]) -> None:
        self.max_running = int(options.get("np") or options.get("parallel") or 4)
        kind = str(options.get("spec_type", "none"))
        flag = {"ngram-mod": "spec_ngram_mod_n_max", "ngram-simple": "spec_ngram_simple_size_m"}
        if kind != "none":
            self.method = kind
            self.width = int(options.get(flag.get(kind, "spec_draft_n_max"), 3)) + 1


# ---------------------------------------------------------------- the model of pace and acceptance


class Request:
    """One generation: deterministic in the prompt, the seed and the width, whatever else runs."""

    def __init__(
        self, number: int, prompt: str, max_tokens: int, natural: bool, settings: Settings, scenario: dict[str, Any]
    ) -> None:
        digest = hashlib.sha256(f"{settings.seed}:{prompt}".encode()).digest()
        self.id = f"replay-{number}"
        self.prompt_tokens = max(1, len(prompt.split()))
        own_end = 16 + digest[1]
        self.reason = "stop" if natural and own_end < max_tokens else "length"
        self.max_tokens = own_end if self.reason == "stop" else max(1, max_tokens)
        self.random = random.Random(f"{digest.hex()}:{settings.width}:{settings.topk}")
        share = 1 + scenario["acceptance"]["spread"] * (digest[0] / 127.5 - 1)
        self.mean = accepted_mean(scenario["acceptance"], settings) * share
        self.candidates = settings.width - 1
        self.tokens = 0
        self.steps = 0
        self.histogram: list[int] = []
        self.arrived = time.monotonic()
        self.events: asyncio.Queue[bool] = asyncio.Queue()
        self.gone = False

    @property
    def accepted(self) -> int:
        return sum(count * steps for count, steps in enumerate(self.histogram))

    @property
    def finished(self) -> bool:
        return self.tokens >= self.max_tokens

    def advance(self) -> None:
        """One step: the prefill gives one token, every later step its bonus token and what was accepted."""
        if self.tokens == 0:
            self.tokens = 1
        else:
            kept = min(self._draw(), self.max_tokens - self.tokens - 1)
            self.histogram += [0] * (kept + 1 - len(self.histogram))
            self.histogram[kept] += 1
            self.tokens += 1 + kept
            self.steps += 1
        self.events.put_nowait(self.finished)

    def _draw(self) -> int:
        if not self.candidates or self.mean <= 0:
            return 0
        share = self.mean / (1 + self.mean)
        drawn = int(math.log(1 - self.random.random()) / math.log(share))
        return min(drawn, self.candidates)


def text_of(start: int, end: int) -> str:
    """The text of the tokens from `start` to `end`: the first one names the replay."""
    return "".join(" replay" if index == 0 else " r" for index in range(start, end))


def accepted_mean(rule: dict[str, float], settings: Settings) -> float:
    """Mean accepted drafts of a step before the cap by the candidates."""
    candidates = settings.width - 1
    growth = 1 - math.exp(-candidates / rule["scale"])
    return rule["gain"] * growth * (1 + rule["branch"] * math.log2(max(1, settings.topk)))


def step_ms(pace: dict[str, float], settings: Settings, running: int) -> float:
    """Milliseconds of one decode step."""
    drafting = pace["draft_ms"] if settings.speculates else 0.0
    return pace["base_ms"] + drafting + running * (pace["sequence_ms"] + settings.width * pace["token_ms"])


class Engine:
    """Continuous batching: waiting requests join up to the limit, each step advances all that run."""

    def __init__(self, settings: Settings, scenario: dict[str, Any], failures: list[Failure], speed: float) -> None:
        self.settings, self.scenario, self.failures, self.speed = settings, scenario, failures, speed
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.wake = asyncio.Event()
        self.hung = False
        self.arrived = self.finished = self.aborted = 0
        self.output_tokens = self.prompt_tokens = self.steps = self.accepted = self.decode_calls = 0
        self.per_position = [0] * (settings.width - 1)
        self.since_flush = [0, 0]
        self.log_mark = (time.monotonic(), 0, 0)
        self.live_tokens = self.live_steps = 0

    def submit(self, prompt: str, max_tokens: int, natural: bool) -> Request:
        self.arrived += 1
        request = Request(self.arrived, prompt, max_tokens, natural, self.settings, self.scenario)
        self.waiting.append(request)
        self.wake.set()
        return request

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            self.running = [request for request in self.running if not request.gone]
            if self.hung:
                await asyncio.Event().wait()
            if not self.running and not self.waiting:
                self.wake.clear()
                await self.wake.wait()
                due = time.monotonic()
            prefill_ms = self._admit()
            await self._hang_or_crash()
            wait_s = (step_ms(self.scenario["pace"], self.settings, len(self.running)) + prefill_ms) / 1000 / self.speed
            due = max(due + wait_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self._step()

    async def _hang_or_crash(self) -> None:
        for failure in self.failures:
            if failure.holds("serving", self.settings, len(self.running), self.finished):
                self.hung = True
                await fail(failure, self.scenario)

    def _admit(self) -> float:
        new = []
        while self.waiting and len(self.running) < self.settings.max_running:
            request = self.waiting.popleft()
            if not request.gone:
                new.append(request)
                self.running.append(request)
        if not new:
            return 0.0
        tokens = sum(request.prompt_tokens for request in new)
        say(
            f"Prefill batch, #new-seq: {len(new)}, #new-token: {tokens}, #cached-token: 0, token usage: 0.00, "
            f"#running-req: {len(self.running) - len(new)}, #queue-req: {len(self.waiting)}, #pending-token: 0, "
            "cuda graph: False"
        )
        return float(tokens * self.scenario["pace"]["prefill_token_ms"])

    def _step(self) -> None:
        self.decode_calls += 1
        for request in self.running:
            before = request.tokens
            request.advance()
            self.live_tokens += request.tokens - before
            self.live_steps += before > 0
            if request.finished:
                self._count(request)
        if self.decode_calls % self.settings.log_every == 0:
            self._log_decode()
        self.running = [request for request in self.running if not request.finished]

    def _count(self, request: Request) -> None:
        """Counters move when a request finishes, as SGLang's do."""
        self.finished += 1
        self.output_tokens += request.tokens
        self.prompt_tokens += request.prompt_tokens
        if self.settings.speculates:
            self.steps += request.steps
            self.accepted += request.accepted
            self.since_flush[0] += request.tokens
            self.since_flush[1] += request.steps
            for kept, steps in enumerate(request.histogram):
                for position in range(kept):
                    self.per_position[position] += steps

    def _log_decode(self) -> None:
        now = time.monotonic()
        then, tokens, steps = self.log_mark
        self.log_mark = (now, self.live_tokens, self.live_steps)
        made, stepped = self.live_tokens - tokens, max(1, self.live_steps - steps)
        length = made / stepped
        accept = f"accept len: {length:.2f}, accept rate: {(length - 1) / max(1, self.settings.width - 1):.2f}, "
        say(
            f"Decode batch, #running-req: {len(self.running)}, #token: {sum(r.tokens for r in self.running)}, "
            f"token usage: 0.00, {accept if self.settings.speculates else ''}cuda graph: True, "
            f"gen throughput (token/s): {made / max(1e-6, now - then):.2f}, #queue-req: {len(self.waiting)}"
        )


# ---------------------------------------------------------------- log, crash, hang


def say(text: str, stream: Any = None) -> None:
    """One log line in SGLang's format; the process prefix names the replay."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"[{stamp} {VERSION}] {text}", file=stream or sys.stderr, flush=True)


def recorded_lines(path: Path) -> list[str]:
    """Lines of a recorded or composed log; those that begin with `##` say what it is and are not printed."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    text = path.read_text(encoding="utf-8")
    return [line.replace("{time}", f"{stamp} {VERSION}") for line in text.splitlines() if not line.startswith("##")]


async def fail(failure: Failure, scenario: dict[str, Any]) -> None:
    """Do what the failure says; returns never."""
    await asyncio.sleep(failure.rule.get("delay_s", 0))
    if failure.rule.get("log"):
        for line in recorded_lines(file_of(failure.rule["log"], Path(scenario["files"]))):
            print(line, file=sys.stderr, flush=True)
    if failure.kind == "hang":
        await asyncio.Event().wait()
    leave(failure.rule)


def leave(rule: dict[str, Any]) -> None:
    """End this process by a signal or with an exit code, at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    if rule.get("signal"):
        os.kill(os.getpid(), int(rule["signal"]))
        time.sleep(5)
    os._exit(int(rule.get("exit", 1)))


# ---------------------------------------------------------------- HTTP


class Reply(Exception):
    """An answer that is complete at once."""

    def __init__(self, status: int, body: Any = b"", kind: str = "application/json") -> None:
        super().__init__(status)
        self.status = status
        self.body = body if isinstance(body, bytes) else (json.dumps(body) + "\n").encode()
        self.kind = kind


PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


class Server:
    """The endpoints of the rehearsed service."""

    def __init__(self, engine: Engine, settings: Settings, scenario: dict[str, Any], argv: list[str]) -> None:
        self.engine, self.settings, self.scenario, self.argv = engine, settings, scenario, argv
        self.ready = False
        self.stopping = False
        self.generations = 0
        self.service: str = scenario["service"]

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = ":".join(str(part) for part in writer.get_extra_info("peername", ("?",))[:2])
        try:
            while await self._one(reader, writer, peer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        verb, target = head[0].split(" ")[:2]
        headers = {line.split(":", 1)[0].lower(): line.split(":", 1)[1].strip() for line in head[1:] if ":" in line}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        path = target.split("?")[0]
        status = 200
        try:
            if path in ("/generate", "/v1/completions", "/completion"):
                await self._generation(path, data, writer)
            else:
                await self._page(path)
        except Reply as reply:
            status = reply.status
            writer.write(
                f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\nserver: {VERSION}\r\ncontent-type: {reply.kind}\r\n"
                f"content-length: {len(reply.body)}\r\n\r\n".encode()
                + reply.body
            )
        say(f'INFO:     {peer} - "{verb} {target} HTTP/1.1" {status} {PHRASES.get(status, "")}', sys.stdout)
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    # Pages.

    async def _page(self, path: str) -> None:
        checks = ("/health", "/health_generate", "/ready", "/ping")
        if not self.ready and (self.service == "llamacpp" or path in checks):
            raise Reply(503, {"error": {"message": "Loading model (replay)", "type": "unavailable_error", "code": 503}})
        if path in ("/health", "/health_generate"):
            if self.engine.hung:
                await asyncio.sleep(20)
                raise Reply(503)
            raise Reply(200, {"status": "ok"} if self.service == "llamacpp" else b"")
        if path in ("/ready", "/ping"):  # flags only: 200 for a hung engine too
            raise Reply(200, b"")
        if path == "/metrics":
            raise Reply(200, self.metrics().encode(), "text/plain; version=0.0.4")
        if path == "/v1/models":
            asked = self.settings.asked
            name = asked.get("alias") or asked.get("served_model_name") or self.settings.model
            raise Reply(200, {"object": "list", "data": [{"id": str(name), "object": "model", "owned_by": VERSION}]})
        if path == "/version":
            raise Reply(200, {"version": VERSION})
        pages: dict[str, Callable[[], Any]] = {}
        if self.service == "sglang":
            pages = {"/server_info": self.server_info, "/get_server_info": self.server_info}
            pages.update({"/model_info": self._model_info, "/v1/loads": self._loads})
        elif self.service == "llamacpp":
            pages = {"/slots": self._slots, "/props": self._props}
        if path == "/flush_cache" and self.service == "sglang":
            self._flush()
        if path not in pages:
            raise Reply(404, {"detail": "Not Found", "replay": True})
        if self.engine.hung:  # they ask the scheduler and wait without limit
            await asyncio.Event().wait()
        raise Reply(200, pages[path]())

    def _flush(self) -> None:
        if self.engine.running or self.engine.waiting:
            say("Cache not flushed because there are pending requests.")
            raise Reply(400, b"Flush cache failed (replay).\n", "text/plain")
        self.engine.since_flush = [0, 0]
        say("Cache flushed successfully!")
        raise Reply(200, b"Cache flushed (replay).\n", "text/plain")

    def server_info(self) -> dict[str, Any]:
        """The recorded report with our own options, limits and counters in it."""
        claimed = self.settings.asked if self.scenario["speculation"] == "silent" else {}
        info = {**recorded_json(self.scenario, "server_info"), **self.settings.effective, **claimed}
        info.update(replay=True, version=VERSION, status="ready" if self.ready else "starting")
        info["launch_command"] = " ".join(self.argv)
        info["model_path"] = self.settings.model
        info["port"] = self.settings.port
        state: dict[str, Any] = {
            "replay": True,
            "effective_max_running_requests_per_dp": self.settings.max_running,
            "last_gen_throughput": 0.0,
        }
        tokens, steps = self.engine.since_flush
        if steps:
            state["avg_spec_accept_length"] = tokens / steps
        info["internal_states"] = [state]
        return info

    def _model_info(self) -> dict[str, Any]:
        return {"model_path": self.settings.model, "is_generation": True, "replay": True}

    def _loads(self) -> dict[str, Any]:
        engine = self.engine
        load = {"dp_rank": 0, "num_running_reqs": len(engine.running), "num_waiting_reqs": len(engine.waiting)}
        return {"replay": True, "loads": [{**load, "max_running_requests": self.settings.max_running}]}

    def _slots(self) -> list[dict[str, Any]]:
        busy = len(self.engine.running)
        return [
            {"id": slot, "speculative": self.settings.speculates, "is_processing": slot < busy, "replay": True}
            for slot in range(self.settings.max_running)
        ]

    def _props(self) -> dict[str, Any]:
        limit = self.settings.max_running
        return {"model_path": self.settings.model, "total_slots": limit, "build_info": VERSION, "replay": True}

    def metrics(self) -> str:
        """Prometheus text: recorded samples with the counters that the rehearsal moves in their place."""
        engine, settings = self.engine, self.settings
        drafted = engine.steps * (settings.width - 1)
        if self.service == "sglang":
            moved: dict[str, float] = {
                "generation_tokens_total": engine.output_tokens,
                "prompt_tokens_total": engine.prompt_tokens,
                "num_requests_total": engine.finished,
                "num_aborted_requests_total": engine.aborted,
                "num_running_reqs": len(engine.running),
                "num_queue_reqs": len(engine.waiting),
            }
            if settings.speculates:
                moved["spec_verify_calls_total"] = engine.steps
            labels, prefix = f'{{engine_type="{VERSION}",model_name="{settings.model}"}}', "sglang:"
        elif self.service == "vllm":
            moved = {
                "generation_tokens_total": engine.output_tokens,
                "prompt_tokens_total": engine.prompt_tokens,
                "num_requests_running": len(engine.running),
                "num_requests_waiting": len(engine.waiting),
            }
            if settings.speculates:
                moved["spec_decode_num_drafts_total"] = engine.steps
                moved["spec_decode_num_draft_tokens_total"] = drafted
                moved["spec_decode_num_accepted_tokens_total"] = engine.accepted
            labels, prefix = f'{{engine="{VERSION}",model_name="{settings.model}"}}', "vllm:"
        else:
            moved = {
                "tokens_predicted_total": engine.output_tokens,
                "prompt_tokens_total": engine.prompt_tokens,
                "n_decode_total": engine.decode_calls,
                "requests_processing": len(engine.running),
                "requests_deferred": len(engine.waiting),
                "spec_decode_num_drafts_total": engine.steps,
                "spec_decode_num_draft_tokens_total": drafted,
                "spec_decode_num_accepted_tokens_total": engine.accepted,
            }
            labels, prefix = "", "llamacpp:"
        lines = [f"# HELP {prefix}replay A rehearsal: no sample here is a measurement.", f"{prefix}replay{labels} 1.0"]
        lines += [line for line in recorded_text(self.scenario, "metrics") if _family(line) not in moved]
        lines += [f"{prefix}{name}{labels} {float(value)}" for name, value in moved.items()]
        if self.service != "sglang" and (engine.steps or self.service == "vllm"):
            name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
            inner = labels[1:-1] + "," if labels else ""
            lines += [f'{name}{{{inner}position="{i}"}} {float(n)}' for i, n in enumerate(engine.per_position)]
        return "\n".join(lines) + "\n"

    # Generations.

    async def _generation(self, path: str, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self.stopping or (self.service == "llamacpp" and not self.ready):
            raise Reply(503, {"error": {"message": "replay: not ready", "type": "unavailable_error", "code": 503}})
        try:
            body = json.loads(data)
            sampling = body.get("sampling_params") or {}
            limit = sampling.get("max_new_tokens") or body.get("max_tokens") or body.get("n_predict") or 128
            prompt, limit = str(body.get("text") or body.get("prompt") or ""), int(limit)
            natural = not (sampling.get("ignore_eos") or body.get("ignore_eos"))
        except (ValueError, TypeError, AttributeError):
            raise Reply(400, {"error": {"message": "replay: expected a JSON object", "code": 400}}) from None
        self.generations += 1
        errors = self.scenario["errors"]
        if self._every(errors.get("http_500")):
            raise Reply(500, {"error": {"message": "replay: an error on purpose", "code": 500}})
        stream = bool(body.get("stream"))
        if stream:
            writer.write(
                f"HTTP/1.1 200 OK\r\nserver: {VERSION}\r\ncontent-type: text/event-stream\r\n"
                "transfer-encoding: chunked\r\n\r\n".encode()
            )
        if self._every(errors.get("error_in_stream")) and stream:
            await self._send(writer, {"error": {"message": "replay: an error inside the stream", "code": 500}})
            await self._end(writer)
            return
        if self._every(errors.get("abort")):
            self.engine.aborted += 1
            event = self._event(path, Request(0, prompt, 1, False, self.settings, self.scenario), 0, "abort")
            if not stream:
                raise Reply(200, event)
            await self._send(writer, event)
            await self._end(writer)
            return
        request = self.engine.submit(prompt, limit, natural)
        try:
            await self._stream(path, request, writer if stream else None)
        except ConnectionError:
            say(f"Request is disconnected from the client side (type 1). Abort request {request.id}")
            self.engine.aborted += 1
            raise
        finally:
            request.gone = True
        if not stream:
            raise Reply(200, self._event(path, request, 0, request.reason))
        await self._end(writer)

    def _every(self, n: int | None) -> bool:
        return bool(n) and self.generations % int(n or 1) == 0

    async def _stream(self, path: str, request: Request, writer: asyncio.StreamWriter | None) -> None:
        sent = 0
        while True:
            last = await request.events.get()
            while not last and not request.events.empty():
                last = request.events.get_nowait()
            if writer is not None:
                if writer.is_closing():
                    raise ConnectionResetError
                await self._send(writer, self._event(path, request, sent, request.reason if last else None))
                sent = request.tokens
            if last:
                break
        if writer is not None and path == "/v1/completions":
            usage = {"completion_tokens": request.tokens, "prompt_tokens": request.prompt_tokens}
            await self._send(writer, {"id": request.id, "choices": [], "usage": usage})

    def _event(self, path: str, request: Request, sent: int, reason: str | None) -> dict[str, Any]:
        if path == "/generate":
            return {"text": text_of(0, request.tokens), "meta_info": self._meta_info(request, reason)}
        new = text_of(sent, request.tokens)
        if path == "/v1/completions":
            return {"id": request.id, "model": VERSION, "choices": [{"index": 0, "text": new, "finish_reason": reason}]}
        event: dict[str, Any] = {"content": new, "stop": reason is not None, "model": VERSION}
        if reason:
            elapsed_ms = 1000 * (time.monotonic() - request.arrived)
            event["stop_type"] = {"length": "limit", "stop": "eos"}.get(reason, reason)
            event["tokens_predicted"] = request.tokens
            event["timings"] = {
                "prompt_n": request.prompt_tokens,
                "cache_n": 0,
                "prompt_ms": 0.0,
                "predicted_n": request.tokens,
                "predicted_ms": elapsed_ms,
            }
            if self.settings.speculates and request.steps:
                event["timings"]["draft_n"] = request.steps * request.candidates
                event["timings"]["draft_n_accepted"] = request.accepted
        return event

    def _meta_info(self, request: Request, reason: str | None) -> dict[str, Any]:
        finish = {"type": reason, "length": request.tokens} if reason else None
        if reason == "abort":
            finish = {"type": "abort", "message": "replay: an abort on purpose", "status_code": 500}
        meta: dict[str, Any] = {
            "id": request.id,
            "finish_reason": finish,
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": request.tokens,
            "cached_tokens": 0,
            "weight_version": VERSION,
        }
        if reason:
            meta["e2e_latency"] = time.monotonic() - request.arrived
        if reason and self.settings.speculates and request.steps:
            proposed = request.steps * request.candidates
            meta.update(
                spec_verify_ct=request.steps,
                spec_accept_length=request.tokens / request.steps,
                spec_num_correct_drafts=request.accepted,
                spec_num_proposed_drafts=proposed,
                spec_accept_rate=request.accepted / proposed,
                spec_correct_drafts_histogram=list(request.histogram),
            )
        return meta

    async def _send(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        await self._chunk(writer, f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode())

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        await self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    async def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()


def _family(line: str) -> str:
    return line.split("{")[0].split(" ")[0].partition(":")[2]


# ---------------------------------------------------------------- scenario files


def file_of(name: str, folder: Path) -> Path:
    """A file of the scenario's folder."""
    path = folder / name
    if not path.is_file():
        raise ReplayError(f"replay: expected the file {path}; it is not there")
    return path


def recorded_json(scenario: dict[str, Any], key: str) -> dict[str, Any]:
    if not scenario[key]:
        return {}
    data: dict[str, Any] = json.loads(file_of(scenario[key], Path(scenario["files"])).read_text(encoding="utf-8"))
    return data


def recorded_text(scenario: dict[str, Any], key: str) -> list[str]:
    if not scenario[key]:
        return []
    return file_of(scenario[key], Path(scenario["files"])).read_text(encoding="utf-8").splitlines()


def scenario_of(name: str, folder: Path) -> dict[str, Any]:
    """The scenario of a name in `folder`, a path to a JSON file, or JSON text, on top of the defaults."""
    if name.lstrip().startswith("{"):
        text, source = name, "--replay-scenario"
    else:
        path = Path(name) if name.endswith(".json") else folder / f"{name}.json"
        if not path.is_file():
            known = ", ".join(sorted(item.stem for item in folder.glob("*.json"))) or "none"
            raise ReplayError(f"replay: expected a scenario of {folder} ({known}); got {name!r}")
        text, source = path.read_text(encoding="utf-8"), str(path)
        folder = path.parent
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ReplayError(f"replay: {source} is not JSON: {error}") from None
    if not isinstance(given, dict) or set(given) - set(DEFAULTS):
        extra = sorted(set(given) - set(DEFAULTS)) if isinstance(given, dict) else [type(given).__name__]
        raise ReplayError(f"replay: {source}: expected the keys {', '.join(DEFAULTS)}; got {extra[0]!r}")
    scenario = copy.deepcopy(DEFAULTS)
    for key, value in given.items():
        scenario[key] = {**scenario[key], **value} if key in ("pace", "acceptance") else value
    scenario["files"] = str(folder)
    if scenario["service"] not in ("sglang", "vllm", "llamacpp"):
        raise ReplayError(f"replay: service: expected sglang, vllm or llamacpp; got {scenario['service']!r}")
    if scenario["speculation"] not in ("as asked", "off", "silent"):
        raise ReplayError(f"replay: speculation: expected 'as asked', off or silent; got {scenario['speculation']!r}")
    return scenario


def default_folder() -> Path:
    """The scenarios that lie beside this file, or those of the source tree that it lies in."""
    beside = Path(__file__).resolve().parent / "replay"
    return beside if beside.is_dir() else Path(__file__).resolve().parents[3] / "specsweep" / "engines" / "replay"


# ---------------------------------------------------------------- one engine over several hosts


async def gather(settings: Settings, engine: Engine) -> asyncio.AbstractServer:
    """Rank 0: wait for every follower.  One that leaves later makes the engine hang, as a collective would."""
    address, _, port = settings.rendezvous.rpartition(":")
    missing = asyncio.Semaphore(0)

    async def member(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        rank = (await reader.readline()).decode().strip()
        say(f"rank {rank} of {settings.nodes} joined")
        missing.release()
        await reader.read()
        engine.hung = True
        say(f"rank {rank} of {settings.nodes} is gone: waiting for it in the next collective")

    listening = await asyncio.start_server(member, address, int(port))
    say(f"Init torch distributed begin. waiting for {settings.nodes - 1} ranks at {settings.rendezvous}")
    for _ in range(settings.nodes - 1):
        await missing.acquire()
    return listening


async def follow(settings: Settings, scenario: dict[str, Any], speed: float) -> int:
    """A rank above 0: loads, then a dummy server that is always healthy; ends when rank 0 is gone, not before."""
    address, _, port = settings.rendezvous.rpartition(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(address, int(port))
            break
        except OSError:
            await asyncio.sleep(0.1)
    writer.write(f"{settings.rank}\n".encode())
    say(f"Init torch distributed ends. rank {settings.rank} of {settings.nodes}")
    await asyncio.sleep(scenario["load_s"] / speed)
    say("Load weight end. elapsed=0.00 s, type=replay, avail mem=0.00 GB, mem usage=0.00 GB.")

    async def healthy(asking: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        await asking.readuntil(b"\r\n\r\n")
        answer.write(f"HTTP/1.1 200 OK\r\nserver: {VERSION}\r\ncontent-length: 0\r\n\r\n".encode())
        await answer.drain()
        answer.close()

    listening = await asyncio.start_server(healthy, settings.host, settings.port)
    say(f"Dummy health check server started on {settings.host}:{settings.port} (replay)")
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: say("SIGTERM received. Waiting for rank 0 to end first.")
    )
    await reader.read()
    say("rank 0 is gone.")
    listening.close()
    leave(scenario["stop"])
    return 0


# ---------------------------------------------------------------- the life of the process


async def serve(argv: list[str], settings: Settings, scenario: dict[str, Any], speed: float) -> int:
    """Load, warm up, serve until SIGTERM; returns the exit status."""
    failures = [Failure(rule) for rule in scenario["failures"]]

    async def stage(at: str) -> None:
        for failure in failures:
            if failure.holds(at, settings, 0, 0):
                await fail(failure, scenario)

    say(f"REPLAY of {scenario['service']}: a rehearsal, nothing here is a measurement. {scenario['note']}".rstrip())
    await stage("start")
    say(f"server_args={{'replay': True, 'model_path': {settings.model!r}, 'port': {settings.port}}}")
    say("Load weight begin. avail mem=0.00 GB")
    if settings.rank > 0:
        return await follow(settings, scenario, speed)
    engine = Engine(settings, scenario, failures, speed)
    ranks = await gather(settings, engine) if settings.nodes > 1 else None
    server = Server(engine, settings, scenario, argv)
    stop = asyncio.Event()
    listening = None
    if scenario["service"] == "llamacpp":  # binds first, answers 503 while it loads
        listening = await listen(server, settings)
    await asyncio.sleep(scenario["load_s"] / speed)  # a SIGTERM ends the process here: no handler yet
    await stage("load")
    say("Load weight end. elapsed=0.00 s, type=replay, avail mem=0.00 GB, mem usage=0.00 GB.")
    kind = "target verify" if settings.speculates else "target decode"
    say(f"Capture {kind} CUDA graph begin. backend=full, num_tokens_per_req={settings.width}, avail mem=0.00 GB")
    say(f"Capture {kind} CUDA graph end. elapsed=0.00 s, mem usage=0.00 GB, avail mem=0.00 GB.")
    say(f"max_total_num_tokens=0, chunked_prefill_size=0, max_running_requests={settings.max_running}, context_len=0")
    listening = listening or await listen(server, settings)
    if listening is None:
        return 1 if scenario["service"] != "sglang" else 3
    say(f"INFO:     Uvicorn running on http://{settings.host}:{settings.port} (replay)")
    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stop.set)
    work = asyncio.ensure_future(engine.run())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopped], timeout=scenario["warmup_s"] / speed)
    await stage("warmup")
    server.ready = True
    say("The server is fired up and ready to roll! (replay)")
    await asyncio.wait([stopped, work], return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()  # a fault of the rehearsal itself: raise it
    server.stopping = True
    say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    while (engine.running or engine.waiting) and not engine.hung:
        await asyncio.sleep(0.02)
    say("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
    work.cancel()
    listening.close()
    if ranks is not None:
        ranks.close()
    leave(scenario["stop"])
    return 0


async def listen(server: Server, settings: Settings) -> asyncio.AbstractServer | None:
    """The listening server, or None where the port is taken."""
    try:
        return await asyncio.start_server(server.client, settings.host, settings.port, backlog=1024)
    except OSError as error:
        say(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
            f"({settings.host!r}, {settings.port}): address already in use"
        )
        return None


def own_options() -> argparse.ArgumentParser:
    """The rehearsal's own options, and the SGLang flags that it names in its help."""
    parser = argparse.ArgumentParser(
        prog="replay_server",
        description="A rehearsal of a recorded service: nothing it says is a measurement.",
        epilog="SGLang flags it knows; any other one is taken as well:\n"
        + "\n".join("  --" + name for name in FLAG_NAMES.split()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("--replay-scenario", default="{}", metavar="NAME", help="a name, a JSON file or JSON text")
    parser.add_argument("--replay-files", metavar="FOLDER", help="where scenarios and recorded files lie")
    parser.add_argument("--replay-speed", type=float, default=1.0, metavar="FACTOR", help="all times divided by this")
    parser.add_argument("--replay-load-s", type=float, metavar="SECONDS", help="port refused this long")
    parser.add_argument("--replay-warmup-s", type=float, metavar="SECONDS", help="503 this long")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    own, others = own_options().parse_known_args(argv)
    try:
        if own.replay_speed <= 0:
            raise ReplayError(f"--replay-speed: expected a number above 0; got {own.replay_speed}")
        scenario = scenario_of(own.replay_scenario, Path(own.replay_files) if own.replay_files else default_folder())
        if own.replay_load_s is not None:
            scenario["load_s"] = own.replay_load_s
        if own.replay_warmup_s is not None:
            scenario["warmup_s"] = own.replay_warmup_s
        settings = Settings(options_of(others), dict(os.environ), scenario)
        for name in [scenario["server_info"], scenario["metrics"], *(rule.get("log") for rule in scenario["failures"])]:
            if name:
                file_of(name, Path(scenario["files"]))
        return asyncio.run(serve(argv, settings, scenario, own.replay_speed))
    except ReplayError as error:
        print(f"replay_server: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
