"""The service under supervisor, for real: how programs end, what they leave behind, what they are given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "module_utils"))
from specsweep_agent import procfs, service
from specsweep_agent.service import ServiceError, Supervisor, clean_end, how_it_ended

pytest.importorskip("supervisor")
WAIT_S = 20.0


def until(what: Callable[[], Any]) -> Any:
    """Wait for what no file descriptor tells."""
    deadline = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def processes_of(folder: Path) -> list[int]:
    """Every process that was started in or with this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            line = " ".join(procfs.command_line(int(entry.name)) or [])
            environment = procfs.environment(int(entry.name)) or {}
            if (str(folder) in line or environment.get("OF_TEST") == str(folder)) and procfs.alive(int(entry.name)):
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    # A folder with everything that configuration files are known to trip over.
    home = tmp_path_factory.mktemp("ho%me (x) $y")
    made = Supervisor("engine", home)
    yield made
    made.stop(5)
    made.remove()
    deadline = time.monotonic() + WAIT_S
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "processes were left behind"
    assert not made._socket().exists()


class Program:
    def __init__(self, host: Supervisor, folder: Path) -> None:
        self.host, self.folder = host, folder

    def install(self, source: str, *, kill_mode: str = "mixed", stop_timeout_s: float = 5, **environment: str) -> None:
        path = self.folder / "program.py"
        path.write_text(source)
        plan = {"argv": [sys.executable, "-u", str(path)], "kill_mode": kill_mode, "stop_timeout_s": stop_timeout_s}
        given = {"OF_TEST": str(self.host.home), "FOLDER": str(self.folder), **environment}
        self.host.install(json.dumps({**plan, "directory": str(self.folder)}), json.dumps(given))

    def start(self, source: str, **how: Any) -> dict[str, str]:
        self.install(source, **how)
        self.host.restart()
        return self.host.properties()

    def ended(self) -> dict[str, str]:
        return until(
            lambda: (found := self.host.properties())["ActiveState"] not in ("active", "deactivating") and found
        )

    def log(self, words: str = "") -> str:
        target = self.folder / "log"

        def text() -> str:
            self.host.write_log("", target)
            return target.read_text()

        return str(until(lambda: words in (found := text()) and (found or " ")))


@pytest.fixture
def program(host: Supervisor, tmp_path: Path) -> Iterator[Program]:
    yield Program(host, tmp_path)
    host.stop(5)


SLEEP = "import signal\nprint('up', flush=True)\nsignal.pause()\n"


def test_a_program_that_ends_by_itself(program: Program) -> None:
    program.start("import sys\nprint('no such flag', flush=True)\nsys.exit(3)\n")
    found = program.ended()
    assert (found["ActiveState"], found["Result"]) == ("failed", "exit-code")
    assert (found["ExecMainCode"], found["ExecMainStatus"], found["MainPID"]) == ("1", "3", "0")
    assert "exited with status 3" in how_it_ended(found)
    assert program.log("no such flag") == "no such flag\n"
    assert not clean_end(found, {"clean_exit": [0]})
    assert clean_end(found, {"clean_exit": [0, 3]})


def test_a_program_that_ends_well(program: Program) -> None:
    program.start("pass\n")
    found = program.ended()
    assert (found["ActiveState"], found["Result"], found["ExecMainStatus"]) == ("inactive", "success", "0")


def test_kill_9_is_told_as_a_signal(program: Program) -> None:
    running = program.start(SLEEP)
    assert (running["ActiveState"], running["SubState"], running["NRestarts"]) == ("active", "running", "0")
    os.kill(int(running["MainPID"]), signal.SIGKILL)
    found = program.ended()
    assert (found["ActiveState"], found["Result"]) == ("failed", "signal")
    assert (found["ExecMainCode"], found["ExecMainStatus"]) == ("2", "9")
    assert how_it_ended(found) == "the unit is failed (signal): its main process ended by signal 9 (SIGKILL)"
    assert clean_end(found, {"clean_signal": ["SIGKILL"]})
    # It is not started again by itself, and the identity of the run stays.
    assert program.host.properties()["InvocationID"] == running["InvocationID"]


def test_a_stop_that_was_asked_for_is_no_failure(program: Program) -> None:
    running = program.start(SLEEP)
    program.log("up")
    program.host.stop(5)
    found = program.host.properties()
    assert (found["ActiveState"], found["Result"]) == ("inactive", "success")
    assert not procfs.alive(int(running["MainPID"]))
    program.host.stop(5)  # once more is no error


def test_an_ignored_sigterm_ends_in_a_kill(program: Program) -> None:
    source = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n"
    running = program.start(source + "while True:\n    signal.pause()\n", stop_timeout_s=1)
    program.log("up")
    began = time.monotonic()
    program.host.stop(1)
    assert time.monotonic() - began < 15
    assert not procfs.alive(int(running["MainPID"]))


def test_the_answer_to_a_stop_is_waited_for_as_long_as_the_plan_allows(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang may take 120 s to end: a call that gave up after 60 would leave it on the port."""
    program.install(SLEEP, stop_timeout_s=120)
    waits = []
    real = service._UnixTransport

    def transport(path: str, wait_s: float) -> Any:
        waits.append(wait_s)
        return real(path, wait_s)

    monkeypatch.setattr(service, "_UnixTransport", transport)
    program.host.stop(5)
    assert max(waits) > 121


CHILD = """
import os, signal, subprocess, sys
source = "import signal; {ignore}print('child up', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", source])
print("child", child.pid, flush=True)
{then}
"""
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def child_of(program: Program) -> int:
    text = program.log("child up")
    return int(next(line for line in text.splitlines() if line.startswith("child ") and "up" not in line).split()[1])


@pytest.mark.parametrize("kill_mode", ["mixed", "control-group", "process"])
def test_a_stop_ends_the_children_too(program: Program, kill_mode: str) -> None:
    program.start(CHILD.format(ignore=IGNORE, then="signal.pause()"), kill_mode=kill_mode, stop_timeout_s=1)
    child = child_of(program)
    assert child in program.host.pids()
    program.host.stop(1)
    until(lambda: not procfs.alive(child))


def test_a_child_that_the_dead_main_process_left_behind_is_ended_by_the_next_step(program: Program) -> None:
    """Workers that outlive a crash hold port and memory of the next configuration."""
    program.start(CHILD.format(ignore="", then="signal.pause()"))
    child = child_of(program)
    os.kill(int(program.host.properties()["MainPID"]), signal.SIGKILL)
    program.ended()
    assert procfs.alive(child)
    program.host.stop(5)
    until(lambda: not procfs.alive(child))


def test_a_restart_is_another_run_with_a_log_of_its_own(program: Program) -> None:
    first = program.start("import os, signal\nprint('run of', os.getpid(), flush=True)\nsignal.pause()\n")
    program.log(f"run of {first['MainPID']}")
    program.host.restart()
    second = program.host.properties()
    assert second["MainPID"] != first["MainPID"]
    assert second["InvocationID"] != first["InvocationID"]
    assert second["NRestarts"] == "0"
    assert program.log(f"run of {second['MainPID']}") == f"run of {second['MainPID']}\n"
    assert not procfs.alive(int(first["MainPID"]))


NASTY = {
    "PERCENT": "100% %(here)s %%d",
    "QUOTES": "\"double\" 'single' `back` \\ \\n",
    "SPACES": "  a b  ",
    "JSON": '{"a": {"b": ["c", 1.5, null]}, "d": "$HOME ${HOME}"}',
    "LINES": "one\ntwo\n",
    "COMMENT": "a ; b # c",
    "UNICODE": "“☃”",
    "EMPTY": "",
}


def test_environment_values_and_log_survive_every_character(program: Program) -> None:
    source = "import json, os\nprint(json.dumps({n: os.environ.get(n) for n in %r}), flush=True)\n" % [*NASTY]
    program.start(source, **NASTY)
    program.ended()
    assert json.loads(program.log("}")) == NASTY


def test_the_program_sees_nothing_of_its_supervisor_and_both_its_streams_are_kept(program: Program) -> None:
    program.start(
        "import os, sys\nprint(sorted(n for n in os.environ if n.startswith('SUPERVISOR_')), os.getcwd(), flush=True)\n"
        "print('on stderr', file=sys.stderr, flush=True)\nsys.stdout.buffer.write(b'\\xff\\x00\\n')\n"
    )
    program.ended()
    program.host.write_log("", program.folder / "log")
    until(
        lambda: (
            program.host.write_log("", program.folder / "log"),
            b"\xff\x00" in (program.folder / "log").read_bytes(),
        )[1]
    )
    text = (program.folder / "log").read_bytes()
    assert text.startswith(f"[] {program.folder}\n".encode())
    assert b"on stderr\n" in text


def test_a_long_log_is_never_cut(program: Program) -> None:
    program.start("for n in range(60000):\n    print('line', n, 'x' * 40)\nprint('the end', flush=True)\n")
    program.ended()
    lines = program.log("the end").splitlines()
    assert len(lines) == 60001
    assert lines[0].startswith("line 0 ")


def test_what_cannot_be_executed_is_refused_before_anything_is_stopped(program: Program) -> None:
    running = program.start(SLEEP)
    plan = {"argv": ["/no/such/engine"], "kill_mode": "mixed", "stop_timeout_s": 1}
    with pytest.raises(ServiceError, match="the unit is refused: /no/such/engine is not executable"):
        program.host.install(json.dumps(plan), "{}")
    assert program.host.properties()["MainPID"] == running["MainPID"]


def test_what_is_installed_is_told_without_its_environment(program: Program) -> None:
    program.install(SLEEP, HF_TOKEN="hf_verysecret")
    installed = program.host.installed_unit()
    assert installed is not None
    assert "hf_verysecret" not in installed
    assert json.loads(installed)["kill_mode"] == "mixed"
    assert program.host.unit_path.stat().st_mode & 0o777 == 0o600


def test_a_spawned_process_outlives_its_caller_and_is_ended_by_name(host: Supervisor, tmp_path: Path) -> None:
    source = "import os, signal; print(os.environ['X'], os.getsid(0) == os.getpid(), flush=True); signal.pause()"
    log = tmp_path / "client.log"
    environment = {"X": 'a "b" %c', "OF_TEST": str(host.home)}
    caller = (
        "import json, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from specsweep_agent.service import Supervisor;"
        "Supervisor('engine', Path(sys.argv[2])).spawn('client', json.loads(sys.argv[3]), json.loads(sys.argv[4]),"
        " Path(sys.argv[5]))"
    )
    agent = str(Path(service.__file__).parents[1])
    argv = [sys.executable, "-c", caller, agent, str(host.home), json.dumps([sys.executable, "-c", source])]
    subprocess.run([*argv, json.dumps(environment), str(log)], check=True, timeout=60)
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    assert log.read_text() == 'a "b" %c True\n'
    pid = json.loads((host.home / "spawned" / "client.json").read_text())["pid"]
    assert procfs.alive(pid)
    host.end("client")
    until(lambda: not procfs.alive(pid))
    host.end("client")  # once more is no error


def test_a_number_that_was_given_to_another_process_is_not_ended(host: Supervisor) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    try:
        known = {"pid": bystander.pid, "started": (procfs.start_time(bystander.pid) or 0) - 3600}
        service.atomic_write(host.home / "spawned" / "client.json", json.dumps(known))
        host.end("client")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_starts_at_once_make_one_process(program: Program) -> None:
    """An interrupted sweep may be followed at once by the next."""
    program.install(SLEEP)
    failed: list[Exception] = []

    def start() -> None:
        try:
            Supervisor("engine", program.host.home).restart()
        except ServiceError as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) <= 1
    running = program.host.properties()
    assert running["ActiveState"] == "active"
    argument = str(program.folder / "program.py")

    def ours() -> list[int]:
        return [pid for pid in processes_of(program.folder) if argument in (procfs.command_line(pid) or [])]

    # The launcher becomes the program a moment after the start.
    until(lambda: ours() == [int(running["MainPID"])])
