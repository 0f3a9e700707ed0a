"""What became of one notification."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_WORDS = {"email": ("mail", "mailed to"), "webhook": ("webhook", "posted to")}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one notification.

    Attributes:
        channel: ``email``, ``webhook``, or the name of a service such as ``Slack``.
        to: Whom it is for; never an address that is a secret itself.
        outcome: ``sent``, ``spooled``, ``failed``, ``expired``, ``broken``, ``skipped`` or ``printed``.
        detail: Why.
        at: When, RFC 3339.
    """

    channel: str
    to: tuple[str, ...]
    outcome: str
    detail: str = ""
    at: str = field(default_factory=_now)

    def as_dict(self) -> dict[str, Any]:
        """The entry in ``report.json``."""
        return {
            "channel": self.channel,
            "to": list(self.to),
            "outcome": self.outcome,
            "detail": self.detail,
            "at": self.at,
        }

    def summary(self, flush: str = "gpualert flush") -> str:
        """A few words for the terminal.

        Args:
            flush: What to type to have a spooled mail sent.
        """
        noun, done = _WORDS.get(self.channel, (self.channel, f"told {self.channel}"))
        if self.outcome == "sent":
            return f"{done} {', '.join(self.to)}" if self.channel in _WORDS else done
        if self.outcome == "spooled":
            return f"{noun} spooled ({self.detail}); {flush} sends it"
        return "" if self.outcome == "printed" else f"{noun} {self.outcome} ({self.detail})"
