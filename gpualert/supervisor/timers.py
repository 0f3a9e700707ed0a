"""Timers of the main thread: what is due when, on the monotonic clock."""

from __future__ import annotations

import time


class Timers:
    """Moments by name."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def set(self, name: str, at: float) -> None:
        """Let something be due; a moment set before is forgotten.

        Args:
            name: What.
            at: When, on the monotonic clock.
        """
        self._at[name] = at

    def set_earlier(self, name: str, at: float) -> None:
        """Let something be due, unless it is due before that.

        Args:
            name: What.
            at: When, on the monotonic clock.
        """
        self._at[name] = min(self._at.get(name, at), at)

    def take(self, name: str) -> bool:
        """Whether something is due; if so it is over with that.

        Args:
            name: What.
        """
        at = self._at.get(name)
        if at is None or time.monotonic() < at:
            return False
        del self._at[name]
        return True

    def drop(self, name: str) -> None:
        """Forget something.

        Args:
            name: What.
        """
        self._at.pop(name, None)

    def clear(self) -> None:
        """Forget everything."""
        self._at.clear()

    def pause_s(self) -> float | None:
        """How long nothing is due, in seconds; None for ever."""
        return max(min(self._at.values()) - time.monotonic(), 0) if self._at else None
