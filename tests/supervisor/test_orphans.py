"""What the child leaves behind: reaped, never mistaken for it, left alone unless told otherwise."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import Gpualert, python, wait_until


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_orphans_are_reaped_while_the_child_lives(gpualert: Gpualert) -> None:
    # Twenty grandchildren whose parents end at once; each must be gone, not a zombie.
    text = """
import os, time
time.sleep(0.3)
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(3)
        os._exit(0)
    os.wait()
time.sleep(0.5)
zombies = 0
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            stat = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
        except OSError:
            continue
        zombies += stat[0] == "Z" and stat[1] == str(os.getppid())
print("zombies", zombies)
"""
    assert gpualert.run(python(text)).stdout == b"zombies 0\n"


def test_the_status_of_an_orphan_is_never_the_childs(gpualert: Gpualert) -> None:
    text = """
import os, time
time.sleep(0.3)
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.1)
        os._exit(9)
    os._exit(8)
os.wait()
time.sleep(0.4)
os._exit(7)
"""
    assert gpualert.run(python(text)).returncode == 7


def test_a_grandchild_that_holds_the_pipe_does_not_keep_us(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "sleep 600 & echo $!; exit 5"])
    assert done.returncode == 5
    pid = int(done.stdout)
    assert _state(pid) in ("S", "R")  # it is left alone
    os.kill(pid, signal.SIGKILL)


def test_what_a_grandchild_writes_during_the_drain_is_kept(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "(sleep 0.3; echo late) & echo early; exit 0"])
    assert done.stdout == b"early\nlate\n"
    assert done.log == done.stdout


def test_orphan_grace_ends_leftovers_politely_then_hard(gpualert: Gpualert, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    text = (
        f"(trap 'touch {marks}/polite; exit' TERM; touch {marks}/a; while :; do sleep 0.05; done) & "
        f"(trap '' TERM; touch {marks}/b; while :; do sleep 0.05; done) & "
        f"until [ -e {marks}/a ] && [ -e {marks}/b ]; do sleep 0.05; done; exit 3"
    )
    done = gpualert.run(["sh", "-c", text], "--orphan-grace", "1s")
    assert done.returncode == 3
    assert (marks / "polite").exists()


def test_without_orphan_grace_nobody_is_ended(plain: Gpualert, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = plain.run(["sh", "-c", f"(trap 'touch {mark}' TERM; sleep 1) >/dev/null 2>&1 & exit 0"])
    assert done.returncode == 0
    assert not mark.exists()


@pytest.mark.parametrize("number", [signal.SIGCHLD])
def test_sigchld_inherited_as_ignored_changes_nothing(gpualert: Gpualert, number: signal.Signals) -> None:
    done = gpualert.run(["sh", "-c", "exit 23"], preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    assert done.returncode == 23


def test_processes_we_start_ourselves_leave_no_zombie(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo ready; sleep 1"])
    started.wait_for(b"ready")
    children = Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 1, "one child alone")
    assert started.finish().returncode == 0
