"""The engine as a service: under systemd (system or user scope), or under supervisor where PID 1 is no systemd.

One interface for both; `properties` speaks systemd's words.  The unit is written in exec form, no shell.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
import xmlrpc.client
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import procfs

PROPERTIES = (
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "MainPID",
    "NRestarts",
    "InvocationID",
    "NeedDaemonReload",
    "ControlGroup",
    "FragmentPath",
    "LoadState",
    "ActiveEnterTimestamp",
    "InactiveEnterTimestamp",
    "MemoryPeak",
    "OOMPolicy",
)


class ServiceError(Exception):
    """A step of the service manager that failed; the message is one line."""


def run(argv: Sequence[str], timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a program, bounded in time; its output as text."""
    try:
        return subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise ServiceError("{} did not end within {:g} s".format(" ".join(argv[:3]), timeout_s)) from None
    except OSError as error:
        raise ServiceError(f"{argv[0]}: {error.strerror}") from None


def atomic_write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file with its mode, replacing it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".%s.%d" % (path.name, os.getpid()))
    descriptor = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    temporary.chmod(mode)
    temporary.replace(path)


class Systemd:
    """systemd, system scope as root, else the user's own manager."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.user = os.geteuid() != 0
        self.kind = "systemd-user" if self.user else "systemd"
        folder = Path.home() / ".config/systemd/user" if self.user else Path("/etc/systemd/system")
        self.unit_path = folder / (name + ".service")
        self.environment_path = home / "units" / (name + ".env")
        if self.user and not os.environ.get("XDG_RUNTIME_DIR"):
            os.environ["XDG_RUNTIME_DIR"] = "/run/user/%d" % os.geteuid()

    def _systemctl(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        scope = ["--user"] if self.user else []
        return run(["systemctl", *scope, *arguments], timeout_s)

    def _must(self, *arguments: str, timeout_s: float = 60.0) -> None:
        done = self._systemctl(*arguments, timeout_s=timeout_s)
        if done.returncode:
            raise ServiceError("systemctl {}: {}".format(" ".join(arguments), _last_line(done.stderr or done.stdout)))

    def verify(self, unit: str) -> None:
        """Check a unit with systemd-analyze before it replaces anything."""
        folder = self.home / "units"
        candidate = folder / ("check-%d" % os.getpid()) / (self.name + ".service")
        atomic_write(candidate, unit)
        try:
            scope = ["--user"] if self.user else []
            done = run(["systemd-analyze", *scope, "verify", str(candidate)])
        finally:
            shutil.rmtree(str(candidate.parent), ignore_errors=True)
        complaints = [line for line in done.stderr.splitlines() if self.name + ".service" in line]
        ignored = [
            line for line in complaints if re.search(r"Unknown (key|section|lvalue)|[Ii]gnoring|Failed to parse", line)
        ]
        if done.returncode or ignored:
            raise ServiceError(
                "the unit is refused: {}".format(_last_line("\n".join(ignored or complaints) or done.stderr))
            )

    def install(self, unit: str, environment: str) -> None:
        """Verify, write unit and environment file (mode 0600), reload, forget earlier failures."""
        atomic_write(self.environment_path, environment, 0o600)
        self.verify(unit)
        atomic_write(self.unit_path, unit)
        self._must("daemon-reload")
        self._systemctl("reset-failed", self.name + ".service")

    def installed_unit(self) -> str | None:
        return self.unit_path.read_text() if self.unit_path.exists() else None

    def remove(self) -> None:
        if self.unit_path.exists():
            self.unit_path.unlink()
        if self.environment_path.exists():
            self.environment_path.unlink()
        self._must("daemon-reload")
        self._systemctl("reset-failed", self.name + ".service")

    def restart(self) -> None:
        done = self._systemctl("restart", self.name + ".service", timeout_s=120)
        if done.returncode:
            raise ServiceError(f"systemctl restart {self.name}: {_last_line(done.stderr)}")

    def stop(self, timeout_s: float) -> None:
        self._systemctl("stop", self.name + ".service", timeout_s=timeout_s + 30)

    def properties(self) -> dict[str, str]:
        done = self._systemctl("show", self.name + ".service", "-p", ",".join(PROPERTIES))
        pairs = (line.partition("=") for line in done.stdout.splitlines() if "=" in line)
        return {name: value for name, _, value in pairs}

    def pids(self) -> set[int]:
        return control_group_pids(self.properties().get("ControlGroup", ""))

    def write_log(self, invocation_id: str, path: Path) -> None:
        """The journal of exactly one run: the program's lines and systemd's own, as JSON lines."""
        run(["journalctl", "--sync"])
        own = "INVOCATION_ID=" if not self.user else "USER_INVOCATION_ID="
        if not invocation_id:
            path.write_text("")
            return
        with path.open("wb") as out:
            subprocess.run(
                [
                    "journalctl",
                    *(["--user"] if self.user else []),
                    "_SYSTEMD_INVOCATION_ID=" + invocation_id,
                    "+",
                    own + invocation_id,
                    "-o",
                    "json",
                    "--output-fields=MESSAGE,PRIORITY,_PID,SYSLOG_IDENTIFIER",
                    "--no-pager",
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                check=False,
            )

    def spawn(self, name: str, argv: Sequence[str], environment: dict[str, str], log: Path) -> None:
        """Start a process that outlives this connection, as a transient unit."""
        log.parent.mkdir(parents=True, exist_ok=True)
        scope = ["--user"] if self.user else []
        self._systemctl("stop", name + ".service")
        self._systemctl("reset-failed", name + ".service")
        settings = ["--setenv={}={}".format(*pair) for pair in environment.items()]
        done = run(
            [
                "systemd-run",
                *scope,
                "--quiet",
                "--collect",
                "--unit=" + name,
                *settings,
                "-p",
                f"StandardOutput=append:{log}",
                "-p",
                f"StandardError=append:{log}",
                "-p",
                "LimitNOFILE=65536",
                *argv,
            ]
        )
        if done.returncode:
            raise ServiceError(f"systemd-run {name}: {_last_line(done.stderr)}")

    def end(self, name: str) -> None:
        """End a spawned process."""
        self._systemctl("stop", name + ".service")


class Supervisor:
    """supervisor, for hosts where PID 1 is not systemd.  It observes exit status and log as systemd would."""

    kind = "supervisor"

    def __init__(self, name: str, home: Path, python: str = "") -> None:
        self.name = name
        self.home = home
        self.folder = home / "supervisor"
        self.python = python or sys.executable
        self.unit_path = self.folder / "programs" / (name + ".json")
        self.environment_path = self.unit_path
        self.state_path = self.folder / (name + ".state.json")

    # supervisord itself

    def _socket(self) -> Path:
        # Unix sockets have a short limit on their path.
        path = self.folder / "supervisor.sock"
        if len(str(path)) < 100:
            return path
        return Path("/tmp") / (
            "specsweep-%d-%s.sock" % (os.geteuid(), uuid.uuid5(uuid.NAMESPACE_URL, str(path)).hex[:12])
        )

    def _rpc(self, wait_s: float = 60.0) -> Any:
        transport = _UnixTransport(str(self._socket()), wait_s)
        return xmlrpc.client.ServerProxy("http://supervisor/RPC2", transport=transport).supervisor

    def _up(self) -> None:
        try:
            self._rpc().getState()
            return
        except (OSError, http.client.HTTPException):
            pass
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "supervisord.conf"
        programs = self.folder / "conf.d"
        programs.mkdir(exist_ok=True)
        folder, socket_path = (str(path).replace("%", "%%") for path in (self.folder, self._socket()))
        atomic_write(
            configuration,
            f"[unix_http_server]\nfile={socket_path}\nchmod=0700\n"
            f"[supervisord]\nlogfile={folder}/supervisord.log\npidfile={folder}/supervisord.pid\n"
            f"childlogdir={folder}\nminfds=1024\n"
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface\n"
            # Relative to this file: the list is split at spaces.
            "[include]\nfiles = conf.d/*.conf\n",
            0o600,
        )
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(filter(None, [str(self.home / "site"), os.environ.get("PYTHONPATH", "")])),
        )
        done = subprocess.run(
            [self.python, "-m", "supervisor.supervisord", "-c", str(configuration)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
        if done.returncode:
            raise ServiceError(f"supervisord did not start: {_last_line(done.stderr or done.stdout)}")
        deadline = time.monotonic() + 10
        while True:
            try:
                self._rpc().getState()
                return
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise ServiceError(f"supervisord does not answer on {self._socket()}") from None
                time.sleep(0.05)

    def shutdown(self) -> None:
        """End supervisord and everything it runs."""
        try:
            self._rpc().shutdown()
        except (OSError, http.client.HTTPException, xmlrpc.client.Fault):
            return
        deadline = time.monotonic() + 30
        while self._socket().exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    # the same steps as systemd

    def install(self, unit: str, environment: str) -> None:
        """Write the program's file; `unit` is JSON with argv, kill_mode, stop_timeout_s, directory, log."""
        plan = json.loads(unit)
        program = shutil.which(plan["argv"][0]) or plan["argv"][0]
        if not os.access(program, os.X_OK):
            raise ServiceError("the unit is refused: {} is not executable".format(plan["argv"][0]))
        self._up()
        self.stop(plan["stop_timeout_s"])
        atomic_write(self.unit_path, json.dumps(dict(plan, environment=json.loads(environment)), indent=1), 0o600)
        whole_group = "true" if plan["kill_mode"] != "process" else "false"
        launcher = Path(__file__).resolve().parent / "launch.py"
        if not launcher.exists():
            launcher = self.home / "agent" / "specsweep_agent" / "launch.py"
        command = f'"{self.python}" "{launcher}" "{self.unit_path}"'
        atomic_write(
            self.folder / "conf.d" / (self.name + ".conf"),
            "[program:{name}]\ncommand={command}\nautostart=false\nautorestart=false\nstartsecs=0\nexitcodes=0\n"
            "stopsignal=TERM\nstopwaitsecs={wait}\nstopasgroup={stop_group}\nkillasgroup={kill_group}\n"
            "redirect_stderr=true\nstdout_logfile={log}\nstdout_logfile_maxbytes=0\n".format(
                name=self.name,
                command=command.replace("%", "%%"),
                wait=int(plan["stop_timeout_s"]) + 1,
                # As systemd's mixed: TERM to the main process, KILL to the whole group.
                stop_group="true" if plan["kill_mode"] == "control-group" else "false",
                kill_group=whole_group,
                # Supervisor replaces the names in a log's path twice.
                log=str(self._log()).replace("%", "%%%%"),
            ),
            0o600,
        )
        rpc = self._rpc()
        try:
            added, changed, removed = rpc.reloadConfig()[0]
            for group in (*changed, *removed):
                rpc.removeProcessGroup(group)
            for group in (*added, *changed):
                rpc.addProcessGroup(group)
        except xmlrpc.client.Fault as fault:
            raise ServiceError(f"supervisor: {fault.faultString}") from None
        atomic_write(self.state_path, json.dumps({"invocation_id": ""}))

    def _log(self) -> Path:
        return self.folder / (self.name + ".log")

    def installed_unit(self) -> str | None:
        if not self.unit_path.exists():
            return None
        plan = json.loads(self.unit_path.read_text())
        plan.pop("environment", None)
        return json.dumps(plan, indent=1, sort_keys=True)

    def remove(self) -> None:
        for path in (self.unit_path, self.folder / "conf.d" / (self.name + ".conf"), self.state_path):
            if path.exists():
                path.unlink()
        self.shutdown()

    def restart(self) -> None:
        self.stop(json.loads(self.unit_path.read_text())["stop_timeout_s"])
        log = self._log()
        if log.exists():
            log.unlink()
        rpc = self._rpc()
        rpc.clearProcessLogs(self.name)
        try:
            rpc.startProcess(self.name, True)
        except xmlrpc.client.Fault as fault:
            raise ServiceError(f"supervisor: {fault.faultString}") from None
        atomic_write(
            self.state_path,
            json.dumps({"invocation_id": uuid.uuid4().hex, "started": time.time(), "pid": self._info().get("pid", 0)}),
        )

    def stop(self, timeout_s: float) -> None:
        members = self.pids()
        plan = json.loads(self.unit_path.read_text()) if self.unit_path.exists() else {}
        # supervisord answers when the process has ended, and gives it the time of its own plan.
        wait_s = max(timeout_s, plan.get("stop_timeout_s", 0.0)) + 60.0
        # A Fault: it does not run.  No answer: there is no supervisord, or it was ended; its children may live.
        with contextlib.suppress(OSError, http.client.HTTPException, xmlrpc.client.Fault):
            self._rpc(wait_s).stopProcess(self.name, True)
        # What the main process left behind would hold port and memory of the next configuration.
        for member in members | self._left_behind():
            if procfs.alive(member):
                try:
                    os.kill(member, signal.SIGKILL)
                except OSError:
                    continue

    def _left_behind(self) -> set[int]:
        """Children of the last main process, which led a process group of its own."""
        state = json.loads(self.state_path.read_text()) if self.state_path.exists() else {}
        leader = int(state.get("pid") or 0)
        if not leader:
            return set()
        # Younger than the start, so that a number which was given out again is nobody else's group.
        began = state.get("started", 0.0) - 5.0
        return {pid for pid in procfs.group(leader) if (procfs.start_time(pid) or 0.0) > began}

    def _info(self) -> dict[str, Any]:
        try:
            return dict(self._rpc().getProcessInfo(self.name))
        except (OSError, http.client.HTTPException, xmlrpc.client.Fault):
            return {}

    def properties(self) -> dict[str, str]:
        info = self._info()
        state = json.loads(self.state_path.read_text()) if self.state_path.exists() else {}
        words = {
            "ActiveState": "inactive",
            "SubState": "dead",
            "Result": "success",
            "ExecMainCode": "0",
            "ExecMainStatus": "0",
            "MainPID": "0",
            "NRestarts": "0",
            "InvocationID": str(state.get("invocation_id", "")),
            "NeedDaemonReload": "no",
            "ControlGroup": "",
            "FragmentPath": str(self.unit_path),
            "LoadState": "loaded" if self.unit_path.exists() else "not-found",
        }
        name = info.get("statename", "")
        if name in ("RUNNING", "STARTING"):
            words.update(ActiveState="active", SubState="running", MainPID=str(info["pid"]))
            if state.get("pid") and info["pid"] != state["pid"]:
                words["NRestarts"] = "1"
        elif name == "STOPPING":
            words.update(ActiveState="deactivating", SubState="stop-sigterm", MainPID=str(info["pid"]))
        elif name in ("EXITED", "FATAL", "BACKOFF", "UNKNOWN"):
            code, status = self._exit()
            words.update(ExecMainCode=code, ExecMainStatus=status)
            if code == "2":
                words.update(ActiveState="failed", SubState="failed", Result="signal")
            elif status != "0" or name in ("FATAL", "BACKOFF"):
                words.update(ActiveState="failed", SubState="failed", Result="exit-code")
        return words

    def _exit(self) -> tuple[str, str]:
        """(ExecMainCode, ExecMainStatus) of the last exit; the signal stands in supervisord's log only."""
        try:
            lines = (self.folder / "supervisord.log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        for line in reversed(lines):
            match = re.search(rf"exited: {re.escape(self.name)} \((?:exit status (\d+)|terminated by SIG(\w+))", line)
            if match:
                if match[1]:
                    return "1", match[1]
                number = getattr(signal, "SIG" + match[2], None)
                return "2", str(int(number)) if number else match[2]
        return "1", str(self._info().get("exitstatus", 0))

    def pids(self) -> set[int]:
        pid = int(self._info().get("pid") or 0)
        return procfs.descendants(pid) | procfs.group(pid) if pid else set()

    def write_log(self, invocation_id: str, path: Path) -> None:
        if self._log().exists():
            shutil.copyfile(str(self._log()), str(path))
        else:
            path.write_text("")

    def spawn(self, name: str, argv: Sequence[str], environment: dict[str, str], log: Path) -> None:
        """Start a process in a session of its own; its pid is kept, so that it can be ended by name."""
        self.end(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, **environment),
                start_new_session=True,
                close_fds=True,
            )
        started = procfs.start_time(process.pid)
        atomic_write(self.home / "spawned" / (name + ".json"), json.dumps({"pid": process.pid, "started": started}))

    def end(self, name: str) -> None:
        path = self.home / "spawned" / (name + ".json")
        if not path.exists():
            return
        known = json.loads(path.read_text())
        path.unlink()
        started = procfs.start_time(known["pid"])
        if started is None or known["started"] is None or abs(started - known["started"]) > 1:
            return
        for number, wait_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 2.0)):
            try:
                os.killpg(known["pid"], number)
            except OSError:
                return
            deadline = time.monotonic() + wait_s
            while procfs.alive(known["pid"]) and time.monotonic() < deadline:
                time.sleep(0.05)
            if not procfs.alive(known["pid"]):
                return


def booted_with_systemd() -> bool:
    """Whether PID 1 is systemd (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def manager(name: str, home: Path, supervisor_python: str = "") -> Any:
    """The service manager of this host."""
    if booted_with_systemd() and shutil.which("systemctl"):
        return Systemd(name, home)
    return Supervisor(name, home, supervisor_python)


def control_group_pids(group: str) -> set[int]:
    """All processes of a control group and of the groups below it, in cgroup v1 or v2."""
    if not group or group == "/":
        return set()
    found: set[int] = set()
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
        for path in Path(mount + group).rglob("cgroup.procs") if Path(mount + group).is_dir() else ():
            try:
                found.update(int(line) for line in path.read_text().split())
            except OSError:
                continue
    return found


def how_it_ended(properties: dict[str, str]) -> str:
    """The end of the main process in words, from unit properties."""
    state, result = properties.get("ActiveState", "?"), properties.get("Result", "?")
    code, status = properties.get("ExecMainCode", "0"), properties.get("ExecMainStatus", "0")
    if code in ("2", "3"):
        try:
            how = f"ended by signal {status} ({signal.Signals(int(status)).name})"
        except ValueError:
            how = f"ended by signal {status}"
    elif code == "1":
        how = f"exited with status {status}"
    else:
        how = "has no main process"
    return f"the unit is {state} ({result}): its main process {how}"


def clean_end(properties: dict[str, str], stop: dict[str, Any]) -> bool:
    """Whether this is how a stop that we asked for looks, by the engine profile."""
    code, status = properties.get("ExecMainCode", "0"), properties.get("ExecMainStatus", "0")
    if code in ("2", "3"):
        try:
            return signal.Signals(int(status)).name in stop.get("clean_signal", [])
        except ValueError:
            return False
    return int(status or 0) in stop.get("clean_exit", [0])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: str, wait_s: float) -> None:
        super().__init__()
        self._path = path
        self._wait_s = wait_s

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        path, wait_s = self._path, self._wait_s

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(wait_s)
                self.sock.connect(path)

        return Connection("localhost")
