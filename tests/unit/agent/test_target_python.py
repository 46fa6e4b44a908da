"""What runs on hosts must run on Python 3.9 with the standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[3] / "plugins"
SOURCES = sorted([*(PLUGINS / "modules").glob("*.py"), *(PLUGINS / "module_utils").rglob("*.py")])
#: What else may be there: Ansible around a module, and what the load client and the embedded engine need.
GUESTS = {"ansible", "specsweep_agent", "aiohttp", "xllamacpp"}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))


def test_there_are_sources() -> None:
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_grammar_is_that_of_python_3_9(path: Path) -> None:
    tree = parsed(path)
    # ast takes these whatever the version: they must not be run, only annotate.
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.Match, ast.TryStar))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_only_the_standard_library_of_3_9_is_imported(path: Path) -> None:
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).split(".")[0])
    later = {"tomllib"}
    assert names - GUESTS <= (set(sys.stdlib_module_names) - later)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_annotations_are_not_evaluated_and_newer_calls_are_not_used(path: Path) -> None:
    tree = parsed(path)
    futures = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"
               for alias in node.names}  # fmt: skip
    unions = [
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for annotation in [function.returns, *(argument.annotation for argument in function.args.args)]
        if annotation is not None
        for node in ast.walk(annotation)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    ]
    assert not unions or "annotations" in futures, f"unions at {unions} would be evaluated"
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    # zip(strict=) came with 3.10, asyncio.TaskGroup and timeout with 3.11, itertools.pairwise with 3.10.
    strict = [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "zip"
        and any(key.arg == "strict" for key in call.keywords)
    ]
    newer = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute)
             and (ast.unparse(node) in ("asyncio.TaskGroup", "asyncio.timeout", "asyncio.Runner", "itertools.pairwise",
                                        "datetime.UTC"))]  # fmt: skip
    assert not strict
    assert not newer
