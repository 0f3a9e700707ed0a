"""Since when a job's processors and files are quiet, or its processors spin evenly.

Quiet is judged by the mean since then, so that a heartbeat or a collection of garbage breaks nothing, and broken at
once by a burst. All times are on the clock of ``hang.rhythm``, which stands still while nobody looks.
"""

from __future__ import annotations

from collections import deque

CPU_QUIET, CPU_BURST = 0.02, 0.25
"""Of one core."""
PROCESSES_QUIET = 4
"""A job of more processes may use more and be quiet: each has threads that look around now and then."""
CPU_QUIET_MOST = 0.25
WORKING_PART = 0.05
"""Whatever the number of processes: more than this part of what it uses when it works is not quiet."""
IO_QUIET, IO_BURST = 8192.0, 262144.0
"""Bytes a second. Those who watch a machine read some of /proc all the time."""
FLAT, FLAT_LEAST = 0.15, 0.1
"""Spinning is even: within this part of the mean, or this much of a core."""
FLAT_OUTLIERS = 2
_KEPT = 200


class Level:
    """A counter that grows, and since when its mean growth is below a limit."""

    __slots__ = ("_points", "_spacing", "since")

    def __init__(self, spacing: float) -> None:
        """Nothing is seen yet.

        Args:
            spacing: How far apart the points are that a mean may begin at, in seconds.
        """
        self._spacing = spacing
        self._points: deque[tuple[float, float]] = deque()
        self.since = 0.0

    def restart(self, clock: float, value: float) -> None:
        """Begin anew.

        Args:
            clock: Now.
            value: What the counter shows.
        """
        self._points.clear()
        self._points.append((clock, value))
        self.since = clock

    def add(self, clock: float, value: float, limit: float) -> None:
        """Take what the counter shows now.

        Args:
            clock: Now.
            value: What it shows.
            limit: Growth a second that is quiet.
        """
        points = self._points
        while len(points) > 1 and value - points[0][1] > limit * (clock - points[0][0]):
            points.popleft()
        if len(points) == 1 and value - points[0][1] > limit * (clock - points[0][0]):
            points[0] = (clock, value)
        elif clock - points[-1][0] >= self._spacing:
            points.append((clock, value))
        self.since = points[0][0]

    def mean(self, clock: float, value: float) -> float:
        """Its mean growth since then.

        Args:
            clock: Now.
            value: What the counter shows.
        """
        at, before = self._points[0]
        return (value - before) / (clock - at) if clock > at else 0.0


class Quiet:
    """Processors and files of one job.

    Attributes:
        cpu: Processor time.
        io: Bytes read and written.
        flat_since: Since when the processors are used evenly.
        rate: How many cores it used between the last two moments.
    """

    __slots__ = ("_even", "_outliers", "_working", "cpu", "flat_since", "io", "rate")

    def __init__(self, after_s: float) -> None:
        """Nothing is seen yet.

        Args:
            after_s: How long quiet must last to matter, in seconds.
        """
        self.cpu = Level(after_s / _KEPT)
        self.io = Level(after_s / _KEPT)
        self.flat_since = 0.0
        self.rate = 0.0
        self._even = 0.0
        self._outliers = 0
        self._working = 0.0

    def restart(self, clock: float, cpu_s: float, io_bytes: int) -> None:
        """Begin anew; what it uses when it works stays known.

        Args:
            clock: Now.
            cpu_s: Its processor time.
            io_bytes: Its bytes.
        """
        self.cpu.restart(clock, cpu_s)
        self.io.restart(clock, io_bytes)
        self._flatten(clock)

    def _flatten(self, clock: float) -> None:
        self.flat_since, self._even, self._outliers = clock, self.rate, 0

    def add(
        self, clock: float, seconds: float, spent: tuple[float, int], now: tuple[float, int], processes: int
    ) -> None:
        """Take a look.

        Args:
            clock: Now.
            seconds: How long the last look is ago.
            spent: Processor time and bytes since then.
            now: Processor time and bytes in all.
            processes: How many processes there are.
        """
        self.rate = spent[0] / seconds
        flow = spent[1] / seconds
        part = min(seconds / 60.0, 1.0)
        self._working = max(self._working, self._working + (self.rate - self._working) * part)
        limit = self._limit(processes)
        if self.rate >= max(CPU_BURST, 2 * limit):
            self.cpu.restart(clock, now[0])
        else:
            self.cpu.add(clock, now[0], limit)
        if flow >= IO_BURST:
            self.io.restart(clock, now[1])
        else:
            self.io.add(clock, now[1], IO_QUIET)
        self._follow(clock)

    def _limit(self, processes: int) -> float:
        """How much of a core is quiet."""
        usual = CPU_QUIET * processes / PROCESSES_QUIET
        return max(CPU_QUIET, min(usual, self._working * WORKING_PART, CPU_QUIET_MOST))

    def _follow(self, clock: float) -> None:
        """Whether the processors are used as evenly as before."""
        if abs(self.rate - self._even) <= max(FLAT * self._even, FLAT_LEAST):
            self._even += (self.rate - self._even) / 10
            self._outliers = 0
            return
        self._outliers += 1
        if self._outliers >= FLAT_OUTLIERS:
            self._flatten(clock)
