"""The scribe: one thread that does everything slow with the disk while the child runs, so that nothing else waits."""

from __future__ import annotations

import _thread
import time

from gpualert.rundir.assembly import NAME as LOG_NAME
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.supervisor import quiet
from gpualert.supervisor.pump import Wakeup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.rundir.logfile import OutputLog
    from gpualert.rundir.writer import RunDirectory
    from gpualert.supervisor.cgroup import ControlGroup, Sample
    from gpualert.supervisor.collector import Collector
    from gpualert.supervisor.message import Message
    from gpualert.supervisor.trouble import Trouble

TICK_S = 1.0
SOON_S = 0.05
SYNC_EVERY_S = 5.0
MESSAGE_EVERY_S = 10.0
TIGHT = 0.9
"""From this share of the memory limit on the termination message is refreshed with every sample."""
SAMPLE_AT_LEAST_EVERY_S = 60.0
BEAT_EVERY_S = 30.0


class Scribe:
    """Keeps the journal, samples memory, syncs the log and refreshes the termination message.

    Attributes:
        sample: The last memory sample; None before the first.
        first: The sample from before the launch.
        inline: No thread could be made: everything is done when the run has ended.
        watch: What searches the log meanwhile; None where there is none.
        shm_peak: The most that was seen in ``/dev/shm``, in bytes; None where there is none.
        collector: What measures beside us; None where nothing does.
    """

    def __init__(
        self,
        directory: RunDirectory | None,
        log: OutputLog | None,
        lock: _thread.LockType,
        cgroup: ControlGroup,
        message: Message | None,
        trouble: Trouble,
    ) -> None:
        """Nothing runs yet.

        Args:
            directory: The run directory; None where none could be made.
            log: The output's log.
            lock: Guards the log.
            cgroup: The control group to sample.
            message: The termination message; None where there is none.
            trouble: Says what goes wrong.
        """
        self.inline = False
        self.sample: Sample | None = None
        self.first: Sample = cgroup.sample()
        self.watch = quiet.Watch(f"{directory.path}/{LOG_NAME}") if directory is not None else None
        self.shm_peak = self.first.shm_used
        self.collector: Collector | None = None
        self._directory = directory
        self._log = log
        self._lock = lock
        self._cgroup = cgroup
        self._message = message
        self._trouble = trouble
        self._events: list[dict[str, object]] = []
        self._events_lock = _thread.allocate_lock()
        self._wanted = Wakeup()
        self._finished = Wakeup()
        self._closing: Callable[[], None] | None = None
        self._due = {"sync": SYNC_EVERY_S, "message": TICK_S, "beat": BEAT_EVERY_S, "sample": 0.0}
        self._started_at = time.monotonic()
        self._synced_bytes = 0
        self._written_sample = -1
        self._written_kills = self.first.oom_kill
        self._journal_works = True
        self._thread = 0

    def post(self, event: str, **fields: object) -> None:
        """Have an event written to the journal; never waits."""
        with self._events_lock:
            self._events.append({"at": rfc3339(now_us()), "event": event, **fields})
        if _thread.get_ident() != self._thread:
            self._wanted.give()

    def hurry_message(self) -> None:
        """Have the termination message refreshed at once."""
        self._due["message"] = 0.0
        self._wanted.give()

    def start(self, first: Callable[[], None], soon: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            first: Done first, in the thread.
            soon: Done a moment later, unless the run has ended by then.

        Raises:
            RuntimeError: No thread can be made.
        """
        _thread.start_new_thread(self._run, (first, soon))

    def finish(self, last: Callable[[], None], timeout: float) -> bool:
        """Have everything written, then ``last`` done, in the thread.

        Returns:
            False when the disk took longer than ``timeout`` seconds.
        """
        self._closing = last
        if self.inline:
            self._close(last)
            return True
        self._wanted.give()
        return self._finished.wait(timeout)

    def _run(self, first: Callable[[], None], soon: Callable[[], None]) -> None:
        self._thread = _thread.get_ident()
        self._attempt(first)
        until = time.monotonic() + SOON_S
        while self._closing is None and time.monotonic() < until:
            self._wanted.wait(until - time.monotonic())
        if self._closing is None:
            self._attempt(soon)
        while self._closing is None:
            self._attempt(self._tick)
            self._wanted.wait(TICK_S)
        self._close(self._closing)
        self._finished.give()

    def _close(self, last: Callable[[], None]) -> None:
        for step in (
            self._write_events,
            self._take_sample,
            self._record_kills,
            self._watch_log,
            last,
            self._write_events,
        ):
            self._attempt(step)

    def _attempt(self, step: Callable[[], None]) -> None:
        """Do a step; what goes wrong in it is told and stops no other step."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  (a fault in here must not stop the journal)
            self._trouble.report(f"{getattr(step, '__name__', 'a step').strip('_')} failed inside gpualert ({error})")

    def _tick(self) -> None:
        now = time.monotonic() - self._started_at
        if self.collector is not None:
            self.collector.look()
            self.collector.tell(b"%d" % (self._log.total if self._log is not None else 0))
        self._take_sample()
        self._record_sample(now)
        self._write_events()
        self._watch_log()
        self._search_log()
        if self._message is not None and (now >= self._due["message"] or self._is_tight()):
            self._due["message"] = now + MESSAGE_EVERY_S
            self._refresh_message()
        if now >= self._due["sync"]:
            self._due["sync"] = now + SYNC_EVERY_S
            self._sync()
        if self._directory is not None and now >= self._due["beat"]:
            self._due["beat"] = now + BEAT_EVERY_S
            try:
                self._directory.beat()
            except OSError:
                pass  # the next event tells what is wrong

    def _is_tight(self) -> bool:
        """Whether memory is so short that this may be the last chance to say so."""
        sample = self.sample
        if sample is None or not sample.limit or sample.working_set is None:
            return False
        return sample.working_set >= TIGHT * sample.limit

    def _write_events(self) -> None:
        with self._events_lock:
            events, self._events = self._events, []
        if self._directory is None or not events:
            return
        try:
            self._directory.add_events(events)
        except OSError as error:
            if self._journal_works:
                self._journal_works = False
                self._trouble.report(f"cannot write {self._directory.path}/events.jsonl ({error.strerror})")

    def _take_sample(self) -> None:
        self.sample = self._cgroup.sample()
        if self.sample.shm_used is not None:
            self.shm_peak = max(self.shm_peak or 0, self.sample.shm_used)

    def _record_sample(self, now: float) -> None:
        """Write a sample when it tells something new: 1 % of the limit more or less, a kill, or a minute gone by."""
        sample = self.sample
        if sample is None or sample.current is None:
            return
        step = (sample.limit or 100 * (64 << 20)) // 100
        changed = abs(sample.current - self._written_sample) >= step or sample.oom_kill != self._written_kills
        if not changed and now < self._due["sample"]:
            return
        self._written_sample, self._written_kills = sample.current, sample.oom_kill
        self._due["sample"] = now + SAMPLE_AT_LEAST_EVERY_S
        self.post("memory", **describe(sample))

    def _record_kills(self) -> None:
        """Write the last sample when it has a kill that no other has."""
        sample = self.sample
        if sample is not None and sample.oom_kill is not None and sample.oom_kill != self._written_kills:
            self.post("memory", **describe(sample))

    def _watch_log(self) -> None:
        log, directory = self._log, self._directory
        if log is None or directory is None:
            return
        if log.trouble:
            self._trouble.report(log.trouble)
        if log.vanished():
            try:
                directory.restore()
                log.rescue(self._lock)
            except OSError as error:
                self._trouble.report(f"{directory.path} was deleted and cannot be made anew ({error.strerror})")
                self._log = None
            else:
                self._trouble.report(f"{directory.path} was deleted: made anew, with everything so far")

    def _search_log(self) -> None:
        if self.watch is None:
            return
        try:
            self.watch.look(quiet.LOOK_BYTES)
        except OSError:
            self.watch = None  # at the end it is tried once more, from the start

    def _refresh_message(self) -> None:
        message = self._message
        if message is None:
            return
        with self._lock:
            last_at, last = (self._log.last_at, self._log.last) if self._log is not None else (0, b"")
        try:
            progress = self.collector.progress if self.collector is not None else ""
            message.refresh(last_at, last, self.sample, progress)
        except OSError as error:
            self._message = None
            self._trouble.report(f"cannot write the termination message {message.path} ({error.strerror})")

    def _sync(self) -> None:
        log = self._log
        if log is None:
            return
        with self._lock:
            log.flush_index()
            total = log.total
        if total != self._synced_bytes:
            self._synced_bytes = total
            log.sync()


def describe(sample: Sample) -> dict[str, object]:
    """A memory sample as the journal writes it."""
    return {
        "current": sample.current,
        "working_set": sample.working_set,
        "limit": sample.limit,
        "peak": sample.peak,
        "oom_kill": sample.oom_kill,
        "pids_max_events": sample.pids_max_events,
    }
