"""Start a sweep from Python, see what happens as it happens, and get its results as frames.

    import analysis

    results = analysis.run_sweep(budgets=[0, 16, 64], concurrencies=[1, 4])
    results.cells

Needs the parts of ``pip install 'specsweep[sweep]'`` and a clone of the repository (playbooks and roles are not
in the package).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.results import InputError, Results, load
from analysis.sweep import events, processes
from analysis.sweep.events import Event
from specsweep.variables import BY_NAME, misspelt, normalise

#: How often the end of the sweep and a cancel are looked for.
LOOK_EVERY_S = 0.2
#: Engines with a long stop are waited for.
GIVE_BACK_WITHIN_S = 600.0
INSTALL = "pip install 'specsweep[sweep]', or make in the clone of the repository"

Inventory = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Cancel = Callable[[], bool] | threading.Event


class SweepError(RuntimeError):
    """A sweep that could not be done; the message is the line that the terminal would show.

    `results` holds what was measured all the same, None where nothing was begun.
    """

    def __init__(self, message: str, results: Results | None = None) -> None:
        super().__init__(message)
        self.results = results


class SweepCancelled(SweepError):
    """The sweep was cancelled; `results` holds the cells that were finished, the others are `pending`."""


def show(event: Event) -> None:
    """Print an event: the whole plan, and a line for everything else."""
    text = event.text if isinstance(event, events.Planned) else ""
    print(*filter(None, [text, str(event)]), sep="\n", flush=True)


def run_sweep(
    *,
    inventory: Inventory | None = None,
    limit: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], object] | None = None,
    cancel: Cancel | None = None,
    repository: str | os.PathLike[str] | None = None,
    **variables: Any,
) -> Results:
    """Run `ansible-playbook sweep.yml` and return its results: what `analysis.load` reads from its folder.

    variables: sweep variables (docs/variables.md), as Python values: ``budgets=[0, 16]``, ``baseline=False``,
        ``axes={"max_running_requests": [64, 128]}``.
    inventory: like -i: one path or several; default is the repository's inventory/local.
    limit: like --limit.
    extra_vars: variables that are not the sweep's but a host's or a role's, such as ``{"serve_port": 18200}``.
    on_event: called in this thread with each event (analysis.sweep.events) as it happens; default `show`.
    cancel: a threading.Event, or a function that is asked every 0.2 s; true cancels the sweep.
    repository: the clone of the repository; default is the one that this package was installed from (-e).

    `sweep_results` and `prompts` are relative to the working directory; without `sweep_results` the results go
    to results/ of the repository.  With ``sweep_plan_only=True`` the results are empty.

    A cancel or a KeyboardInterrupt ends Ansible and its modules, gives the hosts back (playbooks/restore.yml with
    the same inventory and variables: engine and load client end, the lock is dropped, what ran before runs again)
    and raises SweepCancelled.  An exception of `on_event` or `cancel` does the same and is raised on.

    Raises ValueError (one line, nothing was started) for unknown or wrong variables, ImportError without
    ansible-runner, SweepError when the sweep ends with an error.
    """
    given = _variables(variables, extra_vars or {})
    inventories = _inventories(inventory)
    asked = _cancel(cancel)
    place = find_repository(repository)
    runner = _runner()
    with tempfile.TemporaryDirectory(prefix="specsweep-run-", ignore_cleanup_errors=True) as private:
        run = _Run(
            playbook=_playbook_command(),
            repository=place,
            private=Path(private),
            inventories=inventories,
            # The sweep is closed on localhost, which --limit would leave out.
            limit=f"{limit},localhost" if limit else None,
            on_event=on_event or show,
            cancel=asked,
        )
        return run.to_the_end(runner, given)


def find_repository(given: str | os.PathLike[str] | None = None) -> Path:
    """The clone of the repository: the given folder, or the one that this package lies in.  Raises SweepError."""
    place = Path(given).expanduser().resolve() if given is not None else Path(__file__).resolve().parents[2]
    missing = [name for name in ("sweep.yml", "ansible.cfg", "playbooks/restore.yml") if not (place / name).is_file()]
    if not missing:
        return place
    if given is not None:
        raise SweepError(f"repository: expected a clone of specsweep; {place} has no {missing[0]}")
    raise SweepError(
        f"the playbooks were not found beside the package ({place} has no {missing[0]}): "
        "install the clone with pip install -e, or name it: run_sweep(..., repository='path/of/the/clone')"
    )


# What is checked before anything starts


def _variables(variables: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Extra variables for Ansible: sweep variables in their normal form, the others as they came."""
    complaint = misspelt([*variables, *extra])
    if complaint:
        raise ValueError(complaint)
    for name in variables:
        if name not in BY_NAME:
            raise ValueError(
                f"{name}: no such sweep variable (docs/variables.md has them); "
                "variables of a host or a role go into extra_vars"
            )
        if name in extra:
            raise ValueError(f"{name}: it is given twice, as an argument and in extra_vars")
    asked = {str(name): _plain(value) for name, value in {**extra, **variables}.items()}
    values = {name: value for name, value in normalise(asked).items() if name in asked}
    if "sweep_results" in values:
        values["sweep_results"] = str(Path(values["sweep_results"]).expanduser().absolute())
    if "/" in values.get("prompts", "") or values.get("prompts", "").endswith(".jsonl"):
        values["prompts"] = str(Path(values["prompts"]).expanduser().absolute())
    asked |= values
    try:
        json.dumps(asked)
    except TypeError as error:
        raise ValueError(f"extra_vars: expected values that JSON can hold: {error}") from None
    return asked


def _plain(value: Any) -> Any:
    """Python's and numpy's values as JSON has them."""
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(item) for item in value]
    return value


def _inventories(given: Inventory | None) -> list[str]:
    if given is None:
        return []
    several = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    found = []
    for one in several:
        text = os.fspath(one)
        # "gpu1,gpu2" is a list of hosts, as on the command line.
        if "," not in text and not Path(text).expanduser().exists():
            raise ValueError(f"inventory: expected a file, a folder or host names with a comma; got {text!r}")
        found.append(text if "," in text else str(Path(text).expanduser().absolute()))
    return found


def _cancel(given: Cancel | None) -> Callable[[], bool]:
    if given is None:
        return lambda: False
    if isinstance(given, threading.Event):
        return given.is_set
    if not callable(given):
        raise ValueError(f"cancel: expected a threading.Event or a function; got {given!r}")
    return given


def _runner() -> Any:
    try:
        import ansible_runner
    except ImportError as error:
        raise ImportError(
            f"run_sweep needs ansible-runner, which cannot be imported ({error}): {INSTALL}", name="ansible_runner"
        ) from None
    return ansible_runner


def _playbook_command() -> str:
    """The ansible-playbook of this Python's environment, else the one on PATH: a notebook's kernel runs in an
    environment that is not activated."""
    own = Path(sys.executable).parent / "ansible-playbook"
    found = str(own) if os.access(own, os.X_OK) else shutil.which("ansible-playbook")
    if not found:
        raise SweepError(f"ansible-playbook is neither beside {sys.executable} nor on PATH: {INSTALL}")
    return found


# The run


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C has no effect: what gives a host back must not be broken off half-way, however often it is pressed."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread is ever interrupted.
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


@dataclass
class _Run:
    playbook: str
    repository: Path
    private: Path
    inventories: list[str]
    limit: str | None
    on_event: Callable[[Event], object]
    cancel: Callable[[], bool]
    reader: events.Reader = field(default_factory=events.Reader)
    cancelled: bool = False
    broken_by: BaseException | None = None
    """what `on_event` or `cancel` raised"""

    def to_the_end(self, runner: Any, variables: Mapping[str, Any]) -> Results:
        rc: int | None = None
        try:
            done = runner.run(
                private_data_dir=str(self.private),
                project_dir=str(Path.cwd()),
                playbook=str(self.repository / "sweep.yml"),
                inventory=self.inventories or None,
                limit=self.limit,
                extravars=dict(variables),
                envvars=self._environment(),
                settings={"pexpect_timeout": LOOK_EVERY_S},
                quiet=True,
                event_handler=self._heard,
                cancel_callback=self._stop_now,
            )
            rc = done.rc
        except KeyboardInterrupt:
            self.cancelled = True
        except BaseException as error:
            self.broken_by = self.broken_by or error
        if self.reader.ended and not self.cancelled and self.broken_by is None:
            return self._results(rc)
        return self._early_end(rc)

    def _environment(self) -> dict[str, str]:
        """What ansible-playbook needs from here; the rest is this process's environment."""
        environment = {
            "PATH": os.pathsep.join([str(Path(self.playbook).parent), os.environ.get("PATH", os.defpath)]),
            "ANSIBLE_CONFIG": str(self.repository / "ansible.cfg"),
            # ansible-runner names its own folder there, and so hides the one that ansible.cfg names.
            "ANSIBLE_CALLBACK_PLUGINS": str(self.repository / "plugins" / "callback"),
            # ansible-runner would switch this off.
            "ANSIBLE_HOST_KEY_CHECKING": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
            # Ansible's own scratch files go with our folder, also when it is killed.
            "ANSIBLE_LOCAL_TEMP": str(self.private / "tmp"),
            # Relative results start here (roles/plan).
            "PWD": str(self.repository),
        }
        if self.repository != Path(__file__).resolve().parents[2]:
            # Plugins and package belong together: those of the clone.
            paths = [str(self.repository), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return environment

    # called by ansible-runner, in this thread

    def _heard(self, event: Mapping[str, Any]) -> bool:
        for ours in self.reader.read(event):
            self._tell(ours)
        # Nothing is kept: the results folder is the record.
        return False

    def _tell(self, event: Event) -> None:
        if self.broken_by is not None:
            return
        try:
            self.on_event(event)
        except KeyboardInterrupt:
            self.cancelled = True
        except BaseException as error:
            # Not raised here: ansible-runner swallows some.
            self.broken_by = error

    def _stop_now(self) -> bool:
        if self.reader.ended:
            return False
        if not self.cancelled and self.broken_by is None:
            try:
                self.cancelled = bool(self.cancel())
            except KeyboardInterrupt:
                self.cancelled = True
            except BaseException as error:
                self.broken_by = error
        if self.cancelled or self.broken_by is not None:
            with _undisturbed():
                processes.end(self.private.name)
            return True
        return False

    # the ends

    def _early_end(self, rc: int | None) -> Results:
        """The playbook did not come to its end: leave nothing behind, then say so."""
        with _undisturbed():
            processes.end(self.private.name)
            if self.reader.plan is None:
                self._read_unheard_plan()
            trouble = self._give_back()
        if self.broken_by is not None:
            if trouble:
                self.broken_by.add_note(trouble)
            raise self.broken_by
        results = self._load()
        if self.cancelled:
            said = "; ".join(["the sweep was cancelled", *self._told(results, trouble)])
            raise SweepCancelled(said, results)
        why = self.reader.why or f"ansible-playbook ended early, with status {rc}"
        raise SweepError("; ".join(filter(None, [why, trouble])), results)

    def _told(self, results: Results | None, trouble: str) -> list[str]:
        if self.reader.plan is None or not self.reader.plan.folder:
            return ["no host was touched"]
        cells = [cell.status for cell in results.cell_records] if results else []
        done = sum(status != "pending" for status in cells)
        return [
            "1 cell is finished" if done == 1 else f"{done} cells are finished",
            trouble or "the hosts are given back",
            f"results: {self.reader.plan.folder}",
        ]

    def _give_back(self) -> str:
        """Run restore.yml; returns what went wrong, as one line, or ""."""
        if self.reader.plan is None or not self.reader.plan.sweep_id:
            return ""
        self._tell(events.GivingBack(reason="cancelled" if self.cancelled else "ended early"))
        restore = str(self.repository / "playbooks" / "restore.yml")
        command = [self.playbook, restore, "-e", f"@{self.private / 'env' / 'extravars'}"]
        # A host that another sweep holds refused ours and must stay with it.
        command += ["-e", f"restore_sweep_id={self.reader.plan.sweep_id}"]
        for inventory in self.inventories:
            command += ["-i", inventory]
        command += ["--limit", self.limit] if self.limit else []
        by_hand = " ".join(["ansible-playbook", "playbooks/restore.yml", *(f"-i {one}" for one in self.inventories)])
        # Into a file: a pipe would break, and the playbook with it, when this process is killed meanwhile.
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            try:
                done = subprocess.run(
                    command,
                    cwd=Path.cwd(),
                    env={**os.environ, **self._environment()},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=GIVE_BACK_WITHIN_S,
                    # Neither Ctrl-C nor the end of a notebook's kernel reaches it.
                    start_new_session=True,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"the hosts could not be given back ({error}): run {by_hand}"
            if not done.returncode:
                return ""
            output.seek(0)
            lines = [line.strip() for line in output if line.strip()]
            return f"not every host could be given back ({lines[-1] if lines else 'no message'}): run {by_hand}"

    def _read_unheard_plan(self) -> None:
        """The plan of events that Ansible wrote, and that we were interrupted before reading."""
        for path in sorted(self.private.glob("artifacts/*/job_events/*.json")):
            try:
                event = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if (event.get("event_data") or {}).get("task_action") == "specsweep_plan":
                self.reader.read(event)

    def _load(self) -> Results | None:
        plan = self.reader.plan
        if plan is None or not plan.folder:
            return None
        try:
            return load(plan.folder)
        except InputError:
            return None

    def _results(self, rc: int | None) -> Results:
        plan = self.reader.plan
        if rc == 0 and plan is not None:
            return load(plan.folder) if plan.folder else Results(path=self.repository / "results", cell_records=[])
        why = self.reader.why or f"ansible-playbook ended with status {rc}"
        raise SweepError(why, self._load())
