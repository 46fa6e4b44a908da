"""One sweep over two real hosts with faults on purpose: each ends as docs/failures.md says, and the rest runs."""

from __future__ import annotations

import gzip
import threading
import time
from pathlib import Path

import pytest

from tests.hosts.machines import SMALL, Hosts, cells_of, configurations_of, show

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("hosts")]


@pytest.fixture(scope="module")
def swept(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the sweep: on gpu1 the engine is killed under load, on gpu2 a stale server holds the port."""
    folder = tmp_path_factory.mktemp("faults")
    inventory = hosts.inventory(folder / "hosts.yml")
    hosts.sh("gpu2", "systemd-run --quiet --unit=stale python3 -m http.server 18080 --bind 127.0.0.1")
    hosts.wait_for("gpu2", "ss -ltn | grep 18080")

    def kill_under_load() -> None:
        measuring = """for s in /var/lib/specsweep/runs/*/ngram-mod-b4-*/r1/status.json; do
            grep -q '"phase": "measure"' $s && systemctl show -P MainPID specsweep-engine; done"""
        pid = hosts.wait_for("gpu1", measuring)
        hosts.sh("gpu1", f"kill -9 {pid.split()[-1]}")

    def free_the_port() -> None:
        # The first configuration found the port held; the later ones must run.
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            found = list((folder / "results").glob("*/gpu2/none-*/r1/configuration.json"))
            if found and '"status": "failed"' in found[0].read_text():
                break
            time.sleep(0.05)
        hosts.sh("gpu2", "systemctl stop stale")

    threads = [threading.Thread(target=kill_under_load), threading.Thread(target=free_the_port)]
    for thread in threads:
        thread.start()
    done = hosts.play(
        "sweep.yml",
        inventory,
        *SMALL,
        "order=given",
        "requests=30",
        "budgets=[0,4,8]",
        "methods=[ngram-mod,draft-simple]",
        "drafter=/nonexistent/draft.gguf",
        f"sweep_results={folder / 'results'}",
    )
    for thread in threads:
        thread.join(1)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return folder / "results"


def test_every_cell_has_a_final_status(swept: Path) -> None:
    cells = cells_of(swept)
    assert len(cells) == 2 * 5
    assert {cell.status for cell in cells.values()} <= {"ok", "failed", "not_applied", "invalid"}


def test_a_server_killed_under_load_is_proc_killed(swept: Path) -> None:
    cell = cells_of(swept)["gpu1", "ngram-mod b4 k1", 1]
    assert cell.failure is not None, show(cell)
    assert (cell.status, cell.failure.klass) == ("failed", "proc.killed"), show(cell.failure)
    assert cell.system_tok_s != 0


def test_the_whole_log_of_the_killed_server_came_back(swept: Path) -> None:
    (log,) = swept.glob("*/gpu1/ngram-mod-b4-*/r1/evidence/engine.log.gz")
    text = gzip.decompress(log.read_bytes()).decode()
    assert "load_model" in text and "/nonexistent" not in text
    (unit,) = swept.glob("*/gpu1/ngram-mod-b4-*/r1/evidence/unit.log.gz")
    assert "status=9/KILL" in gzip.decompress(unit.read_bytes()).decode()


def test_a_held_port_is_named_before_the_engine_is_started(swept: Path) -> None:
    cell = cells_of(swept)["gpu2", "none", 1]
    assert cell.failure is not None, show(cell)
    assert (cell.status, cell.failure.klass) == ("failed", "proc.port_in_use"), show(cell.failure)
    assert "stale.service" in cell.reason


def test_a_missing_drafter_is_model_draft_path_missing(swept: Path) -> None:
    for host in ("gpu1", "gpu2"):
        for budget in (4, 8):
            cell = cells_of(swept)[host, f"draft-simple b{budget} k1", 1]
            assert cell.failure is not None, show(cell)
            assert (cell.status, cell.failure.klass) == ("failed", "model.draft.path_missing"), show(cell.failure)


def test_the_following_configurations_ran(swept: Path) -> None:
    cells = cells_of(swept)
    for key in [("gpu1", "none", 1), ("gpu1", "ngram-mod b8 k1", 1), ("gpu2", "ngram-mod b8 k1", 1)]:
        assert cells[key].status == "ok", show(cells[key])
        assert cells[key].requests_completed == 30
        assert cells[key].output_tokens_total == 30 * 16


def test_what_ran_is_attested(swept: Path) -> None:
    configuration = configurations_of(swept)["gpu1", "ngram-mod b8 k1"]
    assert configuration.attestation is not None
    assert configuration.attestation.verdict == "applied", show(configuration.attestation)
    names = {witness.name for witness in configuration.attestation.witnesses}
    assert {"unit", "command_line", "environment", "start_time", "port_owner", "engine_report"} <= names
    assert configuration.service is not None and configuration.service.supervisor == "systemd"
    assert configuration.service.properties["NRestarts"] == "0"


def test_detection_took_at_most_seconds(swept: Path) -> None:
    configuration = configurations_of(swept)["gpu1", "ngram-mod b4 k1"]
    assert "signal 9" in configuration.reason


@pytest.mark.usefixtures("swept")
def test_the_hosts_were_given_back(hosts: Hosts) -> None:
    for host in ("gpu1", "gpu2"):
        assert (
            hosts.sh(host, "systemctl is-active specsweep-engine specsweep-guard specsweep-load").split()
            == ["inactive"] * 3
        )
        assert hosts.sh(host, "ls /var/lib/specsweep/lease.json 2>/dev/null") == ""
