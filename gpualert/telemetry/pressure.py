"""How short of memory, CPU and disk the job is, and how full its shared memory: small files of the kernel's.

Sources: the kernel's ``Documentation/accounting/psi.rst``, ``admin-guide/cgroup-v2.rst``, ``cgroup-v1/memory.rst``.
"""

from __future__ import annotations

from gpualert.supervisor import cgroup, files

_WANTED = (("memory", "some"), ("memory", "full"), ("io", "full"), ("cpu", "some"))


def sample(cgroup_directory: str | None, root: str = "") -> dict[str, object]:
    """The share of the last ten seconds in which tasks waited for something.

    Args:
        cgroup_directory: The job's control group; None where there is none.
        root: A directory that holds ``/proc`` (for recorded trees); empty for the real one.

    Returns:
        ``memory_some``, ``memory_full``, ``io_full``, ``cpu_some`` in percent, as far as they are known, and ``of``:
        ``group`` for the job's control group, ``machine`` where only the whole machine is known. Empty where the
        kernel measures no pressure.
    """
    places = [("group", f"{cgroup_directory}/{{}}.pressure")] if cgroup_directory else []
    for of, place in (*places, ("machine", f"{root}/proc/pressure/{{}}")):
        found: dict[str, object] = {}
        texts = {what: files.read(place.format(what), 4096) or b"" for what in ("memory", "io", "cpu")}
        for what, who in _WANTED:
            average = _average(texts[what], who)
            if average is not None:
                found[f"{what}_{who}"] = average
        if found:
            return {**found, "of": of}
    return {}


def _average(text: bytes, who: str) -> float | None:
    """``avg10`` of the line that begins with ``some`` or ``full``."""
    for line in text.decode("ascii", "replace").splitlines():
        words = line.split()
        if words[:1] == [who] and len(words) > 1 and words[1].startswith("avg10="):
            try:
                value = float(words[1][6:])
            except ValueError:
                return None
            return value if 0 <= value <= 100 else None
    return None


def shared_memory(path: str = cgroup.SHARED_MEMORY) -> dict[str, int]:
    """How much of the shared memory is used: ``shm_used`` and ``shm_size`` in bytes; empty where there is none.

    Args:
        path: Where it is mounted.
    """
    used, size = cgroup.shared_memory(path)
    if used is None or not size:
        return {}  # there is none, or one without a limit (size=0)
    return {"shm_used": used, "shm_size": size}


def group_memory(cgroup_directory: str | None) -> dict[str, int]:
    """What the job's control group tells of its memory beside how much it is.

    Args:
        cgroup_directory: The group's directory, of either version; None where there is none.

    Returns:
        ``group_shmem`` (bytes of shared memory and tmpfs charged to it) and ``group_major_faults`` (page faults so far
        that had to wait for a disk), as far as they are known.
    """
    if not cgroup_directory:
        return {}
    counters: dict[str, int] = {}
    stat = files.read(f"{cgroup_directory}/memory.stat") or b""
    for line in stat.decode("ascii", "replace").splitlines():
        name, _, value = line.partition(" ")
        if value.isascii() and value.isdigit() and len(value) < 19:
            counters[name] = int(value)
    found = {}
    for key, names in {
        # In version 1, "total_" is what the groups below it have too.
        "group_shmem": ("total_shmem", "shmem"),
        "group_major_faults": ("total_pgmajfault", "pgmajfault"),
    }.items():
        known = next((counters[name] for name in names if name in counters), None)
        if known is not None:
            found[key] = known
    return found
