"""Stands in for the API server: the real one does not cut, answer 410 or 429, or talk nonsense on order.

It keeps objects by path with a resourceVersion each, lists them in pages, streams watches in chunks as the real one
does, and refuses a patch with an old resourceVersion. What the watcher's plumbing does with a real API server is tested
in e2e/cluster/test_watch_plumbing.py.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import socket
import ssl
import threading
import urllib.parse
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CUT = object()
END = object()
Object = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """An answer out of turn to the next request of its verb."""

    status: int = 0
    """0 for none: the connection is closed without an answer."""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    effective: bool = False
    """Do what was asked first, and only then fail to say so."""


def status(code: int, reason: str, message: str = "as ordered") -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def refusal(code: int, reason: str, **headers: str) -> Fault:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(code, json.dumps(status(code, reason)).encode(), sent)


@dataclass
class Request:
    verb: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class ApiServer:
    """The server; ``url`` says where."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.objects: dict[str, Object] = {}
        self.logs: dict[str, bytes] = {}
        self.allowed: set[tuple[str, str]] = set()
        self.requests: list[Request] = []
        self.faults: dict[str, deque[Fault]] = {}
        self.watches: list[queue.SimpleQueue[Any]] = []
        self.page = 500
        self.connections: set[socket.socket] = set()
        self.lock = threading.Condition()
        self._version = 1000
        self._history: list[tuple[int, str, Object]] = []
        self._server: http.server.ThreadingHTTPServer | None = None
        self._port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"https://localhost:{self._port}" if self._tls else f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, directory: Path, **cluster: str) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url, **cluster}}],
            "users": [{"name": "me", "user": {"token": "not-secret"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        }
        path = directory / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def up(self) -> None:
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = _Http(("127.0.0.1", self._port), handler)
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections, and cut those that there are."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self.tell(CUT)
            with self.lock:
                for connection in self.connections:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def fail(self, verb: str, *faults: Fault) -> None:
        self.faults.setdefault(verb, deque()).extend(faults)

    def tell(self, *what: Any) -> None:
        """Put lines, pieces of lines (bytearray), CUT or END into every open watch."""
        with self.lock:
            for watch in self.watches:
                for item in what:
                    watch.put(item)
            if what[-1] in (CUT, END):
                self.watches.clear()  # so that whoever waits for a watch waits for the next one

    def put(self, path: str, **more: Any) -> Object:
        """Make or change an object."""
        with self.lock:
            kind = "MODIFIED" if path in self.objects else "ADDED"
            self._version += 1
            collection, _, name = path.rpartition("/")
            old = self.objects.get(path, {"metadata": {"name": name, "uid": f"uid-{self._version}"}})
            if "/namespaces/" in collection:
                old["metadata"]["namespace"] = collection.split("/namespaces/")[1].split("/")[0]
            made = {**old, **more, "metadata": {**old["metadata"], "resourceVersion": str(self._version)}}
            self.objects[path] = made
            self._event(kind, made)
            return made

    def remove(self, path: str) -> None:
        with self.lock:
            self._version += 1
            gone = self.objects.pop(path)
            self._event("DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}})

    def bookmark(self) -> str:
        """Advance the version and say so in the watches."""
        with self.lock:
            self._version += 1
            self._send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self._version)}})
            return str(self._version)

    def _event(self, kind: str, thing: Object) -> None:
        self._history.append((self._version, kind, thing))
        self._send(kind, thing)

    def _send(self, kind: str, thing: Object) -> None:
        line = json.dumps({"type": kind, "object": thing}).encode()
        for watch in self.watches:
            watch.put(line)

    def seen(self, verb: str) -> list[Request]:
        with self.lock:
            return [request for request in self.requests if request.verb == verb]

    def since(self, version: int) -> list[bytes]:
        return [
            json.dumps({"type": kind, "object": thing}).encode() for at, kind, thing in self._history if at > version
        ]

    @property
    def version(self) -> str:
        return str(self._version)


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ApiServer

    def setup(self) -> None:
        super().setup()
        with self.api.lock:
            self.api.connections.add(self.connection)

    def finish(self) -> None:
        with self.api.lock:
            self.api.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class calls it so)
        pass

    def _request(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        verb = self.command.lower()
        if verb == "get":
            last = parts.path.rsplit("/", 1)[1]
            many = last in ("pods", "jobs", "events", "leases")
            verb = "watch" if "watch" in query else "log" if last == "log" else "list" if many else "get"
        with self.api.lock:
            self.api.requests.append(
                Request(verb, parts.path, query, {name.title(): value for name, value in self.headers.items()}, body)
            )
            self.api.lock.notify_all()
            waiting = self.api.faults.get(verb)
            fault = waiting.popleft() if waiting else None
        if fault and fault.effective:
            self._answer_of(verb, parts.path, query, body)
        if fault and not fault.status:
            self.close_connection = True
        elif fault:
            self._answer(fault.status, fault.body, fault.headers)
        elif verb == "watch":
            self._watch(query)
        else:
            code, answer = self._answer_of(verb, parts.path, query, body)
            self._answer(code, answer if isinstance(answer, bytes) else json.dumps(answer).encode(), {})

    do_GET = do_POST = do_PATCH = do_DELETE = _request  # noqa: N815  (the base class calls them so)

    def _answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer_of(self, verb: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        api = self.api
        with api.lock:
            if verb == "list":
                found = [thing for where, thing in api.objects.items() if where.rpartition("/")[0] == path]
                start, limit = int(query.get("continue", "0")), min(int(query["limit"]), api.page)
                metadata = {"resourceVersion": api.version}
                if start + limit < len(found):
                    metadata["continue"] = str(start + limit)
                return 200, {"kind": "List", "metadata": metadata, "items": found[start : start + limit]}
            if verb == "log":
                lines = api.logs[path].splitlines(keepends=True)[-int(query["tailLines"]) :]
                return 200, b"".join(lines)[: int(query["limitBytes"])]  # the beginning, as the kubelet does it
            if path.endswith("/selfsubjectaccessreviews"):
                asked = body["spec"]["resourceAttributes"]
                resource = "/".join(filter(None, [asked["resource"], asked["subresource"]]))
                return 201, {**body, "status": {"allowed": (asked["verb"], resource) in api.allowed}}
            if verb == "post":
                path = f"{path}/{body['metadata'].get('name') or 'generated-' + api.version}"
                if path in api.objects:
                    return 409, status(409, "AlreadyExists")
                return 201, api.put(path, **{key: value for key, value in body.items() if key != "metadata"})
            if path not in api.objects:
                return 404, status(404, "NotFound")
            old = api.objects[path]
            if verb == "get":
                return 200, old
            if verb == "delete":
                api.remove(path)
                return 200, {"kind": "Status", "status": "Success"}
            expected = body.get("metadata", {}).get("resourceVersion")
            if expected not in (None, old["metadata"]["resourceVersion"]):
                return 409, status(409, "Conflict")
            merged = {key: {**old.get(key, {}), **value} for key, value in body.items() if key != "metadata"}
            return 200, api.put(path, **merged)

    def _watch(self, query: dict[str, str]) -> None:
        api, events = self.api, queue.SimpleQueue[Any]()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with api.lock:
            for line in api.since(int(query["resourceVersion"])):
                events.put(line)
            api.watches.append(events)
            api.lock.notify_all()
        try:
            while (item := events.get()) not in (CUT, END):
                data = item if isinstance(item, bytearray) else item + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            if item is END:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = item is CUT
        finally:
            with api.lock:
                if events in api.watches:
                    api.watches.remove(events)
