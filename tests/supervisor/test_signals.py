"""Signals reach the child, each exactly once, at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Gpualert, Started, python, wait_until

COUNT = """
import os, signal, sys, time
got = []
numbers = [int(n) for n in sys.argv[1].split(",")]
for n in numbers:
    signal.signal(n, lambda number, frame: got.append(number))
print("ready", flush=True)
while signal.SIGTERM not in got or time.monotonic() < float(os.environ.get("UNTIL", "0")):
    time.sleep(0.01)
time.sleep(0.3)
print(sorted(got), flush=True)
"""

QUIET = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
FORWARDED = sorted(
    int(number)
    for number in signal.valid_signals()
    if number not in QUIET | {signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    and int(number) not in (32, 33)
)


def _inner_pid(started: Started, gpualert: Gpualert) -> int:
    """The process id of gpualert itself as seen from here."""
    if not gpualert.pid1:
        return started.process.pid
    children = Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children").read_text().split()
    return int(children[0])


def test_every_signal_is_forwarded_exactly_once(gpualert: Gpualert) -> None:
    wanted = ",".join(map(str, FORWARDED))
    # Without hints: the interpreter's own crash handler would take some of them.
    started = gpualert.start([*python(COUNT), wanted], "--no-env-hints")
    started.wait_for(b"ready")
    pid = _inner_pid(started, gpualert)
    for number in FORWARDED:
        if number != signal.SIGTERM:
            os.kill(pid, number)
    os.kill(pid, signal.SIGTERM)
    done = started.finish()
    assert done.returncode == 0
    assert done.log.decode().splitlines()[-1] == str(sorted(FORWARDED))
    recorded = [event["signal"] for event in done.events if event["event"] == "signal"]
    assert sorted(recorded) == [number for number in FORWARDED if number != signal.SIGWINCH]


def test_real_time_signals_queue(plain: Gpualert) -> None:
    number = signal.SIGRTMIN + 3
    text = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])
print("ready", flush=True)
for _ in range(20):
    signal.sigwait([{int(number)}])
print("twenty", flush=True)
"""
    started = plain.start(python(text))
    started.wait_for(b"ready")
    for _ in range(20):
        os.kill(started.process.pid, number)
    assert started.finish().stdout == b"ready\ntwenty\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_is_pending_before_we_start_reaches_the_child(plain: Gpualert, number: signal.Signals) -> None:
    # As the bundle's launcher does: blocked before the interpreter starts, the true mask handed over.
    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.kill(os.getpid(), number)

    done = plain.run(["sleep", "60"], env={"_GPUALERT_SIGNALS": "0:0"}, preexec_fn=prepare)
    assert done.returncode == -number
    assert done.json("exit.json")["forwarded"] == [number]
    assert b"_GPUALERT_SIGNALS" not in plain.run(["env"], env={"_GPUALERT_SIGNALS": "0:0"}).stdout


def test_the_mask_that_was_handed_over_is_the_childs(plain: Gpualert) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    ignored = 1 << (signal.SIGPIPE - 1)
    blocked = 1 << (signal.SIGUSR1 - 1)
    done = plain.run(
        ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"],
        env={"_GPUALERT_SIGNALS": f"{blocked:x}:{ignored:x}"},
        preexec_fn=block,
    )
    _, seen_blocked, _, seen_ignored = done.stdout.decode().split()
    internal = 1 << 31 | 1 << 32  # glibc's own two, which its posix_spawn leaves ignored
    assert (int(seen_blocked, 16), int(seen_ignored, 16) & ~internal) == (blocked, ignored)


def test_a_stopping_child_ends_us_with_its_signal(gpualert: Gpualert) -> None:
    started = gpualert.start(["sh", "-c", "echo ready; exec sleep 60"])
    started.wait_for(b"ready")
    os.kill(_inner_pid(started, gpualert), signal.SIGTERM)
    done = started.finish()
    assert done.returncode == (128 + 15 if gpualert.pid1 else -15)
    assert done.json("report.json")["diagnosis"]["class"] == "terminated"
    assert done.said[0].startswith("gpualert: terminated: stopped from outside by SIGTERM")


def test_a_child_that_handles_sigterm_keeps_its_own_code(gpualert: Gpualert) -> None:
    started = gpualert.start(["sh", "-c", "trap 'exit 41' TERM; echo ready; while :; do sleep 0.05; done"])
    started.wait_for(b"ready")
    os.kill(_inner_pid(started, gpualert), signal.SIGTERM)
    assert started.finish().returncode == 41


def test_signals_after_the_end_harm_nothing(plain: Gpualert) -> None:
    # A grandchild holds the pipe, so that gpualert still drains when the signals come.
    started = plain.start(["sh", "-c", "sleep 1.5 & echo ready; exit 6"])
    started.wait_for(b"ready")
    for _ in range(20):
        try:
            os.kill(started.process.pid, signal.SIGUSR1)
        except ProcessLookupError:
            break
    assert started.finish().returncode == 6


def test_without_signal_group_only_the_child_gets_it(plain: Gpualert) -> None:
    text = (
        "trap 'echo parent' USR1; sh -c 'trap \"echo inner\" USR1; echo ready; sleep 2; sleep 1' & wait; wait; exit 0"
    )
    started = plain.start(["sh", "-c", text])
    started.wait_for(b"ready")
    os.kill(started.process.pid, signal.SIGUSR1)
    assert b"inner" not in started.finish().stdout


def test_signal_group_reaches_the_whole_group(plain: Gpualert) -> None:
    text = "trap 'echo parent' USR1; sh -c 'trap \"echo inner\" USR1; echo ready; sleep 0.5; sleep 0.5' & wait; wait; exit 0"
    started = plain.start(["sh", "-c", text], "--signal-group")
    started.wait_for(b"ready")
    os.kill(started.process.pid, signal.SIGUSR1)
    done = started.finish()
    assert (b"parent" in done.stdout, b"inner" in done.stdout) == (True, True)


@pytest.mark.root
@pytest.mark.parametrize("measured", [False, True])
def test_a_child_that_may_not_be_signalled_harms_nothing(plain: Gpualert, tmp_path: Path, *, measured: bool) -> None:
    """The child becomes root by a setuid program; gpualert is nobody, and may not signal it."""
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    plain.log_dir.mkdir(mode=0o777)
    plain.log_dir.chmod(0o777)
    tool = tmp_path / "become-root"
    tool.write_bytes(Path("/usr/bin/setpriv").resolve().read_bytes())
    tool.chmod(0o4755)
    argv = plain.argv([], [str(tool), "--reuid", "0", "sleep", "4" if measured else "1.5"])
    argv[0] = "/usr/bin/python3"
    process = subprocess.Popen(
        ["setpriv", "--reuid", "65534", "--clear-groups", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain._environment({"HOME": "/nonexistent", **({"CUDA_VISIBLE_DEVICES": "0"} if measured else {})}),
    )
    started = Started(process, plain.log_dir)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    # By its effective user it is root before it is so by its real one, and until then it may be signalled.
    wait_until(lambda: Path(f"/proc/{children.read_text().split()[0]}/comm").read_text() == "sleep\n", "the child")
    if measured:  # with a process of its own to wait for, gpualert looks itself whether the child is there
        wait_until(lambda: list(plain.log_dir.glob("*/telemetry.jsonl")), "the collector")
    os.kill(process.pid, signal.SIGUSR1)
    done = started.finish()
    assert done.returncode == 0, done.stderr
    told = [event for event in done.events if event["event"] == "signal"]
    assert [(event["signal"], event["forwarded"]) for event in told] == [(signal.SIGUSR1, False)]
