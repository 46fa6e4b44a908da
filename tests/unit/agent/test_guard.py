"""The lock of a host, and what is given back when it ends; the service manager is a made-up one."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from specsweep_agent import guard
from specsweep_agent.guard import Locked
from specsweep_agent.service import ServiceError


class Manager:
    """One service that remembers what was done with it."""

    def __init__(self, home: Path) -> None:
        self.environment_path = home / "engine.env"
        self.unit: str | None = None
        self.active = False
        self.done: list[str] = []
        self.refuses = False

    def properties(self) -> dict[str, str]:
        return {
            "LoadState": "loaded" if self.unit is not None else "not-found",
            "ActiveState": "active" if self.active else "inactive",
        }

    def installed_unit(self) -> str | None:
        return self.unit

    def install(self, unit: str, environment: str) -> None:
        if self.refuses:
            raise ServiceError("the unit is refused: gone")
        self.unit = unit
        self.environment_path.write_text(environment)
        self.done.append("install")

    def restart(self) -> None:
        self.active = True
        self.done.append("restart")

    def stop(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self.active = False
        self.done.append("stop")

    def end(self, name: str) -> None:
        self.done.append(f"end {name}")

    def remove(self) -> None:
        self.unit = None
        self.done.append("remove")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def manager(home: Path, monkeypatch: pytest.MonkeyPatch) -> Manager:
    home.mkdir()
    made = Manager(home)
    monkeypatch.setattr(guard, "manager", lambda *_: made)
    return made


def acquire(home: Path, sweep_id: str = "one", seconds: float = 100.0) -> dict[str, Any]:
    return guard.acquire(home, sweep_id, "engine", [], seconds)


def expire(home: Path) -> None:
    lease = json.loads((home / "lease.json").read_text())
    (home / "lease.json").write_text(json.dumps({**lease, "expires_unix_s": time.time() - 1}))


def test_the_lock_is_taken_once(home: Path, manager: Manager) -> None:
    lease = acquire(home)
    assert lease["before"] == {"unit": None, "environment": None, "active": False, "replaced": []}
    with pytest.raises(Locked) as refused:
        acquire(home, "two")
    text = str(refused.value)
    assert text.startswith("sweep one owns this host for another ")
    assert str(home / "lease.json") in text
    assert "run playbooks/restore.yml" in text
    assert "\n" not in text
    assert manager.done == []


@pytest.mark.usefixtures("manager")
def test_two_sweeps_that_ask_at_once_do_not_both_get_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, inside, passed, outcomes = guard.snapshot, threading.Event(), threading.Event(), []

    def slow(*given: Any) -> Any:
        # The first one is looking around; the second one gets every chance to pass it.
        inside.set()
        passed.wait(0.3)
        return real(*given)

    def ask(sweep_id: str) -> None:
        try:
            outcomes.append(acquire(home, sweep_id)["sweep_id"])
        except Locked as error:
            outcomes.append(str(error).split(" owns")[0])
        passed.set()

    monkeypatch.setattr(guard, "snapshot", slow)
    first = threading.Thread(target=ask, args=("one",))
    second = threading.Thread(target=ask, args=("two",))
    first.start()
    assert inside.wait(20)
    second.start()
    first.join()
    second.join()
    # Who says so first is the threads' affair; one has it, the other is refused because of it.
    assert sorted(outcomes) == ["one", "sweep one"]


def test_the_same_sweep_may_take_it_again_and_what_ran_before_stays_what_it_was(home: Path, manager: Manager) -> None:
    manager.unit, manager.active = "production", True
    manager.environment_path.write_text("{}")
    acquire(home)
    manager.unit, manager.active = "of the sweep", False
    lease = acquire(home)
    assert lease["before"]["unit"] == "production"
    assert lease["before"]["active"] is True


def test_an_expired_lock_is_given_back_before_it_is_taken(home: Path, manager: Manager) -> None:
    acquire(home)
    manager.unit, manager.active = "of the dead sweep", True
    expire(home)
    lease = acquire(home, "two")
    assert lease["sweep_id"] == "two"
    assert manager.done == ["end specsweep-load", "stop", "remove"]
    assert lease["before"]["unit"] is None, "the dead sweep's engine was taken for what ran before"


@pytest.mark.usefixtures("manager")
def test_a_lease_is_renewed_by_its_owner_only(home: Path) -> None:
    acquire(home, seconds=5)
    guard.renew(home, "one", 1000)
    assert json.loads((home / "lease.json").read_text())["expires_unix_s"] > time.time() + 900
    with pytest.raises(Locked, match="it belongs to sweep one"):
        guard.renew(home, "two", 1000)
    guard.renew(home, "two", 0)  # nobody's lease is asked for
    guard.restore(home)
    with pytest.raises(Locked, match="nobody: the guard gave the host back"):
        guard.renew(home, "one", 1000)


def test_restore_ends_what_is_ours_and_starts_what_ran(home: Path, manager: Manager) -> None:
    manager.unit, manager.active = json.dumps({"argv": ["production"]}), True
    manager.environment_path.write_text(json.dumps({"argv": ["production"], "environment": {"A": "1"}}))
    acquire(home)
    manager.install(json.dumps({"argv": ["of the sweep"]}), "{}")
    manager.done.clear()
    found = guard.restore(home)
    assert found == {"restored": True, "sweep_id": "one", "started": ["engine"], "problems": []}
    assert manager.done == ["end specsweep-load", "stop", "install", "restart"]
    assert json.loads(manager.unit or "") == {"argv": ["production"]}
    assert json.loads(manager.environment_path.read_text()) == {"A": "1"}
    assert not (home / "lease.json").exists()
    assert (home / "lease.last.json").exists()


def test_what_cannot_be_started_again_is_told_and_the_lock_is_dropped(home: Path, manager: Manager) -> None:
    manager.unit, manager.active = json.dumps({"argv": ["production"]}), True
    acquire(home)
    manager.refuses = True
    found = guard.restore(home)
    assert found["started"] == []
    assert found["problems"] == ["the unit is refused: gone"]
    assert not (home / "lease.json").exists()
    manager.refuses = False
    assert acquire(home, "two")["sweep_id"] == "two"


def test_what_did_not_run_is_put_back_and_not_started(home: Path, manager: Manager) -> None:
    manager.unit = json.dumps({"argv": ["idle"]})
    acquire(home)
    assert guard.restore(home)["started"] == []
    assert manager.done == ["end specsweep-load", "stop", "install"]


def test_restore_twice_is_no_error(home: Path, manager: Manager) -> None:
    acquire(home)
    assert guard.restore(home)["restored"] is True
    manager.done.clear()
    assert guard.restore(home) == {"restored": False, "reason": "no sweep holds this host"}
    assert manager.done == []


def test_a_deployment_keeps_running_and_can_be_ended(home: Path, manager: Manager) -> None:
    acquire(home)
    manager.unit, manager.active = "deployed", True
    assert guard.release(home)["kept"] == "engine"
    assert manager.active
    assert not (home / "lease.json").exists()
    assert guard.restore(home)["restored"] is False
    assert manager.active
    assert guard.restore(home, deployed=True)["restored"] is True
    assert manager.unit is None
    assert guard.restore(home, deployed=True)["restored"] is False


def test_release_without_a_lease(home: Path, manager: Manager) -> None:
    assert guard.release(home) == {"restored": False, "reason": "no sweep holds this host"}
    assert manager.done == []


@pytest.mark.parametrize("content", ["", "{", '{"sweep_id"'])
def test_a_cut_lease_is_none(home: Path, manager: Manager, content: str) -> None:
    (home / "lease.json").write_text(content)
    assert guard.read_lease(home) is None
    assert acquire(home)["sweep_id"] == "one"
    assert manager.done == []


def guard_runs(home: Path, monkeypatch: pytest.MonkeyPatch, each_second: Any) -> int:
    monkeypatch.setattr(guard.sys, "argv", ["guard", str(home)])
    monkeypatch.setattr(guard.time, "sleep", lambda _: each_second())
    return guard.main()


def test_the_guard_gives_the_host_back_when_the_lease_ran_out(
    home: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acquire(home)
    manager.unit, manager.active = "of the sweep", True
    assert guard_runs(home, monkeypatch, lambda: expire(home)) == 0
    assert manager.unit is None
    assert "the lease of sweep one ran out: giving the host back" in capsys.readouterr().out
    assert not (home / "lease.json").exists()


def test_the_guard_leaves_when_the_sweep_gave_back_or_another_took_over(
    home: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire(home)
    assert guard_runs(home, monkeypatch, lambda: guard.restore(home)) == 0
    acquire(home)

    def taken_over() -> None:
        lease = json.loads((home / "lease.json").read_text())
        (home / "lease.json").write_text(json.dumps({**lease, "sweep_id": "two"}))

    manager.done.clear()
    assert guard_runs(home, monkeypatch, taken_over) == 0
    assert manager.done == []
