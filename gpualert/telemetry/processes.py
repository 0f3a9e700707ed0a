"""The job's processes as /proc shows them: what they use together, and the most that each has used.

Facts: proc_pid_stat(5), proc_pid_io(5), proc_pid_status(5). Processor time and I/O of a child go over to its parent
when that waits for it, so that sums over those that live hold what short-lived children have done.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LARGEST = 10
"""How many processes' peaks are kept."""
_LOOKED_AT = 16
"""So many of the largest processes have their peak read at every look; the others now and then."""
_NOW_AND_THEN = 12
_PROCESSES_MAX = 20_000
_OWN = b"; from gpualert."
"""Is in the ``-c`` of every process that the supervisor starts for itself (``supervisor.reporter``)."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What the job's processes have done until now, and how they are.

    Attributes:
        cpu_s: Processor time, user and system, also of those that have ended, in seconds; it never falls.
        io_bytes: Bytes read and written, also those that a memory map brought in; it never falls.
        major_faults: Pages that had to be read from a disk; it never falls.
        processes: How many live.
        threads: How many threads they have.
        rss: Their resident memory in bytes; what they share counts once for each.
        states: How many processes are in each state, by the letter of /proc (``R`` running, ``S`` asleep, ``D`` waiting
            uninterruptibly, ``T`` stopped).
        pythons: The process ids of Python interpreters.
    """

    cpu_s: float
    io_bytes: int
    major_faults: int
    processes: int
    threads: int
    rss: int
    states: dict[str, int]
    pythons: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory that a process has had.

    Attributes:
        pid: Its process id.
        name: Its name.
        peak: Its highest resident memory (``VmHWM``), in bytes.
    """

    pid: int
    name: str
    peak: int

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        return {"pid": self.pid, "name": self.name, "peak": self.peak}


@dataclass(slots=True)
class Process:
    """A process of the job, as it was at the last look.

    Attributes:
        pid: Its process id.
        parent: Its parent's.
        started: When it was started, in clock ticks since boot: with the id, who it is.
        name: Its name, as the kernel has it.
        state: Its state's letter.
        threads: How many threads it has.
        rss: Its resident memory, in bytes.
        peak: Its highest resident memory known, in bytes.
        python: It is a Python interpreter.
        ticks: Processor time, with that of the children it has waited for, in clock ticks.
        faults: Major faults, counted in the same way.
        moved: Bytes that read(2) and the like brought in, bytes that came from a disk, bytes written.
    """

    pid: int
    parent: int
    started: int
    name: str = ""
    state: str = "R"
    threads: int = 1
    rss: int = 0
    peak: int = 0
    python: bool = False
    ticks: int = 0
    faults: int = 0
    moved: tuple[int, int, int] = (0, 0, 0)


class Tree:
    """The processes below the supervisor that are not gpualert's own.

    What was one of them stays one, whoever its parent is later; orphans come to the supervisor, as its children.
    """

    def __init__(self, root_pid: int, not_these: Iterable[int] = ()) -> None:
        """Nothing is looked at yet.

        Args:
            root_pid: The supervisor's process id.
            not_these: Process ids of gpualert's own; what they have started is left out too.
        """
        self.root = root_pid
        self._not_these = {*not_these, root_pid}
        self._foreign: set[int] = set()
        self._known: dict[int, Process] = {}
        self._ended: list[Peak] = []
        self._looks = 0
        self._ticks = self._faults = self._moved = 0
        self._sums = (0, 0, 0, 0, 0)
        self._command = _read(f"/proc/{root_pid}/cmdline")

    def sample(self) -> Activity:
        """Look at all of them."""
        self._look()
        live = [one for one in self._known.values() if one.state not in "ZX"]
        states: dict[str, int] = {}
        for one in live:
            states[one.state] = states.get(one.state, 0) + 1
        return Activity(
            cpu_s=self._ticks / TICKS,
            io_bytes=self._moved,
            major_faults=self._faults,
            processes=len(live),
            threads=sum(one.threads for one in live),
            rss=sum(one.rss for one in live),
            states=states,
            pythons=tuple(one.pid for one in live if one.python),
        )

    def processes(self) -> list[Process]:
        """Those that lived at the last look, by process id."""
        return [one for _, one in sorted(self._known.items()) if one.state not in "ZX"]

    def peaks(self) -> list[Peak]:
        """The ten processes that have needed the most memory, largest first; also those that have ended."""
        for one in self._known.values():
            _note_peak(one)
        return self._largest([_peak(one) for one in self._known.values()])

    def _largest(self, more: list[Peak]) -> list[Peak]:
        return sorted([*self._ended, *more], key=lambda peak: -peak.peak)[:LARGEST]

    # -- one look ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        except OSError:
            return
        if self._looks % _NOW_AND_THEN == 0:
            self._foreign.clear()  # an id may be somebody else's by now
        self._looks += 1
        self._foreign &= pids
        before = self._known
        self._known = {}
        for pid, one in before.items():
            stat = _stat(pid) if pid in pids else None
            if stat is not None and stat[1] == one.started:
                self._known[pid] = one
                _take(one, stat)
        self._add(self._new(pids - self._foreign - self._known.keys() - self._not_these))
        gone = [one for pid, one in before.items() if self._known.get(pid) is not one]
        if gone:
            self._ended = self._largest([_peak(one) for one in gone])
        self._count(gone)
        largest = sorted(self._known.values(), key=lambda one: -one.rss)
        for one in largest if self._looks % _NOW_AND_THEN == 0 else largest[:_LOOKED_AT]:
            _note_peak(one)

    def _new(self, pids: set[int]) -> dict[int, _Stat]:
        found = {}
        for pid in sorted(pids)[:_PROCESSES_MAX]:
            stat = _stat(pid)
            if stat is not None:
                found[pid] = stat
        return found

    def _add(self, new: dict[int, _Stat]) -> None:
        """Take those that are ours, and remember those that are not."""
        ours: dict[int, bool | None] = dict.fromkeys(self._known, True)
        for pid in new:
            way = []
            while pid not in ours and pid in new and pid not in way:
                way.append(pid)
                pid = new[pid][0]  # noqa: PLW2901  (up to somebody who is known)
            for one in reversed(way):
                parent = new[one][0]
                # What a process like us has started is the job's: that is the monitor of a pseudo-terminal.
                ours[one] = self._is_ours(one) if parent == self.root else ours.get(parent, False) is not False
        for pid, stat in new.items():
            if ours[pid]:
                self._known[pid] = Process(pid, stat[0], stat[1])
                _take(self._known[pid], stat)
            elif ours[pid] is not None:
                self._foreign.add(pid)

    def _is_ours(self, pid: int) -> bool | None:
        """Whether a child of the supervisor is of the job; None while it does not yet run a program of its own."""
        command = _read(f"/proc/{pid}/cmdline")
        if command == self._command:
            return None
        return _OWN not in command.partition(b"\0-c\0")[2].partition(b"\0")[0]

    def _count(self, gone: list[Process]) -> None:
        """Add what was done since the last look.

        What a process that has gone had done is in its parent's sums now, except where that is the supervisor.
        """
        sums = [0, 0, 0, 0, 0]
        for one in (*self._known.values(), *(one for one in gone if one.parent == self.root)):
            for index, value in enumerate((one.ticks, one.faults, *one.moved)):
                sums[index] += value
        ticks, faults, read, from_disk, written = (
            max(now - before, 0) for now, before in zip(sums, self._sums, strict=True)
        )
        self._ticks += ticks
        self._faults += faults
        # What a memory map brings in is no read(2), and what the page cache gives comes from no disk.
        self._moved += max(read, from_disk) + written
        kept = [0, 0, 0, 0, 0]
        for one in self._known.values():
            for index, value in enumerate((one.ticks, one.faults, *one.moved)):
                kept[index] += value
        self._sums = (kept[0], kept[1], kept[2], kept[3], kept[4])


_Stat = tuple[int, int, bytes, list[bytes]]
"""Parent, start, name, and the fields after the name."""


def _read(path: str) -> bytes:
    """The first bytes of a file of /proc; empty where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _stat(pid: int) -> _Stat | None:
    data = _read(f"/proc/{pid}/stat")
    end = data.rfind(b")")  # a name may hold anything
    fields = data[end + 2 :].split()
    if end < 0 or len(fields) < 22:
        return None
    return int(fields[1]), int(fields[19]), data[data.find(b"(") + 1 : end], fields


def _take(one: Process, stat: _Stat) -> None:
    """Take over what the kernel tells of a process now."""
    one.parent, _, raw, fields = stat
    one.state = fields[0].decode("ascii", "replace")
    one.faults = int(fields[9]) + int(fields[10])
    one.ticks = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
    one.threads = int(fields[17])
    one.rss = max(int(fields[21]), 0) * PAGE
    one.peak = max(one.peak, one.rss)
    name = "".join(c if c.isprintable() else "?" for c in raw.decode("utf-8", "replace"))  # the job chooses it
    if name != one.name:  # new, or it runs another program
        one.name = name
        one.python = _is_python(one.pid, name)
    io = _read(f"/proc/{one.pid}/io").split()
    if len(io) >= 10:
        one.moved = (int(io[1]), int(io[9]), int(io[3]))


def _is_python(pid: int, name: str) -> bool:
    try:
        program = os.readlink(f"/proc/{pid}/exe").rpartition("/")[2]
    except OSError:  # it is another user's, or gone
        program = name
    return program.startswith(("python", "pypy"))


def _note_peak(one: Process) -> None:
    _, found, rest = _read(f"/proc/{one.pid}/status").partition(b"\nVmHWM:")
    if found:
        one.peak = max(one.peak, int(rest.split(None, 1)[0]) * 1024)


def _peak(one: Process) -> Peak:
    return Peak(one.pid, one.name, one.peak)
