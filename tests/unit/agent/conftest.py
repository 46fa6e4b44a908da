"""The agent as a plain package, and small real servers to try it on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
for _path in (ROOT, ROOT / "plugins" / "module_utils"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))

from tests.unit.agent.stand_in import StandIn  # noqa: E402


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A made-up engine: a real HTTP server of this process whose answers a test chooses."""
    server = StandIn()
    yield server
    server.close()
