"""Reading run directories again: which there are, what one holds, and its output with streams and times."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpualert.rundir import assembly, index, location, regular, shapes
from gpualert.rundir.writer import EVENTS, EXIT, OPEN, REPORT, RUN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.rundir.shapes import Shape

MAX_JSON = 16 << 20
MAX_EVENT = 64 << 10
MAX_RUNS = 1000


class NoSuchRunError(Exception):
    """No run has that name; the message says what to do."""


def _json(path: str, shape: Shape) -> dict[str, Any] | None:
    """A JSON object from a file, as far as it has its shape; None where there is none, or something else."""
    try:
        data = regular.content(path, MAX_JSON)
        value = shape(shapes.loads((data or b"").decode("utf-8", "replace")))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory.

    Attributes:
        path: Where it is.
        facts: ``run.json``; empty where that is unreadable.
        exit: ``exit.json``; None while the run goes on, or when its supervisor died.
        report: ``report.json``; None before it is made.
    """

    path: str
    facts: dict[str, Any] = field(default_factory=dict)
    exit: dict[str, Any] | None = None
    report: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: str) -> Run:
        """Read the small files of a run directory.

        Args:
            path: The directory.
        """
        path = os.path.abspath(path)
        return cls(
            path,
            _json(os.path.join(path, RUN), shapes.RUN) or {},
            _json(os.path.join(path, EXIT), shapes.EXIT),
            _json(os.path.join(path, REPORT), shapes.REPORT),
        )

    @property
    def run_id(self) -> str:
        """Its id."""
        return str(self.facts.get("run_id") or os.path.basename(self.path))

    @property
    def log_path(self) -> str:
        """Its output."""
        return os.path.join(self.path, assembly.NAME)

    def events(self) -> Iterator[dict[str, Any]]:
        """What ``events.jsonl`` holds, in order; a line that was cut short is passed over."""
        try:
            with open(regular.opened(os.path.join(self.path, EVENTS)), "rb") as file:
                while line := file.readline(MAX_EVENT):
                    try:
                        event = shapes.EVENT(shapes.loads(line.decode("utf-8", "replace")))
                    except ValueError:
                        continue
                    if isinstance(event, dict):
                        yield event
        except OSError:
            return


def log_directories(named: str | None, environment: dict[str, str]) -> list[str]:
    """The log directories to look in, those that exist.

    Args:
        named: The one that was asked for; None for the usual ones.
        environment: Variables and values.
    """
    if named:
        return [os.path.abspath(named)]
    raw = {key.encode(): value.encode("utf-8", "surrogateescape") for key, value in environment.items()}
    return [path for path in location.defaults(raw) if os.path.isdir(path)]


def run_ids(log_directory: str) -> list[str]:
    """The ids of the runs in a log directory, newest first.

    Args:
        log_directory: The directory.
    """
    try:
        with os.scandir(log_directory) as entries:
            names = [entry.name for entry in entries if _looks_like_run(entry.name) and entry.is_dir()]
    except OSError:
        return []
    return sorted(names, reverse=True)


def _looks_like_run(name: str) -> bool:
    return len(name) > 24 and name[:8].isdigit() and name[8] == "T" and name != OPEN


def find(name: str, directories: list[str]) -> Run:
    """The run of that name.

    Args:
        name: Its id, the start of its id, part of its name when that is unique, a path, or ``latest``.
        directories: The log directories to look in.

    Raises:
        NoSuchRunError: There is none, or more than one.
    """
    if os.sep in name or name in (".", "..") or os.path.isfile(os.path.join(name, RUN)):
        if os.path.isfile(os.path.join(name, RUN)):
            return Run.read(name)
        raise NoSuchRunError(f"{name} is not a run directory (it has no {RUN})")
    found = [os.path.join(directory, run) for directory in directories for run in run_ids(directory)]
    if name == "latest":
        if not found:
            where = ", ".join(directories) or "the usual places"
            raise NoSuchRunError(f"there is no run in {where} (--log-dir says where to look)")
        return Run.read(max(found, key=os.path.basename))
    matching = [path for path in found if os.path.basename(path).startswith(name)]
    matching = matching or [path for path in found if name in os.path.basename(path)]
    if not matching:
        raise NoSuchRunError(f"no run is called {name} (gpualert runs lists them; --log-dir says where to look)")
    if len(matching) > 1 and os.path.basename(matching[0]) != name:
        shown = ", ".join(os.path.basename(path) for path in matching[:3])
        raise NoSuchRunError(f"{name} fits {len(matching)} runs ({shown}, ...): give more of the id")
    return Run.read(matching[0])


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the output.

    Attributes:
        at_us: When they came, in microseconds since 1970; None when unknown.
        stream: Where they came from (``index.STDOUT`` ...); None when unknown.
        data: The bytes.
    """

    at_us: int | None
    stream: int | None
    data: bytes


def output(run: Run, offset: int = 0, entry: int = 0) -> Iterator[Piece]:
    """The output of a run, piece by piece, from an offset on.

    Args:
        run: The run.
        offset: Where to begin, in bytes; the start of a record.
        entry: How many records of the index lie before that.
    """
    with open(run.log_path, "rb") as log:
        log.seek(offset)
        for at_us, stream, length in _records(run, entry):
            left = length
            while left > 0:
                data = log.read(min(left, 1 << 20))
                if not data:
                    return
                left -= len(data)
                yield Piece(at_us, stream, data)
        while data := log.read(1 << 20):
            yield Piece(None, None, data)


def _records(run: Run, skip: int) -> Iterator[tuple[int, int, int]]:
    try:
        with open(os.path.join(run.path, assembly.INDEX), "rb") as file:
            header = file.read(index.RECORD)
            file.seek(index.RECORD * (skip + 1))
            while chunk := file.read(index.RECORD * 4096):
                yield from index.records(header + chunk)
    except (OSError, ValueError):
        return
