"""The sweep: closes and reports the runs of a log directory whose supervisor died, each once."""

from __future__ import annotations

import os
import signal
import sys
import time

from gpualert import config
from gpualert.report import making
from gpualert.rundir import survivor
from gpualert.rundir.reader import Run

DEADLINE_S = 60.0
PER_RUN_S = 20.0


def close_and_report(path: str, deadline: float) -> bool:
    """Close one run whose supervisor died, and report it.

    Args:
        path: The run directory.
        deadline: When to be done, on the monotonic clock.

    Returns:
        Whether it was ours to close; somebody else may have been quicker.

    Raises:
        OSError: The run directory cannot be written.
    """
    with survivor.closing(path) as ours:
        if not ours:
            return False
        log = making.logger(path)
        run = survivor.close(Run.read(path))
        settings = making.settings_of(run, log)
        mask = making.redaction(settings)
        made = making.make(run, settings, mask, log)
        # The report comes last: whoever finds none goes on from here, so a mail may come twice, but never not at all.
        with making.step(log, "notify"):
            making.notify(path, made, settings, mask, min(deadline, time.monotonic() + PER_RUN_S), lambda _text: None)
        making.write(path, made)
        survivor.mark_closed(path)
        return True


def send_waiting(log_directory: str) -> None:
    """Send the spooled mails of a log directory whose time has come.

    Args:
        log_directory: Where run directories are kept.
    """
    from gpualert.notify import delivery, spool  # noqa: PLC0415  (email and smtplib are slow to import)

    settings, _ = config.load()
    if settings.smtp.host is not None:
        server = delivery.Server.from_settings(settings)
        spool.retry(log_directory, server, time.monotonic() + DEADLINE_S, settings.email.keep)


def sweep(log_directory: str) -> None:
    """Close and report every run of a log directory whose supervisor died.

    Args:
        log_directory: Where run directories are kept.
    """
    deadline = time.monotonic() + DEADLINE_S
    for path in survivor.find_interrupted(log_directory):
        try:
            close_and_report(path, deadline)
        except OSError as error:
            print(f"cannot close {path}: {error}", file=sys.stderr)
        if time.monotonic() >= deadline:
            return


def main() -> None:
    """A process of its own, started by a supervisor that has seen such runs."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sweep(sys.argv[1])
    os._exit(0)


if __name__ == "__main__":
    main()
