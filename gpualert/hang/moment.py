"""What is seen of a job at one moment, and what is suspected from it: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Gpu = tuple[float | None, float | None, float | None]
"""Utilization in per cent, memory used in bytes, power in watts; None where the driver does not tell."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is seen of a job at one moment.

    Attributes:
        at_s: When, on the monotonic clock, in seconds.
        log_bytes: How many bytes it has written to stdout and stderr.
        cpu_s: Processor time of all its processes, in seconds.
        io_bytes: Bytes that they have read and written.
        step: The training step; None where none is known.
        states: How many processes are in each state, by /proc's letter.
        gpus: Each GPU.
        fresh: Whether the output since the last moment holds anything but lines that come again and again
            (``hang.repetition``); None where nobody has looked.
    """

    at_s: float
    log_bytes: int = 0
    cpu_s: float = 0.0
    io_bytes: int = 0
    step: float | None = None
    states: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    fresh: bool | None = None


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A job hangs, or hangs no longer.

    Attributes:
        state: ``suspected`` or ``over``.
        silent_s: How long it has made no progress, or had not, in seconds.
        why: What shows it, for a person.
        rule: What it was noticed by: ``idle``, ``stopped``, ``uninterruptible``, ``gpu-spin`` or ``cpu-spin``.
    """

    state: str
    silent_s: float
    why: str
    rule: str
