"""``gpualert attend`` and the other commands that wait: they end when they are told to, and say what they cannot do."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ENTRY, PATIENCE_S, PYTHON, REPOSITORY, run_dirs, wait_until

WAITING = (["attend", "--every", "1h"], ["flush", "--watch", "--every", "1h"], ["inject"])
ALL = signal.valid_signals()


def _blocked(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigBlk:")[2].split()[0], 16) >> (number - 1) & 1)


def _caught(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def _start(
    arguments: list[str], log_dir: Path, handover: str | None, prepare: Callable[[], object] | None
) -> subprocess.Popen[bytes]:
    log_dir.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "GPUALERT_LOG_DIR": str(log_dir)}
    if handover is not None:
        environment["_GPUALERT_SIGNALS"] = handover
    return subprocess.Popen(
        [PYTHON, "-I", str(ENTRY), *arguments],
        env=environment,
        preexec_fn=prepare,  # noqa: PLW1509  (what a launcher, or a shell's background job, hands down)
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _block_all() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, ALL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", WAITING, ids=lambda words: words[0])
def test_what_the_launcher_has_blocked_is_taken_again(tmp_path: Path, arguments: list[str], number: int) -> None:
    process = _start(arguments, tmp_path / "logs", "0:0", _block_all)
    wait_until(lambda: not _blocked(process.pid, number), "the signals")
    if arguments[0] != "inject":
        wait_until(lambda: _caught(process.pid, signal.SIGTERM), "its handler")
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    # Ctrl-C as inject starts is the interpreter's own; later it is the command's.
    assert process.returncode in ((0,) if arguments[0] != "inject" else (1, -number))


def test_what_was_blocked_before_the_launcher_stays_blocked(tmp_path: Path) -> None:
    mask = 1 << (signal.SIGUSR1 - 1)
    process = _start(["attend", "--every", "1h"], tmp_path / "logs", f"{mask:x}:0", _block_all)
    wait_until(lambda: _caught(process.pid, signal.SIGTERM), "its handler")
    assert _blocked(process.pid, signal.SIGUSR1)
    assert not _blocked(process.pid, signal.SIGUSR2)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_an_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    process = _start(
        ["attend", "--every", "1h"], tmp_path / "logs", None, lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    wait_until(lambda: _caught(process.pid, signal.SIGTERM), "its handler")
    assert not _caught(process.pid, signal.SIGINT)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_the_variable_goes_no_further() -> None:
    script = (
        "import sys, os; sys.argv[1:] = ['version']; import gpualert.cli.main as m; "
        "m.main = lambda _a: print('_GPUALERT_SIGNALS' in os.environ); from gpualert.__main__ import main; main()"
    )
    environment = {**os.environ, "_GPUALERT_SIGNALS": "0:0", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([PYTHON, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.root
def test_as_pid_1_a_command_that_handles_nothing_ends_too() -> None:
    argv = ["unshare", "--pid", "--fork", "--kill-child", PYTHON, "-I", str(ENTRY), "inject"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: children.read_text().split() and _caught(int(children.read_text().split()[0]), 15), "its start")
    os.kill(int(children.read_text().split()[0]), signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143


def _attend_as(user: int, group: int, place: Path) -> list[str]:
    """What attend says when it looks three times."""
    # The interpreter and the sources may lie where only root can enter: the user changes when all is loaded, and that
    # is when a run of root's own has been closed.
    script = f"""
import os, sys, threading
sys.path.insert(0, {str(REPOSITORY)!r})
from gpualert.cli import attending
looks = iter([True, False, False, True])
threading.Event.wait = lambda *_: next(looks)
attending.attend(["--log-dir", {str(place.parent / "roots")!r}], standalone_mode=False)
os.setgroups([{group}]); os.setgid(65532); os.setuid({user})
attending.attend(["--log-dir", {str(place)!r}], standalone_mode=False)
"""
    _killed_run(place.parent / "roots")
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def _killed_run(place: Path) -> Path:
    """A run whose supervisor was killed with its command, as root has left it."""
    argv = [PYTHON, "-I", str(ENTRY), "run", "--log-dir", str(place), "--", "sh", "-c", "kill -9 $PPID; sleep 1"]
    subprocess.run(argv, capture_output=True, check=False)
    run = run_dirs(place)[-1]
    assert not (run / "exit.json").exists()
    return run


@pytest.mark.root
def test_what_another_user_may_not_read_is_said_once(open_directory: Path) -> None:
    run = _killed_run(open_directory)
    said = _attend_as(65532, 65532, open_directory)
    assert len(said) == 1
    assert said[0].startswith(
        f"gpualert: cannot close runs such as {run}: it belongs to user 0, and this is user 65532"
    )
    assert "fsGroup" in said[0]
    assert not (run / "report.json").exists()
    # The same user closes it.
    assert _attend_as(0, 0, open_directory) == []
    assert (run / "report.json").exists()


@pytest.mark.root
def test_another_user_of_the_volumes_group_closes_it(open_directory: Path) -> None:
    os.chown(open_directory, 0, 2000)
    open_directory.chmod(0o2775)  # as the kubelet makes a volume for fsGroup 2000
    run = _killed_run(open_directory)
    assert _attend_as(65532, 2000, open_directory) == []
    assert (run / "report.json").exists()


@pytest.mark.root
def test_a_log_directory_that_is_closed_altogether(open_directory: Path) -> None:
    open_directory.chmod(0o700)
    (said,) = _attend_as(65532, 65532, open_directory)
    assert said.startswith(f"gpualert: cannot read {open_directory} (Permission denied): it belongs to user 0")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that any user can reach; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        place = Path(above) / "logs"
        place.mkdir()
        Path(above).chmod(0o755)
        place.chmod(0o777)
        yield place
