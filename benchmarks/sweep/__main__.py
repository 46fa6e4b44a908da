"""Overhead, detection and the load client, measured on one throw-away host over real ssh.

    sudo .venv/bin/python -m benchmarks.sweep

Boots a host with real systemd and sshd, sweeps the embedded engine on it and prints the figures of
benchmarks/README.md.  Needs root and the packages of tests/hosts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from specsweep import record
from tests.hosts.machines import SMALL, Hosts, boot, why_not

#: Runs inside the host: kills the engine's main process in one phase, again and again, and says when.
KILLER = r"""
import os, signal, subprocess, sys, time
phase, wanted = sys.argv[1], int(sys.argv[2])
done, last = 0, 0
while done < wanted:
    time.sleep(0.01)
    show = subprocess.run(["systemctl", "show", "-P", "MainPID", "specsweep-engine"], capture_output=True, text=True)
    pid = int(show.stdout.strip() or 0)
    if not pid or pid == last:
        continue
    if phase == "load":
        # Between exec and the first answer: the model is being loaded.
        time.sleep(0.15)
    else:
        newest = subprocess.run("ls -t /var/lib/specsweep/runs/*/*/*/status.json | head -1 | xargs cat", shell=True,
                                capture_output=True, text=True).stdout
        if '"phase": "measure"' not in newest or '"state": "running"' not in newest:
            continue
        time.sleep(0.5)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        continue
    print(time.time(), flush=True)
    done, last = done + 1, pid
"""

#: Runs inside the host: the moment of the first answered generation after each restart.
PROBER = r"""
import json, subprocess, sys, time, urllib.request
last, done = 0, 0
while done < int(sys.argv[1]):
    time.sleep(0.005)
    show = subprocess.run(["systemctl", "show", "-P", "MainPID", "specsweep-engine"], capture_output=True, text=True)
    pid = int(show.stdout.strip() or 0)
    if not pid or pid == last:
        continue
    while True:
        began = time.time()
        try:
            body = json.dumps({"prompt": "a", "n_predict": 1}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request("http://127.0.0.1:18080/completion", body, headers)
            urllib.request.urlopen(request, timeout=5).read()
            break
        except OSError:
            time.sleep(0.005)
    print(began, flush=True)
    last, done = pid, done + 1
"""


def configurations(results: Path) -> list[record.Configuration]:
    found = [record.read(path, record.Configuration) for path in results.glob("*/*/*/*/configuration.json")]
    return sorted(found, key=lambda item: item.position)


def cells(results: Path) -> list[record.Cell]:
    return [record.read(path, record.Cell) for path in results.glob("*/*/*/*/cells/*.json")]


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f} s, n = {len(values)}"


def beside(hosts: Hosts, script: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python script inside the host, beside the sweep."""
    import os

    from tests.hosts.machines import SCRIPT

    return subprocess.Popen(
        ["bash", str(SCRIPT), "sh", "gpu1", "python3", "-c", script, *arguments],
        env={**os.environ, **hosts.environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def sweep(hosts: Hosts, folder: Path, *extra: str) -> Path:
    inventory = hosts.inventory(folder / "hosts.yml")
    done = hosts.play("sweep.yml", inventory, *SMALL, f"sweep_results={folder / 'results'}", *extra, timeout=900)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return folder / "results"


def overhead(hosts: Hosts, folder: Path) -> None:
    folder.mkdir()
    found = configurations(sweep(hosts, folder, "budgets=[0,2,3,4,6,8]", "anchors=false"))
    values = [item.overhead_s for item in found if item.status == "ok" and item.overhead_s is not None]
    print(f"overhead of a configuration over ssh (at most 4 s, aim 2 s): {spread(values)}")


def detection(hosts: Hosts, folder: Path, phase: str, limit: str) -> None:
    folder.mkdir()
    killer = beside(hosts, KILLER, phase, "5")
    results = sweep(hosts, folder, "budgets=[0,2,3,4,6]", "anchors=false", "requests=60", "output_tokens=64")
    killer.kill()
    kills = [float(line) for line in (killer.stdout or [])]
    known = [item.failure_known_unix_s for item in configurations(results) if item.failure_known_unix_s]
    delays = [min((at - kill for at in known if at >= kill), default=None) for kill in kills]
    values = [delay for delay in delays if delay is not None and delay < 30]
    print(f"from kill -9 {limit} to the known failure (median at most 1 s): {spread(values)}")


def readiness(hosts: Hosts, folder: Path) -> None:
    folder.mkdir()
    prober = beside(hosts, PROBER, "5")
    found = configurations(sweep(hosts, folder, "budgets=[0,2,3,4,6]", "anchors=false"))
    prober.kill()
    first = [float(line) for line in (prober.stdout or [])]
    ready = [phase.end_unix_s for item in found for phase in item.phases if phase.name == "ready"]
    delays = [min((at - probe for at in ready if at >= probe), default=None) for probe in first]
    values = [delay for delay in delays if delay is not None]
    print(f"from the first possible generation to ready (at most 0.5 s): {spread(values)}")


def client(hosts: Hosts, folder: Path) -> None:
    folder.mkdir()
    results = sweep(
        hosts, folder, "budgets=[0,8]", "concurrencies=[1,4]", "requests=16", "output_tokens=64", "anchors=false"
    )
    for cell in sorted(cells(results), key=lambda item: (item.budget, item.concurrency)):
        requests = [
            request
            for path in results.glob(f"*/gpu1/*/*/{cell.requests_file}")
            if record.read(path.parents[1] / "configuration.json", record.Configuration).label == cell.label
            for request in record.read_requests(path)
            if request.ok and not request.warmup
        ]
        ours, theirs = cell.output_tokens_total or 0, cell.counters.get("output_tokens", 0)
        line = f"{cell.label}, concurrency {cell.concurrency}: tokens by the client {ours}, by the server {theirs:.0f}"
        if cell.concurrency == 1:
            ratios = [
                request.e2e_ms / request.server_ms for request in requests if request.e2e_ms and request.server_ms
            ]
            line += f"; client time / server's prompt + decode time: median {statistics.median(ratios):.4f}"
        print(line)


def main() -> None:
    reason = why_not()
    if reason:
        sys.exit(f"benchmarks.sweep: {reason}")
    wanted = sys.argv[1:] or ["overhead", "detection", "readiness", "client"]
    with boot({"gpu1": 11}) as hosts, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "overhead" in wanted:
            overhead(hosts, folder / "overhead")
        if "detection" in wanted:
            detection(hosts, folder / "load", "load", "while the model loads")
            detection(hosts, folder / "measure", "measure", "under load")
        if "readiness" in wanted:
            readiness(hosts, folder / "ready")
        if "client" in wanted:
            client(hosts, folder / "client")


if __name__ == "__main__":
    main()
