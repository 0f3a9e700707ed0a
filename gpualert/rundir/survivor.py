"""Survivors: closing runs whose supervisor died with its job, once, whoever finds them first."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpualert.rundir import assembly
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.rundir.reader import MAX_RUNS, Run, run_ids
from gpualert.rundir.writer import EVENTS, EXIT, OPEN, REPORT, RUN, SCHEMA, TELLING, TOLD, is_locked, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

STALE_S = 180.0
"""A supervisor on another host touches its journal every 30 seconds; after this long without, it is gone."""
CLOSING_LOCK = ".closing"


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """When a process started; None where there is none, or only its status is left (a zombie, proc_pid_stat(5))."""
    stat = _text(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split() if stat else []
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X", "x") else None


def _same_boot(facts: dict[str, Any]) -> bool:
    boot_id = facts.get("boot_id")
    return boot_id is not None and boot_id == _text("/proc/sys/kernel/random/boot_id")


def server_now(directory: str) -> float:
    """The time by the clock of the file server that holds ``directory``; by ours where nothing can be written.

    Args:
        directory: The directory.
    """
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def is_alive(run: Run) -> bool:
    """Whether a run's supervisor still lives.

    The lock on ``run.json`` decides where both are on one host. A process id alone proves nothing: it may have been
    given to another process, or belong to another PID namespace; so its start time must fit as well. For a run of
    another host the age of its journal decides.

    Args:
        run: The run.
    """
    if is_locked(os.path.join(run.path, RUN)):
        return True
    facts = run.facts
    if _same_boot(facts):
        pid, ticks = facts.get("pid"), facts.get("pid_start")
        namespace = facts.get("pid_ns")
        with contextlib.suppress(OSError):
            if namespace is not None and f"pid:[{namespace}]" == os.readlink("/proc/self/ns/pid"):
                return isinstance(pid, int) and ticks is not None and _start_ticks(pid) == ticks
        if _locks_work(run.path):
            return False
    try:
        beat = os.stat(os.path.join(run.path, EVENTS)).st_mtime
    except OSError:
        return False
    return server_now(run.path) - beat < STALE_S


def _locks_work(directory: str) -> bool:
    """Whether this file system has locks at all; if so, a lock that is free means a supervisor that is gone."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def find_interrupted(log_directory: str, limit: int = MAX_RUNS) -> list[str]:
    """The directories of runs whose supervisor died, or whose reporter did before the mail was in the spool.

    The newest come first.

    Args:
        log_directory: Where run directories are kept.
        limit: How many runs to look at.
    """
    found = []
    for run_id in run_ids(log_directory)[:limit]:
        path = os.path.join(log_directory, run_id)
        there = [os.path.exists(os.path.join(path, name)) for name in (EXIT, REPORT, TELLING)]
        if there == [True, True, False]:
            continue
        run = Run.read(path)
        if run.facts and is_open(run) and not is_alive(run):
            found.append(path)
    return found


def is_open(run: Run) -> bool:
    """Whether a run still has to be closed, or told of.

    It has no ``exit.json``; or it has ended, and whoever was to report it died before the mail was in the spool. While
    its supervisor lives an ended run is not open: the reporter is at work.

    Args:
        run: The run.
    """
    if run.exit is None:
        return True
    if os.path.exists(os.path.join(run.path, TOLD)):
        return False
    unfinished = run.report is None or os.path.exists(os.path.join(run.path, TELLING))
    return unfinished and not is_alive(run)


@contextlib.contextmanager
def telling(path: str) -> Iterator[None]:
    """Report a run: should we die before the end, the next survivor goes on; should we come to it, nobody tells again.

    Args:
        path: The run directory.

    Raises:
        OSError: The run directory cannot be written.
    """
    begun, done = os.path.join(path, TELLING), os.path.join(path, TOLD)
    os.close(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640))
    yield
    # A new name, since a full disk takes no content: what was told stays told, also when its report cannot be written.
    os.rename(begun, done)


def settle(path: str) -> None:
    """The report of a run that was told of is on the disk: nothing else needs to say so.

    Args:
        path: The run directory.
    """
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(path, TOLD))


@contextlib.contextmanager
def at_work(path: str) -> Iterator[None]:
    """Keep survivors away from a run that we report ourselves, as far as the file system has locks.

    Args:
        path: The run directory.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            fd = _closing_lock(path)
            stack.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _closing_lock(path: str) -> int:
    return os.open(os.path.join(path, CLOSING_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)


@contextlib.contextmanager
def closing(path: str) -> Iterator[bool]:
    """Hold the right to close a run; gives False where somebody else has it, or has closed it.

    Args:
        path: The run directory.
    """
    try:
        fd = _closing_lock(path)
    except OSError:
        yield is_open(Run.read(path))
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass  # no locks here: two closers at the same moment would say the same
        yield is_open(Run.read(path))
    finally:
        os.close(fd)


def _last_memory(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last memory sample of a run; empty where there is none."""
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for event in run.events():
        if event.get("event") == "memory":
            first = first or event
            last = event
    return first, last


def close(run: Run) -> Run:
    """Write ``exit.json`` for a run whose supervisor died; its log is put together first.

    Args:
        run: The run; the caller holds the right to close it.

    Returns:
        The run as it is now.

    Raises:
        OSError: It cannot be written.
    """
    if run.exit is not None:
        return run  # another survivor came as far as this
    with contextlib.suppress(OSError):
        assembly.assemble(run.path)
    facts = {**(as_interrupted(run).exit or {}), "closed_at": rfc3339(now_us())}
    replace_file(os.path.join(run.path, EXIT), json.dumps(facts).encode() + b"\n")
    return Run.read(run.path)


def as_interrupted(run: Run) -> Run:
    """A run whose supervisor died, with what can be said of its end; nothing is written.

    Args:
        run: The run.
    """
    first, last = _last_memory(run)
    log = os.path.join(run.path, assembly.NAME)
    size, last_output = None, None
    with contextlib.suppress(OSError):
        state = os.stat(log)
        size = state.st_size
        last_output = rfc3339(int(state.st_mtime * 1e6)) if size else None
    sign = _last_sign_of_life(run)
    kills = _number(last.get("oom_kill")) - _number(first.get("oom_kill"))
    facts = {
        "schema": SCHEMA,
        "exit_code": None,
        "signal": None,
        "signal_name": None,
        "core_dumped": False,
        "launch_error": None,
        "ended_at": sign,
        "duration_s": _seconds_between(run.facts.get("started_at"), sign),
        "last_output_at": last_output,
        "rusage": {"user_s": None, "system_s": None, "max_rss_bytes": None},
        "forwarded": [event["signal"] for event in run.events() if _was_forwarded(event)],
        "timed_out": any(event.get("event") == "timeout" for event in run.events()),
        "timeout_s": None,
        "cgroup": {
            "oom_kill": max(kills, 0),
            "memory_peak": last.get("peak"),
            "memory_limit": last.get("limit"),
            "memory_last": last.get("working_set"),
            "pids_max_events": 0,
        }
        if last
        else None,
        "log_bytes": size,
        "truncated": False,
        "gap": None,
        "log_continued_in": None,
        "trouble": [],
        "interrupted": True,
    }
    return Run(run.path, run.facts, facts)


def mark_closed(path: str) -> None:
    """The run is closed and reported: no other survivor needs to look.

    Args:
        path: The run directory.
    """
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(os.path.dirname(path), OPEN, os.path.basename(path)))


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _was_forwarded(event: dict[str, Any]) -> bool:
    return event.get("event") == "signal" and bool(event.get("forwarded")) and isinstance(event.get("signal"), int)


def _last_sign_of_life(run: Run) -> str:
    """When the run was last seen: its journal's or its log's last change."""
    times = []
    for name in (EVENTS, assembly.NAME, RUN):
        with contextlib.suppress(OSError):
            times.append(os.stat(os.path.join(run.path, name)).st_mtime)
    return rfc3339(int(max(times, default=0) * 1e6))


def _seconds_between(first: Any, second: str) -> float | None:
    try:
        return (datetime.fromisoformat(second) - datetime.fromisoformat(str(first))).total_seconds()
    except ValueError:
        return None
