"""A hundred jobs that fail at once, and a mail server that is not up to it: every message arrives, none is lost."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from conftest import PYTHON, Gpualert, plain, run_dirs
from notify.failing import environment_for
from notify.servers import line

__all__ = ["plain"]

JOBS = 100


@dataclass
class Weak:
    """A server for one connection at a time, which drops every third: some before the mail, some after its acceptance.

    Attributes:
        port: Its port.
        accepted: The Message-IDs of what it has said yes to, as the client could see.
        unsure: Those that it took, but whose yes the client never saw.
    """

    port: int = 0
    accepted: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    connections: int = 0


@pytest.fixture
def weak() -> Iterator[Weak]:
    """Starts it."""
    server = Weak()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1)
    server.port = listener.getsockname()[1]

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            with connection:
                connection.settimeout(20)
                try:
                    _converse(connection, server, server.connections)
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()
    yield server
    listener.close()


def _converse(connection: socket.socket, server: Weak, number: int) -> None:
    drop = ("", "", ("greeting", "rcpt", "data", "answer")[number // 3 % 4])[number % 3]
    if drop == "greeting":
        return
    connection.sendall(b"220 weak\r\n")
    while True:
        verb = line(connection).split()[0].upper()
        if verb == b"RCPT" and drop == "rcpt":
            return
        if verb != b"DATA":
            connection.sendall(b"221 bye\r\n" if verb == b"QUIT" else b"250 fine\r\n")
            if verb == b"QUIT":
                return
            continue
        connection.sendall(b"354 go\r\n")
        data = b""
        while not data.endswith(b"\r\n.\r\n"):
            piece = connection.recv(65536)
            if not piece or (drop == "data" and len(data) > 1000):
                return
            data += piece
        found = re.search(rb"Message-ID: <([^>]+)>", data)
        assert found is not None
        if drop == "answer":
            server.unsure.append(found[1].decode())
            return
        connection.sendall(b"250 taken\r\n")
        server.accepted.append(found[1].decode())


def test_every_message_arrives(plain: Gpualert, weak: Weak) -> None:
    environment = {**plain._environment(None), **environment_for(weak.port)}
    jobs = [
        subprocess.Popen(
            plain.argv(["--name", f"job{number}", "--report-deadline", "60s"], ["sh", "-c", f"echo {number}; exit 3"]),
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for number in range(JOBS)
    ]  # fmt: skip
    assert {job.wait(300) for job in jobs} == {3}
    assert len(run_dirs(plain.log_dir)) == JOBS
    waiting = [plain.log_dir / d / "mail" for d in run_dirs(plain.log_dir) if list((d / "mail").glob("*.eml"))]
    argv = [PYTHON, "-I", "-m", "gpualert", "flush", "--log-dir", str(plain.log_dir)]
    rounds, until = 0, time.monotonic() + 300
    while True:
        rounds += 1
        assert time.monotonic() < until
        # Two at a time, as two sidecars would.
        flushers = [subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
        if {flusher.wait(300) for flusher in flushers} == {0}:
            break
    counts = Counter(weak.accepted)
    assert len(counts) == JOBS
    # Twice is what was taken without our hearing it, and nothing else.
    assert all(count == 1 for count in counts.values())
    repeated = [key for key in weak.unsure if key in counts]
    print(
        f"{JOBS} jobs, {weak.connections} connections, {len(waiting)} mails spooled at first, {rounds} flushes, "
        f"{len(repeated)} duplicates that the protocol cannot tell"
    )
    assert set(weak.unsure) <= set(counts)
    assert not list(plain.log_dir.glob("*/mail/*.eml"))
