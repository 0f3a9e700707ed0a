"""Handing one mail to one SMTP server, within a deadline that no server can stretch."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import smtplib
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpualert import bundle
from gpualert.notify.message import POLICY, ascii_domain, shrink

if TYPE_CHECKING:
    from email.message import EmailMessage

    from gpualert.config import Settings

MAX_ANSWER_LINES, MAX_ANSWER_LINE = 200, 8192
ABORT_S = 0.5
DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class DeliveryError(Exception):
    """The mail was not accepted; the message says why, and holds no secret."""


@dataclass(frozen=True, slots=True)
class Server:
    """How to reach the server.

    Attributes:
        host: Its name; None where none is configured.
        port: Its port.
        security: ``starttls``, ``tls`` or ``none``.
        username: Whom to log in as; None for nobody.
        password: The password; never shown.
        ca_file: Certificates to trust instead of the system's.
        helo: The name to greet with; the host's own when None.
        timeout: How long to wait for one answer, in seconds.
    """

    host: str | None
    port: int
    security: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    helo: str | None = None
    timeout: float = 10.0

    @classmethod
    def from_settings(cls, settings: Settings) -> Server:
        """The server that the settings name."""
        smtp = settings.smtp
        return cls(
            smtp.host,
            smtp.port or DEFAULT_PORTS[smtp.security],
            smtp.security,
            smtp.username,
            smtp.password.get_secret_value() if smtp.password else None,
            smtp.ca_file,
            smtp.helo,
            smtp.timeout,
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server has taken the mail.

    Attributes:
        refused: Recipients that it did not take, with the reason; a reason that begins with 4 may pass.
        removed: Attachments that were taken off because of the server's limit.
    """

    refused: dict[str, str]
    removed: tuple[str, ...] = ()


def deliver(message: EmailMessage, sender: str, recipients: list[str], server: Server, deadline: float) -> Accepted:
    """Hand a mail over.

    Args:
        message: The mail.
        sender: The envelope's sender.
        recipients: The envelope's recipients.
        server: Where to.
        deadline: When to be done, on the monotonic clock.

    Raises:
        DeliveryError: It was not accepted, or not by the deadline.
    """
    if server.host is None:
        raise DeliveryError("smtp.host is not set")
    if not recipients:
        raise DeliveryError("no recipient is left")
    attempt = _Attempt(message, sender, recipients, server, deadline)
    # A thread, since nothing else ends a name server that does not answer.
    worker = threading.Thread(target=attempt.run, daemon=True)
    worker.start()
    worker.join(max(deadline - time.monotonic(), 0))
    if worker.is_alive():
        attempt.abort()
        worker.join(ABORT_S)
        raise DeliveryError(f"{server.host} did not finish in time")
    if attempt.result is None:
        raise attempt.error or DeliveryError("failed without a reason")
    return attempt.result


class _Connection(smtplib.SMTP):
    """An SMTP connection that can be ended from outside at any moment, and takes no endless answers."""

    def __init__(self, server: Server, timeout: float, context: ssl.SSLContext | None) -> None:
        """Nothing is connected yet.

        Args:
            server: Where to.
            timeout: How long to wait for one answer, in seconds.
            context: How to secure the connection from its start; None to begin in plain text.
        """
        super().__init__(timeout=timeout, local_hostname=server.helo or socket.gethostname() or "localhost")
        self.cancelled = False
        self._from_start = context
        self._handle: socket.socket | None = None
        # smtplib checks the certificate against this name, and sets it only when it connects in its constructor.
        self._host = server.host

    def cancel(self) -> None:
        """End it, whatever it waits for; nothing can be sent any more."""
        self.cancelled = True
        handle = self._handle
        if handle is not None:
            with contextlib.suppress(OSError):  # it may have ended already
                handle.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the descriptors back."""
        self.close()
        if self._handle is not None:
            self._handle.close()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        raw = socket.create_connection((host, port), timeout, self.source_address)
        # A second handle on the same connection: wrapping it in TLS takes the first one away.
        self._handle = raw.dup()
        if self.cancelled:
            raise DeliveryError("given up")
        return raw if self._from_start is None else self._from_start.wrap_socket(raw, server_hostname=host)

    def getreply(self) -> tuple[int, bytes]:
        """One answer, of a bounded number of lines."""
        if self.file is None:
            self.file = self.sock.makefile("rb")  # type: ignore[union-attr]
        lines: list[bytes] = []
        while len(lines) < MAX_ANSWER_LINES:
            line = self.file.readline(MAX_ANSWER_LINE + 1)
            if not line:
                self.close()
                raise smtplib.SMTPServerDisconnected("the connection was closed")
            if len(line) > MAX_ANSWER_LINE:
                self.close()
                raise smtplib.SMTPResponseException(500, b"an answer line without end")
            lines.append(line[4:].strip(b" \t\r\n"))
            code = line[:3]
            if not code.isdigit():
                return -1, b"\n".join(lines)
            if line[3:4] != b"-":
                return int(code), b"\n".join(lines)
        self.close()
        raise smtplib.SMTPResponseException(500, b"an answer without end")


class _Attempt:
    """One conversation with a server."""

    def __init__(
        self, message: EmailMessage, sender: str, recipients: list[str], server: Server, deadline: float
    ) -> None:
        self.result: Accepted | None = None
        self.error: DeliveryError | None = None
        self._message = message
        self._sender = sender
        self._recipients = recipients
        self._server = server
        self._deadline = deadline
        self._connection: _Connection | None = None
        self._aborted = False

    def abort(self) -> None:
        """End the conversation, whatever it waits for."""
        self._aborted = True
        if self._connection is not None:
            self._connection.cancel()

    def run(self) -> None:
        """Converse; the outcome is in ``result`` or ``error``."""
        host = self._server.host
        try:
            self.result = self._converse()
        except DeliveryError as error:
            self.error = error
        except smtplib.SMTPResponseException as error:
            self.error = DeliveryError(f"{host} answered {error.smtp_code} {_text(error.smtp_error)}")
        except smtplib.SMTPRecipientsRefused as error:
            who, (code, why) = next(iter(error.recipients.items()))
            self.error = DeliveryError(f"{host} refused {who}: {code} {_text(why)}")
        except ssl.SSLCertVerificationError as error:
            self.error = DeliveryError(f"the certificate of {host} is not valid ({error.verify_message})")
        except (OSError, smtplib.SMTPException, ValueError) as error:
            self.error = DeliveryError(f"{host}: {_reason(error)}")
        finally:
            if self._connection is not None:
                self._connection.release()

    def _converse(self) -> Accepted:
        connection = self._connect()
        self._log_in(connection)
        return self._send(connection)

    def _connect(self) -> _Connection:
        server = self._server
        host = server.host or ""
        timeout = min(server.timeout, max(self._deadline - time.monotonic(), 0.1))
        context = _context(server.ca_file) if server.security != "none" else None
        connection = _Connection(server, timeout, context if server.security == "tls" else None)
        self._connection = connection
        if self._aborted:
            raise DeliveryError("given up")
        code, answer = connection.connect(host, server.port)
        if code != 220:
            raise smtplib.SMTPConnectError(code, answer)
        connection.ehlo_or_helo_if_needed()
        if server.security == "starttls":
            if not connection.has_extn("starttls"):
                raise DeliveryError(f"{host} offers no STARTTLS, and the mail is not sent in plain text")
            code, answer = connection.starttls(context=context)
            if code != 220:
                raise DeliveryError(f"{host} refused STARTTLS ({code} {_text(answer)})")
            connection.ehlo_or_helo_if_needed()
        return connection

    def _log_in(self, connection: _Connection) -> None:
        server = self._server
        if server.username is None:
            return
        if server.password is None:
            raise DeliveryError("smtp.username is set, but there is no password (smtp.password_file)")
        if server.security == "none" and not _is_loopback(server.host or ""):
            raise DeliveryError("the password is not sent without TLS (smtp.security)")
        try:
            if server.username.isascii() and server.password.isascii():
                connection.login(server.username, server.password)
            else:
                _log_in_beyond_ascii(connection, server.username, server.password)
        except smtplib.SMTPNotSupportedError:
            raise DeliveryError(f"{server.host} takes no logins (smtp.username)") from None
        except smtplib.SMTPResponseException as error:
            # Its words may hold what we have just told it.
            raise DeliveryError(f"{server.host} refused the login of {server.username} ({error.smtp_code})") from None

    def _send(self, connection: _Connection) -> Accepted:
        removed: list[str] = []
        limit = connection.esmtp_features.get("size", "")
        if limit.isdigit() and int(limit):
            removed = self._fit(int(limit))
        try:
            refused = self._transmit(connection)
        except smtplib.SMTPResponseException as error:
            if error.smtp_code != 552 or removed or not any(True for _ in self._message.iter_attachments()):
                raise
            removed = self._fit(len(self._bytes()) // 4)
            connection.rset()
            refused = self._transmit(connection)
        with contextlib.suppress(OSError, smtplib.SMTPException):  # the mail has been accepted
            connection.quit()
        return Accepted({who: f"{code} {_text(why)}" for who, (code, why) in refused.items()}, tuple(removed))

    def _fit(self, limit: int) -> list[str]:
        removed = shrink(self._message, limit)
        if len(self._bytes()) > limit:
            raise DeliveryError(f"the mail is too large for {self._server.host} even without attachments")
        return removed

    def _international(self) -> bool:
        return not all(address.rpartition("@")[0].isascii() for address in (self._sender, *self._recipients))

    def _bytes(self) -> bytes:
        return self._message.as_bytes(policy=POLICY.clone(utf8=self._international()))

    def _transmit(self, connection: _Connection) -> dict[str, tuple[int, bytes]]:
        options = []
        if self._international():
            if not connection.has_extn("smtputf8"):
                raise DeliveryError(f"{self._server.host} takes no addresses beyond ASCII (SMTPUTF8)")
            options = ["SMTPUTF8", "BODY=8BITMIME"]
        if self._aborted:
            raise DeliveryError("given up")
        recipients = [ascii_domain(recipient) for recipient in self._recipients]
        return connection.sendmail(ascii_domain(self._sender), recipients, self._bytes(), options)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """How servers are checked: against a file, else the system's authorities, else those that came with the bundle.

    Args:
        ca_file: Certificates to trust instead of the system's.

    Raises:
        ssl.SSLError: The file holds no certificate.
        OSError: It cannot be read.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if ca_file is None and not context.cert_store_stats()["x509_ca"]:
        own = bundle.certificates()
        if own is not None and not any(map(os.path.isdir, (os.environ.get("SSL_CERT_DIR", ""), "/etc/ssl/certs"))):
            context.load_verify_locations(own)
    return context


def _context(ca_file: str | None) -> ssl.SSLContext:
    """How certificates are checked.

    Raises:
        DeliveryError: The file of trusted certificates cannot be used.
    """
    try:
        return trusting(ca_file)
    except ssl.SSLError:
        raise DeliveryError(f"smtp.ca_file {ca_file} holds no certificate") from None
    except OSError as error:
        raise DeliveryError(f"smtp.ca_file {ca_file} cannot be read ({error.strerror})") from None


def _log_in_beyond_ascii(connection: smtplib.SMTP, username: str, password: str) -> None:
    """AUTH PLAIN in UTF-8 (RFC 4616); smtplib knows ASCII alone."""
    if "PLAIN" not in connection.esmtp_features.get("auth", "").upper().split():
        raise smtplib.SMTPNotSupportedError("no AUTH PLAIN")
    told = base64.b64encode(f"\0{username}\0{password}".encode()).decode("ascii")
    code, answer = connection.docmd("AUTH", f"PLAIN {told}")
    if code not in (235, 503):
        raise smtplib.SMTPAuthenticationError(code, answer)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _text(answer: bytes | str) -> str:
    """A server's words, short and harmless."""
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:160]


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _text(str(error)) or type(error).__name__
