"""The run directory of this run: made and synced before the launch, wherever it can be."""

from __future__ import annotations

import _thread
import errno

from gpualert.rundir import location
from gpualert.rundir.logfile import OutputLog
from gpualert.rundir.writer import RunDirectory, new_run_id
from gpualert.supervisor import facts as run_facts
from gpualert.supervisor.pump import Signal

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

    __slots__ = ("directory", "facts", "lock", "log", "troubles")

    def __init__(self) -> None:
        self.directory: RunDirectory | None = None
        self.log: OutputLog | None = None
        self.lock = _thread.allocate_lock()
        self.facts: dict[str, object] = {}
        self.troubles: list[str] = []

    def open(
        self,
        settings: Settings,
        environment: Mapping[bytes, bytes],
        collect: Callable[[str], dict[str, object]],
        started_us: int,
    ) -> None:
        """Make the run directory: where it was asked for, else where it usually is, else in a temporary one.

        Args:
            settings: What ``gpualert run`` was told.
            environment: Variables and values.
            collect: The facts of a run with a given id.
            started_us: When we started, in microseconds since 1970.
        """
        name = run_facts.name_of(settings, run_facts.Environment(environment))
        run_id = new_run_id(started_us, name)
        self.facts = collect(run_id)
        asked = settings.text("log.dir")
        failure = ""
        for parent in [asked] if asked else location.defaults(environment):
            problem = self._try(parent, settings, environment)
            if not problem:
                return
            failure = f"cannot write {parent} ({problem})"
        try:
            parent = location.temporary(environment)
            problem = self._try(parent, settings, environment)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            self.troubles.append(f"{failure}, nor a temporary directory ({problem}): this run is not recorded")
        else:
            self.troubles.append(f"{failure}: keeping the log in {parent}")

    def _try(self, parent: str, settings: Settings, environment: Mapping[bytes, bytes]) -> str:
        """Make everything in one log directory; what is wrong with it, or nothing.

        In a thread, since a dead network volume answers nobody, and the command must start all the same.
        """
        made: list[tuple[RunDirectory, OutputLog]] = []
        problems: list[str] = []
        finished = Signal()
        given_up: list[bool] = []

        def make() -> None:
            try:
                where = location.absolute(parent)
                directory = _make(where, self.facts, str(self.facts["run_id"]))
                if given_up:
                    directory.abandon()
                    return
                log = OutputLog(directory.path, settings.size("log.max_bytes"), lambda: location.temporary(environment))
                made.append((directory, log))
            except OSError as error:
                problems.append(error.strerror or str(error))
            except Exception as error:  # noqa: BLE001  (a fault in here must not stop the command)
                problems.append(f"a fault inside gpualert: {error}")
            finished.give()

        try:
            _thread.start_new_thread(make, ())
        except RuntimeError:
            make()
        if not finished.wait(PATIENCE_S):
            given_up.append(True)
            return f"no answer within {PATIENCE_S:g} s"
        if problems:
            return problems[0]
        self.directory, self.log = made[0]
        return ""


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
