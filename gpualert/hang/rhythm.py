"""The detector of hangs: silence and no work, for longer than this job has ever come back from.

Pure: moments in, suspicions out. A hang is told once; ``over`` follows when output or work comes back. Time counts only
while it is looked at: what lies in a gap between two moments (a suspended machine, a collector that got no processor)
is no silence.
"""

from __future__ import annotations

from collections import deque

from gpualert.hang.moment import Moment, Suspicion
from gpualert.hang.quiet import Quiet
from gpualert.hang.spinning import Spinning

__all__ = ["Moment", "Rhythm", "Suspicion"]

LEARNED_TIMES = 3.0
"""A pause that the job has come back from may last so many times longer before it is a hang."""
STALLED_TIMES = 3.0
"""Output with the same step counts as progress for so many windows."""
STEPS_KNOWN = 3
"""So many steps make a rhythm."""
GAP_TIMES, GAP_LEAST_S = 3.0, 1.0
"""A gap between two moments counts for at most so many of the usual ones."""
WORK_LOOKS = 3
"""So many looks in a row that show work end a hang; a dump that the job writes about itself is none."""
LATELY_LOOKS = 3
"""What a GPU needs so soon after progress is what the job's work needs."""
_RULES = {"stopped": 1.0, "idle": 1.0, "gpu-spin": 1.0, "uninterruptible": 2.0, "cpu-spin": 2.0}
"""What shows a hang, and how many windows it takes: what spins may be work that nobody hears of."""


class Rhythm:
    """Follows one job."""

    def __init__(self, after_s: float, warmup_s: float) -> None:
        """Nothing is seen yet.

        Args:
            after_s: How long nothing must happen before it is a hang, in seconds.
            warmup_s: How long after the first moment nothing counts, in seconds.
        """
        self._after_s = after_s
        self._warmup_s = warmup_s
        self._last: Moment | None = None
        self._began_s = 0.0
        self._gaps: deque[float] = deque(maxlen=9)
        self._clock = 0.0
        self._heard = 0.0
        self._repeating = False
        self._stepped = 0.0
        self._steps = 0
        self._quiet = Quiet(after_s)
        self._spinning = Spinning()
        self._since: dict[str, float | None] = {"T": None, "D": None}
        self._pauses: dict[str, float] = {}
        self._longest: dict[str, float] = {}
        self._hang: Suspicion | None = None
        self._working = 0

    def observe(self, moment: Moment) -> Suspicion | None:
        """Take a moment.

        Args:
            moment: Later than the last one.

        Returns:
            What is to be told; mostly nothing.
        """
        last, self._last = self._last, moment
        if last is None:
            self._began_s = moment.at_s
            self._restart(moment)
            return None
        gap = moment.at_s - last.at_s
        if gap <= 0:
            return None
        self._advance(gap)
        silent = self._silent()
        heard = self._listen(moment, last)
        self._look(moment, last, gap)
        if moment.at_s - self._began_s < self._warmup_s:
            self._restart(moment)
            return None
        self._learn(moment, last)
        if self._hang is not None:
            return self._over(silent, heard=heard)
        return self._judge(moment)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def _restart(self, moment: Moment) -> None:
        """Count from now on."""
        self._heard = self._stepped = self._clock
        self._since = {"T": None, "D": None}
        self._quiet.restart(self._clock, moment.cpu_s, moment.io_bytes)
        self._spinning.restart(self._clock)

    def _advance(self, gap: float) -> None:
        """Let time go on, but not for what nobody has seen."""
        usual = sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else gap
        self._gaps.append(gap)
        self._clock += min(gap, max(GAP_TIMES * usual, GAP_LEAST_S))

    def _listen(self, moment: Moment, last: Moment) -> bool:
        """Whether there is output that is progress."""
        stepped = moment.step is not None and moment.step != last.step
        if stepped:
            if self._steps:
                self._keep_longest("step", self._clock - self._stepped)
            self._steps += 1
            self._stepped = self._clock
        if moment.log_bytes == last.log_bytes and not stepped:
            return False
        self._repeating = not stepped and (moment.fresh is False or self._stalled())
        if not self._repeating:
            self._heard = self._clock
        return not self._repeating

    def _stalled(self) -> bool:
        """Whether the steps have stopped for much longer than they ever did."""
        return self._steps >= STEPS_KNOWN and self._clock - self._stepped > STALLED_TIMES * self._window("step")

    def _silent(self) -> float:
        """How long there has been no progress."""
        return self._clock - (self._stepped if self._stalled() else self._heard)

    def _look(self, moment: Moment, last: Moment, gap: float) -> None:
        spent = moment.cpu_s - last.cpu_s, moment.io_bytes - last.io_bytes
        processes = sum(moment.states.values())
        self._quiet.add(self._clock, gap, spent, (moment.cpu_s, moment.io_bytes), processes)
        lately = self._silent() <= LATELY_LOOKS * gap
        self._spinning.add(self._clock, moment.gpus, progress=lately)
        for letter, since in self._since.items():
            self._since[letter] = (self._clock if since is None else since) if moment.states.get(letter) else None

    # -- what it shows -------------------------------------------------------------------------------------------------

    def _holds_since(self) -> dict[str, float | None]:
        """Since when each rule holds; None where it does not."""
        quiet, spinning = self._quiet, self._spinning
        io, flat, idle = quiet.io.since, quiet.flat_since, spinning.idle_since
        return {
            "stopped": _latest(self._since["T"], io),
            "idle": _latest(idle, io, quiet.cpu.since),
            "gpu-spin": _latest(spinning.stuck_since, io, flat),
            "uninterruptible": _latest(self._since["D"], io),
            "cpu-spin": _latest(idle, io, flat) if spinning.was_busy else None,
        }

    def _window(self, rule: str) -> float:
        return max(self._after_s, LEARNED_TIMES * self._longest.get(rule, 0.0))

    def _keep_longest(self, rule: str, pause: float) -> None:
        self._longest[rule] = max(self._longest.get(rule, 0.0), pause)

    def _learn(self, moment: Moment, last: Moment) -> None:
        """Learn how long a pause has lasted that has just ended, unless somebody had stopped the job."""
        silent = self._silent()
        pauses = {
            rule: min(silent, self._clock - since) if since is not None else 0.0
            for rule, since in self._holds_since().items()
        }
        if not last.states.get("T") and not moment.states.get("T"):
            for rule, pause in self._pauses.items():
                # What is quiet by its mean may begin a little later with each look: that is no end.
                if pauses[rule] < pause / 2:
                    self._keep_longest(rule, pause)
        self._pauses = pauses

    def _judge(self, moment: Moment) -> Suspicion | None:
        for rule, windows in _RULES.items():
            if self._pauses[rule] >= windows * self._window(rule):
                silent, pause = self._silent(), self._pauses[rule]
                self._hang = Suspicion("suspected", silent, self._why(moment, silent, pause), self._name(rule, pause))
                self._working = 0
                return self._hang
        return None

    def _name(self, rule: str, pause: float) -> str:
        """The rule that says most: of what is idle because it cannot run, that it cannot."""
        for letter, name in (("T", "stopped"), ("D", "uninterruptible")):
            since = self._since[letter]
            if rule == "idle" and since is not None and self._clock - since >= pause / 2:
                return name
        return rule

    def _over(self, silent: float, *, heard: bool) -> Suspicion | None:
        """Whether a hang has ended."""
        hang = self._hang
        if hang is None:
            return None
        since = self._holds_since()[hang.rule]
        self._working = self._working + 1 if since is None or since == self._clock else 0
        if not heard and self._working < WORK_LOOKS:
            return None
        self._hang = None
        if not heard:
            self._heard = self._clock
        how = "there is output again" if heard else "it works again, still without output"
        return Suspicion("over", silent, f"{how}, after {duration(silent)}", hang.rule)

    def _why(self, moment: Moment, silent: float, pause: float) -> str:
        """What shows a hang, for a person."""
        if self._stalled():
            words = [f"no step after {moment.step:.0f} for {duration(silent)}" if moment.step else "no further step"]
        else:
            words = [f"{'only the same lines' if self._repeating else 'no output'} for {duration(silent)}"]
        states = moment.states
        count = sum(states.values())
        used = self._quiet.cpu.mean(self._clock, moment.cpu_s)
        if self._quiet.cpu.since > self._clock - pause / 2:  # not quiet: what it uses now
            used = self._quiet.rate
        cores = f"{used * 100:.1f} % of one core" if used < 1 else f"{used:.1f} cores"
        words.append(f"{count} {'process' if count == 1 else 'processes'} used {cores}")
        for letter, text in (
            ("T", "stopped by a signal"),
            ("D", "waiting uninterruptibly for a disk, a network file system or a driver"),
        ):
            if self._since[letter] is not None and states.get(letter):
                words.append(f"{states[letter]} of them {text}")
        words.append(self._spinning.phrase())
        return "; ".join(word for word in words if word)


def _latest(*times: float | None) -> float | None:
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None


def duration(seconds: float) -> str:
    """``45s``, ``31m``, ``2h05m``.

    Args:
        seconds: How long, in seconds.
    """
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    return f"{minutes}m" if minutes < 120 else f"{minutes // 60}h{minutes % 60:02d}m"
