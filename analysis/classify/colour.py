"""Take terminal sequences (colours, cursor moves, hyperlinks) out of a log before anything looks at it.

They may stand in the middle of a message, so they must be gone before the prefilter looks for fixed texts.
Seen in logs: sequences with ESC (ECMA-48: CSI, OSC, charsets), the same with ESC written out by JSON
(``\\u001b``), a shell (``\\033``, ``^[``) or rsyslog (``#033``), and with ESC lost by a paste (``[31m``).
No sequence spans lines, so that line numbers stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST_SEQUENCE = 512
# Sequences without a real ESC are looked for in both ends of a large block: who writes them colours often.
SAMPLED_WHOLE = 1 << 18
SAMPLE_BYTES = 1 << 15

_WITH_ESC = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,500}(?:\x07|\x1b\\)|[ -/]{1,2}[0-~]|[0-Z\\^-~])"
)
_WRITTEN_ESC = re.compile(
    rb"(?:\\{1,4}u001[bB]|\\{1,4}x1[bB]|\\{1,4}0?33|\\{1,4}e|#033|\^\[)"
    rb"(?:\[[0-?]{0,32}[A-HJKSTf-mnsu]|\]8;[^\n]{0,300}?(?:\\{1,4}u0007|\\{1,4}x07|\\{1,4}a|\\{1,4}u001[bB]\\{1,4}))"
)
# Without ESC: a reset anywhere; a colour only where no word or quote stands before it ("x[31m" is an index).
_WITHOUT_ESC = re.compile(
    rb"\[(?:0{1,2}|[34]9|2[2-9]|\d{1,3}(?:;\d{1,3}){1,8})m|(?<![\w\"'.])\[(?:[1-9]|[349][0-7]|10[0-7])m(?!\d)|\[m(?![\w\]-])"
)
_WITHOUT_ESC_TEXT = re.compile(_WITHOUT_ESC.pattern.decode())
# One of these is in each coloured log: a reset follows a colour.
_RESETS = (b"[0m", b"[00m", b"[39m", b"[22m", b"[0;")
_WRITTEN = (b"u001b[", b"u001B[", b"x1b[", b"x1B[", b"\\033[", b"#033[", b"^[[", b"\\e[")


def without_colours(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks without terminal sequences; one that a block's end cuts is kept for the next block."""
    carry = b""
    for block in blocks:
        if carry:
            block, carry = carry + block, b""
        cut = block.rfind(b"\x1b", max(0, len(block) - LONGEST_SEQUENCE))
        if cut >= 0 and b"\n" not in block[cut:] and not _WITH_ESC.match(block, cut):
            block, carry = block[:cut], block[cut:]
        yield plain(block)
    if carry:
        yield plain(carry)


def plain(block: bytes) -> bytes:
    """A piece of a log without terminal sequences."""
    if b"\x1b" in block:
        block = _WITH_ESC.sub(b"", block)
    sample = block if len(block) <= SAMPLED_WHOLE else block[:SAMPLE_BYTES] + block[-SAMPLE_BYTES:]
    if any(mark in sample for mark in _RESETS):
        if any(mark in block for mark in _WRITTEN):
            block = _WRITTEN_ESC.sub(b"", block)
        block = _WITHOUT_ESC.sub(b"", block)
    return block


def plain_text(text: str) -> str:
    """The same for a prepared line, whatever escapes hid before."""
    return _WITHOUT_ESC_TEXT.sub("", text)
