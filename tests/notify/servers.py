"""Real SMTP servers on loopback: one that accepts, and raw ones that misbehave in every way."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(directory: Path, name: str, *, host: str = "localhost", days: int = 30) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = directory / f"{name}.pem", directory / f"{name}.key"
    cert_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_path, key_path


@dataclass
class Inbox:
    """Keeps what an accepting server has taken."""

    mails: list[bytes] = field(default_factory=list)
    envelopes: list[tuple[str, list[str]]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    refuse: dict[str, str] = field(default_factory=dict)
    hold_s: float = 0.0
    receiving: int = 0

    async def handle_RCPT(  # noqa: N802  (the library's name)
        self, _server: Any, _session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.receiving += 1
        if self.hold_s:
            import asyncio

            await asyncio.sleep(self.hold_s)
        self.mails.append(envelope.original_content)
        self.envelopes.append((envelope.mail_from, list(envelope.rcpt_tos)))
        return "250 taken"


@dataclass
class Accepting:
    """A server that accepts."""

    port: int
    inbox: Inbox
    ca_file: Path | None = None


@pytest.fixture
def accepting(tmp_path: Path) -> Iterator[Callable[..., Accepting]]:
    """Starts accepting servers."""
    running: list[Controller] = []

    def start(
        security: str = "none", *, password: str | None = None, host: str = "localhost", days: int = 30, size: int = 0
    ) -> Accepting:
        inbox = Inbox()
        context = ca_file = None
        if security != "none":
            ca_file, key = certificate(tmp_path, f"server{len(running)}", host=host, days=days)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(ca_file, key)

        def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
            inbox.logins.append(data.login.decode())
            return AuthResult(success=data.password.decode() == password, handled=False)

        class Quiet(Controller):
            def factory(self) -> SMTP:
                return SMTP(
                    inbox,
                    enable_SMTPUTF8=True,
                    data_size_limit=size or 100 << 20,
                    tls_context=context if security == "starttls" else None,
                    authenticator=authenticate if password else None,
                    auth_require_tls=security == "starttls",
                    auth_required=password is not None,
                )

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # The library warns of a password without STARTTLS, also where all is TLS from the start.
        warnings.filterwarnings("ignore", "Requiring AUTH while not requiring TLS")
        controller = Quiet(
            inbox, hostname="127.0.0.1", port=port, ssl_context=context if security == "tls" else None, ready_timeout=30
        )
        controller.start()
        running.append(controller)
        return Accepting(port, inbox, ca_file)

    yield start
    for controller in running:
        controller.stop()


@pytest.fixture
def misbehaving() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """Starts raw servers; each connection is handed to a function of the test."""
    listeners: list[socket.socket] = []

    def start(behave: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_guarded, args=(behave, connection), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


def _guarded(behave: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        with connection:
            behave(connection)
    except OSError:
        pass


def line(connection: socket.socket) -> bytes:
    """One line from the client."""
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece:
            raise OSError("gone")
        data += piece
    return data


def dialogue(connection: socket.socket, answers: dict[bytes, bytes], greeting: bytes = b"220 hello\r\n") -> None:
    """Answer each command as told; what is not told is 250."""
    connection.sendall(greeting)
    while True:
        command = line(connection)
        verb = command.split()[0].upper() if command.split() else b""
        answer = answers.get(verb, b"250 fine\r\n")
        if answer == b"RESET":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return
        connection.sendall(answer)
        if verb == b"DATA" and answer.startswith(b"354"):
            end = b""
            while not end.endswith(b"\r\n.\r\n"):
                piece = connection.recv(65536)
                if not piece:
                    return
                end = (end + piece)[-5:]
            final = answers.get(b".", b"250 taken\r\n")
            if final == b"RESET":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return
            connection.sendall(final)


def silent(connection: socket.socket) -> None:
    time.sleep(600)
    connection.close()


def dripping(connection: socket.socket) -> None:
    for byte in b"220-" + b"x" * 10_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.3)


def garbage(connection: socket.socket) -> None:
    connection.sendall(bytes(range(256)) * 40 + b"\r\n" + b"\xff" * 10_000)
    time.sleep(600)


def endless(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"220-and one more line\r\n" * 1000)


def endless_line(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 100_000)


MULTI = b"250-me\r\n250 SIZE 100\r\n"
MISBEHAVIOURS: dict[str, Callable[[socket.socket], None]] = {
    "silent": silent,
    "drips a byte at a time": dripping,
    "talks garbage": garbage,
    "never ends its greeting": endless,
    "never ends a line": endless_line,
    "refuses at the greeting": lambda c: dialogue(c, {}, b"554 go away\r\n"),
    "closes at once": lambda c: c.close(),
    "defers the sender": lambda c: dialogue(c, {b"MAIL": b"451 later\r\n"}),
    "refuses the recipient": lambda c: dialogue(c, {b"RCPT": b"550 nobody\r\n"}),
    "defers the data": lambda c: dialogue(c, {b"DATA": b"451 later\r\n"}),
    "resets in the data": lambda c: dialogue(c, {b"DATA": b"RESET"}),
    "resets after the data": lambda c: dialogue(c, {b"DATA": b"354 go\r\n", b".": b"RESET"}),
    "refuses after the data": lambda c: dialogue(c, {b"DATA": b"354 go\r\n", b".": b"554 spam\r\n"}),
    "is silent after the data": lambda c: dialogue(c, {b"DATA": b"354 go\r\n", b".": b""}),
    "takes almost nothing": lambda c: dialogue(c, {b"EHLO": MULTI}),
}
"""Servers in plain text that take no mail."""
REFUSING = ("refuses the recipient", "refuses after the data")
"""Those among them that take this mail never, whatever comes later."""
