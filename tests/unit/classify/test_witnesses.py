# ruff: noqa: E501 -- log lines are kept whole
"""What unit properties, task results, client errors and memory say without a log line."""

from __future__ import annotations

import pytest

from analysis.classify import Witnesses, classify

READY = b"[2026-06-01 10:00:00] The server is fired up and ready to roll!\n"


@pytest.mark.parametrize(
    ("unit", "klass"),
    [
        ({"Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9", "ActiveState": "failed"}, "proc.killed"),
        ({"Result": "signal", "ExecMainCode": "killed", "ExecMainStatus": "9/KILL"[:1]}, "proc.killed"),
        ({"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "137"}, "proc.killed"),
        ({"Result": "core-dump", "ExecMainCode": "3", "ExecMainStatus": "11"}, "serve.engine_died"),
        ({"Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "15"}, "serve.engine_died"),
        ({"Result": "success", "ActiveState": "inactive", "SubState": "dead"}, "serve.engine_died"),
        ({"Result": "oom-kill", "ExecMainCode": "2", "ExecMainStatus": "9"}, "proc.host_oom_kill"),
        ({"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "203"}, "unit.exec_not_found"),
        ({"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "200"}, "unit.chdir_failed"),
        ({"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "217"}, "unit.user_missing"),
        ({"Result": "resources", "ActiveState": "failed"}, "unit.envfile_missing"),
        ({"Result": "start-limit-hit", "ActiveState": "failed"}, "unit.start_limit_hit"),
        ({"Result": "timeout", "ActiveState": "failed", "ExecMainStatus": "0"}, "unit.start_timeout"),
        ({"Result": "timeout", "ActiveState": "failed", "ExecMainStatus": "9"}, "unit.stop_timeout"),
        ({"Result": "exit-code", "ActiveState": "failed", "ExecMainCode": "1", "ExecMainStatus": "1"}, "unknown"),
        ({"Result": "success", "ActiveState": "active", "SubState": "running"}, "none"),
    ],
)
def test_unit_properties_alone(unit: dict[str, str], klass: str) -> None:
    assert classify({"engine": READY}, Witnesses(unit=unit)).klass == klass


def test_no_log_at_all() -> None:
    assert classify({}).klass == "none"
    assert classify({}, Witnesses(unit={"Result": "exit-code", "ActiveState": "failed"})).klass == "unknown"


def test_the_engine_that_kills_itself_was_not_killed_by_others() -> None:
    unit = {"Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9", "ActiveState": "failed"}
    log = READY + (
        b"[2026-06-01 10:05:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        b"FrobError: 7\n"
        b"[2026-06-01 10:05:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
    )
    assert classify({"engine": log}, Witnesses(unit=unit)).klass == "serve.spec.crash"


@pytest.mark.parametrize(
    ("result", "klass"),
    [
        ({"unreachable": True, "msg": "Failed to connect to the host via ssh: Permission denied (publickey)."}, "deploy.ssh_auth"),
        ({"unreachable": True, "msg": "Failed to connect to the host via ssh: timed out"}, "deploy.ssh_unreachable"),
        ({"failed": True, "msg": "AnsibleUndefinedVariable: 'serve_budget' is undefined"}, "deploy.template_undefined"),
        ({"failed": True, "msg": "Missing sudo password"}, "deploy.become_password"),
        ({"failed": True, "msg": "Timeout exceeded", "finished": 1}, "bench.task_timeout"),
        ({"changed": True, "rc": 0, "stderr": "ssh: connect to host 127.0.0.1 port 22: Connection refused"}, "deploy.not_applied.nested_ssh"),
        ({"changed": False, "rc": 0}, "none"),
        ({"failed": True, "msg": "something never seen"}, "unknown"),
    ],
)  # fmt: skip
def test_task_results(result: dict[str, object], klass: str) -> None:
    assert classify({}, Witnesses(task_result=result)).klass == klass


def test_client_errors_say_why_requests_failed() -> None:
    errors = ["Cannot connect to host 127.0.0.1:30000 ssl:default [Too many open files]"]
    verdict = classify({"engine": READY}, Witnesses(sent=100, completed=40, failed=60, errors=errors))
    assert verdict.klass == "proc.fd_limit"
    assert verdict.evidence[0].source == "client errors"


def test_kernel_log_as_a_witness() -> None:
    kernel = b"[1.0] oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=7\n"
    assert classify({"engine": READY}, Witnesses(kernel_log=kernel)).klass == "proc.host_oom_kill"
