"""Collect the evidence of one restart on the host: whole, compressed, and without secrets."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import redact
from .service import Systemd, booted_with_systemd

#: Folders of a run that travel to the controller.
PARTS = ("evidence", "points", "requests", "status.json", "telemetry.jsonl", "load_client.log")


def split_journal(source: Path, engine: Path, unit: Path) -> None:
    """Split journald's JSON lines into the program's own text and systemd's lines about it."""
    with source.open("rb") as lines, engine.open("wb") as own, unit.open("wb") as about:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            data = _message(entry.get("MESSAGE"))
            if entry.get("SYSLOG_IDENTIFIER") == "systemd" and "_PID" in entry:
                stamp = int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6
                when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(stamp)) + "Z"
                about.write((f"{when} systemd: ").encode() + data + b"\n")
            else:
                own.write(data + b"\n")


def _message(message: Any) -> bytes:
    """journald gives text, a list of bytes where it is no UTF-8, or a list of these when a line came twice."""
    if isinstance(message, list):
        if all(isinstance(item, int) for item in message):
            return bytes(message)
        return b"\n".join(map(_message, message))
    return b"" if message is None else str(message).encode(errors="surrogateescape")


def kernel_messages(start_unix_s: float, end_unix_s: float) -> str | None:
    """Kernel messages of a window; None where this host does not show them."""
    if booted_with_systemd():
        argv = ["journalctl", "-k", "--no-pager", "-o", "short-iso-precise"]
        argv += ["--since=@%d" % int(start_unix_s), "--until=@%d" % int(end_unix_s + 1)]
    else:
        argv = ["dmesg", "--time-format", "iso"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    text = done.stdout.decode(errors="replace")
    if booted_with_systemd():
        return text
    return "".join(line for line in text.splitlines(True) if _inside(line, start_unix_s, end_unix_s))


def _inside(line: str, start_unix_s: float, end_unix_s: float) -> bool:
    try:
        at = time.mktime(time.strptime(line[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return False
    return start_unix_s - 1 <= at <= end_unix_s + 1


def collect(
    service: Any, run: Path, invocation_id: str, start_unix_s: float, secrets: Iterable[str], argv: list[str]
) -> dict[str, Any]:
    """Write the run's evidence into one tar file.

    Returns its path, size, the unit's properties at the end and whether main process or unit changed.
    """
    secrets = list(secrets)
    folder = run / "evidence"
    folder.mkdir(parents=True, exist_ok=True)
    properties = service.properties()
    raw = run / "journal.raw"
    service.write_log(invocation_id, raw)
    if isinstance(service, Systemd):
        split_journal(raw, folder / "engine.log", folder / "unit.log")
        raw.unlink()
    else:
        raw.replace(folder / "engine.log")
    kernel = kernel_messages(start_unix_s, time.time())
    if kernel:
        (folder / "kernel.log").write_text(kernel)
    (folder / "properties.json").write_text(json.dumps(properties, indent=1))
    (folder / "argv.json").write_text(json.dumps(redact.clean_arguments(argv, secrets)))
    bundle = run / "bundle.tar"
    with tarfile.open(str(bundle), "w") as tar:
        for part in PARTS:
            # Packed already when it is collected a second time, after a lost connection.
            for path in sorted([*_files(run / part), *_files(run / (part + ".gz"))]):
                packed = _packed(path, secrets)
                tar.add(str(packed), arcname=str(packed.relative_to(run)))
    return {"bundle": str(bundle), "bytes": bundle.stat().st_size, "properties": properties}


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [item for item in path.rglob("*") if item.is_file() and item.suffix != ".tmp"]
    return [path] if path.is_file() else []


def _packed(path: Path, secrets: list[str]) -> Path:
    """The file without secrets; logs and pages compressed.  Line by line, so its size does not matter."""
    small = path.suffix == ".json"
    packed = path.suffix == ".gz"
    target = path if small or packed else path.with_name(path.name + ".gz")
    temporary = path.with_name(path.name + ".tmp")
    with _reader(path, packed) as source, _writer(temporary, not small) as out:
        for block in _lines(source):
            out.write(redact.clean(block, secrets))
    temporary.replace(target)
    if target != path:
        path.unlink()
    return target


def _reader(path: Path, packed: bool) -> Any:
    return gzip.open(str(path)) if packed else path.open("rb")


def _writer(path: Path, packed: bool) -> Any:
    return gzip.open(str(path), "wb", 5) if packed else path.open("wb")


def _lines(source: Any) -> Iterable[bytes]:
    """Blocks that end at a line's end where lines are not longer than a block."""
    rest = b""
    while True:
        block = source.read(1 << 20)
        if not block:
            if rest:
                yield rest
            return
        whole, newline, tail = (rest + block).rpartition(b"\n")
        if not newline and len(tail) > 1 << 22:
            yield tail
            rest = b""
        else:
            if newline:
                yield whole + newline
            rest = tail
