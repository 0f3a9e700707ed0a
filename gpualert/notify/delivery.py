"""Handing one mail to one SMTP server, within a deadline that no server can stretch."""

from __future__ import annotations

import base64
import contextlib
import copy
import ipaddress
import os
import re
import smtplib
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gpualert import bundle
from gpualert.notify import address, fitting

if TYPE_CHECKING:
    from email.message import EmailMessage

    from gpualert.config import Settings

MAX_ANSWER_LINES, MAX_ANSWER_LINE = 200, 8192
ABORT_S = 0.5
Kind = Literal["permanent", "temporary", "unreachable"]
_LOGIN_CODES = ("530", "534", "535", "538")
"""Answers that ask for a login, or for another (RFC 4954): the configuration is at fault, not the mail."""
_ENHANCED = re.compile(r"\d\.\d{1,3}\.\d{1,3}")
DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class DeliveryError(Exception):
    """The mail was not accepted; the message says why, and holds no secret.

    Attributes:
        kind: ``permanent`` (this mail will never be taken), ``temporary`` (it may be later), or ``unreachable`` (there
            was no server to talk to).
        stops: No other mail would fare better now.
        refused: Why each recipient was refused, where that was what was wrong.
        limit: How many bytes the server may take, as far as its refusals have shown; None while they have not.
    """

    def __init__(
        self,
        message: str,
        kind: Kind = "temporary",
        *,
        stops: bool = False,
        refused: dict[str, str] | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.stops = stops or kind == "unreachable"
        self.refused = refused or {}
        self.limit = limit


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
        refused: Recipients that it did not take, with the reason; ``is_permanent`` tells whether that may pass.
        removed: Attachments that were taken off because of the server's limit.
        dropped: Which artifacts these were, as numbers in the report.
        shortened: What else was left out to make it fit; empty for nothing.
        limit: How many bytes the server may take, as far as its refusals have shown; None while they have not.
    """

    refused: dict[str, str]
    removed: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    shortened: str = ""
    limit: int | None = None


def deliver(
    message: EmailMessage,
    sender: str,
    recipients: list[str],
    server: Server,
    deadline: float,
    *,
    directory: str = "",
    limit: int | None = None,
) -> Accepted:
    """Hand a mail over.

    Args:
        message: The mail.
        sender: The envelope's sender.
        recipients: The envelope's recipients; of ``Name <address>`` the address counts.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
        directory: The run directory, which a mail that has to be shortened refers to.
        limit: How many bytes the server may take, as far as it has been found out.

    Raises:
        DeliveryError: It was not accepted, or not by the deadline.
    """
    if server.host is None:
        raise DeliveryError("smtp.host is not set", stops=True)
    if not recipients:
        raise DeliveryError("no recipient is left", "permanent")
    if time.monotonic() >= deadline:
        raise DeliveryError("no time was left", limit=limit)
    attempt = _Attempt(message, sender, recipients, server, deadline, directory, limit)
    # A thread, since nothing else ends a name server that does not answer.
    worker = threading.Thread(target=attempt.run, daemon=True)
    worker.start()
    given_up = "did not finish in time"
    try:
        worker.join(max(deadline - time.monotonic(), 0))
    except Exception as error:  # noqa: BLE001  (a signal's handler wants us to end)
        given_up = f"was not waited for ({error})"
    if worker.is_alive():
        attempt.abort()  # nothing may be sent once we have gone
        worker.join(ABORT_S)
    if attempt.result is not None:
        return attempt.result
    if attempt.error is None or attempt.aborted:
        raise DeliveryError(f"{server.host} {given_up}", attempt.kind_now(), limit=attempt.learnt)
    raise attempt.error


def is_permanent(reason: str) -> bool:
    """Whether a server's refusal is for good.

    A demand to log in is not (the configuration may change), nor is a mailbox that is full (RFC 3463, x.2.2).

    Args:
        reason: The code and the server's words.
    """
    return reason.startswith("5") and reason[:3] not in _LOGIN_CODES and reason[4:9] != "5.2.2"


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


class _RefusedError(Exception):
    """The server takes none of the recipients."""

    def __init__(self, refused: dict[str, str]) -> None:
        super().__init__()
        self.refused = refused


class _Attempt:
    """One conversation with a server, in a thread.

    Attributes:
        result: What the server has taken; None while it has not.
        error: Why not.
        aborted: Whether it was ended from outside.
        learnt: How many bytes the server may take, as far as its refusals have shown.
    """

    def __init__(
        self,
        message: EmailMessage,
        sender: str,
        recipients: list[str],
        server: Server,
        deadline: float,
        directory: str,
        limit: int | None,
    ) -> None:
        self.result: Accepted | None = None
        self.error: DeliveryError | None = None
        self.aborted = False
        self.learnt = limit
        self._message = message
        self._sender = address.bare(sender)
        self._recipients = recipients
        self._server = server
        self._deadline = deadline
        self._directory = directory
        self._connection: _Connection | None = None
        self._talking = False

    def abort(self) -> None:
        """End the conversation, whatever it waits for."""
        self.aborted = True
        if self._connection is not None:
            self._connection.cancel()

    def kind_now(self) -> Kind:
        """What kind of failure it is when the conversation breaks off here."""
        return "temporary" if self._talking else "unreachable"

    def run(self) -> None:
        """Converse; the outcome is in ``result`` or ``error``."""
        try:
            self.result = self._send(self._ready())
        except Exception as error:  # noqa: BLE001  (whatever a server brings about, the mail is kept)
            told = error if isinstance(error, DeliveryError) else self._explained(error)
            told.limit = self.learnt
            self.error = told
        finally:
            if self._connection is not None:
                self._connection.release()

    def _explained(self, error: Exception) -> DeliveryError:
        """A failure in words, and whether it may pass."""
        host, kind = self._server.host, self.kind_now()
        if isinstance(error, _RefusedError):
            who, why = next(iter(error.refused.items()))
            more = f", and {len(error.refused) - 1} more" if len(error.refused) > 1 else ""
            for_good = all(map(is_permanent, error.refused.values()))
            stops = any(why[:3] in _LOGIN_CODES for why in error.refused.values())
            words = f"{host} refused {who}: {why}{more}"
            return DeliveryError(words, "permanent" if for_good else "temporary", stops=stops, refused=error.refused)
        if isinstance(error, smtplib.SMTPResponseException):
            reason = f"{error.smtp_code} {_text(error.smtp_error)}"
            if self._talking and is_permanent(reason):
                kind = "permanent"
            stops = error.smtp_code == 421 or reason[:3] in _LOGIN_CODES
            return DeliveryError(f"{host} answered {reason}", kind, stops=stops)
        if isinstance(error, ssl.SSLCertVerificationError):
            return DeliveryError(f"the certificate of {host} is not valid ({error.verify_message})", stops=True)
        if isinstance(error, OSError | smtplib.SMTPException | ValueError):
            return DeliveryError(f"{host}: {_reason(error)}", kind)
        return DeliveryError(f"a fault inside ({type(error).__name__}: {_text(str(error))})")

    def _ready(self) -> _Connection:
        """A connection that takes mail."""
        self._talking = False
        connection = self._connect()
        self._log_in(connection)
        self._talking = True
        return connection

    def _connect(self) -> _Connection:
        server = self._server
        host = server.host or ""
        timeout = min(server.timeout, max(self._deadline - time.monotonic(), 0.1))
        context = _context(server.ca_file) if server.security != "none" else None
        connection = _Connection(server, timeout, context if server.security == "tls" else None)
        self._connection = connection
        if self.aborted:
            raise DeliveryError("given up")
        code, answer = connection.connect(host, server.port)
        if code != 220:
            raise smtplib.SMTPConnectError(code, answer)
        connection.ehlo_or_helo_if_needed()
        if server.security == "starttls":
            if not connection.has_extn("starttls"):
                raise DeliveryError(f"{host} offers no STARTTLS, and the mail is not sent in plain text", stops=True)
            code, answer = connection.starttls(context=context)
            if code != 220:
                raise DeliveryError(f"{host} refused STARTTLS ({code} {_text(answer)})", stops=True)
            connection.ehlo_or_helo_if_needed()
        return connection

    def _log_in(self, connection: _Connection) -> None:
        server = self._server
        if server.username is None:
            return
        if server.password is None:
            raise DeliveryError("smtp.username is set, but there is no password (smtp.password_file)", stops=True)
        if server.security == "none" and not _is_loopback(server.host or ""):
            raise DeliveryError("the password is not sent without TLS (smtp.security)", stops=True)
        try:
            if server.username.isascii() and server.password.isascii():
                connection.login(server.username, server.password)
            else:
                _log_in_beyond_ascii(connection, server.username, server.password)
        except smtplib.SMTPNotSupportedError:
            raise DeliveryError(f"{server.host} takes no logins (smtp.username)", stops=True) from None
        except smtplib.SMTPResponseException as error:
            # Its words may hold what we have just told it.
            words = f"{server.host} refused the login of {server.username} ({error.smtp_code})"
            raise DeliveryError(words, stops=True) from None

    def _send(self, connection: _Connection) -> Accepted:
        recipients, later = self._reachable(connection)
        message = self._addressed(recipients) if later else self._message
        utf8 = any(map(address.needs_utf8, (self._sender, *recipients)))
        while True:
            told = connection.esmtp_features.get("size", "")
            most = int(told) if told.isdigit() and len(told) < 16 and int(told) else None
            limits = [limit for limit in (most, self.learnt) if limit is not None]
            size = f"at most {most} bytes" if most is not None and most == min(limits) else "no mail of that size"
            limit = fitting.Limit(min(limits, default=None), f"the server takes {size}")
            fitted = fitting.fit(message, limit, directory=self._directory, utf8=utf8)
            if most is not None and len(fitted.data) > most:
                raise DeliveryError(f"the mail is too large for {self._server.host} even without attachments")
            try:
                refused = self._transmit(connection, fitted.data, recipients, utf8=utf8)
            except smtplib.SMTPResponseException as error:
                if not _is_too_large(error):
                    raise
                if fitted.smallest:  # so it was not the size
                    self.learnt = None
                    answer = f"{error.smtp_code} {_text(error.smtp_error)}"
                    raise DeliveryError(f"{self._server.host} answered {answer} to a few lines as well") from None
                self.learnt = len(fitted.data) // 2
                connection = self._again(connection)
                continue
            with contextlib.suppress(OSError, smtplib.SMTPException):  # the mail has been accepted
                connection.quit()
            return Accepted({**refused, **later}, fitted.removed, fitted.dropped, fitted.shortened, self.learnt)

    def _again(self, connection: _Connection) -> _Connection:
        """The connection, ready for the next try; a new one, where the server has ended it."""
        try:
            connection.rset()
        except (OSError, smtplib.SMTPException):
            connection.release()
            return self._ready()
        return connection

    def _reachable(self, connection: _Connection) -> tuple[list[str], dict[str, str]]:
        """The recipients that this server can take, and why not the others.

        Raises:
            DeliveryError: It can take none.
        """
        if connection.has_extn("smtputf8"):
            return self._recipients, {}
        why = f"{self._server.host} takes no addresses beyond ASCII (SMTPUTF8)"
        if address.needs_utf8(self._sender):
            raise DeliveryError(f"{why}, and the sender's is one (email.from)")
        later = {who: why for who in self._recipients if address.needs_utf8(address.bare(who))}
        recipients = [who for who in self._recipients if who not in later]
        if not recipients:
            raise DeliveryError(why)
        return recipients, later

    def _addressed(self, recipients: list[str]) -> EmailMessage:
        """The mail with only those named in its headers that a server without SMTPUTF8 can be told of."""
        known = {str(one.addr_spec): one for one in getattr(self._message["To"], "addresses", ())}
        wanted = [address.ascii_domain(address.bare(who)) for who in recipients]
        shown = [known[who] for who in wanted if who in known]
        message = copy.copy(self._message)
        message._headers = list(self._message._headers)  # type: ignore[attr-defined]  # noqa: SLF001  (a copy of our own)
        del message["To"]
        message["To"] = shown or ", ".join(wanted)
        return message

    def _transmit(self, connection: _Connection, data: bytes, recipients: list[str], *, utf8: bool) -> dict[str, str]:
        """Hand over the bytes; who of the recipients was refused, and why."""
        if self.aborted:
            raise DeliveryError("given up")
        options = [f"size={len(data)}"] if connection.has_extn("size") else []
        options += ["SMTPUTF8", "BODY=8BITMIME"] if utf8 else []
        code, answer = connection.mail(address.ascii_domain(self._sender), options)
        if code != 250:
            raise smtplib.SMTPSenderRefused(code, answer, self._sender)
        refused = {}
        for who in recipients:
            code, answer = connection.rcpt(address.ascii_domain(address.bare(who)))
            if code == 421:
                raise smtplib.SMTPResponseException(code, answer)
            if code not in (250, 251):
                refused[who] = f"{code} {_text(answer)}"
        if len(refused) == len(recipients):
            raise _RefusedError(refused)
        if self.aborted:
            raise DeliveryError("given up")
        code, answer = connection.data(data)
        if code != 250:
            raise smtplib.SMTPDataError(code, answer)
        return refused


def _is_too_large(error: smtplib.SMTPResponseException) -> bool:
    """Whether a refusal is about the mail's size (RFC 1870; 5.3.4 and 5.2.3 of RFC 3463), and no full mailbox's."""
    words = _text(error.smtp_error)
    told = _ENHANCED.match(words)
    if told is not None:
        return told[0] in ("5.3.4", "5.2.3") or (error.smtp_code == 552 and told[0] != "5.2.2")
    return error.smtp_code == 552


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
        raise DeliveryError(f"smtp.ca_file {ca_file} holds no certificate", stops=True) from None
    except OSError as error:
        raise DeliveryError(f"smtp.ca_file {ca_file} cannot be read ({error.strerror})", stops=True) from None


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
