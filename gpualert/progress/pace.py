"""How fast something goes, measured by our own clock, and whether it has become slower than it was."""

from __future__ import annotations

from collections import deque
from statistics import median

STRETCH_S = 60.0
"""The shortest time over which a rate is taken: saving and printing make shorter ones jump."""
STRETCHES = 720
"""How many rates are remembered: half a day of a minute each."""
RECENT, PAST_MIN = 5, 10
"""How many of the last rates must be low, and how many earlier ones there must be to say so."""
LOW, WELL = 0.8, 0.9
"""A rate below the first part of the usual one is low; from the second part on it is as it was."""
SHORTEST_S = 5.0
"""No rate is told for less."""
GAP_S = 6 * 3600.0
"""After so long a time without a step nothing is compared: a machine that slept, or a clock that jumped."""


class Pace:
    """The pace of one counter.

    Attributes:
        slower: By which part it is slower than it usually was, from 0 to 1; None where it is not.
        since_s: When it became so, in seconds since 1970.
    """

    __slots__ = ("_begun", "_past", "_recent", "_starts", "_threshold", "_usual", "_warm", "since_s", "slower")

    def __init__(self) -> None:
        self.slower: float | None = None
        self.since_s: float | None = None
        self._past: deque[float] = deque(maxlen=STRETCHES)
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # when each began (wall clock), and its rate
        self._starts: deque[tuple[float, float, int]] = deque(maxlen=RECENT + 1)  # clock, wall clock, count
        self._begun: tuple[float, int] | None = None
        self._usual = self._threshold = 0.0
        self._warm = False

    def restart(self) -> None:
        """Measure anew from the next step on; what was usual is kept."""
        self._starts.clear()
        self._begun = None

    def add(self, done: int, clock_s: float, at_s: float) -> None:
        """Note how much is done.

        Args:
            done: A count that never falls.
            clock_s: The time on a monotonic clock, in seconds.
            at_s: The time, in seconds since 1970.
        """
        self._begun_check(done, clock_s)
        if not self._starts:
            self._starts.append((clock_s, at_s, done))
            self._begun = (clock_s, done)
            return
        start_clock, start_at, start_done = self._starts[-1]
        took = clock_s - start_clock
        self._begun = (clock_s, done)
        if took < STRETCH_S:
            return
        self._starts.append((clock_s, at_s, done))
        if not self._warm:
            self._warm = True  # the first steps load, compile and tune
            return
        self._judge(start_at, (done - start_done) / took)

    def _begun_check(self, done: int, clock_s: float) -> None:
        if self._begun is not None:
            before, count = self._begun
            if not 0 <= clock_s - before <= GAP_S or done < count:
                self.restart()

    def _judge(self, at_s: float, rate: float) -> None:
        """Compare a new rate with the earlier ones."""
        if self.slower is None:
            if len(self._recent) == RECENT:
                self._past.append(self._recent[0][1])
            self._recent.append((at_s, rate))
            if len(self._past) < PAST_MIN or len(self._recent) < RECENT:
                return
            usual = median(self._past)
            threshold = sorted(self._past)[len(self._past) // 10]
            if all(one < LOW * usual and one < threshold for _, one in self._recent):
                self._usual = usual
                self.since_s = self._recent[0][0]
                self.slower = self._lost()
            return
        # While it is slow the usual rate stays what it was, so that a slow run does not become its own measure.
        self._recent.append((at_s, rate))
        if all(one >= WELL * self._usual for _, one in list(self._recent)[-2:]):
            self.slower = self.since_s = None
            self._recent.clear()
        else:
            self.slower = self._lost()

    def _lost(self) -> float:
        return min(max(1 - median(one for _, one in self._recent) / self._usual, 0.0), 1.0)

    @property
    def rate(self) -> float | None:
        """Steps a second over the last minutes; None before there is anything to go by."""
        if self._begun is None or not self._starts:
            return None
        clock_s, done = self._begun
        first_clock, _, first_done = self._starts[0]
        if clock_s - first_clock < SHORTEST_S or done <= first_done:
            return None
        return (done - first_done) / (clock_s - first_clock)
