"""Throw-away hosts with real systemd and real sshd, and what the tests of this folder ask of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specsweep import embedded, record

REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "nspawn_host.sh"
NAMES = {"gpu1": 11, "gpu2": 12}


def why_not() -> str | None:
    """Why hosts cannot be booted here, or None."""
    if os.geteuid() != 0:
        return "booting systemd hosts needs root"
    missing = [name for name in ("mmdebstrap", "systemd-nspawn", "ip", "ssh", "nsenter") if not shutil.which(name)]
    if missing:
        return f"not installed: {', '.join(missing)} (apt install mmdebstrap systemd-container iproute2 openssh-client)"
    return None


@dataclass
class Hosts:
    environment: dict[str, str] = field(default_factory=dict)

    def script(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(SCRIPT), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=options.pop("timeout", 300),
            **options,
        )

    def sh(self, name: str, command: str) -> str:
        """Run a shell command inside a host, not over ssh; its output."""
        return self.script("sh", name, "bash", "-c", command).stdout

    def put(self, name: str, path: str, text: str) -> None:
        """Write a file inside a host."""
        self.script("sh", name, "tee", path, input=text, check=True)

    def inventory(self, path: Path, **variables: Any) -> Path:
        """An inventory of both hosts with these variables for all of them."""
        data = yaml.safe_load(self.script("inventory", check=True).stdout)
        group = data["engine_hosts"]
        group["vars"].update(variables)
        path.write_text(yaml.safe_dump(data))
        return path

    def play(
        self, playbook: str, inventory: Path, *extra: str, limit: str = "", timeout: float = 400
    ) -> subprocess.CompletedProcess[str]:
        """ansible-playbook where the hosts can be reached."""
        command = ["ctl", sys.executable, "-m", "ansible", "playbook", "-i", str(inventory), playbook]
        command += ["--limit", limit] if limit else []
        for item in extra:
            command += ["-e", item]
        return self.script(*command, cwd=REPOSITORY, timeout=timeout)

    def start(self, playbook: str, inventory: Path, *extra: str, limit: str = "") -> subprocess.Popen[str]:
        """The same in the background."""
        command = ["bash", str(SCRIPT), "ctl", sys.executable, "-m", "ansible", "playbook"]
        command += ["-i", str(inventory), playbook, *(["--limit", limit] if limit else [])]
        for item in extra:
            command += ["-e", item]
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, name: str, command: str, timeout_s: float = 120) -> str:
        """Until a shell command inside a host succeeds with some output; that output."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            done = self.script("sh", name, "bash", "-c", command)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.strip()
            time.sleep(0.1)
        raise AssertionError(f"{name}: {command!r} did not succeed within {timeout_s} s")


@contextlib.contextmanager
def boot(names: Mapping[str, int] = NAMES) -> Iterator[Hosts]:
    """Boot hosts side by side and clean up after them."""
    # The base system is built once a machine; hosts and network belong to this run.
    base = Path(os.environ.get("NSPAWN_DIR", "/var/tmp/specsweep-hosts"))
    base.mkdir(parents=True, exist_ok=True)
    made = Hosts({"NSPAWN_DIR": str(base), "NSPAWN_NET": f"ss{os.getpid()}", "NSPAWN_RUN": str(os.getpid())})
    # What travels to the hosts is made where there is a network.
    embedded.model()
    # Which parts a host lacks depends on the tests that ran before.
    for parts in (["aiohttp", "xllamacpp"], ["aiohttp"], ["xllamacpp"]):
        embedded.site_archive(parts, "3.11", os.uname().machine, "glibc 2.36")
    made.script("base", check=True, timeout=900)
    try:
        with ThreadPoolExecutor() as pool:
            for done in pool.map(lambda item: made.script("up", item[0], str(item[1])), names.items()):
                assert done.returncode == 0, done.stderr
        yield made
    finally:
        made.script("clean")


#: A small sweep: what is tested is the path, not the speed.
SMALL = (
    "requests=4",
    "output_tokens=16",
    "concurrencies=[1]",
    "client_lag_limit_ms=5000",
    "report_wanted=false",
)


def cells_of(results: Path) -> dict[tuple[str, str, int], record.Cell]:
    """Cells of the only sweep in a results folder, by host, label and concurrency."""
    (sweep,) = results.glob("*/sweep.json")
    found = {}
    for path in sweep.parent.glob("*/*/*/cells/*.json"):
        cell = record.read(path, record.Cell)
        found[cell.host, cell.label, cell.concurrency] = cell
    return found


def configurations_of(results: Path) -> dict[tuple[str, str], record.Configuration]:
    found = {}
    for path in results.glob("*/*/*/*/configuration.json"):
        configuration = record.read(path, record.Configuration)
        found[configuration.host, configuration.label] = configuration
    return found


def show(value: Any) -> str:
    return json.dumps(value, indent=1, default=str)
