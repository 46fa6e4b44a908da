"""The load client: closed loop at a fixed concurrency, streaming, on the host, beside the engine.

    python -m specsweep_agent.load_client JOB.json

It measures every load point of one restart and writes each as soon as it is done, so nothing is lost when the
engine, the connection or the client itself dies.  Needs aiohttp.  Files in the job's folder:

* status.json: what it is doing now
* points/ID.json: window, counters before and after, lag of this client, flush, warm-up
* requests/ID.jsonl.gz: one line a request (specsweep/record.py: Request)
* telemetry.jsonl: 1 Hz samples of the GPUs
* evidence/ID/: log, command and result file of a native load tool, where one sends the measured requests
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from . import guard, metrics, native_load, paths, sent
from .generate import merge, with_prompt
from .service import atomic_write, manager
from .telemetry import Telemetry

VERSION = "1"
LAG_EVERY_S = 0.02
ENDED = "ended from outside"


def quantile(values: list[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


class Lag:
    """How late this client's own event loop is."""

    def __init__(self) -> None:
        self.samples_ms: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.samples_ms.append((time.perf_counter() - due) * 1000)


class Client:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.folder = Path(job["folder"])
        self.dialect = job["dialect"]
        self.drafted_seen = float(job.get("drafted_before") or 0)
        self.cancelled: list[dict[str, Any]] = []
        self.tool_command: list[str] = []
        self.tool_problem = ""
        self.status: dict[str, Any] = {"state": "running", "pid": os.getpid(), "points": {}, "phases": []}

    # status

    def tell(self, **changes: Any) -> None:
        self.status.update(changes, at_unix_s=time.time())
        atomic_write(self.folder / "status.json", json.dumps(self.status))

    def phase(self, name: str, began: float, detail: str) -> None:
        self.status["phases"].append({"name": name, "start_unix_s": began, "end_unix_s": time.time(), "detail": detail})

    # one request

    async def request(
        self, session: aiohttp.ClientSession, item: dict[str, str], origin: float, warmup: bool
    ) -> dict[str, Any]:
        """Send one request and read its stream; never raises, the error stands in the record."""
        record: dict[str, Any] = {
            "id": item["id"],
            "prompt_id": item["id"],
            "category": item["category"],
            "warmup": warmup,
        }
        body = with_prompt(self.job["body"], item["prompt"])
        sent = time.perf_counter()
        record["sent_s"] = round(sent - origin, 6)
        text, last, first_at, ended_at = [], {}, None, sent  # type: ignore[var-annotated]

        def take(line: bytes, now: float) -> None:
            nonlocal first_at, ended_at
            event = self._event(line)
            if event is None:
                return
            ended_at = now
            problem = paths.first(event, self.dialect["error"])
            if problem:
                record["error"] = f"error inside a 200 stream: {str(problem)[:300]}"
                record["phantom"] = True
            piece = paths.first(event, self.dialect["text"])
            if piece and isinstance(piece, str):
                if first_at is None:
                    first_at = now
                if self.dialect["text_is_cumulative"]:
                    text[:] = [piece]
                else:
                    text.append(piece)
            merge(last, event)

        try:
            async with session.post(self.job["url"] + self.dialect["path"], json=body) as answer:
                if answer.status != 200:
                    detail = (await answer.text(errors="replace"))[:300]
                    record["error"] = "HTTP %d: %s" % (answer.status, detail)
                else:
                    buffer = b""
                    async for chunk in answer.content.iter_any():
                        now = time.perf_counter()
                        buffer += chunk
                        *lines, buffer = buffer.split(b"\n")
                        for line in lines:
                            take(line, now)
                    # The last line may have no end; a half one is no JSON, and so an error.
                    take(buffer, time.perf_counter())
        except asyncio.CancelledError:
            record["error"] = "cancelled: the measurement was ended"
            record["ok"] = False
            self._numbers(record, last, "".join(text), sent, first_at, time.perf_counter())
            self.cancelled.append(record)
            raise
        except asyncio.TimeoutError:
            record["error"] = "no end within {:g} s".format(self.job["request_timeout_s"])
        except (aiohttp.ClientError, OSError, ValueError) as error:
            record["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        self._numbers(record, last, "".join(text), sent, first_at, ended_at)
        return record

    @staticmethod
    def _event(line: bytes) -> dict[str, Any] | None:
        line = line.strip()
        if not line.startswith(b"data:"):
            return None
        data = line[5:].strip()
        if not data or data == b"[DONE]":
            return None
        event = json.loads(data)
        return event if isinstance(event, dict) else None

    def _numbers(
        self,
        record: dict[str, Any],
        last: dict[str, Any],
        text: str,
        sent: float,
        first_at: float | None,
        ended_at: float,
    ) -> None:
        dialect = self.dialect
        for name in ("output_tokens", "prompt_tokens", "cached_tokens", "steps", "drafts", "drafted_tokens"):
            record[name] = paths.first(last, dialect[name])
        record["accepted_tokens"] = paths.first(last, dialect["accepted_tokens"])
        record["histogram"] = paths.first(last, dialect["histogram"])
        record["finish_reason"] = paths.first(last, dialect["finish_reason"])
        if isinstance(record["finish_reason"], dict):
            record["finish_reason"] = record["finish_reason"].get("type")
        seconds = [value for path in dialect["server_s"] for value in paths.values(last, path)]
        server_ms = [value for path in dialect["server_ms"] for value in paths.values(last, path)]
        if seconds or server_ms:
            record["server_ms"] = sum(server_ms) + 1000 * sum(seconds)
        if record.get("error"):
            record["ok"] = False
            return
        for name in dialect["absent_is_zero"]:
            record[name] = record[name] or 0
        problem = None
        tokens = record["output_tokens"]
        if str(record["finish_reason"]) in dialect["failed_by"]:
            problem = "the server ended it: {}".format(record["finish_reason"])
        elif not text:
            problem = "HTTP 200 with an empty text"
        elif dialect["finish_reason"] and record["finish_reason"] is None:
            problem = "the stream ended before the answer did: no finish reason came"
        elif tokens is None:
            problem = "the server gave no count of output tokens"
        elif self.job["exact"] and tokens != self.job["max_tokens"]:
            problem = "ended after {} of exactly {} tokens".format(tokens, self.job["max_tokens"])
        if problem:
            # It looked like a success; only its length is wrong when a text of counted tokens came.
            record.update(ok=False, error=problem, phantom=not (text and tokens))
            return
        record["ok"] = True
        record["text_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        record["e2e_ms"] = round((ended_at - sent) * 1000, 3)
        if first_at is not None:
            record["ttft_ms"] = round((first_at - sent) * 1000, 3)
            if tokens > 1:
                record["tpot_ms"] = round((ended_at - first_at) * 1000 / (tokens - 1), 5)

    # one load point

    async def _closed_loop(
        self, session: aiohttp.ClientSession, items: list[dict[str, str]], concurrency: int, warmup: bool
    ) -> dict[str, Any]:
        """Keep `concurrency` requests in flight until all are answered or the server is gone."""
        queue = list(reversed(items))
        done: list[dict[str, Any]] = []
        origin = time.perf_counter()
        began = time.time()
        refused = 0

        async def worker() -> None:
            nonlocal refused
            while queue and refused < concurrency + 2:
                record = await self.request(session, queue.pop(), origin, warmup)
                done.append(record)
                refused = refused + 1 if "Cannot connect" in str(record.get("error")) else 0

        self.cancelled = []
        workers = [asyncio.ensure_future(worker()) for _ in range(min(concurrency, len(items)))]
        interrupted = ""
        try:
            await asyncio.wait_for(asyncio.gather(*workers), self.job["point_timeout_s"])
        except asyncio.TimeoutError:
            interrupted = "not done within {:g} s".format(self.job["point_timeout_s"])
        except asyncio.CancelledError:
            interrupted = ENDED
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        # Refused to the end: gone too where the queue was used up before the workers gave up.
        if (queue or refused) and not interrupted:
            interrupted = "the server is gone"
        done += self.cancelled
        for item in queue:
            error = "not sent: " + interrupted
            done.append({"id": item["id"], "prompt_id": item["id"], "category": item["category"], "warmup": warmup,
                         "sent_s": 0.0, "ok": False, "error": error})  # fmt: skip
        ends = [record["sent_s"] + record["e2e_ms"] / 1000 for record in done if record.get("e2e_ms") is not None]
        return {
            "records": done,
            "began_unix_s": began,
            "window_s": max(ends) if ends else time.perf_counter() - origin,
            "interrupted": interrupted,
        }

    async def _by_the_tool(self, point: dict[str, Any]) -> dict[str, Any]:
        tool = self.job["tool"]
        folder = self.folder / "evidence" / point["id"]
        if self.tool_problem:
            return native_load.unusable(tool, point["native"], self.tool_problem)
        return await native_load.measure(tool, self.tool_command, point["native"], folder, self.job["point_timeout_s"])

    async def _find_the_tool(self) -> None:
        """Before anything is measured: asking it loads a whole engine's modules."""
        if self.job.get("tool"):
            try:
                self.tool_command = await native_load.find(self.job["tool"])
            except native_load.ToolError as error:
                self.tool_problem = str(error)

    async def _page(self, session: aiohttp.ClientSession) -> str | None:
        rules = self.job.get("metrics")
        if not rules:
            return None
        try:
            async with session.get(self.job["url"] + rules["path"], timeout=aiohttp.ClientTimeout(total=10)) as answer:
                return await answer.text(errors="replace") if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
            return None

    def _counters(self, page: str | None) -> dict[str, Any]:
        rules = self.job.get("metrics")
        if not rules or page is None:
            return {}
        found: dict[str, Any] = dict(metrics.read(page, rules["counters"]))
        if rules.get("accepted_per_position"):
            position = rules["accepted_per_position"]
            found["accepted_per_position"] = metrics.by_position(page, position["name"], position["label"])
        if rules.get("requests_running"):
            found["requests_running"] = metrics.total(page, rules["requests_running"])
        return found

    async def _counters_after(
        self, session: aiohttp.ClientSession, before: dict[str, Any], tokens: int
    ) -> dict[str, Any]:
        """Counters once they have caught up with the requests that ended (they lag on some engines)."""
        deadline = time.monotonic() + 3
        while True:
            after = self._counters(await self._page(session))
            if not after or "output_tokens" not in after or "output_tokens" not in before:
                return after
            if after["output_tokens"] - before["output_tokens"] >= tokens or time.monotonic() > deadline:
                return after
            await asyncio.sleep(0.1)

    def _prompts_seen(self, point: dict[str, Any]) -> int | None:
        service = self.job.get("service")
        if not service:
            return None
        prompts = [item["prompt"] for item in [*point["warmup"], *point["load"]]]
        return sent.mark(Path(service["home"]), service.get("main_pid") or 0, prompts)

    async def _flush(self, session: aiohttp.ClientSession) -> str:
        rule = self.job.get("flush")
        if not rule:
            return "none"
        answer_text = ""
        for _ in range(20):
            try:
                async with session.request(
                    rule["method"], self.job["url"] + rule["path"], timeout=aiohttp.ClientTimeout(total=30)
                ) as answer:
                    if answer.status == 200:
                        return "flushed"
                    answer_text = "HTTP %d" % answer.status
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                answer_text = type(error).__name__
            await asyncio.sleep(0.25)
        return "not flushed: " + answer_text

    async def point(self, session: aiohttp.ClientSession, point: dict[str, Any]) -> dict[str, Any]:
        """Flush, warm up with one wave at the same concurrency, measure; then write what came out."""
        name = "c%d" % point["concurrency"]
        result: dict[str, Any] = {"id": point["id"], "concurrency": point["concurrency"], "client_version": VERSION}
        began = time.time()
        self.tell(point=point["id"], phase="warmup")
        result["prompts_seen"] = self._prompts_seen(point)
        result["flush"] = await self._flush(session)
        start = self._counters(await self._page(session))
        result["running_before"] = start.get("requests_running")
        warm = await self._closed_loop(session, point["warmup"], point["concurrency"], True)
        self.phase("warmup", began, name)
        self.drafted_seen += sum(record.get("drafted_tokens") or 0 for record in warm["records"])
        before = self._counters(await self._page(session))
        drafted = max(self.drafted_seen, before.get("drafted_tokens") or 0, before.get("accepted_tokens") or 0)
        countable = (
            "drafted_tokens" in before or bool(self.dialect["drafted_tokens"]) or bool(self.dialect["accepted_tokens"])
        )
        result["drafted_after_warmup"] = drafted if countable else None
        result["warmup_failed"] = sum(not record.get("ok") for record in warm["records"])
        records = warm["records"]
        if self.job["speculative"] and countable and not drafted and not result["warmup_failed"]:
            result["no_drafts"] = True
        elif warm["interrupted"]:
            result["interrupted"] = warm["interrupted"]
        else:
            self.tell(phase="measure")
            lag = Lag()
            watcher = asyncio.ensure_future(lag.watch())
            who = resource.RUSAGE_CHILDREN if "native" in point else resource.RUSAGE_SELF
            cpu = resource.getrusage(who)
            if "native" in point:
                measured = await self._by_the_tool(point)
            else:
                measured = await self._closed_loop(session, point["load"], point["concurrency"], False)
            spent = resource.getrusage(who)
            watcher.cancel()
            self.phase("measure", measured["began_unix_s"], name)
            records = records + measured["records"]
            tokens = sum(record.get("output_tokens") or 0 for record in measured["records"] if record.get("ok"))
            try:
                after = await self._counters_after(session, before, tokens)
            except asyncio.CancelledError:
                # What was measured is written all the same.
                after = {}
                measured["interrupted"] = measured["interrupted"] or ENDED
            lag_p99 = quantile(lag.samples_ms, 0.99)
            result.update(
                window_start_unix_s=measured["began_unix_s"],
                window_s=measured["window_s"],
                interrupted=measured["interrupted"],
                counters_before=before,
                counters_after=after,
                lag_ms_p99=lag_p99,
                lag_ms_max=max(lag.samples_ms) if lag.samples_ms else None,
                cpu_s=spent.ru_utime + spent.ru_stime - cpu.ru_utime - cpu.ru_stime,
            )
            if "native" in point:
                result.update(native=measured["native"], **native_load.judge(measured, before, after))
                # Nothing is known of the tool's own loop.
                result.update(client=self.job["tool"]["name"], client_version="", lag_ms_p99=None, lag_ms_max=None)
        self._write(point["id"], result, records)
        return result

    def _write(self, point_id: str, result: dict[str, Any], records: list[dict[str, Any]]) -> None:
        path = self.folder / "requests" / (point_id + ".jsonl.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with gzip.open(str(temporary), "wt") as out:
            for record in records:
                out.write(json.dumps(record) + "\n")
        temporary.replace(path)
        atomic_write(self.folder / "points" / (point_id + ".json"), json.dumps(result))

    # the whole job

    async def run(self) -> None:
        """Measure every load point in turn; stop where going on would measure something else."""
        telemetry = Telemetry(self.folder / "telemetry.jsonl", self._engine_pids())
        telemetry.start()
        keeper = asyncio.ensure_future(self._keep_the_host())
        timeout = aiohttp.ClientTimeout(total=self.job["request_timeout_s"], sock_connect=30)
        connector = aiohttp.TCPConnector(limit=0, force_close=not self.dialect["reuse_connections"])
        try:
            async with aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=self.job["headers"], trust_env=False
            ) as session:
                await self._find_the_tool()
                for point in self.job["points"]:
                    result = await self.point(session, point)
                    whole = not (result.get("no_drafts") or result.get("interrupted"))
                    self.status["points"][point["id"]] = "done" if whole else "ended"
                    if result.get("no_drafts"):
                        self.tell(state="not_applied", reason="speculation was asked for and no draft was counted")
                        return
                    if result.get("interrupted"):
                        self.tell(state="interrupted", reason=result["interrupted"])
                        return
                    self.tell()
            self.tell(state="done")
        finally:
            keeper.cancel()
            telemetry.stop()

    async def _keep_the_host(self) -> None:
        """Renew the sweep's lease while measuring: the controller may be out of reach, or gone for good."""
        service = self.job.get("service")
        while service:
            try:
                guard.renew(Path(service["home"]), self.job["sweep_id"], self.job["lease_s"])
            except guard.Locked:
                return
            await asyncio.sleep(self.job["lease_s"] / 6)

    def _engine_pids(self) -> Any:
        service = self.job.get("service")
        if not service:
            return set
        return manager(service["name"], Path(service["home"])).pids


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    client = Client(job)
    client.tell()

    async def bounded() -> None:
        task = asyncio.ensure_future(client.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            client.tell(state="interrupted", reason=ENDED)

    try:
        asyncio.run(bounded())
    except Exception as error:
        client.tell(state="broken", reason=f"{type(error).__name__}: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
