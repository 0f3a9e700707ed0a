"""The child's status and every signal, with gpualert as a container's PID 1."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from e2e.containers.containers import PREFIX, Containers


@pytest.mark.parametrize("code", [0, 1, 3, 42, 255])
def test_exit_codes(containers: Containers, code: int) -> None:
    done = containers.run("bookworm", ["sh", "-c", f"echo out; echo err >&2; exit {code}"])
    assert (done.code, done.stdout) == (code, "out\n")
    assert done.stderr.startswith("err\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGRTMAX])
def test_death_by_a_signal_is_128_and_its_number(containers: Containers, number: int) -> None:
    script = f"import os; os.kill(os.getpid(), {int(number)})"
    assert containers.run("bookworm", ["python3", "-c", script]).code == 128 + number


def test_what_cannot_be_executed(containers: Containers) -> None:
    assert containers.run("bookworm", ["no-such-command"]).code == 127
    assert containers.run("bookworm", ["/etc/passwd"]).code == 126
    assert containers.run("bookworm", ["true"], gpualert=("--no-such-option",)).code == 125


def test_podman_stop_reaches_the_child_and_the_report_is_made_in_time(containers: Containers) -> None:
    script = (
        "import signal,sys,time\nsignal.signal(15, lambda *a: sys.exit(7))\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    started = containers.start("bookworm", ["python3", "-c", script])
    containers.wait_for("ready")
    subprocess.run(["podman", "stop", "--time", "10", started.name], check=True, capture_output=True)
    assert started.wait().code == 7
    assert containers.report()["diagnosis"]["class"] == "terminated"
    assert containers.message.read_text().startswith("terminated: ")


def test_the_termination_message_ends_in_a_line_for_programs(containers: Containers) -> None:
    containers.run("bookworm", ["sh", "-c", "echo 'ValueError: bad' >&2; exit 3"])
    first, *_, last = containers.message.read_text().splitlines()
    assert first.startswith("traceback: ValueError: bad (exit 3)")
    assert last.startswith('{"gpualert":1,"class":"traceback","family":"code","exit_code":3,"signal":null,')


@pytest.mark.parametrize("delay_ms", [0, 1, 5, 20])
def test_a_stop_at_any_moment_of_the_start_is_honoured(bundle: Path, tmp_path: Path, delay_ms: int) -> None:
    """In a PID namespace of its own: the kernel drops a SIGTERM to a PID 1 that has neither blocked nor handled it.

    Between exec and the launcher's first system call nobody can hold it; the test begins after that call.
    """
    for _ in range(25):
        started = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", str(bundle / "bin" / "gpualert"), "run", "--log-dir",
             str(tmp_path / "logs"), "--", "sleep", "60"],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        first = _pid1(started.pid)
        time.sleep(delay_ms / 1000)
        sent = time.monotonic()
        os.kill(first, signal.SIGTERM)
        assert started.wait(30) == 128 + signal.SIGTERM
        assert time.monotonic() - sent < 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "arguments", [["attend", "--every", "1h"], ["flush", "--watch"], ["inject"]], ids=lambda words: words[0]
)
def test_commands_that_wait_end_when_they_are_told_to(
    bundle: Path, tmp_path: Path, arguments: list[str], number: int
) -> None:
    """From the bundle, whose launcher blocks every signal before there is an interpreter."""
    process = subprocess.Popen(
        [str(bundle / "bin" / "gpualert"), *arguments],
        env={"GPUALERT_LOG_DIR": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    # Whenever it comes: at once, while it is blocked, or when the command waits.
    time.sleep(0.01 if number == signal.SIGTERM else 1)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode in (0, 1, -number)


def _pid1(parent: int) -> int:
    """The process that unshare has started, once it has blocked its signals as the launcher does first."""
    while True:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            if children:
                status = Path(f"/proc/{children[0]}/status").read_text()
                blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
                if blocked & 1 << (signal.SIGTERM - 1) and "unshare" not in status.partition("\n")[0]:
                    return int(children[0])
        except (OSError, IndexError, ValueError):
            continue


def test_a_thousand_orphans_are_reaped(containers: Containers) -> None:
    script = "i=0; while [ $i -lt 1000 ]; do (sleep 0.05 & ) ; i=$((i+1)); done; sleep 1.5; ls /proc | grep -c '^[0-9]'"
    done = containers.run("bookworm", ["sh", "-c", script])
    assert done.code == 0
    assert int(done.stdout) < 10


def test_the_child_at_its_process_limit_does_not_stop_the_report(containers: Containers) -> None:
    script = "i=0; while [ $i -lt 300 ]; do sleep 100 & i=$((i+1)); done; echo 'ValueError: x' >&2; exit 3"
    done = containers.run("bookworm", ["bash", "-c", script], "--pids-limit", "60", gpualert=("--orphan-grace", "1s"))
    assert done.code in (3, 254)
    assert containers.runs()[-1].joinpath("exit.json").exists()
    assert containers.message.read_text().splitlines()[-1].startswith('{"gpualert":1,')


def test_the_image_itself_as_a_user_wraps_it(containers: Containers) -> None:
    argv = ["podman", "--runtime", "/usr/sbin/runc", "run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024",
            "--ulimit", "nproc=4000:4000", f"{PREFIX}/wrapped", "python3", "-c"]  # fmt: skip
    script = "import os, pydantic; print(pydantic.VERSION, os.environ['LD_PRELOAD'], os.environ['PYTHONPATH']); raise SystemExit(5)"
    done = subprocess.run([*argv, script], capture_output=True, text=True, check=False)
    version, preload, path = done.stdout.split()
    assert (done.returncode, version.split(".")[0], preload, path) == (5, "1", "/opt/train/missing.so", "/opt/train")
    assert "gpualert: " in done.stderr
