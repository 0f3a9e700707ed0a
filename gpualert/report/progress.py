"""How far a run's training was: from what the collector has left, else from the end of the log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpualert.progress.formats import read
from gpualert.progress.tracker import Tracker
from gpualert.report.span import seconds_of
from gpualert.rundir import assembly, index, regular, shapes
from gpualert.telemetry import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.rundir.reader import Run

TAIL_BYTES, BRIEF_BYTES = 256 << 10, 64 << 10
"""How much of the log's end is read, and how much of it where it only brings a recorded state up to date."""
RECORD_BYTES = 1 << 20
"""How much of the end of ``telemetry.jsonl`` is looked at: an hour and more, unless it holds many GPUs."""
PIECES_MAX = 65536
WINDOW_S = 5.0
"""Output that came within this time is read together, as the collector does."""
TEXT_MAX = 40
"""Characters of a text in it; a time has 27."""
_TOLD = (
    "at", "format", "step", "total", "unit", "rank", "epoch", "epochs", "loss", "nan_since", "rate", "slower", "since",
    "finish_in_s",
)  # fmt: skip
_OF_THE_LOG = ("at", "step", "total", "unit", "epoch", "epochs", "loss", "rank", "finish_in_s")


def of(run: Run, *, goes_on: bool = False, brief: bool = False) -> dict[str, Any] | None:
    """How far the training was when the run ended, or is.

    Args:
        run: The run.
        goes_on: It has not ended: say when it will be through.
        brief: Read less of the log.

    Returns:
        What ``Tracker.state`` tells; None where neither the collector nor the log tells of a step.
    """
    recorded = _recorded(run.path)
    shown = _shown(run, BRIEF_BYTES if brief or recorded else TAIL_BYTES)
    found = _newer(recorded, shown) if recorded and shown else recorded or shown
    if found is None:
        return None
    if not goes_on:
        found.pop("finish_in_s", None)
    fitted = shapes.PROGRESS(found)
    if not isinstance(fitted, dict):
        return None
    told = {name: fitted[name] for name in _TOLD if fitted.get(name) is not None}
    return {name: value[:TEXT_MAX] if isinstance(value, str) else value for name, value in told.items()}


def _newer(recorded: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
    """What the collector wrote last, with what the log's end tells after it: it writes every half minute."""
    if any(shown.get(name) != recorded.get(name) for name in ("format", "total")):
        return recorded  # another counter of the same log
    if all(shown.get(name) == recorded.get(name) for name in ("step", "epoch")):
        return recorded
    kept = {name: value for name, value in recorded.items() if name not in ("loss", "nan_since")}
    nan = {"nan_since": recorded.get("nan_since") or shown["nan_since"]} if "nan_since" in shown else {}
    return {"rate": shown.get("rate")} | kept | {name: shown[name] for name in _OF_THE_LOG if name in shown} | nan


def _recorded(directory: str) -> dict[str, Any] | None:
    """The collector's last line about progress."""
    try:
        text = _end_of(os.path.join(directory, record.NAME), RECORD_BYTES)
    except OSError:
        return None
    for raw in reversed(text.split(b"\n")):
        if b'"progress"' not in raw:
            continue
        try:
            line = shapes.PROGRESS(shapes.loads(raw.decode("utf-8", "replace")))
        except ValueError:
            continue  # cut short
        if isinstance(line, dict) and line.pop("kind", None) == "progress":
            return line
    return None


def _shown(run: Run, room: int) -> dict[str, Any] | None:
    """What the end of the log tells, read in the order and at the pace in which it came."""
    tracker, held = Tracker(), b""
    try:
        text = _end_of(run.log_path, room)
    except OSError:
        return None
    for at_s, piece in _timed(run, text):
        held += piece
        whole = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        tracker.add(read(held[:whole].decode("utf-8", "replace")), at_s)
        held, last_s = held[whole:], at_s
    tracker.add(read(held.decode("utf-8", "replace")), last_s)
    return tracker.state()


def _timed(run: Run, text: bytes) -> Iterator[tuple[float, bytes]]:
    """Pieces of the log's end, at least one, and when each came: by the index, else when the last output came."""
    last_s = seconds_of((run.exit or {}).get("last_output_at")) or seconds_of(run.facts.get("started_at")) or 0.0
    entries = _entries(run.path)
    left, first = len(text), len(entries)
    while first and left > 0:
        first -= 1
        left -= entries[first][1]
    begin, position, window = 0, min(left, 0), None  # of the first entry only the end is in the text
    for at_s, length in entries[first:]:
        if window is not None and not 0 <= at_s - window < WINDOW_S:
            yield last_s, text[begin:position]
            begin, window = position, None
        window = at_s if window is None else window
        position, last_s = position + length, at_s
    yield last_s, text[begin:]


def _entries(directory: str) -> list[tuple[float, int]]:
    """When the last pieces of output came, in seconds since 1970, and how long each is."""
    try:
        data = _end_of(os.path.join(directory, assembly.INDEX), index.RECORD * PIECES_MAX)
        return [(at / 1e6, length) for at, _, length in index.records(index.HEADER + data.removeprefix(index.HEADER))]
    except (OSError, ValueError):
        return []


def _end_of(path: str, room: int) -> bytes:
    """The end of a file, from a whole record of an index on.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    with open(regular.opened(path), "rb") as file:
        begin = max(os.fstat(file.fileno()).st_size - room, 0)
        file.seek(begin - begin % index.RECORD)
        return file.read(room + index.RECORD)
