"""A webhook: the report as JSON, signed, to one HTTP server; needs nothing but the standard library.

Signature and headers follow the Standard Webhooks specification (webhook-id, webhook-timestamp, webhook-signature), for
which receivers have libraries: HMAC-SHA256 over ``<id>.<timestamp>.<body>``, in base64 after ``v1,``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import time
import urllib.parse
from typing import TYPE_CHECKING

from gpualert import __version__
from gpualert.notify.delivery import trusting
from gpualert.notify.outcome import Told

if TYPE_CHECKING:
    from gpualert.config import Settings
    from gpualert.notify.notice import Notice

PREFIX = "whsec_"
ATTEMPTS, PAUSE_S = 3, 1.0
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)


class RefusedError(Exception):
    """The server did not take it; the message says why.

    Attributes:
        final: Trying again would not help.
    """

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


def body_of(notice: Notice) -> bytes:
    """The JSON that is posted: ``type``, ``timestamp`` and ``data`` (the report).

    Args:
        notice: What to say.
    """
    told = {"type": notice.event, "timestamp": notice.report["made_at"], "data": notice.report}
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")


def signature(secret: str, key: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``.

    Args:
        secret: What both sides know: ``whsec_`` and base64, or any text.
        key: The message's id.
        timestamp: When it is sent, in seconds since 1970.
        body: What is posted.
    """
    try:
        raw = base64.b64decode(secret.removeprefix(PREFIX), validate=True) if secret.startswith(PREFIX) else b""
    except binascii.Error:
        raw = b""
    digest = hmac.new(raw or secret.encode(), f"{key}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def post(notice: Notice, settings: Settings, deadline: float) -> list[Told]:
    """Post a notice; what may pass is tried again until the deadline.

    Args:
        notice: What to say.
        settings: The settings.
        deadline: When to be done, on the monotonic clock.
    """
    url = settings.webhook.url
    if url is None:
        return []
    parts = urllib.parse.urlsplit(url)
    to = (f"{parts.scheme}://{parts.hostname or ''}",)  # the path may be a secret
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return [Told("webhook", to, "skipped", "webhook.url must be http://... or https://...")]
    body, failure = body_of(notice), RefusedError("no time was left", final=True)
    for attempt in range(ATTEMPTS):
        try:
            _once(parts, notice.key, body, settings, deadline)
        except RefusedError as error:
            failure = error
            pause = PAUSE_S * 2**attempt
            if error.final or time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        else:
            return [Told("webhook", to, "sent")]
    return [Told("webhook", to, "failed", str(failure))]


def _once(parts: urllib.parse.SplitResult, key: str, body: bytes, settings: Settings, deadline: float) -> None:
    """One attempt.

    Raises:
        RefusedError: It was not taken.
    """
    now, secret = int(time.time()), settings.webhook.secret
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"gpualert/{__version__}",
        "webhook-id": f"gpualert_{key}",
        "webhook-timestamp": str(now),
    }
    if secret is not None:
        headers["webhook-signature"] = signature(secret.get_secret_value(), f"gpualert_{key}", now, body)
    if parts.username:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    try:
        answer = _exchange(parts, body, headers, settings, deadline)
    except RefusedError:
        raise
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(f"its certificate is not valid ({error.verify_message})", final=True) from None
    except TimeoutError:
        raise RefusedError("no answer in time", final=False) from None
    except socket.gaierror:
        raise RefusedError("its name cannot be resolved", final=False) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise RefusedError(reason, final=False) from None
    if not 200 <= answer < 300:  # a redirect would carry the report to somebody else
        raise RefusedError(f"it answered {answer}", final=answer not in _TRY_AGAIN)


def _exchange(
    parts: urllib.parse.SplitResult, body: bytes, headers: dict[str, str], settings: Settings, deadline: float
) -> int:
    """Post once; the answer's status."""
    timeout = min(settings.webhook.timeout, max(deadline - time.monotonic(), 0.1))
    host = parts.hostname or ""
    if parts.scheme == "https":
        try:
            context = trusting(settings.webhook.ca_file)
        except OSError as error:
            reason = f"webhook.ca_file {settings.webhook.ca_file} cannot be used ({error.strerror or error})"
            raise RefusedError(reason, final=True) from None
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
