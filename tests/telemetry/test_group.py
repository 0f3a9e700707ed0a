"""Whose a control group in the kernel's log is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.supervisor.cgroup import memberships
from gpualert.telemetry.group import Names

POD = "3f1c2f6e-8a44-4c7e-9d0b-52f7a1f0c9aa"
CONTAINER = "5d" * 32
KUBELET = f"/var/lib/kubelet/pods/{POD}"


def _tree(root: Path, membership: str, *mounts: tuple[str, str]) -> str:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    lines = [
        f"{n} 1 259:1 {source} {point} rw,relatime - ext4 /dev/nvme0n1p1 rw" for n, (source, point) in enumerate(mounts)
    ]
    (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    return str(root)


def test_memberships_of_both_versions() -> None:
    text = b"12:pids:/docker/abc\n8:memory,cpu:/docker/abc/\n1:name=systemd:/x\n0::/init.scope\nbroken\n"
    assert memberships(text) == {
        "pids": "/docker/abc",
        "memory": "/docker/abc",
        "cpu": "/docker/abc",
        "name=systemd": "/x",
        "": "/init.scope",
    }


@given(st.binary())
def test_a_membership_of_any_bytes_is_read(text: bytes) -> None:
    assert all(isinstance(path, str) for path in memberships(text).values())


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/slurm/uid_1000/job_7/step_0", True),
        ("/slurm/uid_1000/job_7/step_0/task_3", True),
        ("/slurm/uid_1000/job_7/step_01", False),
        ("/slurm/uid_1000/job_7", False),
        ("/", False),
    ],
)
def test_a_group_is_ours_where_its_path_is_at_or_below_our_own(tmp_path: Path, path: str, own: bool) -> None:
    names = Names.of_this_process(_tree(tmp_path, "0::/slurm/uid_1000/job_7/step_0\n"))
    assert names.match(path) is own


def test_the_root_group_is_not_taken_for_the_jobs_own(tmp_path: Path) -> None:
    names = Names.of_this_process(_tree(tmp_path, "0::/\n"))
    assert not names.match("/system.slice/sshd.service")


def test_the_memory_controllers_group_counts_where_version_1_has_it(tmp_path: Path) -> None:
    names = Names.of_this_process(_tree(tmp_path, "4:memory:/docker/abc\n1:cpu:/other\n0::/\n"))
    assert (names.match("/docker/abc"), names.match("/other")) == (True, False)


@pytest.mark.parametrize(
    "group_path",
    [
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{'a1' * 32}.scope",
        f"/kubepods/burstable/pod{POD}/{'a1' * 32}",
    ],
)
def test_a_pod_is_known_by_the_files_that_kubelet_mounts_into_it(tmp_path: Path, group_path: str) -> None:
    mounts = [(f"{KUBELET}/etc-hosts", "/etc/hosts"), (f"{KUBELET}/containers/main/1a2b3c4d", "/dev/termination-log")]
    names = Names.of_this_process(_tree(tmp_path, "0::/\n", *mounts))
    assert names.match(group_path)
    assert not names.match(group_path.replace("3f1c2f6e", "11111111"))


def test_a_container_is_known_by_its_own_id(tmp_path: Path) -> None:
    mounts = [(f"/var/lib/docker/containers/{CONTAINER}/{file}", f"/etc/{file}") for file in ("hosts", "hostname")]
    names = Names.of_this_process(_tree(tmp_path, "0::/\n", *mounts))
    assert names.match(f"/system.slice/docker-{CONTAINER}.scope")
    assert not names.match(f"/system.slice/docker-{'6e' * 32}.scope")


def test_on_the_node_the_mounts_of_its_pods_are_not_ours(tmp_path: Path) -> None:
    mounts = [(f"{KUBELET}/volumes/kubernetes.io~empty-dir/x", f"{KUBELET}/volumes/kubernetes.io~empty-dir/x")]
    names = Names.of_this_process(_tree(tmp_path, "0::/system.slice/x.service\n", *mounts))
    assert names.marks == ()


def test_without_proc_no_group_is_ours(tmp_path: Path) -> None:
    assert not Names.of_this_process(str(tmp_path)).match("/anything")
