"""A stand-in for an engine's own load tool, with the flags of SGLang's serving benchmark.  No measurement.

STAND_IN says what it does: `send` really sends the prompts to llama.cpp's server and writes what it timed; a path
makes it write that recorded result file; `all_fail`, `dies`, `hangs` and `silent` end as the recorded tool ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

TEXTS = ("backend", "base-url", "model", "tokenizer", "dataset-name", "dataset-path", "tag", "output-file")
NUMBERS = ("sharegpt-output-len", "num-prompts", "request-rate", "max-concurrency", "warmup-requests", "temperature",
           "seed")  # fmt: skip
SWITCHES = ("disable-ignore-eos", "output-details", "disable-tqdm")


def given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in TEXTS:
        parser.add_argument("--" + name)
    for name in NUMBERS:
        parser.add_argument("--" + name, type=float)
    for name in SWITCHES:
        parser.add_argument("--" + name, action="store_true")
    return parser.parse_args()


def answer(url: str, prompt: str, tokens: int) -> dict[str, Any]:
    """One streamed completion of llama.cpp's server, timed."""
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "stream": True, "temperature": 0,
            "cache_prompt": False}  # fmt: skip
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode())
    sent = time.perf_counter()
    times, text, last = [], "", {}
    with urllib.request.urlopen(request, timeout=120) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                last = json.loads(line[6:])
                times.append(time.perf_counter())
                text += last.get("content", "")
    return {
        "input_lens": last["tokens_evaluated"],
        "output_lens": last["tokens_predicted"],
        "ttfts": times[0] - sent,
        "itls": [later - earlier for earlier, later in pairwise(times)],
        "generated_texts": text,
        "errors": "",
    }


def send(options: argparse.Namespace) -> dict[str, Any]:
    lines = Path(options.dataset_path).read_text().splitlines()
    prompts = [json.loads(line)["conversations"][0]["content"] for line in lines]
    began = time.perf_counter()
    with ThreadPoolExecutor(int(options.max_concurrency)) as pool:
        tokens = int(options.sharegpt_output_len)
        done = list(pool.map(lambda prompt: answer(options.base_url, prompt, tokens), prompts))
    total = sum(item["output_lens"] for item in done)
    return {
        "tag": "stand-in, no measurement",
        "request_rate": float("inf"),
        "duration": time.perf_counter() - began,
        "completed": len(done),
        "total_output_tokens": total,
        "total_output_tokens_retokenized": total,
        "accept_length": 9.99,
        **{name: [item[name] for item in done] for name in done[0]},
    }


def main() -> int:
    options, mode = given(), os.environ.get("STAND_IN", "send")
    out = Path(options.output_file)
    if mode == "all_fail":
        raise IndexError("index -1 is out of bounds for axis 0 with size 0")
    if mode == "dies":
        print("100%|##########| 4/4 [00:03<00:00,  1.33it/s]")
        raise ConnectionError("HTTPConnectionPool: Max retries exceeded with url: /server_info")
    if mode == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        time.sleep(600)
    if mode == "silent":
        return 0
    if mode == "cut":
        out.write_text('{"tag": null, "completed": 4, "durat')
        return 0
    line = json.dumps(send(options)) if mode == "send" else Path(mode).read_text().strip()
    with out.open("a") as file:
        file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
