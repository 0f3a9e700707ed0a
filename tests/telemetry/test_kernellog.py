"""The kernel's log: from recorded lines, and from this machine's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from conftest import wait_until
from hypothesis import given
from hypothesis import strategies as st

from gpualert.rundir.clock import now_us
from gpualert.telemetry import kernelline, kernellog
from gpualert.telemetry.group import Names
from gpualert.telemetry.kernelline import Job
from gpualert.telemetry.kernellog import KernelLine, KernelLog

SLICE = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-aa.scope"
OTHER = "/kubepods.slice/kubepods-pod2.slice/cri-containerd-bb.scope"


def _oom(constraint: str, memcg: str, task: str, pid: int) -> str:
    head = f"oom-kill:constraint={constraint},nodemask=(null),cpuset=x,mems_allowed=0-1"
    return f"{head},oom_memcg={memcg},task_memcg={memcg},task={task},pid={pid},uid=0"


# On a node: its process ids are ours, the job has processes 4711 and 4712 and the GPU at c1.
NODE = [
    # What the driver of the GPUs says.
    ("NVRM: Xid (PCI:0000:c1:00): 79, pid=4711, name=python, GPU has fallen off the bus.", "gpu", "own"),
    ("NVRM: Xid (PCI:0000:C1:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception", "gpu", "own"),
    ("NVRM: Xid (PCI:0000:41:00): 48, pid=99, name=python, DBE (double bit error)", "gpu", "node"),
    ("NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.", "gpu", "own"),
    ("NVRM: GPU at PCI:0000:c1:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b", None, None),
    ("NVRM: GPU Board Serial Number: 1653723052734", None, None),
    ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15", None, None),
    ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "switch", "node"),
    ("nvidia-nvswitch1: open (major=508)", None, None),
    ("amdgpu 0000:c1:00.0: amdgpu: ring comp_1.1.0 timeout, signaled seq=7, emitted seq=9", "gpu", "own"),
    ("amdgpu 0000:c1:00.0: ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641", "gpu", "own"),
    ("amdgpu 0000:41:00.0: amdgpu: GPU reset begin!", "gpu", "node"),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=9910", "gpu", None),
    ("amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block", "gpu", "own"),
    ("amdgpu 0000:c1:00.0: amdgpu: RAS: optional ras ta ucode is not available", None, None),
    # Memory.
    (_oom("CONSTRAINT_MEMCG", SLICE, "python", 4711), "memory", "own"),
    (_oom("CONSTRAINT_MEMCG", SLICE + "/worker", "pt_data_worker", 9), "memory", "own"),
    (_oom("CONSTRAINT_MEMCG", OTHER, "java", 9), None, None),
    (_oom("CONSTRAINT_NONE", OTHER, "java", 9), "memory", "node"),
    (_oom("CONSTRAINT_NONE", OTHER, "python", 4711), "memory", "own"),
    (_oom("CONSTRAINT_MEMCG", OTHER, "a,pid=4711,b", 9), None, None),
    (_oom("CONSTRAINT_MEMCG", OTHER, f",task_memcg={SLICE}"[:15], 9), "memory", None),
    ("Out of memory: Killed process 4712 (python) total-vm:1kB, anon-rss:1kB", "memory", "own"),
    ("Out of memory: Killed process 77 (java) total-vm:1kB, anon-rss:1kB", "memory", "node"),
    ("Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB", "memory", "own"),
    ("Memory cgroup out of memory: Killed process 77 (java) total-vm:1kB", "memory", None),
    ("Memory cgroup out of memory: Kill process 4711 (python) score 1974 or sacrifice child", "memory", "own"),
    ("Out of memory (oom_kill_allocating_task): Killed process 4711 (python) total-vm:1kB", "memory", "own"),
    (f"Tasks in {SLICE} are going to be killed due to memory.oom.group set", "memory", "own"),
    (f"Tasks in {OTHER} are going to be killed due to memory.oom.group set", None, None),
    (f"Task in {SLICE} killed as a result of limit of {SLICE}", "memory", "own"),
    ("python: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP)", "memory", None),
    (f"cgroup: fork rejected by pids controller in {SLICE}", "processes", "own"),
    (f"cgroup: fork rejected by pids controller in {OTHER}", None, None),
    # Processes.
    ("python3[4711]: segfault at 0 ip 00007f91 sp 00007ffe error 4 in libc.so.6[167ad8,7f9+156000]", "fault", "own"),
    ("cc1plus[77]: segfault at 0 ip 00007f91 sp 00007ffe error 4 in cc1plus[4000+1000]", "fault", None),
    ("a[4711]: segfau[77]: segfault at 0 ip 00 sp 00 error 4", "fault", None),
    ("traps: python3[4712] general protection fault ip:7f sp:7f error:0 in libtorch.so[7f+1]", "fault", "own"),
    ("traps: python3[4712] trap invalid opcode ip:7f sp:7f error:0 in libtorch_cpu.so[7f+1]", "fault", "own"),
    ("traps: python3[4712] trap divide error ip:7f sp:7f error:0 in x.so[7f+1]", "fault", "own"),
    ("python3[4711]: unhandled exception: SP Alignment, ESR 0x000000009a000000", "fault", "own"),
    ("INFO: task python:4711 blocked for more than 122 seconds.", "hung", "own"),
    ("INFO: task kworker/u8:3:55 blocked for more than 122 seconds.", "hung", None),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", "hung", "own"),
    ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "hung", "node"),
    # Hardware.
    ("mce: [Hardware Error]: Machine check events logged", "hardware", "node"),
    ("{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4", "hardware", "node"),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", "hardware", "node"),
    ("EDAC MC: Ver: 3.0.0", None, None),
    ("MCE: Killing python:4711 due to hardware memory corruption fault at 7f12", "hardware", "own"),
    ("Memory failure: 0x12ab: Killing python:4711 due to hardware memory corruption", "hardware", "own"),
    ("Memory failure: 0x12ab: recovery action for dirty LRU page: Recovered", "hardware", "node"),
    ("pcieport 0000:c0:01.1: DPC: containment event, status:0x1f01 source:0x0000", "hardware", "node"),
    ("nvidia 0000:c1:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", "hardware", "node"),
    ("mce: CPU3: Package temperature above threshold, cpu clock throttled (total events = 1)", "thermal", "node"),
    ("mce: CPU3: Package temperature/speed normal", None, None),
    # Storage and network.
    ("blk_update_request: I/O error, dev sda, sector 123 op 0x0:(READ)", "storage", "node"),
    ("I/O error, dev nvme0n1, sector 123 op 0x0:(READ) flags 0x80700 phys_seg 1", "storage", "node"),
    ("critical medium error, dev sdb, sector 99", "storage", "node"),
    ("Buffer I/O error on dev dm-0, logical block 3, lost async page write", "storage", "node"),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm python: reading", "storage", "node"),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "storage", "node"),
    ("EXT4-fs (sda1): mounted filesystem with ordered data mode", None, None),
    ("XFS (nvme0n1): Log I/O Error Detected. Shutting down filesystem", "storage", "node"),
    ("XFS (nvme0n1): Mounting V5 Filesystem", None, None),
    ("nvme nvme0: I/O 23 QID 4 timeout, aborting", "storage", "node"),
    ("nfs: server filer01 not responding, still trying", "storage", "node"),
    ("nfs: server filer01 OK", "storage", "node"),
    ("LustreError: 11-0: scratch-OST0003-osc: operation ost_read failed", "storage", "node"),
    ("Lustre: scratch-OST0003-osc: Connection to scratch-OST0003 (at 10.0.0.3@o2ib) was lost", "storage", "node"),
    ("mlx5_core 0000:3b:00.0 ib0: Link down", "network", "node"),
    ("e1000e 0000:00:1f.6 eno1: NIC Link is Down", "network", "node"),
    ("igb: eth0 NIC Link is Down", "network", "node"),
    ("mlx5_core 0000:3b:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count", "network", "node"),
    # What there is most of.
    ("docker0: port 1(veth12) entered blocking state", None, None),
    ('audit: type=1400 audit(1.2:3): apparmor="DENIED" operation="open" comm="Out of memory: Killed"', None, None),
    ("python: a line that says NVRM: Xid (PCI:0000:c1:00): 79, pid=1", None, None),
    ("", None, None),
]  # fmt: skip


def _record(text: str, *, us: int = 10**15, prefix: int = 4, sequence: int = 1) -> bytes:
    return f"{prefix},{sequence},{us},-;{text}\n".encode()


def _job() -> Job:
    job = Job({4711, 4712}, group=Names(SLICE))
    job.uses(["00000000:C1:00.0"])
    return job


def _read(tmp_path: Path, *records: bytes, job: Job | None = None) -> list[KernelLine]:
    file = tmp_path / uuid.uuid4().hex
    file.write_bytes(b"".join(records))
    log = KernelLog(str(file), since_us=1, job=job or _job())
    try:
        return log.read()
    finally:
        log.close()


@pytest.mark.parametrize(("text", "topic", "about"), NODE)
def test_what_a_line_is_about(tmp_path: Path, text: str, topic: str | None, about: str | None) -> None:
    found = [(line.topic, line.about, line.text) for line in _read(tmp_path, _record(text))]
    assert found == ([(topic, about, text)] if topic else [])


def test_in_a_pid_namespace_the_logs_process_ids_say_nothing(tmp_path: Path) -> None:
    job = Job({4711}, pids_count=False)
    found = _read(
        tmp_path,
        _record("python3[4711]: segfault at 0 ip 00 sp 00 error 4"),
        _record("Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB"),
        job=job,
    )
    assert [line.about for line in found] == [None, None]


def test_in_a_container_the_group_decides_and_names_the_victim(tmp_path: Path) -> None:
    job = Job(pids_count=False, group=Names(marks=("kubepods-pod1.slice",)))
    found = _read(
        tmp_path,
        _record(_oom("CONSTRAINT_NONE", SLICE, "python", 88123)),
        _record("Out of memory: Killed process 88123 (python) total-vm:1kB"),
        _record(_oom("CONSTRAINT_MEMCG", OTHER, "java", 88200)),
        _record("Memory cgroup out of memory: Killed process 88200 (java) total-vm:1kB"),
        job=job,
    )
    assert [(line.about, line.text[:20]) for line in found] == [
        ("own", "oom-kill:constraint="),
        ("own", "Out of memory: Kille"),
    ]


def test_on_a_node_a_session_shared_with_others_does_not_make_their_end_ours(tmp_path: Path) -> None:
    job = Job({4711}, group=Names("/user.slice/user-1000.slice/session-3.scope"))
    found = _read(
        tmp_path, _record(_oom("CONSTRAINT_NONE", "/user.slice/user-1000.slice/session-3.scope", "firefox", 9)), job=job
    )
    assert [line.about for line in found] == ["node"]


def test_gpus_that_are_not_known_are_nobodys(tmp_path: Path) -> None:
    found = _read(tmp_path, _record("NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus."), job=Job())
    assert [(line.topic, line.about) for line in found] == [("gpu", None)]


def test_the_device_that_the_kernel_names_beside_a_line_counts(tmp_path: Path) -> None:
    text = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=9910"
    record = _record(text) + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:c1:00.0\n"
    assert [line.about for line in _read(tmp_path, record)] == ["own"]


def test_what_a_process_has_written_into_the_log_is_not_the_kernels_word(tmp_path: Path) -> None:
    # Facility 1 (user) and 3 (daemon); the kernel gives its own, 0, to nobody.
    forged = "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus."
    assert _read(tmp_path, _record(forged, prefix=8 | 3), _record(forged, prefix=24 | 3)) == []


def test_lines_from_before_the_job_are_not_given_out(tmp_path: Path) -> None:
    file = tmp_path / "log"
    text = "NVRM: Xid (PCI:0000:c1:00): {}, GPU has fallen off the bus."
    clock = kernellog.clock_us()
    file.write_bytes(_record(text.format(79), us=clock - 60_000_000) + _record(text.format(48), us=clock))
    log = KernelLog(str(file), since_us=now_us() - 30_000_000, job=_job())
    assert [line.text for line in log.read()] == [text.format(48)]
    log.close()


def test_without_a_beginning_only_what_comes_later_is_given_out(tmp_path: Path) -> None:
    file = tmp_path / "log"
    text = "NVRM: Xid (PCI:0000:c1:00): {}, GPU has fallen off the bus."
    file.write_bytes(_record(text.format(79)))
    log = KernelLog(str(file), job=_job())
    assert log.read() == []
    with file.open("ab") as more:
        # The clock of the log may lag behind ours by minutes: what has just come is new all the same.
        more.write(_record(text.format(48), us=1))
    assert [line.text for line in log.read()] == [text.format(48)]
    log.close()


def test_a_line_is_dated_between_the_last_look_and_now(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    log = KernelLog(str(pipe), job=_job())
    log.read()
    before = now_us()
    log.read()
    with pipe.open("wb", buffering=0) as end:
        end.write(_record("nfs: server a OK", us=0))
        end.write(_record("nfs: server b OK", us=10**17))
        found = log.read()
    assert len(found) == 2
    assert all(before <= line.at_us <= now_us() for line in found)
    log.close()


def test_a_pipe_without_a_writer_has_nothing_and_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    log = KernelLog(str(pipe))
    assert log.read() == []
    log.close()
    assert log.read() == []


def test_where_there_is_no_log_it_is_said_why(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert log.read() == []
    assert log.trouble == f"cannot read {tmp_path}/none (No such file or directory)"


def test_a_flood_leaves_room_for_the_jobs_own(tmp_path: Path) -> None:
    flood = [_record(f"nfs: server filer{number} OK") for number in range(500)]
    flood += [_record(f"EDAC MC{number}: 1 CE error") for number in range(500)]
    flood += [_record(f"CPU{number}: Core temperature above threshold") for number in range(500)]
    own = [_record(f"python3[4711]: segfault at {number:x} ip 0") for number in range(500)]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    log = KernelLog(str(pipe), job=_job())
    found: list[KernelLine] = []
    with pipe.open("wb", buffering=0) as end:
        for record in flood + own:
            end.write(record)
            found += log.read()
    log.close()
    assert len([line for line in found if line.about == "own"]) == 40
    assert [len([line for line in found if line.topic == topic]) for topic in ("storage", "hardware", "thermal")] == [
        25,
        25,
        10,
    ]
    assert log.dropped == 2000 - 100


def test_a_kept_line_is_short_and_printable(tmp_path: Path) -> None:
    (line,) = _read(tmp_path, _record("NVRM: Xid (PCI:0000:c1:00): 79, \x1b[31m\x00\u202e\ufffd" + "x" * 5000))
    assert len(line.text) == 500
    assert line.text.isprintable()
    assert line.text.startswith("NVRM: Xid (PCI:0000:c1:00): 79, ?[31m??\ufffdxxx")


@given(st.binary(max_size=4000))
def test_any_bytes_are_read_as_records_or_passed_over(data: bytes) -> None:
    for raw in kernelline.parse(data):
        assert 0 <= raw.level <= 7
        known = kernelline.recognised(raw)
        if known is not None:
            _job().concerns(*known, raw)


@given(
    st.integers(0, 255),
    st.integers(0, 10**12),
    st.integers(0, 10**16),
    st.sampled_from(["-", "c", "-,caller=T12", "+,caller=C3,x=y"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\n")),
)
def test_a_record_says_who_when_and_what(prefix: int, sequence: int, us: int, flags: str, text: str) -> None:
    (raw,) = kernelline.parse(f"{prefix},{sequence},{us},{flags};{text}\n".encode())
    assert (raw.level, raw.facility, raw.sequence, raw.us, raw.text) == (prefix & 7, prefix >> 3, sequence, us, text)


@pytest.mark.parametrize(
    ("address", "same"),
    [
        ("00000000:C1:00.0", "0000:c1:00"),
        ("PCI:0000:c1:00", "0000:c1:00"),
        ("00010000:0B:00.0", "10000:0b:00"),
        ("x", ""),
    ],
)
def test_pci_addresses_in_all_their_forms(address: str, same: str) -> None:
    assert kernelline.pci(address) == same


def _fault() -> int:
    """A process of ours that the kernel ends for touching what it may not; its id."""
    process = subprocess.Popen([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"], stderr=subprocess.DEVNULL)
    assert process.wait() == -signal.SIGSEGV
    return process.pid


@pytest.mark.root
def test_the_real_log_tells_of_a_real_fault_of_the_jobs_process() -> None:
    log = KernelLog()
    assert log.trouble == ""
    found: list[KernelLine] = []
    pid = _fault()
    log.job.pids.add(pid)
    line = _awaited(log, found, f"[{pid}]: segfault at 0 ")
    assert (line.topic, line.about) == ("fault", "own")
    log.close()


def _logged_us(pid: int) -> int:
    """When, on the log's own clock, the log told of a process's fault."""
    (raw,) = [
        raw for record in _all_lines() for raw in kernelline.parse(record.encode()) if f"[{pid}]: segf" in raw.text
    ]
    return raw.us


@pytest.mark.root
def test_the_real_log_is_read_from_the_jobs_start_on() -> None:
    before, during = _fault(), _fault()
    wait_until(lambda: all(any(f"[{pid}]" in line for line in _all_lines()) for pid in (before, during)), "both faults")
    # The log's clock may be minutes off by now: the start lies between the two by that clock.
    middle = (_logged_us(before) + _logged_us(during)) // 2
    log = KernelLog(since_us=now_us() - (kernellog.clock_us() - middle))
    pids = [int(found[1]) for line in log.read() if (found := re.search(r"\[(\d+)\]: segfault", line.text))]
    log.close()
    assert during in pids
    assert before not in pids


@pytest.mark.root
def test_a_line_that_a_process_writes_into_the_real_log_is_not_believed() -> None:
    log = KernelLog(job=_job())
    mark = uuid.uuid4().hex
    for prefix in ("<3>", "<0>", "<2051>"):  # 2051: facility 256, of which eight bits are 0
        with open("/dev/kmsg", "wb", buffering=0) as device:
            device.write(f"{prefix}NVRM: Xid (PCI:0000:c1:00): 79, {mark}\n".encode())
    wait_until(lambda: sum(mark in line for line in _all_lines()) == 3, "the lines in the log")
    assert [line for line in log.read() if mark in line.text] == []
    log.close()


@pytest.mark.root
def test_the_real_log_names_the_group_of_a_process_that_it_killed_for_memory() -> None:
    group = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
    if (group / "cgroup.subtree_control").exists():
        (group / "cgroup.subtree_control").write_text("+memory")
    mine = group / f"gpualert-test-{uuid.uuid4().hex[:8]}"
    mine.mkdir()
    try:
        v1 = (mine / "memory.limit_in_bytes").exists()
        (mine / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(32 << 20))
        for swap, bytes_ in (("memory.memsw.limit_in_bytes", 32 << 20), ("memory.swap.max", 0)):
            if (mine / swap).exists():
                (mine / swap).write_text(str(bytes_))
        log = KernelLog(job=Job(pids_count=False, group=Names(f"/{mine.name}")))
        hog = f"open('{mine}/cgroup.procs', 'w').write('0'); x = []\nwhile True: x.append(bytearray(b'x') * (1 << 20))"
        done = subprocess.run([sys.executable, "-c", hog], check=False, stderr=subprocess.DEVNULL)
        assert done.returncode == -signal.SIGKILL
        found: list[KernelLine] = []
        _awaited(log, found, "Killed process")
        log.close()
    finally:
        wait_until(lambda: _removed(mine), "the group's end")
    assert [(line.topic, line.about) for line in found if mine.name in line.text or "Killed process" in line.text] == [
        ("memory", "own"),
        ("memory", "own"),
    ]


def _awaited(log: KernelLog, found: list[KernelLine], text: str) -> KernelLine:
    """The line that holds a text, once it has come; all that came are added to ``found``."""

    def come() -> bool:
        found.extend(log.read())
        return any(text in line.text for line in found)

    wait_until(come, text)
    return next(line for line in found if text in line.text)


def _removed(group: Path) -> bool:
    group.rmdir()  # fails while the kernel has the killed process in it
    return True


def _all_lines() -> list[str]:
    """The whole of the real log."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines: list[str] = []
    try:
        while True:
            try:
                lines.append(os.read(fd, 16384).decode("utf-8", "replace"))
            except BrokenPipeError:
                continue
            except BlockingIOError:
                return lines
    finally:
        os.close(fd)
