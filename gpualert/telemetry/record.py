"""``telemetry.jsonl``: what the collector has seen, one object a line, and how others read it.

Every line has ``at`` (RFC 3339) and ``kind``. The file is the collector's while it holds the lock on it.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpualert.rundir import jsontext, regular, shapes
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.rundir.writer import FILE_MODE, write_all

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "telemetry.jsonl"
MAX_LINE, MAX_LINES, MAX_BYTES = 1 << 20, 100_000, 256 << 20
KEPT_EVENTS = 2000
"""How many lines of a kind that is no sample a reader keeps: the first ones; of progress some from all of the run."""
_POLL_S = 0.02

_GPU = shapes.table(
    {
        **dict.fromkeys(("index", "processes"), shapes.count),
        **dict.fromkeys(
            ("memory_used", "memory_total", "ecc_corrected", "ecc_uncorrected", "remapped_rows", "remap_pending",
             "remap_failed", "nvlink_errors", "retired_pages"),
            shapes.whole,
        ),
        **dict.fromkeys(("utilization", "power_w", "power_limit_w", "temperature_c", "energy_j"), shapes.seconds),
        **dict.fromkeys(("uuid", "name", "pci", "mig"), shapes.text),
        "lost": shapes.switch,
        "throttle": shapes.listed(shapes.text),
    }
)  # fmt: skip
"""One GPU in a sample or an inventory."""

_PEAKS = shapes.listed(shapes.table({"pid": shapes.whole, "name": shapes.text, "peak": shapes.whole}))


def _processes(value: Any) -> Any:
    """How many there are, in a sample; which took the most memory, in the peaks."""
    return _PEAKS(value) if isinstance(value, list) else shapes.seconds(value)


LINE = shapes.table(
    {
        "at": shapes.moment,
        "kind": shapes.text,
        **dict.fromkeys(("text", "state", "why", "about", "unit", "meaning", "action", "class"), shapes.text),
        **dict.fromkeys(
            ("cpu_s", "io_bytes", "rss", "threads", "major_faults", "shm_used", "shm_size",
             "log_bytes", "code", "gpu", "pid", "step", "total", "epoch"),
            shapes.seconds,
        ),
        "processes": _processes,
        "gpus": shapes.listed(_GPU),
        "psi": shapes.table({}),
    },
    needed=("at", "kind"),
)  # fmt: skip
"""A line; what else it holds is looked at by those who use it."""


class Record:
    """The collector's end of the file."""

    __slots__ = ("_fd",)

    def __init__(self, run_directory: str) -> None:
        """Make the file and lock it.

        Args:
            run_directory: The run's directory.

        Raises:
            OSError: It cannot be made, or another collector has it.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(os.path.join(run_directory, NAME), flags, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise
        except OSError:
            pass  # a file system without locks: nobody waits for us there

    def add(self, kind: str, fields: Mapping[str, object], at_us: int | None = None) -> None:
        """Append a line.

        Args:
            kind: What it is.
            fields: What it says: plain values.
            at_us: When, in microseconds since 1970; now when None.

        Raises:
            OSError: It cannot be written.
        """
        at = rfc3339(now_us() if at_us is None else at_us)
        write_all(self._fd, jsontext.dumps({"at": at, "kind": kind, **fields}).encode() + b"\n")

    def close(self) -> None:
        """Let others have it."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What the collector has left, as far as it has its shape.

    Attributes:
        samples: The lines of kind ``sample``, in order of time.
        events: The lines of the other kinds, by kind, in order of time.
    """

    samples: tuple[dict[str, Any], ...] = ()
    events: Mapping[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)

    def of(self, kind: str) -> tuple[dict[str, Any], ...]:
        """The lines of a kind that is no sample.

        Args:
            kind: The kind.
        """
        return self.events.get(kind, ())

    def last(self, kind: str) -> dict[str, Any] | None:
        """The last line of a kind; None where there is none.

        Args:
            kind: The kind.
        """
        lines = self.samples if kind == "sample" else self.of(kind)
        return lines[-1] if lines else None


_last_read: tuple[tuple[object, ...], Telemetry] | None = None
"""A report asks for the same file several times, and that of a long run takes a third of a second to read."""


def read(run_directory: str) -> Telemetry:
    """What the collector has left of a run; empty where it has left nothing.

    Args:
        run_directory: The run's directory.
    """
    global _last_read  # noqa: PLW0603  (one file, read again by whoever asks next)
    path = os.path.join(run_directory, NAME)
    try:
        state = os.stat(path)
    except OSError:
        return Telemetry()
    key = (path, state.st_ino, state.st_size, state.st_mtime_ns)
    if _last_read is None or _last_read[0] != key:
        _last_read = (key, _read(path))
    return _last_read[1]


def _read(path: str) -> Telemetry:
    samples: list[dict[str, Any]] = []
    events: dict[str, list[dict[str, Any]]] = {}
    try:
        with open(regular.opened(path), "rb") as file:
            for _ in range(MAX_LINES):
                raw = file.readline(MAX_LINE)
                if not raw or file.tell() > MAX_BYTES:
                    break
                line = parse(raw)
                if line is None:
                    continue
                kept = samples if line["kind"] == "sample" else events.setdefault(line["kind"], [])
                if len(kept) >= KEPT_EVENTS and line["kind"] == "progress":
                    del kept[1::2]  # a long run: every other one tells how it went
                if kept is samples or len(kept) < KEPT_EVENTS:
                    kept.append(line)
                else:
                    kept[-1] = line  # the first ones, and the last
    except OSError:
        pass  # there is none
    return Telemetry(tuple(samples), {kind: tuple(lines) for kind, lines in events.items()})


def parse(raw: bytes) -> dict[str, Any] | None:
    """A line as far as it has its shape; None where it is none of ours.

    Args:
        raw: The line.
    """
    try:
        value = LINE(shapes.loads(raw.decode("utf-8", "replace")))
    except ValueError:
        return None  # the last one may be cut short
    return value if isinstance(value, dict) else None


def wait_for_end(run_directory: str, timeout: float) -> bool:
    """Wait until the collector has written its last line.

    Args:
        run_directory: The run's directory.
        timeout: How long to wait at most, in seconds.

    Returns:
        Whether it has; also where there never was one.
    """
    until = time.monotonic() + timeout
    try:
        fd = regular.opened(os.path.join(run_directory, NAME))
    except OSError:
        return True
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
                time.sleep(_POLL_S)
            except OSError:
                return True  # a file system without locks
            else:
                return True
    finally:
        os.close(fd)
