"""The collector: a process beside the run that measures GPUs, memory and progress, and notices hangs.

It is started a moment after the launch, so that short commands do not pay for it, and ends when our end of a pipe
closes, also when we are killed. Back comes one line for each thing that the supervisor acts on: ``progress`` with a
phrase, ``hang`` with the seconds of silence and why, ``over``, ``broken`` for an error that a driver or the kernel told
of, ``trouble``. Should it die, the run goes on without.
"""

from __future__ import annotations

import _thread
import posix
import time

from gpualert.rundir import jsontext
from gpualert.supervisor import files, launch, reporter, signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpualert.rundir.logfile import OutputLog
    from gpualert.supervisor.supervision import Supervision
    from gpualert.supervisor.trouble import Trouble

WITHOUT_GPU_AFTER_S = 3.0
"""How long after the launch it is started. With a GPU at once: an Xid that comes before the driver knows of us is lost,
while without one nothing is missed in the first seconds."""
MEMORY_LEAST = 512 << 20
"""With a memory limit below this, in bytes, there is no room for a second process beside the job."""
END_PATIENCE_S = 1.0
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_LINE_MAX = 4096


class Hang:
    """A run that hangs.

    Attributes:
        silent_s: How long it has neither printed nor worked, in seconds.
        why: What shows it, for a person.
    """

    __slots__ = ("silent_s", "why")

    def __init__(self, silent_s: float, why: str) -> None:
        self.silent_s = silent_s
        self.why = why


class Collector:
    """One collector at work.

    Attributes:
        pid: Its process id; 0 when it has ended.
        progress: How far the training is, as a phrase; empty where that is not known.
        hang: The run hangs now; None while it does not.
        due: What the main thread has to tell of: ``hang``, ``hang-over``, or nothing.
        again: It is the second one of its run.
        broken: A driver or the kernel has told of an error: also a success is worth a look.
    """

    __slots__ = ("_hold", "_rest", "_told", "_trouble", "_wake", "again", "broken", "due", "hang", "pid", "progress")

    def __init__(
        self, run_directory: str, task: Mapping[str, object], trouble: Trouble, wake: Callable[[], None]
    ) -> None:
        """Start it.

        Args:
            run_directory: The run's directory.
            task: What it has to know.
            trouble: Says what goes wrong.
            wake: Wakes the main thread when something is due.

        Raises:
            launch.ForkError: There is no new process.
            launch.LaunchError: The interpreter cannot be executed.
            OSError: There are too many open files.
        """
        self.progress = ""
        self.again = not task["gpus"]
        self.broken = False
        self.hang: Hang | None = None
        self.due = ""
        self._rest = b""
        self._trouble = trouble
        self._wake = wake
        told, tell = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        held, hold = posix.pipe2(posix.O_CLOEXEC)
        posix.set_blocking(hold, False)
        log = -1
        try:
            log = posix.open(
                f"{run_directory}/reporter.log",
                posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC,
                0o640,
            )
        except OSError:
            pass  # what it has to complain of is lost
        arguments = [launch.raw(run_directory), b"%d" % tell, jsontext.dumps(dict(task)).encode()]
        try:
            self.pid = reporter.start_process("telemetry.collector", arguments, stdin=held, stderr=log, keep=tell)
        except BaseException:
            posix.close(told)
            posix.close(hold)
            raise
        finally:
            posix.close(tell)
            posix.close(held)
            if log >= 0:
                posix.close(log)
        self._told, self._hold = told, hold

    def tell(self, line: bytes) -> None:
        """Tell it a line: how much output there is (the log may go on where it does not look), or where figures go.

        Args:
            line: The number of bytes that the command has written, or ``otlp`` and the receiver's URL.
        """
        hold = self._hold
        if hold >= 0:
            try:
                posix.write(hold, line + b"\n")
            except OSError:
                pass  # it is busy, or gone

    def look(self) -> None:
        """Take what it has told us; called by the scribe."""
        told = self._told
        if told < 0:
            return
        try:
            data = posix.read(told, 1 << 16)
        except OSError:
            return  # nothing yet
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-_LINE_MAX:]
        for line in lines:
            self._take(line.decode("utf-8", "replace"))

    def _take(self, line: str) -> None:
        kind, _, text = line.partition(" ")
        if kind == "progress":
            self.progress = text[:200]
        elif kind == "hang":
            silent, _, why = text.partition(" ")
            self.hang = Hang(float(silent) if silent.replace(".", "", 1).isdigit() else 0.0, why[:300])
            self.due = "hang"
            self._wake()
        elif kind == "over" and self.hang is not None:
            self.hang = None
            self.due = "hang-over"
            self._wake()
        elif kind == "broken":
            self.broken = True
        elif kind == "trouble":
            self._trouble.report(text[:300])

    def act(self, run: Supervision) -> None:
        """Do what is due: tell that the run hangs or goes on again, or end it.

        Args:
            run: The run.
        """
        due, self.due = self.due, ""
        hang = self.hang
        if hang is None or run.told.text("hang.action") != "terminate":
            run.tell(due)
            return
        if not run.timed_out:  # else it is being ended already
            run.ended_for_hang = {"terminated": True, "silent_s": hang.silent_s, "why": hang.why}
            run.end("hang")

    def ended(self, pid: int, run: Supervision) -> None:
        """A process of ours has ended: perhaps this one.

        A driver's library may have crashed it: then another one goes on without the GPUs.

        Args:
            pid: Its process id.
            run: The run.
        """
        if pid != self.pid:
            return
        self.pid = 0
        if self._hold >= 0 and run.ending is None:
            if self.again:
                self._trouble.report("measuring the run has failed twice: only its output and its end are watched")
            else:
                run.timers.set("collect", time.monotonic())

    def finish(self, log: OutputLog | None = None) -> None:
        """Let it take its last sample and end.

        Args:
            log: The output's log; None where there is none.
        """
        if log is not None:
            self.tell(b"%d" % log.total)
        hold, self._hold = self._hold, -1  # first: the scribe must not write into what somebody else opens then
        if hold >= 0:
            posix.close(hold)

    def close(self) -> None:
        """Give its descriptors back: it has died."""
        self.finish()
        told, self._told = self._told, -1
        posix.close(told)

    def wait(self, pause: Callable[[float], set[int]]) -> None:
        """Wait a moment for its end; one that hangs in a driver is left behind, and ends by itself.

        Args:
            pause: Takes signals and reaps for at most so many seconds.
        """
        until = time.monotonic() + END_PATIENCE_S
        while self.pid and (left := until - time.monotonic()) > 0:
            pause(left)


def start(run: Supervision) -> None:
    """Have a run measured; without that it goes on all the same.

    Args:
        run: The run.
    """
    directory, scribe = run.journal.directory, run.scribe
    if directory is None or scribe is None or scribe.inline:
        return
    limit = scribe.first.limit
    if limit is not None and limit < MEMORY_LEAST:
        return
    died = run.collector
    due = run.launched_at + WITHOUT_GPU_AFTER_S
    if died is None and time.monotonic() < due and not _has_gpu(run.journal.facts.get("gpus")):
        run.timers.set("collect", due)
        return
    main = _thread.get_ident()
    task = _task(run, gpus=died is None)
    try:
        run.collector = Collector(directory.path, task, run.trouble, lambda: signals.wake(main))
    except (launch.ForkError, launch.LaunchError, OSError) as error:
        run.trouble.report(f"cannot measure the run ({error}): only its output and its end are watched")
        return
    endpoint = run.told.text("telemetry.otlp")
    if endpoint:
        run.collector.tell(b"otlp " + launch.raw(endpoint))
    scribe.collector = run.collector
    if died is not None:
        run.collector.broken, run.collector.hang = died.broken, died.hang
        died.close()


def _has_gpu(told: object) -> bool:
    return bool(told) or any(files.exists(path) for path in _GPU_DEVICES)


def _task(run: Supervision, *, gpus: bool) -> dict[str, object]:
    """What the collector has to know."""
    told = run.told
    return {
        "child": run.child,
        "supervisor": posix.getpid(),
        "launched_us": run.launched_us,
        "gpus": gpus,
        "hang_after_s": told.duration("hang.after") or 0,
        "hang_warmup_s": told.duration("hang.warmup") or 0,
        "textfile": told.text("telemetry.textfile"),
    }
