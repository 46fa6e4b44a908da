"""Read a log, whatever it is wrapped in, as blocks of bytes; one line of the file stays one line.

Text, gzip, zstd, journald's JSON export (one object a line) and any iterable of bytes. A journald record
becomes its message with journald's own prefix, so that the later steps see one form only.
"""

from __future__ import annotations

import io
import json
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from analysis.classify.colour import without_colours

BLOCK_BYTES = 4 << 20
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# A line break inside one record: kept apart from "\n", which counts lines of the file.
INNER_BREAK = "\x0b"


class UnusableLog(ValueError):
    """The log cannot be read; the message is one line that says what to do."""


def blocks(log: Path | str | bytes | Iterable[bytes]) -> Iterator[bytes]:
    """Yield the log's text in blocks of about four megabytes, without colours.

    ``log``: a path, ``-`` for standard input, bytes, or an iterable of bytes.
    """
    raw = _raw_blocks(log)
    first = next(raw, b"")
    if first.startswith(GZIP_MAGIC):
        raw = _inflated(_chain(first, raw))
    elif first.startswith(ZSTD_MAGIC):
        raw = _zstd(_Reader(first, raw))
    else:
        yield from without_colours(_as_text(first, raw))
        return
    yield from without_colours(_as_text(next(raw, b""), raw))


def _as_text(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if _is_journald_json(first):
        yield from _journald(first, rest)
        return
    if first[:2] in (b"\xff\xfe", b"\xfe\xff") and first.count(b"\0", 0, 400) > len(first[:400]) // 4:
        yield from _utf16(first, rest)
        return
    yield first
    yield from rest


def _raw_blocks(log: Path | str | bytes | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(log, bytes):
        yield log
        return
    if isinstance(log, str) and log == "-":
        yield from _file_blocks(sys.stdin.buffer)
        return
    if isinstance(log, (str, Path)):
        path = Path(log)
        try:
            with path.open("rb") as handle:
                yield from _file_blocks(handle)
        except OSError as error:
            raise UnusableLog(f"{path}: cannot be read ({error.strerror}); expected a log file") from None
        return
    for piece in log:
        if not isinstance(piece, (bytes, bytearray)):
            raise UnusableLog(f"expected pieces of bytes, got {type(piece).__name__}; encode the text first")
        yield bytes(piece)


def _file_blocks(handle: IO[bytes]) -> Iterator[bytes]:
    while block := handle.read(BLOCK_BYTES):
        yield block


class _Reader(io.RawIOBase):
    """A file over an iterator of blocks, for the decompressors."""

    def __init__(self, first: bytes, rest: Iterator[bytes]) -> None:
        self._pending = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._pending:
            self._pending = next(self._rest, b"")
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size


def _inflated(packed: Iterator[bytes]) -> Iterator[bytes]:
    """Gzip, one member after the other; a cut archive gives what can be read."""
    inflater = zlib.decompressobj(wbits=31)
    seen = False
    for block in packed:
        pending = block
        while pending:
            try:
                text = inflater.decompress(pending, BLOCK_BYTES)
            except zlib.error as error:
                if seen:
                    return
                raise UnusableLog(f"not readable as gzip ({error}); expected a gzip file") from None
            seen = seen or bool(text)
            yield text
            pending = inflater.unconsumed_tail
            if inflater.eof:
                pending = inflater.unused_data
                inflater = zlib.decompressobj(wbits=31)


def _zstd(reader: _Reader) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise UnusableLog("a zstd log needs the package zstandard: install it, or decompress first") from None
    with zstandard.ZstdDecompressor().stream_reader(io.BufferedReader(reader), read_across_frames=True) as stream:
        yield from _until_cut(stream, zstandard.ZstdError)


def _until_cut(stream: Any, failure: type[Exception]) -> Iterator[bytes]:
    """A cut archive gives what could be read; one that gives nothing is refused."""
    seen = False
    while True:
        try:
            block = stream.read(BLOCK_BYTES)
        except failure as error:
            if not seen:
                raise UnusableLog(f"not readable as zstd ({error}); expected a zstd file") from None
            return
        if not block:
            return
        seen = True
        yield block


def _utf16(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    yield decoder.decode(first).encode()
    for block in rest:
        yield decoder.decode(block).encode()


def _is_journald_json(first: bytes) -> bool:
    line = first.lstrip()[:65536].split(b"\n", 1)[0]
    return line.startswith(b"{") and (b'"__REALTIME_TIMESTAMP"' in line or b'"MESSAGE"' in line)


def _journald(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    carry = b""
    for block in _chain(first, rest):
        lines = (carry + block).split(b"\n")
        carry = lines.pop()
        yield b"".join(_record_line(line) + b"\n" for line in lines)
    if carry:
        yield _record_line(carry) + b"\n"


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _record_line(line: bytes) -> bytes:
    """``Jun 01 10:14:22 host name[pid]: message`` of one exported record; other lines stay as they are."""
    try:
        record = json.loads(line)
        message = record["MESSAGE"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return line
    if isinstance(message, list):  # journald exports text with control characters as a list of bytes
        try:
            message = bytes(message).decode("utf-8", "replace")
        except (ValueError, TypeError):
            return line
    text = str(message).replace("\r\n", "\n").replace("\n", INNER_BREAK)
    name = record.get("SYSLOG_IDENTIFIER") or record.get("_COMM") or "unknown"
    pid = record.get("_PID") or record.get("SYSLOG_PID") or ""
    return f"{_stamp(record)} {record.get('_HOSTNAME', 'host')} {name}[{pid}]: {text}".encode()


def _stamp(record: dict[str, Any]) -> str:
    try:
        seconds = int(record["__REALTIME_TIMESTAMP"]) / 1e6
        return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))
    except (KeyError, ValueError, TypeError, OverflowError, OSError):
        return "1970-01-01T00:00:00+00:00"
