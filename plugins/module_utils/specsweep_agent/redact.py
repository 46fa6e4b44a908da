"""Take secrets out of evidence, on the host, before anything is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "[redacted]"
#: `token` only as a name's last word: max_total_tokens, tokenizer_path and token_map hold no secret, and hiding
#: their values would spoil the evidence.
_NAME = re.compile(
    r"(?i)(token([_-]?\d+)?$|secret|passw|credential|api[_-]?key|access[_-]?key|private[_-]?key|authorization|cookie)"
)
#: Shapes of well-known credentials, whatever variable they stand in.
_SHAPES = re.compile(
    rb"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,})"
    rb"|(?i:(?<=bearer )[A-Za-z0-9._~+/-]{8,}=*)"
)


def is_secret_name(name: str) -> bool:
    return bool(_NAME.search(name))


def secret_values(environment: dict[str, str], argv: list[str]) -> list[str]:
    """Values that must not leave the host: of variables and flags with a telling name."""
    found = [value for name, value in environment.items() if is_secret_name(name)]
    for flag, value in zip(argv, argv[1:]):
        if flag.startswith("-") and is_secret_name(flag) and not value.startswith("-"):
            found.append(value)
    found += [
        arg.split("=", 1)[1] for arg in argv if arg.startswith("-") and "=" in arg and is_secret_name(arg.split("=")[0])
    ]
    # Very short values would blank half of a log.
    return sorted({value for value in found if len(value) >= 4}, key=len, reverse=True)


def clean(data: bytes, secrets: Iterable[str]) -> bytes:
    """The data without the given values and without anything shaped like a credential."""
    for secret in secrets:
        data = data.replace(secret.encode(), MASK.encode())
    return _SHAPES.sub(MASK.encode(), data)


def clean_arguments(argv: list[str], secrets: Iterable[str]) -> list[str]:
    return [clean(argument.encode(), secrets).decode(errors="replace") for argument in argv]
