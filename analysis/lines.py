"""Lines of a file that may hold anything: no line is ever kept that is longer than the limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

#: No line of a result file is this long; a longer one is reported and skipped.
LONGEST_LINE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


def bounded_lines(stream: IO[bytes], longest: int = LONGEST_LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """Yield (1-based number, line without its end), or (number, None) for a line longer than `longest`."""
    number = 0
    while True:
        line = stream.readline(longest + 1)
        if not line:
            return
        number += 1
        if len(line) > longest and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK_BYTES)
            yield number, None
        else:
            yield number, line.rstrip(b"\r\n")
