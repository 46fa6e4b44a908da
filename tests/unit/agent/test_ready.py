"""Waiting for readiness: a fake service, a real server, and the time line between them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from specsweep_agent import generate, procfs, ready
from specsweep_agent.generate import Refused

from tests.unit.agent.stand_in import DIALECT, Exchange, StandIn, answer, event

READY = {"alive": "/health", "generation_timeout_s": 10.0}
pytestmark = pytest.mark.skipif(not procfs.available(), reason="needs /proc")


class Service:
    """A made-up unit whose main process is the one given."""

    def __init__(self, pid: int | None = None) -> None:
        self.main = os.getpid() if pid is None else pid
        self.found = {"ActiveState": "active", "MainPID": str(self.main), "NRestarts": "0", "Result": "success"}

    def properties(self) -> dict[str, str]:
        return dict(self.found)

    def pids(self) -> set[int]:
        return {self.main}


def wait(service: Service, url: str, timeout_s: float = 20.0) -> dict[str, Any]:
    started = time.monotonic()
    found = ready.wait(service, url, READY, DIALECT, {"prompt": "x"}, {}, timeout_s, started)
    found["took_s"] = time.monotonic() - started
    return found


def seen(found: dict[str, Any]) -> list[str]:
    return [entry["event"] for entry in found["timeline"]]


@contextmanager
def another_process(source: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


PAUSE = "import signal; signal.pause()"
FOREIGN = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def test_from_refused_to_the_first_generation(stand_in: StandIn) -> None:
    asked = [0]
    loading = threading.Event()

    def get(exchange: Exchange) -> None:
        asked[0] += 1
        loading.set()
        exchange.status(503 if asked[0] < 4 else 200)

    stand_in.get = get

    def later() -> None:
        # Refused first: the port is bound, nobody listens.
        time.sleep(0.2)
        stand_in.listen()

    threading.Thread(target=later).start()
    found = wait(Service(), stand_in.url)
    assert found["outcome"] == "ready"
    assert seen(found) == ["refused", "http 503", "http 200", "generated"]
    assert found["generated"]["text"] == "w w w w "
    assert (found["generated"]["output_tokens"], found["generated"]["drafted_tokens"]) == (4, 2)
    times = [entry["at_s"] for entry in found["timeline"]]
    assert times == sorted(times)
    assert 0 <= found["ready_s"] - times[-1] < 0.5


@pytest.mark.parametrize("state", ["failed", "inactive"])
def test_a_unit_that_fails_ends_the_wait_at_once(stand_in: StandIn, state: str) -> None:
    service = Service()
    stand_in.get = lambda exchange: exchange.status(503)
    stand_in.listen()
    at = [0.0]

    def fail() -> None:
        at[0] = time.monotonic()
        service.found.update(ActiveState=state, Result="exit-code", ExecMainCode="1", ExecMainStatus="3")

    threading.Timer(0.3, fail).start()
    found = wait(service, stand_in.url)
    assert time.monotonic() - at[0] < 0.5
    assert found["outcome"] == "failed"
    assert found["reason"] == f"the unit is {state} (exit-code): its main process exited with status 3"
    assert found["ready_s"] is None
    assert seen(found)[-1] == f"unit {state}"


def test_a_main_process_that_is_gone_is_seen_before_the_next_look_at_the_unit(stand_in: StandIn) -> None:
    stand_in.get = lambda exchange: exchange.status(503)
    stand_in.listen()
    with another_process(PAUSE) as process:
        service = Service(process.pid)
        real = service.properties

        def properties() -> dict[str, str]:
            if not procfs.alive(process.pid):
                service.found.update(ActiveState="failed", Result="signal", ExecMainCode="2", ExecMainStatus="9")
            return real()

        service.properties = properties  # type: ignore[method-assign]
        threading.Timer(0.2, process.kill).start()
        found = wait(service, stand_in.url)
    assert found["outcome"] == "failed"
    assert "signal 9 (SIGKILL)" in found["reason"]
    assert found["took_s"] < 0.2 + 0.5


def test_a_unit_that_starts_again_by_itself_is_a_failure(stand_in: StandIn) -> None:
    service = Service()
    service.found["NRestarts"] = "1"
    found = wait(service, stand_in.url)
    assert (found["outcome"], found["reason"]) == ("failed", "the service restarted by itself while starting")


def test_a_time_limit_says_what_was_last_seen(stand_in: StandIn) -> None:
    found = wait(Service(), stand_in.url, timeout_s=0.3)
    assert found["outcome"] == "timeout"
    assert found["reason"] == "not ready within 0.3 s (last seen: refused)"
    assert seen(found) == ["refused", "timeout"]
    assert found["took_s"] < 1.5


@pytest.mark.parametrize(
    ("post", "last"),
    [
        (lambda exchange, _: exchange.status(500, b"no model"), "generation refused"),
        (lambda exchange, _: exchange.stream([event(error="CUDA error")]), "generation refused"),
        (lambda exchange, _: exchange.stream([]), "generation refused"),
        (lambda exchange, _: exchange.stream(answer()[:1], whole=False), "generation refused"),
        (lambda exchange, _: exchange.hang_up(), "generation failed"),
        (lambda exchange, _: exchange.stream([b"data: {\n"]), "generation refused"),
        (lambda exchange, _: exchange.stream([event(text=7)]), "generation refused"),
    ],
)
def test_alive_is_not_ready(stand_in: StandIn, post: Callable[[Exchange, int], None], last: str) -> None:
    stand_in.post = post
    stand_in.listen()
    found = wait(Service(), stand_in.url, timeout_s=0.4)
    assert (found["outcome"], found["generated"]) == ("timeout", None)
    assert last in seen(found)
    assert "generated" not in seen(found)


def test_a_401_is_an_answer_of_a_living_server(stand_in: StandIn) -> None:
    stand_in.get = lambda exchange: exchange.status(401)
    stand_in.listen()
    assert wait(Service(), stand_in.url)["outcome"] == "ready"


def test_another_process_on_the_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "FOREIGN_S", 0.2)
    with another_process(FOREIGN) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = wait(Service(), f"http://127.0.0.1:{port}")
    assert found["outcome"] == "wrong_process"
    assert found["reason"].startswith(f"another process answers on port {port}: pid {process.pid}")
    assert "port is not ours" in seen(found)
    assert found["generated"] is None


def test_another_process_that_goes_away_is_forgotten(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lingered on the port for a moment must not void a start that takes longer than its stay."""
    monkeypatch.setattr(ready, "FOREIGN_S", 0.5)
    service = Service()
    stand_in.listen()
    mine = [False]
    monkeypatch.setattr(service, "pids", lambda: {os.getpid()} if mine[0] else set())

    def script() -> None:
        while not stand_in.asked:
            time.sleep(0.01)
        time.sleep(0.1)
        stand_in.close()
        # Longer than a foreign process is borne.
        time.sleep(0.7)
        mine[0] = True
        stand_in.server = type(stand_in.server)(("127.0.0.1", stand_in.port), Exchange)
        stand_in.server.stand_in = stand_in  # type: ignore[attr-defined]
        threading.Thread(target=stand_in.server.serve_forever, args=(0.02,), daemon=True).start()
        stand_in.listening = True

    thread = threading.Thread(target=script)
    thread.start()
    found = wait(service, stand_in.url)
    thread.join()
    assert found["outcome"] == "ready", found
    assert "port is not ours" in seen(found)


def test_a_listener_that_speaks_no_http_does_not_end_the_asking() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def greet() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.close()

        threading.Thread(target=greet, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(OSError, match=r"no whole HTTP answer|reset"):
            generate.get(url, 5)
        with pytest.raises(OSError, match=r"no whole HTTP answer|reset|pipe"):
            generate.generate(url, DIALECT, {}, 5)
        before = threading.active_count()
        found = wait(Service(), url, timeout_s=0.4)
        assert found["outcome"] == "timeout"
        assert threading.active_count() <= before + 1


# one generation


def test_a_generation(stand_in: StandIn) -> None:
    stand_in.listen()
    body = generate.with_prompt({"p": generate.PLACEHOLDER, "n": [generate.PLACEHOLDER, 1], "k": True}, "hello")
    assert body == {"p": "hello", "n": ["hello", 1], "k": True}
    found = generate.generate(stand_in.url, DIALECT, body, 10)
    assert found == {"text": "w w w w ", "output_tokens": 4, "drafted_tokens": 2}
    assert stand_in.bodies == [body]


@pytest.mark.parametrize(
    ("post", "why"),
    [
        (lambda exchange, _: exchange.status(500, b"\xffkaputt"), r"HTTP 500: .kaputt"),
        (lambda exchange, _: exchange.stream([event(error={"message": "boom"})]), "an error inside the stream: boom"),
        (lambda exchange, _: exchange.stream(answer()[-2:]), "HTTP 200 with an empty text"),
        (lambda exchange, _: exchange.stream([b"data: [DONE]\n"]), "HTTP 200 with an empty text"),
        (lambda exchange, _: exchange.stream(answer()[:2], whole=False), "the stream ended before the answer did"),
        (lambda exchange, _: exchange.stream([b"data: {nonsense}\n"]), "not an event stream"),
        (lambda exchange, _: exchange.stream([b"data: \xff\xfe\n"]), "not an event stream"),
        (lambda exchange, _: exchange.status(200, b'{"text": "no stream"}'), "HTTP 200 with an empty text"),
    ],
)
def test_what_is_no_generation(stand_in: StandIn, post: Callable[[Exchange, int], None], why: str) -> None:
    stand_in.post = post
    stand_in.listen()
    with pytest.raises(Refused, match=why):
        generate.generate(stand_in.url, DIALECT, {}, 10)


def test_nobody_answers(stand_in: StandIn) -> None:
    with pytest.raises(OSError, match="refused"):
        generate.generate(stand_in.url, DIALECT, {}, 10)
    with pytest.raises(OSError, match="refused"):
        generate.get(stand_in.url, 10)


def test_a_proxy_of_the_environment_is_never_asked(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    stand_in.listen()
    assert generate.get(stand_in.url + "/x", 10) == (200, b"{}")


def test_an_http_error_is_an_answer(stand_in: StandIn) -> None:
    stand_in.get = lambda exchange: exchange.status(503, b"loading")
    stand_in.listen()
    assert generate.get(stand_in.url, 10) == (503, b"loading")
