"""The log when its place is full, read-only, gone or limited: nothing stops the command, and nothing is dropped unsaid."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ENTRY, PYTHON, Completed, Gpualert, python, run_dirs, wait_until

LINES = "import os\nfor n in range(3000): os.write(1, b'line %06d %s\\n' % (n, b'x' * 90))\n"
EXPECTED = b"".join(b"line %06d %s\n" % (n, b"x" * 90) for n in range(3000))


def _kept_elsewhere(done: Completed) -> Path:
    """The directory that a trouble line names."""
    line = next(line for line in done.said if "keeping the log in" in line)
    return Path(line.rsplit("keeping the log in ", 1)[1])


def test_a_log_directory_that_cannot_be_made_falls_back_to_a_temporary_one(plain: Gpualert, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plain.log_dir = tmp_path / "file" / "logs"
    done = plain.run(["sh", "-c", "echo kept; exit 5"], env={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (5, b"kept\n")
    assert done.said[0].startswith(
        f"gpualert: cannot write {plain.log_dir} (Not a directory): keeping the log in {tmp_path}"
    )
    done.log_dir = _kept_elsewhere(done)
    assert done.log == b"kept\n"
    assert done.json("report.json")["trouble"] == [done.said[0].removeprefix("gpualert: ")]


def test_the_default_directory_falls_through_in_silence(plain: Gpualert, tmp_path: Path) -> None:
    argv = [PYTHON, "-I", str(ENTRY), "run", "true"]
    environment = {**plain._environment(None), "XDG_STATE_HOME": str(tmp_path / "state")}
    if os.getuid() == 0:
        argv = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /var/log; exec "$@"', "sh", *argv]
    done = subprocess.run(argv, env=environment, capture_output=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(run_dirs(tmp_path / "state" / "gpualert")) == 1
    environment.pop("XDG_STATE_HOME")
    done = subprocess.run(argv, env=environment, capture_output=True, cwd=tmp_path, check=False)
    assert len(run_dirs(tmp_path / "gpualert")) == 1


def _on_volume(plain: Gpualert, tmp_path: Path, options: str, command: list[str], **popen: object) -> Completed:
    """Run with the log directory on a small file system of its own."""
    volume = tmp_path / "volume"
    volume.mkdir()
    copy = tmp_path / "copy"
    plain.log_dir = volume / "logs"
    inner = plain.argv([], command)
    script = f'mount -t tmpfs -o {options} tmpfs {volume}; "$@"; status=$?; cp -a {volume} {copy}; exit $status'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *inner],
        env=plain._environment({"TMPDIR": str(tmp_path)}),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Completed(done.returncode, done.stdout, done.stderr, copy / "logs")


@pytest.mark.root
def test_a_full_volume_continues_elsewhere_and_says_so(plain: Gpualert, tmp_path: Path) -> None:
    done = _on_volume(plain, tmp_path, "size=200k", python(LINES + "raise SystemExit(8)"))
    assert (done.returncode, done.stdout) == (8, EXPECTED)
    assert any("No space left on device" in line and "the rest of the output is kept in" in line for line in done.said)
    # All of the run is there, and it was reported from there.
    (elsewhere,) = tmp_path.glob("gpualert-*/2*")
    assert (elsewhere / "output.log").read_bytes() == EXPECTED
    assert json.loads((elsewhere / "exit.json").read_text())["exit_code"] == 8
    assert (elsewhere / "report.html").exists()
    assert done.said[-1] == f"gpualert:   kept in {elsewhere}"


@pytest.mark.root
def test_a_read_only_volume(plain: Gpualert, tmp_path: Path) -> None:
    done = _on_volume(plain, tmp_path, "ro", ["sh", "-c", "echo x; exit 3"])
    assert (done.returncode, done.stdout) == (3, b"x\n")
    assert "Read-only file system" in done.said[0]


@pytest.mark.root
def test_a_volume_without_inodes(plain: Gpualert, tmp_path: Path) -> None:
    done = _on_volume(plain, tmp_path, "nr_inodes=4", ["sh", "-c", "echo x; exit 3"])
    assert (done.returncode, done.stdout) == (3, b"x\n")
    assert any("keeping the log in" in line for line in done.said)


def test_a_run_directory_that_is_deleted_meanwhile_is_made_anew(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo before; until [ -e $STOP ]; do sleep 0.05; done; echo after; exit 2"],
                          env={"STOP": str(plain.log_dir.parent / "stop")})  # fmt: skip
    started.wait_for(b"before")
    shutil.rmtree(run_dirs(plain.log_dir)[0])
    wait_until(lambda: (run_dirs(plain.log_dir)[0] / "run.json").exists(), "the directory anew")
    wait_until(lambda: b"before" in (run_dirs(plain.log_dir)[0] / "output.log").read_bytes(), "the log anew")
    (plain.log_dir.parent / "stop").touch()
    done = started.finish()
    assert (done.returncode, done.log) == (2, b"before\nafter\n")
    assert done.json("exit.json")["exit_code"] == 2
    assert any("was deleted: made anew" in line for line in done.said)


def _limited(limit: int, value: int) -> object:
    return lambda: resource.setrlimit(limit, (value, value))


def test_a_file_size_limit_keeps_head_and_tail(plain: Gpualert) -> None:
    done = plain.run(python(LINES + "raise SystemExit(3)"), preexec_fn=_limited(resource.RLIMIT_FSIZE, 100_000))
    assert (done.returncode, done.stdout) == (3, EXPECTED)
    assert any("File too large" in line for line in done.said)


def test_few_descriptors_are_enough(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "echo x; ulimit -n; exit 3"], preexec_fn=_limited(resource.RLIMIT_NOFILE, 24))
    assert (done.returncode, done.stdout) == (3, b"x\n24\n")
    assert done.log == b"x\n24\n"


def test_too_few_descriptors_to_capture_stop_nothing(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "echo x; exit 3"], preexec_fn=_limited(resource.RLIMIT_NOFILE, 6))
    assert (done.returncode, done.stdout) == (3, b"x\n")


def test_head_and_tail_of_a_bounded_log_are_kept_and_the_gap_is_marked(plain: Gpualert) -> None:
    done = plain.run(python(LINES), "--log-max-bytes", "40k")
    assert done.stdout == EXPECTED
    note = next(line for line in done.log.splitlines() if line.startswith(b"[gpualert: "))
    missing = int(note.split()[1])
    head, _, tail = done.log.partition(b"\n" + note + b"\n")
    assert head + tail == EXPECTED[: len(head)] + EXPECTED[len(EXPECTED) - len(tail) :]
    assert missing == len(EXPECTED) - len(head) - len(tail)
    end = done.json("exit.json")
    assert (end["truncated"], end["gap"]["bytes"], end["log_bytes"]) == (True, missing, len(EXPECTED))
    assert len(done.log) < 42_000
    assert sorted(os.listdir(done.run_dir)) == [
        "events.jsonl", "exit.json", "output.idx", "output.log", "report.json", "run.json",
    ]  # fmt: skip


@pytest.mark.root
def test_a_user_without_name_home_or_writable_directories(plain: Gpualert, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    inner = ["/usr/bin/python3", "-I", str(ENTRY), "run", "--", "sh", "-c", "echo x; exit 3"]
    argv = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", *inner]
    done = subprocess.run(argv, env={"PATH": "/usr/bin:/bin"}, capture_output=True, cwd="/", check=False)
    assert (done.returncode, done.stdout) == (3, b"x\n")
    assert "keeping the log in /tmp/gpualert-" in done.stderr.decode()


@pytest.mark.root
def test_a_read_only_root_without_proc(plain: Gpualert, tmp_path: Path) -> None:
    inner = " ".join(f"'{word}'" for word in plain.argv([], ["sh", "-c", "echo x; exit 3"]))
    script = f"mkdir -p {plain.log_dir}; mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro /; umount -l /proc; {inner}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=plain._environment(None), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, b"x\n"), done.stderr
    assert run_dirs(plain.log_dir)[0].joinpath("output.log").read_bytes() == b"x\n"


@pytest.mark.root
def test_nowhere_to_write_at_all(plain: Gpualert, tmp_path: Path) -> None:
    inner = " ".join(f"'{word}'" for word in plain.argv([], ["sh", "-c", "echo x; exit 3"]))
    hide = "; ".join(f"mount -t tmpfs -o ro tmpfs {place}" for place in ("/var/tmp", "/dev/shm"))
    script = f"mount -o remount,bind,ro / 2>/dev/null; {hide}; mount --bind -o ro /tmp /tmp; mount -o remount,bind,ro /tmp; {inner}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=plain._environment(None), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, b"x\n")
    assert b"this run is not recorded" in done.stderr


@pytest.mark.root
def test_no_more_processes_runs_the_command_in_place(plain: Gpualert, tmp_path: Path) -> None:
    """A user at the process limit: no child, no thread; then the command takes our place."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    inner = ["/usr/bin/python3", "-I", str(ENTRY), "run", "--log-dir", "/nonexistent", "--", "echo", "x"]
    argv = ["setpriv", "--reuid", "54322", "--clear-groups", "prlimit", "--nproc=1:1", *inner]
    done = subprocess.run(argv, env={"PATH": "/usr/bin:/bin"}, capture_output=True, cwd="/", check=False)
    assert (done.returncode, done.stdout) == (0, b"x\n")
    assert b"the command runs without gpualert" in done.stderr


@pytest.mark.root
def test_no_threads_pumps_in_the_main_loop(plain: Gpualert, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    inner = ["/usr/bin/python3", "-I", str(ENTRY), "run", "--log-dir", "/nonexistent", "--", "echo", "x"]
    argv = ["setpriv", "--reuid", "54323", "--clear-groups", "prlimit", "--nproc=2:2", *inner]
    done = subprocess.run(argv, env={"PATH": "/usr/bin:/bin"}, capture_output=True, cwd="/", check=False)
    assert (done.returncode, done.stdout) == (0, b"x\n"), done.stderr


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.ESTALE, errno.ENODEV, errno.EROFS])
def test_any_error_of_the_disk_moves_the_log_elsewhere(plain: Gpualert, tmp_path: Path, number: int) -> None:
    """The errors that no test can bring about for real are put in where the system call is made."""
    program = f"""
import sys
sys.path.insert(0, {str(ENTRY.parent.parent)!r})
import gpualert.rundir.logfile as logfile
real, path = logfile.posix.write, []
class Faulty:
    def __getattr__(self, name):
        return getattr(posix, name)
    def write(self, fd, data):
        name = posix.readlink(f"/proc/self/fd/{{fd}}")
        if name.endswith("output.log") and posix.fstat(fd).st_size + len(data) > 50_000:
            raise OSError({number}, posix.strerror({number}))
        return posix.write(fd, data)
import posix
logfile.posix = Faulty()
from gpualert.supervisor.main import run
run(sys.argv[1:])
"""
    argv = [*plain.python, "-c", program, "--log-dir", str(plain.log_dir), "--", *python(LINES + "raise SystemExit(8)")]
    environment = plain._environment({"TMPDIR": str(tmp_path)})
    done = subprocess.run(argv, capture_output=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (8, EXPECTED)
    assert f"({os.strerror(number)}): the rest of the output is kept in {tmp_path}/gpualert-".encode() in done.stderr
    head = run_dirs(plain.log_dir)[0].joinpath("output.log").read_bytes()
    elsewhere = next(tmp_path.glob("gpualert-*"))
    assert head + b"".join(path.read_bytes() for path in sorted(elsewhere.glob("output.tail-*.log"))) == EXPECTED
