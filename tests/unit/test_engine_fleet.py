"""The fleet example: what inventory/fleet.example plans and renders, flag by flag."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from specsweep import engine, plan, variables
from specsweep.systemd import environment_file, quote

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "inventory" / "fleet.example"
FORK = engine.flags_in((engine.ENGINES / "help" / "sglang-0.5.23.txt").read_text()) | {"--speculative-ddtree-budget"}


def sweep(name: str) -> dict[str, Any]:
    return variables.normalise(yaml.safe_load((FLEET / f"{name}.sweep.yaml").read_text()))


def hosts(name: str) -> dict[str, dict[str, Any]]:
    """host -> its variables, those of the group included."""
    group = yaml.safe_load((FLEET / f"{name}.hosts.yml").read_text())["engine_hosts"]
    return {host: {**group["vars"], **own} for host, own in group["hosts"].items()}


def unit(
    given: dict[str, Any], host: dict[str, Any], item: plan.PlannedConfiguration, flags: set[str]
) -> tuple[str, engine.Rendered]:
    """The unit file of one configuration on one host, and what was rendered for it."""
    profile = engine.load(given["engine"])
    place = {
        "model": given["model"],
        "drafter": given["drafter"] or None,
        "address": "127.0.0.1",
        "port": host["serve_port"],
        "engine_python": host["engine_python"],
        "concurrency_max": max(given["concurrencies"]),
        "seed": given["seed"],
        **host.get("serve_names", {}),
    }
    names = engine.scope(
        profile, method=item.method, budget=item.budget, topk=item.topk, settings=item.settings, place=place
    )
    rendered = engine.render(profile, item.method, item.settings, names, flags)
    stop = engine.stop_rule(profile, "0.5.23")
    roles = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "roles" / "serve" / "templates"),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    shown = {
        "name": item.label,
        "argv": [quote(word) for word in [*host["engine_command"], *rendered.arguments]],
        "stop": {name: getattr(stop, name) for name in stop.__struct_fields__},
    }
    defaults = yaml.safe_load((ROOT / "roles" / "serve" / "defaults" / "main.yml").read_text())
    text = roles.get_template("engine.service.j2").render(
        {**defaults, **host, "serve_rendered": shown, "serve_home": "/var/lib/specsweep"}
    )
    return text, rendered


def command_of(text: str) -> list[str]:
    start = text.split("ExecStart=", 1)[1]
    lines = []
    for line in start.splitlines():
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            break
    return shlex.split(" ".join(lines))


def configuration(planned: plan.Plan, label: str) -> plan.PlannedConfiguration:
    return next(item for item in planned.configurations if item.label == label)


def test_the_grid_of_the_story() -> None:
    planned = plan.make(sweep("kimi"))
    asked = {(item.method, item.budget, item.topk, item.max_running) for item in planned.configurations}
    trees = {("ddtree", b, k, m) for b in (8, 16, 32, 64) for k in (4, 8) for m in (128, 256)}
    assert asked == trees | {("none", 0, 1, 128), ("none", 0, 1, 256)}
    assert [point.concurrency for point in planned.load_points] == [1, 32, 64, 128]
    assert planned.skipped == []
    product = {
        (item.budget, item.max_running): item.verify_width * (item.max_running or 0) for item in planned.configurations
    }
    assert (product[8, 128], product[16, 128], product[8, 256]) == (1152, 2176, 2304)


def test_the_unit_of_the_story_flag_by_flag() -> None:
    given, host = sweep("kimi"), hosts("kimi")["gpu-01"]
    item = configuration(plan.make(given), "ddtree b16 k4 max_running_requests=128")
    text, rendered = unit(given, host, item, FORK)
    words = command_of(text)
    assert words[:3] == ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
    pairs = []
    for word in words[3:]:
        if word.startswith("--"):
            pairs.append([word])
        else:
            pairs[-1].append(word)
    assert sorted(pairs) == sorted(
        [
            ["--model-path", "/models/Kimi-K2.6"],
            ["--host", "127.0.0.1"],
            ["--port", "30000"],
            ["--enable-metrics"],
            ["--tp-size", "8"],
            ["--enable-nccl-nvls"],
            ["--trust-remote-code"],
            ["--mem-fraction-static", "0.85"],
            ["--attention-backend", "flashinfer"],
            ["--page-size", "1"],
            ["--min-free-slots-delay", "1"],
            ["--max-running-requests", "128"],
            ["--random-seed", "1"],
            ["--decode-log-interval", "40"],
            ["--speculative-algorithm", "DDTREE"],
            ["--speculative-draft-model-path", "/models/Kimi-K2.6-DFlash"],
            ["--speculative-ddtree-budget", "16"],
            ["--speculative-dflash-block-size", "8"],
        ]
    )
    assert engine.missing_flags(rendered, FORK) == []
    assert rendered.environment == {"SGLANG_DDTREE_MAX_TOPK": "4"}
    assert "SGLANG_DDTREE_MAX_TOPK" in environment_file({**host["engine_environment"], **rendered.environment})
    for line in ("Type=exec", "KillMode=mixed", "TimeoutStopSec=120", "Restart=no", "User=sglang"):
        assert line in text.splitlines()
    assert "SuccessExitStatus" not in text


def test_the_baseline_of_the_story_differs_in_speculation_only() -> None:
    given, host = sweep("kimi"), hosts("kimi")["gpu-01"]
    planned = plan.make(given)
    tree, none = (
        set(unit(given, host, configuration(planned, label), FORK)[1].flags)
        for label in ("ddtree b8 k4 max_running_requests=128", "none max_running_requests=128")
    )
    assert none < tree
    assert all("speculative" in flag for flag in tree - none)


def test_the_same_sweep_on_a_release_without_ddtree_is_refused_by_its_flags() -> None:
    given, host = sweep("kimi"), hosts("kimi")["gpu-01"]
    stock = FORK - {"--speculative-ddtree-budget"}
    item = configuration(plan.make(given), "ddtree b16 k4 max_running_requests=128")
    rendered = unit(given, host, item, stock)[1]
    assert "--speculative-ddtree-budget" in engine.missing_flags(rendered, stock)


def test_two_nodes_get_one_command_line_that_differs_in_the_rank() -> None:
    given, both = sweep("two-node"), hosts("two-node")
    item = configuration(plan.make(given), "ngram b16 k4")
    rank0, rank1 = (unit(given, host, item, FORK)[1] for host in both.values())
    assert rank0.flags["--nnodes"] == 2
    assert rank0.flags["--dist-init-addr"] == "192.0.2.11:20000"
    different = {flag for flag in rank0.flags if rank0.flags[flag] != rank1.flags[flag]}
    assert different == {"--node-rank"}
    assert (rank0.flags["--node-rank"], rank1.flags["--node-rank"]) == (0, 1)
    assert engine.missing_flags(rank0, FORK) == []


@pytest.mark.parametrize("name", ["kimi", "two-node"])
def test_the_example_inventory_names_only_variables_that_the_roles_know(name: str) -> None:
    known = {"ansible_host", "ansible_user", "ansible_become", "serve_names", "serve_replaces", "engine_python"}
    for role in ("serve", "engine"):
        known |= set(yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text()))
    for host in hosts(name).values():
        assert set(host) <= known
