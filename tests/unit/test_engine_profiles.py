"""Every profile in specsweep/engines/: what it renders, against the captured help and recorded reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specsweep import engine
from specsweep.expression import evaluate, fill

DATA = Path(__file__).parent.parent / "data" / "engines"
PROFILES = engine.names()
ALL_METHODS = [(name, method) for name in PROFILES for method in engine.load(name).methods]


def names_for(profile: engine.Profile, method: str, budget: int = 8, topk: int = 1, **settings: Any) -> dict[str, Any]:
    place = {
        "model": "/models/target",
        "drafter": "/models/drafter",
        "address": "127.0.0.1",
        "port": 30000,
        "engine_python": "python3",
        "concurrency_max": 8,
        "seed": 1,
    }
    return engine.scope(profile, method=method, budget=budget, topk=topk, settings=settings, place=place)


def rendered(
    name: str, method: str, budget: int = 8, topk: int = 1, host_flags: Any = (), **settings: Any
) -> engine.Rendered:
    profile = engine.load(name)
    names = names_for(profile, method, budget, topk, **settings)
    chosen = engine.effective_settings(profile, method, settings, names)
    return engine.render(profile, method, chosen, names, host_flags)


def why_not(name: str, method: str, budget: int = 8, topk: int = 1, **settings: Any) -> str | None:
    profile = engine.load(name)
    return engine.impossible(profile, method, names_for(profile, method, budget, topk, **settings))


def flags(result: engine.Rendered) -> dict[str, Any]:
    """flag -> value as text, as the engine's own parser would see the arguments."""
    seen: dict[str, Any] = {}
    for item in result.arguments:
        if item.startswith("-") and not re.fullmatch(r"-\d+", item):
            seen[item] = None
            last = item
        elif seen and seen[last] is None:
            seen[last] = item
    return seen


def help_flags(text: str) -> set[str]:
    return engine.flags_in((engine.ENGINES / "help" / text).read_text())


def recorded(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text())


# Every profile, every method.


@pytest.mark.parametrize(("name", "method"), ALL_METHODS)
def test_every_flag_of_every_method_is_in_the_captured_help(name: str, method: str) -> None:
    profile = engine.load(name)
    assert engine.missing_flags(rendered(name, method), engine.known_flags(profile)) == []


@pytest.mark.parametrize(("name", "method"), ALL_METHODS)
def test_every_template_of_a_profile_can_be_filled(name: str, method: str) -> None:
    profile = engine.load(name)
    names = names_for(profile, method, 16, 1, steps=3) | {"prompt": "{not a template}", "max_tokens": 9}
    names |= {"temperature": 0.0, "files": "/srv/files"}
    body = fill({**profile.request.body, **profile.request.exact}, names)
    assert "{not a template}" in json.dumps(body)
    assert "9" in json.dumps(body)
    for check in profile.attest.checks:
        assert evaluate(check.when, names) in (True, False)
        fill(check.expect, names)
    for case in profile.methods[method].impossible:
        assert evaluate(case.when, names) in (True, False)
        assert "{" not in str(fill(case.why, names))
    for command in profile.commands:
        assert all(isinstance(word, str) and word for word in fill(command, names))
    for pattern in profile.fatal_log:
        re.compile(pattern)


@pytest.mark.parametrize(("name", "method"), ALL_METHODS)
def test_the_verify_width_is_the_candidates_and_the_root(name: str, method: str) -> None:
    names = names_for(engine.load(name), method, 16)
    assert names["verify_width"] == names["candidates"] + 1
    assert (names["verify_width"] == 1) == (method == "none")


@pytest.mark.parametrize("variant", engine.load("sglang").variants, ids=lambda variant: variant.name)
def test_every_variant_renders_only_flags_that_its_fork_or_the_release_has(variant: engine.Variant) -> None:
    host = help_flags("sglang-0.5.23.txt") | set(variant.when_flags)
    result = rendered("sglang", variant.method, 16, 4, host)
    assert engine.missing_flags(result, host) == []
    assert set(variant.when_flags) <= {*result.flags, "--speculative-ddtree-cpu-build"}


@pytest.mark.parametrize(("name", "method"), [item for item in ALL_METHODS if item[1] != "none"])
def test_a_drafter_is_asked_for_before_any_restart(name: str, method: str) -> None:
    profile = engine.load(name)
    names = {**names_for(profile, method), "drafter": None}
    reason = engine.impossible(profile, method, names)
    if profile.methods[method].needs_drafter:
        assert reason == f"the method {method} needs a draft model: set drafter"
    else:
        assert reason is None


# SGLang.


def test_sglang_ngram_flag_by_flag() -> None:
    assert flags(rendered("sglang", "ngram", 16, 8, tp_size=2)) == {
        "--tp-size": "2",
        "--max-running-requests": "48",
        "--page-size": "1",
        "--random-seed": "1",
        "--decode-log-interval": "40",
        "--model-path": "/models/target",
        "--host": "127.0.0.1",
        "--port": "30000",
        "--enable-metrics": None,
        "--speculative-algorithm": "NGRAM",
        "--speculative-num-draft-tokens": "16",
        "--speculative-ngram-max-bfs-breadth": "8",
    }


def test_sglang_baseline_has_no_speculative_flag() -> None:
    assert not [flag for flag in rendered("sglang", "none").flags if "speculative" in flag]


@pytest.mark.parametrize("method", ["eagle", "eagle3", "standalone"])
def test_sglang_eagle_family_always_gets_all_three_numbers(method: str) -> None:
    for budget, topk, steps in ((8, 1, 7), (16, 4, 5), (32, 8, 5)):
        seen = flags(rendered("sglang", method, budget, topk))
        assert seen["--speculative-num-steps"] == str(steps)
        assert seen["--speculative-eagle-topk"] == str(topk)
        assert seen["--speculative-num-draft-tokens"] == str(budget)
        assert seen["--speculative-algorithm"] == method.upper()


def test_sglang_one_branch_means_steps_plus_one_so_two_requests_are_one_command() -> None:
    eight, sixteen = (rendered("sglang", "eagle", budget, 1, steps=5) for budget in (8, 16))
    assert eight == sixteen
    assert flags(eight)["--speculative-num-draft-tokens"] == "6"
    assert names_for(engine.load("sglang"), "eagle", 16, 1, steps=5)["verify_width"] == 6
    assert rendered("sglang", "eagle", 6, 1) == eight


def test_sglang_tree_budgets_stay_apart() -> None:
    assert rendered("sglang", "eagle", 8, 4, steps=5) != rendered("sglang", "eagle", 16, 4, steps=5)


@pytest.mark.parametrize(
    ("method", "budget", "topk", "settings", "reason"),
    [
        ("eagle", 1, 1, {}, "holds the root and no candidate"),
        ("ngram", 1, 1, {}, "holds the root and no candidate"),
        ("eagle", 22, 4, {"steps": 2}, "2 steps of top-k 4 make 20 candidates, fewer than the 21"),
        ("eagle3", 6, 4, {"steps": 1}, "1 steps of top-k 4 make 4 candidates, fewer than the 5"),
        ("eagle", 8, 1, {"steps": 0}, "at least one draft step"),
        ("eagle", 8, 4, {"attention_backend": "trtllm_mha"}, "verifies no tree"),
        ("standalone", 8, 4, {"page_size": 64, "attention_backend": "trtllm_mla"}, "flashinfer, fa3 and triton"),
        ("ngram", 8, 4, {"page_size": 16, "attention_backend": "triton"}, "flashinfer only"),
        ("standalone", 8, 1, {"attn_dp_size": 2}, "data-parallel attention"),
        ("ngram", 8, 1, {"pp_size": 2}, "pipeline parallelism"),
        ("dflash", 16, 4, {}, "chain"),
        ("dflash", 16, 1, {"speculative_draft_window_size": 8}, "draft window 8 is smaller than the block 16"),
    ],
)
def test_sglang_impossible_combinations_are_known_before_a_restart(
    method: str, budget: int, topk: int, settings: dict[str, Any], reason: str
) -> None:
    why = why_not("sglang", method, budget, topk, **settings)
    assert why is not None
    assert reason in why


@pytest.mark.parametrize(
    ("method", "budget", "topk", "settings"),
    [
        ("eagle", 21, 4, {"steps": 2}),
        ("eagle", 64, 4, {}),
        ("eagle", 8, 1, {"attention_backend": "trtllm_mha", "page_size": 64}),
        ("eagle", 8, 4, {"attention_backend": "fa3", "page_size": 16}),
        ("ngram", 8, 4, {"page_size": 16}),
        ("ngram", 8, 4, {"page_size": 16, "attention_backend": "flashinfer"}),
        ("eagle", 8, 1, {"pp_size": 2}),
        ("eagle", 8, 1, {"attn_dp_size": 2}),
    ],
)
def test_sglang_possible_combinations_are_let_through(
    method: str, budget: int, topk: int, settings: dict[str, Any]
) -> None:
    assert why_not("sglang", method, budget, topk, **settings) is None


def test_sglang_pins_the_limit_that_speculation_would_change_silently() -> None:
    profile = engine.load("sglang")
    assert names_for(profile, "none")["max_running_requests"] == 48
    assert names_for(profile, "none") | {"method": "ngram"} == names_for(profile, "ngram") | {
        "algorithm": "none",
        "budget": 8,
        "candidates": 0,
        "verify_width": 1,
    }
    assert flags(rendered("sglang", "ngram", max_running_requests=256))["--max-running-requests"] == "256"


def test_sglang_two_nodes_get_their_rank_from_the_inventory() -> None:
    profile = engine.load("sglang")
    names = names_for(profile, "none") | {"nnodes": 2, "node_rank": 1, "dist_init_addr": "10.0.0.1:20000"}
    seen = flags(engine.render(profile, "none", {}, names))
    assert seen["--nnodes"] == "2"
    assert seen["--node-rank"] == "1"
    assert seen["--dist-init-addr"] == "10.0.0.1:20000"
    assert "--nnodes" not in flags(rendered("sglang", "none"))


DDTREE = {
    "ddtree-budget": (
        {"--speculative-algorithm": "DDTREE", "--speculative-ddtree-budget": "16"},
        {"SGLANG_DDTREE_MAX_TOPK": "4"},
    ),
    "ddtree-cpu-build": ({"--speculative-algorithm": "DDTREE", "--speculative-ddtree-budget": "16"}, {}),
    "dflash-enable-ddtree": (
        {
            "--speculative-algorithm": "DFLASH",
            "--speculative-dflash-enable-ddtree": None,
            "--speculative-num-draft-tokens": "17",
        },
        {},
    ),
    "dflash-tree-verify": (
        {
            "--speculative-algorithm": "DFLASH",
            "--speculative-dflash-tree-verify": None,
            "--speculative-eagle-topk": "4",
            "--speculative-num-draft-tokens": "17",
        },
        {},
    ),
    "dflash-tree-width": (
        {"--speculative-algorithm": "DFLASH", "--speculative-dflash-tree-width": "4"},
        {"SGLANG_DFLASH_MAX_NUM_NODES": "17"},
    ),
    "dflash-tree-budget": (
        {
            "--speculative-algorithm": "DFLASH",
            "--speculative-dflash-tree-width": "4",
            "--speculative-dflash-tree-budget": "16",
        },
        {},
    ),
}


@pytest.mark.parametrize("name", DDTREE)
def test_the_host_help_decides_which_spelling_of_ddtree_is_used(name: str) -> None:
    profile = engine.load("sglang")
    variant = next(variant for variant in profile.variants if variant.name == name)
    host = help_flags("sglang-0.5.23.txt") | set(variant.when_flags)
    assert engine.chosen_variant(profile, "ddtree", host) == variant
    result = rendered("sglang", "ddtree", 16, 4, host, block_size=8)
    plain = flags(rendered("sglang", "none", block_size=8))
    tree = {flag: value for flag, value in flags(result).items() if flag not in plain}
    expected, environment = DDTREE[name]
    assert tree == {
        **expected,
        "--speculative-draft-model-path": "/models/drafter",
        "--speculative-dflash-block-size": "8",
    }
    assert result.environment == environment


def test_every_variant_has_its_expected_spelling_here() -> None:
    assert {variant.name for variant in engine.load("sglang").variants} == set(DDTREE)


def test_a_release_without_ddtree_is_told_apart_from_every_fork() -> None:
    stock = help_flags("sglang-0.5.23.txt")
    result = rendered("sglang", "ddtree", 16, 4, stock)
    assert engine.missing_flags(result, stock) == ["--speculative-ddtree-budget"]


@pytest.mark.parametrize("help_text", ["sglang-0.5.23.txt", "sglang-0.5.17-usage.txt"])
@pytest.mark.parametrize("method", ["none", "ngram", "eagle", "eagle3", "nextn", "standalone", "dflash"])
def test_stock_methods_render_for_the_oldest_and_the_newest_recorded_build(method: str, help_text: str) -> None:
    settings = {"cuda_graph_max_bs_decode": 64, "attention_backend": "triton", "mem_fraction_static": 0.3}
    assert engine.missing_flags(rendered("sglang", method, **settings), help_flags(help_text)) == []


def test_a_flag_that_one_build_lacks_is_seen_before_the_restart() -> None:
    result = rendered("sglang", "none", cuda_graph_max_bs=64)
    assert engine.missing_flags(result, help_flags("sglang-0.5.23.txt")) == ["--cuda-graph-max-bs"]
    assert engine.missing_flags(result, help_flags("sglang-0.5.17-usage.txt")) == []


@pytest.mark.parametrize("report", sorted(DATA.glob("*.server_info.json")), ids=lambda path: path.name)
@pytest.mark.parametrize("method", ["none", "ngram", "eagle", "standalone", "dflash"])
def test_the_recorded_report_has_a_key_for_every_flag_that_is_compared(method: str, report: Path) -> None:
    effective = recorded(report.name)
    keys = [flag.lstrip("-").replace("-", "_") for flag in rendered("sglang", method, steps=3).flags]
    assert [key for key in keys if key not in effective] == []


@pytest.mark.parametrize(("run", "method", "budget", "topk"), [("ngram", "ngram", 8, 4), ("none", "none", 0, 1)])
def test_a_recorded_command_line_is_what_the_profile_renders(run: str, method: str, budget: int, topk: int) -> None:
    argv = recorded(f"sglang-0.5.17-{run}.argv.json")
    assert fill(engine.load("sglang").commands[1], {"engine_python": "python3"}) == argv[:3]
    ours = flags(
        rendered(
            "sglang",
            method,
            budget,
            topk,
            attention_backend="triton",
            sampling_backend="pytorch",
            grammar_backend="none",
            mem_fraction_static=0.3,
            max_running_requests=64,
            cuda_graph_max_bs_decode=64,
            cuda_graph_backend_prefill="disabled",
        )
    )
    theirs = flags(engine.Rendered(arguments=argv[3:], environment={}, flags={}))
    pinned = {"--page-size", "--random-seed", "--decode-log-interval"}
    assert set(ours) - set(theirs) == pinned
    different = {"--model-path", "--port"}
    assert {key: ours[key] for key in theirs if key not in different} == {
        key: value for key, value in theirs.items() if key not in different
    }


@pytest.mark.parametrize(("run", "method", "budget", "topk"), [("ngram", "ngram", 8, 4), ("none", "none", 0, 1)])
def test_the_checks_of_the_profile_agree_with_the_recorded_report(
    run: str, method: str, budget: int, topk: int
) -> None:
    profile = engine.load("sglang")
    report = recorded(f"sglang-0.5.17-{run}.server_info.json")
    names = names_for(profile, method, budget, topk, max_running_requests=64)
    names |= {"model": report["model_path"], "port": report["port"]}
    compared = 0
    for check in profile.attest.checks:
        if evaluate(check.when, names):
            effective, expected = _at(report, check.select), fill(check.expect, names)
            assert effective == expected or (effective is None and expected == "none"), check.name
            compared += 1
    assert compared == (5 if method == "ngram" else 4)


def _at(data: Any, path: str) -> Any:
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def _first(data: Any, paths: list[str]) -> Any:
    for path in paths:
        try:
            return _at(data, path)
        except KeyError:
            continue
    return None


def test_sglang_acceptance_of_a_recorded_answer() -> None:
    profile = engine.load("sglang")
    assert profile.acceptance is not None
    answer = recorded("sglang-0.5.17-ngram.generate.json")
    found = {key: _first(answer, getattr(profile.request, key)) for key in ("output_tokens", "steps")}
    assert found["output_tokens"] / evaluate(profile.acceptance.steps, found) == pytest.approx(48 / 29)
    histogram = _first(answer, profile.request.histogram)
    assert sum(histogram) == _first(answer, profile.request.steps)
    assert sum(k * n for k, n in enumerate(histogram)) == _first(answer, profile.request.accepted_tokens)
    assert answer["meta_info"]["spec_accept_length"] == pytest.approx(48 / 29)


def _counters(text: str, profile: engine.Profile) -> dict[str, float | None]:
    assert profile.metrics is not None
    sums: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"([\w:]+)(?:\{.*\})? (\S+)$", line)
        if match:
            sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
    return {name: sums.get(counter) for name, counter in profile.metrics.counters.items()}


def test_sglang_acceptance_from_recorded_counters() -> None:
    profile = engine.load("sglang")
    assert profile.metrics is not None and profile.metrics.steps is not None
    before, after = (
        _counters((DATA / f"sglang-0.5.17-ngram.metrics_{when}.txt").read_text(), profile)
        for when in ("before", "after")
    )
    moved = {name: (after[name] or 0) - (before[name] or 0) for name in after}
    steps = evaluate(profile.metrics.steps, moved)
    assert moved["output_tokens"] / steps == pytest.approx((13464 - 8) / (6435 - 7))
    baseline = _counters((DATA / "sglang-0.5.17-none.metrics_after.txt").read_text(), profile)
    assert baseline["drafts"] is None


@pytest.mark.parametrize(
    ("version", "exits", "signals"),
    [("0.5.23", [0], []), ("0.5.24rc1", [0], []), ("0.5.17", [0], ["SIGKILL"]), (None, [0], ["SIGKILL"])],
)
def test_sglang_good_stop_by_version(version: str | None, exits: list[int], signals: list[str]) -> None:
    rule = engine.stop_rule(engine.load("sglang"), version)
    assert (rule.clean_exit, rule.clean_signal, rule.kill_mode) == (exits, signals, "mixed")


def test_sglang_dead_engine_is_seen_in_its_log() -> None:
    patterns = [re.compile(pattern) for pattern in engine.load("sglang").fatal_log]
    dead = [
        "0/1 [00:00<?, ?it/s][2026-11-29 20:59:21] Scheduler hit an exception: Traceback (most recent call last):",
        "[2026-11-29 21:03:08] Subprocess scheduler_0 (pid=4527) crashed with exit code -9. Triggering SIGQUIT",
        "[2026-11-29 21:03:08] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "[...] Received sigquit from a child process. It usually means the child failed.",
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31030): address already in use",
    ]
    alive = [
        "[2026-11-29 21:19:40] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        "[2026-11-29 21:18:05] The server is fired up and ready to roll!",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1",
    ]
    assert all(any(pattern.search(line) for pattern in patterns) for line in dead)
    assert not any(pattern.search(line) for pattern in patterns for line in alive)


# vLLM.


def test_vllm_speculation_is_one_json_argument() -> None:
    result = rendered("vllm", "ngram", 8, prompt_lookup_max=4, prompt_lookup_min=2)
    value = result.arguments[result.arguments.index("--speculative-config") + 1]
    assert json.loads(value) == {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    assert result.arguments[0] == "/models/target"
    assert not [flag for flag in result.flags if "lookup" in flag]


@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model", "dflash"])
def test_vllm_drafters(method: str) -> None:
    value = json.loads(flags(rendered("vllm", method, 4, draft_tensor_parallel_size=1))["--speculative-config"])
    assert value == {
        "method": method,
        "model": "/models/drafter",
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
    }


def test_vllm_baseline_and_self_drafting_methods() -> None:
    assert "--speculative-config" not in flags(rendered("vllm", "none"))
    assert json.loads(flags(rendered("vllm", "mtp", 2))["--speculative-config"]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    assert json.loads(flags(rendered("vllm", "suffix", 8, suffix_max_tree_depth=16))["--speculative-config"]) == {
        "method": "suffix",
        "num_speculative_tokens": 8,
        "suffix_decoding_max_tree_depth": 16,
    }


@pytest.mark.parametrize(
    ("method", "topk", "settings", "reason"),
    [
        ("ngram", 4, {}, "no draft tree"),
        ("suffix", 2, {}, "no draft tree"),
        ("ngram", 1, {"prompt_lookup_min": 6}, "prompt_lookup_min 6 is above prompt_lookup_max 5"),
        ("eagle", 1, {"draft_tensor_parallel_size": 2, "tensor_parallel_size": 8}, "1 or the target's, not 2"),
    ],
)
def test_vllm_impossible_combinations(method: str, topk: int, settings: dict[str, Any], reason: str) -> None:
    assert reason in (why_not("vllm", method, 8, topk, **settings) or "")


def test_vllm_acceptance_counts_undrafted_steps() -> None:
    profile = engine.load("vllm")
    assert profile.metrics is not None and profile.metrics.steps is not None
    moved = {"output_tokens": 1000, "accepted_tokens": 300, "drafts": 100}
    assert evaluate(profile.metrics.steps, moved) == 700


def test_vllm_dead_engine_is_seen_in_its_log_because_it_ends_with_status_0() -> None:
    patterns = [re.compile(pattern) for pattern in engine.load("vllm").fatal_log]
    assert any(pattern.search("(EngineCore pid=7) ERROR EngineCore failed to start.") for pattern in patterns)
    assert any(pattern.search("[shutdown] MPClient: engine core exited unexpectedly") for pattern in patterns)
    assert not any(pattern.search("[shutdown] API server: shutdown triggered") for pattern in patterns)


# llama.cpp.


def test_llamacpp_flag_by_flag() -> None:
    assert flags(rendered("llamacpp", "ngram-mod", 16)) == {
        "-lv": "4",
        "-np": "8",
        "-c": "16384",
        "-t": "1",
        "--spec-ngram-mod-n-match": "16",
        "--spec-ngram-mod-n-min": "1",
        "-m": "/models/target",
        "--alias": "specsweep",
        "--host": "127.0.0.1",
        "--port": "30000",
        "--metrics": None,
        "--slots": None,
        "--log-colors": "off",
        "--spec-type": "ngram-mod",
        "--spec-ngram-mod-n-max": "16",
    }


def test_llamacpp_budget_goes_to_the_flag_of_its_drafter() -> None:
    for method, flag in (
        ("ngram-mod", "--spec-ngram-mod-n-max"),
        ("ngram-simple", "--spec-ngram-simple-size-m"),
        ("draft-simple", "--spec-draft-n-max"),
        ("draft-eagle3", "--spec-draft-n-max"),
        ("draft-dflash", "--spec-draft-n-max"),
        ("draft-mtp", "--spec-draft-n-max"),
    ):
        seen = flags(rendered("llamacpp", method, 32))
        assert seen[flag] == "32"
        assert seen["--spec-type"] == method


def test_llamacpp_settings_that_would_never_draft_are_refused() -> None:
    assert "never drafts" in (why_not("llamacpp", "ngram-simple", 3) or "")
    assert "no tree" in (why_not("llamacpp", "ngram-mod", 8, 4) or "")
    assert "1024" in (why_not("llamacpp", "ngram-mod", 2048) or "")
