"""Quoting for systemd units and environment files (systemd.syntax(7), systemd.exec(5))."""

from __future__ import annotations

from collections.abc import Mapping

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote(argument: str) -> str:
    """One argument of ExecStart=: in double quotes, with specifiers (%) and variables ($) taken literally."""
    text = "".join(_ESCAPES.get(char, char) for char in argument)
    return '"' + text.replace("%", "%%").replace("$", "$$") + '"'


def environment_file(variables: Mapping[str, str]) -> str:
    """Text of an EnvironmentFile=; values survive as they are, in double quotes."""
    lines = []
    for name, value in variables.items():
        text = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines.append(f'{name}="{text}"\n')
    return "".join(lines)
