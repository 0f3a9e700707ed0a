"""The stacks of the job's processes: of Python by py-spy, of others by eu-stack or gdb, where tracing is allowed.

Of a process that must not be attached to (``hang.tracing``) py-spy reads the memory without that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
import time
from typing import TYPE_CHECKING, Any

from gpualert.hang import waiting
from gpualert.hang.tracing import Done, held, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpualert.telemetry.processes import Process

EACH_S = 10.0
"""How long one process's stacks may take."""
NATIVE_S = 4.0
"""With native frames, which takes longer where symbols are many."""
TEXT_MAX, TOTAL_MAX = 16 << 10, 110 << 10
FRAMES_MAX, THREADS_MAX = 64, 48
_ARGUMENTS = re.compile(r" \(.*?\)(?= at | from |$)")
"""What a function was called with: another one in each process, and nobody's business."""
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3")
OTHERS_MAX = 8
"""Of how many processes that are no Python native stacks are taken."""


def taken(processes: Sequence[Process], deadline: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Take the stacks of all processes.

    Args:
        processes: The job's.
        deadline: When to be done, on the monotonic clock.

    Returns:
        For each stack ``pids``, ``names``, ``ranks`` and ``text``, where processes with the same one stand together;
        and why some are missing.
    """
    notes: list[str] = []
    groups: dict[str, list[Process]] = {}
    room = TOTAL_MAX
    pythons = [one for one in processes if one.python]
    others = [one for one in processes if not one.python]
    for take, whose in ((_python(notes), pythons), (_native(notes), others[:OTHERS_MAX])):
        for number, one in enumerate(whose):
            if take is None or time.monotonic() >= deadline:
                if take is not None:
                    notes.append(f"no time for the stacks of {len(whose) - number} more processes")
                break
            text = take(one, deadline)
            if not text:
                continue
            if text not in groups:
                text = text[: min(TEXT_MAX, room)]
                room -= len(text)
            if text:
                groups.setdefault(text, []).append(one)
    found = [
        {"pids": sorted(one.pid for one in group), "names": sorted({one.name for one in group}), "text": text}
        for text, group in groups.items()
    ]
    return found, list(dict.fromkeys(notes))


def program(name: str) -> str | None:
    """Where a program is that came with our Python, or that PATH knows.

    Args:
        name: Its name.
    """
    places = [os.path.dirname(sys.executable), sysconfig.get_path("scripts") or "", os.path.join(sys.prefix, "bin")]
    return shutil.which(name, path=os.pathsep.join(filter(None, places))) or shutil.which(name)


def _python(notes: list[str]) -> Callable[[Process, float], str] | None:
    """What takes a Python process's stacks; None where that cannot be."""
    spy = program("py-spy")
    if spy is None:
        notes.append("no Python stacks: py-spy is not installed (pip install 'gpualert[gpu]')")
        return None

    def take(one: Process, deadline: float) -> str:
        dump = [spy, "dump", "--json", "--pid", str(one.pid)]
        ways = [(["--nonblocking"], EACH_S)] if held(one.pid) else [(["--native"], NATIVE_S), ([], EACH_S)]
        done = Done(b"", "late", "there was no time left")
        for options, limit in ways:
            done = run([*dump, *options], one.pid, min(limit, deadline - time.monotonic()))
            text = _rendered(done.output)
            if text or done.why in ("gone", "denied"):
                break
        if done.why == "denied":
            notes.append(f"no Python stacks: {waiting.may_trace() or f'the system forbids tracing ({done.said})'}")
        elif not text and done.why != "gone":
            notes.append(f"no Python stacks of process {one.pid} ({one.name}): {done.said or 'they cannot be read'}")
        return text

    return take


def _native(notes: list[str]) -> Callable[[Process, float], str] | None:
    """What takes another process's stacks; None where that cannot be."""
    stack, gdb = program("eu-stack"), program("gdb")
    if (stack is None and gdb is None) or waiting.may_trace():
        return None  # what the kernel tells is there all the same

    def take(one: Process, deadline: float) -> str:
        if stack is not None:
            command = [stack, "-p", str(one.pid)]
        else:
            command = [str(gdb), "--batch", "--nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
            command += ["-ex", "thread apply all backtrace 32", "-p", str(one.pid)]
        if why := held(one.pid):
            notes.append(f"no stacks of process {one.pid} ({one.name}): it {why}, and is not touched")
            return ""
        done = run(command, one.pid, min(EACH_S, deadline - time.monotonic()))
        lines = done.output.decode("utf-8", "replace").splitlines()
        frames = [line.rstrip() for line in lines if line.startswith(("#", "Thread ", "TID "))]
        return "\n".join(_without_ids(line) for line in frames[: FRAMES_MAX * 4])

    return take


def _without_ids(line: str) -> str:
    """A line without what differs between processes in the same place."""
    if line.startswith("TID "):
        return "TID:"
    if line.startswith("Thread "):
        return line.partition(" (")[0]
    number, _, rest = line.partition(" ")
    words = _ARGUMENTS.sub("", rest.strip()).split(" ")
    if words[0].startswith("0x"):
        words = words[2:] if words[1:2] == ["in"] else words[1:]
    return f"{number} {' '.join(words).strip()}"


# -- py-spy's output ---------------------------------------------------------------------------------------------------


def _rendered(output: bytes) -> str:
    """The stacks that ``py-spy dump --json`` tells of; names come from the process's memory and may be anything."""
    try:
        threads = json.loads(output)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(threads, list):
        return ""
    lines: dict[str, list[str]] = {}
    for thread in sorted(threads[:THREADS_MAX], key=_is_no_main_thread):
        if not isinstance(thread, dict):
            continue
        frames = thread.get("frames")
        shown = "\n".join(_frames(frames if isinstance(frames, list) else []))
        state = "active" if thread.get("active") else "idle"
        if thread.get("owns_gil"):
            state += ", holds the GIL"
        lines.setdefault(f"({state})\n{shown}", []).append(_line(thread.get("thread_name") or "a thread"))
    return "\n".join(
        f"{', '.join(dict.fromkeys(names[:4]))}{f' and {len(names) - 4} more' if len(names) > 4 else ''} {text}"
        for text, names in lines.items()
    )


def _is_no_main_thread(thread: Any) -> bool:
    return not (isinstance(thread, dict) and thread.get("thread_name") == "MainThread")


def _frames(frames: Iterable[Any]) -> list[str]:
    found = []
    for frame in list(frames)[:FRAMES_MAX]:
        if not isinstance(frame, dict):
            continue
        name, number = _line(frame.get("name")), frame.get("line")
        if name.startswith("0x"):
            continue  # a place in a library without symbols: another one in each process
        place = _line(_place(frame.get("filename"), frame.get("short_filename")))
        found.append(f"    {name} ({place}{f':{number}' if isinstance(number, int) and number else ''})")
    return found


def _place(whole: object, short: object) -> object:
    """The whole path of a script; a library's file without where that is installed."""
    if isinstance(whole, str) and whole.endswith(".py") and not _LIBRARY.search(whole):
        return whole
    return short or whole


def _line(value: object) -> str:
    """A text on one line, without anything that a terminal would act on."""
    text = value if isinstance(value, str) else "?"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:300])
