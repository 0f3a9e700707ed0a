"""The sweep: closes and reports the runs of a log directory whose supervisor died, each once."""

from __future__ import annotations

import os
import signal
import sys
import time

from gpualert import config
from gpualert.report import bare, making, wording
from gpualert.rundir import survivor
from gpualert.rundir.reader import Run

DEADLINE_S = 60.0
PER_RUN_S = 20.0


def close_and_report(path: str, deadline: float) -> bool:
    """Close one run whose supervisor or reporter died, and report it.

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
        made = None
        with making.step(log, "diagnose"):
            made = making.make(run, settings, mask, log)
        if made is None:
            made = bare.build(run, "the log could not be diagnosed", mask)
        making.recollect(run, made, settings, log)
        # The report comes last: whoever finds none goes on from here, so a mail may come twice, but never not at all.
        with survivor.telling(path), making.step(log, "notify"):
            until = min(deadline, time.monotonic() + PER_RUN_S)
            making.notify(path, made, settings, mask, until, lambda _text: None)
        making.write_again(path, made)
        survivor.settle(path)
        survivor.mark_closed(path)
        if settings.telemetry.textfile or settings.telemetry.otlp:
            from gpualert.report import export  # noqa: PLC0415  (only where it is wanted)

            with making.step(log, "export"):
                for trouble in export.finish(path, made, settings, deadline):
                    log.warning("export", trouble=trouble)
        return True


def send_waiting(log_directory: str) -> None:
    """Send the spooled mails of a log directory, and of our temporary ones, whose time has come.

    Args:
        log_directory: Where run directories are kept.
    """
    from gpualert.notify import delivery, spool  # noqa: PLC0415  (email and smtplib are slow to import)

    try:
        settings, _ = config.load()
        if settings.smtp.host is None:
            return
        server = delivery.Server.from_settings(settings)
        until = time.monotonic() + DEADLINE_S
        for result in spool.retry_all([log_directory], server, until, settings.email.keep):
            if result.outcome in ("failed", "expired", "broken"):
                _say_once(f"mail {result.outcome}: {result.path} ({result.detail})")
    except Exception as error:  # noqa: BLE001  (a survivor goes on whatever it meets)
        _say_once(f"cannot send what waits in {log_directory}: {error}")


def sweep(log_directory: str) -> None:
    """Close and report every run of a log directory whose supervisor died, or whose reporter did.

    Args:
        log_directory: Where run directories are kept.
    """
    deadline = time.monotonic() + DEADLINE_S
    for path in survivor.find_interrupted(log_directory):
        try:
            close_and_report(path, deadline)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with one run, the others are closed)
            _say_once(f"cannot close {path}: {error}")
        if time.monotonic() >= deadline:
            return


_said: set[str] = set()


def _say_once(text: str) -> None:
    """Say something on stderr; a survivor that looks every few seconds says the same only once."""
    if text not in _said:
        _said.add(text)
        print(f"gpualert: {wording.printable(text)}", file=sys.stderr, flush=True)


def main() -> None:
    """A process of its own, started by a supervisor that has seen such runs."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sweep(sys.argv[1])
    os._exit(0)


if __name__ == "__main__":
    main()
