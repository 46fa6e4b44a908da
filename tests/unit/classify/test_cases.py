"""The collected cases and the recorded logs of real servers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import ModuleType

import pytest

from analysis.classify import classify, classify_files
from analysis.classify.rules import load_rules

LOGS = Path(__file__).parents[3] / "tests" / "data" / "failures"


def test_cases_exact_at_least_97_percent_and_family_99_and_no_false_alarm(variants: ModuleType) -> None:
    cases = [case for case in variants.load_cases() if not case.insufficient]
    found = {case.id: classify({"log": case.log.encode()}).klass for case in cases}
    exact = sum(found[case.id] == case.klass for case in cases)
    family = sum(found[case.id].split(".")[0] == case.klass.split(".")[0] for case in cases)
    assert len(cases) == 121
    assert exact / len(cases) >= 0.97
    assert family / len(cases) >= 0.99
    assert [case.id for case in cases if case.negative and found[case.id] != "none"] == []


def test_rewordings_keep_their_class() -> None:
    rows = [json.loads(line) for line in (LOGS / "rewordings.jsonl").read_text(encoding="utf-8").splitlines()]
    wrong = [
        (row["klass"], found, row["log"][:80])
        for row in rows
        if (found := classify({"log": row["log"].encode()}).klass) != row["klass"]
    ]
    assert len(rows) > 200
    assert wrong == []


def test_what_healthy_servers_say_is_no_failure() -> None:
    """Notices, warnings and advice with scary words, each alone and all together, coloured or not."""
    lines = (LOGS / "healthy_lines.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 80
    assert [line for line in lines if classify({"log": line.encode()}).klass != "none"] == []
    assert classify({"log": "\n".join(lines).encode()}).klass == "none"
    coloured = "\n".join(f"\x1b[33m{line}\x1b[0m" for line in lines)
    assert classify({"log": coloured.encode()}).klass == "none"


REAL = {
    "h200-bad_flag": ("config.arg.unrecognized", "unit_start"),
    "h200-draft_vocab_mismatch": ("model.draft.vocab_mismatch", "model_load"),
    "h200-kv_pool_too_small": ("none", None),
    "h200-many_requests_wide_tree": ("none", None),
    "h200-port_in_use": ("proc.port_in_use", "unit_start"),
    "h200-scheduler_killed": ("proc.killed", "serving_under_load"),
    "h200-scheduler_killed-bench": ("ready.timeout", "readiness"),
    "h200-tp2_on_one_gpu": ("config.device_count", "unit_start"),
    "h200-healthy-ar": ("none", None),
    "h200-healthy-ar-bench": ("none", None),
    "h200-healthy-ngram_b8_k4": ("none", None),
    "h200-healthy-ngram_b8_k4-bench": ("none", None),
    "cpu-badarch": ("model.arch_unsupported", "model_load"),
    "cpu-kvoom": ("mem.gpu.kv_pool_nonpositive", "model_load"),
    "cpu-missing": ("model.path_missing", "model_load"),
    "cpu-noconfig": ("model.config_missing", "model_load"),
    "cpu-port": ("proc.port_in_use", "unit_start"),
    "cpu-topk_no_steps": ("config.spec.incomplete", "unit_start"),
    "cpu-wrongshape": ("model.weights_shape_mismatch", "model_load"),
    "cpu-standalone4": ("env.kernel_missing", "unit_start"),
    "cpu-hung": ("none", None),
    "cpu-grp": ("none", None),
    "cpu-bench-half": ("bench.partial_failure", "benchmark_client"),
    "llama-badflag": ("config.arg.unrecognized", "unit_start"),
    "llama-badtype": ("config.spec.unknown_algorithm", "unit_start"),
    "llama-hugectx": ("mem.host.alloc_failed", "model_load"),
    # Three that look healthy; only the second and the third say so in the log.
    "llama-mdnotype": ("none", None),
    "llama-vocabmismatch": ("model.draft.vocab_mismatch", "model_load"),
    "llama-router": ("config.spec.silently_off", "unit_start"),
    "llama-missing": ("model.path_missing", "model_load"),
    "llama-portinuse": ("proc.port_in_use", "unit_start"),
    "llama-synthbad": ("config.arg.invalid_value", "unit_start"),
    "llama-healthy-ngs16": ("none", None),
    "llama-healthy-none": ("none", None),
}


def test_every_recorded_log_has_an_expectation(logs: Path) -> None:
    assert sorted(path.stem for path in logs.glob("*.log")) == sorted(REAL)


@pytest.mark.parametrize("name", REAL)
def test_recorded_logs(logs: Path, name: str) -> None:
    path = logs / f"{name}.log"
    verdict = classify({"engine": path})
    assert (verdict.klass, verdict.phase) == REAL[name]
    lines = path.read_bytes().split(b"\n")
    for line in verdict.evidence:
        assert line.text[:40].encode() in lines[line.line - 1].replace(b"\r", b" "), "evidence is in its line"


def test_a_hang_that_passed_is_a_note(logs: Path) -> None:
    verdict = classify({"engine": logs / "cpu-hung.log"})
    assert verdict.outcome == "recovered"
    assert [(note.klass, note.kind) for note in verdict.notes] == [("serve.hang.health_failed", "recovered")]


def test_variants_of_a_sample_of_cases_keep_their_class(variants: ModuleType) -> None:
    """The benchmark runs all; here every variant of each tenth case, without the long noise."""
    rules = load_rules().rules
    cases = [case for case in variants.load_cases() if not case.insufficient]
    failures = []
    for case in cases[::10]:
        tier = rules[case.klass].tier if case.klass in rules else None
        for variant in variants.VARIANTS:
            if "noise" in variant.__name__ or not variants.applies(variant, case, tier):
                continue
            raw = variant(case.log, random.Random(0))
            if classify({"log": raw}).klass != case.klass:
                failures.append((case.id, variant.__name__))
    assert failures == []


def test_healthy_noise_around_a_failure_changes_nothing_but_the_line_number(variants: ModuleType) -> None:
    case = next(case for case in variants.load_cases() if case.id == "sgl-cublas-exec-failed-19081")
    noise = variants.healthy_noise(random.Random(1), 2_000)
    plain = classify({"engine": case.log.encode()})
    around = classify({"engine": (noise + case.log + "\n" + noise).encode()})
    assert around.klass == plain.klass == "cuda.cublas.execution_failed"
    assert around.evidence[0].line == plain.evidence[0].line + 2_000
    assert around.fingerprint == plain.fingerprint


def test_files_are_independent_logs(logs: Path) -> None:
    paths = [logs / "h200-bad_flag.log", logs / "h200-healthy-ar.log"]
    assert [verdict.klass for _, verdict in classify_files(paths)] == ["config.arg.unrecognized", "none"]
