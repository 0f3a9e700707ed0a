"""PyTorch's flight recorder: having each rank write down its last collectives, and finding who is missing in one.

Facts (torch/csrc/distributed/c10d: ProcessGroupNCCL.cpp, FlightRecorder*.hpp; versions 2.0 to 2.10 of the format): a
rank whose environment names ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` makes the FIFO ``<that><rank>.pipe``, and dumps when
something is written into it; it also dumps at a time-out. A dump is a pickle (or JSON) at ``<prefix><rank>``, the
prefix from ``TORCH_FR_DUMP_TEMP_FILE``, ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE`` or a default.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING, Any

from gpualert.hang import pickled
from gpualert.hang.collectives import Dump, findings
from gpualert.hang.descriptors import content
from gpualert.rundir import regular, shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE_MAX, FILES_MAX, TOTAL_MAX = 64 << 20, 1024, 512 << 20
WAIT_S = 8.0
"""How long a rank may take to dump: it looks at its FIFO about once a second."""
_STILL_S = 0.3
_ENVIRONMENT_MAX = 1 << 20
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with, paths made absolute; empty where we may not know.

    Args:
        pid: The process.
    """
    raw = content(f"/proc/{pid}/environ", _ENVIRONMENT_MAX).decode("utf-8", "surrogateescape")
    found = dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)
    for name in (_PIPE, *_FILES):
        if found.get(name) and not found[name].startswith("/"):
            with contextlib.suppress(OSError):  # it has ended
                found[name] = os.path.join(os.readlink(f"/proc/{pid}/cwd"), found[name])
    return found


def prefixes(variables: Mapping[str, str]) -> list[str]:
    """What the names of a job's dumps may begin with.

    Args:
        variables: The job's environment.
    """
    for name in _FILES:
        if variables.get(name):
            return [variables[name]]
    cache = os.path.join(variables.get("HOME") or "/tmp", ".cache/torch")  # noqa: S108  (PyTorch's own default)
    return ["/tmp/nccl_trace_rank_", f"{cache}/comm_lib_trace_rank_", f"{cache}/nccl_trace_rank_"]  # noqa: S108


def trigger(variables: Mapping[str, str]) -> list[int]:
    """Ask the ranks of a job for a dump.

    Args:
        variables: The job's environment.

    Returns:
        The ranks that were asked.
    """
    asked = []
    for rank, path in _numbered(variables.get(_PIPE) or "", ".pipe"):
        try:
            # Without O_NONBLOCK the opening waits for somebody who reads.
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY)
        except OSError:
            continue  # the rank has gone
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"1")
                asked.append(rank)
        except OSError:
            pass  # nobody reads any more
        finally:
            os.close(fd)
    return sorted(asked)


def harvest(
    variables: Mapping[str, str], since_s: float, deadline: float, awaited: Iterable[int] = ()
) -> tuple[list[Dump], list[str]]:
    """Read the dumps that a job's ranks have written.

    Args:
        variables: The job's environment.
        since_s: Older files are another run's; seconds since 1970.
        deadline: When to be done, on the monotonic clock.
        awaited: Ranks whose dumps are worth waiting for.

    Returns:
        The dumps, and what is wrong with those that could not be read.
    """
    files = _written(variables, since_s)
    waited_for = set(awaited)
    until = min(deadline, time.monotonic() + WAIT_S)
    sizes: dict[int, int] = {}
    while waited_for and time.monotonic() < until:
        now = {rank: size for rank, (_, size) in files.items()}
        if waited_for <= now.keys() and now == sizes:
            break  # all are there, and none has grown
        sizes = now
        time.sleep(min(_STILL_S, max(until - time.monotonic(), 0)))
        files = _written(variables, since_s)
    found, wrong, left = [], [], TOTAL_MAX
    for rank, (path, size) in sorted(files.items())[:FILES_MAX]:
        left -= size
        if left < 0 or time.monotonic() >= deadline:
            wrong.append("there was no time or room for all the flight recorder's files")
            break
        try:
            found.append(Dump.of(rank, _value(path, deadline)))
        except (OSError, ValueError) as error:
            wrong.append(f"the flight recorder's file {path} cannot be used: {error}")
    return found, wrong


def told(variables: Mapping[str, str], since_s: float, deadline: float, asked: Iterable[int] = ()) -> dict[str, Any]:
    """What the flight recorder's dumps say.

    Args:
        variables: The job's environment.
        since_s: Older files are another run's; seconds since 1970.
        deadline: When to be done, on the monotonic clock.
        asked: Ranks that have just been asked for a dump (``trigger``).

    Returns:
        As ``collectives.findings``, with ``notes``; empty where there is nothing to say.
    """
    dumps, wrong = harvest(variables, since_s, deadline, asked)
    found = findings(dumps)
    if wrong:
        found["notes"] = wrong[:4]
    return found


def _numbered(prefix: str, ending: str) -> list[tuple[int, str]]:
    """The files whose name is a prefix, a rank and an ending."""
    directory, _, start = prefix.rpartition("/")
    if not prefix or not start.isprintable() or "\0" in prefix:
        return []
    try:
        names = os.listdir(directory or ("/" if prefix.startswith("/") else "."))
    except OSError:
        return []
    found = []
    for name in names:
        middle = name[len(start) : len(name) - len(ending)]
        if name.startswith(start) and name.endswith(ending) and middle.isdigit() and len(middle) <= 6:
            found.append((int(middle), os.path.join(directory or ".", name) if directory else f"/{name}"))
    return found[:FILES_MAX]


def _written(variables: Mapping[str, str], since_s: float) -> dict[int, tuple[str, int]]:
    """Path and size of each rank's newest file."""
    found: dict[int, tuple[float, str, int]] = {}
    for prefix in prefixes(variables):
        for rank, path in _numbered(prefix, ""):
            try:
                about = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode) and about.st_size and about.st_mtime >= since_s:
                found[rank] = max(found.get(rank, (0.0, "", 0)), (about.st_mtime, path, about.st_size))
    return {rank: (path, size) for rank, (_, path, size) in found.items()}


def _value(path: str, deadline: float) -> Any:
    data = regular.content(path, FILE_MAX)
    if data is None:
        raise ValueError(f"it is larger than {FILE_MAX >> 20} MiB")
    if data.lstrip()[:1] == b"{":
        return shapes.loads(data.decode("utf-8", "replace"))
    return pickled.loads(data, deadline)
