"""The job's processes: which they are, what they have used, also those that have ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from conftest import PYTHON, wait_until

from gpualert.supervisor import reporter
from gpualert.telemetry.processes import Tree

_PARENT = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print('up', flush=True); sys.stdin.read(); p.kill(); p.wait()"
_WORK = "print('up', flush=True); sum(range(30 * 10**6)); input()"


@contextlib.contextmanager
def root(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the supervisor, with a command below it; ends both when asked to."""
    with subprocess.Popen([PYTHON, "-c", _PARENT, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdin is not None
        assert one.stdout.readline() == b"up\n"
        yield one
        one.stdin.close()


def test_all_descendants_count_and_nobody_else() -> None:
    with root("sh", "-c", "sleep 1000 & sleep 1000 & wait") as one:
        tree = Tree(one.pid)
        wait_until(lambda: tree.sample().processes == 3, "the shell and two more")
        activity = tree.sample()
        assert (activity.threads, activity.states, activity.pythons) == (3, {"S": 3}, ())
        assert activity.rss > 100_000
        assert sorted(process.name for process in tree.processes()) == ["sh", "sleep", "sleep"]
        for process in tree.processes():
            if process.name == "sleep":
                os.kill(process.pid, 9)


def test_gpualerts_own_processes_do_not_count() -> None:
    own = [sys.executable, "-I", "-c", reporter._START.format(module="report.running"), "/nowhere"]
    text = "import subprocess, sys; a = subprocess.Popen(sys.argv[1:3]); print('up', flush=True); sys.stdin.read(); a.kill(); a.wait()"
    with subprocess.Popen([PYTHON, "-c", text, "sleep", "1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdin is not None
        one.stdout.readline()
        tree = Tree(one.pid)
        wait_until(lambda: tree.sample().processes == 1, "the sleep")
        (pid,) = [process.pid for process in tree.processes()]
        assert Tree(one.pid, {pid}).sample().processes == 0
        one.stdin.close()
    # A child of ours that runs what the supervisor starts for itself.
    with subprocess.Popen(
        [*own[:3], own[3].replace("import main; main()", "import main; input()"), *own[4:]], stdin=subprocess.PIPE
    ) as other:
        wait_until(lambda: b"from gpualert" in Path(f"/proc/{other.pid}/cmdline").read_bytes(), "its command")
        tree = Tree(os.getpid())
        tree.sample()
        assert other.pid not in {process.pid for process in tree.processes()}
        other.communicate(b"\n")


def test_what_processes_have_used_stays_when_they_end() -> None:
    # The shell waits for the worker, so what that has used goes over to the shell, and is not counted twice.
    with root("sh", "-c", f"{sys.executable} -c {_WORK!r} < /dev/null 2>/dev/null; sleep 1000") as one:
        tree = Tree(one.pid)
        seen = []

        def over() -> bool:
            seen.append(tree.sample())
            return seen[-1].cpu_s > 0.2 and not seen[-1].pythons

        wait_until(over, "the worker's end")
        times = [activity.cpu_s for activity in seen]
        assert times == sorted(times)
        assert seen[-1].cpu_s < 2 * max(activity.cpu_s for activity in seen if activity.pythons) + 5
        assert [activity.io_bytes for activity in seen] == sorted(activity.io_bytes for activity in seen)
        wait_until(lambda: tree.sample().processes == 2, "the shell and its sleep")
        assert "python" in tree.peaks()[0].name
        for process in tree.processes():
            if process.name == "sleep":
                os.kill(process.pid, 9)


def test_short_lived_processes_are_counted_through_their_parent() -> None:
    loop = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); head -c 1000000 /dev/zero > /dev/null; done; sleep 1000"
    with root("sh", "-c", loop) as one:
        tree = Tree(one.pid)
        wait_until(lambda: "sleep" in {p.name for p in (tree.sample(), tree.processes())[1]}, "the loop's end")
        # 200 times a megabyte read and written, most of it between two looks.
        assert tree.sample().io_bytes >= 400_000_000
        for process in tree.processes():
            if process.name == "sleep":
                os.kill(process.pid, 9)


def test_what_is_mapped_counts_as_read(tmp_path: Path) -> None:
    (tmp_path / "tensors").write_bytes(os.urandom(32 << 20))
    subprocess.run(["sync"], check=True)
    text = (
        "import mmap, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); "
        "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); "
        "held = mmap.mmap(fd, 0, prot=mmap.PROT_READ); sum(held[at] for at in range(0, len(held), 4096)); "
        "open(sys.argv[1] + '.done', 'w').close(); import time; time.sleep(1000)"
    )
    with root(PYTHON, "-c", text, str(tmp_path / "tensors")) as one:
        tree = Tree(one.pid)
        wait_until((tmp_path / "tensors.done").exists, "its end")
        activity = tree.sample()
        on_disk = int(Path(f"/proc/{tree.processes()[0].pid}/io").read_text().split()[9])
        assert activity.io_bytes >= on_disk


def test_pythons_are_known_also_after_they_have_become_one() -> None:
    with root("sh", "-c", f"sleep 0.5; exec {PYTHON} -c 'import time; time.sleep(1000)'") as one:
        tree = Tree(one.pid)
        assert tree.sample().pythons == ()
        wait_until(lambda: len(tree.sample().pythons) == 1, "the interpreter")


def test_peaks_are_the_largest_first_and_at_most_ten() -> None:
    big = "x = bytearray(80 << 20); del x; import time; time.sleep(1000)"
    with root(
        "sh", "-c", f"{PYTHON} -c '{big}' & for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; wait"
    ) as one:
        tree = Tree(one.pid)
        wait_until(lambda: tree.sample().processes == 14 and tree.peaks()[0].peak > 80 << 20, "all of them")
        peaks = tree.peaks()
        assert len(peaks) == 10
        assert peaks[0].as_dict()["name"] == "python"
        for process in tree.processes():
            if process.parent != one.pid:
                os.kill(process.pid, 9)


def test_a_root_that_has_gone_has_nothing_below_it() -> None:
    with subprocess.Popen(["true"]) as one:
        one.wait()
    tree = Tree(one.pid)
    assert tree.sample().processes == 0
    assert tree.peaks() == []
