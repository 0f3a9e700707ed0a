"""The run directory of this run: made and synced before the launch, wherever it can be."""

from __future__ import annotations

import _thread
import errno

from gpualert.rundir import location
from gpualert.rundir.assembly import INDEX
from gpualert.rundir.assembly import NAME as LOG
from gpualert.rundir.logfile import OutputLog
from gpualert.rundir.writer import RunDirectory, new_run_id
from gpualert.supervisor.pump import Wakeup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpualert.supervisor.settings import Settings

PATIENCE_S = 10.0
"""How long a log directory may take (a network volume whose server is away) before another is taken."""


class Journal:
    """Where this run is recorded.

    Attributes:
        directory: The run directory; None where none could be made.
        log: The output's log; None where there is none.
        lock: Guards the log.
        facts: What ``run.json`` holds.
        troubles: What went wrong on the way.
    """

    __slots__ = (
        "_attempt",
        "_candidates",
        "_environment",
        "_max_bytes",
        "_settled",
        "directory",
        "facts",
        "lock",
        "log",
        "troubles",
    )

    def __init__(self) -> None:
        self.directory: RunDirectory | None = None
        self.log: OutputLog | None = None
        self.lock = _thread.allocate_lock()
        self.facts: dict[str, object] = {}
        self.troubles: list[str] = []
        self._candidates: list[str] = []
        self._attempt: Attempt | None = None
        self._environment: Mapping[bytes, bytes] = {}
        self._max_bytes = 0
        self._settled = False

    def begin(
        self,
        settings: Settings,
        environment: Mapping[bytes, bytes],
        name: str,
        collect: Callable[[str], dict[str, object]],
        started_us: int,
    ) -> None:
        """Start making the run directory, where it was asked for, else where it usually is; ``settle`` waits for it.

        Args:
            settings: What ``gpualert run`` was told.
            environment: Variables and values.
            name: The run's name, with secrets masked: it becomes part of the directory's.
            collect: The facts of a run with a given id.
            started_us: When we started, in microseconds since 1970.
        """
        run_id = new_run_id(started_us, name)
        self.facts = collect(run_id)
        asked = settings.text("log.dir")
        self._candidates = [asked] if asked else location.defaults(environment)
        self._environment, self._max_bytes = environment, settings.size("log.max_bytes")
        self._attempt = Attempt(self._candidates[0], self) if self._candidates else None

    def settle(self) -> None:
        """Wait for the directory; where it cannot be made, make another, in the end a temporary one."""
        if self._settled:
            return
        self._settled = True
        failure = ""
        for number, parent in enumerate(self._candidates):
            attempt = self._attempt if number == 0 and self._attempt is not None else Attempt(parent, self)
            problem = attempt.settle(self)
            if not problem:
                return
            failure = f"cannot write {parent} ({problem})"
        parent = ""
        try:
            parent = location.temporary(self._environment)
            problem = Attempt(parent, self).settle(self)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            self.troubles.append(f"{failure}, nor a temporary directory ({problem}): this run is not recorded")
        else:
            self.troubles.append(f"{failure}: keeping the log in {parent}")

    def make(self, parent: str) -> tuple[RunDirectory, OutputLog]:
        """Make everything in one log directory, and sync it.

        Args:
            parent: The log directory.

        Raises:
            OSError: Something cannot be made.
        """
        directory = _make(location.absolute(parent), self.facts, str(self.facts["run_id"]))
        try:
            log = OutputLog(directory.path, self._max_bytes, lambda: location.temporary(self._environment))
            directory.sync()
        except OSError:
            directory.abandon(LOG, INDEX)
            raise
        return directory, log


class Attempt:
    """One log directory being tried, in a thread: a dead network volume answers nobody, and the command must start."""

    __slots__ = ("_finished", "_given_up", "_made", "_problem")

    def __init__(self, parent: str, journal: Journal) -> None:
        """Start.

        Args:
            parent: The log directory.
            journal: What to make in it.
        """
        self._made: tuple[RunDirectory, OutputLog] | None = None
        self._problem = ""
        self._given_up = False
        self._finished = Wakeup()
        try:
            _thread.start_new_thread(self._make, (parent, journal))
        except RuntimeError:
            self._make(parent, journal)

    def _make(self, parent: str, journal: Journal) -> None:
        try:
            self._made = journal.make(parent)
            if self._given_up:
                self._made[0].abandon(LOG, INDEX)
        except OSError as error:
            self._problem = error.strerror or str(error)
        except Exception as error:  # noqa: BLE001  (a fault in here must not stop the command)
            self._problem = f"a fault inside gpualert: {error}"
        self._finished.give()

    def settle(self, journal: Journal) -> str:
        """Wait for the end.

        Args:
            journal: Gets what was made.

        Returns:
            What is wrong with that log directory; empty when all is made.
        """
        if not self._finished.wait(PATIENCE_S):
            self._given_up = True
            return f"no answer within {PATIENCE_S:g} s"
        if self._made is not None:
            journal.directory, journal.log = self._made
        return self._problem


def _make(parent: str, facts: dict[str, object], run_id: str) -> RunDirectory:
    """Make the run directory; should its name be taken, another.

    Raises:
        OSError: It cannot be made.
    """
    for _ in range(8):
        try:
            return RunDirectory(parent, run_id, facts)
        except FileExistsError:
            run_id = run_id[:-6] + new_run_id(0, "")[-6:]
            facts["run_id"] = run_id
    raise OSError(errno.EEXIST, "every name is taken")
