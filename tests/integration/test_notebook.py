"""The quickstart notebook: runs from top to bottom, and is kept without outputs."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

import analysis

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
QUICKSTART = NOTEBOOKS / "quickstart.ipynb"
PORT = 18210


@pytest.mark.engine
def test_the_quickstart_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in an editor that starts the kernel of an environment that nobody activated.
    monkeypatch.setenv("PATH", os.defpath)
    notebook = nbformat.read(QUICKSTART, as_version=4)
    own = {"specsweep_home": str(tmp_path / "home"), "serve_port": PORT}
    options = {"sweep_results": str(tmp_path / "results"), "extra_vars": own}
    [parameters] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert parameters.source.splitlines()[-1] == "options = {}"
    parameters.source = f"options = {options!r}"

    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()

    told = output_of(notebook, "sweep", "stream")["text"]
    assert "4 cells on each host" in told and "cells: 4 ok" in told
    [page] = [line.removeprefix("report: ") for line in told.splitlines() if line.startswith("report: ")]
    assert Path(page).is_file()
    table = output_of(notebook, "table", "execute_result")["data"]["text/html"]
    results = analysis.load(tmp_path / "results")
    assert len(results.cells) == 4
    for speed in results.cells.system_tok_s:
        assert f"{speed:.2f}" in table or f"{round(speed, 2):g}" in table
    for name in ("throughput", "acceptance"):
        png = base64.b64decode(output_of(notebook, name, "display_data")["data"]["image/png"])
        width, height = struct.unpack(">II", png[16:24])
        assert png[:8] == b"\x89PNG\r\n\x1a\n" and width > 500 and height > 250
    assert not (tmp_path / "home" / "lease.json").exists()


@pytest.mark.engine
def test_a_kernel_that_is_shut_down_in_the_middle_gives_the_host_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    # The killed kernel cannot remove its scratch folder.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = {
        "budgets": [16], "baseline": False, "concurrencies": [1], "requests": 4, "output_tokens": 32,
        "sweep_results": str(tmp_path / "results"), "extra_vars": {"specsweep_home": str(home), "serve_port": PORT + 1},
    }  # fmt: skip
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        client.execute(f"import analysis; analysis.run_sweep(**{arguments!r})")
        told = ""
        while "ready in" not in told:
            message = client.get_iopub_msg(timeout=120)
            assert message["msg_type"] != "error", message["content"]
            if message["msg_type"] == "stream":
                told += message["content"]["text"]
        assert (home / "lease.json").exists()
    finally:
        client.stop_channels()
        # What an editor does for "shut down kernel": it interrupts, asks, and kills after a few seconds.
        manager.shutdown_kernel(now=False)
    deadline = time.monotonic() + 60
    while (home / "lease.json").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not (home / "lease.json").exists() and (home / "lease.last.json").exists()
    time.sleep(2)
    assert not [line for line in command_lines() if str(home) in line or f"--port {PORT + 1}" in line]


def command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().decode(errors="replace").replace("\0", " "))
        except OSError:
            continue
    return lines


def output_of(notebook: Any, cell_id: str, kind: str) -> Any:
    """The one output of a kind of a cell; streams are joined as an editor joins them."""
    [cell] = [cell for cell in notebook.cells if cell.id == cell_id]
    found = [output for output in cell.outputs if output.output_type == kind]
    assert found, f"{cell_id} has no {kind}: {cell.outputs}"
    if kind == "stream":
        assert {output.name for output in found} == {"stdout"}, found
        return {"text": "".join(output.text for output in found)}
    [output] = found
    return output


def test_notebooks_are_committed_without_outputs() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = committed(path)
        assert without_outputs(text) == text, (
            f"{path.name} holds outputs: python notebooks/clear_outputs.py notebooks/{path.name}, then git add it"
        )


def test_clearing_takes_outputs_out_and_leaves_the_rest() -> None:
    notebook = json.loads(QUICKSTART.read_text())
    code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "ran"}]
    code["execution_count"] = 7
    ran = json.dumps(notebook)
    assert without_outputs(ran) == without_outputs(QUICKSTART.read_text())
    assert [cell["source"] for cell in json.loads(without_outputs(ran))["cells"]] == [
        cell["source"] for cell in notebook["cells"]
    ]


def without_outputs(text: str) -> str:
    command = [sys.executable, NOTEBOOKS / "clear_outputs.py"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def committed(path: Path) -> str:
    """What git would commit; the file itself where this is no clone or the file is new."""
    shown = subprocess.run(
        ["git", "show", f":./{path.name}"], cwd=path.parent, capture_output=True, text=True, check=False
    )
    return path.read_text() if shown.returncode else shown.stdout
