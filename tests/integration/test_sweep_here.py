"""A real sweep on this machine: the embedded engine, a real model, real speculation, under supervisor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specsweep import record

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

REPOSITORY = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def play(playbook: str, folder: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ansible", "playbook", playbook]
    port = folder / "port"
    if not port.exists():
        port.write_text(str(free_port()))
    fixed = (
        f"specsweep_home={folder / 'home'}",
        f"serve_port={port.read_text()}",
        f"sweep_results={folder / 'results'}",
        "client_lag_limit_ms=5000",
        "report_wanted=false",
    )
    for item in (*fixed, *extra):
        command += ["-e", item]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    done = play("sweep.yml", folder, "budgets=[0,16]", "concurrencies=[1,2]", "requests=8", "output_tokens=64")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def cells(folder: Path) -> dict[tuple[int, int], record.Cell]:
    """By budget and concurrency."""
    paths = (folder / "results").glob("*/here/*/*/cells/*.json")
    found = [record.read(path, record.Cell) for path in paths]
    return {(cell.budget, cell.concurrency): cell for cell in found}


def requests_of(folder: Path, cell: record.Cell) -> list[record.Request]:
    paths = (folder / "results").glob(f"*/here/*/r1/{cell.requests_file}")
    (path,) = (
        path
        for path in paths
        if record.read(path.parents[1] / "configuration.json", record.Configuration).label == cell.label
    )
    return [request for request in record.read_requests(path) if not request.warmup]


def test_every_cell_is_measured(cells: dict[tuple[int, int], record.Cell]) -> None:
    assert sorted(cells) == [(0, 1), (0, 2), (16, 1), (16, 2)]
    for cell in cells.values():
        assert cell.status == "ok", cell.reason
        assert (cell.requests_completed, cell.output_tokens_total) == (8, 8 * 64)
        assert cell.attestation == "applied"
        assert cell.origin == "measured"


def test_tokens_of_client_and_server_are_equal(cells: dict[tuple[int, int], record.Cell]) -> None:
    for cell in cells.values():
        assert cell.counters["output_tokens"] == cell.output_tokens_total


def test_speculation_drafted_and_the_baseline_did_not(cells: dict[tuple[int, int], record.Cell]) -> None:
    for (budget, _), cell in cells.items():
        assert cell.acceptance is not None
        if budget:
            assert cell.acceptance.drafted_tokens and cell.acceptance.al_token_weighted
            assert cell.acceptance.al_token_weighted > 1
            assert cell.acceptance.counters_al == pytest.approx(cell.acceptance.al_token_weighted, rel=0.01)
        else:
            assert cell.acceptance.al_token_weighted == 1
            assert cell.counters.get("drafts", 0) == 0


def test_the_identity_holds_on_the_servers_own_numbers(folder: Path, cells: dict[tuple[int, int], record.Cell]) -> None:
    """running sequences x AL / step time = system tok/s, each factor from another source.

    At concurrency 1: running from the client's clock, AL from drafts, step time from the server's decode calls
    and its own time, tok/s from tokens and window.
    """
    for budget in (0, 16):
        cell = cells[budget, 1]
        requests = requests_of(folder, cell)
        assert cell.window_s and cell.acceptance and cell.acceptance.al_token_weighted and cell.running_mean
        server_s = sum(request.server_ms or 0 for request in requests) / 1000
        steps = sum((request.output_tokens or 0) - (request.accepted_tokens or 0) for request in requests)
        step_time_s = server_s / steps
        predicted = cell.running_mean * cell.acceptance.al_token_weighted / step_time_s
        assert predicted == pytest.approx(cell.system_tok_s, rel=0.1)
        # The server decodes once a step, and a few times more for the prompts.
        assert steps <= cell.counters["decode_calls"] <= steps + 4 * len(requests)


def test_prompts_are_never_sent_twice_to_one_server(folder: Path, cells: dict[tuple[int, int], record.Cell]) -> None:
    for budget in (0, 16):
        sent = []
        for path in (folder / "results").glob("*/here/*/r1/requests/*.jsonl.gz"):
            configuration = record.read(path.parents[1] / "configuration.json", record.Configuration)
            if configuration.budget == budget:
                sent += [request.prompt_id for request in record.read_requests(path)]
        assert len(sent) == len(set(sent)) == 1 + 8 + 2 + 8
    assert not any(cell.prompts_reused for cell in cells.values())


def test_evidence_came_back_and_nothing_is_left_behind(folder: Path) -> None:
    for configuration in (folder / "results").glob("*/here/*/r1"):
        names = {path.name for path in (configuration / "evidence").iterdir()}
        assert {"engine.log.gz", "properties.json", "argv.json", "report-slots.txt.gz"} <= names
        assert not (configuration / ".state.json").exists()
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder / "home") not in listing
    assert not (folder / "home" / "lease.json").exists()


def test_a_plan_only_run_touches_nothing(folder: Path, tmp_path: Path) -> None:
    done = play("sweep.yml", folder, "sweep_plan_only=true", "budgets=[0,16]", f"specsweep_home={tmp_path / 'h'}")
    assert done.returncode == 0
    assert "2 configurations" in done.stdout and "predicted time" in done.stdout
    assert "unknown" not in done.stdout.splitlines()[-1], "something comparable was measured before"
    assert not (tmp_path / "h").exists()


def test_a_deployment_is_measured_without_a_restart_and_refused_when_it_is_another(tmp_path: Path) -> None:
    small = ("concurrencies=[1]", "requests=4", "output_tokens=16")
    try:
        deployed = play("playbooks/deploy.yml", tmp_path, "budgets=8", *small)
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr
        other = play("playbooks/bench.yml", tmp_path, "budgets=16", *small)
        assert "not_applied" in other.stdout
        same = play("playbooks/bench.yml", tmp_path, "budgets=8", *small)
        assert same.returncode == 0, same.stdout + same.stderr
    finally:
        ended = play("playbooks/restore.yml", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    statuses = {}
    for path in sorted((tmp_path / "results").glob("*/here/*/r1/configuration.json")):
        configuration = record.read(path, record.Configuration)
        statuses.setdefault(configuration.budget, []).append(configuration)
    assert [item.status for item in statuses[16]] == ["not_applied"]
    assert statuses[16][0].failure is not None
    assert statuses[16][0].failure.klass == "deploy.not_applied.stale_process"
    assert "ok" in [item.status for item in statuses[8]]
    main_pids = {item.service.main_pid for item in statuses[8] if item.service and item.service.main_pid}
    assert len(main_pids) == 1, json.dumps(sorted(main_pids))
