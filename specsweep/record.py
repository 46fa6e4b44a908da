"""The record: what one sweep leaves behind, as typed, versioned plain files.

A results folder looks like this (HOST, CONFIGURATION and RESTART are folder names)::

    results/SWEEP_ID/
      sweep.json                        Sweep: variables, plan, versions
      HOST/host.json                    Host: what machine, engine and driver this was
      HOST/CONFIGURATION/RESTART/
        configuration.json              Configuration: one restart of the engine
        cells/c4.json                   Cell: one load point of this restart
        requests/c4.jsonl.gz            Request: one line a request, the warm-up marked
        unit/                           what was rendered: unit file, argv.json
        evidence/                       what came back: logs, reports, counters, telemetry

`configuration.json` and the cells are written as soon as they exist (first as `pending`) and replaced
atomically, so a sweep that is cut off leaves readable files.  Every number carries its unit in its name.
Readers refuse a `schema` they do not know; fields that are new in the same schema are optional.

Definitions (the same words everywhere):

* system tok/s: output tokens of completed requests / `window_s`, the time from the first request sent to
  the last one finished, warm-up excluded.
* per-user tok/s: 1000 / TPOT in ms; TPOT = (e2e - TTFT) / (output tokens - 1) of one request.
* acceptance length (AL): tokens committed per decode step of the target, the bonus token included and
  steps without a draft counted.  `al_token_weighted` = sum of tokens / sum of steps,
  `al_request_weighted` = mean over requests of tokens / steps.
* running sequences: sum of the requests' times in flight inside the window / `window_s`.
* step time: running sequences x AL / system tok/s.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

SCHEMA = 1

Status = Literal["ok", "failed", "invalid", "not_applied", "skipped", "pending"]
FINAL_STATUSES: tuple[Status, ...] = ("ok", "failed", "invalid", "not_applied", "skipped")

AttestationVerdict = Literal["applied", "adjusted", "not_applied", "wrong_process", "unknown"]

#: Who made the numbers.  "replay" is a rehearsal from a recording and never a measurement.
Origin = Literal["measured", "replay", "imported"]


class Struct(msgspec.Struct):
    """Base of all records; unknown fields are ignored, missing ones take their default."""


class Line(Struct, kw_only=True):
    """One line of evidence."""

    source: str
    """engine, unit, kernel, client or task"""
    line: int
    """1-based line number in that source"""
    text: str


class Failure(Struct, kw_only=True):
    """Why a configuration or cell is not `ok`; the classifier's verdict (ids: docs/failures.md)."""

    klass: str
    """failure class, e.g. `cuda.cublas.execution_failed`; `unknown` is an answer"""
    tier: int | None = None
    phase: str | None = None
    outcome: str = "terminal"
    pointer: bool = False
    evidence: list[Line] = []
    fingerprint: str = ""
    advice: str = ""
    directions: dict[str, str] = {}
    retry: str = ""
    alternatives: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []


class Quantiles(Struct, kw_only=True):
    """Of one value over the completed requests of a cell; p99 is None below 100 requests."""

    n: int = 0
    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None


class Acceptance(Struct, kw_only=True):
    """Acceptance inside one cell."""

    estimator: str
    """how steps were counted, e.g. `request: tokens - accepted` or `counters: tokens / verify calls`"""
    scope: Literal["cell", "server_lifetime", "last_interval", "unknown"] = "cell"
    tokens: int | None = None
    steps: float | None = None
    al_token_weighted: float | None = None
    al_request_weighted: float | None = None
    drafts: int | None = None
    """steps that had a draft"""
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    length_of_drafted_steps: float | None = None
    """1 + accepted / drafts: skips the steps without a draft, so it is not the AL"""
    accepted_per_position: list[int] | None = None
    """unconditional counts: drafts accepted at position 0, 1, ..."""
    histogram: list[int] | None = None
    """index k: number of steps that accepted exactly k drafted tokens"""
    counters_al: float | None = None
    """the same AL from the difference of the server's counters, as a cross-check"""


class Category(Struct, kw_only=True):
    """One prompt category of a cell."""

    requests: int = 0
    output_tokens: int = 0
    al_token_weighted: float | None = None
    tpot_ms: Quantiles | None = None
    per_user_tok_s: float | None = None
    """median over requests"""


class Client(Struct, kw_only=True):
    """What the load client says of itself."""

    name: str = "specsweep"
    version: str = ""
    lag_ms_p99: float | None = None
    """delay of the client's own event loop, sampled every 20 ms"""
    lag_ms_max: float | None = None
    cpu_s: float | None = None
    overloaded: bool = False


class Telemetry(Struct, kw_only=True):
    """1 Hz samples of one GPU inside the measured window (None: no nvidia-smi on the host)."""

    gpu: str
    samples: int
    sm_clock_mhz_median: float | None = None
    sm_clock_spread: float | None = None
    """(p95 - p5) / median"""
    memory_clock_mhz_median: float | None = None
    power_w_mean: float | None = None
    power_w_max: float | None = None
    power_limit_w: float | None = None
    temperature_c_max: float | None = None
    utilization_mean: float | None = None
    """0..1"""
    memory_used_mib_max: float | None = None
    throttle_reasons: list[str] = []
    foreign_processes: list[str] = []


class Cell(Struct, kw_only=True):
    """Configuration x load point x repeat on one host."""

    schema: int = SCHEMA
    cell_id: str
    sweep_id: str
    host: str
    configuration_id: str
    label: str
    """readable name of the configuration, unique in the sweep, e.g. `ngram-mod b16 k1`"""
    origin: Origin = "measured"
    source: str = "specsweep"
    """tool that wrote the numbers"""
    remarks: list[str] = []
    """what a reader must know before trusting a number of this cell"""

    engine: str
    engine_version: str | None = None
    model: str = ""
    drafter: str | None = None
    method: str
    """`none` is the autoregressive baseline"""
    budget: int
    topk: int | None = None
    candidates: int | None = None
    verify_width: int | None = None
    max_running: int | None = None
    """most sequences the server batches (what graphs are captured for), where the engine says or was told"""
    settings: dict[str, Any] = {}
    """every other engine setting of this configuration"""
    baseline: bool = False
    repeat: int = 1
    """block number: a repeat restarts the engine"""
    anchor: str | None = None
    """start, middle, end: a measurement to see drift, in no block"""

    concurrency: int
    prompts: str = ""
    prompts_sha256: str = ""
    output_mode: Literal["exact", "natural"] = "exact"
    output_tokens: int | None = None
    """exact length, or the cap"""
    temperature: float | None = None
    prompts_reused: bool = False
    """a prompt was sent twice to one server: acceptance may be flattered"""

    status: Status
    reason: str = ""
    """one sentence for every status but `ok`"""
    reached: bool = True
    """False: the engine ended at an earlier load point, this one was never sent"""
    failure: Failure | None = None
    attestation: AttestationVerdict = "unknown"

    window_start_unix_s: float | None = None
    window_s: float | None = None
    requests_asked: int = 0
    requests_completed: int = 0
    requests_failed: int = 0
    requests_truncated: int = 0
    """stopped by the cap (natural mode)"""
    phantom_successes: int = 0
    prompt_tokens_total: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens_total: int | None = None
    system_tok_s: float | None = None
    per_user_tok_s: float | None = None
    """median over requests"""
    running_mean: float | None = None
    step_time_ms: float | None = None
    ttft_ms: Quantiles | None = None
    tpot_ms: Quantiles | None = None
    e2e_ms: Quantiles | None = None
    acceptance: Acceptance | None = None
    categories: dict[str, Category] = {}
    client: Client | None = None
    telemetry: list[Telemetry] = []
    counters: dict[str, float] = {}
    """differences of the server's counters over the window, by the profile's names"""
    server_time_ms: float | None = None
    """sum over requests of the server's own prompt + decode time, where it reports one"""
    requests_file: str | None = None
    """path relative to the folder of this record's configuration"""


class Phase(Struct, kw_only=True):
    """One stretch of the sweep's time line."""

    name: str
    """stop, apply, load, ready, attest, warmup, measure, collect, wait"""
    start_unix_s: float
    end_unix_s: float
    detail: str = ""


class Witness(Struct, kw_only=True):
    """One thing that was compared to prove that the configuration took effect."""

    name: str
    """unit, command_line, environment, start_time, port_owner, engine_report, behaviour"""
    verdict: AttestationVerdict
    detail: str = ""


class Difference(Struct, kw_only=True):
    """A setting that the engine runs with another value than was asked."""

    name: str
    asked: Any
    effective: Any
    witness: str


class Attestation(Struct, kw_only=True):
    """Did the configuration take effect?"""

    verdict: AttestationVerdict = "unknown"
    witnesses: list[Witness] = []
    differences: list[Difference] = []


class ReadyEvent(Struct, kw_only=True):
    """One change on the readiness time line; `at_s` counts from the restart."""

    at_s: float
    event: str
    """refused, http 503, http 200, generated, unit failed, timeout, ..."""
    detail: str = ""


class Service(Struct, kw_only=True):
    """The engine's process as the supervisor saw it."""

    supervisor: Literal["systemd", "systemd-user", "supervisor", "none"] = "none"
    unit: str = ""
    unit_sha256: str = ""
    argv: list[str] = []
    environment_names: list[str] = []
    invocation_id: str = ""
    main_pid: int | None = None
    started_unix_s: float | None = None
    properties: dict[str, str] = {}
    """at the end: Result, ExecMainStatus, NRestarts, ..."""


class Configuration(Struct, kw_only=True):
    """One restart of the engine: a configuration, one repeat, one host."""

    schema: int = SCHEMA
    sweep_id: str
    host: str
    configuration_id: str
    label: str
    origin: Origin = "measured"
    engine: str
    engine_version: str | None = None
    model: str = ""
    drafter: str | None = None
    method: str
    budget: int
    topk: int | None = None
    candidates: int | None = None
    verify_width: int | None = None
    max_running: int | None = None
    settings: dict[str, Any] = {}
    baseline: bool = False
    repeat: int = 1
    anchor: str | None = None
    position: int = 0
    """place in this host's order, from 1"""
    requests_of: list[str] = []
    """what was asked and resolved to this same configuration, e.g. ["b6 k1 steps=5", ...]"""

    status: Status
    reason: str = ""
    failure: Failure | None = None
    attestation: Attestation | None = None
    service: Service | None = None
    ready_s: float | None = None
    """from the restart to the first generation of our own process"""
    ready_timeline: list[ReadyEvent] = []
    phases: list[Phase] = []
    overhead_s: float | None = None
    """wall time of this restart less engine start less measuring"""
    failure_known_unix_s: float | None = None
    """when the host's own watch saw that the engine had failed"""
    remarks: list[str] = []
    cells: list[str] = []
    """paths of the cell records, relative to this file"""


class Host(Struct, kw_only=True):
    """One host of a sweep, as its preflight found it."""

    schema: int = SCHEMA
    sweep_id: str
    name: str
    supervisor: str = ""
    python: str = ""
    kernel: str = ""
    os: str = ""
    cpu: str = ""
    cpu_count: int | None = None
    memory_mib: int | None = None
    gpus: list[dict[str, Any]] = []
    driver: str | None = None
    engine: str = ""
    engine_version: str | None = None
    engine_command: list[str] = []
    engine_flags_sha256: str = ""
    boot_id: str = ""
    clock_offset_s: float | None = None
    """host clock minus controller clock"""
    facts: dict[str, Any] = {}


class Sweep(Struct, kw_only=True):
    """One run of the plan."""

    schema: int = SCHEMA
    sweep_id: str
    created_unix_s: float
    origin: Origin = "measured"
    specsweep_version: str = ""
    controller: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    """every sweep variable, normalised"""
    hosts: list[str] = []
    plan: dict[str, Any] = {}
    """specsweep.plan.Plan as plain data: configurations, load points, order, skipped"""
    finished_unix_s: float | None = None


class Request(Struct, kw_only=True):
    """One request of the load client; times from its own monotonic clock, in ms from `sent_s`."""

    id: str
    prompt_id: str
    category: str
    warmup: bool = False
    sent_s: float
    """seconds after the start of this load point's window (negative in the warm-up)"""
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    tpot_ms: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    ok: bool = False
    error: str | None = None
    phantom: bool = False
    steps: float | None = None
    drafts: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    histogram: list[int] | None = None
    server_ms: float | None = None
    text_sha256: str | None = None


class _Head(Struct):
    """What every record file begins with."""

    schema: int = SCHEMA


Record = TypeVar("Record", bound=Struct)


class RecordError(ValueError):
    """A record file that cannot be used; the message is one clear line with the path."""


def write(path: Path, record: Struct) -> None:
    """Write a record as indented JSON, replacing the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(text + b"\n")
    temporary.replace(path)


def read(path: Path, kind: type[Record]) -> Record:
    """Read one record.  Raises RecordError (one line) when the file is unreadable or of another schema."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        # First: of another schema the fields may be others too.
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema != SCHEMA:
            raise RecordError(
                f"{path}: schema {schema}, this version reads schema {SCHEMA}: use the version that wrote it"
            )
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: not a {kind.__name__.lower()} record of schema {SCHEMA}: {error}") from error
    return record


def write_requests(path: Path, requests: Iterable[Request]) -> None:
    """Write requests as gzipped JSON lines, replacing the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with gzip.open(temporary, "wb", compresslevel=6) as out:
        for request in requests:
            out.write(msgspec.json.encode(request) + b"\n")
    temporary.replace(path)


def read_requests(path: Path) -> Iterator[Request]:
    """Read requests line by line.  Raises RecordError on the first line that is not one."""
    decoder = msgspec.json.Decoder(Request)
    try:
        with gzip.open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise RecordError(f"{path}:{number}: not a request record: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: cut off or not gzip: {error}") from error
