"""What a request to the Kubernetes API can fail with."""

from __future__ import annotations

import json
from typing import Any

_ADVICE = {
    0: "see that the API server is reachable from here, and that its address in the kubeconfig is right",
    401: "see that the service account's token or the kubeconfig's credentials are valid",
    403: "grant the service account this permission, as the chart's roles do",
    429: "the API server is overloaded; give gpualert's requests a priority level of their own if this stays",
}


class ApiError(Exception):
    """A request that did not succeed.

    Attributes:
        status: The HTTP status; 0 where there was no whole answer.
        reason: The Status object's ``reason`` (``NotFound``, ``Conflict``, ``Expired`` ...); for status 0 one of
            ``NotConfigured``, ``Unreachable`` (nothing was sent), ``Cut``, ``Timeout``, ``BadAnswer``, ``Closed``.
        message: What happened, to what.
        retry_after: The pause in seconds that the server asks for, if it does.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        """What happened, to what, and what to do."""
        advice = "" if self.reason in ("Closed", "NotConfigured") else _ADVICE.get(self.status, "")
        return f"{self.message}: {advice}" if advice else self.message

    @property
    def expired(self) -> bool:
        """Whether a resourceVersion or a continue token is too old (410)."""
        return self.status == 410 or self.reason in ("Expired", "Gone")

    def may_pass(self, *, repeatable: bool) -> bool:
        """Whether trying again may help.

        Args:
            repeatable: Doing it twice does no harm. Without it only what the server has certainly not done is tried
                again.
        """
        if self.status == 429 or self.reason == "Unreachable":
            return True
        passing = self.status in (408, 500, 502, 503, 504) or self.reason in ("Cut", "Timeout", "BadAnswer")
        return repeatable and passing

    @classmethod
    def of(cls, what: str, status: int, body: bytes, retry_after: str | None = None) -> ApiError:
        """The error that an answer describes.

        Args:
            what: The request, for the message.
            status: The HTTP status.
            body: The answer's body: a Status object, or whatever a proxy has put there.
            retry_after: The answer's ``Retry-After``.
        """
        said: Any
        try:
            said = json.loads(body)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            said = {"message": body.decode("utf-8", "replace").strip()[:200]}
        reason, message = str(said.get("reason") or ""), str(said.get("message") or "no reason given")
        pause = float(retry_after) if retry_after and retry_after.strip().isdecimal() else None
        return cls(status, reason, f"{what} was answered {status} ({message})", pause)
