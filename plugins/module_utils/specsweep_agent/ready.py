"""Wait on the host until our own process generates, watching unit state and endpoint together.

Ready means: a process of our unit owns the port, and a short generation came back.  The wait ends with its
reason the moment the unit fails; a banner in the log is never used as proof.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable
from urllib.parse import urlsplit

from . import generate, procfs
from .service import how_it_ended

UNIT_EVERY_S = 0.25
POLL_S = 0.05
#: Another process that answers on our port this long, while ours lives, is taken for what is measured.
FOREIGN_S = 10.0


class Endpoint(threading.Thread):
    """Asks the endpoint until it generates; notes every change on the time line."""

    def __init__(
        self,
        url: str,
        ready: dict[str, Any],
        dialect: dict[str, Any],
        body: dict[str, Any],
        headers: dict[str, str],
        pids: Callable[[], Any],
        started: float,
    ) -> None:
        super().__init__(daemon=True)
        self.url, self.ready, self.dialect, self.body, self.headers = url, ready, dialect, body, headers
        self.port = urlsplit(url).port or 80
        self.unit_pids = pids
        self.started = started
        self.timeline: list[dict[str, Any]] = []
        self.generated: dict[str, Any] | None = None
        self.foreign: int | None = None
        self.foreign_since: float | None = None
        self.over = threading.Event()

    def note(self, event: str, detail: str = "") -> None:
        if not self.timeline or (self.timeline[-1]["event"], self.timeline[-1]["detail"]) != (event, detail):
            self.timeline.append({"at_s": round(time.monotonic() - self.started, 3), "event": event, "detail": detail})

    def run(self) -> None:
        while not self.over.is_set():
            if self._once():
                return
            self.over.wait(POLL_S)

    def _once(self) -> bool:
        try:
            status, _ = generate.get(self.url + self.ready["alive"], 5.0, self.headers)
        except OSError as error:
            timed_out = "timed out" in str(error)
            self.note("timed out" if timed_out else "refused")
            if not timed_out:
                # Whoever held the port before is gone, or speaks no HTTP: not the one that would be measured.
                self.foreign = self.foreign_since = None
            return False
        # 401 is an answer of a living server; only the generation decides.
        if status not in (200, 401, 403, 404):
            self.note("http %d" % status)
            return False
        self.note("http %d" % status)
        if not self._ours():
            return False
        try:
            generated = generate.generate(
                self.url, self.dialect, self.body, self.ready["generation_timeout_s"], self.headers
            )
        except OSError as error:
            self.note("generation failed", str(error)[:200])
            return False
        except generate.Refused as error:
            self.note("generation refused", str(error)[:200])
            return False
        if not self._ours():
            return False
        self.note("generated", generated["text"].strip()[:80])
        # Last: the other thread takes this for readiness as soon as it is there.
        self.generated = generated
        return True

    def _ours(self) -> bool:
        """Whether a process of our unit listens on the port; where /proc cannot tell, give it the benefit."""
        if not procfs.available():
            return True
        if procfs.port_owner(self.port, self.unit_pids()) is not None:
            self.foreign = self.foreign_since = None
            return True
        owner = procfs.port_owner(self.port)
        self.note("port is not ours", f"held by pid {owner}" if owner else "held by a process we may not look into")
        self.foreign = owner
        self.foreign_since = self.foreign_since or time.monotonic()
        return False


def wait(
    service: Any,
    url: str,
    ready: dict[str, Any],
    dialect: dict[str, Any],
    body: dict[str, Any],
    headers: dict[str, str],
    timeout_s: float,
    started: float,
) -> dict[str, Any]:
    """Wait for readiness.

    Returns outcome (ready, failed, wrong_process, timeout), reason, ready_s, timeline, properties and what was
    generated.  `started` is the monotonic time of the restart.
    """
    endpoint = Endpoint(url, ready, dialect, body, headers, service.pids, started)
    endpoint.start()
    properties = service.properties()
    main_pid = int(properties.get("MainPID") or 0)
    next_look = 0.0
    outcome, reason = "", ""
    try:
        while not outcome:
            now = time.monotonic()
            foreign_since = endpoint.foreign_since  # the other thread may forget it at any moment
            gone = bool(main_pid) and not procfs.alive(main_pid)
            if gone or now >= next_look:
                properties = service.properties()
                main_pid = int(properties.get("MainPID") or 0) or main_pid
                next_look = now + UNIT_EVERY_S
                state = properties.get("ActiveState")
                if state in ("failed", "inactive") or (gone and state != "active"):
                    outcome, reason = "failed", how_it_ended(properties)
                    endpoint.note("unit " + str(state), reason)
                    break
                if int(properties.get("NRestarts") or 0) > 0:
                    outcome, reason = "failed", "the service restarted by itself while starting"
                    break
            if endpoint.generated is not None:
                outcome = "ready"
            elif foreign_since is not None and now - foreign_since > FOREIGN_S:
                outcome = "wrong_process"
                reason = "another process answers on port %d: %s" % (endpoint.port, describe(endpoint.foreign))
            elif now - started > timeout_s:
                outcome = "timeout"
                last = endpoint.timeline[-1]["event"] if endpoint.timeline else "nothing"
                reason = f"not ready within {timeout_s:g} s (last seen: {last})"
                endpoint.note("timeout")
            else:
                endpoint.join(POLL_S / 2)
    finally:
        endpoint.over.set()
    return {
        "outcome": outcome,
        "reason": reason,
        "ready_s": round(time.monotonic() - started, 3) if outcome == "ready" else None,
        "timeline": endpoint.timeline,
        "properties": properties,
        "generated": endpoint.generated,
    }


def describe(pid: int | None) -> str:
    """A process in a few words."""
    if pid is None:
        return "a process of another user"
    unit = procfs.unit_of(pid)
    line = " ".join(procfs.command_line(pid) or ["?"])[:160]
    return "pid %d%s: %s" % (pid, " of " + unit if unit else "", line)
