"""What counters of memory, shared memory and pressure say, and the numbers that they lend to a diagnosis.

Sources: the kernel's ``Documentation/admin-guide/cgroup-v2.rst`` (``memory.events``; what a process puts into a tmpfs
is charged to its group), ``Documentation/accounting/psi.rst``, ``Documentation/filesystems/tmpfs.rst`` (a page that
does not fit raises SIGBUS).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpualert.diagnosis.amounts import of_limit
from gpualert.diagnosis.model import Diagnosis, Evidence, Facts

if TYPE_CHECKING:
    from gpualert.diagnosis.machine import Machine

SHARED = "/dev/shm"  # noqa: S108  (named, not written to)
FULL, ROOMY = 0.9, 0.5
"""Shared memory from this share of its size on is (nearly) full; below that one a bus error has another reason."""
FAR, NEAR = 0.5, 0.9
"""Memory below this share of its limit is no reason for an allocation that fails; above that one it is."""
LARGE_PART = 0.25
"""What /dev/shm holds is worth a word when it is this share of the memory limit."""
PRESSING = 10.0
"""Percent of the time in which all processes wait for memory: a machine in use has none of it."""
_KILLED = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process \d+")
_BUS = re.compile(r"bus error|SIGBUS", re.IGNORECASE)
_LIMITED = (
    "look at ulimit -v (RLIMIT_AS, RLIMIT_DATA) and at vm.overcommit_memory: the allocation was refused although "
    "memory was left"
)


def kills_told(machine: Machine) -> int:
    """How many of the job's processes the kernel's log says that the out-of-memory killer ended.

    Args:
        machine: What was measured.
    """
    return sum(line.own and _KILLED.search(line.text) is not None for line in machine.kernel)


def shared_full(facts: Facts) -> bool:
    """Whether ``/dev/shm`` was (nearly) full."""
    return bool(facts.shm_size) and (facts.shm_peak or 0) >= FULL * (facts.shm_size or 0)


def shared_roomy(facts: Facts) -> bool:
    """Whether ``/dev/shm`` was never more than half full, as far as anybody looked."""
    return bool(facts.shm_size) and facts.shm_peak is not None and facts.shm_peak < ROOMY * (facts.shm_size or 0)


def shared_words(facts: Facts) -> str:
    """``/dev/shm 63.9 of 64.0 MiB used``."""
    return f"{SHARED} {of_limit(facts.shm_peak or 0, facts.shm_size or 0)} used"


def pressing(facts: Facts) -> str | None:
    """Memory pressure just before the end, in words; None where there was none, or nobody looked."""
    pressure = facts.machine.pressure if facts.machine is not None else None
    if pressure is None or pressure.full < PRESSING or not pressure.rising:
        return None
    whose = " (of the whole machine)" if pressure.of_machine else ""
    return f"all processes waited for memory {pressure.full:.0f} % of the time, and rising{whose}"


def with_numbers(found: Diagnosis, facts: Facts) -> Diagnosis:
    """A diagnosis with what the counters add to it: the numbers, and the advice that follows from them.

    Args:
        found: The diagnosis.
        facts: The facts.
    """
    if found.cls == "oom_killer":
        return _of_killer(found, facts)
    if found.cls == "ram_oom":
        return _of_allocation(found, facts)
    if facts.shm_size and facts.shm_peak is not None:
        return _of_shared(found, facts)
    return found


def _more(found: Diagnosis, words: str, *advice: str, summary: bool = False, sure: float = 0.0) -> Diagnosis:
    told = found.summary if not summary or words in found.summary else f"{found.summary} ({words})"
    known = any(words == evidence.text for evidence in found.evidence)
    evidence = found.evidence if known else (*found.evidence, Evidence(None, words, found.cls, "confirmation"))
    return replace(
        found,
        summary=told,
        evidence=evidence,
        suggestions=(*advice, *found.suggestions),
        confidence=max(found.confidence, sure),
    )


def _tmpfs(facts: Facts) -> str:
    """Advice where what is in ``/dev/shm`` was a large part of the memory; empty where it was not."""
    peak, limit = facts.shm_peak, facts.memory_limit
    if peak is None or not limit or peak < LARGE_PART * limit:
        return ""
    return f"what is in /dev/shm counts as memory of the container: it was {of_limit(peak, limit)}; leave room for both"


def _of_killer(found: Diagnosis, facts: Facts) -> Diagnosis:
    if facts.limit_hits:
        hits = f"{facts.limit_hits} time{'s' if facts.limit_hits > 1 else ''}"
        found = _more(found, f"control group: ran into its memory limit {hits}")
    advice = _tmpfs(facts)
    return _more(found, shared_words(facts), advice) if advice and facts.shm_size else found


def _of_allocation(found: Diagnosis, facts: Facts) -> Diagnosis:
    peak, limit = facts.memory_peak, facts.memory_limit
    if peak is None or not limit:
        return found
    words = f"memory {of_limit(peak, limit)} at its highest"
    if peak >= NEAR * limit:
        return _more(found, words, sure=0.95)
    if peak < FAR * limit and facts.counted and not facts.oom_kills:
        return _more(found, f"{words}: a limit of the process, or overcommit, refused it", _LIMITED, summary=True)
    return found


def _of_shared(found: Diagnosis, facts: Facts) -> Diagnosis:
    """What the measure of ``/dev/shm`` says to a bus error, or to a device that is full."""
    words, root = shared_words(facts), found.root.text if found.root is not None else ""
    if found.cls == "shm_exhausted":
        advice = [advice for advice in (_tmpfs(facts),) if advice]
        if shared_full(facts):
            return _more(found, words, *advice, summary=True, sure=0.97)
        return _more(found, words, *advice)
    if found.cls == "segfault" and shared_roomy(facts) and (_BUS.search(root) or _BUS.search(found.summary)):
        return _more(found, f"{words} at its highest: it was not full")
    return found


def full_instead(found: Diagnosis, facts: Facts) -> str | None:
    """Why a failure is the shared memory's although its text says less; None where it is not.

    Args:
        found: The diagnosis without it.
        facts: The facts.
    """
    if not shared_full(facts):
        return None
    root = found.root.text if found.root is not None else ""
    words = shared_words(facts)
    if found.cls == "dataloader_worker":
        return f"a DataLoader worker died with shared memory full: {words}"
    if found.cls == "segfault" and _BUS.search(root):
        return f"a bus error with shared memory full: {words}"
    # A write to a full file system names no file; one that cannot be opened or made does.
    if found.cls == "disk_full" and root and "/" not in root:
        return f"no space was left, and shared memory was full: {words}"
    return None
