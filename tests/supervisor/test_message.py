"""The Kubernetes termination message: there from the start, in place, never too long, never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Gpualert, python, wait_until

LIMIT = 4096


@pytest.fixture
def message(tmp_path: Path) -> Path:
    path = tmp_path / "termination-log"
    path.write_bytes(b"")
    return path


def _last(text: bytes) -> Any:
    return json.loads(text.splitlines()[-1])


def test_it_is_there_before_the_child_starts(gpualert: Gpualert, message: Path) -> None:
    done = gpualert.run(["cat", str(message)], "--termination-log", str(message))
    assert done.stdout.startswith(b"running since 20")
    assert _last(done.stdout)["gpualert"] == 1


def test_the_final_one_has_verdict_lines_advice_and_a_line_for_programs(gpualert: Gpualert, message: Path) -> None:
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
    )
    inode = message.stat().st_ino
    done = gpualert.run(
        ["sh", "-c", f"echo '{error}' >&2; exit 1"],
        "--termination-log",
        str(message),
        env={"GPUALERT_NODE_NAME": "gpu-17", "RANK": "3", "WORLD_SIZE": "8"},
    )
    text = message.read_bytes()
    lines = text.decode().splitlines()
    assert lines[0] == "cuda_oom: CUDA out of memory on GPU 0, asked for 2.00 GiB (exit 1)"
    assert lines[1].startswith("rank 3 of 8 on node gpu-17, after ")
    assert lines[2] == error
    assert lines[3].startswith("try: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    told = _last(text)
    assert 0.5 < told.pop("confidence") < 1
    assert told.pop("at").startswith("20")
    assert told == {
        "gpualert": 1, "class": "cuda_oom", "family": "gpu", "exit_code": 1, "signal": None,
        "run_id": done.run_dir.name, "rank": 3, "node": "gpu-17", "log": str(done.run_dir), "root": error,
    }  # fmt: skip
    assert (len(text) <= LIMIT, message.stat().st_ino) == (True, inode)


def test_a_success_says_so(plain: Gpualert, message: Path) -> None:
    plain.run(["true"], "--termination-log", str(message))
    assert message.read_text().startswith("success: the command ended without error (exit 0)\n")


def test_it_never_exceeds_its_room_and_stays_utf8(plain: Gpualert, message: Path) -> None:
    text = "import sys\nsys.stderr.write('ValueError: ' + '\\N{SNOWMAN}' * 3000 + '\\n' + 'x\\x00\\x1b[2J' * 900)\nsys.exit(1)"
    plain.run(python(text), "--termination-log", str(message))
    assert 500 < len(message.read_bytes()) <= LIMIT
    message.read_bytes().decode("utf-8")
    plain.run(python(text), "--termination-log", str(message), env={"GPUALERT_CONTAINERS": "10"})
    content = message.read_bytes()
    assert len(content) <= 12288 // 10
    content.decode("utf-8")
    assert _last(content)["class"] == "traceback"


@pytest.mark.parametrize(
    "script",
    [
        "echo 'my own words' > $LOG; exit 3",
        "echo 'my own words' >> $LOG; exit 3",
        "exec 5>$LOG; echo 'my own words' >&5; exit 3",
        "python3 -c \"open('$LOG', 'r+').write('my own words' + chr(10))\"; exit 3",
    ],
)
def test_what_the_command_wrote_is_kept_in_front(plain: Gpualert, message: Path, script: str) -> None:
    plain.run(["sh", "-c", script], "--termination-log", str(message), env={"LOG": str(message)})
    text = message.read_text()
    assert text.startswith("my own words\n")
    assert "unknown: failed with exit code 3" in text
    assert _last(text.encode())["exit_code"] == 3


def test_what_was_there_before_the_launch_is_not_the_commands(plain: Gpualert, message: Path) -> None:
    message.write_text("of another run\n")
    plain.run(["false"], "--termination-log", str(message))
    assert "of another run" not in message.read_text()


def test_a_stop_signal_is_said_at_once(gpualert: Gpualert, message: Path) -> None:
    started = gpualert.start(
        ["sh", "-c", f"trap 'until grep -q SIGTERM {message}; do sleep 0.02; done; exit 4' TERM; echo ready; "
         "while :; do sleep 0.02; done"],
        "--termination-log", str(message),
    )  # fmt: skip
    started.wait_for(b"ready")
    pid = started.process.pid
    if gpualert.pid1:
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(pid, signal.SIGTERM)
    assert started.finish().returncode == 4


def test_it_is_refreshed_while_the_command_runs(plain: Gpualert, message: Path) -> None:
    import gpualert.supervisor.scribe

    assert gpualert.supervisor.scribe.MESSAGE_EVERY_S == 10  # what the design promises
    started = plain.start(
        ["sh", "-c", "printf '\\033[31mstep 41200 loss 1.873\\033[0m\\n'; sleep 60"], "--termination-log", str(message)
    )
    wait_until(lambda: "last output" in message.read_text(), "the refreshed message")
    assert 'Z "step 41200 loss 1.873"' in message.read_text()
    os.kill(started.process.pid, signal.SIGTERM)
    started.finish()


def test_a_fifo_a_directory_or_nothing_writable_is_said_and_harms_nothing(plain: Gpualert, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in (
        (tmp_path / "fifo", "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "missing" / "file", "No such file or directory"),
    ):
        done = plain.run(["sh", "-c", "exit 3"], "--termination-log", str(path))
        assert done.returncode == 3
        assert done.said[0] == f"gpualert: cannot write the termination message {path} ({reason})"


def test_a_fifo_with_a_reader_is_no_termination_log_either(plain: Gpualert, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    done = plain.run(["sh", "-c", "exit 3"], "--termination-log", str(tmp_path / "fifo"))
    os.close(reader)
    assert "not a regular file" in done.said[0]


@pytest.mark.root
def test_the_default_place_is_used_where_it_exists_and_is_mounted(plain: Gpualert, tmp_path: Path) -> None:
    """As the kubelet does it: a single file bind-mounted at /dev/termination-log."""
    outside = tmp_path / "outside"
    outside.write_text("")
    inner = plain.argv([], ["sh", "-c", "exit 6"])
    script = f'touch /dev/termination-log; mount --bind {outside} /dev/termination-log; "$@"; s=$?; exit $s'
    wrapped = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f"mount -t tmpfs tmpfs /mnt; cp -a /dev/null /mnt/; {script}",
        "sh",
        *inner,
    ]
    try:
        done = subprocess.run(wrapped, env=plain._environment(None), capture_output=True, check=False)
    finally:
        Path("/dev/termination-log").unlink(missing_ok=True)
    assert done.returncode == 6, done.stderr
    assert outside.read_text().startswith("unknown: failed with exit code 6")
