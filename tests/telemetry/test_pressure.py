"""Pressure and shared memory, from recorded trees and from this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.supervisor.cgroup import ControlGroup
from gpualert.telemetry import pressure

CGROUP = "sys/fs/cgroup/kubepods.slice/pod1/container"


def _psi(some: str, full: str = "") -> str:
    text = f"some avg10={some} avg60=1.00 avg300=1.00 total=5126819576\n"
    return text + (f"full avg10={full} avg60=0.00 avg300=0.00 total=12\n" if full else "")


MACHINE = {
    "proc/pressure/memory": _psi("2.50", "1.25"),
    "proc/pressure/io": _psi("9.00", "7.75"),
    "proc/pressure/cpu": _psi("55.10", "0.00"),
}
GROUP = {
    f"{CGROUP}/memory.pressure": _psi("80.01", "64.20"),
    f"{CGROUP}/io.pressure": _psi("1.00", "0.50"),
    f"{CGROUP}/cpu.pressure": _psi("3.00"),
}


def _tree(root: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(root)


def test_the_groups_own_pressure_comes_before_the_machines(tmp_path: Path) -> None:
    root = _tree(tmp_path, MACHINE | GROUP)
    assert pressure.sample(f"{root}/{CGROUP}", root) == {
        "memory_some": 80.01,
        "memory_full": 64.2,
        "io_full": 0.5,
        "cpu_some": 3.0,
        "of": "group",
    }


def test_the_machines_pressure_where_the_group_has_none(tmp_path: Path) -> None:
    root = _tree(tmp_path, MACHINE)
    expected = {"memory_some": 2.5, "memory_full": 1.25, "io_full": 7.75, "cpu_some": 55.1, "of": "machine"}
    assert pressure.sample(f"{root}/{CGROUP}", root) == expected
    assert pressure.sample(None, root) == expected


def test_a_kernel_without_pressure_has_none(tmp_path: Path) -> None:
    assert pressure.sample(str(tmp_path), str(tmp_path)) == {}


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"proc/pressure/memory": _psi("2.50"), "proc/pressure/io": "full avg10=lots\n"})
    assert pressure.sample(None, root) == {"memory_some": 2.5, "of": "machine"}


@given(st.binary(max_size=300))
def test_any_bytes_are_a_share_or_nothing(data: bytes) -> None:
    for text in (data, b"some avg10=" + data, b"full avg10=" + data):
        for who in ("some", "full"):
            found = pressure._average(text, who)
            assert found is None or 0 <= found <= 100


def test_this_machines_pressure_is_read_as_far_as_its_kernel_measures_it() -> None:
    directory = ControlGroup().directory
    by_group = directory is not None and os.path.exists(f"{directory}/memory.pressure")
    found = pressure.sample(directory)
    measured = by_group or os.path.exists("/proc/pressure/memory")
    assert found.get("of") == (("group" if by_group else "machine") if measured else None)
    assert set(found) == ({"memory_some", "memory_full", "io_full", "cpu_some", "of"} if measured else set())


def test_memory_of_a_group_of_version_2(tmp_path: Path) -> None:
    root = _tree(tmp_path, {f"{CGROUP}/memory.stat": "anon 900\nshmem 4096\nsock 0\npgmajfault 17\n"})
    assert pressure.group_memory(f"{root}/{CGROUP}") == {"group_shmem": 4096, "group_major_faults": 17}


def test_memory_of_a_group_of_version_1_counts_the_groups_below(tmp_path: Path) -> None:
    text = "shmem 1\npgmajfault 2\nhierarchical_memory_limit 9\ntotal_shmem 4096\ntotal_pgmajfault 17\n"
    root = _tree(tmp_path, {"memory.stat": text})
    assert pressure.group_memory(root) == {"group_shmem": 4096, "group_major_faults": 17}


def test_memory_of_no_group(tmp_path: Path) -> None:
    assert pressure.group_memory(None) == {}
    assert pressure.group_memory(str(tmp_path)) == {}


def test_this_machines_group_tells_of_its_memory() -> None:
    found = pressure.group_memory(ControlGroup().directory)
    assert set(found) == ({"group_shmem", "group_major_faults"} if ControlGroup().directory else set())


@pytest.mark.root
def test_shared_memory_that_fills_up(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=True)
    try:
        assert pressure.shared_memory(str(tmp_path)) == {"shm_used": 0, "shm_size": 1 << 20}
        (tmp_path / "segment").write_bytes(bytes(512 << 10))
        assert pressure.shared_memory(str(tmp_path)) == {"shm_used": 512 << 10, "shm_size": 1 << 20}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.root
def test_shared_memory_without_a_limit_has_no_size(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=0", "none", str(tmp_path)], check=True)
    try:
        assert pressure.shared_memory(str(tmp_path)) == {}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    assert pressure.shared_memory(str(tmp_path / "none")) == {}
