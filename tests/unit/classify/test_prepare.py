# ruff: noqa: E501 -- log lines are kept whole
"""The ten hazards of logs, each on its own."""

from __future__ import annotations

import pytest

from analysis.classify import classify
from analysis.classify.prepare import newest_first, prepare, strip_prefixes
from analysis.classify.stamps import seconds_of, seconds_of_unix


def texts(raw: str) -> list[str]:
    return [line.text.strip() for line in prepare(raw.encode(), 1) if line.text.strip()]


def test_1_carriage_returns_and_glued_progress_bars() -> None:
    assert texts("0/1 [00:00<?, ?it/s]\r  0%|   | 0/23 [00:00<?, ?it/s][2025-04-14 15:27:35 TP0] Scheduler hit an exception") == [
        "0/1 [00:00<?, ?it/s]",
        "Scheduler hit an exception",
    ]  # fmt: skip
    assert texts("100%|####| 64/64 [00:01<00:00, 50.00it/s]Traffic request rate: inf") == ["Traffic request rate: inf"]
    assert texts(".....llama_init_from_model: pooling") == ["llama_init_from_model: pooling"]


def test_2_colours_with_and_without_escape() -> None:
    assert texts("\x1b[36m(RayWorkerVllm pid=5085)\x1b[0m [Rank 4] Watchdog") == ["Watchdog"]
    assert texts("[36m(RayWorkerVllm pid=5085)[0m Watchdog") == ["Watchdog"]


@pytest.mark.parametrize(
    ("line", "text", "rank"),
    [
        ("Jun 01 10:14:22 host sglang[4711]: boom", "boom", ""),
        ("Mär 03 10:14:22 host sglang[4711]: boom", "boom", ""),
        ("dez 03 10:14:22 host sglang[4711]: boom", "boom", ""),
        ("avril 16 10:14:22 host sglang[4711]: boom", "boom", ""),
        ("2026-06-01T10:14:22.123+02:00 host sglang[4711]: boom", "boom", ""),
        ("2026-06-01T10:14:22.123456789Z (LLMRayActor pid=20770) ERROR 06-28 06:11:45 worker_base.py:145] boom", "boom", ""),
        ("(SGLangEngine pid=952, ip=10.0.0.1) [2025-11-06 01:16:21 TP0] boom", "boom", "TP0"),
        ("(Worker pid=1) (Worker_TP1 pid=1) ERROR 03-05 09:56:09 [multiproc_executor.py:880] boom", "boom", "TP1"),
        ("[rank4]:[E321 02:07:08.414 ProcessGroupNCCL.cpp:607] [Rank 4] boom", "boom", "rank4"),
        ("[2026-02-20 03:26:00 DP0 TP1] boom", "boom", "DP0 TP1"),
        ("[2026-02-20 03:26:00.123 TP1] boom", "boom", "TP1"),
        ("2026-03-18 11:22:05.874 INFO 120984 [ TP0 scheduler_metrics_mixin.py:415] boom", "boom", "TP0"),
        ("0.57.900.481 I srv    load_model: boom", "srv    load_model: boom", ""),
        ("[171160.120236] NVRM: boom", "NVRM: boom", ""),
        ("[Sun Feb 23 16:24:18 2025] NVRM: boom", "NVRM: boom", ""),
        ("engine-1  | [2026-02-20 03:26:00] boom", "boom", ""),
        ("RuntimeError: boom", "RuntimeError: boom", ""),
    ],
)  # fmt: skip
def test_3_stacked_prefixes_are_fields(line: str, text: str, rank: str) -> None:
    found, found_rank, _ = strip_prefixes(line)
    assert (found.strip(), found_rank) == (text, rank)


def test_4_escaped_json_and_doubled_quotes() -> None:
    escaped = '{"msg": "first \\"quoted\\"\\r\\nsecond"}'
    assert texts(escaped) == ['{"msg": "first "quoted"', 'second"}']
    assert texts('a ""doubled"" quote') == ['a "doubled" quote']


def test_4_newest_first_is_told_by_falling_times() -> None:
    assert newest_first([9.0 * k for k in (5, 4, 3, 2, 1)])
    assert not newest_first([1.0, 2.0, 3.0])
    assert not newest_first([100.0, 50.0, 52.0, 54.0, 56.0]), "an older log between newer lines is no export"
    assert not newest_first([])


def test_5_messages_that_wrap() -> None:
    wrapped = (
        b"ValueError: Weight input_size_per_partition = 64 is not\ndivisible by\nweight quantization block_k = 128."
    )
    assert classify({"log": wrapped}).klass == "config.parallel.not_divisible"
    prefixed = (
        b"(EngineCore pid=7) RuntimeError: CUDA error: an illegal\n(EngineCore pid=7) memory access was encountered"
    )
    assert classify({"log": prefixed}).klass == "cuda.illegal_address"


def test_6_a_lost_left_edge() -> None:
    assert strip_prefixes("2026-04-20 13:24:40 TP0] boom")[:2] == ("boom", "TP0")
    assert strip_prefixes("13:24:40 TP0] boom")[1] == "TP0"


def test_7_lost_messages_do_not_hide_the_cause() -> None:
    log = b"host systemd-journald[1]: Suppressed 4711 messages from e.service\nRuntimeError: Prefill out of memory."
    assert classify({"log": log}).klass == "mem.kv.prefill_oom"


def test_8_interleaved_ranks() -> None:
    lines = [
        b'(Worker_TP0 pid=1)   File "custom_all_reduce.py", line 340, in register_graph_buffers',
        b"(Worker_TP1 pid=2)   something else of another rank " + b"x" * 400,
        b"(Worker_TP0 pid=1) RuntimeError: CUDA error: invalid argument",
    ]
    verdict = classify({"log": b"\n".join(lines)})
    assert (verdict.klass, verdict.rank) == ("dist.custom_allreduce.invalid_argument", "TP0")


def test_9_an_exception_without_a_message() -> None:
    log = b'  File "spec_decode_worker.py", line 564\n    assert all(vocab_sizes[0] == vocab_size for v in s)\nAssertionError\n'
    assert classify({"log": log}).klass == "model.draft.vocab_mismatch"


def test_10_texts_that_hold_every_scary_word() -> None:
    usage = "usage: serve [-h]\n  --watchdog-timeout N   Watchdog timeout (self.watchdog_timeout=300)\nserve: error: unrecognized arguments: --x"
    assert classify({"log": usage.encode()}).klass == "config.arg.unrecognized"
    assert texts("Possible solutions:\n1. CUDA out of memory\n2. other\nnext line") == ["next line"]
    ptx = "// Generated by LLVM NVPTX Back-End\n.version 8.7\n.target sm_121\n\tmov.u32 %r1, 0;\nnext line"
    assert texts(ptx) == ["next line"]


def test_line_numbers_are_those_of_the_file() -> None:
    lines = prepare(b"one\r\ntwo\rtwo again\nthree", 10)
    assert [(line.number, line.text) for line in lines] == [(10, "one"), (11, "two"), (11, "two again"), (12, "three")]


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("[2026-06-01 10:00:00]", "2026-06-01T12:00:00+02:00"),
        ("Jun 01 10:00:00", "[E601 10:00:00.000 x.cpp:1]"),
        ("INFO 06-01 10:00:00", "1. Jun 10:00:00"[3:].replace("Jun", "1 Jun")),
    ],
)
def test_times_compare_over_sources(text: str, same_as: str) -> None:
    assert seconds_of(text) == seconds_of(same_as) is not None


def test_times_compare_with_unix_seconds() -> None:
    assert seconds_of("2026-06-01T10:00:00Z") == seconds_of_unix(1780308000.0)
    assert seconds_of("no time here") is None
