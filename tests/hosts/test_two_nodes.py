"""One engine over two hosts, with stand-ins: rank 0 is swept, rank 1 starts, is watched and ends with it."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts.machines import SMALL, Hosts, cells_of, configurations_of, show

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("hosts")]

#: Rank 0 dies by itself at the largest budget (48 sequences x 32).
CRASH = {
    "at": "warmup", "kind": "crash", "max_running_x_width_above": 48 * 24, "signal": 9,
    "log": "logs/cublas_execution_failed.log",
}  # fmt: skip
SWEEP = {
    "engine": "replay",
    # Slow enough that the second configuration is under load when its rank 1 is killed.
    "settings": {
        "scenario": json.dumps({"load_s": 0.2, "warmup_s": 0.1, "failures": [CRASH]}),
        "replay_speed": 0.5,
        "tp_size": 16,
    },
    "budgets": [8, 16, 24, 32],
    "topks": [4],
    "baseline": False,
    "order": "given",
    "requests": 12,
    "output_tokens": 64,
    "concurrencies": [1, 2],
}
ADDRESS = "10.90.0.11:20000"


def two_nodes(hosts: Hosts, folder: Path) -> Path:
    """The inventory of docs/fleet.md for the two test hosts: gpu1 leads, gpu2 follows."""
    path = hosts.inventory(folder / "hosts.yml")
    data = yaml.safe_load(path.read_text())
    for rank, name in enumerate(("gpu1", "gpu2")):
        data["engine_hosts"]["hosts"][name]["serve_names"] = {
            "nnodes": 2, "node_rank": rank, "dist_init_addr": ADDRESS,
        }  # fmt: skip
    data["engine_hosts"]["hosts"]["gpu2"]["serve_follows"] = "gpu1"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="module")
def swept(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the sweep: rank 1 is killed while the second configuration is under load."""
    folder = tmp_path_factory.mktemp("two-nodes")

    def kill_rank_one() -> None:
        hosts.wait_for(
            "gpu1",
            """for s in /var/lib/specsweep/runs/*/ngram-b16-*/r1/status.json; do
            grep '"phase": "measure"' $s; done""",
        )
        hosts.sh("gpu2", "kill -9 $(systemctl show -P MainPID specsweep-engine)")

    killer = threading.Thread(target=kill_rank_one)
    killer.start()
    done = hosts.play(
        "sweep.yml", two_nodes(hosts, folder), *SMALL, json.dumps(SWEEP), f"sweep_results={folder / 'results'}"
    )
    killer.join(1)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return folder / "results"


def log(results: Path, label: str, name: str) -> str:
    (path,) = results.glob(f"*/gpu1/{label}-*/r1/evidence/{name}.gz")
    return gzip.decompress(path.read_bytes()).decode()


def test_cells_are_measured_on_the_leader_only(swept: Path) -> None:
    cells = cells_of(swept)
    assert {host for host, _, _ in cells} == {"gpu1"} and len(cells) == 4 * 2
    assert {host for host, _ in configurations_of(swept)} == {"gpu1"}
    assert not list(swept.glob("*/gpu2/*/*")) and list(swept.glob("*/gpu2/host.json"))
    assert not list(swept.glob("*/.rank-*"))


def test_the_next_configuration_runs(swept: Path) -> None:
    cells = cells_of(swept)
    for budget in (8, 24):
        for concurrency in (1, 2):
            cell = cells["gpu1", f"ngram b{budget} k4", concurrency]
            assert cell.status == "ok", show(cell)
            assert cell.requests_completed == 12


def test_the_logs_of_both_ranks_are_in_the_leaders_folder(swept: Path) -> None:
    for label in ("ngram-b8", "ngram-b24"):
        assert "rank 1 of 2 joined" in log(swept, label, "engine.log")
        assert "Dummy health check server started" in log(swept, label, "rank-1.engine.log")
        (unit,) = swept.glob(f"*/gpu1/{label}-*/r1/unit/rank-1.engine.service")
        words = [line.strip(' \\"') for line in unit.read_text().splitlines()]
        assert words[words.index("--node-rank") + 1] == "1" and words[words.index("--nnodes") + 1] == "2"


def test_the_death_of_rank_one_is_the_failure_of_the_cell(swept: Path) -> None:
    cells = cells_of(swept)
    failed: Any = cells["gpu1", "ngram b16 k4", 1]
    assert failed.status == "failed" and failed.reached, show(failed)
    assert failed.failure.klass == "proc.killed", show(failed.failure)
    assert "rank 1 on gpu2" in failed.reason and "signal 9" in failed.reason
    assert any(line.source.startswith("rank-1.") and "gpu2" in line.source for line in failed.failure.evidence)
    later = cells["gpu1", "ngram b16 k4", 2]
    assert later.status == "failed" and later.reason.startswith("not reached"), show(later)
    # Rank 0 itself only waits: without a watch the cell would end with the time limit of its requests.
    assert "rank 1 of 2 is gone" in log(swept, "ngram-b16", "engine.log")
    assert "status=9/KILL" in log(swept, "ngram-b16", "rank-1.unit.log")


def test_the_death_of_rank_zero_is_its_own_failure(swept: Path) -> None:
    """Rank 1 ends too when rank 0 is gone: that is the effect."""
    cell: Any = cells_of(swept)["gpu1", "ngram b32 k4", 1]
    assert cell.status == "failed" and cell.failure.klass == "cuda.cublas.execution_failed", show(cell)
    assert "gpu2" not in cell.reason and {line.source for line in cell.failure.evidence} == {"engine"}
    assert "rank 0 is gone" in log(swept, "ngram-b32", "rank-1.engine.log")


def test_a_rank_that_cannot_start_fails_the_restart_at_once(hosts: Hosts, tmp_path: Path) -> None:
    hosts.sh("gpu2", "systemd-run --quiet --unit=stale python3 -m http.server 18080 --bind 127.0.0.1")
    hosts.wait_for("gpu2", "ss -ltn | grep 18080")
    try:
        done = hosts.play(
            "sweep.yml", two_nodes(hosts, tmp_path), *SMALL, json.dumps({**SWEEP, "budgets": [8]}),
            f"sweep_results={tmp_path / 'results'}",
        )  # fmt: skip
    finally:
        hosts.sh("gpu2", "systemctl stop stale")
    assert done.returncode == 0, done.stdout + done.stderr
    cells: Any = cells_of(tmp_path / "results")
    assert len(cells) == 2
    for cell in cells.values():
        assert (cell.status, cell.failure.klass) == ("failed", "proc.port_in_use"), show(cell)
        assert "rank 1 on gpu2" in cell.reason and "stale.service" in cell.reason


@pytest.mark.usefixtures("swept")
def test_both_hosts_were_given_back(hosts: Hosts) -> None:
    for host in ("gpu1", "gpu2"):
        assert hosts.sh(host, "systemctl is-active specsweep-engine").strip() == "inactive"
        # The guard looks once a second whether there is something to guard.
        hosts.wait_for(host, "systemctl is-active specsweep-guard | grep inactive", 10)
        assert hosts.sh(host, "ls /var/lib/specsweep/lease.json 2>/dev/null") == ""
