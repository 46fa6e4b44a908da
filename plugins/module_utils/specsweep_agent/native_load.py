"""One load point by an engine's own load tool, and what its result is worth.

The load client warms the server up and reads its counters before and after; the tool only sends the measured
requests.  What these tools hide, and what is done about it:

* Status 0 although requests failed: what was asked is counted against what was completed.
* Phantom successes (an error or an abort inside a 200 stream counts as the requested number of tokens): a success
  without a first token or without a text is none, and the server's own counter must have the tokens.
* No result file when the server ends, or when every request fails: the point is lost, and the record says how
  much the server answered.
* An acceptance length of the server's whole life: kept as a remark, never used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The tools import a whole engine before they answer.
PROBE_TIMEOUT_S = 180.0
#: Between asking the tool to end and ending it; shorter than what the client itself is given.
END_S = 2.0
#: A server may count a request's first token elsewhere, so a small difference proves nothing.
UNCOUNTED_SHARE = 0.02

_FLAG = re.compile(r"(?<![\w-])--[A-Za-z][A-Za-z0-9-]*")


class ToolError(Exception):
    """A tool that cannot be used on this host; the message is one line."""


def environment() -> dict[str, str]:
    """The tool's environment: without the load client's own packages, and with no proxy between it and the engine."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for name in ("no_proxy", "NO_PROXY"):
        own[name] = ",".join(filter(None, [own.get(name), "127.0.0.1,localhost"]))
    return own


async def find(tool: dict[str, Any]) -> list[str]:
    """The first command of the tool that answers its help on this host, and whose help has every flag we give.

    Raises ToolError.
    """
    tried = []
    for command in tool["commands"]:
        status, text = await _help([*command, *tool["help"]])
        if status != 0:
            tried.append("{}: {}".format(" ".join(command), last_line(text) or "status %s" % status))
            continue
        known = set(_FLAG.findall(text))
        missing = [flag for flag in tool["flags"] if known and flag not in known]
        if missing:
            tried.append("{}: this build does not know {}".format(" ".join(command), " ".join(missing)))
            continue
        return list(command)
    raise ToolError("{} cannot be used on this host ({})".format(tool["name"], "; ".join(tried)))


async def _help(argv: list[str]) -> tuple[int | None, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Wide: a help text in boxes breaks long flags.
            env=dict(environment(), COLUMNS="200"),
            start_new_session=True,
        )
    except OSError as error:
        return None, str(error)
    try:
        text, _ = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
    except asyncio.TimeoutError:
        return None, f"no answer within {PROBE_TIMEOUT_S:g} s"
    finally:
        await _end(process)
    return process.returncode, text.decode(errors="replace")


async def _end(process: Any) -> None:
    """End a tool and everything that it started."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
    # Its workers may outlive it.
    _signal(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def last_line(text: str) -> str:
    """The last line that says something; a progress bar's states count as lines."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip(" =-\t")]
    return lines[-1][:300] if lines else ""


async def measure(
    tool: dict[str, Any], command: list[str], point: dict[str, Any], folder: Path, timeout_s: float
) -> dict[str, Any]:
    """Run the tool once.  `point` is the load point's `native` part.

    Returns records (one for each request that was asked), window and what the tool left, for `judge`.  The window
    is the tool's own duration; its place in time is taken from the tool's end, so it is not exact.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prompts = Path(point["prompts_file"])
    prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts.write_text("".join(json.dumps(line) + "\n" for line in point["prompts"]))
    argv = [*command, *point["arguments"]]
    (folder / "argv.json").write_text(json.dumps(argv))
    began = time.time()
    interrupted = ""
    with (folder / "tool.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=str(folder),
            env=dict(environment(), COLUMNS="200"),
            start_new_session=True,
        )
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except asyncio.TimeoutError:
            interrupted = f"not done within {timeout_s:g} s"
        except asyncio.CancelledError:
            interrupted = "ended from outside"
        finally:
            await _end(process)
    ended = time.time()
    left = read(tool["form"], Path(point["result_file"]))
    requests = records(left.pop("requests"), point)
    duration = left["duration_s"] or ended - began
    return {
        "records": requests,
        "began_unix_s": max(began, ended - duration),
        "window_s": duration,
        "interrupted": interrupted,
        "native": {
            **left,
            "tool": tool["name"],
            "exit_status": process.returncode,
            "last_line": last_line((folder / "tool.log").read_text(errors="replace")),
        },
    }


def unusable(tool: dict[str, Any], point: dict[str, Any], problem: str) -> dict[str, Any]:
    """A load point of a tool that this host does not have: every request is failed, nothing was sent."""
    told = {"tool": tool["name"], "exit_status": None, "last_line": problem, "note": "nothing: it never ran"}
    told.update(duration_s=None, claimed_tokens=None, lifetime_al=None)
    requests = [dict(record, error="not sent: " + problem) for record in records(None, point)]
    return {"records": requests, "began_unix_s": time.time(), "window_s": 0.0, "interrupted": "", "native": told}


def read(form: str, path: Path) -> dict[str, Any]:
    """What a tool's result file says: requests (None without a usable file), duration_s, claimed, lifetime_al, note."""
    empty = {"requests": None, "duration_s": None, "claimed_tokens": None, "lifetime_al": None, "note": ""}
    try:
        rows = _rows(path.read_text())
        return {**empty, **(_aiperf(rows) if form == "aiperf" else _details(rows[-1]))}
    except FileNotFoundError:
        return {**empty, "note": "no result file"}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return {**empty, "note": f"a result file that cannot be read ({type(error).__name__}: {str(error)[:120]})"}


def _rows(text: str) -> list[dict[str, Any]]:
    """A JSON document, or JSON lines; Python's reader knows the bare Infinity that SGLang's tool writes."""
    if not text.strip():
        raise ValueError("it is empty")
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.split("\n") if line.strip()]


def _details(row: dict[str, Any]) -> dict[str, Any]:
    """A row of SGLang's serving benchmark or of `vllm bench serve`, with details."""
    names = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")
    columns = [row[name] for name in names]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("its lists of requests differ in length")
    retokenized = row.get("total_output_tokens_retokenized")
    claimed = _number(row.get("total_output_tokens"))
    return {
        "requests": [_request(*values) for values in zip(*columns)],
        "duration_s": _number(row["duration"]),
        "claimed_tokens": claimed,
        "no_text": bool(claimed) and retokenized == 0,
        "lifetime_al": _number(row.get("accept_length")),
    }


def _request(prompt: int, output: int, ttft: float, itls: list[float], text: str, error: str) -> dict[str, Any]:
    told = str(error or "")
    if not told and not output:
        told = "failed without a word"
    phantom = not told and (not ttft or not text)
    if phantom:
        absent = "no text" if not text else "no first token"
        told = f"counted as a success of {output} tokens, but {absent} came"
    e2e_ms = (ttft + sum(itls)) * 1000.0
    return _record(prompt, output, ttft * 1000.0, e2e_ms, told, phantom, 0.0)


def _aiperf(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """AIPerf's profile_export.jsonl: one request a line, the warm-up marked."""
    rows = [row for row in rows if row["metadata"].get("benchmark_phase") in (None, "profiling")]
    starts = [row["metadata"]["request_start_ns"] for row in rows]
    ends = [row["metadata"]["request_end_ns"] for row in rows]
    found = []
    for row, start in zip(rows, starts):
        numbers = row.get("metrics") or {}
        output = _metric(numbers, "output_sequence_length")
        ttft, e2e = _metric(numbers, "time_to_first_token"), _metric(numbers, "request_latency")
        error = row.get("error")
        told = str(error.get("message") or error) if isinstance(error, dict) else str(error or "")
        if not told and row["metadata"].get("was_cancelled"):
            told = "cancelled"
        phantom = not told and not (output and ttft and e2e)
        if phantom:
            told = "counted as a success, but no text came"
        prompt = int(_metric(numbers, "input_sequence_length") or 0)
        at = (start - min(starts)) / 1e9
        found.append(_record(prompt, int(output or 0), ttft or 0.0, e2e or 0.0, told, phantom, at))
    claimed = sum(item["output_tokens"] for item in found)
    duration_s = (max(ends) - min(starts)) / 1e9 if rows else None
    return {"requests": found, "duration_s": duration_s, "claimed_tokens": claimed}


_TO_MS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "us": 0.001, "ns": 1e-6, "tokens": 1.0}


def _metric(numbers: dict[str, Any], name: str) -> float | None:
    item = numbers.get(name)
    if not isinstance(item, dict):
        return None
    value = _number(item.get("value"))
    return None if value is None else value * _TO_MS[str(item.get("unit") or "ms")]


def _number(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _record(
    prompt: int, output: int, ttft_ms: float, e2e_ms: float, error: str, phantom: bool, sent_s: float
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "prompt_tokens": prompt or None,
        "output_tokens": output,
        "sent_s": sent_s,
        "ok": not error,
        "error": error or None,
        "phantom": phantom,
    }
    if not error:
        record["ttft_ms"] = round(ttft_ms, 3)
        record["e2e_ms"] = round(e2e_ms, 3)
        if output > 1:
            record["tpot_ms"] = round((e2e_ms - ttft_ms) / (output - 1), 5)
    return record


def records(found: list[dict[str, Any]] | None, point: dict[str, Any]) -> list[dict[str, Any]]:
    """One record for each request that was asked.  The tools shuffle: which prompt it was is not known."""
    asked = len(point["prompts"])
    known = list(found or [])
    if point["exact"]:
        for item in known:
            if item["ok"] and item["output_tokens"] != point["output_tokens"]:
                wrong = "ended after {} of exactly {} tokens".format(item["output_tokens"], point["output_tokens"])
                item.update(ok=False, error=wrong)
    missing = "its result is lost" if found is None else "the tool did not send it"
    known += [{"ok": False, "error": missing, "sent_s": 0.0} for _ in range(asked - len(known))]
    return [
        {"id": str(number), "prompt_id": "not known", "category": "not known", "warmup": False, **item}
        for number, item in enumerate(known)
    ]


def judge(measured: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What the tool's result is worth: `failed` or `void` with the reason, and `remarks`; empty where it is good."""
    told = measured["native"]
    return {
        "failed": _failed(told, before, after),
        "void": _void(told, before, after),
        "remarks": list(_remarks(told, measured["records"])),
    }


def _failed(told: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> str:
    if not told["note"]:
        return ""
    if told["exit_status"] is None:
        return str(told["last_line"])
    reason = "{} ended with status {} and left {}: {}".format(
        told["tool"], told["exit_status"], told["note"], told["last_line"] or "its log is empty"
    )
    answered = [
        f"{count:g} {what}"
        for name, what in (("requests", "requests"), ("output_tokens", "output tokens"))
        for count in [_difference(before, after, name)]
        if count
    ]
    if answered:
        reason += "; lost: the server counted {}".format(" and ".join(answered))
    return reason


def _void(told: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> str:
    claimed, counted = told["claimed_tokens"], _difference(before, after, "output_tokens")
    if told.get("no_text"):
        return "{} claims {:g} output tokens, and their texts have none".format(told["tool"], claimed)
    if claimed and counted is not None and counted < claimed * (1 - UNCOUNTED_SHARE):
        return "{} claims {:g} output tokens, the server counted {:g}".format(told["tool"], claimed, counted)
    return ""


def _remarks(told: dict[str, Any], requests: list[dict[str, Any]]) -> Iterator[str]:
    yield "times and token counts are the tool's own, acceptance is from the server's counters in this window"
    if told["lifetime_al"] is not None:
        al = told["lifetime_al"]
        yield f"its own acceptance length {al:.2f} is the server's since the last flush: not used"
    failed = sum(not record["ok"] for record in requests)
    if failed and told["exit_status"] == 0:
        yield f"it ended with status 0 although {failed} of {len(requests)} requests failed"
    elif told["exit_status"] and not told["note"]:
        yield "it ended with status {}: {}".format(told["exit_status"], told["last_line"])


def _difference(before: dict[str, Any], after: dict[str, Any], name: str) -> float | None:
    start, end = before.get(name), after.get(name)
    if start is None or end is None or end < start:
        return None
    return float(end - start)
