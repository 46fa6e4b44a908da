"""The path over real ssh to real systemd: quoting, lock, restore, a cut link, a stale server, secrets."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from pathlib import Path

import pytest

from specsweep.systemd import environment_file, quote
from tests.hosts.machines import SMALL, Hosts, cells_of, configurations_of, show

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("hosts")]

#: Succeeds while a load client measures.
MEASURING = """pgrep -f "[l]oad_client" > /dev/null || exit 1
    newest=$(ls -t /var/lib/specsweep/runs/*/*/*/status.json | head -n 1)
    grep -h '"state": "running".*"phase": "measure"' "$newest" """

NASTY = [
    "plain",
    "two words",
    'json {"method": "ngram", "k": [1, 2]}',
    "100% of %n and %%",
    "$HOME ${PATH} $$",
    "it's",
    'say "hi"',
    "back\\slash \\n",
    "tab\tand\nnewline",
    ";",
    "; reboot",
    "`id`",
    "a;b && c | d > /tmp/x",
    "ünïcode ✓",
    "",
    "--flag=value with = signs",
]


def test_arguments_and_environment_survive_systemd(hosts: Hosts) -> None:
    show_argv = "import json,os,sys; print(json.dumps([sys.argv[1:], os.environ['NASTY']]), flush=True)"
    values = "".join(NASTY).replace("\n", "").replace("\t", "")
    unit = "\n".join(
        [
            "[Service]",
            "Type=oneshot",
            "EnvironmentFile=/etc/nasty.env",
            "ExecStart=" + " ".join(quote(argument) for argument in ["/usr/bin/python3", "-c", show_argv, *NASTY]),
            "",
        ]
    )
    hosts.put("gpu1", "/etc/systemd/system/nasty.service", unit)
    hosts.put("gpu1", "/etc/nasty.env", environment_file({"NASTY": values}))
    hosts.sh("gpu1", "systemctl daemon-reload; systemctl start nasty")
    arguments, environment = json.loads(hosts.sh("gpu1", "journalctl -u nasty -o cat | grep '^\\[\\['"))
    assert arguments == NASTY
    assert environment == values
    shown = hosts.sh("gpu1", "systemctl show -P ExecStart nasty")
    for argument in ("100% of %n and %%", 'json {"method": "ngram", "k": [1, 2]}', "a;b && c | d > /tmp/x"):
        assert argument in shown
    # systemd shows a dollar as it wants it written: doubled.
    assert "$$HOME $${PATH} $$$$" in shown


@pytest.fixture
def production(hosts: Hosts):
    """A service that runs before the sweep on the sweep's port, under another unit's name."""
    unit = "[Service]\nExecStart=/usr/bin/python3 -m http.server 18080 --bind 127.0.0.1\n"
    hosts.put("gpu1", "/etc/systemd/system/production.service", unit)
    hosts.sh("gpu1", "systemctl daemon-reload; systemctl start production")
    hosts.wait_for("gpu1", "ss -ltn | grep 18080")
    yield "production.service"
    hosts.sh("gpu1", "systemctl stop production; rm /etc/systemd/system/production.service; systemctl daemon-reload")


def test_the_service_that_ran_before_runs_again(hosts: Hosts, tmp_path: Path, production: str) -> None:
    inventory = hosts.inventory(tmp_path / "hosts.yml", serve_replaces=[production])
    results = tmp_path / "results"
    done = hosts.play("sweep.yml", inventory, *SMALL, "budgets=[0]", f"sweep_results={results}", limit="gpu1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {cell.status for cell in cells_of(results).values()} == {"ok"}, done.stdout
    assert hosts.sh("gpu1", "systemctl is-active production").strip() == "active"
    assert "running again: production.service" in done.stdout


def test_an_interrupt_gives_the_host_back(hosts: Hosts, tmp_path: Path, production: str) -> None:
    inventory = hosts.inventory(tmp_path / "hosts.yml", serve_replaces=[production])
    sweep = hosts.start(
        "sweep.yml", inventory, *SMALL, "requests=200", "budgets=[0]", f"sweep_results={tmp_path / 'r'}", limit="gpu1"
    )
    try:
        hosts.wait_for("gpu1", MEASURING)
        assert hosts.sh("gpu1", "systemctl is-active production").strip() == "inactive"
        os.killpg(sweep.pid, signal.SIGINT)
        output, _ = sweep.communicate(timeout=90)
    finally:
        sweep.kill()
    assert hosts.sh("gpu1", "systemctl is-active production").strip() == "active", output
    assert "inactive" in hosts.sh("gpu1", "systemctl is-active specsweep-engine")
    assert "inactive" in hosts.sh("gpu1", "systemctl is-active specsweep-load")
    assert not hosts.sh("gpu1", "pgrep -f '[l]oad_client'")


def test_a_cut_link_does_not_end_the_measurement(hosts: Hosts, inventory: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    sweep = hosts.start(
        "sweep.yml", inventory, *SMALL, "requests=60", "output_tokens=48", "budgets=[0]",
        f"sweep_results={results}", limit="gpu2",
    )  # fmt: skip
    try:
        hosts.wait_for("gpu2", MEASURING)
        hosts.script("cut", "gpu2", check=True)
        time.sleep(22)
        hosts.script("heal", "gpu2", check=True)
        output, _ = sweep.communicate(timeout=300)
    finally:
        hosts.script("heal", "gpu2")
        sweep.kill()
    assert sweep.returncode == 0, output
    (cell,) = cells_of(results).values()
    assert (cell.status, cell.requests_completed) == ("ok", 60), show(cell)


def test_a_host_that_is_gone_is_recorded_and_the_other_goes_on(hosts: Hosts, tmp_path: Path) -> None:
    inventory = hosts.inventory(tmp_path / "hosts.yml")
    results = tmp_path / "results"
    hosts.script("cut", "gpu2", check=True)
    try:
        done = hosts.play(
            "sweep.yml", inventory, *SMALL, "budgets=[0]", "reconnect_timeout_s=2", f"sweep_results={results}"
        )
    finally:
        hosts.script("heal", "gpu2", check=True)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = cells_of(results)
    assert cells["gpu1", "none", 1].status == "ok", show(cells["gpu1", "none", 1])
    lost = cells["gpu2", "none", 1]
    assert lost.failure is not None
    assert (lost.status, lost.failure.klass) == ("failed", "deploy.ssh_unreachable"), show(lost)


def test_a_second_sweep_is_refused_while_the_first_holds_the_host(
    hosts: Hosts, inventory: Path, tmp_path: Path
) -> None:
    lease = {
        "sweep_id": "another",
        "service": "specsweep-engine",
        "before": {"unit": None, "environment": None, "active": False, "replaced": []},
        "expires_unix_s": time.time() + 600,
    }
    hosts.sh("gpu1", "mkdir -p /var/lib/specsweep")
    hosts.put("gpu1", "/var/lib/specsweep/lease.json", json.dumps(lease))
    try:
        done = hosts.play(
            "sweep.yml", inventory, *SMALL, "budgets=[0]", f"sweep_results={tmp_path / 'results'}", limit="gpu1"
        )
        (cell,) = cells_of(tmp_path / "results").values()
        assert cell.status == "failed" and "sweep another owns this host" in cell.reason, show(cell)
        assert "another" in hosts.sh("gpu1", "cat /var/lib/specsweep/lease.json"), done.stdout
    finally:
        hosts.sh("gpu1", "rm -f /var/lib/specsweep/lease.json")


def test_an_expired_lease_is_given_back_by_the_guard(hosts: Hosts, inventory: Path, tmp_path: Path) -> None:
    """The controller dies without a word: the guard on the host gives it back when the lease runs out."""
    sweep = hosts.start(
        "sweep.yml", inventory, *SMALL, "requests=200", "budgets=[0]", f"sweep_results={tmp_path / 'r'}", limit="gpu1"
    )
    try:
        hosts.wait_for("gpu1", MEASURING)
    finally:
        os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
    assert hosts.sh("gpu1", "systemctl is-active specsweep-engine").strip() == "active"
    # What would take minutes: the lease is made to run out now.
    hosts.sh("gpu1", """sed -i 's/"expires_unix_s": [0-9.]*/"expires_unix_s": 1/' /var/lib/specsweep/lease.json""")
    hosts.wait_for("gpu1", "systemctl is-active specsweep-engine | grep inactive", timeout_s=30)
    hosts.wait_for("gpu1", "test -e /var/lib/specsweep/lease.json || echo gone", timeout_s=30)
    # What was measured until then can still be fetched.
    done = hosts.play("playbooks/collect.yml", inventory, f"sweep_results={tmp_path / 'r'}", limit="gpu1")
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = cells_of(tmp_path / "r").values()
    assert cell.status == "failed", show(cell)


def test_secrets_stay_on_the_host(hosts: Hosts, tmp_path: Path) -> None:
    secret = "hf_thisIsASecretThatMustNotLeave123"
    inventory = hosts.inventory(tmp_path / "hosts.yml", engine_environment={"HF_TOKEN": secret, "SHOWN": "yes"})
    results = tmp_path / "results"
    done = hosts.play("sweep.yml", inventory, *SMALL, "budgets=[0]", f"sweep_results={results}", limit="gpu1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert secret not in done.stdout + done.stderr
    for path in results.rglob("*"):
        if path.is_file():
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            assert secret.encode() not in data, path
    configuration = configurations_of(results)["gpu1", "none"]
    assert configuration.service is not None and "HF_TOKEN" in configuration.service.environment_names


def test_a_refused_flag_value_fails_and_the_next_configuration_runs(
    hosts: Hosts, inventory: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    done = hosts.play(
        "sweep.yml", inventory, *SMALL, "order=given", "budgets=[0]", '{"axes": {"threads": ["many", 1]}}',
        f"sweep_results={results}", limit="gpu1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cells = cells_of(results)
    refused = cells["gpu1", "none threads=many", 1]
    assert refused.failure is not None
    assert (refused.status, refused.failure.klass) == ("failed", "config.arg.invalid_value"), show(refused)
    assert cells["gpu1", "none threads=1", 1].status == "ok"


def test_a_missing_model_is_model_path_missing(hosts: Hosts, inventory: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = hosts.play(
        "sweep.yml", inventory, *SMALL, "budgets=[0]", "model=/nonexistent/model.gguf", f"sweep_results={results}",
        "sweep_strict=true", limit="gpu1",
    )  # fmt: skip
    assert done.returncode == 2, "sweep_strict makes a failed cell exit 2: " + done.stdout
    (cell,) = cells_of(results).values()
    assert cell.failure is not None
    assert (cell.status, cell.failure.klass) == ("failed", "model.path_missing"), show(cell)
