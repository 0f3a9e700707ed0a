"""The log volume: missing, read-only, full, somebody else's, or gone in the middle; the job never notices."""

from __future__ import annotations

import json
import subprocess

import pytest

from e2e.containers.containers import Containers

JOB = ["sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 9"]
OUT = "".join(f"line {number}\n" for number in range(2000))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], ""),
        (["--read-only", "--read-only-tmpfs=false", "--tmpfs", "/dev/shm:ro"], "this run is not recorded"),
        (["--tmpfs", "/var/log/gpualert:size=16k,mode=1777"], "No space left on device"),
        (["--tmpfs", "/var/log/gpualert:ro"], ""),
    ],
    ids=["missing", "nowhere to write", "full", "read-only"],
)
def test_a_bad_volume(containers: Containers, options: list[str], said: str) -> None:
    done = containers.run("bookworm", JOB, *options, gpualert=("--log-dir", "/var/log/gpualert"), logs=False)
    assert (done.code, done.stdout) == (9, OUT), done.stderr
    assert said in done.stderr
    told = json.loads(containers.message.read_text().splitlines()[-1])
    assert (told["gpualert"], told["exit_code"]) == (1, 9)


def test_a_volume_of_another_user(containers: Containers) -> None:
    containers.logs.chmod(0o700)
    done = containers.run("bookworm", JOB, "--user", "65532:65532", gpualert=("--log-dir", "/var/log/gpualert"))
    assert (done.code, done.stdout) == (9, OUT)
    assert "cannot write /var/log/gpualert (Permission denied): keeping the log in " in done.stderr


def test_a_volume_that_goes_in_the_middle(containers: Containers) -> None:
    script = "echo before; while [ ! -e /go/on ]; do sleep 0.05; done; echo after; exit 9"
    go = containers.logs.parent / "go"
    go.mkdir()
    options = ("--tmpfs", "/var/log/gpualert:mode=1777", "-v", f"{go}:/go")
    started = containers.start(
        "bookworm", ["sh", "-c", script], *options, gpualert=("--log-dir", "/var/log/gpualert"), logs=False
    )
    containers.until(
        lambda: started.pid and b"before" in _inside(started.pid, "cat /var/log/gpualert/2*/output.log"), "output"
    )
    _inside(started.pid, "umount -l /var/log/gpualert")
    (go / "on").touch()
    done = started.wait()
    assert (done.code, done.stdout) == (9, "before\nafter\n"), done.stderr


def _inside(pid: int, command: str) -> bytes:
    """Run a command in a container's mounts."""
    return subprocess.run(
        ["nsenter", "-t", str(pid), "-m", "sh", "-c", command], capture_output=True, check=False
    ).stdout
