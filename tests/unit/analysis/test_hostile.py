"""Broken and hostile input, made by breaking good input: an answer or one clear line, never a traceback."""

import copy
import json
import random
from pathlib import Path

import pytest

from analysis import verdicts, why
from analysis.results import InputError, load
from benchmarks.make_results import Plan, write_sweep

DATA = Path(__file__).parents[2] / "data" / "imports"
HOSTILE = [
    None, 0, -1, float("nan"), float("inf"), 1e300, 10**40, 10**400, "", "<script>alert(1)</script>", [], {}, [1],
    {"a": 1}, True, "12", -0.5, [None], [[]], {"avg": None},
]  # fmt: skip


def fixtures():
    rows = []
    for path in sorted(DATA.rglob("*.json*")):
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        rows += [json.loads(text) for text in texts]
    return rows


def places(tree, path=()):
    """Paths of all values in a document; of long lists only the first three."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield (*path, key)
        yield from places(value, (*path, key))


def broken(document, rng):
    """The document with one to five values replaced."""
    document = copy.deepcopy(document)
    known = list(places(document))
    for path in rng.sample(known, min(len(known), rng.choice([1, 1, 2, 5]))):
        holder = document
        try:
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = rng.choice(HOSTILE)
        except (TypeError, KeyError, IndexError):
            continue  # an earlier replacement took that place away
    return document


def use(data):
    """Ask for everything that a report asks for."""
    frame = verdicts.verdicts(data)
    for table in (data.cells, data.categories, data.positions, data.requests, data.configurations, data.phases):
        assert table is not None
    verdicts.noise_floor(data)
    verdicts.drift(data)
    verdicts.paired_by_prompt(data)
    why.by_category(data)
    assert all("\n" not in line for line in why.headlines(data))
    assert all(isinstance(text, str) for text in frame["sentence"])
    assert all("\n" not in line for line in data.problems)
    usable = data.cells[data.cells["status"].eq("ok")]
    assert not usable["system_tok_s"].le(0).any()
    return frame


@pytest.mark.parametrize("seed", range(2))
def test_broken_files_of_other_tools(seed, tmp_path):
    rng = random.Random(seed)
    rows = fixtures()
    path = tmp_path / "run.json"
    refused = used = 0
    for _ in range(30):
        path.write_text(json.dumps(broken(rng.choice(rows), rng)))
        try:
            use(load(path))
            used += 1
        except InputError as error:
            assert "\n" not in str(error) and str(error).startswith(str(path))
            refused += 1
    assert used > 5 and refused > 0


@pytest.mark.parametrize("seed", range(2))
def test_broken_records_of_our_own(seed, tmp_path):
    rng = random.Random(seed)
    folder = write_sweep(tmp_path, Plan(budgets=(8,), concurrencies=(1, 8), repeats=2, requests=4))
    paths = sorted(folder.rglob("*.json"))
    before = {path: path.read_bytes() for path in paths}
    for _ in range(10):
        path = rng.choice(paths)
        path.write_text(json.dumps(broken(json.loads(before[path]), rng)))
        data = load(folder)
        assert len(data.cells) >= 11
        use(data)
        path.write_bytes(before[path])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_records_cut_off_anywhere(share, tmp_path):
    plan = Plan(budgets=(8,), concurrencies=(1,), repeats=1, requests=4, anchors=())
    folder = write_sweep(tmp_path, plan)
    total = len(load(folder).cells)
    for path in sorted(folder.rglob("*.*")):
        if path.is_file():
            whole = path.read_bytes()
            path.write_bytes(whole[: int(len(whole) * share)])
            data = load(folder)
            use(data)
            assert len(data.cells) >= total - 1
            # The last byte of a record is only its line end.
            assert data.problems or path.read_bytes() == whole.rstrip(), path
            path.write_bytes(whole)
