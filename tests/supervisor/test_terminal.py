"""At a real terminal: keys, job control, window size, each once; the terminal is given back as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING

import pytest
from conftest import PATIENCE_S, Gpualert, python

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shell:
    """An interactive shell with job control on a pseudo-terminal, driven as by a person."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**environment, "PS1": "$ ", "TERM": "dumb"})
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, text: str, count: int = 1) -> None:
        """Wait until the screen has shown ``text`` so often since it was read last."""
        until = time.monotonic() + PATIENCE_S
        wanted = text.encode()
        while self.seen.count(wanted) < count:
            assert time.monotonic() < until, f"waited in vain for {text!r} in {self.seen!r}"
            ready, _, _ = select.select([self.fd], [], [], 0.2)
            if ready:
                self.seen += os.read(self.fd, 65536)

    def forget(self) -> None:
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def shell(plain: Gpualert) -> Iterator[Shell]:
    made = Shell(plain._environment(None))
    made.resize(30, 100)
    made.expect("$ ")
    yield made
    made.close()


def _line(plain: Gpualert, command: list[str], *options: str) -> str:
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in plain.argv(list(options), command))
    return quoted + "\n"


JOB = """
import os, signal, sys, time
count = {}
def note(number, frame):
    count[number] = count.get(number, 0) + 1
    size = os.get_terminal_size(%d)
    print(f"<{signal.Signals(number).name} {count[number]} {size.lines}x{size.columns}>", flush=True)
for number in (signal.SIGINT, signal.SIGWINCH, signal.SIGCONT):
    signal.signal(number, note)
print("<ready", os.isatty(0), os.isatty(1), os.isatty(2), os.tcgetpgrp(0) == os.getpgrp(), ">", flush=True)
while True:
    time.sleep(0.05)
    if os.path.exists(sys.argv[1]):
        print("<bye>", flush=True)
        sys.exit(5)
"""

KINDS = pytest.mark.parametrize(
    "options", [["--tty", "auto"], ["--tty", "never"], ["--tty", "never", "--signal-group"]]
)


def _job(plain: Gpualert, options: list[str]) -> tuple[str, str]:
    stop = str(plain.log_dir.parent / "stop")
    # With --tty never stdout is a pipe, so the size is that of stdin.
    return _line(plain, [*python(JOB % 0), stop], *options), stop


@KINDS
def test_the_child_is_in_the_foreground_of_a_terminal(plain: Gpualert, shell: Shell, options: list[str]) -> None:
    line, stop = _job(plain, options)
    shell.type(line)
    shell.expect("<ready True True True True >" if "auto" in options else "<ready True False False True >")
    open(stop, "w").close()
    shell.expect("kept in")
    shell.forget()
    shell.expect("$ ")
    shell.type("echo status $?\n")
    shell.expect("status 5")


@KINDS
def test_ctrl_c_arrives_once(plain: Gpualert, shell: Shell, options: list[str]) -> None:
    line, stop = _job(plain, options)
    shell.type(line)
    shell.expect("<ready")
    shell.type("\x03")
    shell.expect("<SIGINT 1")
    shell.type("\x03")
    shell.expect("<SIGINT 2")
    open(stop, "w").close()
    shell.expect("<bye>")
    assert b"<SIGINT 3" not in shell.seen


@KINDS
def test_ctrl_z_stops_the_job_and_fg_continues_it(plain: Gpualert, shell: Shell, options: list[str]) -> None:
    line, stop = _job(plain, options)
    shell.type(line)
    shell.expect("<ready")
    for _ in range(2):
        shell.forget()
        shell.type("\x1a")
        shell.expect("Stopped")
        shell.expect("$ ")
        shell.forget()
        shell.type("stty -a | tr ';' '\\n' | grep -c -w -e isig -e icanon -e echo; echo shell $((6*7))\n")
        shell.expect("shell 42")
        shell.forget()
        shell.type("fg\n")
        shell.expect("<SIGCONT")
    open(stop, "w").close()
    shell.expect("<bye>")
    assert b"<SIGCONT 3" not in shell.seen


@KINDS
def test_a_new_window_size_is_told_once_and_right(plain: Gpualert, shell: Shell, options: list[str]) -> None:
    line, stop = _job(plain, options)
    shell.type(line)
    shell.expect("<ready")
    shell.resize(44, 123)
    shell.expect("<SIGWINCH 1 44x123>")
    open(stop, "w").close()
    shell.expect("<bye>")
    assert b"<SIGWINCH 2" not in shell.seen


def test_typing_reaches_the_child(plain: Gpualert, shell: Shell) -> None:
    shell.type(_line(plain, python("print('<' + input('name? ') + '>')")))
    shell.expect("name? ")
    shell.type("somebody\n")
    shell.expect("<somebody>")


def test_the_terminal_is_as_before_afterwards(plain: Gpualert, shell: Shell) -> None:
    shell.type("stty -g > before\n".replace("before", str(plain.log_dir.parent / "before")))
    shell.type(_line(plain, ["sh", "-c", "stty raw -echo; exit 3"]))
    shell.expect("kept in")
    shell.forget()
    shell.expect("$ ")
    shell.type(f"echo status $?; stty -g > {plain.log_dir.parent / 'after'}; echo done $((1+1))\n")
    shell.expect("done 2")
    assert (plain.log_dir.parent / "after").read_text() == (plain.log_dir.parent / "before").read_text()


def test_in_the_background_it_waits_for_nobody(plain: Gpualert, shell: Shell) -> None:
    line, stop = _job(plain, ["--tty", "auto"])
    shell.type(line.rstrip("\n") + " &\n")
    shell.expect("<ready")
    shell.forget()
    shell.type("echo typed $((20+3))\n")
    shell.expect("typed 23")
    shell.type("fg\n")
    shell.expect("fg")
    time.sleep(1.2)  # it looks twice a second whether it has come to the foreground
    shell.type("\x03")
    shell.expect("<SIGINT 1")
    open(stop, "w").close()
    shell.expect("<bye>")


def test_a_command_that_cannot_be_executed_on_a_terminal(plain: Gpualert, shell: Shell) -> None:
    shell.type(_line(plain, ["no-such-command"]))
    shell.expect("kept in")
    shell.forget()
    shell.expect("$ ")
    shell.type("echo status $?\n")
    shell.expect("status 127")


def test_death_by_signal_on_a_terminal(plain: Gpualert, shell: Shell) -> None:
    shell.type(_line(plain, ["sh", "-c", "kill -USR1 $$"]))
    shell.expect("kept in")
    shell.forget()
    shell.expect("$ ")
    shell.type("echo status $?\n")
    shell.expect(f"status {128 + signal.SIGUSR1}")


def test_a_terminal_can_be_had_without_one(plain: Gpualert) -> None:
    done = plain.run(python("import os; print(os.isatty(1), os.isatty(2), os.isatty(0))"), "--tty", "always")
    assert done.stdout == b"True True False\r\n"
    assert done.log == done.stdout


def test_the_log_says_that_it_came_from_a_terminal(plain: Gpualert) -> None:
    from gpualert.rundir import index

    done = plain.run(["echo", "x"], "--tty", "always")
    assert [stream for _, stream, _ in index.records(done.file("output.idx"))] == [index.TERMINAL]


def test_a_killed_monitor_does_not_lose_the_child(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo ready; sleep 1; exit 9"], "--tty", "always")
    started.wait_for(b"ready")
    children = open(f"/proc/{started.process.pid}/task/{started.process.pid}/children").read().split()
    os.kill(int(children[0]), signal.SIGKILL)
    # With its session leader gone the terminal hangs up: the shell ends by SIGHUP, and that is its status.
    assert started.finish().returncode in (9, -signal.SIGHUP)
