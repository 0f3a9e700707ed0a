"""The time that a run took, and where a moment lies in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


def seconds_of(value: object) -> float | None:
    """Seconds since 1970 of an RFC 3339 text; None where it is none."""
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Span:
    """From the start of a run to its end, or to now.

    Attributes:
        start: Seconds since 1970.
        duration: Seconds; more than 0.
    """

    start: float
    duration: float

    def within(self, at: float) -> float:
        """A time inside the run, whatever the node's clock did meanwhile.

        Args:
            at: Seconds since 1970.

        Returns:
            Seconds since the run's start.
        """
        return round(min(max(at - self.start, 0.0), self.duration), 3)

    def moment(self, told: object) -> float | None:
        """Where a moment lies.

        Args:
            told: When it was, as RFC 3339.

        Returns:
            Seconds since the run's start; None where it is no time.
        """
        at = seconds_of(told)
        return None if at is None else self.within(at)

    def bucket(self, at: float, count: int) -> int:
        """In which of ``count`` equal parts of the run a moment lies, from 0.

        Args:
            at: Seconds since the run's start.
            count: How many parts there are.
        """
        return min(int(at / self.duration * count), count - 1)
