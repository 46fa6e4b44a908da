"""Every rule's own examples and counter-examples, and what a rule file must say."""

from __future__ import annotations

import re

import pytest

from analysis.classify import classify
from analysis.classify.anchors import NoAnchor, anchors_of, spaces_match_wraps
from analysis.classify.rules import BadRule, Rule, _rule, load_rules

RULES = load_rules().rules

# The ids that the project promised (taxonomy and its additions), so that none is lost by an edit.
CONTRACT = [
    "hw.ecc_uncorrectable",
    "hw.xid.79",
    "hw.xid.119",
    "hw.xid.nvlink",
    "hw.gpu_lost",
    "hw.throttle",
    "cuda.driver_lib_mismatch",
    "cuda.driver_too_old",
    "cuda.fabric_not_ready",
    "cuda.no_kernel_image",
    "cuda.cublas.alloc_failed",
    "cuda.cublas.not_initialized",
    "cuda.cublas.execution_failed",
    "cuda.cublas.internal_error",
    "cuda.cublas.invalid_value",
    "cuda.cublas.generic",
    "cuda.capture_invalidated",
    "cuda.illegal_address",
    "cuda.device_assert",
    "cuda.launch_failure",
    "env.binary_abi_mismatch",
    "env.module_missing",
    "env.kernel_missing",
    "jit.compiler_killed",
    "jit.host_compiler_missing",
    "jit.nvcc_missing",
    "jit.flashinfer.compile_failed",
    "jit.triton.shared_memory",
    "jit.triton.ptxas_arch",
    "gpu.rocm.memory_access_fault",
    "proc.gpu_occupied",
    "proc.gpu_occupied.releasing",
    "proc.orphan_gpu_process",
    "proc.host_oom_kill",
    "proc.unkillable_dstate",
    "proc.port_in_use.race",
    "proc.port_in_use",
    "proc.fd_limit",
    "proc.disk_full",
    "proc.assert_abort",
    "proc.killed",
    "mem.gpu.profiling_race",
    "mem.gpu.startup_budget",
    "mem.gpu.kv_pool_nonpositive",
    "mem.kv.context_does_not_fit",
    "mem.gpu.oom_capture",
    "mem.gpu.oom_kv_buffer",
    "mem.gpu.oom_compute_buffer",
    "mem.gpu.oom_load",
    "mem.gpu.oom_runtime",
    "mem.kv.decode_oom",
    "mem.kv.prefill_oom",
    "mem.kv.leak_detected",
    "mem.host.alloc_failed",
    "attn.flashinfer.workspace_too_small",
    "attn.head_dim_unsupported",
    "config.arg.unrecognized",
    "config.arg.invalid_choice",
    "config.arg.invalid_value",
    "config.arg.removed",
    "config.spec.unknown_algorithm",
    "config.spec.incomplete",
    "config.spec.device_unsupported",
    "config.spec.page_size_topk",
    "config.spec.topk_unsupported",
    "config.spec.backend_unsupported",
    "config.spec.silently_adjusted",
    "config.spec.silently_off",
    "config.parallel.not_divisible",
    "config.device_count",
    "model.path_missing",
    "model.draft.path_missing",
    "model.config_missing",
    "model.arch_unsupported",
    "model.tokenizer_missing",
    "model.weights_missing",
    "model.weights_shape_mismatch",
    "model.format",
    "model.draft.vocab_mismatch",
    "model.draft.weights_mismatch",
    "model.weights_corrupt",
    "hub.gated",
    "hub.rate_limited",
    "hub.offline_cache_miss",
    "dist.nccl.shm_space",
    "dist.nccl.invalid_usage",
    "dist.custom_allreduce.invalid_argument",
    "dist.custom_allreduce.cuda_error",
    "dist.nccl.watchdog_timeout",
    "serve.spec.grammar",
    "serve.spec.grammar_abort",
    "serve.spec.zero_acceptance",
    "serve.hang.watchdog",
    "serve.hang.health_failed",
    "serve.hang.collective_deadlock",
    "serve.hang.silent",
    "serve.engine_died",
    "serve.spec.crash",
    "unit.exec_not_found",
    "unit.chdir_failed",
    "unit.user_missing",
    "unit.envfile_missing",
    "unit.start_timeout",
    "unit.stop_timeout",
    "unit.start_limit_hit",
    "unit.daemon_reload_needed",
    "deploy.template_undefined",
    "deploy.template_syntax",
    "deploy.inventory_template",
    "deploy.ssh_hostkey",
    "deploy.ssh_auth",
    "deploy.not_applied.nested_ssh",
    "deploy.ssh_unreachable",
    "deploy.become_timeout",
    "deploy.become_password",
    "deploy.python_interpreter",
    "deploy.no_systemd",
    "deploy.unit_start_failed",
    "deploy.started_but_died",
    "deploy.not_applied.stale_process",
    "ready.warmup_failed",
    "ready.timeout",
    "ready.conn_refused",
    "bench.warmup_failed.http_404",
    "bench.warmup_failed.http_5xx",
    "bench.warmup_failed.conn_refused",
    "bench.http_4xx.context_length",
    "bench.client_missing",
    "bench.task_timeout",
    "bench.all_requests_failed",
    "bench.conn_reset",
    "bench.partial_failure",
]


def test_every_class_of_the_contract_has_a_rule_and_no_other_class_exists() -> None:
    assert sorted(RULES) == sorted(CONTRACT)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_examples_get_the_class_and_counter_examples_do_not(rule: Rule) -> None:
    assert rule.examples, "a rule needs an example"
    assert rule.counter_examples, "a rule needs a counter-example"
    for example in rule.examples:
        assert classify({"log": example.encode()}).klass == rule.id, example
    for example in rule.counter_examples:
        assert classify({"log": example.encode()}).klass != rule.id, example


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_advice_is_one_paragraph_and_preferences_name_existing_classes(rule: Rule) -> None:
    assert rule.advice.endswith(".") and "\n" not in rule.advice
    for preference in (*rule.beats, *rule.yields_to):
        pattern = re.compile(re.escape(preference).replace(r"\*", ".*"))
        assert any(pattern.fullmatch(known) for known in RULES), preference


def test_every_expression_has_anchors_that_its_own_examples_hold() -> None:
    """What the prefilter looks for must be in each text that a rule matches."""
    rules = load_rules()
    for expression in rules.expressions:
        if expression.role != "any":
            continue
        for example in RULES[expression.owner].examples:
            match = expression.pattern.search(example)
            if match is not None:
                flat = re.sub(r"\s+", " ", match.group()).lower()
                assert any(anchor in flat for anchor in expression.anchors), expression.source


def test_anchors_are_rare_enough() -> None:
    assert [anchor for anchor in load_rules().anchors if len(anchor) < 5] == []


@pytest.mark.parametrize(
    ("expression", "anchors"),
    [
        ("CUBLAS_STATUS_ALLOC_FAILED", {"cublas_status_alloc_failed"}),
        ("(?:alpha one|beta two)", {"alpha one", "beta two"}),
        ("abc.*definitely", {"definitely"}),
        # Three words or more: two overlapping halves, so that one line break cannot hide both.
        ("illegal memory access", {"illegal memory", "memory access"}),
    ],
)
def test_anchors_of_an_expression(expression: str, anchors: set[str]) -> None:
    assert anchors_of(expression) == anchors


def test_an_expression_without_fixed_text_is_refused() -> None:
    with pytest.raises(NoAnchor):
        anchors_of(r"\d+ \w+")


def test_spaces_match_line_ends_but_not_inside_a_class() -> None:
    assert re.search(spaces_match_wraps("is not divisible by"), "is not\n   divisible\tby")
    assert spaces_match_wraps("[ *]x") == "[ *]x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tier": None, "extra": 1}, "unknown field extra"),
        ({"phase": "capture"}, "phase 'capture'"),
        ({"directions": {"budget": "down"}}, "direction of budget"),
        ({"any": []}, "needs expressions"),
    ],
)
def test_a_bad_rule_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    entry = {"id": "a.b", "tier": 1, "cause": "c", "advice": "a.", "retry": "no", "any": ["some text"]}
    with pytest.raises(BadRule, match=message):
        _rule(load_rules.__wrapped__.__globals__["FOLDER"] / "x.yaml", {**entry, **change})
