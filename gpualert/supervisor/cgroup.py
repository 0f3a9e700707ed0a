"""Memory and process counters of our control group, versions 1 and 2.

Sources: the kernel's ``Documentation/admin-guide/cgroup-v2.rst`` and ``cgroup-v1/memory.rst``, ``cgroup-v1/pids.rst``.
"""

from __future__ import annotations

import posix

from gpualert.supervisor import files

MOUNT = "/sys/fs/cgroup"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  (looked at, not written to)
_NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page below 2**63."""


class Sample:
    """What the counters said at one moment; None where a counter does not exist.

    Attributes:
        current: Memory charged to the group in bytes, page cache included.
        working_set: The same without the page cache that could be given back (what Kubernetes calls working set).
        limit: The memory limit in bytes; None where there is none.
        peak: The highest ``current`` so far in bytes.
        oom_kill: How many of the group's processes the out-of-memory killer has ended.
        pids_max_events: How often the limit of processes has refused a fork.
        limit_hits: How often the group has run into its memory limit, and memory had to be given back.
        shm_used: What is in ``/dev/shm``, in bytes.
        shm_size: How much can be in it.
    """

    __slots__ = (
        "current",
        "limit",
        "limit_hits",
        "oom_kill",
        "peak",
        "pids_max_events",
        "shm_size",
        "shm_used",
        "working_set",
    )

    def __init__(
        self,
        current: int | None = None,
        working_set: int | None = None,
        limit: int | None = None,
        peak: int | None = None,
        oom_kill: int | None = None,
        pids_max_events: int | None = None,
        limit_hits: int | None = None,
    ) -> None:
        self.current = current
        self.working_set = working_set
        self.limit = limit
        self.peak = peak
        self.oom_kill = oom_kill
        self.pids_max_events = pids_max_events
        self.limit_hits = limit_hits
        self.shm_used, self.shm_size = shared_memory()


def shared_memory(path: str = SHARED_MEMORY) -> tuple[int | None, int | None]:
    """What is used of the shared memory, and its size, in bytes; None where there is none.

    Args:
        path: Where it is mounted.
    """
    try:
        state = posix.statvfs(path)
    except OSError:
        return None, None
    return (state.f_blocks - state.f_bfree) * state.f_frsize, state.f_blocks * state.f_frsize


def _number(path: str) -> int | None:
    content = files.read(path, 64)
    return int(content) if content and content.strip().isdigit() else None


def _counters(path: str, *keys: bytes) -> list[int | None]:
    """The values of a file of ``key value`` lines."""
    found: dict[bytes, int] = {}
    for line in (files.read(path) or b"").splitlines():
        name, _, value = line.partition(b" ")
        if name in keys and value.strip().isdigit():
            found[name] = int(value)
    return [found.get(key) for key in keys]


def _counter(path: str, key: bytes) -> int | None:
    """One of them."""
    return _counters(path, key)[0]


def memberships(text: bytes) -> dict[str, str]:
    """The group's path for each controller (empty: version 2).

    Args:
        text: What ``/proc/self/cgroup`` holds (man page cgroups(7)).
    """
    paths = {}
    for line in text.splitlines():
        _, first, rest = line.partition(b":")
        controllers, second, path = rest.partition(b":")
        if first and second:
            for controller in controllers.split(b","):
                name = controller.decode("ascii", "replace")
                paths[name] = path.decode("utf-8", "surrogateescape").rstrip("/")
    return paths


class ControlGroup:
    """The control group that limits us.

    Attributes:
        version: 1 or 2; 0 where there is none.
    """

    __slots__ = ("_memory", "_pids", "version")

    def __init__(self, root: str = "", proc: str = "/proc/self/cgroup") -> None:
        """Find it.

        Args:
            root: A directory that holds the file systems (for recorded trees); empty for the real ones.
            proc: The file that names our groups, below ``root``.
        """
        mount = root + MOUNT
        paths = memberships(files.read(root + proc) or b"")
        self.version, self._memory, self._pids = 0, "", ""
        unified = self._nearest(mount, paths.get("", ""), "memory.current")
        if unified:
            self.version, self._memory, self._pids = 2, unified, unified
            return
        memory = self._nearest(f"{mount}/memory", paths.get("memory", ""), "memory.usage_in_bytes")
        if memory:
            self.version, self._memory = 1, memory
            self._pids = self._nearest(f"{mount}/pids", paths.get("pids", ""), "pids.current")

    @staticmethod
    def _nearest(mount: str, path: str, file: str) -> str:
        """The group's directory; in a container its path may be the host's, and the mount itself is the group."""
        for directory in (mount + path, mount):
            if files.exists(f"{directory}/{file}"):
                return directory
        return ""

    @property
    def directory(self) -> str | None:
        """The directory of its memory counters; None where there is none."""
        return self._memory or None

    def sample(self) -> Sample:
        """Read the counters."""
        if self.version == 2:
            return self._sample_v2()
        return self._sample_v1() if self.version == 1 else Sample()

    def _sample_v2(self) -> Sample:
        here = self._memory
        current = _number(f"{here}/memory.current")
        killed, hits = _counters(f"{here}/memory.events", b"oom_kill", b"max")
        return Sample(
            current,
            _working_set(current, _counter(f"{here}/memory.stat", b"inactive_file")),
            _number(f"{here}/memory.max"),
            _number(f"{here}/memory.peak"),
            killed,
            _counter(f"{here}/pids.events", b"max"),
            hits,
        )

    def _sample_v1(self) -> Sample:
        here = self._memory
        current = _number(f"{here}/memory.usage_in_bytes")
        limits = [
            limit
            for limit in (
                _number(f"{here}/memory.limit_in_bytes"),
                _counter(f"{here}/memory.stat", b"hierarchical_memory_limit"),
            )
            if limit is not None and limit < _NO_LIMIT
        ]
        return Sample(
            current,
            _working_set(current, _counter(f"{here}/memory.stat", b"total_inactive_file")),
            min(limits, default=None),
            _number(f"{here}/memory.max_usage_in_bytes"),
            _counter(f"{here}/memory.oom_control", b"oom_kill"),
            _counter(f"{self._pids}/pids.events", b"max") if self._pids else None,
            _number(f"{here}/memory.failcnt"),
        )


def _working_set(current: int | None, inactive_file: int | None) -> int | None:
    return None if current is None else max(current - (inactive_file or 0), 0)
