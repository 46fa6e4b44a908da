# ruff: noqa: E501 -- log lines are kept whole
"""The precedence rules P1 to P20 and section 9, one by one, on made-up logs in the engines' wording."""

from __future__ import annotations

import pytest

from analysis.classify import Verdict, Witnesses, classify

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
CUBLAS = "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(`"
SIGQUIT = "[2026-06-01 10:00:09] Received sigquit from a child process. It usually means the child failed."
READY = "[2026-06-01 10:00:00] The server is fired up and ready to roll!"


def of(*lines: str, witnesses: Witnesses | None = None, **logs: str) -> Verdict:
    sources = {name: text.encode() for name, text in logs.items()}
    if lines:
        sources["engine"] = "\n".join(lines).encode()
    return classify(sources, witnesses)


def test_p1_the_first_specific_error_in_time_wins_over_the_loudest() -> None:
    verdict = of(f"[2026-06-01 10:00:01 TP1] {CUBLAS}", *[f"[2026-06-01 10:00:02 TP{i}] {ILLEGAL}" for i in range(8)])
    assert verdict.klass == "cuda.cublas.execution_failed"
    assert verdict.rank == "TP1"
    assert [other.klass for other in verdict.alternatives] == ["cuda.illegal_address"]
    assert "later" in verdict.alternatives[0].why


def test_p1_over_logs_with_a_common_clock() -> None:
    kernel = "2026-06-01T10:00:01+00:00 gpu1 kernel: Out of memory: Killed process 4711 (python3) total-vm:9kB"
    verdict = of("[2026-06-01 10:00:05] OSError: [Errno 98] Address already in use", kernel=kernel)
    assert verdict.klass == "proc.host_oom_kill"
    assert verdict.evidence[0].source == "kernel"


def test_p1_newest_first_export() -> None:
    lines = [f"[2026-06-01 10:00:0{8 - i}] step {i}" for i in range(4)]
    lines.insert(1, f"[2026-06-01 10:00:08] {ILLEGAL}")
    lines.append(f"[2026-06-01 10:00:01] {CUBLAS}")
    assert of(*lines).klass == "cuda.cublas.execution_failed"


@pytest.mark.parametrize(
    "consequence",
    [
        SIGQUIT,
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        "Subprocess scheduler_0 (pid=7) crashed with exit code -6. Triggering SIGQUIT for cleanup...",
        "host systemd[1]: engine.service: Main process exited, code=exited, status=1/FAILURE",
        "host systemd[1]: engine.service: Failed with result 'exit-code'.",
        "host systemd[1]: engine.service: Start request repeated too quickly.",
        "Job for engine.service failed because the control process exited with error code.",
        "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
        "RuntimeError: CUDA error: operation failed due to a previous error during capture",
        "Unable to restart service engine: Job for engine.service failed.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    ],
)
@pytest.mark.parametrize("where", ["before", "after"])
def test_p2_consequences_are_never_roots(consequence: str, where: str) -> None:
    lines = (consequence, CUBLAS) if where == "before" else (CUBLAS, consequence)
    assert of(*lines).klass == "cuda.cublas.execution_failed"


@pytest.mark.parametrize(
    ("wrapped", "klass"),
    [
        ("Exception: Capture cuda graph failed: out of resource: shared memory, Required: 131072", "jit.triton.shared_memory"),
        ("ray.exceptions.RayTaskError(ValueError): ray::Worker.run()\nValueError: No available memory for the cache blocks.", "mem.gpu.kv_pool_nonpositive"),
        ("Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8).", "config.parallel.not_divisible"),
        ("fatal error: Python.h: No such file or directory\nsubprocess.CalledProcessError: Command '['/usr/bin/gcc', 'x.c']' returned non-zero exit status 1.", "jit.host_compiler_missing"),
        ("ncclSystemError: System call failed.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-x (size 7)", "dist.nccl.shm_space"),
        ("ValueError: Warmup failed - Please make sure. Error: Traceback (most recent call last):\nConnectionRefusedError: [Errno 111] Connect call failed ('0.0.0.0', 1)", "bench.warmup_failed.conn_refused"),
    ],
)  # fmt: skip
def test_p3_wrappers_are_opened(wrapped: str, klass: str) -> None:
    assert of(wrapped).klass == klass


def test_p3_direct_cause_is_the_first_exception() -> None:
    text = (
        f"{CUBLAS}\n\nThe above exception was the direct cause of the following exception:\n\nRuntimeError: {ILLEGAL}"
    )
    assert of(text).klass == "cuda.cublas.execution_failed"


@pytest.mark.parametrize(
    "advice",
    [
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace may be incorrect.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "Possible solutions:\n1. set --mem-fraction-static to a smaller value\n2. CUDA out of memory",
        "usage: sglang serve [-h] [--watchdog-timeout N]\n                    [--unrecognized arguments CUBLAS_STATUS_ALLOC_FAILED]",
        "server_args=ServerArgs(note='CUDA out of memory', watchdog_timeout=300)",
    ],
)
def test_p4_advice_usage_and_dumps_are_no_evidence(advice: str) -> None:
    assert of(advice).klass == "none"
    assert of(advice, CUBLAS).klass == "cuda.cublas.execution_failed"


def test_p5_sticky_cuda_errors_are_victims_of_the_first() -> None:
    watchdog = f"[rank3]:[E601 10:00:05.1 ProcessGroupNCCL.cpp:1895] Process group watchdog thread terminated with exception: {ILLEGAL}"
    assert of(watchdog).klass == "cuda.illegal_address"
    assert (
        of(f"[2026-06-01 10:00:01 TP0] {ILLEGAL}", f"[2026-06-01 10:00:02 TP0] {CUBLAS}").klass
        == "cuda.illegal_address"
    )


def test_p5_the_frame_of_an_illegal_address_is_not_in_its_fingerprint() -> None:
    one = of(f"  File 'a.py', in attention_kernel\n{ILLEGAL}")
    other = of("RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS in mhc_pre_big_fuse")
    assert one.fingerprint == other.fingerprint


def test_p6_a_collective_timeout_is_a_root_only_alone() -> None:
    timeout = (
        "[rank2]:[E601 10:40:00.1 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=3, Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
    )
    assert of(timeout).klass == "dist.nccl.watchdog_timeout"
    assert of(f"[2026-06-01 10:30:00 TP1] {CUBLAS}", timeout).klass == "cuda.cublas.execution_failed"
    assert of("Scheduler watchdog timeout (self.watchdog_timeout=300)", timeout).klass == "serve.hang.watchdog"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.40 GiB is free. "


@pytest.mark.parametrize(
    ("lines", "klass"),
    [
        ([READY, OOM + "Of the allocated memory 70.10 GiB is allocated by PyTorch"], "mem.gpu.oom_runtime"),
        (["Load weight begin. avail mem=78.40 GB", OOM], "mem.gpu.oom_load"),
        (["Capture cuda graph begin. This can take up to several minutes.", OOM], "mem.gpu.oom_capture"),
        ([OOM + "Of the allocated memory 0 bytes is allocated by PyTorch"], "proc.gpu_occupied"),
        (["  in init_device\n    torch.cuda.mem_get_info()\ntorch.AcceleratorError: CUDA error: out of memory"], "proc.gpu_occupied.releasing"),
        (["RuntimeError: Prefill out of memory. Try to lower your batch size."], "mem.kv.prefill_oom"),
        (["triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072"], "jit.triton.shared_memory"),
        (["kernel: Out of memory: Killed process 116521 (python3) total-vm:98123456kB"], "proc.host_oom_kill"),
        (["Job for x.service failed because a configured resource limit was exceeded."], "unit.envfile_missing"),
        (["RuntimeError: Failed to allocate memory for batch_prefill_tmp_v with size 131072 and alignment 16"], "attn.flashinfer.workspace_too_small"),
    ],
)  # fmt: skip
def test_p7_out_of_memory_has_several_meanings(lines: list[str], klass: str) -> None:
    assert of(*lines).klass == klass


def test_p8_directions_differ_and_a_contradiction_is_said() -> None:
    pool = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    capture = "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB."
    assert of(pool).directions["mem_fraction"] == "larger"
    assert of(capture).directions["mem_fraction"] == "smaller"
    assert "does not fit" in of(pool, capture).advice


def test_p9_a_bare_kill_is_not_the_oom_killer() -> None:
    unit = "host systemd[1]: e.service: Main process exited, code=killed, status=9/KILL"
    properties = Witnesses(unit={"Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"})
    assert of(unit=unit, witnesses=properties).klass == "proc.killed"
    kernel = "kernel: oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/system.slice/e.service,task=python3,pid=1"
    assert of(unit=unit, kernel=kernel, witnesses=properties).klass == "proc.host_oom_kill"
    assert of("./run.sh: line 22: 103525 Killed                  python -m sglang.launch_server").klass == "none"


def test_p9_a_kill_after_the_stop_time_is_systemds() -> None:
    lines = (
        "host systemd[1]: e.service: State 'stop-sigterm' timed out. Killing.",
        "host systemd[1]: e.service: Main process exited, code=killed, status=9/KILL",
    )
    assert of(unit="\n".join(lines)).klass == "unit.stop_timeout"


def test_p10_hardware_needs_its_xid_and_then_beats_the_cuda_error() -> None:
    xid = "kernel: NVRM: Xid (PCI:0000:05:00): {}, pid=4711, name=python3, message"
    confirmed = of(ILLEGAL, kernel=xid.format(31))
    assert confirmed.klass == "cuda.illegal_address"
    assert sorted(line.source for line in confirmed.evidence) == ["engine", "kernel"]
    verdict = of(ILLEGAL, kernel=xid.format(79))
    assert verdict.klass == "hw.xid.79"
    assert [(a.klass, a.why) for a in verdict.alternatives] == [
        ("cuda.illegal_address", "hardware evidence explains it")
    ]


def test_p11_an_error_with_later_progress_is_a_note() -> None:
    failed = "E graph_reserve: failed to allocate compute buffers"
    retried = "W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism"
    assert of(failed).klass == "mem.gpu.oom_compute_buffer"
    verdict = of(failed, retried, "I srv main: server is listening on http://127.0.0.1:8080")
    assert (verdict.klass, verdict.outcome) == ("none", "recovered")
    retry = "FAILED - RETRYING: [gpu1]: Wait until ready (2 retries left). Status code was -1: Connection refused"
    assert of(retry, "ok: [gpu1]").klass == "none"


FATAL = 'fatal: [gpu1]: FAILED! => {"msg": "Missing sudo password"}'
RECAP = "PLAY RECAP ****\ngpu1 : ok=3 changed=1 unreachable=0 failed={} skipped=0 rescued={} ignored=0"


@pytest.mark.parametrize(
    ("lines", "klass"),
    [
        ([FATAL, RECAP.format(1, 0)], "deploy.become_password"),
        ([FATAL], "deploy.become_password"),
        ([FATAL, RECAP.format(0, 1)], "none"),
        ([FATAL, "...ignoring"], "none"),
        (['fatal: [gpu1]: FAILED! => {"msg": "never seen"}', "...ignoring"], "none"),
        (['fatal: [gpu1]: FAILED! => {"msg": "never seen"}', RECAP.format(1, 0)], "unknown"),
    ],
)
def test_p11_ansible_errors_that_were_ignored_or_rescued(lines: list[str], klass: str) -> None:
    assert of(*lines).klass == klass


def test_p11_a_hidden_nested_ssh_is_not_passed_over_by_a_clean_recap() -> None:
    hidden = 'changed: [gpu1] => {"rc": 0, "stderr": "ssh: connect to host 127.0.0.1 port 22: Connection refused"}'
    assert of(hidden, RECAP.format(0, 0)).klass == "deploy.not_applied.nested_ssh"


def test_p12_info_three_times_is_a_hang_and_once_is_not() -> None:
    line = "(EngineCore pid=7) INFO 05-30 18:{:02}:16 [shm_broadcast.py:698] No available shared memory broadcast block found in 60 seconds."
    assert of(line.format(1), line.format(2)).klass == "none"
    assert of(*[line.format(i) for i in range(3)]).klass == "serve.hang.collective_deadlock"
    for harmless in (
        "Config file not found at /x/E=160.json",
        "NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file",
    ):
        assert of(harmless).klass == "none"


def test_p13_after_the_measurement_the_result_stays() -> None:
    window = Witnesses(window=(1780308000.0, 1780308060.0))  # ends 2026-06-01 10:01:00 UTC
    verdict = of(f"[2026-06-01 10:02:00 TP0] {ILLEGAL}", witnesses=window)
    assert (verdict.klass, verdict.outcome, verdict.failed) == ("cuda.illegal_address", "after_measurement", False)
    assert of(f"[2026-06-01 10:00:30 TP0] {ILLEGAL}", witnesses=window).outcome == "terminal"


def test_p13_after_a_stop_that_the_log_shows() -> None:
    verdict = of(READY, "[2026-06-01 10:05:00] SIGTERM received. signum=None frame=None. Draining requests", ILLEGAL)
    assert (verdict.klass, verdict.outcome) == ("cuda.illegal_address", "after_measurement")


def test_p13_a_pointer_after_the_stop_is_only_a_note() -> None:
    verdict = of(
        READY, "[2026-06-01 10:05:00] SIGTERM received. Draining", "ServerDisconnectedError: Server disconnected"
    )
    assert verdict.klass == "none"
    assert [note.klass for note in verdict.notes] == ["bench.conn_reset"]


def test_p13_a_stop_in_the_journal_explains_the_kill_that_follows() -> None:
    stop = "Jun 01 10:05:00 host systemd[1]: Stopping engine.service - the engine..."
    killed = "Jun 01 10:05:09 host systemd[1]: engine.service: Main process exited, code=killed, status=9/KILL"
    failed = "Jun 01 10:05:09 host systemd[1]: engine.service: Failed with result 'signal'."
    assert of(unit="\n".join((stop, killed, failed))).klass == "none"
    assert of(unit="\n".join((killed, failed))).klass == "unknown"
    again = "Jun 01 10:06:00 host systemd[1]: Started engine.service - the engine."
    assert of(unit="\n".join((stop, killed, failed, again, killed.replace("05:09", "06:30")))).klass == "unknown"


def test_p14_a_restart_while_measuring_is_noted() -> None:
    verdict = of(READY, witnesses=Witnesses(unit={"NRestarts": "2", "ActiveState": "active"}))
    assert [note.klass for note in verdict.notes] == ["unit.restarted"]


@pytest.mark.parametrize(
    ("sent", "completed", "klass"),
    [(100, 100, "none"), (100, 97, "bench.partial_failure"), (100, 0, "bench.all_requests_failed")],
)
def test_p15_counts_and_not_the_exit_code(sent: int, completed: int, klass: str) -> None:
    assert of(READY, witnesses=Witnesses(sent=sent, completed=completed)).klass == klass


@pytest.mark.parametrize(
    ("witnesses", "klass"),
    [
        (Witnesses(attestation="wrong_process"), "deploy.not_applied.stale_process"),
        (Witnesses(attestation="not_applied", wanted={"speculative_algorithm": "NGRAM"}), "config.spec.silently_off"),
        (Witnesses(attestation="not_applied", wanted={"port": 1}, effective={"port": 2}), "deploy.not_applied.stale_process"),
        (Witnesses(attestation="adjusted", wanted={"max_running_requests": 64}, effective={"max_running_requests": 48}), "config.spec.silently_adjusted"),
        (Witnesses(attestation="not_applied", unit={"NeedDaemonReload": "yes"}), "unit.daemon_reload_needed"),
        (Witnesses(attestation="applied"), "none"),
    ],
)  # fmt: skip
def test_p16_applied_or_not(witnesses: Witnesses, klass: str) -> None:
    assert of(READY, witnesses=witnesses).klass == klass


def test_p16_the_cause_in_the_log_beats_silently_off() -> None:
    vocabulary = "E srv load_model: failed to initialize speculative decoding context: draft model vocab type must match target model"
    wanted = Witnesses(attestation="not_applied", wanted={"spec_type": "draft-simple"})
    assert of(vocabulary, witnesses=wanted).klass == "model.draft.vocab_mismatch"


def test_p17_a_start_limit_alone_is_only_a_pointer() -> None:
    limit = "host systemd[1]: e.service: Start request repeated too quickly."
    verdict = of(limit)
    assert (verdict.klass, verdict.pointer) == ("unit.start_limit_hit", True)
    assert "reset-failed" in verdict.advice
    assert of("OSError: [Errno 98] Address already in use", limit).klass == "proc.port_in_use"


def test_p18_the_first_attempt_has_the_root() -> None:
    attempts = (
        "[2026-06-01 10:00:00] server_args=ServerArgs(x=1)",
        "[2026-06-01 10:00:10] ValueError: Unknown speculative algorithm name: DDTREE",
        "[2026-06-01 10:01:00] server_args=ServerArgs(x=1)",
        "[2026-06-01 10:01:10] OSError: [Errno 98] Address already in use",
    )
    assert of(*attempts).klass == "config.spec.unknown_algorithm"


@pytest.mark.parametrize(
    ("numbers", "klass"),
    [
        ("31.44/47.38", "proc.gpu_occupied"),
        ("19.77/22.05", "mem.gpu.startup_budget"),
        ("3.22/4.0", "mem.gpu.startup_budget"),
    ],
)
def test_p19_numbers_decide_between_occupied_and_greedy(numbers: str, klass: str) -> None:
    text = f"ValueError: Free memory on device cuda:0 ({numbers} GiB) on startup is less than desired GPU memory utilization (0.9, 42.6 GiB)."
    assert of(text).klass == klass


def test_p19_equal_numbers_are_no_race() -> None:
    text = "AssertionError: Error in memory profiling. Initial free memory {} GiB, current free memory {} GiB."
    assert of(text.format("82.94", "90.17")).retry == "once"
    assert of(text.format("82.94", "82.94")).retry == "no"


def test_p20_unknown_is_an_answer_with_the_best_pointer() -> None:
    verdict = of(
        "Traceback (most recent call last):",
        '  File "/opt/engine/frobnicate.py", line 7, in twist',
        "    raise FrobError(7)",
        "FrobError: cannot twist 7 knobs",
        SIGQUIT,
    )
    assert (verdict.klass, verdict.pointer) == ("unknown", True)
    assert verdict.evidence[0].line == 4
    assert "FrobError in frobnicate.py:twist" in verdict.advice


def test_p20_a_truncated_log_is_unknown_and_no_last_frame_is_blamed() -> None:
    verdict = of('Traceback (most recent call last):\n  File "/opt/engine/scheduler.py", line 7, in run')
    assert verdict.klass == "unknown"


# --- section 9: which id wins ---------------------------------------------------------------------------


def test_specific_beats_general() -> None:
    nope = 'error while handling argument "--spec-type": unknown speculative type: nope'
    assert of(nope).klass == "config.spec.unknown_algorithm"


def test_engine_that_ends_well_while_nobody_stopped_it_has_died() -> None:
    properties = {
        "ActiveState": "inactive",
        "SubState": "dead",
        "Result": "success",
        "ExecMainCode": "1",
        "ExecMainStatus": "0",
    }
    died = of(READY, witnesses=Witnesses(unit=properties))
    assert (died.klass, died.phase) == ("serve.engine_died", "serving_under_load")
    assert of(READY, witnesses=Witnesses(unit=properties, stopped_by_us=True)).klass == "none"
    explained = of(READY, ILLEGAL, witnesses=Witnesses(unit=properties))
    assert explained.klass == "cuda.illegal_address"


def test_a_stop_of_ours_is_no_failure_even_by_sigkill() -> None:
    properties = {"ActiveState": "failed", "Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"}
    assert of(READY, witnesses=Witnesses(unit=properties, stopped_by_us=True)).klass == "none"
    assert of(READY, witnesses=Witnesses(unit=properties)).klass == "proc.killed"


def test_port_held_is_the_new_servers_cause_and_the_old_ones_answer_is_not_applied() -> None:
    bind = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30110): address already in use"
    assert of(bind).klass == "proc.port_in_use"
    assert of(bind, witnesses=Witnesses(attestation="wrong_process")).klass == "deploy.not_applied.stale_process"


def test_tier_4_on_a_run_that_went_well_is_the_class_and_no_failure() -> None:
    adjusted = "Max running requests is reset to 48 for speculative decoding."
    verdict = of(adjusted, READY)
    assert (verdict.klass, verdict.tier, verdict.outcome, verdict.failed) == (
        "config.spec.silently_adjusted",
        4,
        "none",
        False,
    )
    broken = of(adjusted, SIGQUIT)
    assert broken.klass == "unknown"
    assert [note.klass for note in broken.notes] == ["config.spec.silently_adjusted"]


def test_a_pointer_is_marked() -> None:
    verdict = of("[2026-06-01 10:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):")
    assert (verdict.klass, verdict.tier, verdict.pointer) == ("serve.spec.crash", 3, True)


def test_memory_taken_before_the_start_explains_an_engine_that_ran_out() -> None:
    verdict = of("Load weight begin.", OOM, witnesses=Witnesses(gpu_memory_before={"0": 60_000.0}))
    assert verdict.klass == "proc.gpu_occupied"
    assert (
        of("Load weight begin.", OOM, witnesses=Witnesses(gpu_memory_before={"0": 500.0})).klass == "mem.gpu.oom_load"
    )


# --- colours, wrappers, usage texts, starts that went well after all -------------------------------------

COLOURS = {
    "escape": "\x1b[1;31m{}\x1b[0m",
    "truecolor": "\x1b[38;2;255;0;0m{}\x1b[m",
    "erase": "\x1b[2K{}\x1b[1A",
    "hyperlink": "\x1b]8;;file:///a.py\x1b\\{}\x1b]8;;\x1b\\",
    "charset": "\x1b(B{}\x1b(B",
    "lost": "[31m{}[0m",
    "json": "\\u001b[31m{}\\u001b[0m",
    "rsyslog": "#033[31m{}#033[0m",
    "caret": "^[[31m{}^[[0m",
}


@pytest.mark.parametrize("colour", COLOURS.values(), ids=COLOURS)
@pytest.mark.parametrize("prefilter", ["auto", "python"])
def test_a_colour_inside_a_message_hides_nothing(colour: str, prefilter: str) -> None:
    text = f"RuntimeError: CUDA error: an {colour.format('illegal')} memory {colour.format('access')} was encountered"
    verdict = classify({"engine": text.encode()}, prefilter=prefilter)
    assert (verdict.klass, verdict.evidence[0].text) == (
        "cuda.illegal_address",
        ILLEGAL.replace("torch.Accelerator", "Runtime"),
    )


def test_a_colour_that_a_block_cuts_hides_nothing() -> None:
    log = ("x\n" * 9 + "CUDA error: an \x1b[1;31millegal\x1b[0m memory access was encountered\n").encode()
    for at in range(20, len(log)):
        verdict = classify({"engine": [log[:at], log[at:]]})
        assert (verdict.klass, verdict.evidence[0].line) == ("cuda.illegal_address", 10), at


def test_brackets_that_are_no_colour_stay() -> None:
    verdict = of("[model_runner.py:12] x[0] took [5m30s] for [m]: CUDA error: an illegal memory access was encountered")
    assert "[model_runner.py:12] x[0] took [5m30s] for" in verdict.evidence[0].text


def test_a_wrapper_shows_the_exception_under_it_and_is_grouped_by_it() -> None:
    log = (
        "[2026-06-01 10:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/engine/twist.py", line 7, in twist\n    raise\n{}: cannot twist 7 knobs\n' + SIGQUIT
    )
    one, other = of(log.format("FrobError")), of(log.format("KnobError"))
    assert (one.klass, one.pointer) == ("serve.spec.crash", True)
    assert [line.line for line in one.evidence] == [1, 4]
    assert "FrobError in twist.py:twist" in one.advice
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize("between", [0, 2_000])
def test_a_usage_text_that_ends_in_an_error_is_never_none(between: int) -> None:
    options = "\n".join(f"              [--option-{number} N]" for number in range(between))
    verdict = of(f"usage: frob [-h]\n{options}\nfrob: error: knobs are to be twisted")
    assert verdict.klass != "none"
    assert verdict.evidence[-1].text == "frob: error: knobs are to be twisted"


WORK = '[2026-06-01 10:02:00] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK'
ALLOC = "E sched_reserve: could not allocate the compute buffer, doing it in another way"


@pytest.mark.parametrize(
    ("lines", "klass"),
    [
        ([ALLOC, READY, WORK], "none"),
        ([ALLOC, READY], "mem.gpu.oom_compute_buffer"),
        ([ALLOC, SIGQUIT, READY, WORK], "mem.gpu.oom_compute_buffer"),
        ([ALLOC, "server_args=ServerArgs(x=1)", READY, WORK], "mem.gpu.oom_compute_buffer"),
        ([READY, WORK, ALLOC], "mem.gpu.oom_compute_buffer"),
    ],
)
def test_p11_a_start_that_went_well_after_all(lines: list[str], klass: str) -> None:
    assert of(*lines).klass == klass
