"""System calls that processes wait in, and which of their arguments says for what.

Numbers: the kernel's tables for x86-64 (arch/x86/entry/syscalls/syscall_64.tbl) and for all newer architectures
(include/uapi/asm-generic/unistd.h), of which aarch64 is one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 9: "mmap", 11: "munmap",
    16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 23: "select", 26: "msync",
    28: "madvise", 34: "pause", 35: "nanosleep", 40: "sendfile", 42: "connect", 43: "accept", 44: "sendto",
    45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 65: "semop", 70: "msgrcv", 72: "fcntl", 73: "flock",
    74: "fsync", 75: "fdatasync", 76: "truncate", 77: "ftruncate", 80: "chdir", 82: "rename", 83: "mkdir", 84: "rmdir",
    87: "unlink", 89: "readlink", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 137: "statfs", 138: "fstatfs",
    162: "sync", 165: "mount", 166: "umount2", 202: "futex", 208: "io_getevents", 217: "getdents64",
    219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
    262: "newfstatat", 263: "unlinkat", 264: "renameat", 267: "readlinkat", 269: "faccessat", 270: "pselect6",
    271: "ppoll", 275: "splice", 281: "epoll_pwait", 285: "fallocate", 288: "accept4", 295: "preadv", 296: "pwritev",
    299: "recvmmsg", 306: "syncfs", 307: "sendmmsg", 316: "renameat2", 326: "copy_file_range", 332: "statx",
}  # fmt: skip
_GENERIC = {
    4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat",
    38: "renameat", 39: "umount2", 40: "mount", 43: "statfs", 44: "fstatfs", 45: "truncate", 46: "ftruncate",
    47: "fallocate", 48: "faccessat", 49: "chdir", 56: "openat", 57: "close", 61: "getdents64", 63: "read", 64: "write",
    65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev", 71: "sendfile",
    72: "pselect6", 73: "ppoll", 76: "splice", 78: "readlinkat", 79: "newfstatat", 80: "fstat", 81: "sync", 82: "fsync",
    83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 128: "restart_syscall",
    133: "rt_sigsuspend", 137: "rt_sigtimedwait", 188: "msgrcv", 192: "semtimedop", 193: "semop", 202: "accept",
    203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 215: "munmap", 222: "mmap",
    227: "msync", 233: "madvise", 242: "accept4", 243: "recvmmsg", 260: "wait4", 267: "syncfs", 269: "sendmmsg",
    276: "renameat2", 285: "copy_file_range", 291: "statx",
}  # fmt: skip
_EVERYWHERE = {
    426: "io_uring_enter", 434: "pidfd_open", 436: "close_range", 437: "openat2", 439: "faccessat2",
    441: "epoll_pwait2", 449: "futex_waitv", 452: "fchmodat2",
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC, "loongarch64": _GENERIC}

_DESCRIPTOR_FIRST = frozenset({
    "read", "write", "close", "fstat", "ioctl", "pread64", "pwrite64", "readv", "writev", "sendfile", "connect",
    "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "recvmmsg", "sendmmsg", "fcntl", "flock", "fsync",
    "fdatasync", "ftruncate", "fallocate", "getdents64", "preadv", "pwritev", "syncfs", "copy_file_range", "splice",
    "fstatfs", "epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter",
})  # fmt: skip
_PATH_FIRST = frozenset({
    "open", "stat", "lstat", "access", "truncate", "chdir", "rename", "mkdir", "rmdir", "unlink", "readlink", "statfs",
    "umount2",
})  # fmt: skip
_PATH_SECOND = frozenset({
    "openat", "openat2", "newfstatat", "unlinkat", "mkdirat", "renameat", "renameat2", "readlinkat", "faccessat",
    "faccessat2", "statx",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that a thread is in.

    Attributes:
        name: Its name; its number where that is unknown.
        arguments: Its six arguments.
    """

    name: str
    arguments: tuple[int, ...]

    @property
    def descriptor(self) -> int | None:
        """The descriptor that it works on; None where it has none."""
        return self.arguments[0] & 0xFFFFFFFF if self.name in _DESCRIPTOR_FIRST else None

    @property
    def path(self) -> int | None:
        """The address of the path that it works on; None where it has none."""
        if self.name in _PATH_FIRST:
            return self.arguments[0]
        return self.arguments[1] if self.name in _PATH_SECOND else None


def parse(text: str, machine: str | None = None) -> Call | None:
    """The call that ``/proc/PID/task/TID/syscall`` tells of.

    Args:
        text: What the file holds.
        machine: The architecture, as uname(2) names it; that of this machine when None.

    Returns:
        None for a thread that runs, or waits outside of any call.
    """
    words = text.split()
    if len(words) < 7 or not words[0].isdigit():
        return None
    try:
        arguments = tuple(int(word, 16) for word in words[1:7])
    except ValueError:
        return None
    number = int(words[0])
    table = _TABLES.get(os.uname().machine if machine is None else machine, {})
    return Call(table.get(number) or _EVERYWHERE.get(number) or f"system call {number}", arguments)
