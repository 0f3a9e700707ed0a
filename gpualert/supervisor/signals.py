"""Signals: all blocked from the first moment, taken one by one in one loop, handed to the child as we found them."""

from __future__ import annotations

import _signal
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from signal import struct_siginfo

HANDOVER = b"_GPUALERT_SIGNALS"
"""Set by a launcher that blocked signals before the interpreter started: ``<blocked>:<ignored>``, each a mask in
hexadecimal as in ``/proc/self/status`` (bit 0 is signal 1)."""

SI_KERNEL = 0x80
"""``si_code`` of a signal that the kernel sent, a terminal's for instance (sigaction(2))."""

STOP_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP)
"""Signals that ask a job to end."""

TERMINAL_SIGNALS = (
    _signal.SIGINT,
    _signal.SIGQUIT,
    _signal.SIGTSTP,
    _signal.SIGTTIN,
    _signal.SIGTTOU,
    _signal.SIGWINCH,
)
"""Signals that a terminal's driver sends to a whole process group."""

CHILD_ENDED = int(_signal.SIGCHLD)

SUSPEND_SIGNALS = (_signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU)

_CHANGED_BY_PYTHON = (_signal.SIGPIPE, _signal.SIGXFSZ)


class Inherited:
    """The signal state that we were started with, and that the child shall have.

    Attributes:
        blocked: The signals blocked when we started.
        ignored: The signals ignored when we started.
    """

    __slots__ = ("blocked", "ignored")

    def __init__(self, blocked: Iterable[int], ignored: Iterable[int]) -> None:
        self.blocked = set(blocked)
        self.ignored = set(ignored)

    def for_spawn(self) -> tuple[set[int], set[int]] | None:
        """The child's mask and its default signals, for posix_spawn(3); None when that cannot restore our state."""
        if _signal.SIGCHLD in self.ignored:
            return None
        return self.blocked, {number for number in _CHANGED_BY_PYTHON if number not in self.ignored}

    def restore(self) -> None:
        """Make the signal state of this process what it was; for the child, between fork and exec."""
        for number in _CHANGED_BY_PYTHON:
            _signal.signal(number, _signal.SIG_IGN if number in self.ignored else _signal.SIG_DFL)
        if _signal.SIGCHLD in self.ignored:
            _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self.blocked)


def _numbers(mask: bytes) -> set[int]:
    bits = int(mask, 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}


def block() -> Inherited:
    """Block every signal, and remember how things were."""
    blocked = set(_signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals()))
    ignored = {
        number
        for number in (_signal.SIGCHLD, _signal.SIGINT, _signal.SIGHUP)
        if _signal.getsignal(number) == _signal.SIG_IGN
    }
    if _signal.SIGCHLD in ignored:
        # With SIGCHLD ignored the kernel reaps for us, and the status is lost.
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    handed_over = posix.environ.get(HANDOVER)
    if handed_over:
        posix.unsetenv(HANDOVER)
        was_blocked, _, was_ignored = handed_over.partition(b":")
        try:
            return Inherited(_numbers(was_blocked), _numbers(was_ignored) | ignored)
        except ValueError:
            pass  # not from our launcher
    return Inherited(blocked, ignored)


def take(timeout: float | None) -> struct_siginfo | None:
    """The next signal, or None when ``timeout`` seconds have passed (None: no limit)."""
    taken: struct_siginfo | None = (
        _signal.sigwaitinfo(_signal.valid_signals())
        if timeout is None
        else _signal.sigtimedwait(_signal.valid_signals(), max(timeout, 0))
    )
    return taken


def wake(thread: int) -> None:
    """Let ``thread``, which waits in ``take``, look around."""
    _signal.pthread_kill(thread, _signal.SIGCHLD)


def is_there(pid: int) -> bool:
    """Whether there is such a process, also one that may not be signalled.

    Args:
        pid: Its process id.
    """
    try:
        posix.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def send(pid: int, number: int, *, group: bool = False) -> bool:
    """Send a signal to a process, or to its process group.

    Returns:
        Whether it was delivered: not when the process is gone, or may not be signalled (a setuid program).
    """
    try:
        if group:
            posix.killpg(pid, number)
        else:
            posix.kill(pid, number)
    except OSError:
        return False
    return True


_NAMES = {
    int(getattr(_signal, name)): name
    for name in dir(_signal)
    if name.startswith("SIG")
    and not name.startswith("SIG_")
    and name not in ("SIGCLD", "SIGPOLL", "SIGRTMIN", "SIGRTMAX")
}


def name(number: int) -> str:
    """``SIGTERM`` for 15, ``SIGRTMIN+2`` for 36."""
    if number in _NAMES:
        return _NAMES[number]
    if number >= _signal.SIGRTMIN:
        return f"SIGRTMIN+{number - _signal.SIGRTMIN}"
    return f"SIG{number}"


class Forward:
    """What to do with a signal that was sent to us, decided from plain data.

    Attributes:
        own_group: The child is in a process group of its own (``--signal-group`` or a pseudo-terminal).
        session_leader: We lead our session, so the kernel sends a terminal's SIGHUP to us alone.
    """

    __slots__ = ("own_group", "session_leader")

    def __init__(self, *, own_group: bool, session_leader: bool) -> None:
        self.own_group = own_group
        self.session_leader = session_leader

    def wanted(self, number: int, code: int) -> bool:
        """Whether the child must get this signal from us, since the kernel has not sent it there too.

        Args:
            number: The signal.
            code: Its ``si_code``.
        """
        if code != SI_KERNEL:
            return True
        if number in (_signal.SIGXCPU, _signal.SIGXFSZ):
            return False  # our own limits, not the child's
        if number == _signal.SIGHUP:
            return self.session_leader or self.own_group
        if number == _signal.SIGWINCH:
            return False  # the pseudo-terminal passes it on with the new size
        return self.own_group or number not in TERMINAL_SIGNALS
