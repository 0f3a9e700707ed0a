"""The watcher's HTTP server: metrics, and whether it lives and is ready, for kubelet and Prometheus."""

from __future__ import annotations

import http.server
import socket
import threading
from typing import TYPE_CHECKING, Any

import prometheus_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_CLIENT_TIMEOUT_S = 10.0


class Endpoints:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` from a thread of its own.

    ``/healthz`` and ``/readyz`` are answered 200 ``ok``, or 503 with a line for each part that is not well.

    Args:
        address: Where to listen: an IPv4 or IPv6 address; empty for everywhere.
        port: The port; 0 for any free one.
        metrics: The text of ``/metrics``.
        alive: By name, whether each loop runs.
        ready: By name, whether each list-watch has its picture.

    Attributes:
        port: The port in use.

    Raises:
        OSError: The address or port cannot be had.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        metrics: Callable[[], bytes],
        alive: Mapping[str, Callable[[], bool]],
        ready: Mapping[str, Callable[[], bool]],
    ) -> None:
        pages = {
            "/metrics": lambda: (200, prometheus_client.CONTENT_TYPE_LATEST, metrics()),
            "/healthz": lambda: _verdict(alive, "has ended"),
            "/readyz": lambda: _verdict(ready, "has not been read yet"),
        }
        try:
            self._server = _Server((address, port), pages)
        except OSError as error:
            error.strerror = f"cannot serve metrics on {address or '*'}:{port} ({error.strerror}): choose another port"
            raise
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="metrics server", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more, and free the port."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


Page = tuple[int, str, bytes]


def _verdict(parts: Mapping[str, Callable[[], bool]], complaint: str) -> Page:
    ill = [f"{name} {complaint}\n" for name, well in parts.items() if not well()]
    return (503 if ill else 200), "text/plain; charset=utf-8", ("".join(ill) or "ok\n").encode()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that does not go must not hold up the end

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Callable[[], Page]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.pages = pages
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Its own version asks the name server for our name, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is nobody's trouble."""


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        status, kind, body = page() if page else (404, "text/plain", b"see /metrics, /healthz and /readyz\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  (the base class calls it so)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class calls it so)
        """Probes come every few seconds; nobody reads of them."""
