"""Shared by the tests of the classifier: its cases, its real logs, and the generator of variants."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "tests" / "data" / "failures"


def load_benchmark(name: str) -> ModuleType:
    """A module of benchmarks/classify, which is no package."""
    path = ROOT / "benchmarks" / "classify" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"classify_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def variants() -> ModuleType:
    return load_benchmark("variants")


@pytest.fixture(scope="session")
def logs() -> Path:
    return LOGS / "logs"
