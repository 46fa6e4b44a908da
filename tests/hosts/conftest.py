"""Two hosts, booted once for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specsweep import embedded
from tests.hosts.machines import NAMES, Hosts, why_not


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    # The base system is built once a machine; hosts and network belong to this run.
    base = Path(os.environ.get("NSPAWN_DIR", "/var/tmp/specsweep-hosts"))
    base.mkdir(parents=True, exist_ok=True)
    environment = {"NSPAWN_DIR": str(base), "NSPAWN_NET": f"ss{os.getpid()}", "NSPAWN_RUN": str(os.getpid())}
    made = Hosts(tmp_path_factory.mktemp("hosts"), environment)
    # What travels to the hosts is made where there is a network.
    embedded.model()
    made.script("base", check=True, timeout=900)
    python = "3.11"
    embedded.site_archive(["aiohttp", "xllamacpp"], python, os.uname().machine, "glibc 2.36")
    try:
        with ThreadPoolExecutor() as pool:
            for done in pool.map(lambda item: made.script("up", item[0], str(item[1])), NAMES.items()):
                assert done.returncode == 0, done.stderr
        yield made
    finally:
        made.script("clean")


@pytest.fixture
def inventory(hosts: Hosts, tmp_path: Path) -> Path:
    return hosts.inventory(tmp_path / "hosts.yml")
