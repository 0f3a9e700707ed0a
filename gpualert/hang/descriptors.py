"""What the job's descriptors lead to: files, pipes with who holds their other end, sockets with their peers.

Facts: proc_pid_fd(5), proc_pid_net(5), Documentation/networking/proc_net_tcp.rst. No path is ever opened or looked at:
a file system that does not answer must not hold us too.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

_TABLE_MAX = 4 << 20
_DESCRIPTORS_MAX = 4096
_STATES = {
    "01": "established", "02": "no answer to its connection request yet", "03": "being accepted",
    "04": "closing", "05": "closing", "06": "closed", "07": "closed", "08": "closed by the peer", "09": "closing",
    "0A": "listening", "0B": "closing",
}  # fmt: skip
_TRIES = 3
"""So many repetitions are no accident."""


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket as the kernel's tables tell of it.

    Attributes:
        text: What it is, for a person.
        ends: Its own address and its peer's; empty where it has none.
        trouble: What is wrong with it; empty where nothing is.
    """

    text: str
    ends: tuple[str, str] = ("", "")
    trouble: str = ""


def content(path: str, limit: int = 1 << 16) -> bytes:
    """What a file of /proc holds; empty where it cannot be read.

    Args:
        path: The file.
        limit: How many bytes to take at most.
    """
    parts, left = [], limit
    try:
        with open(path, "rb", buffering=0) as file:
            while left > 0 and (part := file.read(left)):
                parts.append(part)
                left -= len(part)
    except (OSError, ValueError):
        pass  # it has ended, or we may not
    return b"".join(parts)


def target(pid: int, descriptor: int) -> str:
    """What /proc says a descriptor is; empty where it does not.

    Args:
        pid: Whose.
        descriptor: Its number.
    """
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


class Descriptors:
    """The descriptors of some processes, looked up where they are asked for."""

    def __init__(self, names: dict[int, str]) -> None:
        """Nothing is looked up yet.

        Args:
            names: The name of each process.
        """
        self._names = names
        self._sockets: dict[str, dict[str, Socket]] = {}
        self._holders: dict[str, list[tuple[int, bool]]] | None = None

    def describe(self, pid: int, descriptor: int) -> str:
        """What a descriptor leads to, for a person.

        Args:
            pid: Whose.
            descriptor: Its number.
        """
        text = target(pid, descriptor)
        if text.startswith("pipe:"):
            return self._pipe(pid, descriptor, text)
        if text.startswith("socket:["):
            found = self.socket(pid, text[8:-1])
            return self._with_peer(found) if found is not None else "a socket"
        return text.replace("anon_inode:", "") or "a descriptor that cannot be looked up"

    def _pipe(self, pid: int, descriptor: int, text: str) -> str:
        writes = _writes(pid, descriptor)
        others = sorted({
            holder for holder, does in self._held().get(text, ()) if does != writes and holder != pid
        })  # fmt: skip
        if not others:
            return "a pipe whose other end is held outside the job, or by nobody"
        whose = ", ".join(f"{other} ({self._names.get(other, '?')})" for other in others[:4])
        return f"a pipe {'to' if writes else 'from'} {whose}{' and more' if len(others) > 4 else ''}"

    def _held(self) -> dict[str, list[tuple[int, bool]]]:
        """Who holds each pipe, and whether for writing."""
        if self._holders is None:
            self._holders = {}
            for pid in self._names:
                for number in descriptors(pid):
                    text = target(pid, number)
                    if text.startswith("pipe:"):
                        self._holders.setdefault(text, []).append((pid, _writes(pid, number)))
        return self._holders

    def _with_peer(self, one: Socket) -> str:
        return f"{one.text}, {one.trouble}" if one.trouble else one.text

    def socket(self, pid: int, inode: str) -> Socket | None:
        """A socket of a process.

        Args:
            pid: Whose: sockets are those of its network namespace.
            inode: Its number in /proc.
        """
        try:
            space = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            space = f"of {pid}"
        if space not in self._sockets:
            self._sockets[space] = _sockets(pid)
        return self._sockets[space].get(inode)

    def troubled(self, pid: int) -> list[str]:
        """Sockets of a process that do not get through to their peers, for a person.

        Args:
            pid: The process.
        """
        found = []
        for number in descriptors(pid):
            text = target(pid, number)
            one = self.socket(pid, text[8:-1]) if text.startswith("socket:[") else None
            if one is not None and one.trouble:
                found.append(f"{one.text} (descriptor {number}): {one.trouble}")
        return found


def descriptors(pid: int) -> list[int]:
    """The numbers of a process's descriptors.

    Args:
        pid: The process.
    """
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))[:_DESCRIPTORS_MAX]
    except OSError:
        return []


def watched(pid: int, descriptor: int) -> list[int]:
    """The descriptors that an epoll descriptor watches.

    Args:
        pid: Whose.
        descriptor: The epoll descriptor.
    """
    lines = content(f"/proc/{pid}/fdinfo/{descriptor}").decode("ascii", "replace").splitlines()
    words = [line.split() for line in lines if line.startswith("tfd:")]
    return [int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()]


def _writes(pid: int, descriptor: int) -> bool:
    _, found, rest = content(f"/proc/{pid}/fdinfo/{descriptor}").partition(b"flags:")
    try:
        return bool(found) and int(rest.split(None, 1)[0], 8) & os.O_ACCMODE == os.O_WRONLY
    except (ValueError, IndexError):
        return False


def _sockets(pid: int) -> dict[str, Socket]:
    """All sockets of a process's network namespace, by inode."""
    found: dict[str, Socket] = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in content(f"/proc/{pid}/net/{kind}", _TABLE_MAX).decode("ascii", "replace").splitlines()[1:]:
            words = line.split()
            if len(words) > 9:
                found[words[9]] = _internet(kind.rstrip("6"), words)
    for line in content(f"/proc/{pid}/net/unix", _TABLE_MAX).decode("utf-8", "replace").splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) > 6:
            found[words[6]] = Socket(f"unix socket {words[7]}" if len(words) > 7 else "a unix socket")
    return found


def _internet(kind: str, words: list[str]) -> Socket:
    own, peer, state = _address(words[1]), _address(words[2]), words[3]
    if kind == "udp" or state == "0A":
        return Socket(f"{kind} {own}{' (listening)' if state == '0A' else ''}", (own, peer))
    try:
        waiting, tries = int(words[4].partition(":")[0], 16), int(words[6], 16)
    except ValueError:
        waiting = tries = 0
    trouble = ""
    if state == "02":
        trouble = f"{_STATES[state]}, asked {tries + 1} times" if tries else _STATES[state]
    elif waiting and tries >= _TRIES:
        trouble = f"{waiting} bytes sent {tries + 1} times and not acknowledged"
    elif state == "08":
        trouble = _STATES[state]
    return Socket(f"{kind} {peer} from {own}", (own, peer), trouble)


def _address(text: str) -> str:
    host, _, port = text.partition(":")
    try:
        raw = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
        family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
        shown = socket.inet_ntop(family, raw)
        mapped = shown.removeprefix("::ffff:")
        shown = f"[{shown}]" if ":" in mapped else mapped
        return f"{shown}:{int(port, 16)}"
    except (ValueError, OSError):
        return text
