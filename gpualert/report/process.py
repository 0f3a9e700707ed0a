"""The reporter: a process of its own with a deadline, started by the supervisor when the command has ended.

Each step stands alone: what goes wrong in one is logged, and the next is done all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpualert.report import bare, making, terminal, termination
from gpualert.rundir import survivor
from gpualert.rundir.reader import Run
from gpualert.rundir.termination import CONTAINER_LIMIT, TerminationLog, room
from gpualert.supervisor.reporter import GRACE_S
from gpualert.supervisor.trouble import PREFIX
from gpualert.telemetry import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpualert.config import Settings
    from gpualert.supervisor.redaction import Redaction

COLLECTOR_PATIENCE_S = 1.2
"""How long its last sample may take: it began when the command ended, while this process was still being loaded."""
TELLING_S = 4.0
"""How long before the deadline the diagnosis must have come, so that there is time to tell."""
MAIL_MARGIN_S = 1.6
"""How long before the deadline the mail must have gone, so that the words for a person still come."""


@dataclass(slots=True)
class Task:
    """What the supervisor wants.

    Attributes:
        directory: The run directory.
        deadline: When to be done, on the monotonic clock; comes nearer when the supervisor wants an end.
        termination_log: The termination message's file; None where there is none.
        own_bytes: How many bytes at its start are the command's own.
        group: The directory that this rank shares with the others; None where it is told of on its own.
        progress_fd: Where to tell which steps are done; -1 for nowhere.
    """

    directory: str
    deadline: float
    termination_log: str | None
    own_bytes: int
    progress_fd: int
    group: str | None = None


class HurryError(Exception):
    """The deadline is near: the step at work is given up, and what remains is done quickly."""


def parse(arguments: Sequence[str]) -> Task:
    """The task in the reporter's arguments."""
    parser = argparse.ArgumentParser(prog="gpualert reporter", allow_abbrev=False)
    parser.add_argument("directory")
    parser.add_argument("--deadline", type=float, default=20.0)
    parser.add_argument("--termination-log")
    parser.add_argument("--own-bytes", type=int, default=0)
    parser.add_argument("--progress-fd", type=int, default=-1)
    parser.add_argument("--group")
    told = parser.parse_args(arguments)
    until = time.monotonic() + told.deadline
    return Task(told.directory, until, told.termination_log, told.own_bytes, told.progress_fd, told.group)


def _containers() -> int | None:
    text = os.environ.get("GPUALERT_CONTAINERS", "")
    return int(text) if text.isdigit() and len(text) < 4 else None


def report(task: Task, say: Callable[[str], None], *, colour: bool) -> None:
    """Do everything for one run.

    Args:
        task: What the supervisor wants.
        say: Prints the words for a person.
        colour: They may be coloured.
    """
    with survivor.at_work(task.directory):
        _report(task, say, colour=colour)


def _report(task: Task, say: Callable[[str], None], *, colour: bool) -> None:
    log = making.logger(task.directory)
    with making.step(log, "wait for the collector"):
        record.wait_for_end(task.directory, COLLECTOR_PATIENCE_S)
    run = Run.read(task.directory)
    settings = making.settings_of(run, log)
    redaction = making.redaction(settings)
    made = _diagnosed(task, run, settings, redaction, log)
    making.recollect(run, made, settings, log, may_hold=task.group is None)
    with contextlib.ExitStack() as stack:
        with making.step(log, "begin to tell"):
            stack.enter_context(survivor.telling(task.directory))
        with making.step(log, "write"):
            making.write(task.directory, made)
            _tell(task, b"r")
        with making.step(log, "termination message"):
            if task.termination_log is not None:
                _write_message(task, made)
                _tell(task, b"t")
        saying = None
        with making.step(log, "tell the API server"):
            if os.environ.get("KUBERNETES_SERVICE_HOST"):
                from gpualert.cluster.podapi import Saying  # noqa: PLC0415  (only in a cluster)

                saying = Saying(made)
        outcome, told = "", False
        with making.step(log, "notify"):
            if task.group is None:
                outcome = making.notify(task.directory, made, settings, redaction, task.deadline - MAIL_MARGIN_S, say)
            else:
                outcome = _together(task, task.group, made, settings, redaction, say)
            told = True
        if told:
            with making.step(log, "have told"):
                stack.close()
                _tell(task, b"m")
        else:
            stack.pop_all()  # whoever comes next goes on from here
    with making.step(log, "show"):
        text = terminal.block(made, task.directory, outcome, colour=colour) + terminal.troubles(made)
        if text:
            say(text)
        _tell(task, b"p")
    if saying is not None:
        for trouble in saying.finish(task.deadline - MAIL_MARGIN_S / 2):
            log.info("API server", trouble=trouble)
    with making.step(log, "write again"):
        making.write_again(task.directory, made)
        survivor.settle(task.directory)
    if settings.telemetry.textfile or settings.telemetry.otlp:
        with making.step(log, "export"):
            _export(task, made, settings, say)
    with making.step(log, "send what others left"):
        if not any(told["outcome"] == "spooled" for told in made["notifications"]):
            making.retry_others(task.directory, settings, task.deadline - MAIL_MARGIN_S, log)
    log.info("done")


def _diagnosed(task: Task, run: Run, settings: Settings, redaction: Redaction, log: Any) -> dict[str, Any]:
    """The report; where the log cannot be diagnosed in time, or at all, one from the facts alone."""
    left = task.deadline - time.monotonic()
    why = "the log could not be diagnosed"
    with making.step(log, "diagnose"):
        # Our own alarm comes before the supervisor's signal, so that there is time for the mail.
        signal.setitimer(signal.ITIMER_REAL, max(left - min(TELLING_S, left * 0.4), 0.05))
        try:
            made = making.make(run, settings, redaction, log)
        except HurryError:
            why = "the log was not diagnosed in time (report.deadline)"
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return made
    return bare.build(run, why, redaction)


def _together(
    task: Task,
    directory: str,
    made: dict[str, Any],
    settings: Settings,
    mask: Redaction,
    say: Callable[[str], None],
) -> str:
    """Leave the telling to the group; where that cannot be, this rank is told of on its own."""
    from gpualert.group import members, together  # noqa: PLC0415  (only for ranks that share a directory)

    try:
        members.note(directory, made)
        return together.look(directory, settings, mask, task.deadline - MAIL_MARGIN_S, say).said
    except OSError as error:
        made["trouble"].append(f"cannot use {directory} ({error.strerror}): this rank is told of on its own")
        return making.notify(task.directory, made, settings, mask, task.deadline - MAIL_MARGIN_S, say)


def _export(task: Task, made: dict[str, Any], settings: Settings, say: Callable[[str], None]) -> None:
    """Tell those who keep figures of the end; what goes wrong with it is said and recorded."""
    from gpualert.report import export  # noqa: PLC0415  (only where it is wanted)

    trouble = export.finish(task.directory, made, settings, task.deadline - MAIL_MARGIN_S / 2)
    if trouble:
        say("".join(f"{PREFIX}{line}\n" for line in trouble))
        made["trouble"] += trouble
        making.write_again(task.directory, made)


def _tell(task: Task, step: bytes) -> None:
    if task.progress_fd >= 0:
        os.write(task.progress_fd, step)


def _write_message(task: Task, made: dict[str, Any]) -> None:
    if task.termination_log is None:
        return
    file = TerminationLog(task.termination_log, room(_containers()))
    file.resume(task.own_bytes)
    left = max(file.limit - task.own_bytes, CONTAINER_LIMIT // 2 if task.own_bytes else file.limit)
    file.write(termination.text(made, task.directory, min(left, file.limit)))


def main() -> None:
    """The reporter's whole life."""
    shown = os.dup(1)
    # What a library prints must not reach the job's stderr.
    os.dup2(2, 1)
    task = parse(sys.argv[1:])

    def hurry(number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            task.deadline = min(task.deadline, time.monotonic() + GRACE_S)
        raise HurryError("the supervisor wants the report to end")

    signal.signal(signal.SIGTERM, hurry)
    signal.signal(signal.SIGALRM, hurry)

    def say(text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(shown, data) :]

    report(task, say, colour=terminal.wants_colour(shown))
    sys.stdout.flush()
    os._exit(0)  # whatever threads a library has left behind


if __name__ == "__main__":
    main()
