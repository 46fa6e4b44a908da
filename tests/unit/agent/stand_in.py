"""A made-up engine over real sockets: every answer is chosen by the test, byte by byte where it matters."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: The form of a request, as the profile of a made-up engine would give it.
DIALECT: dict[str, Any] = {
    "path": "/generate",
    "text": ["text"],
    "text_is_cumulative": False,
    "output_tokens": ["usage.completion"],
    "prompt_tokens": ["usage.prompt"],
    "cached_tokens": ["usage.cached"],
    "steps": [],
    "drafts": [],
    "drafted_tokens": ["usage.drafted"],
    "accepted_tokens": ["usage.accepted"],
    "histogram": [],
    "server_ms": ["usage.ms"],
    "server_s": [],
    "finish_reason": ["finish"],
    "failed_by": ["abort"],
    "error": ["error.message", "error"],
    "absent_is_zero": [],
    "reuse_connections": True,
}


def event(**data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def answer(tokens: int = 4, drafted: int | None = 2, finish: str = "length", text: str = "w ") -> list[bytes]:
    """The events of a good answer."""
    usage = {"completion": tokens, "prompt": 3, "ms": 1.5}
    if drafted is not None:
        usage.update(drafted=drafted, accepted=drafted // 2)
    return [*(event(text=text) for _ in range(tokens)), event(text="", finish=finish, usage=usage), b"data: [DONE]\n\n"]


class Exchange(BaseHTTPRequestHandler):
    """One request in the hands of a test."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def status(self, code: int, body: bytes = b"{}") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, pieces: Iterable[bytes], *, whole: bool = True) -> None:
        """Chunks as given, each sent on its own; without `whole` the connection breaks in the middle."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.hang_up()

    def until_close(self, pieces: Iterable[bytes]) -> None:
        """A stream whose end is the end of the connection."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
        self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self.server.stand_in.asked.append(self.path)
        self.server.stand_in.get(self)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.stand_in.lock:
            self.server.stand_in.bodies.append(json.loads(body or b"{}"))
            number = len(self.server.stand_in.bodies)
        self.server.stand_in.post(self, number)


class StandIn:
    """`get` and `post` decide the answers; `post` is told which request it is, from 1."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.metrics = ""
        self.get: Callable[[Exchange], None] = self._get
        self.post: Callable[[Exchange, int], None] = lambda exchange, _: exchange.stream(answer())
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Exchange, bind_and_activate=False)
        self.server.daemon_threads = True
        self.server.stand_in = self  # type: ignore[attr-defined]
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.server.server_bind()
        self.port = int(self.server.server_address[1])
        self.listening = False

    def listen(self) -> StandIn:
        """Until now connections are refused."""
        self.server.server_activate()
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.listening = True
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _get(self, exchange: Exchange) -> None:
        exchange.status(200, self.metrics.encode() if exchange.path == "/metrics" else b"{}")

    def close(self) -> None:
        if self.listening:
            self.server.shutdown()
            self.listening = False
        self.server.server_close()
