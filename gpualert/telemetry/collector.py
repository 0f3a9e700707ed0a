"""The collector: a process beside the supervisor that looks every few seconds, and writes down what it sees.

It loads the standard library and the GPU's binding alone, and slows itself down when a look costs more than its share
of a core. It ends when the supervisor closes its end of a pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from gpualert.hang.repetition import Repetition
from gpualert.hang.rhythm import Moment, Rhythm
from gpualert.progress import formats, text
from gpualert.progress.tracker import Tracker
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.rundir.reader import Run
from gpualert.supervisor import reporter
from gpualert.supervisor.cgroup import ControlGroup
from gpualert.supervisor.redaction import Redaction, secrets
from gpualert.telemetry import pressure
from gpualert.telemetry.figures import Figures
from gpualert.telemetry.gpuwatch import GpuWatch
from gpualert.telemetry.kernellog import KernelLog
from gpualert.telemetry.output import Output
from gpualert.telemetry.processes import Tree
from gpualert.telemetry.record import Record
from gpualert.telemetry.task import Task
from gpualert.telemetry.textfile import Textfile
from gpualert.telemetry.thinning import Thinning, write_every_s

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_EVERY_S, LOOK_AT_LEAST_S = 5.0, 0.5
SHARE = 0.004
"""Of one core: a look that costs more is followed by a longer pause."""
PROGRESS_EVERY_S = 30.0
TEXTFILE_EVERY_S = 15.0
SCENE_S = 25.0
"""How long the stacks of a hanging job may take."""
GPU_END_S = 0.8
FDS_MAX = 1 << 16
_FAULTS = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE,
    signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP,
}  # fmt: skip
"""What is not ignored: what cannot be, what a fault brings, and SIGCHLD, without which no status is to be had."""
PIDS_KEPT_S = 120.0
"""How long a process id counts as the job's after it was seen: then it may be somebody else's."""
XIDS_MAX = 50
"""How many Xids of one number and GPU are written."""


class Collector:
    """Looks at a run until it ends."""

    def __init__(self, task: Task, record: Record) -> None:
        """Open everything.

        Args:
            task: What the supervisor wants.
            record: Where it is written.
        """
        self._task = task
        self._record = record
        self._mask = Redaction(secrets(dict(os.environb))).mask
        self._began = time.monotonic()
        self._log_bytes = 0
        self._heard = b""
        self._wrong: set[str] = set()
        self._due = {"sample": 0.0, "progress": 0.0, "textfile": 0.0}
        self._hanging = False
        self._step_told = ""
        self._inventoried = self._broken = False
        self._tree = Tree(task.supervisor, {os.getpid()})
        self._output = Output(task.directory)
        self._tracker = Tracker()
        self._rhythm = Rhythm(task.hang_after_s, task.hang_warmup_s) if task.hang_after_s else None
        self._pids: dict[int, float] = {}
        self._xids: dict[tuple[int, int], int] = {}
        self._exporter = 0
        self._repetition = Repetition()
        self._thinning = Thinning()
        self._group = ControlGroup()
        self._gpus = GpuWatch(dict(os.environ) if task.gpus else None)
        self._kernel = KernelLog(since_us=task.launched_us)
        self._textfile = Textfile(task.textfile, Run.read(task.directory).facts) if task.textfile else None
        self._figures = Figures()
        every = min(LOOK_EVERY_S, max(task.hang_after_s / 10, LOOK_AT_LEAST_S)) if task.hang_after_s else LOOK_EVERY_S
        self._every_s = every

    def run(self) -> None:
        """Look until the supervisor wants an end, or is gone."""
        pause, used = 0.0, None
        while not self._wait(pause):
            self._attempt(self._look)
            before, used = used, time.process_time()
            # The first look loads what the later ones use (the GPUs' driver too), which is paid once.
            pause = self._every_s if before is None else max(self._every_s, (used - before) / SHARE)
        self._attempt(self._finish)

    def _wait(self, seconds: float) -> bool:
        """Wait, and take what the supervisor tells; True when it has closed its end."""
        until = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([0], [], [], max(until - time.monotonic(), 0))
            if not ready:
                return False
            data = os.read(0, 1 << 16)
            if not data:
                return True
            lines = (self._heard + data).split(b"\n")
            self._heard = lines.pop()
            for line in lines:
                self._heed(line)

    def _heed(self, line: bytes) -> None:
        """Take a line from the supervisor: how much output there is, or where figures go."""
        if line.isdigit():
            self._log_bytes = int(line)
        elif line.startswith(b"otlp "):
            self._attempt(lambda: self._export(line[5:]))

    def _attempt(self, step: Callable[[], None]) -> None:
        """Do a step; what goes wrong is told once."""
        try:
            step()
        except OSError as error:
            self._complain(f"cannot keep what was measured ({error.strerror})")
        except Exception as error:  # noqa: BLE001  (one look may fail, and the next succeed)
            self._complain(f"measuring the run failed inside gpualert ({type(error).__name__}: {error})")

    def _complain(self, what: str) -> None:
        if what not in self._wrong:
            self._wrong.add(what)
            self._tell(f"trouble {what}")

    def _tell(self, line: str) -> None:
        """Tell the supervisor."""
        if self._task.tell >= 0:
            with contextlib.suppress(OSError):  # it may be gone, or not listen
                os.write(self._task.tell, self._mask(line).replace("\n", " ").encode("utf-8", "replace") + b"\n")

    def _export(self, endpoint: bytes) -> None:
        """Have the figures sent to an OTLP receiver, by a process of its own: the SDK is many times as large."""
        os.environb[b"GPUALERT_OTLP"] = endpoint  # not an argument: the URL may hold a secret
        self._exporter = reporter.start_process("telemetry.otlp", [os.fsencode(self._task.directory)], stderr=2)

    def _reap(self) -> None:
        if self._exporter:
            with contextlib.suppress(ChildProcessError):
                ended, _ = os.waitpid(self._exporter, os.WNOHANG)
                self._exporter = 0 if ended else self._exporter

    # -- one look ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        sample, moment = self._sample(now)
        self._note(now, sample)
        if self._textfile is not None and now >= self._due["textfile"]:
            self._due["textfile"] = now + TEXTFILE_EVERY_S
            self._put(self._textfile, sample)
        if self._rhythm is not None and moment.states and not self._is_suspended():
            self._mind_hang(self._rhythm, moment)
        self._reap()

    def _note(self, now: float, sample: dict[str, Any], *, last: bool = False) -> None:
        """Write what was seen; each alone: what a full disk does not take must not keep the rest from being told."""
        self._thinning.add(sample)
        self._attempt(self._take_inventory)
        self._attempt(self._note_events)
        self._attempt(lambda: self._follow_progress(now, last=last))
        if last or now >= self._due["sample"]:
            self._due["sample"] = now + write_every_s(now - self._began)
            self._attempt(self._write_samples)

    def _take_inventory(self) -> None:
        watch = self._gpus
        if not self._inventoried and watch.ready.is_set():
            self._inventoried = True
            if watch.inventory:
                self._add("inventory", {"vendor": watch.vendor, "driver": watch.driver, "gpus": watch.inventory})
                self._kernel.job.uses(str(gpu["pci"]) for gpu in watch.inventory if gpu.get("pci"))

    def _sample(self, now: float) -> tuple[dict[str, Any], Moment]:
        """What is to be seen now, for the file and for the detector."""
        activity, gpus = self._tree.sample(), self._gpus.latest()
        self._pids |= {one.pid: now for one in self._tree.processes()}
        self._pids = {pid: at for pid, at in self._pids.items() if now - at < PIDS_KEPT_S}
        self._kernel.job.pids.clear()
        self._kernel.job.pids.update(self._pids)
        output = self._output.new_text()
        self._tracker.add(formats.read(output + self._output.unfinished), time.time(), now)
        progress = self._tracker.state() or {}
        sample = {
            "cpu_s": activity.cpu_s,
            "io_bytes": activity.io_bytes,
            "rss": activity.rss,
            "processes": activity.processes,
            "threads": activity.threads,
            "major_faults": activity.major_faults,
            "log_bytes": self._log_bytes,
            **pressure.shared_memory(),
            **pressure.group_memory(self._group.directory),
            "psi": pressure.sample(self._group.directory),
        }
        if gpus:
            sample["gpus"] = gpus
        moment = Moment(
            at_s=now,
            log_bytes=self._log_bytes,
            cpu_s=activity.cpu_s,
            io_bytes=activity.io_bytes,
            step=progress.get("step", progress.get("epoch")),
            states=activity.states,
            fresh=self._repetition.fresh(output) if output else None,
            gpus=tuple((_real(gpu, "utilization"), _real(gpu, "memory_used"), _real(gpu, "power_w")) for gpu in gpus),
        )
        return sample, moment

    def _write_samples(self) -> None:
        sample = self._thinning.take()
        if sample is not None:
            self._add("sample", sample)

    def _note_events(self) -> None:
        for event in self._gpus.xids():
            seen = self._xids[event.code, event.gpu] = self._xids.get((event.code, event.gpu), 0) + 1
            self._tell_broken()
            if seen <= XIDS_MAX:
                self._add("xid", event.as_dict(), event.at_us)
        for line in self._kernel.read():
            if line.about == "own":
                self._tell_broken()
            self._add("kernel", {"text": line.text, "about": line.about}, line.at_us)
        if self._gpus.unanswered_s():
            self._complain("the GPUs' driver does not answer any more: their figures end here")

    def _tell_broken(self) -> None:
        if not self._broken:
            self._broken = True
            self._tell("broken")

    def _follow_progress(self, now: float, *, last: bool = False) -> None:
        state = self._tracker.state()
        if state is None:
            return
        phrase = text.phrase(state)
        if phrase != self._step_told and (last or now >= self._due["progress"]):
            self._step_told = phrase
            self._due["progress"] = now + (PROGRESS_EVERY_S if now - self._began > PROGRESS_EVERY_S else LOOK_EVERY_S)
            self._tell(f"progress {phrase}")
            self._add("progress", state)

    def _add(self, kind: str, fields: dict[str, Any], at_us: int | None = None) -> None:
        told = _masked(fields, self._mask)
        self._record.add(kind, told, at_us)
        self._figures.add({"kind": kind, "at": rfc3339(at_us or now_us()), **told})

    def _put(self, file: Textfile, sample: dict[str, Any]) -> None:
        """Let node-exporter see how the run is now."""
        self._figures.add({"kind": "sample", "at": rfc3339(now_us()), **sample})
        trouble = file.put(self._figures.state)
        if trouble:
            self._complain(trouble)

    # -- hangs ---------------------------------------------------------------------------------------------------------

    def _is_suspended(self) -> bool:
        """Whether somebody has stopped the whole job at a terminal, the supervisor with it: that is no hang."""
        try:
            with open(f"/proc/{self._task.supervisor}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
        except OSError:
            return False

    def _mind_hang(self, rhythm: Rhythm, moment: Moment) -> None:
        suspicion = rhythm.observe(moment)
        if suspicion is None:
            return
        since = rfc3339(now_us() - int(suspicion.silent_s * 1e6))
        state = "over" if suspicion.state == "over" else "suspected"
        self._hanging = state == "suspected"
        told = {"state": state, "silent_s": suspicion.silent_s, "since": since, "why": suspicion.why}
        if suspicion.state == "over":
            self._attempt(lambda: self._add("hang", told))
            self._tell("over")
            return
        from gpualert.hang import scene  # noqa: PLC0415  (only where a run hangs)

        try:
            told["scene"] = scene.capture(self._tree, self._task.directory, time.monotonic() + SCENE_S, self._mask)
        except Exception as error:  # noqa: BLE001  (that it hangs is told all the same)
            told["scene"] = {"notes": [f"the stacks could not be taken ({type(error).__name__}: {error})"]}
        self._attempt(lambda: self._add("hang", told))  # a full disk must not keep it from being told
        self._tell(f"hang {suspicion.silent_s:.1f} {suspicion.why}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._gpus.finish(GPU_END_S)
        now = time.monotonic()
        sample, moment = self._sample(now)
        if self._rhythm is not None and self._hanging:
            self._mind_hang(self._rhythm, moment)  # what it wrote at its end shows that it went on
        if not sample["processes"]:  # they have ended: nothing is known of how large they were just before
            sample = {key: value for key, value in sample.items() if key not in ("rss", "processes", "threads")}
        self._note(now, sample, last=True)
        self._add("peaks", {"processes": [peak.as_dict() for peak in self._tree.peaks()]})
        self._add("end", {})


def _real(gpu: dict[str, object], key: str) -> float | None:
    value = gpu.get(key)
    return float(value) if isinstance(value, int | float) else None


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {key: _masked(item, mask) for key, item in value.items()}
    return [_masked(item, mask) for item in value] if isinstance(value, list | tuple) else value


def main() -> None:
    """The collector's whole life."""
    # It ends with the run, also when all that is left over is ended, and a batch system signals all processes.
    for number in signal.valid_signals() - _FAULTS:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    task = Task.parse(sys.argv[1:])
    # Descriptors of the job that we were born with: whoever waits for their end must not wait for ours.
    os.closerange(3, max(task.tell, 3))
    os.closerange(max(task.tell + 1, 3), FDS_MAX)
    Collector(task, Record(task.directory)).run()
    os._exit(0)  # a thread may be held by the driver


if __name__ == "__main__":
    main()
