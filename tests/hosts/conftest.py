"""Two hosts, booted once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.machines import Hosts, boot, why_not


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with boot() as made:
        yield made


@pytest.fixture
def inventory(hosts: Hosts, tmp_path: Path) -> Path:
    return hosts.inventory(tmp_path / "hosts.yml")
