"""Restart, wait until ready and attest; then load, watching the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from specsweep import engine as engines
from specsweep import outcome, prompts, record
from specsweep.controller import runfolder
from specsweep.controller.hosting import LEASE_S
from specsweep.controller.runfolder import RunFolder
from specsweep.controller.step import Step, StepFailed
from specsweep.expression import evaluate, fill
from specsweep.plan import CROSSCHECK

#: Stands for the prompt in a body's template; the agent puts the prompt there (generate.PLACEHOLDER).
PLACEHOLDER = "\0prompt\0"
#: Begins the id of a load point that the native tool of a cross-check measures.
TOOL_POINT = "tool-"
#: Length of the generation that proves readiness: short, and long enough that a drafter drafts.
PROOF_TOKENS = 8


def body(
    profile: engines.Profile, names: dict[str, Any], sweep: record.Sweep, tokens: int, exact: bool
) -> dict[str, Any]:
    """Body of a request with everything filled but the prompt."""
    scope = {
        **names,
        "prompt": PLACEHOLDER,
        "max_tokens": tokens,
        "temperature": sweep.variables["temperature"],
        "seed": sweep.variables["seed"],
    }
    template = {**profile.request.body}
    if exact:
        template = _merged(template, profile.request.exact)
    return dict(fill(template, scope))


def _merged(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def attest_rules(profile: engines.Profile, names: dict[str, Any]) -> dict[str, Any]:
    """The profile's checks, filled for one configuration."""
    rules: dict[str, Any] = msgspec.to_builtins(profile.attest)
    checks = []
    for check in profile.attest.checks:
        if not evaluate(check.when, names):
            continue
        filled = msgspec.to_builtins(check) | {"expect": fill(check.expect, names)}
        if check.select == "positions":
            if profile.metrics is None or profile.metrics.accepted_per_position is None:
                continue
            filled["metric"] = msgspec.to_builtins(profile.metrics.accepted_per_position)
        checks.append(filled)
    rules["checks"] = checks
    return rules


class ReadyStep(Step):
    """Restart, wait for a generation of our own process, attest."""

    needs = ("run", "service", "home")
    takes = ("headers", "restart", "reconnect_timeout_s")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        run = RunFolder(arguments["run"])
        state, configuration = run.state(), run.configuration()
        sweep = record.read(run.sweep_folder / "sweep.json", record.Sweep)
        profile = engines.load(sweep.variables["engine"])
        timeout_s = sweep.variables["ready_timeout_s"] or profile.ready.timeout_s
        try:
            answer = self.call(
                "specsweep_ready",
                {
                    "home": arguments["home"],
                    "sweep_id": configuration.sweep_id,
                    "lease_s": LEASE_S + timeout_s,
                    "service": arguments["service"],
                    "run": state["remote"],
                    "url": state["url"],
                    "headers": arguments.get("headers") or {},
                    "ready": msgspec.to_builtins(profile.ready),
                    "dialect": msgspec.to_builtins(profile.request),
                    "body": body(profile, state["names"], sweep, PROOF_TOKENS, exact=True),
                    "timeout_s": timeout_s,
                    "attest": attest_rules(profile, state["names"]),
                    "wanted": {
                        "unit_text": state["unit_text"],
                        "argv": state["argv"],
                        "environment": state["environment"],
                        "flags": state["flags"],
                        "written_unix_s": state["written_unix_s"],
                    },
                    "restart": arguments.get("restart", True),
                },
            )
        except StepFailed as failure:
            self._keep(run, configuration, failure.result)
            told = {key: failure.result.get(key) for key in ("outcome", "properties", "detected_unix_s")}
            run.note(failed={"at": "ready", "step": failure.result.get("step"), "reason": str(failure), **told})
            raise StepFailed(
                str(failure), step=failure.result.get("step"), lost=bool(failure.result.get("lost"))
            ) from None
        self._keep(run, configuration, answer)
        off = outcome.swept_differences(configuration.attestation, swept_names(profile, configuration, sweep))
        if off:
            reason = "; ".join(off)
            run.note(failed={"at": "ready", "step": "attest", "outcome": "adjusted", "reason": reason})
            raise StepFailed(f"not applied: {reason}", step="attest")
        return {
            "changed": True,
            "ready_s": answer["ready_s"],
            "attestation": answer["attestation"]["verdict"],
        }

    @staticmethod
    def _keep(run: RunFolder, configuration: record.Configuration, answer: dict[str, Any]) -> None:
        if "timeline" not in answer:
            run.note(invocation_id=answer.get("invocation_id", ""), properties=answer.get("properties", {}))
            return
        run.add_phases(answer["phases"])
        run.note(
            invocation_id=answer["invocation_id"],
            main_pid=answer["main_pid"],
            restarted_unix_s=answer["restarted_unix_s"],
            drafted_before=(answer.get("generated") or {}).get("drafted_tokens"),
            properties=answer["properties"],
        )
        configuration.ready_s = answer["ready_s"]
        configuration.ready_timeline = msgspec.convert(answer["timeline"], list[record.ReadyEvent])
        configuration.attestation = msgspec.convert(answer["attestation"], record.Attestation)
        record.write(run.path / "configuration.json", configuration)


def swept_names(profile: engines.Profile, configuration: record.Configuration, sweep: record.Sweep) -> dict[str, Any]:
    """Names under which an engine reports what this sweep is about: the method's own flags and the axes."""
    settings = {*sweep.variables["axes"], *(name for group in sweep.variables["linked"] for name in group)}
    flags = {*profile.methods[configuration.method].arguments}
    flags |= {flag for name in settings if (flag := engines.flag_of(profile, name))}
    return dict.fromkeys([*(flag.lstrip("-").replace("-", "_") for flag in flags), *settings])


class LoadStep(Step):
    """Load every load point of the configuration in one call; a lost connection only interrupts the watching."""

    needs = ("run", "service", "home")
    takes = ("headers", "python", "tool_command", "reconnect_timeout_s")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        run = RunFolder(arguments["run"])
        state, configuration = run.state(), run.configuration()
        sweep = record.read(run.sweep_folder / "sweep.json", record.Sweep)
        host = record.read(run.path.parents[1] / "host.json", record.Host)
        profile = engines.load(sweep.variables["engine"])
        try:
            job = load_job(sweep, configuration, profile, state, arguments.get("headers") or {})
        except (StepFailed, ValueError) as error:
            run.note(failed={"at": "load", "reason": str(error)})
            raise
        if job["tool"] and arguments.get("tool_command"):
            job["tool"]["commands"] = [list(map(str, arguments["tool_command"]))]
        try:
            answer = self.call(
                "specsweep_load",
                {
                    "home": arguments["home"],
                    "sweep_id": configuration.sweep_id,
                    "lease_s": LEASE_S,
                    "service": arguments["service"],
                    "run": state["remote"],
                    "python": arguments.get("python") or host.facts["engine_python"],
                    "main_pid": state["main_pid"],
                    "job": job,
                },
                tries_s=float(arguments.get("reconnect_timeout_s") or 0),
            )
        except StepFailed as failure:
            told = failure.result
            run.add_phases(told.get("phases", []))
            run.note(
                failed={
                    "at": "load",
                    "step": told.get("step"),
                    "outcome": told.get("state"),
                    "reason": str(failure),
                    "reached": told.get("reached"),
                    "detected_unix_s": told.get("detected_unix_s"),
                    "properties": told.get("properties", {}),
                }
            )
            raise StepFailed(str(failure), step=told.get("step"), lost=bool(told.get("lost"))) from None
        run.add_phases(answer["phases"])
        run.note(properties_after=answer["properties"])
        return {"changed": True, "points": list(answer["points"])}


def load_job(
    sweep: record.Sweep,
    configuration: record.Configuration,
    profile: engines.Profile,
    state: dict[str, Any],
    headers: dict[str, str],
) -> dict[str, Any]:
    """The load client's job: every load point of this configuration with its own slice of the prompts."""
    plan = runfolder.load_plan(sweep)
    prompt_set = prompts.load(sweep.variables["prompts"])
    if prompt_set.sha256 != plan.prompts_sha256:
        raise StepFailed(f"prompts: {prompt_set.path} changed since the plan was made; start the sweep again")
    wanted = {Path(name).stem for name in configuration.cells}

    def items(positions: list[int]) -> list[dict[str, str]]:
        chosen = (prompt_set.prompts[position] for position in positions)
        return [{"id": prompt.id, "category": prompt.category, "prompt": prompt.text} for prompt in chosen]

    exact = sweep.variables["output_mode"] == "exact"
    tokens = sweep.variables["output_tokens"]
    driver = sweep.variables.get("load_driver", "specsweep")
    tool = engines.native_tool(profile, plan.load_tool) if plan.load_tool else None
    if tool and headers:
        raise StepFailed(f"load_headers: {tool.name} would show them in the process list: measure without it or them")
    points: list[dict[str, Any]] = []
    for point in plan.load_points:
        if point.id not in wanted:
            continue
        ours = (point.id, items(point.warmup_prompts), items(point.load_prompts))
        if driver != "native":
            points.append({"id": ours[0], "concurrency": point.concurrency, "warmup": ours[1], "load": ours[2]})
        if tool:
            if driver == CROSSCHECK:
                ours = (TOOL_POINT + point.id, items(point.tool_warmup_prompts), items(point.tool_load_prompts))
            native = native_part(tool, state, sweep, ours[0], point.concurrency, ours[2])
            # The client sends the warm-up only; the others it notes as sent.
            common = {"id": ours[0], "concurrency": point.concurrency, "warmup": ours[1], "load": ours[2]}
            points.append({**common, "native": native})
    return {
        "sweep_id": sweep.sweep_id,
        "lease_s": LEASE_S,
        "url": state["url"],
        "headers": headers,
        "dialect": msgspec.to_builtins(profile.request),
        "body": body(profile, state["names"], sweep, tokens, exact),
        "max_tokens": tokens,
        "exact": exact,
        "speculative": configuration.method != "none",
        "drafted_before": state.get("drafted_before"),
        "metrics": msgspec.to_builtins(profile.metrics) if profile.metrics else None,
        "flush": msgspec.to_builtins(profile.flush) if profile.flush else None,
        "request_timeout_s": sweep.variables["request_timeout_s"],
        "point_timeout_s": sweep.variables["cell_timeout_s"],
        "points": points,
        "tool": native_rules(tool, state["names"]) if tool else None,
    }


def native_rules(tool: engines.NativeTool, names: dict[str, Any]) -> dict[str, Any]:
    """How the load client finds the tool on the host and reads what it leaves."""
    commands = [[str(fill(part, names)) for part in command] for command in tool.commands]
    flags = [flag for flag in tool.arguments if flag.startswith("--")]
    return {"name": tool.name, "form": tool.form, "commands": commands, "help": tool.help, "flags": flags}


def native_part(
    tool: engines.NativeTool,
    state: dict[str, Any],
    sweep: record.Sweep,
    point_id: str,
    concurrency: int,
    items: list[dict[str, str]],
) -> dict[str, Any]:
    """One load point for a native tool: its arguments, its prompt file, and where its result will be."""
    folder = f"{state['remote']}/evidence/{point_id}"
    names = {
        **state["names"],
        "url": state["url"],
        "concurrency": concurrency,
        "requests": len(items),
        "exact": sweep.variables["output_mode"] == "exact",
        "output_tokens": sweep.variables["output_tokens"],
        "temperature": sweep.variables["temperature"],
        "seed": sweep.variables["seed"],
        "folder": folder,
        "prompts_file": f"{state['remote']}/tool/{point_id}.jsonl",
        "result_file": f"{folder}/{tool.result}",
    }
    return {
        "arguments": engines.native_arguments(tool, names),
        "prompts": [fill(tool.prompt, {**names, "prompt": item["prompt"]}) for item in items],
        "prompts_file": names["prompts_file"],
        "result_file": names["result_file"],
        "output_tokens": names["output_tokens"],
        "exact": names["exact"],
    }
