"""A real HTTP server on loopback that keeps what it is sent, and answers as told."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from notify.servers import certificate


@dataclass
class Receiver:
    """What has come, and how to answer."""

    port: int = 0
    ca_file: Path | None = None
    answers: list[int] = field(default_factory=list)
    hold_s: float = 0.0
    answer: bytes = b"{}"
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[Callable[..., Receiver]]:
    """Starts HTTP servers; ``answers`` are the first statuses, 200 is every later one."""
    running: list[ThreadingHTTPServer] = []

    def start(*answers: int, tls: bool = False, hold_s: float = 0.0, answer: bytes = b"{}") -> Receiver:
        receiver = Receiver(answers=list(answers), hold_s=hold_s, answer=answer)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.paths.append(self.path)
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.bodies.append(self.rfile.read(int(self.headers.get("content-length") or 0)))
                time.sleep(receiver.hold_s)
                status = receiver.answers.pop(0) if receiver.answers else 200
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("Content-Length", str(len(receiver.answer)))
                self.end_headers()
                self.wfile.write(receiver.answer)

            do_PUT = do_POST  # noqa: N815  (the library's name)

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if tls:
            receiver.ca_file, key = certificate(tmp_path, f"http{len(running)}")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(receiver.ca_file, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        receiver.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return receiver

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
