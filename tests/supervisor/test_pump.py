"""Every byte reaches the log and our own descriptor unchanged, whatever happens to whoever reads us."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Gpualert, fast, python, run_dirs, wait_until

from gpualert.rundir import index

HOSTILE = bytes(range(256)) * 40 + b"\x1b]0;title\x07\x1b[2J" + b"gpualert: forged\n" + b"\xff\xfe\x00" * 99


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE + random.Random(1).randbytes(300_000))
    return path


def test_bytes_are_unchanged_each_on_its_own_descriptor(gpualert: Gpualert, hostile: Path) -> None:
    done = gpualert.run(["sh", "-c", f"cat {hostile}; cat {hostile} {hostile} >&2"])
    content = hostile.read_bytes()
    assert done.stdout == content
    assert done.stderr.startswith(content + content)
    assert sorted(done.log) == sorted(content * 3)
    by_stream: dict[int, bytes] = {}
    offset = 0
    for _, stream, length in index.records(done.file("output.idx")):
        by_stream[stream] = by_stream.get(stream, b"") + done.log[offset : offset + length]
        offset += length
    assert by_stream == {index.STDOUT: content, index.STDERR: content * 2}


def test_one_file_for_both_keeps_their_order(plain: Gpualert, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = "import os\nfor n in range(2000): os.write(1 + n % 2, b'%d\\n' % n)"
    with out.open("wb") as file:
        done = plain.run(python(text), stdout=file, stderr=file)
    expected = b"".join(b"%d\n" % n for n in range(2000))
    assert out.read_bytes() == expected
    assert done.log == expected
    assert {stream for _, stream, _ in index.records(done.file("output.idx"))} == {index.BOTH}


def test_a_line_of_100_megabytes_without_an_end(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x; exit 1"], stdout=subprocess.DEVNULL)
    assert done.returncode == 1
    assert len(done.log) == 100_000_000
    assert done.json("report.json")["diagnosis"]["class"] == "unknown"


def test_a_reader_that_goes_away_costs_neither_log_nor_status(gpualert: Gpualert) -> None:
    started = gpualert.start(["sh", "-c", "echo first; sleep 0.5; for i in 1 2 3; do echo line $i; done; exit 9"])
    assert started.process.stdout is not None
    started.process.stdout.read(6)
    started.process.stdout.close()
    started.process.stdout = None
    done = started.finish()
    assert done.returncode == 9
    assert done.log == b"first\nline 1\nline 2\nline 3\n"


def test_while_our_reader_is_blocked_the_log_goes_on_and_signals_pass(plain: Gpualert) -> None:
    read_end, write_end = os.pipe()
    text = (
        "trap 'echo caught >&2; exit 33' TERM; head -c 400000 /dev/zero; echo ready >&2; while :; do sleep 0.05; done"
    )
    started = plain.start(["sh", "-c", text], stdout=write_end)
    os.close(write_end)
    started.wait_for(b"ready")  # 400 kB are in the log though nobody has read a byte
    log = run_dirs(plain.log_dir)[0].joinpath("output.log")
    wait_until(lambda: log.read_bytes().count(b"\0") == 400_000, "what nobody has read")
    os.kill(started.process.pid, signal.SIGTERM)
    done = started.finish()
    os.close(read_end)
    assert done.returncode == 33
    assert done.log.endswith(b"caught\n")


def test_a_blocked_reader_does_not_keep_us_and_what_it_missed_is_said(plain: Gpualert) -> None:
    read_end, write_end = os.pipe()
    done = plain.run(["sh", "-c", "head -c 3000000 /dev/zero; exit 3"], "--timeout", "1s", stdout=write_end)
    os.close(write_end)
    os.close(read_end)
    assert done.returncode in (3, -signal.SIGTERM)
    assert any("stdout is blocked: the last" in line for line in done.said)


def test_a_full_device_as_stdout(plain: Gpualert) -> None:
    with open("/dev/full", "wb") as full:
        done = plain.run(["sh", "-c", "echo lost; exit 4"], stdout=full)
    assert (done.returncode, done.log) == (4, b"lost\n")
    assert any("cannot write stdout (No space left on device): the log has everything" in line for line in done.said)


def test_a_full_device_as_stderr(plain: Gpualert) -> None:
    with open("/dev/full", "wb") as full:
        done = plain.run(["sh", "-c", "echo lost >&2; echo kept; exit 4"], stderr=full)
    assert (done.returncode, done.stdout, sorted(done.log.splitlines())) == (4, b"kept\n", [b"kept", b"lost"])


def test_a_descriptor_that_somebody_made_non_blocking(plain: Gpualert) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    started = plain.start(["sh", "-c", "head -c 2000000 /dev/zero; exit 2"], stdout=write_end)
    os.close(write_end)
    got = 0
    while chunk := os.read(read_end, 65536):
        got += len(chunk)
        time.sleep(0.001)
    assert (started.finish().returncode, got) == (2, 2_000_000)
    os.close(read_end)


def test_our_own_lines_begin_a_line(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "printf 'no line end' >&2; exit 1"])
    assert done.stderr.startswith(b"no line end\ngpualert: ")


def _peak_memory(plain: Gpualert, megabytes: int) -> int:
    """The supervisor's peak resident memory in KiB."""
    plain.python = fast()
    text = f"head -c {megabytes}M /dev/zero; echo ready >&2; exec sleep 60"
    started = plain.start(["sh", "-c", text], stdout=subprocess.DEVNULL)
    size = megabytes * (1 << 20) + len(b"ready\n")
    wait_until(lambda: (run_dirs(plain.log_dir)[-1] / "output.log").stat().st_size == size, "the whole output")
    status = Path(f"/proc/{started.process.pid}/status").read_text()
    os.kill(started.process.pid, signal.SIGTERM)
    started.finish()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def test_memory_does_not_grow_with_the_output(plain: Gpualert) -> None:
    little, much = _peak_memory(plain, 2), _peak_memory(plain, 300)
    assert much < little + 1500
    assert much < 17_000


def test_a_fault_in_the_log_costs_no_byte_of_the_output(plain: Gpualert) -> None:
    done = _with_fault(
        plain, "import gpualert.rundir.logfile as m; m.OutputLog.write = boom", "echo one; echo two; exit 6"
    )
    assert (done.returncode, done.stdout) == (6, b"one\ntwo\n")
    assert b"gpualert: a fault inside gpualert cost the log some output" in done.stderr


@pytest.mark.parametrize(
    "fault",
    [
        "import gpualert.supervisor.scribe as m; m.Scribe._tick = boom",
        "import gpualert.supervisor.scribe as m; m.Scribe._close = boom; import gpualert.supervisor.conclusion as c; "
        "c.DISK_PATIENCE_S = 0.2",
        "import gpualert.supervisor.supervision as m; m.Supervision._mind_time = boom",
        "import gpualert.supervisor.supervision as m; m.Supervision._received = boom",
        "import gpualert.supervisor.supervision as m; m.Supervision._drain = boom",
        "import gpualert.supervisor.conclusion as m; m._exit_facts = boom",
        "import gpualert.supervisor.conclusion as m; m._report = boom",
        "import gpualert.supervisor.pump as m; m.Passer.put = boom",
        "import gpualert.supervisor.journal as m; m._make = boom",
        "import gpualert.supervisor.supervision as m; m.Supervision.prepare = boom",
        "import gpualert.supervisor.chores as m; m.look_around = boom",
    ],
)
def test_a_fault_inside_gpualert_costs_neither_output_nor_status(plain: Gpualert, fault: str) -> None:
    done = _with_fault(plain, fault, "echo one; sleep 0.2; echo two; exit 6")
    assert (done.returncode, done.stdout) == (6, b"one\ntwo\n"), done.stderr


def _with_fault(plain: Gpualert, fault: str, script: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script with something inside gpualert made to raise."""
    from conftest import REPOSITORY

    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
def boom(*arguments, **named):
    raise ZeroDivisionError("injected")
{fault}
from gpualert.supervisor.main import run
run(sys.argv[1:])
"""
    argv = [*plain.python, "-c", program, "--log-dir", str(plain.log_dir), "--", "sh", "-c", script]
    return subprocess.run(argv, capture_output=True, env=plain._environment(None), timeout=60, check=False)


def test_a_pipe_that_somebody_else_fills_keeps_neither_signals_nor_the_end(plain: Gpualert) -> None:
    """Writes that should not block may, where others write into the same pipe: nothing but the passing on waits."""
    read_end, write_end = os.pipe()
    text = "trap 'exit 33' TERM; echo ready >&2; while :; do head -c 30000 /dev/zero; sleep 0.01; done"
    started = plain.start(["sh", "-c", text], stdout=write_end)
    filler = subprocess.Popen(["cat", "/dev/zero"], stdout=write_end)
    os.close(write_end)
    started.wait_for(b"ready")
    time.sleep(0.5)
    os.kill(started.process.pid, signal.SIGTERM)
    done = started.finish()
    filler.kill()
    filler.wait()
    os.close(read_end)
    assert done.returncode == 33
