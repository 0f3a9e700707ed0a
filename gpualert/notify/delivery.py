"""Handing one mail to one SMTP server, within a deadline that no server can stretch."""

from __future__ import annotations

import contextlib
import ipaddress
import smtplib
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpualert.notify.message import POLICY, shrink

if TYPE_CHECKING:
    from email.message import EmailMessage

    from gpualert.config import Settings

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
        raise DeliveryError(f"{server.host} did not finish in time")
    if attempt.result is None:
        raise attempt.error or DeliveryError("failed without a reason")
    return attempt.result


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
        self._connection: smtplib.SMTP | None = None

    def abort(self) -> None:
        """End the conversation, whatever it waits for."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):  # it may have ended already
                connection.sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        host = self._server.host
        try:
            self.result = self._converse()
        except DeliveryError as error:
            self.error = error
        except smtplib.SMTPNotSupportedError as error:
            self.error = DeliveryError(_reason(error))
        except smtplib.SMTPResponseException as error:
            text = f"{host} answered {error.smtp_code} {_text(error.smtp_error)}"
            self.error = DeliveryError(text)
        except smtplib.SMTPRecipientsRefused as error:
            refused = {who: f"{code} {_text(why)}" for who, (code, why) in error.recipients.items()}
            first = next(iter(refused.items()))
            self.error = DeliveryError(f"{host} refused {first[0]}: {first[1]}")
        except ssl.SSLCertVerificationError as error:
            self.error = DeliveryError(f"the certificate of {host} is not valid ({error.verify_message})")
        except (OSError, smtplib.SMTPException, ValueError) as error:
            self.error = DeliveryError(f"{host}: {_reason(error)}")
        finally:
            if self._connection is not None:
                self._connection.close()

    def _converse(self) -> Accepted:
        connection = self._connect()
        self._log_in(connection)
        return self._send(connection)

    def _connect(self) -> smtplib.SMTP:
        server = self._server
        assert server.host is not None  # noqa: S101  (checked by deliver)
        timeout = min(server.timeout, max(self._deadline - time.monotonic(), 0.1))
        context = ssl.create_default_context(cafile=server.ca_file) if server.security != "none" else None
        if server.security == "tls":
            connection: smtplib.SMTP = smtplib.SMTP_SSL(
                timeout=timeout, local_hostname=_greeting(server), context=context
            )
        else:
            connection = smtplib.SMTP(timeout=timeout, local_hostname=_greeting(server))
        self._connection = connection
        # The name is what the certificate is checked against; smtplib sets it only in its constructor.
        connection._host = server.host  # type: ignore[attr-defined]  # noqa: SLF001
        code, answer = connection.connect(server.host, server.port)
        if code != 220:
            raise smtplib.SMTPConnectError(code, answer)
        connection.ehlo_or_helo_if_needed()
        if server.security == "starttls":
            if not connection.has_extn("starttls"):
                raise DeliveryError(f"{server.host} offers no STARTTLS, and the mail is not sent in plain text")
            code, answer = connection.starttls(context=context)
            if code != 220:
                raise DeliveryError(f"{server.host} refused STARTTLS ({code} {_text(answer)})")
            connection.ehlo_or_helo_if_needed()
        return connection

    def _log_in(self, connection: smtplib.SMTP) -> None:
        server = self._server
        if server.username is None:
            return
        if server.password is None:
            raise DeliveryError("smtp.username is set, but there is no password (smtp.password_file)")
        if server.security == "none" and not _is_loopback(server.host or ""):
            raise DeliveryError("the password is not sent without TLS (smtp.security)")
        connection.login(server.username, server.password)

    def _send(self, connection: smtplib.SMTP) -> Accepted:
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
            text = f"{self._server.host} takes at most {limit} bytes, and the mail has more even without attachments"
            raise DeliveryError(text)
        return removed

    def _international(self) -> bool:
        return not all(address.rpartition("@")[0].isascii() for address in (self._sender, *self._recipients))

    def _bytes(self) -> bytes:
        return self._message.as_bytes(policy=POLICY.clone(utf8=self._international()))

    def _transmit(self, connection: smtplib.SMTP) -> dict[str, tuple[int, bytes]]:
        options = []
        if self._international():
            if not connection.has_extn("smtputf8"):
                raise DeliveryError(f"{self._server.host} takes no addresses beyond ASCII (SMTPUTF8)")
            options = ["SMTPUTF8", "BODY=8BITMIME"]
        return connection.sendmail(
            _ascii_domain(self._sender), [_ascii_domain(r) for r in self._recipients], self._bytes(), options
        )


def _ascii_domain(address: str) -> str:
    local, at, domain = address.rpartition("@")
    try:
        return local + at + domain.encode("idna").decode("ascii")
    except UnicodeError:
        return address


def _greeting(server: Server) -> str:
    return server.helo or socket.gethostname() or "localhost"


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
