"""Following a training: which of the counters in its output matters, how far it is, and how fast it goes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpualert.progress.pace import Pace
from gpualert.rundir.clock import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpualert.progress.step import Step

COUNTERS_MAX = 64
"""Counters that are followed at once; a log may invent as many as it likes."""
TOGETHER_S = 120.0
"""Counters that advanced within this time of each other go on side by side."""
_BARS = ("tqdm", "rich", "keras")
Key = tuple[str, int | None, int | bool]


class _Counter:
    """One counter in the output, of one rank."""

    __slots__ = (
        "advanced_clock", "advanced_s", "done", "epoch", "format", "has_loss", "key", "lower", "pace", "per_epoch",
        "rank", "rate", "step", "total", "unit",
    )  # fmt: skip

    def __init__(self, key: Key, first: Step, epoch: float | None, clock_s: float, at_s: float) -> None:
        self.key, self.format, self.rank, self.unit = key, first.format, first.rank, first.unit
        self.step = first.step or 0
        self.total, self.rate, self.epoch = first.total, first.rate, epoch
        self.per_epoch = first.per_epoch
        self.has_loss = first.loss is not None
        self.done = self.lower = 0
        self.advanced_clock, self.advanced_s = clock_s, at_s
        self.pace = Pace()
        self.pace.add(0, clock_s, at_s)

    def add(self, new: Step, epoch: float | None, clock_s: float, at_s: float) -> bool:
        """Note a newer state; whether it is another."""
        step = new.step or 0
        done, again = self._done(step, new.total, epoch)
        if again:
            self.pace.restart()
        self.unit, self.rate = new.unit, new.rate if new.rate is not None else self.rate
        self.has_loss = self.has_loss or new.loss is not None
        self.per_epoch = new.per_epoch if new.per_epoch is not None else self.per_epoch
        if done is None:
            return False
        self.done += done
        self.step, self.total, self.epoch = step, new.total or self.total, epoch
        self.lower = 0
        self.advanced_clock, self.advanced_s = clock_s, at_s
        self.pace.add(self.done, clock_s, at_s)
        return True

    def _done(self, step: int, total: int | None, epoch: float | None) -> tuple[int | None, bool]:
        """How many steps were done since; None where nothing moved. And whether it went back to an earlier one."""
        delta = step - self.step
        passed = int(epoch - self.epoch) if epoch is not None and self.epoch is not None else 0
        if self.per_epoch and passed > 0 and total:
            return max(passed * total + delta, 0), False
        if delta > 0:
            return delta, False
        if delta == 0:
            return None, False
        if passed > 0 or (step <= self.step // 5 and self.total is not None and self.step >= 0.9 * self.total):
            self.per_epoch = True  # it begins anew with every epoch
            return step, False
        # Ranks that do not say who they are print a little out of step; who really went back, stays there.
        self.lower += 1
        return (0, True) if self.lower > 1 else (None, False)

    @property
    def weight(self) -> tuple[int, int, int]:
        """What speaks for it as the training's own: a known end, a loss beside it, a long way."""
        return (2 if self.total else 0) + (1 if self.has_loss else 0), self.total or 0, self.step


class Tracker:
    """What a run's output has told of its progress so far."""

    def __init__(self) -> None:
        self._counters: dict[Key, _Counter] = {}
        self._main: _Counter | None = None
        self._epoch: float | None = None
        self._epochs: int | None = None
        self._epoch_first: tuple[float, float] | None = None
        self._epoch_at: tuple[float, float] | None = None
        self._format = ""
        self._loss: float | None = None
        self._nan_since_s: float | None = None

    def add(self, steps: Iterable[Step], at_s: float, clock_s: float | None = None) -> bool:
        """Note what a piece of output has told.

        The same output may be told again: only its last signs count.

        Args:
            steps: The signs in it, in their order, as ``read`` gives them.
            at_s: When that output came, in seconds since 1970.
            clock_s: The same on a monotonic clock, by which rates are measured; ``at_s`` where None.

        Returns:
            Whether the training has advanced.
        """
        clock = at_s if clock_s is None else clock_s
        latest: dict[Key, tuple[Step, float | None]] = {}
        before = self._position()
        trained = [step for step in steps if step.phase == "train"]
        self._note(trained, at_s, clock)
        epoch = self._epoch
        for step in trained:
            if step.step is not None:
                bar = step.format in _BARS and not step.per_epoch
                key: Key = (step.format, step.rank, (step.total or 0) if bar else step.total is not None)
                latest[key] = (step, step.epoch if step.epoch is not None else epoch)
        for key, (step, epoch) in latest.items():
            counter = self._counters.get(key)
            if counter is None:
                self._counters[key] = _Counter(key, step, epoch, clock, at_s)
            else:
                counter.add(step, epoch, clock, at_s)
        while len(self._counters) > COUNTERS_MAX:
            stalest = min(self._counters.values(), key=lambda one: (one is self._main, one.advanced_clock))
            del self._counters[stalest.key]
        if latest:
            self._main = self._chosen()
        return self._position() != before

    def _note(self, steps: list[Step], at_s: float, clock_s: float) -> None:
        """What holds for the run as a whole, whichever counter counts its steps; only the last of each is news."""
        losses = [step.loss for step in steps if step.loss is not None]
        if losses:
            self._loss = losses[-1]
            if math.isfinite(self._loss):
                self._nan_since_s = None
            elif self._nan_since_s is None:
                self._nan_since_s = at_s
        epochs = [step.epochs for step in steps if step.epochs is not None]
        self._epochs = epochs[-1] if epochs else self._epochs
        told = [step for step in steps if step.epoch is not None]
        if told:
            epoch = told[-1].epoch or 0.0
            if self._epoch_first is None or epoch < self._epoch_first[0]:
                self._epoch_first = (epoch, clock_s)
            if epoch != self._epoch:
                self._epoch, self._epoch_at = epoch, (at_s, clock_s)
        if steps and not self._format:
            self._format = steps[-1].format

    def _position(self) -> tuple[Any, ...]:
        main = self._main
        return (main.key, main.step, main.epoch) if main else (None, None, self._epoch)

    def _chosen(self) -> _Counter:
        """The counter that counts the training's steps."""
        counters = self._counters.values()
        newest = max(one.advanced_clock for one in counters)
        live = [one for one in counters if newest - one.advanced_clock <= TOGETHER_S]
        best = max(live, key=lambda one: one.weight)
        main = self._main
        if main is not None and main.key in self._counters and main not in live:
            # A bar without a name may be that of an evaluation, while the training's own waits for it.
            waits = main.total is not None and main.step < main.total
            if waits and best.weight < main.weight:
                return main
        # Of the ranks that count alike: rank 0, else the one that is behind.
        alike = [one for one in live if one.key[0] == best.key[0] and one.key[2] == best.key[2]]
        return min(alike, key=lambda one: (one.rank not in (None, 0), one.step))

    def state(self) -> dict[str, Any] | None:
        """How far the training is; None where nothing has told of any.

        Returns:
            ``at`` (RFC 3339, when it last advanced) and ``format``, and what is known of: ``step``, ``total``,
            ``unit``, ``rank``, ``epoch``, ``epochs``, ``loss`` (missing while it is not finite),
            ``rate`` (steps a second, measured where it can be, else as printed), ``slower`` (by which part, 0 to 1) and
            ``since`` (RFC 3339), ``nan_since`` (RFC 3339), ``finish_in_s`` (seconds, from ``at`` on).
        """
        main = self._main
        if main is None and self._epoch is None:
            return None
        told: dict[str, Any] = {}
        if main is not None:
            rate = main.pace.rate or main.rate
            told = {
                "at": _rfc3339(main.advanced_s),
                "format": main.format,
                "step": main.step,
                "total": main.total,
                "unit": main.unit,
                "rank": main.rank,
                "rate": _rounded(rate),
                "slower": _rounded(main.pace.slower),
                "since": _rfc3339(main.pace.since_s) if main.pace.since_s is not None else None,
                "finish_in_s": self._left(main, rate),
            }
        elif self._epoch_at is not None:
            told = {"at": _rfc3339(self._epoch_at[0]), "format": self._format, "finish_in_s": self._epochs_left()}
        finite = self._loss is not None and math.isfinite(self._loss)
        told |= {
            "epoch": _rounded(self._epoch),
            "epochs": self._epochs,
            "loss": self._loss if finite else None,
            "nan_since": _rfc3339(self._nan_since_s) if self._nan_since_s is not None else None,
        }
        return {name: value for name, value in told.items() if value is not None}

    def _left(self, main: _Counter, rate: float | None) -> float | None:
        """How many seconds the run still needs at that rate; None where its end is not known."""
        if not rate or main.total is None or main.step > main.total:
            return None
        steps: float = main.total - main.step
        if self._epoch is not None and not self._whole(main):
            if self._epochs is None or self._epochs < self._epoch:
                return None
            steps += (self._epochs - int(self._epoch)) * main.total
        return round(steps / rate, 1)

    def _whole(self, main: _Counter) -> bool:
        """Whether a counter counts the steps of the whole run, not those of an epoch."""
        if main.per_epoch is not None:
            return not main.per_epoch
        if main.format in ("tqdm", "rich") or not main.total or self._epoch is None:
            return True
        # "epoch 3 step 100/4000": of the run where the epoch is as far as the steps are, else of the epoch.
        return bool(self._epochs) and abs(main.step / main.total - self._epoch / (self._epochs or 1)) < 1 / (
            self._epochs or 1
        )

    def _epochs_left(self) -> float | None:
        if self._epoch is None or self._epochs is None or self._epoch_first is None or self._epoch_at is None:
            return None
        passed, took = self._epoch - self._epoch_first[0], self._epoch_at[1] - self._epoch_first[1]
        left = self._epochs - self._epoch
        return round(left * took / passed, 1) if passed > 0 and took > 0 and left >= 0 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _rfc3339(at_s: float) -> str:
    return rfc3339(int(at_s * 1e6))
