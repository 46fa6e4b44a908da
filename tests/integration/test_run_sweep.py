"""run_sweep: real sweeps of the embedded engine from Python, cancelled at bad moments, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.sweep import SweepCancelled, SweepError, events, find_repository, processes
from specsweep import record

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = {"budgets": [0, 16], "requests": 4, "output_tokens": 32, "concurrencies": [1, 2]}
ONE = {**SMALL, "budgets": [16], "concurrencies": [1], "baseline": False}


MARK = "SPECSWEEP_TEST_PLACE"


@dataclass
class Place:
    """A host's folder and port of its own, so that tests run beside other sweeps of this machine."""

    root: Path
    port: int

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def variables(self) -> dict[str, Any]:
        own = {"specsweep_home": str(self.home), "serve_port": self.port, "report_wanted": False}
        return {"sweep_results": self.results, "extra_vars": own}

    def processes(self) -> list[str]:
        """Command lines of everything that a sweep here started: Ansible, modules, supervisor, engine, load client,
        guard.  Modules come over stdin and show no name, so the environment that all inherit is looked at too."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                inherited = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if (
                f"{MARK}={self.root}" in inherited
                or any(str(self.home) in word for word in words)
                or ("specsweep_agent.llama_server" in words and str(self.port) in words)
            ):
                found.append(" ".join(words))
        return found

    def assert_given_back(self) -> None:
        # The guard looks at the lease once a second, and ends when it is gone.
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any("specsweep_agent.guard" in line for line in self.processes()):
            time.sleep(0.1)
        assert self.processes() == []
        assert not (self.home / "lease.json").exists()
        assert (self.home / "lease.last.json").exists(), "the lock was never taken: nothing was given back"


PlaceAt = Callable[[int], Place]


@pytest.fixture
def place_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlaceAt]:
    made: list[Place] = []

    def at(port: int) -> Place:
        monkeypatch.setenv(MARK, str(tmp_path))
        made.append(Place(tmp_path, port))
        return made[-1]

    yield at
    for place in made:
        # A failed test must not leave an engine to the next one.
        processes.end(str(place.home))


@pytest.mark.engine
def test_a_sweep_returns_what_the_report_reads_and_tells_it_as_it_happens(
    place_at: PlaceAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_at(18200)
    # As in a notebook whose kernel runs in an environment that nobody activated, in some other folder.
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(tmp_path)
    heard: list[tuple[float, events.Event]] = []
    results = analysis.run_sweep(
        **{**SMALL, "budgets": np.array([0, 16]), "sweep_results": "results"},
        exclude=[{"budget": 16, "concurrency": 2}],
        anchors=False,
        order="given",
        extra_vars=place.variables["extra_vars"],
        on_event=lambda event: heard.append((time.monotonic(), event)),
    )

    [folder] = place.results.iterdir()
    pd.testing.assert_frame_equal(results.cells, analysis.load(folder).cells)
    cells = results.cells[["budget", "concurrency", "status"]]
    assert sorted(cells.itertuples(index=False, name=None)) == [
        (0, 1, "ok"), (0, 2, "ok"), (16, 1, "ok"), (16, 2, "skipped"),
    ]  # fmt: skip
    assert (results.cells.loc[results.cells.status == "ok", "system_tok_s"] > 0).all()

    variables = json.loads((folder / "sweep.json").read_text())["variables"]
    assert variables["budgets"] == [0, 16]
    assert variables["anchors"] is False
    assert variables["exclude"] == [{"budget": 16, "concurrency": 2}]

    kinds = [type(event).__name__ for _, event in heard]
    assert kinds == [
        "Planned", "EngineFound",
        "Started", "Ready", "Measured", "Measured",
        "Started", "Ready", "Measured",
        "GivenBack", "Finished",
    ]  # fmt: skip
    assert all("\n" not in str(event) and str(event).strip() for _, event in heard)
    at = {label: when for when, event in heard if isinstance(event, events.Measured) for label in [event.label]}
    started = [when for when, event in heard if isinstance(event, events.Started)]
    assert at["none"] <= started[1] < at["ngram-mod b16 k1"] - 1, "events came in a heap, not as they happened"
    measured = next(event for _, event in heard if isinstance(event, events.Measured))
    row = results.cells[(results.cells.budget == 0) & (results.cells.concurrency == 1)].iloc[0]
    assert (measured.label, measured.system_tok_s) == (row.label, row.system_tok_s)
    place.assert_given_back()


@pytest.mark.engine
def test_a_cancel_under_load_leaves_nothing_and_the_next_sweep_starts_at_once(place_at: PlaceAt) -> None:
    place = place_at(18201)
    seen: list[str] = []

    def under_load() -> bool:
        running = place.processes()
        if all(any(name in line for line in running) for name in ("load_client", "llama_server", "ansible-playbook")):
            seen.extend(running)
        return bool(seen)

    with pytest.raises(SweepCancelled, match="cancelled; 0 cells are finished; the hosts are given back") as caught:
        analysis.run_sweep(**SMALL, **place.variables, cancel=under_load, on_event=lambda _: None)
    assert seen
    place.assert_given_back()
    assert caught.value.results is not None
    assert set(caught.value.results.cells.status) == {"pending"}

    heard: list[events.Event] = []
    stop = threading.Event()

    def stop_when_measured(event: events.Event) -> None:
        heard.append(event)
        if isinstance(event, events.Measured):
            stop.set()

    with pytest.raises(SweepCancelled, match="1 cell is finished") as caught:
        analysis.run_sweep(
            **{**SMALL, "concurrencies": [1]}, **place.variables, cancel=stop, on_event=stop_when_measured
        )
    kinds = {type(event).__name__ for event in heard}
    assert "Ready" in kinds and not kinds & {"GivenUp", "Failed"}, [str(event) for event in heard]
    assert caught.value.results is not None
    done = caught.value.results.cells.set_index("status").system_tok_s
    assert done["ok"] > 0
    place.assert_given_back()


@pytest.mark.engine
def test_ctrl_c_pressed_again_and_again_leaves_nothing(place_at: PlaceAt, tmp_path: Path) -> None:
    place = place_at(18202)
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import signal
        import analysis
        from analysis.sweep import SweepCancelled
        try:
            analysis.run_sweep(**{ONE!r}, sweep_results={str(place.results)!r},
                               extra_vars={place.variables["extra_vars"]!r})
        except SweepCancelled as cancelled:
            # The last presses may come when all is done; they are for run_sweep, not for this script.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("raised:", cancelled, len(cancelled.results.cells))
        """)
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if "] 1/1 " in line or "giving the hosts back" in line:
                # The first one hits while the engine is started, the others while the host is given back.
                for _ in range(3):
                    child.send_signal(signal.SIGINT)
                    time.sleep(0.3)
    text = "".join(lines)
    assert child.returncode == 0, text
    assert "raised: the sweep was cancelled; 0 cells are finished; the hosts are given back" in text
    place.assert_given_back()


@pytest.mark.engine
def test_an_error_of_on_event_gives_the_host_back_and_is_raised(place_at: PlaceAt) -> None:
    place = place_at(18203)

    def breaks(event: events.Event) -> None:
        if isinstance(event, events.EngineFound):
            raise OSError("the pipe is broken")

    with pytest.raises(OSError, match="the pipe is broken"):
        analysis.run_sweep(**ONE, **place.variables, on_event=breaks)
    place.assert_given_back()


@pytest.mark.engine
def test_a_cancel_leaves_a_host_that_another_sweep_holds_alone(place_at: PlaceAt) -> None:
    place = place_at(18204)
    place.home.mkdir()
    before = {"unit": None, "environment": None, "active": False, "replaced": []}
    lease = {"sweep_id": "other", "service": "specsweep-engine", "before": before, "expires_unix_s": time.time() + 600}
    (place.home / "lease.json").write_text(json.dumps(lease))
    heard: list[events.Event] = []
    stop = threading.Event()

    def stop_when_refused(event: events.Event) -> None:
        heard.append(event)
        if isinstance(event, events.Failed):
            stop.set()

    with pytest.raises(SweepCancelled):
        analysis.run_sweep(**ONE, **place.variables, cancel=stop, on_event=stop_when_refused)
    refused = next(event for event in heard if isinstance(event, events.Failed))
    assert "sweep other owns this host" in str(refused)
    assert json.loads((place.home / "lease.json").read_text())["sweep_id"] == "other"


@pytest.mark.engine
def test_a_strict_sweep_with_a_failed_cell_raises_and_hands_the_results_over(place_at: PlaceAt) -> None:
    place = place_at(18205)
    heard: list[events.Event] = []
    with pytest.raises(SweepError, match=r"^sweep_strict: 1 cells are not ok") as caught:
        analysis.run_sweep(
            **ONE, **place.variables, model="/nowhere/model.gguf", sweep_strict=True, on_event=heard.append
        )
    assert not isinstance(caught.value, SweepCancelled)
    assert caught.value.results is not None
    [status] = caught.value.results.cells.status
    assert status == "failed"
    measured = next(event for event in heard if isinstance(event, events.Measured))
    assert measured.failure_class == caught.value.results.cells.failure_class[0]
    assert ": failed: " in str(measured)
    place.assert_given_back()


def test_a_refused_plan_is_one_line_the_same_as_on_the_terminal(place_at: PlaceAt) -> None:
    place = place_at(18206)
    with pytest.raises(SweepError) as caught:
        analysis.run_sweep(methods=["nope"], **place.variables, on_event=lambda _: None)
    line = str(caught.value)
    assert line.startswith("methods: expected methods of llamacpp") and "\n" not in line
    assert caught.value.results is None
    assert not place.results.exists() and not place.home.exists()

    command = [Path(sys.executable).parent / "ansible-playbook", "sweep.yml", "-e", "methods=[nope]"]
    command += ["-e", f"sweep_results={place.results}", "-e", f"specsweep_home={place.home}"]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert f"error: {line}" in shown.stdout.splitlines()


def test_a_plan_alone_touches_nothing(place_at: PlaceAt) -> None:
    place = place_at(18207)
    heard: list[events.Event] = []
    results = analysis.run_sweep(**SMALL, **place.variables, limit="here", sweep_plan_only=True, on_event=heard.append)
    [planned] = heard
    assert isinstance(planned, events.Planned)
    assert "4 cells on each host" in planned.text
    assert results.cells.empty
    assert not place.results.exists() and not place.home.exists()


def test_a_cancel_before_anything_began(place_at: PlaceAt) -> None:
    place = place_at(18208)
    stop = threading.Event()
    stop.set()
    with pytest.raises(SweepCancelled, match="no host was touched") as caught:
        analysis.run_sweep(**ONE, **place.variables, cancel=stop, on_event=lambda _: None)
    assert caught.value.results is None
    assert not place.home.exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"budgets": "[8,x]"}, "budgets: expected whole numbers .*'x' is not a whole number"),
        ({"budgets": []}, "budgets: .* it is empty"),
        ({"budget": [8]}, "budget: no such sweep variable; did you mean budgets"),
        ({"serve_port": 18209}, "serve_port: no such sweep variable .* go into extra_vars"),
        ({"extra_vars": {"repeat": 2}}, "repeat: no such sweep variable; did you mean repeats"),
        ({"extra_vars": {"budgets": [-8]}}, "budgets: .* -8 is less than 0"),
        ({"seed": 1, "extra_vars": {"seed": 1}}, "seed: it is given twice"),
        ({"extra_vars": {"x": {1, 2}}}, "extra_vars: expected values that JSON can hold"),
        ({"inventory": "no/such/hosts.yml"}, "inventory: expected a file.*'no/such/hosts.yml'"),
        ({"cancel": 3}, "cancel: expected a threading.Event or a function; got 3"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    arguments: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started() -> None:
        raise AssertionError("ansible-runner was reached")

    monkeypatch.setattr("analysis.sweep._runner", started)
    with pytest.raises(ValueError, match=line) as caught:
        analysis.run_sweep(**arguments)
    assert "\n" not in str(caught.value)


def test_without_ansible_runner_results_load_and_run_sweep_says_what_to_install(tmp_path: Path) -> None:
    sweep = record.Sweep(
        sweep_id="made-up", created_unix_s=0.0, specsweep_version="made up", controller={}, variables={}, hosts=[],
        plan={},
    )  # fmt: skip
    (tmp_path / "made-up").mkdir()
    record.write(tmp_path / "made-up" / "sweep.json", sweep)
    code = f"""
        import sys
        for name in ("ansible_runner", "ansible", "pexpect"):
            sys.modules[name] = None  # an import of it raises ImportError
        import analysis
        print(len(analysis.load({str(tmp_path)!r}).sweeps), "sweep is loaded")
        try:
            analysis.run_sweep(budgets=[8])
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    loaded, said = done.stdout.splitlines()
    assert loaded == "1 sweep is loaded"
    assert "pip install 'specsweep[sweep]'" in said and "ansible-runner" in said


def test_the_repository_is_found_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_repository() == REPOSITORY
    assert find_repository(REPOSITORY / "tests" / "..") == REPOSITORY
    with pytest.raises(SweepError, match=r"repository: expected a clone of specsweep; .* has no sweep.yml"):
        find_repository(tmp_path)
    # A package that was installed without -e lies in site-packages, without playbooks.
    monkeypatch.setattr("analysis.sweep.__file__", str(tmp_path / "analysis" / "sweep" / "__init__.py"))
    with pytest.raises(SweepError, match=r"not found beside the package .* repository="):
        find_repository()


def test_a_family_of_processes_ends_as_a_whole(tmp_path: Path) -> None:
    mark = tmp_path.name + "-mark"
    # A child in a session of its own and a grandchild: killing the first or its group would leave them.
    code = (
        "import subprocess, sys, time; "
        "subprocess.Popen(['sh', '-c', 'sleep 60 & sleep 60'], start_new_session=True); "
        "print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, mark], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "up\n"
        deadline = time.monotonic() + 10
        while len(members := processes.family(mark)) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(members) == 4
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            processes.end(mark)
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()
        assert first.wait(5) == -signal.SIGKILL
    assert processes.family(mark) == set()
    assert not members & {int(path.name) for path in Path("/proc").glob("[0-9]*") if _runs(path)}


def _runs(process: Path) -> bool:
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False
