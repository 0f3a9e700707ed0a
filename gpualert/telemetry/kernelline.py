"""What a line of the kernel's log means for a job: is it of those that end jobs, and is it about this one.

Sources: the kernel's ``Documentation/ABI/testing/dev-kmsg`` (the records), ``mm/oom_kill.c``, ``arch/x86/mm/fault.c``,
``arch/x86/kernel/traps.c``, ``kernel/hung_task.c``, ``kernel/watchdog.c``, ``mm/memory-failure.c`` (the lines);
NVIDIA "Xid Errors" and the Fabric Manager's guide (NVRM, SXid); the amdgpu driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gpualert.telemetry.group import Names

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TEXT = 500
MAX_RECORD = 16 << 10

About = Literal["own", "node"] | None

_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
_ANY_ADDRESS = re.compile(rf"(?:PCI:|\bGPU |\bamdgpu |\bnvidia |\+pci:)({_ADDRESS})")
_COMM = r".{0,64}"
"""A process's name: whatever the job likes, also what looks like the rest of the line."""


def _line(topic: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return topic, re.compile(pattern)


# All are matched at the line's start, where a process has no say but by its own name, of 15 bytes.
_LINES = (
    _line("gpu", rf"NVRM: Xid \(PCI:{_ADDRESS}"),
    _line("gpu", r"NVRM: .*(?:fallen off the bus|RmInitAdapter failed|is lost|reset required|[Uu]ncorrectable"
          r"|timed? ?out)"),
    _line("switch", r"nvidia-nvswitch\d*: .*(?:SXid|[Ff]atal|[Ff]ailed)"),
    _line("gpu", rf"amdgpu {_ADDRESS}\.\d: (?:amdgpu: )?.*(?:[Rr]ing \S+ (?:timeout|reset failed|test failed)|GPU reset"
          r"|VRAM is lost|wedged|page fault|fence wait loop timeout|[Uu]ncorrectable|hardware errors detected|[Pp]oison"
          r"|RAS event|fatal error|Failed to evict)"),
    _line("gpu", r"\[drm:amdgpu_\w+ \[amdgpu\]\] \*ERROR\* (?:ring|Process information)"),
    _line("gpu", r"amdgpu: (?:qcm fence wait|GPU reset|Failed to evict|HWS hang)"),
    _line("memory", r"oom-kill:constraint=\w+,"),
    _line("memory", r"(?P<scope>Out of memory|Memory cgroup out of memory)(?: \([^)]*\))?: "
          r"Kill(?:ed)? process (?P<pid>\d+) \("),
    _line("memory", r"Tasks in (?P<group>/.*) are going to be killed due to memory\.oom\.group set"),
    _line("memory", r"Task in (?P<group>/.*) killed as a result of limit of /"),
    _line("memory", rf"{_COMM}: page allocation failure: order:\d+"),
    _line("processes", r"cgroup: fork rejected by pids controller in (?P<group>/.*)"),
    _line("fault", rf"{_COMM}\[(?P<pid>\d+)\]: (?:segfault at [0-9a-f]+|unhandled \w+)"),
    _line("fault", rf"traps: {_COMM}\[(?P<pid>\d+)\] (?:general protection|trap |\w+ error)"),
    _line("fault", rf"traps: {_COMM}\[(?P<pid>\d+)\]: "),
    _line("hung", rf"INFO: task {_COMM}:(?P<pid>\d+) blocked (?:in [\w-]+ )?for more than \d+ seconds"),
    _line("hung", rf"(?:NMI )?watchdog: BUG: soft lockup - CPU#\d+ stuck for .*\[{_COMM}:(?P<pid>\d+)\]"),
    _line("hung", r"rcu: INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall"),
    _line("hardware", rf"(?:MCE: |Memory failure: 0x[0-9a-f]+: )Killing {_COMM}:(?P<pid>\d+) due to hardware memory"),
    _line("hardware", r"Memory failure: 0x[0-9a-f]+: "),
    _line("hardware", r"(?:mce: |\{\d+\})?\[Hardware Error\]: "),
    _line("hardware", r"EDAC \S+: .*(?:\b[CU]E\b|[Ee]rror)"),
    _line("hardware", r"\S+ [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d: (?:AER: |DPC: |PCIe Bus Error: )"
          r".*(?:[Ff]atal|[Uu]ncorrect|containment)"),
    _line("thermal", r"(?:mce: )?CPU\d+: (?:Core|Package) temperature above threshold"),
    _line("thermal", r"thermal \S+: .*critical temperature"),
    _line("storage", r"(?:blk_update_request: )?(?:I/O error|critical [\w ]+ error), dev "),
    _line("storage", r"Buffer I/O error on dev"),
    _line("storage", r"EXT4-fs (?:error|\(\S+\): .*(?:read-only|shut ?down|[Ee]rror))"),
    _line("storage", r"XFS \(\S+\): .*(?:[Ss]hut(?:ting)? ?down|[Cc]orruption|error)"),
    _line("storage", r"BTRFS (?:error|critical)"),
    _line("storage", r"nvme nvme\d+: (?:I/O .*timeout|controller is down|Disabling device|Device not ready)"),
    _line("storage", r"nfs: server .* (?:not responding|OK)"),
    _line("storage", r"CIFS: VFS: .*has not responded"),
    _line("storage", r"LustreError: "),
    _line("storage", r"Lustre: .*(?:[Cc]onnection (?:to .*)?(?:was )?(?:lost|restored)|evicted)"),
    _line("storage", r"(?:lib)?ceph: .*(?:hung|caps stale|socket closed|blocklisted| down$)"),
    _line("network", r"(?:\S+ [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d )?"
          r"(?:\S+: )+(?:\S+ )?(?:NIC )?[Ll]ink (?:is )?(?:[Dd]own|DOWN)"),
    _line("network", r"mlx\d_core [0-9a-f:.]+: .*(?:health compromised|[Ff]atal|device is in error|timeout)"),
    _line("network", r"NETDEV WATCHDOG: "),
)  # fmt: skip
_OOM = re.compile(r"oom-kill:constraint=(\w+),.*,task=.*,pid=(\d+),uid=\d+$")


@dataclass(frozen=True, slots=True)
class Raw:
    """A record of ``/dev/kmsg``.

    Attributes:
        level: 0 (emergency) to 7 (debug).
        facility: 0 for the kernel itself; what a process has written has another, whatever it says.
        sequence: Its number.
        us: When, in microseconds on the kernel log's clock.
        text: What it says, not cleaned.
        device: The device it is about (``+pci:0000:c1:00.0``); empty where none is named.
    """

    level: int
    facility: int
    sequence: int
    us: int
    text: str
    device: str = ""


def parse(data: bytes) -> list[Raw]:
    """The records in what was read from ``/dev/kmsg``; what is none is passed over.

    Args:
        data: Whole records: ``level,sequence,microseconds,flags[,…];text`` and lines that begin with a blank.
    """
    records: list[Raw] = []
    for line in data[:MAX_RECORD].decode("utf-8", "replace").split("\n"):
        if line.startswith(" "):
            name, _, value = line[1:].partition("=")
            if name == "DEVICE" and records:
                last = records[-1]
                records[-1] = Raw(last.level, last.facility, last.sequence, last.us, last.text, value[:100])
            continue
        head, there, text = line.partition(";")
        numbers = head.split(",", 3)[:3]
        if there and len(numbers) == 3 and all(n.isascii() and n.isdigit() and len(n) < 19 for n in numbers):
            prefix, sequence, us = map(int, numbers)
            records.append(Raw(prefix & 7, prefix >> 3, sequence, us, text))
    return records


def clean(text: str) -> str:
    """A text of the kernel's as one printable line of at most ``MAX_TEXT`` characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT])


def pci(address: str) -> str:
    """``0000:c1:00`` for a GPU's PCI address in any of its forms; empty where it is none.

    Args:
        address: ``00000000:C1:00.0`` (NVML), ``0000:c1:00.0``, ``PCI:0000:c1:00``.
    """
    found = re.search(_ADDRESS, address)
    if found is None:
        return ""
    domain, bus, device = found[0].lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{device}"


@dataclass(slots=True)
class Job:
    """What is the job's.

    Attributes:
        pids: Processes that it has or has had, as the kernel numbers them.
        pids_count: Whether our numbers are those of the kernel's log; not so in a PID namespace.
        gpus: PCI addresses of its GPUs, as ``pci`` writes them; empty where they are unknown.
        group: Names of its control group.
    """

    pids: set[int] = field(default_factory=set)
    pids_count: bool = True
    gpus: set[str] = field(default_factory=set)
    group: Names = field(default_factory=Names)
    _victims: set[int] = field(default_factory=set)
    _strangers: set[int] = field(default_factory=set)

    def uses(self, addresses: Iterable[str]) -> None:
        """Say which GPUs the job has.

        Args:
            addresses: Their PCI addresses, in any form.
        """
        self.gpus = {known for known in map(pci, addresses) if known}

    def concerns(self, topic: str, match: re.Match[str], raw: Raw) -> tuple[bool, About]:
        """Whether a line is worth keeping, and whom it is about.

        Args:
            topic: What it is about.
            match: The match of its pattern.
            raw: The line.
        """
        named = match.groupdict()
        if raw.text.startswith("oom-kill:"):
            return self._killing(raw.text)
        if named.get("group"):
            own = self.group.match(named["group"])
            return own, "own" if own else None
        if named.get("pid"):
            pid = int(named["pid"])
            about = self._process(pid)
            if named.get("scope") == "Out of memory" and about is None:
                return True, "node"
            return about is not None or pid not in self._strangers, about
        if topic == "gpu":
            return True, self._gpu(raw)
        return True, None if "page allocation failure" in raw.text else "node"

    def _process(self, pid: int) -> About:
        return "own" if pid in self._victims or (self.pids_count and pid in self.pids) else None

    def _gpu(self, raw: Raw) -> About:
        found = _ANY_ADDRESS.search(raw.text) or _ANY_ADDRESS.search(raw.device)
        if found is None or not self.gpus:
            return None
        return "own" if pci(found[1]) in self.gpus else "node"

    def _killing(self, text: str) -> tuple[bool, About]:
        """Of the out-of-memory killer's summary: the only line that names both group and process."""
        found = _OOM.match(text)
        if found is None:
            return True, None
        constraint, pid = found[1], int(found[2])
        limited = constraint == "CONSTRAINT_MEMCG"
        if self._process(pid) == "own":
            return True, "own"
        # A group may be named so that a line seems to hold two: then neither counts.
        _, there, rest = text.partition(",task_memcg=")
        path = rest.partition(",task=")[0] if there and ",task_memcg=" not in rest else ""
        # A login session's group holds more than the job: where pids can be told, only its own limit speaks for it.
        if path and self.group.match(path) and (limited or not self.pids_count):
            self._victims.add(pid)
            return True, "own"
        if path and limited:
            self._strangers.add(pid)  # another group's own limit is nothing to this job; a node without memory is
            return False, None
        return True, "node" if path else None


def recognised(raw: Raw) -> tuple[str, re.Match[str]] | None:
    """The topic of a line that may have to do with a job's end; None for all others.

    Args:
        raw: The line.
    """
    if raw.facility:
        return None  # a process has written it
    text = raw.text[:MAX_TEXT]
    for topic, pattern in _LINES:
        match = pattern.match(text)
        if match is not None:
            return topic, match
    return None
