"""Our standard descriptors: which are closed, and how our own lines reach stderr whatever state it is in."""

from __future__ import annotations

import posix

_O_PATH = 0o10000000


def closed_standard_descriptors() -> set[int]:
    """Which of 0, 1 and 2 are closed; they are taken up, so that no file of ours gets their numbers."""
    closed = set()
    for fd in range(3):
        try:
            posix.fstat(fd)
        except OSError:
            closed.add(fd)
    for _ in closed:
        # O_PATH can be neither read nor written, and closes when the child starts: to it they stay closed.
        posix.open("/", _O_PATH | posix.O_CLOEXEC)
    return closed


def write(text: str) -> None:
    """Print lines of gpualert's own on our stderr, whatever state that is in; never waits for a blocked reader."""
    data = text.encode("utf-8", "replace")
    try:
        import select  # noqa: PLC0415

        poll = select.poll()
        poll.register(2, select.POLLOUT)
        while data and poll.poll(0):
            data = data[posix.write(2, data[:4096]) :]  # PIPE_BUF: a pipe that polls writable takes that much
    except ImportError:
        _write_blindly(data)  # no descriptor was left to load it
    except OSError:
        pass  # closed, full or gone: there is nobody to tell


def _write_blindly(data: bytes) -> None:
    try:
        posix.write(2, data[:4096])
    except OSError:
        pass
