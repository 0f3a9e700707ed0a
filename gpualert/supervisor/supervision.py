"""One run under supervision: prepare, launch, attend until the child ends, conclude."""

from __future__ import annotations

import _signal
import _thread
import posix
import time

from gpualert.rundir.clock import now_us, rfc3339
from gpualert.supervisor import cgroup, facts, files, launch, reap, signals, stderr
from gpualert.supervisor.journal import Journal
from gpualert.supervisor.redaction import Redaction, secrets
from gpualert.supervisor.status import CALLED_WRONGLY, Ending
from gpualert.supervisor.timers import Timers
from gpualert.supervisor.trouble import Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.supervisor.collector import Collector
    from gpualert.supervisor.launch import LaunchError
    from gpualert.supervisor.membership import Membership
    from gpualert.supervisor.message import Message
    from gpualert.supervisor.scribe import Scribe
    from gpualert.supervisor.settings import Settings
    from gpualert.supervisor.streams import Streams

TERMINATION_LOG = "/dev/termination-log"
LOOK_AGAIN_S = 0.5
PROGRESS_AT_MOST_EVERY_S = 10.0
THREADLESS_STEP_S = 0.02
UNKILLABLE_S = 5.0
"""How long after SIGKILL a hanging child that does not end is told of."""
COLLECT_AFTER_S = 0.7
"""When it is decided whether the run is measured: short commands shall not pay for it."""


class Supervision:
    """Everything about one run; its methods are the steps of the story, each called once.

    Attributes:
        child: The child's process id; 0 before the launch.
        ending: How the child ended; None while it lives.
        launch_error: Why it could not be executed.
        launched_us: When it was launched, in microseconds since 1970.
        timers: When what is due, on the monotonic clock.
        forwarded: The signals that came from outside and were passed on, in order.
        stopped_by: The first signal from outside that asks a job to end.
        stopped_at: When one came last, on the monotonic clock; 0 for never.
        timed_out: gpualert's own limit ended the run.
        started_us: When gpualert started, in microseconds since 1970.
        ended_us: When the child ended.
        ended_at: The same on the monotonic clock.
        membership: This rank's place in the directory that the ranks share; None where there is none.
        collector: What measures beside the run; None where nothing does.
        ended_for_hang: What is recorded when the run was ended because it hung.
        sweeper: The process that closes runs whose supervisor died; 0 while there is none.
        exact_environment: ``environment`` holds every entry that we were given.
    """

    def __init__(
        self,
        told: Settings,
        command: list[bytes],
        environment: dict[bytes, bytes],
        inherited: signals.Inherited,
        closed: set[int],
        started_us: int,
    ) -> None:
        """Nothing is made yet.

        Args:
            told: What ``gpualert run`` was told.
            command: The command and its arguments.
            environment: Variables and values.
            inherited: The signal state we were started with.
            closed: Which of 0, 1 and 2 are closed.
            started_us: When we started, in microseconds since 1970.
        """
        self.told = told
        self.environment = environment
        self.closed = closed
        self.started_us = self.launched_us = self.ended_us = started_us
        self.child = 0
        self.ending: Ending | None = None
        self.launch_error: LaunchError | None = None
        self.forwarded: list[int] = []
        self.stopped_by: int | None = None
        self.stopped_at = 0.0
        self.timed_out = False
        self.usage: reap.Usage | None = None
        self.launched_at = self.ended_at = time.monotonic()
        self.journal = Journal()
        self.streams: Streams | None = None
        self.message: Message | None = None
        self.redaction = Redaction(secrets(environment))
        self.trouble = Trouble(self._say, self._record_trouble, self.redaction.mask)
        self.scribe: Scribe | None = None
        self.membership: Membership | None = None
        self.collector: Collector | None = None
        self.ended_for_hang: dict[str, object] | None = None
        self.sweep_wanted = False
        self.sweeper = 0
        self.exact_environment = False
        self._command = command
        self._inherited = inherited
        self._own_group = told.switch("run.signal_group")
        self._ended: set[int] = set()
        self.timers = Timers()
        self._pumping_here = False
        self._stopped = False

    def _say(self, text: str) -> None:
        if self.streams is not None:
            self.streams.say(self.redaction.mask(text))
        else:
            stderr.write(self.redaction.mask(text))

    def _record_trouble(self, text: str) -> None:
        if self.scribe is not None:
            self.scribe.post("trouble", message=text)

    # -- before the launch ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the durable log, the first termination message, and the streams."""
        group = cgroup.ControlGroup()
        first = group.sample()
        limits = {"version": group.version, "limit": first.limit} if group.version else None
        known = facts.Environment(self.environment)
        self.journal.begin(
            self.told,
            self.environment,
            facts.name_of(self.told, known, self.redaction),
            lambda run_id: facts.collect(self.told, known, self.redaction, self.started_us, run_id, limits),
            self.started_us,
        )
        try:
            _load_the_rest()
        except OSError:
            self.journal.settle()  # which gives a descriptor back, where so few are to be had
            _load_the_rest()
        from gpualert.supervisor import chores, jobcontrol, scribe, streams  # noqa: PLC0415

        self._job = jobcontrol.JobControl(self.closed)
        self._chores = chores
        self._open_message(known.number("GPUALERT_CONTAINERS"))
        self.journal.settle()
        self.scribe = scribe.Scribe(
            self.journal.directory, self.journal.log, self.journal.lock, group, self.message, self.trouble
        )
        for problem in self.told.problems + self.journal.troubles:
            self.trouble.report(problem)
        try:
            self.streams = streams.Streams(self.told.text("run.tty") or "auto", self.closed)
        except OSError as error:
            self.trouble.report(f"cannot capture the output ({error.strerror}): it goes directly to where ours goes")

    def _open_message(self, containers: int | None) -> None:
        named = self.told.text("kubernetes.termination_log")
        path = named or (TERMINATION_LOG if files.exists(TERMINATION_LOG) else None)
        if path is None:
            return
        from gpualert.supervisor.message import Message  # noqa: PLC0415  (only where there is one)

        self.message = Message(path, containers, self.journal.facts, self.redaction)
        try:
            self.message.first()
        except OSError as error:
            self.message = None
            self.journal.troubles.append(f"cannot write the termination message {path} ({error.strerror})")

    # -- the launch ----------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the child, and then what watches it."""
        search_path = self.environment.get(b"PATH")
        if self.streams is not None and self.streams.terminal is not None:
            from gpualert.supervisor.terminal import Terminal  # noqa: PLC0415  (only where there is one)

            self._job.terminal = terminal = Terminal(self.streams.terminal, self.closed)
            self._own_group = True
            self.child, error = terminal.launch(self._command, search_path, self._prepare_child)
        else:
            self.child, error = self._start_child(search_path)
        self.launched_at, self.launched_us = time.monotonic(), now_us()
        if error is not None:
            error.message = self.redaction.mask(error.message)
            self.launch_error = error
            if not self.child:
                self._child_ended(Ending(error.status), None)
        elif self._own_group and self._job.terminal is None:
            self._set_group()
        self._start_threads()
        if self.told.duration("run.orphan_grace") or self._job.terminal is not None:
            self._chores.become_subreaper()
        if error is None and self.scribe is not None:
            self.scribe.post("launched", pid=self.child)
        limit = self.told.duration("run.timeout")
        if limit:
            self.timers.set("timeout", self.launched_at + limit)
        if self.told.switch("notify.on_start"):
            self.timers.set("started", self.launched_at)
        self._expect_progress(self.launched_at)
        if error is None and self.told.switch("telemetry.collect"):
            self.timers.set("collect", self.launched_at + COLLECT_AFTER_S)

    def _expect_progress(self, now: float) -> None:
        every = self.told.duration("notify.progress_every")
        if every:
            self.timers.set("progress", now + max(every, PROGRESS_AT_MOST_EVERY_S))

    def _start_child(self, search_path: bytes | None) -> tuple[int, LaunchError | None]:
        """Start the child in the cheapest way that gives it everything as we found it."""
        signal_state = self._inherited.for_spawn()
        if signal_state is None or not self.exact_environment:
            return launch.fork_and_execute(self._command, search_path, self._prepare_child)
        targets = self.streams.targets if self.streams is not None else {}
        hints = self.told.switch("run.env_hints")
        environment = {**launch.HINTS, **self.environment} if hints else self.environment
        return launch.spawn(self._command, search_path, environment, targets, signal_state, own_group=self._own_group)

    def _prepare_child(self) -> None:
        """Between fork and exec."""
        if self._own_group and self._job.terminal is None:
            posix.setpgid(0, 0)
        if self.streams is not None:
            self.streams.prepare_child()
        if self.told.switch("run.env_hints"):
            launch.apply_hints(self.environment)
        self._inherited.restore()

    def _set_group(self) -> None:
        """The same from our side, whoever is first; and let the group have the terminal if it was ours."""
        try:
            posix.setpgid(self.child, self.child)
        except OSError:
            pass  # it has executed already, and has done so itself
        self._job.give_terminal(self.child)

    def _start_threads(self) -> None:
        main = _thread.get_ident()
        log = self.journal.log
        try:
            if self.streams is not None:
                self.streams.start(log, self.journal.lock, lambda: signals.wake(main))
        except RuntimeError:
            self._pumping_here = True
        if self.scribe is not None:
            try:
                self.scribe.start(self._first_chores, self._chores.become_subreaper)
            except RuntimeError:
                self.scribe.inline = True

        if self.told.text("group.dir"):
            from gpualert.supervisor.membership import join  # noqa: PLC0415  (only where it is wanted)

            join(self)

    def _first_chores(self) -> None:
        self._chores.keep_fingerprints(self.journal.directory, self.redaction.values)
        self.sweep_wanted = self._chores.look_around(self.journal.directory)

    # -- while the child lives -----------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Forward signals, reap, and mind the time, until the child has ended."""
        while self.ending is None:
            self._reap()
            self._mind_time()
            if self.ending is None:
                self.pause(self._until_next_timer())
            if self.sweep_wanted and self.ending is None:
                self._start_sweep()
            if self.membership is not None and self.membership.due and self.ending is None:
                self.membership.due = False
                self.tell("group", self.membership.directory)
            if self.collector is not None and self.collector.due and self.ending is None:
                self.collector.act(self)
        self.restore_terminal()

    def _start_sweep(self) -> None:
        from gpualert.supervisor.conclusion import start_sweep  # noqa: PLC0415

        start_sweep(self)

    def restore_terminal(self) -> None:
        """Give the person's terminal back as it was."""
        self._job.restore(self.child)

    def pause(self, timeout: float | None) -> set[int]:
        """Take one signal, or wait so long that there is none.

        Args:
            timeout: In seconds; None for no limit.

        Returns:
            The ids of the processes that have ended since this was called last.
        """
        if self._pumping_here and self.streams is not None:
            self.streams.pump_here(THREADLESS_STEP_S if timeout is None else min(timeout, THREADLESS_STEP_S))
            timeout = 0
        taken = signals.take(timeout)
        if taken is not None and taken.si_signo != signals.CHILD_ENDED:
            self._received(taken.si_signo, taken.si_code, taken.si_pid)
        self._reap()
        ended, self._ended = self._ended, set()
        return ended

    def _until_next_timer(self) -> float | None:
        pause = self.timers.pause_s()
        waits = [] if pause is None else [pause]
        if self._job.terminal is not None:
            waits.append(self._job.terminal.look_again_s())
        return min(waits, default=None)

    def _mind_time(self) -> None:
        now = time.monotonic()
        if self.timers.take("timeout"):
            self.timed_out = True
            self.end("timeout", after_s=self.told.duration("run.timeout"))
        if self.timers.take("kill"):
            self._deliver(_signal.SIGKILL)
            if self.ended_for_hang is not None:
                # What waits in the kernel for a dead file server takes no signal: then nobody would hear of it.
                self.timers.set("unkillable", time.monotonic() + UNKILLABLE_S)
        if self.timers.take("collect"):
            from gpualert.supervisor import collector  # noqa: PLC0415  (not for commands that end at once)

            collector.start(self)
        if self.timers.take("unkillable"):
            self.tell("hang")
        for kind in ("started", "progress"):
            if self.timers.take(kind):
                self.tell(kind)
                if kind == "progress":
                    self._expect_progress(now)
        self.timers.drop("look")
        if self.timers.take("continue") and self._job.still_stopped:
            self._deliver(_signal.SIGCONT)
        if self._job.terminal is not None:
            self._job.terminal.look_around()

    def end(self, reason: str, **fields: object) -> None:
        """End the child: a request now, force after a while.

        Args:
            reason: What the journal calls it.
            fields: What it says of it.
        """
        self.timers.set_earlier("kill", time.monotonic() + (self.told.duration("run.kill_after") or 0))
        if self.scribe is not None:
            self.scribe.post(reason, **fields)
        self._deliver(_signal.SIGTERM)
        self._deliver(_signal.SIGCONT)  # a stopped process would not see it

    def _deliver(self, number: int) -> bool:
        if self.ending is not None or not self.child:
            return False
        return signals.send(self.child, number, group=self._own_group)

    def _received(self, number: int, code: int, sender: int) -> None:
        """A signal was sent to us."""
        if number == _signal.SIGCONT and self._job.suspended:
            # Whoever continues a job at a terminal continues all of it: only a child that stays stopped needs ours.
            self.timers.set("continue", time.monotonic() + 0.05)
            if self._job.resume(self.child, own_group=self._own_group):
                self._deliver(_signal.SIGCONT)
            return
        if self._job.terminal is not None and number == _signal.SIGWINCH:
            self._job.terminal.copy_size()
            return
        leader = posix.getpid() == posix.getsid(0)
        wanted = signals.Forward(own_group=self._own_group, session_leader=leader).wanted(number, code)
        delivered = wanted and self._deliver(number)
        if number in signals.SUSPEND_SIGNALS:
            self._job.ask()
        if self.scribe is None:
            return
        if number in signals.STOP_SIGNALS:
            self.stopped_at = time.monotonic()
            self.stopped_by = self.stopped_by or number
            if self.message is not None and self.ending is None:
                self.message.stopping(number, now_us())
                self.scribe.hurry_message()
        if number in (_signal.SIGWINCH, _signal.SIGCONT):
            return
        if self.ending is None and (delivered or not wanted):
            self.forwarded.append(number)
        self.scribe.post("signal", signal=number, name=signals.name(number), sender=sender, forwarded=delivered)

    def _reap(self) -> None:
        """Take the status of every process that has ended: the child, and orphans that fell to us."""
        while True:
            try:
                pid, code, usage = reap.next_change()
            except ChildProcessError:
                self._look_for_lost_child()
                return
            if not pid:
                self._look_whether_lost()
                break
            if pid != (self._job.terminal.monitor if self._job.terminal is not None else self.child):
                if not posix.WIFSTOPPED(code) and not posix.WIFCONTINUED(code):
                    self._ended.add(pid)
                    self.sweeper = 0 if pid == self.sweeper else self.sweeper
                    if self.collector is not None:
                        self.collector.ended(pid, self)
            elif posix.WIFSTOPPED(code) or posix.WIFCONTINUED(code):
                self._job.child_changed(code)
            elif self.ending is None:
                self._last_status(pid, code, usage)
        if self.ending is None:
            self._note_stop(stopped=self._job.look())
            self._job.follow(self.child)

    def _note_stop(self, *, stopped: bool) -> None:
        """Put it into the journal when the child has stopped or continued; before we stop ourselves."""
        if stopped != self._stopped and self.scribe is not None:
            self.scribe.post("stopped" if stopped else "continued")
        self._stopped = stopped

    def _look_for_lost_child(self) -> None:
        """We have no process left to wait for: the child is somebody else's now, and only its end can be seen."""
        if self.ending is not None or not self.child:
            return
        if signals.is_there(self.child):
            self.timers.set("look", time.monotonic() + LOOK_AGAIN_S)
        else:
            self._child_ended(Ending(CALLED_WRONGLY), None)

    def _look_whether_lost(self) -> None:
        """With processes of our own to wait for, the kernel does not tell that the child is not among them.

        A child that has ended stays a zombie until we take its status; that of a pseudo-terminal is its monitor's.
        """
        ours = self._job.terminal is None and self.collector is not None and self.collector.pid
        if ours and self.child and not signals.is_there(self.child):
            self._look_for_lost_child()

    def _last_status(self, pid: int, code: int, usage: reap.Usage | None) -> None:
        """The child, or the monitor of its pseudo-terminal, has ended."""
        if self._job.terminal is None or pid == self.child or self.launch_error is not None:
            self._child_ended(Ending.from_wait(code), usage)
            return
        ending = self._job.terminal.ending()
        if ending is not None:
            self._child_ended(ending, usage)

    def _child_ended(self, ending: Ending, usage: reap.Usage | None) -> None:
        if self.launch_error is not None:
            ending = Ending(self.launch_error.status)
        self.ending = ending
        self.usage = usage
        self.ended_us, self.ended_at = now_us(), time.monotonic()
        self.timers.clear()
        if self.collector is not None:
            self.collector.finish(self.journal.log)
        if self.scribe is not None and self.launch_error is None:
            self.scribe.post("exited", exit_code=ending.exit_code, signal=ending.signal)

    def tell(self, kind: str, *more: str) -> None:
        """Have somebody told how the run is doing, by a process of its own that nobody waits for.

        Args:
            kind: ``started``, ``progress``, ``group``, ``hang`` or ``hang-over``.
            more: Further arguments.
        """
        if self.journal.directory is None:
            return
        from gpualert.supervisor import reporter  # noqa: PLC0415  (only where it is wanted)

        try:
            reporter.start_process("report.running", [*map(launch.raw, (self.journal.directory.path, kind, *more))])
        except (launch.ForkError, launch.LaunchError, OSError) as error:
            self.trouble.report(f"cannot tell how the run is doing ({error})")

    # -- when it has ended ---------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Drain, deal with leftovers, write ``exit.json``, and have it reported."""
        from gpualert.supervisor import conclusion, drain, orphans  # noqa: PLC0415

        drain.drain(self)
        grace = self.told.duration("run.orphan_grace") or 0
        if grace:
            orphans.end_leftovers(grace, self.pause, self.collector.pid if self.collector is not None else 0)
        conclusion.conclude(self)

    def failed(self, error: Exception) -> None:
        """Something in here is wrong: say so; the child's status is returned all the same."""
        try:
            self.trouble.report(
                f"a fault inside gpualert ({type(error).__name__}: {error}): the command is not affected"
            )
            if self.ending is None and not self.streams_started():
                self._start_threads()
        except Exception:  # noqa: BLE001  (there is nothing left to do about it)
            return

    def streams_started(self) -> bool:
        """Whether somebody pumps what the child writes."""
        return self.streams is None or bool(self.streams.readers)

    def stopped_before_end_s(self) -> float | None:
        """How long before the end the last stop signal came, in seconds; None when none did."""
        return max(self.ended_at - self.stopped_at, 0.0) if self.stopped_at else None

    def ended_rfc3339(self) -> str:
        """When the child ended."""
        return rfc3339(self.ended_us)


def _load_the_rest() -> None:
    """Load what is needed later, while the disk works: at the end of a long run the files may be of another version."""
    from gpualert.supervisor import chores, conclusion, drain, fallback, jobcontrol, orphans, scribe, streams  # noqa: F401, PLC0415
