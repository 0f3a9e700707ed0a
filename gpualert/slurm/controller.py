"""Asking Slurm: the commands ``squeue``, ``scontrol`` and ``sacct``, each called as little as possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpualert.slurm import hostlist, record

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Sequence

    from gpualert.slurm.record import Node, Record

PATIENCE_S = 90.0
"""Slurm's commands try again for a while by themselves when slurmctld does not answer (MessageTimeout, 10 s, several
times)."""
NODES_MAX = 256
SCRIPT_MAX = 1 << 20
STOP_EVERY_S = 0.5
QUEUE_FORMAT = "%A|%F|%K|%i|%T|%r"
_UNKNOWN = "invalid job id"


class SlurmMissingError(Exception):
    """Slurm's commands are not here."""


class UnreachableError(Exception):
    """Slurm does not answer."""


@dataclass(frozen=True, slots=True)
class Queued:
    """One line of the queue.

    Attributes:
        number: The job's own number.
        array: The number of its array, else its own.
        tasks: The tasks of the array that the line is about; empty for a job that is none.
        label: As Slurm prints it: ``123``, ``123_4``, ``123+1``.
        state: The state.
        reason: Why it waits, or ended so.
    """

    number: int
    array: int
    tasks: frozenset[int]
    label: str
    state: str
    reason: str

    @property
    def job(self) -> int:
        """The number that a person names it by: the array's, the heterogeneous job's, or its own."""
        return int(self.label.partition("+")[0]) if "+" in self.label else self.array


def _environment() -> dict[str, str]:
    """Our environment without what changes how Slurm's commands answer, or whom they answer about."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_", "SCONTROL_"))}
    return {**ours, "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


class Controller:
    """Slurm as its commands show it.

    Args:
        stop: Set when nobody waits for an answer any more.

    Raises:
        SlurmMissingError: Its commands are not here.

    Attributes:
        without_accounting: Why sacct tells nothing; empty where it does, or was not asked yet.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        missing = [name for name in ("squeue", "scontrol") if shutil.which(name) is None]
        if missing:
            raise SlurmMissingError(
                f"{' and '.join(missing)} not found: run this where Slurm's commands are (a login node)"
            )
        self.without_accounting = "" if shutil.which("sacct") else "sacct is not found"

    def _call(self, *argv: str, stoppable: bool = False) -> tuple[int, str, str]:
        """A command's status, output and errors; given up when we are to stop, where nothing depends on its answer."""
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
            )
        except OSError as error:
            raise UnreachableError(f"{argv[0]} cannot be started ({error.strerror})") from None
        with process:
            until = time.monotonic() + PATIENCE_S
            while True:
                try:
                    text, error_text = process.communicate(timeout=STOP_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() < until and not (stoppable and self._stop.is_set()):
                        continue
                    process.kill()
                    process.communicate()
                    raise UnreachableError(f"{argv[0]} did not answer within {PATIENCE_S:.0f} s") from None
        return process.returncode, text.decode("utf-8", "replace"), error_text.decode("utf-8", "replace").strip()

    def queue(self, numbers: Iterable[int]) -> list[Queued]:
        """All that the queue says of some jobs, ended ones too while slurmctld remembers them.

        Args:
            numbers: Their numbers.

        Raises:
            UnreachableError: slurmctld does not answer.
        """
        listed = ",".join(str(number) for number in sorted(set(numbers)))
        code, text, error = self._call(
            "squeue", "-h", "-a", "-r", "-t", "all", "-j", listed, "-o", QUEUE_FORMAT, stoppable=True
        )
        if code and _UNKNOWN not in error.lower():
            raise UnreachableError(_short(error) or f"squeue ended with status {code}")
        return [entry for line in text.splitlines() if (entry := _queued(line)) is not None]

    def records(self, number: int) -> list[Record]:
        """What slurmctld knows of a job, its tasks or components; nothing where it knows none.

        Args:
            number: The job's number.

        Raises:
            UnreachableError: slurmctld does not answer.
        """
        code, text, error = self._call("scontrol", "show", "job", "-o", str(number), stoppable=True)
        if code and _UNKNOWN not in error.lower():
            raise UnreachableError(_short(error) or f"scontrol ended with status {code}")
        return record.jobs(text)

    def accounting(self, number: int) -> list[Record]:
        """What the accounting knows of a job; nothing where there is none, and ``without_accounting`` says why.

        Args:
            number: The job's number.
        """
        if self.without_accounting:
            return []
        try:
            code, text, error = self._call(
                "sacct", "-n", "--parsable2", "-j", str(number), "-o", ",".join(record.ACCOUNTED)
            )
        except UnreachableError as failure:
            code, text, error = 1, "", str(failure)
        if code:
            self.without_accounting = _short(error) or f"sacct ended with status {code}"
        return record.accounted(text)

    def nodes(self, names: Sequence[str]) -> list[Node]:
        """How nodes are; nothing where that cannot be learnt.

        Args:
            names: Their names.
        """
        if not names:
            return []
        try:
            _, text, _ = self._call("scontrol", "show", "node", "-o", ",".join(names[:NODES_MAX]))
        except UnreachableError:
            return []
        return record.node_list(text)

    def script(self, job: Record) -> str:
        """The batch script: as slurmctld has it (its owner and administrators may see it), else the file; may be empty.

        Args:
            job: The job.
        """
        try:
            code, text, _ = self._call("scontrol", "write", "batch_script", str(job.number), "-")
        except UnreachableError:
            code, text = 1, ""
        if code:
            try:
                with open(job.command.partition(" ")[0], encoding="utf-8", errors="replace") as file:
                    text = file.read(SCRIPT_MAX)
            except OSError:
                text = ""
        # The command of a job without a script may be any program.
        return text if text.startswith("#!") else ""


def _short(error: str) -> str:
    """The telling line of what a command said on stderr."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def _queued(line: str) -> Queued | None:
    cells = line.split("|", 5)
    if len(cells) < 6 or not cells[0].isdigit() or not cells[1].isdigit():
        return None
    try:
        tasks = hostlist.numbers(cells[2]) if cells[2][:1].isdigit() else frozenset[int]()
    except ValueError:
        tasks = frozenset()
    return Queued(int(cells[0]), int(cells[1]), tasks, cells[3], cells[4], cells[5])
