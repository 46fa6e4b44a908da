"""Output of a sweep for people: one line a step that matters, one line a failure.  -v adds Ansible's own."""

from __future__ import annotations

from ansible.plugins.callback.default import CallbackModule as Default

DOCUMENTATION = r"""
name: specsweep
type: stdout
short_description: One line a configuration
description: Prints the plan, one line when a configuration is ready, one when it is measured, one a failure.
extends_documentation_fragment: [default_callback]
"""


class CallbackModule(Default):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "specsweep"

    @property
    def _loud(self) -> bool:
        return self._display.verbosity > 0

    def _say(self, text: str, color: str | None = None) -> None:
        self._display.display(text, color=color)

    # what Ansible would print

    def v2_playbook_on_play_start(self, play) -> None:
        super().v2_playbook_on_play_start(play) if self._loud else self._keep_play(play)

    def _keep_play(self, play) -> None:
        self._play = play

    def v2_playbook_on_task_start(self, task, is_conditional) -> None:
        if self._loud:
            super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_include(self, included_file) -> None:
        if self._loud:
            super().v2_playbook_on_include(included_file)

    def v2_runner_on_skipped(self, result) -> None:
        if self._loud:
            super().v2_runner_on_skipped(result)

    def v2_runner_item_on_ok(self, result) -> None:
        if self._loud:
            super().v2_runner_item_on_ok(result)

    def v2_runner_item_on_failed(self, result) -> None:
        if self._loud:
            super().v2_runner_item_on_failed(result)

    def v2_runner_item_on_skipped(self, result) -> None:
        if self._loud:
            super().v2_runner_item_on_skipped(result)

    # what a sweep says

    def v2_runner_on_ok(self, result) -> None:
        if self._loud:
            super().v2_runner_on_ok(result)
        action = result.task.action.rpartition(".")[2]
        told = getattr(self, f"_told_by_{action}", None)
        if told:
            told(result.host.get_name(), result.result)

    def _told_by_specsweep_plan(self, host, answer) -> None:
        self._say(answer["text"])
        if answer.get("replay"):
            self._say("replay: a rehearsal from recordings, not a measurement", color="yellow")
        if answer.get("sweep_folder"):
            self._say(f"results: {answer['sweep_folder']}")

    def _told_by_specsweep_engine(self, host, answer) -> None:
        self._say(f"[{host}] engine {' '.join(answer['command'])}, version {answer['version'] or 'unknown'}")

    def _told_by_specsweep_provision(self, host, answer) -> None:
        if answer.get("installed"):
            self._say(f"[{host}] installed {', '.join(answer['installed'])}")

    def _told_by_specsweep_render(self, host, answer) -> None:
        self._say(f"[{host}] {answer['restart']} {answer['name']}")

    def _told_by_specsweep_ready(self, host, answer) -> None:
        self._say(f"[{host}]   ready in {answer['ready_s']:.1f} s, {answer['attestation']}")

    def _told_by_specsweep_collect(self, host, answer) -> None:
        for cell in answer["cells"]:
            who = "" if cell["source"] == "specsweep" else f", {cell['source']}"
            if cell["status"] == "ok":
                al = f", acceptance length {cell['al']:.2f}" if cell["al"] else ""
                speed = f"{cell['system_tok_s']:.1f} tok/s{al}"
                self._say(f"[{host}]   concurrency {cell['concurrency']}{who}: {speed}", "green")
            else:
                reason = cell["reason"].replace("\n", " ")[:300]
                point = f"concurrency {cell['concurrency']}{who}"
                self._say(f"[{host}]   {point}: {cell['status']}: {reason}", "red")

    def _told_by_specsweep_crosscheck(self, host, answer) -> None:
        for line in answer["text"].splitlines():
            self._say(f"[{host}] {line}")

    def _told_by_specsweep_give_up(self, host, answer) -> None:
        self._say(f"[{host}] cannot be used, {answer['cells']} cells recorded as failed: {answer['reason']}", "red")

    def _told_by_specsweep_restore(self, host, answer) -> None:
        for problem in answer.get("problems") or []:
            self._say(f"[{host}] given back, but: {problem}", "red")
        if answer.get("later"):
            self._say(f"[{host}] its guard gives it back within minutes: {answer['reason']}", "yellow")
        started = ", ".join(answer.get("started") or [])
        if started:
            self._say(f"[{host}] given back, running again: {started}")

    def _told_by_command(self, host, answer) -> None:
        if answer.get("stdout") and not self._loud:
            self._say(answer["stdout"])

    def _told_by_specsweep_finish(self, host, answer) -> None:
        self._say(f"cells: {answer['summary']}")

    def v2_runner_on_failed(self, result, ignore_errors=False) -> None:
        if self._loud:
            super().v2_runner_on_failed(result, ignore_errors)
            return
        answer = result.result
        action = result.task.action.rpartition(".")[2]
        message = str(answer.get("msg") or answer.get("stderr") or "it failed without a message").strip()
        if action.startswith("specsweep_") and action not in ("specsweep_plan", "specsweep_finish"):
            # `collect` or `give_up` tell it once more with status and class; here only which step it was.
            self._say(f"[{result.host.get_name()}]   {action.removeprefix('specsweep_')} failed: {message}", "yellow")
        elif action == "command" and answer.get("stderr"):
            self._say(f"{result.task.get_name()}: {str(answer['stderr']).strip().splitlines()[-1]}", "red")
        else:
            self._say(f"error: {message}", "red")

    def v2_runner_on_unreachable(self, result) -> None:
        if self._loud:
            super().v2_runner_on_unreachable(result)
            return
        message = " ".join(str(result.result.get("msg", "")).split())
        self._say(f"[{result.host.get_name()}] unreachable: {message}", "red")

    def v2_playbook_on_stats(self, stats) -> None:
        if self._loud:
            super().v2_playbook_on_stats(stats)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        self._say("error: no host matches; look at -i and --limit", "red")
