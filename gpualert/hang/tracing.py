"""Programs that look into a process: started, bounded, and the process let go whatever becomes of them.

A process that waits uninterruptibly, or is stopped, must not be attached to: the tracer would wait with it, and the
signal that an attachment sends (ptrace(2), PTRACE_ATTACH) could stop it for good when it comes back. One that waits for
a file server may look interruptible, and be so no longer once that signal has come (FUSE does this).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time

from gpualert.hang.descriptors import content

OUTPUT_MAX = 4 << 20
_HARMLESS = (
    "futex", "do_epoll_wait", "ep_poll", "poll_schedule", "do_poll", "do_sys_poll", "do_select", "core_sys_select",
    "hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "do_wait", "kernel_wait", "pipe_", "anon_pipe_", "wait_woken",
    "sk_wait_data", "sk_stream_wait", "inet_csk_accept", "inet_wait_for", "inet_stream_connect", "unix_", "__skb_wait",
    "do_sigtimedwait", "sigsuspend", "__x64_sys_pause", "io_cqring_wait", "read_events", "n_tty_read",
)  # fmt: skip
"""Where the kernel waits for what any signal interrupts; in a file system or a driver that is not certain."""


class Done:
    """What a program that traces has done.

    Attributes:
        output: What it has printed.
        why: Why that is nothing: ``denied``, ``gone``, ``late`` or ``failed``.
        said: The same in words.
    """

    __slots__ = ("output", "said", "why")

    def __init__(self, output: bytes, why: str = "", said: str = "") -> None:
        self.output, self.why, self.said = output, why, said


def held(pid: int) -> str:
    """Why a process must not be attached to; empty where it may be.

    Args:
        pid: The process.
    """
    states = _states(pid)
    for letter, words in (("D", "waits uninterruptibly"), ("T", "is stopped"), ("t", "is traced already")):
        if letter in states:
            return words
    for tid in _threads(pid):
        channel = content(f"/proc/{pid}/task/{tid}/wchan", 4096).decode("ascii", "replace").strip("0\n")
        if channel and not channel.startswith(_HARMLESS):
            return f"waits in the kernel ({channel.partition('.')[0]})"
    return ""


def run(command: list[str], pid: int, timeout: float) -> Done:
    """Let a program look at a process, and make sure that this goes on afterwards.

    Args:
        command: The program with its arguments.
        pid: The process.
        timeout: How long it may take, in seconds.
    """
    if timeout <= 0:
        return Done(b"", "late", "there was no time left")
    stopped = "T" in _states(pid)
    complaints = os.memfd_create("complaints")
    try:
        tracer = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, env=_environment()
        )
        with tracer:
            output, whole = _read(tracer, time.monotonic() + timeout)
            if not whole:
                tracer.kill()
        said = " ".join(os.pread(complaints, 4096, 0).decode("utf-8", "replace").split())[:200]
    except OSError as error:
        return Done(b"", "failed", f"{command[0]} cannot be started ({error.strerror})")
    finally:
        os.close(complaints)
    if not stopped:
        _let_go(pid)
    if not whole:
        return Done(b"", "late", f"it took longer than {timeout:.0f}s, or was too much")
    if tracer.returncode == 0:
        return Done(output)
    if not _states(pid):
        return Done(b"", "gone", "it has ended")
    denied = "ermission" in said or "not permitted" in said
    return Done(b"", "denied" if denied else "failed", said or f"{command[0]} ended with {tracer.returncode}")


def _read(tracer: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bool]:
    """What a program prints, and whether that is all of it and the program has ended."""
    parts: list[bytes] = []
    room = OUTPUT_MAX
    stdout = tracer.stdout
    while stdout is not None and room > 0 and (left := deadline - time.monotonic()) > 0:
        if not select.select([stdout], [], [], left)[0]:
            break
        part = os.read(stdout.fileno(), min(room, 1 << 16))
        if not part:
            try:
                tracer.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                break
            return b"".join(parts), True
        parts.append(part)
        room -= len(part)
    return b"".join(parts), False


def _environment() -> dict[str, str]:
    """No settings of the job's, no colours, no downloads of symbols."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": "/",
        "NO_COLOR": "1",
        "RUST_BACKTRACE": "0",
    }


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended


def _states(pid: int) -> set[str]:
    """The states of a process's threads; empty when it has ended."""
    found: set[str] = set()
    for tid in _threads(pid):
        state = content(f"/proc/{pid}/task/{tid}/stat", 4096).rpartition(b")")[2].split()[:1]
        found |= {letter.decode("ascii", "replace") for letter in state}
    return found - {"Z", "X"}


def _let_go(pid: int) -> None:
    """A tracer that was killed may leave its process stopped (ptrace(2), PTRACE_ATTACH): it was not before."""
    until = time.monotonic() + 0.5
    while "t" in _states(pid) and time.monotonic() < until:
        time.sleep(0.02)
    if "T" in _states(pid):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.kill(pid, signal.SIGCONT)
