"""Since when a job's GPUs are idle, or wait in a kernel that spins.

A kernel of a collective library that waits for a peer keeps its GPU at 100 % and needs little power for that: what it
needs is compared with what this job's own work needs, so that no figure of a model of GPU is built in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpualert.hang.moment import Gpu

IDLE, STUCK, BUSY = 2.0, 99.0, 10.0
"""Per cent of utilization: no more is idle, no less may be stuck, no less is work."""
BUSY_LOOKS = 3
SPIN_POWER = 0.55
"""Of the power that the GPU needs when the job works: less than that while it is at 100 % is spinning."""
STEADY = 0.12
"""The power of what spins stays within this part."""
MEMORY_STEADY = 0.01


class Spinning:
    """The GPUs of one job.

    Attributes:
        idle_since: Since when all are idle; also where there are none. None while they are not.
        stuck_since: Since when one spins at least, and none works. None while that is not so.
        was_busy: They have worked before.
    """

    __slots__ = ("_busy", "_held", "_last", "_usual", "idle_since", "stuck_since")

    def __init__(self) -> None:
        self.idle_since: float | None = 0.0
        self.stuck_since: float | None = None
        self._busy = 0
        self._usual: dict[int, float] = {}
        self._held: dict[int, tuple[float, float]] = {}
        self._last: tuple[Gpu, ...] = ()

    @property
    def was_busy(self) -> bool:
        """They have worked before."""
        return self._busy >= BUSY_LOOKS

    def restart(self, clock: float) -> None:
        """Begin anew; what they need when they work stays known.

        Args:
            clock: Now.
        """
        if self.idle_since is not None:
            self.idle_since = clock
        if self.stuck_since is not None:
            self.stuck_since = clock

    def add(self, clock: float, gpus: tuple[Gpu, ...], *, progress: bool) -> None:
        """Take a look.

        Args:
            clock: Now.
            gpus: The GPUs.
            progress: The job has made progress lately: what they need now is what its work needs.
        """
        self._last = gpus
        used = [gpu[0] for gpu in gpus if gpu[0] is not None]
        self._busy += any(value >= BUSY for value in used)
        if progress:
            self._learn(gpus)
        idle = all(value <= IDLE for value in used)
        self.idle_since = (clock if self.idle_since is None else self.idle_since) if idle else None
        stuck = not idle and all(
            gpu[0] is None or gpu[0] <= IDLE or self._spins(index, gpu) for index, gpu in enumerate(gpus)
        )
        if not stuck:
            self.stuck_since = None
            self._held = {}
        elif self.stuck_since is None:
            self.stuck_since = clock

    def _learn(self, gpus: tuple[Gpu, ...]) -> None:
        for index, (used, _, power) in enumerate(gpus):
            if used is not None and power is not None and used > IDLE:
                usual = self._usual.get(index, 0.0)
                # The height of what goes up and down; one peak alone does not make it.
                self._usual[index] = usual + (power - usual) * (0.3 if power > usual else 0.02)

    def _spins(self, index: int, gpu: Gpu) -> bool:
        used, memory, power = gpu
        usual = self._usual.get(index)
        if used is None or used < STUCK or power is None or usual is None or power > SPIN_POWER * usual:
            return False
        held = self._held.setdefault(index, (memory or 0.0, power))
        same = abs((memory or 0.0) - held[0]) <= MEMORY_STEADY * held[0] and abs(power - held[1]) <= STEADY * held[1]
        if not same:
            self._held[index] = (memory or 0.0, power)
        return same

    def phrase(self) -> str:
        """What the GPUs do, in words; empty where there are none."""
        told: dict[str, list[int]] = {}
        for index, (used, _, power) in enumerate(self._last):
            if used is None:
                continue
            text = f"at {used:.0f} %"
            usual = self._usual.get(index)
            if self.stuck_since is not None and used >= STUCK and power is not None and usual is not None:
                text += f" with about {_rounded(power):.0f} of its usual {_rounded(usual):.0f} W"
            told.setdefault(text, []).append(index)
        return ", ".join(
            f"{'GPU' if len(which) == 1 else 'GPUs'} {_listed(which)} {text}" for text, which in told.items()
        )


def _rounded(watts: float) -> float:
    """To ten watts, so that GPUs that do the same are told of together."""
    return round(watts / 10) * 10


def _listed(numbers: list[int]) -> str:
    """``0-3, 6`` for the numbers 0, 1, 2, 3 and 6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
