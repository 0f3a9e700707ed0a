"""What each thread of the job waits for, as the kernel tells it without touching the process.

Facts: proc_pid_task(5), proc_pid_wchan(5), proc_pid_syscall(5), proc_pid_stack(5), proc_locks(5). ``wchan`` may be read
by whoever may look at the process, ``syscall`` and ``mem`` by whoever may trace it, ``stack`` by root.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any

from gpualert.hang import syscalls
from gpualert.hang.descriptors import Descriptors, content, watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.telemetry.processes import Process

THREADS_MAX = 256
LINES_MAX, WATCHED_MAX, PATH_MAX, TEXT_MAX = 12, 6, 400, 2000
_NAMED = 8
_STATES = {
    "R": "running", "S": "asleep", "D": "waiting uninterruptibly", "T": "stopped by a signal",
    "t": "stopped by a tracer", "I": "idle", "P": "parked",
}  # fmt: skip
_POLLS = {"poll", "ppoll"}
_SELECTS = {"select", "pselect6"}
_EPOLLS = {"epoll_wait", "epoll_pwait", "epoll_pwait2"}


def told(processes: Sequence[Process], supervisor: int, deadline: float) -> list[dict[str, Any]]:
    """What the threads of each process wait for; processes of which the same is to be said stand together.

    Args:
        processes: The job's.
        supervisor: The supervisor's process id: the other end of the job's output.
        deadline: When to be done, on the monotonic clock.

    Returns:
        For each group ``pids``, ``names`` and ``text`` (one line), those first that wait uninterruptibly.
    """
    names = {one.pid: one.name for one in processes}
    held = Descriptors({**names, supervisor: "gpualert, which keeps the output"})
    locks = _locks()
    groups: dict[str, list[Process]] = {}
    for one in sorted(processes, key=lambda one: "DTR".find(one.state) % 4):
        if time.monotonic() >= deadline:
            break
        text = _process(one.pid, held, locks, names)
        if text:
            groups.setdefault(text, []).append(one)
    return [
        {
            "pids": sorted(one.pid for one in group),
            "names": sorted({one.name for one in group}),
            "text": f"{_head(group)}: {text}"[:TEXT_MAX],
        }
        for text, group in groups.items()
    ]


def _head(group: Sequence[Process]) -> str:
    """``python 12, 13 and 6 more``."""
    names = ", ".join(sorted({one.name for one in group})[:3])
    more = f" and {len(group) - _NAMED} more" if len(group) > _NAMED else ""
    return f"{names} {', '.join(str(one.pid) for one in group[:_NAMED])}{more}"


def _process(pid: int, held: Descriptors, locks: dict[int, int], names: dict[int, str]) -> str:
    try:
        threads = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return ""
    lines: dict[str, list[str]] = {}
    first = ""
    for tid in threads[:THREADS_MAX]:
        name, text = _thread(pid, tid, held)
        if tid == pid:
            holder = locks.get(pid)
            lock = f", held by {holder} ({names.get(holder, '?')})" if holder else ""
            first = f"main thread: {text}{lock}"
        elif text:
            lines.setdefault(text, []).append(name)
    told = [first] if first else []
    for text, whose in sorted(lines.items(), key=lambda item: -len(item[1])):
        told.append(f"{_threads(whose)}: {text}")
    told += held.troubled(pid)
    if len(told) > LINES_MAX:
        told[LINES_MAX - 1 :] = [f"and {len(told) - LINES_MAX + 1} more"]
    return "; ".join(told)


def _threads(names: list[str]) -> str:
    kinds = list(dict.fromkeys(names))
    some = ", ".join(kinds[:3]) + (", ..." if len(kinds) > 3 else "")
    return f"1 thread ({some})" if len(names) == 1 else f"{len(names)} threads ({some})"


def _thread(pid: int, tid: int, held: Descriptors) -> tuple[str, str]:
    """A thread's name, and what it waits for."""
    stat = content(f"/proc/{pid}/task/{tid}/stat", 4096)
    end = stat.rfind(b")")
    if end < 0:
        return "", ""
    name = stat[stat.find(b"(") + 1 : end].decode("utf-8", "replace")
    state = stat[end + 2 : end + 3].decode("ascii", "replace")
    words = [_STATES.get(state, f"state {state}")]
    call = syscalls.parse(content(f"/proc/{pid}/task/{tid}/syscall", 4096).decode("ascii", "replace"))
    if call is not None:
        words.append(f"in {_call(pid, call, held)}")
    channel = content(f"/proc/{pid}/task/{tid}/wchan", 4096).decode("ascii", "replace")
    if channel.strip("0\n"):
        words.append(f"at {channel.partition('.')[0]}")
    if state == "D" and (way := _kernel_way(pid, tid)):
        words.append(f"(kernel: {way})")
    return name, " ".join(words)


def _kernel_way(pid: int, tid: int) -> str:
    """The functions of the kernel that a thread is in, the innermost first; empty where we may not know."""
    lines = content(f"/proc/{pid}/task/{tid}/stack", 4096).decode("ascii", "replace").splitlines()
    return " < ".join(line.rpartition("] ")[2].partition("+")[0] for line in lines[:6])


def _call(pid: int, call: syscalls.Call, held: Descriptors) -> str:
    """A system call with what it works on."""
    if call.name in _EPOLLS:
        return f"{call.name} on {_several(pid, watched(pid, call.arguments[0]), held)}"
    if call.name in _POLLS:
        return f"{call.name} on {_several(pid, _polled(pid, call), held)}"
    if call.name in _SELECTS:
        return f"{call.name} on {_several(pid, _selected(pid, call), held)}"
    number = call.descriptor
    if number is not None:
        return f"{call.name}({number}) on {held.describe(pid, number)}"
    if call.path is not None:
        path = _memory(pid, call.path, PATH_MAX).partition(b"\0")[0].decode("utf-8", "replace")
        return f"{call.name} of {path}" if path else call.name
    return call.name


def _several(pid: int, numbers: list[int], held: Descriptors) -> str:
    if not numbers:
        return "descriptors that cannot be looked up"
    kinds = list(dict.fromkeys(held.describe(pid, number) for number in numbers[: 4 * WATCHED_MAX]))
    more = ", ..." if len(kinds) > WATCHED_MAX or len(numbers) > 4 * WATCHED_MAX else ""
    return ", ".join(kinds[:WATCHED_MAX]) + more


def _polled(pid: int, call: syscalls.Call) -> list[int]:
    """The descriptors in the array that poll(2) waits for: ``int fd; short events; short revents`` each."""
    count = min(call.arguments[1], 64)
    data = _memory(pid, call.arguments[0], 8 * count)
    return [number for number, _ in struct.iter_unpack("=ii", data[: len(data) // 8 * 8]) if number >= 0]


def _selected(pid: int, call: syscalls.Call) -> list[int]:
    """The descriptors in the sets that select(2) waits for."""
    count = min(call.arguments[0], 1024)
    found = set()
    for address in call.arguments[1:4]:
        bits = int.from_bytes(_memory(pid, address, (count + 7) // 8), "little") if address else 0
        found |= {number for number in range(count) if bits >> number & 1}
    return sorted(found)


def _memory(pid: int, address: int, length: int) -> bytes:
    """Bytes of a process's memory; what of it can be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            file.seek(address)
            return file.read(length) or b""
    except (OSError, ValueError, OverflowError):
        return b""


def _locks() -> dict[int, int]:
    """Who holds the file lock that a process waits for, by process id."""
    found, holder = {}, 0
    for line in content("/proc/locks", 1 << 20).decode("ascii", "replace").splitlines():
        words = line.split()
        waits = len(words) > 5 and words[1] == "->"
        if len(words) < 5:
            continue
        pid = words[5] if waits else words[4]
        if not pid.lstrip("-").isdigit():
            continue
        if not waits:
            holder = int(pid)
        elif holder > 0:
            found[int(pid)] = holder
    return found


def may_trace() -> str:
    """Why other processes' stacks cannot be read, in words; empty where they can."""
    scope = content("/proc/sys/kernel/yama/ptrace_scope", 16).strip()
    effective = 0
    for line in content("/proc/self/status").splitlines():
        if line.startswith(b"CapEff:"):
            effective = int(line.split()[1], 16)
    if effective >> 19 & 1 and scope != b"3":  # CAP_SYS_PTRACE (linux/capability.h)
        return ""
    if scope == b"3":
        return "the kernel forbids tracing (kernel.yama.ptrace_scope is 3), until it is started anew"
    if scope in (b"1", b"2"):
        return (
            f"tracing needs a right that gpualert does not have here (kernel.yama.ptrace_scope is {scope.decode()}): "
            "in Kubernetes add securityContext.capabilities.add: [SYS_PTRACE] to the container, with Docker "
            "--cap-add SYS_PTRACE, on a host set kernel.yama.ptrace_scope to 0"
        )
    return ""
