"""The end of a run: ``exit.json``, the report, the termination message, and what is said on stderr."""

from __future__ import annotations

import posix
import time

from gpualert.rundir import jsontext
from gpualert.rundir.assembly import NAME as LOG_NAME
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.rundir.writer import EXIT, REPORT, SCHEMA, TOLD
from gpualert.supervisor import launch, message, quiet, reporter, signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.rundir.writer import RunDirectory
    from gpualert.supervisor.supervision import Supervision

DISK_PATIENCE_S = 10.0
STOP_WINDOW_S = 600.0
SWEEP_PATIENCE_S = 5.0


def conclude(run: Supervision) -> None:
    """Everything after the child's end and the drain.

    Args:
        run: The run.
    """
    scribe, ending = run.scribe, run.ending
    if scribe is None or ending is None:
        return
    facts: dict[str, object] = {}
    unreported: list[bool] = []
    verdict = _verdict(run)

    first_place = run.journal.directory.path if run.journal.directory is not None else ""

    def last() -> None:
        facts.update(_exit_facts(run))
        if not _write_exit(run, facts):
            _move_out(run, facts)
        if verdict.cls == "success" and _may_go_unreported(run):
            _write_quiet_report(run, facts, verdict)
            unreported.append(True)

    if not scribe.finish(last, DISK_PATIENCE_S):
        run.trouble.report(f"the disk did not answer within {DISK_PATIENCE_S:g} s: exit.json may be missing")
    if run.sweep_wanted:
        start_sweep(run)
    _leave_group(run, facts)
    done = b"" if unreported or run.journal.directory is None else _report(run)
    if run.collector is not None:
        run.collector.wait(run.pause)
    if run.journal.directory is not None and (unreported or reporter.TOLD in done):
        _close(run.journal.directory, first_place)
    if run.message is not None and reporter.MESSAGE_WRITTEN not in done:
        try:
            run.message.plain(verdict, run.journal.directory.path if run.journal.directory else None)
        except OSError as error:
            run.trouble.report(f"cannot write the termination message {run.message.path} ({error.strerror})")
    if verdict.cls != "success" and reporter.SHOWN not in done:
        _show(run, verdict)
    if posix.getpid() == 1:
        _let_sweep_end(run)


def _close(directory: RunDirectory, first_place: str) -> None:
    """The run is reported: no survivor shall do it again, nor where it was before its volume failed."""
    if directory.path != first_place:
        try:
            posix.close(posix.open(f"{first_place}/{TOLD}", posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o640))
        except OSError:
            pass  # the volume takes nothing at all; should it come back, the run is told of twice
    directory.mark_closed()


def _leave_group(run: Supervision, facts: dict[str, object]) -> None:
    """Tell the other ranks how this one ended; where that is not possible it is told of on its own."""
    if run.membership is None:
        return
    ending = {key: facts.get(key) for key in ("exit_code", "signal", "ended_at", "duration_s", "last_output_at")}
    if not run.membership.ended(ending):
        run.membership = None


def _stopped_lately(run: Supervision) -> bool:
    """Whether a stop signal came so late that the end may be its doing; one that was ignored long ago is not."""
    before = run.stopped_before_end_s()
    return before is not None and before <= STOP_WINDOW_S


def _verdict(run: Supervision) -> message.Verdict:
    if run.ending is None or run.scribe is None:
        raise ValueError("the child has not ended")
    counters = _counters(run)
    killed = counters["oom_kill"] if counters else 0
    return message.Verdict(
        run.ending,
        launch_error=run.launch_error.message if run.launch_error else None,
        stopped_by=run.stopped_by if _stopped_lately(run) else None,
        timeout_s=run.told.duration("run.timeout") if run.timed_out else None,
        killed=killed if isinstance(killed, int) else 0,
        hang=run.ended_for_hang["why"] if run.ended_for_hang else None,
    )


def _counters(run: Supervision) -> dict[str, object] | None:
    """The control group's counters over this run."""
    scribe = run.scribe
    if scribe is None or scribe.sample is None or scribe.sample.current is None:
        return None
    before, after = scribe.first, scribe.sample
    return {
        "oom_kill": max((after.oom_kill or 0) - (before.oom_kill or 0), 0),
        "memory_peak": after.peak,
        "memory_limit": after.limit,
        "memory_last": after.working_set,
        "pids_max_events": max((after.pids_max_events or 0) - (before.pids_max_events or 0), 0),
        "limit_hits": max((after.limit_hits or 0) - (before.limit_hits or 0), 0),
        "shm_used": after.shm_used,
        "shm_size": after.shm_size,
        "shm_peak": scribe.shm_peak,
    }


def _exit_facts(run: Supervision) -> dict[str, object]:
    """What ``exit.json`` holds; closes the log."""
    ending, log, error = run.ending, run.journal.log, run.launch_error
    if ending is None:
        return {}
    dropped = 0
    if log is not None and run.journal.lock.acquire(timeout=DISK_PATIENCE_S):
        try:
            if not ending.success:
                log.sync()  # a success is not worth the wait for its last seconds of log
            dropped = log.close()
        finally:
            run.journal.lock.release()
        if log.trouble:
            run.trouble.report(log.trouble)
    user, system, peak = run.usage or (None, None, None)
    return {
        "schema": SCHEMA,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "signal_name": signals.name(ending.signal) if ending.signal else None,
        "core_dumped": ending.core_dumped,
        "launch_error": {"errno": error.errno, "message": error.message} if error else None,
        "ended_at": run.ended_rfc3339(),
        "duration_s": run.ended_at - run.launched_at,
        "last_output_at": rfc3339(log.last_at) if log is not None and log.last_at else None,
        "rusage": {"user_s": user, "system_s": system, "max_rss_bytes": peak},
        "forwarded": run.forwarded,
        "stopped_before_end_s": run.stopped_before_end_s(),
        "timed_out": run.timed_out,
        "timeout_s": run.told.duration("run.timeout") if run.timed_out else None,
        "hang": run.ended_for_hang,
        "cgroup": _counters(run),
        "log_bytes": log.total if log is not None else None,
        "truncated": bool(dropped),
        "gap": {"bytes": dropped} if dropped else None,
        "log_continued_in": log.continued_in or None if log is not None else None,
        "trouble": run.trouble.lines,
        "interrupted": False,
    }


def _write_exit(run: Supervision, facts: dict[str, object]) -> bool:
    """Write ``exit.json``; False when the volume has not taken it, or not all of the log."""
    directory, log = run.journal.directory, run.journal.log
    if directory is None:
        return True
    try:
        # A success is not worth a wait for the disk: should the node crash now, the run would be reported as lost.
        directory.write_json(EXIT, facts, durable=facts["exit_code"] != 0)
    except OSError as error:
        run.trouble.report(f"cannot write {directory.path}/{EXIT} ({error.strerror})")
        return False
    return log is None or not log.incomplete


def _move_out(run: Supervision, facts: dict[str, object]) -> None:
    """Go on in a temporary directory, so that a failed volume costs no report."""
    from gpualert.rundir import location, refuge  # noqa: PLC0415  (only where it is wanted)

    directory, log = run.journal.directory, run.journal.log
    if directory is None:
        return
    try:
        place = (log.continued_in if log is not None else "") or location.temporary(run.environment)
        directory.move(refuge.move_out(directory.path, place, directory.run_id, run.journal.facts, facts))
    except OSError as error:
        run.trouble.report(f"no place for the report either ({error.strerror})")


def _may_go_unreported(run: Supervision) -> bool:
    """Whether a success is a plain one: nobody wants mail of it, and its log holds nothing to look at."""
    counters = _counters(run)
    alarmed = (counters is not None and counters["oom_kill"]) or run.trouble.lines or run.forwarded
    if alarmed or run.journal.directory is None or run.told.text("notify.when") == "always":
        return False
    if run.told.text("telemetry.textfile") or run.told.text("telemetry.otlp"):
        return False  # who keeps figures wants the end of each run
    if run.told.switch("dry_run") or (run.membership is not None and run.membership.somebody_failed()):
        return False
    if run.ended_for_hang is not None:
        return False
    if run.collector is not None:
        run.collector.look()  # it may have heard of something a moment ago
        if run.collector.broken:
            return False
    path = f"{run.journal.directory.path}/{LOG_NAME}"
    watch = run.scribe.watch if run.scribe is not None else None
    return (watch or quiet.Watch(path)).is_quiet()


def _write_quiet_report(run: Supervision, facts: dict[str, object], verdict: message.Verdict) -> None:
    """``report.json`` of a plain success, without starting the reporter for it."""
    directory = run.journal.directory
    if directory is None:
        return
    diagnosis = {
        "class": verdict.cls,
        "family": verdict.family,
        "confidence": 1.0,
        "summary": verdict.summary,
        "root": None,
        "evidence": [],
        "suggestions": [],
        "retryable": False,
        "node_suspect": False,
    }
    report = {
        "schema": SCHEMA,
        "run": run.journal.facts,
        "exit": facts,
        "diagnosis": diagnosis,
        "artifacts": [],
        "notifications": [],
        "trouble": run.trouble.lines,
        "made_at": rfc3339(now_us()),
        "gpualert": run.journal.facts["gpualert"],
    }
    try:
        # Not synced: it can be made again from exit.json.
        fd = posix.open(f"{directory.path}/{REPORT}", posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o640)
        posix.write(fd, jsontext.dumps(report).encode() + b"\n")
        posix.close(fd)
    except OSError as error:
        run.trouble.report(f"cannot write {directory.path}/{REPORT} ({error.strerror})")


def _report(run: Supervision) -> bytes:
    """Have the reporter work; what it got done."""
    directory = run.journal.directory
    if directory is None:
        return b""
    limit = run.told.duration("report.deadline") or 0

    def deadline() -> float:
        until = run.ended_at + limit
        if _stopped_lately(run):
            until = min(until, max(run.stopped_at, run.ended_at) + reporter.DEADLINE_AFTER_STOP_S)
        return until

    arguments = [b"--deadline", b"%.3f" % max(deadline() - time.monotonic(), 0)]
    if run.message is not None:
        arguments += [b"--termination-log", launch.raw(run.message.path), b"--own-bytes", b"%d" % _own_bytes(run)]
    if run.membership is not None:
        arguments += [b"--group", launch.raw(run.membership.directory)]
    if run.streams is not None and not (run.ending and run.ending.success):
        run.streams.end_line()
    receiver = run.told.text("telemetry.otlp")
    if receiver:
        posix.putenv(b"GPUALERT_OTLP", launch.raw(receiver))  # run.json has no URL with a password in it
    try:
        started = reporter.Reporter(directory.path, arguments, run.closed)
    except (launch.ForkError, launch.LaunchError, OSError) as error:
        run.trouble.report(f"cannot start the reporter ({error}): {_command(run, directory.path)} makes the report")
        return b""
    in_time = started.wait(deadline, lambda: run.pause(min(max(deadline() - time.monotonic(), 0.001), 1.0)))
    if not in_time:
        late = f"the report was not ready within {deadline() - run.ended_at:.0f} s"
        run.trouble.report(f"{late}: {_command(run, directory.path)}")
    elif reporter.REPORTED not in started.done:
        run.trouble.report(f"the reporter failed, see {directory.path}/reporter.log")
    return started.done


def _command(run: Supervision, directory: str) -> str:
    """What to type to have the run reported later."""
    from gpualert.rundir import location  # noqa: PLC0415  (only where it is wanted)

    return location.report_command(directory, run.environment)


def _own_bytes(run: Supervision) -> int:
    """How much of the termination message is the command's own."""
    if run.message is None or run.journal.log is None:
        return 0
    log = run.journal.log
    try:
        run.message.refresh(log.last_at, log.last, run.scribe.sample if run.scribe else None)
    except OSError:
        return 0
    return run.message.own_bytes


def _show(run: Supervision, verdict: message.Verdict) -> None:
    """The plain words for a person, when the reporter has said nothing."""
    run._say(f"gpualert: {verdict.cls}: {verdict.summary} ({verdict.how})\n")
    if run.journal.directory is not None:
        run._say(f"gpualert:   kept in {run.journal.directory.path}\n")


def _let_sweep_end(run: Supervision) -> None:
    """As PID 1 we take every process with us: give the sweep a moment."""
    until = time.monotonic() + SWEEP_PATIENCE_S
    while run.sweeper and time.monotonic() < until:
        run.pause(until - time.monotonic())


def start_sweep(run: Supervision) -> None:
    """Have runs closed whose supervisor died; by a process of its own that nobody waits for."""
    run.sweep_wanted = False
    if run.journal.directory is None:
        return
    parent = run.journal.directory.path.rpartition("/")[0]
    try:
        run.sweeper = reporter.start_process("report.sweep", [launch.raw(parent)])
    except (launch.ForkError, launch.LaunchError, OSError):
        return  # the next run, or gpualert report, does it
