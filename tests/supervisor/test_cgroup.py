"""Control group counters, from recorded trees of both versions."""

from __future__ import annotations

from pathlib import Path

from gpualert.supervisor.cgroup import ControlGroup

V2 = {
    "proc/self/cgroup": "0::/kubepods.slice/pod1/container\n",
    "sys/fs/cgroup/kubepods.slice/pod1/container/memory.current": "1073741824\n",
    "sys/fs/cgroup/kubepods.slice/pod1/container/memory.max": "2147483648\n",
    "sys/fs/cgroup/kubepods.slice/pod1/container/memory.peak": "2147483000\n",
    "sys/fs/cgroup/kubepods.slice/pod1/container/memory.stat": "anon 900\nfile 100\ninactive_file 73741824\n",
    "sys/fs/cgroup/kubepods.slice/pod1/container/memory.events": "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\n",
    "sys/fs/cgroup/kubepods.slice/pod1/container/pids.events": "max 5\n",
}
V1 = {
    "proc/self/cgroup": "12:pids:/docker/abc\n8:memory:/docker/abc\n1:name=systemd:/docker/abc\n",
    "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "62914560\n",
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/docker/abc/memory.max_usage_in_bytes": "62914560\n",
    "sys/fs/cgroup/memory/docker/abc/memory.stat": "hierarchical_memory_limit 104857600\ntotal_inactive_file 2914560\n",
    "sys/fs/cgroup/memory/docker/abc/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "sys/fs/cgroup/pids/docker/abc/pids.current": "3\n",
    "sys/fs/cgroup/pids/docker/abc/pids.events": "max 3\n",
}


def _tree(root: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(root)


def _values(group: ControlGroup) -> tuple[object, ...]:
    s = group.sample()
    return (s.current, s.working_set, s.limit, s.peak, s.oom_kill, s.pids_max_events)


def test_version_2(tmp_path: Path) -> None:
    group = ControlGroup(_tree(tmp_path, V2))
    assert (group.version, _values(group)) == (2, (1073741824, 1000000000, 2147483648, 2147483000, 2, 5))


def test_version_2_without_a_limit(tmp_path: Path) -> None:
    files = {**V2, "sys/fs/cgroup/kubepods.slice/pod1/container/memory.max": "max\n"}
    assert ControlGroup(_tree(tmp_path, files)).sample().limit is None


def test_version_2_in_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    files = {name.replace("kubepods.slice/pod1/container/", ""): text for name, text in V2.items()}
    assert ControlGroup(_tree(tmp_path, files)).sample().current == 1073741824


def test_version_1_takes_the_limit_of_the_hierarchy(tmp_path: Path) -> None:
    group = ControlGroup(_tree(tmp_path, V1))
    assert (group.version, _values(group)) == (1, (62914560, 60000000, 104857600, 62914560, 1, 3))


def test_no_control_group_at_all(tmp_path: Path) -> None:
    group = ControlGroup(str(tmp_path))
    assert (group.version, _values(group)) == (0, (None,) * 6)


def test_garbage_is_no_number(tmp_path: Path) -> None:
    files = {**V2, "sys/fs/cgroup/kubepods.slice/pod1/container/memory.peak": "lots\n"}
    assert ControlGroup(_tree(tmp_path, files)).sample().peak is None
