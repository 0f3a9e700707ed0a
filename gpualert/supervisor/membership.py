"""A rank's place in the directory that the ranks of a job share: it is here, it lives, it has ended.

``<group-dir>/<group>/<attempt>/rank-00003.json`` says who the rank is; its modification time is the heartbeat, by the
file server's clock. ``rank-00003.end`` says how it ended, ``failed`` who failed first. What is made of them is the
reporter's business (``gpualert.group``). All of it is done in a thread of its own: a shared file system may hang.
"""

from __future__ import annotations

import _thread
import posix
import time

from gpualert.rundir import jsontext, location
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.rundir.writer import make_directories, replace_file
from gpualert.supervisor import signals
from gpualert.supervisor.pump import Wakeup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.supervisor.supervision import Supervision
    from gpualert.supervisor.trouble import Trouble

BEAT_EVERY_S = 5.0
ENDED_PATIENCE_S = 3.0
FAILED = "failed"
TURNED = "turned"
"""Made in a group's directory by the one who turns it over, because it is that of an earlier run."""
DIRECTORY_MODE = 0o755
REGISTERED = (
    "run_id", "name", "rank", "local_rank", "world_size", "node", "host", "pid", "started_at", "launcher", "group",
    "attempt", "namespace", "job", "slurm_job_id", "gpus", "options", "cwd", "boot_id", "pid_start", "pid_ns",
)  # fmt: skip


def name_of(rank: int) -> str:
    """``rank-00003`` for 3: the start of the names of a rank's files."""
    return f"rank-{rank:05d}"


class Membership:
    """This rank's membership.

    Attributes:
        directory: The group's directory.
        due: The group has failed and stood still so long that a rank that lives must tell of it.
    """

    def __init__(
        self, parent: str, facts: dict[str, object], run_directory: str, settle_s: float, trouble: Trouble
    ) -> None:
        """Nothing is written yet.

        Args:
            parent: The directory that the ranks share.
            facts: What ``run.json`` holds; ``group`` and ``rank`` must be known.
            run_directory: Where the run is kept.
            settle_s: How long after the first failure a rank that lives waits for the others, in seconds.
            trouble: Says what goes wrong.
        """
        group, rank = facts["group"], facts["rank"]
        if not isinstance(group, str) or not isinstance(rank, int):
            raise TypeError("group and rank must be known")
        attempt = facts["attempt"]
        self.directory = f"{parent}/{group}/{attempt if isinstance(attempt, int) else 0}"
        self.due = False
        self._base = f"{self.directory}/{name_of(rank)}"
        self._facts = facts
        self._run_directory = run_directory
        self._settle_s = settle_s
        self._trouble = trouble
        self._wake: Callable[[], None] = _nothing
        self._registered = False
        self._told = False
        self._ending: dict[str, object] | None = None
        self._wanted, self._finished = Wakeup(), Wakeup()

    def start(self, wake: Callable[[], None]) -> None:
        """Take the place, and keep it.

        Args:
            wake: Called when ``due`` has become true.

        Raises:
            RuntimeError: No thread can be made.
        """
        self._wake = wake
        _thread.start_new_thread(self._run, ())

    def ended(self, ending: dict[str, object]) -> bool:
        """Say how the rank ended.

        Args:
            ending: ``exit_code``, ``signal`` and ``ended_at``.

        Returns:
            Whether that is written; False when the shared directory cannot be used, or does not answer.
        """
        self._ending = ending
        self._wanted.give()
        return self._finished.wait(ENDED_PATIENCE_S) and self._registered

    def somebody_failed(self) -> bool:
        """Whether a rank of the group has failed."""
        return _mtime(f"{self.directory}/{FAILED}") is not None

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._register()
            self._registered = True
            while self._ending is None:
                self._wanted.wait(BEAT_EVERY_S)
                if self._ending is None:
                    self._beat()
            self._write_end(self._ending)
        except OSError as error:
            self._registered = False
            reason = error.strerror or "an error"
            self._trouble.report(f"cannot write {self.directory} ({reason}): this rank is told of on its own")
        except Exception as error:  # noqa: BLE001  (a fault in here must not stop anything else)
            self._registered = False
            self._trouble.report(f"a fault inside gpualert ({type(error).__name__}: {error}): told of on its own")
        finally:
            self._finished.give()

    def _register(self) -> None:
        if _mtime(self._base + ".json") is not None:
            self._turn_over()
        make_directories(self.directory, DIRECTORY_MODE)
        told = {key: self._facts.get(key) for key in REGISTERED}
        told |= {"directory": self._run_directory, "at": rfc3339(now_us())}
        replace_file(self._base + ".json", jsontext.dumps(told).encode(), durable=False)

    def _turn_over(self) -> None:
        """We are in it already: it is that of an earlier run, and makes room; one of us moves it away."""
        mark, aside = f"{self.directory}/{TURNED}", f"{self.directory}.{now_us()}"
        for _ in range(50):
            try:
                posix.mkdir(mark)
            except FileNotFoundError:
                return  # it has been moved
            except FileExistsError:
                time.sleep(0.1)
                continue
            posix.rename(self.directory, aside)
            return
        posix.rename(self.directory, aside)  # whoever wanted to has died over it

    def _beat(self) -> None:
        try:
            posix.utime(self._base + ".json")
        except FileNotFoundError:
            return  # a later run has taken the group over
        failed, now = _mtime(f"{self.directory}/{FAILED}"), _mtime(self._base + ".json")
        if failed is not None and now is not None and now - failed >= self._settle_s and not self._told:
            self._told = self.due = True
            self._wake()

    def _write_end(self, ending: dict[str, object]) -> None:
        told = {**ending, "at": rfc3339(now_us())}
        replace_file(self._base + ".end", jsontext.dumps(told).encode(), durable=False)
        if ending.get("exit_code") == 0:
            return
        try:
            fd = posix.open(
                f"{self.directory}/{FAILED}", posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o644
            )
        except FileExistsError:
            return
        posix.write(fd, f"{self._facts['run_id']}\n".encode("utf-8", "replace"))
        posix.close(fd)


def _nothing() -> None:
    return


def _mtime(path: str) -> float | None:
    try:
        return posix.stat(path).st_mtime
    except OSError:
        return None


def join(run: Supervision) -> None:
    """Take a run's place in the directory that the ranks share.

    Args:
        run: The run.
    """
    directory, facts = run.journal.directory, run.journal.facts
    parent = run.told.text("group.dir") or ""
    if directory is None or facts.get("rank") is None or facts.get("group") is None:
        what = "rank" if facts.get("rank") is None else "job (GPUALERT_GROUP_ID)"
        run.trouble.report(f"--group-dir is ignored: no variable tells the {what}")
        return
    try:
        parent = location.absolute(parent)
    except OSError:
        pass  # somebody has removed the working directory
    main = _thread.get_ident()
    joined = Membership(parent, facts, directory.path, run.told.duration("group.settle") or 0, run.trouble)
    try:
        joined.start(lambda: signals.wake(main))
    except RuntimeError:
        return  # no thread is to be had
    run.membership = joined
