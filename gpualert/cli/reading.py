"""``gpualert report``, ``gpualert runs`` and ``gpualert logs``: looking at what has run."""

from __future__ import annotations

import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gpualert import config
from gpualert.cli import hanging
from gpualert.cli.output import Refused, format_option, harmless, json_text, print_json
from gpualert.progress import text as progress_text
from gpualert.report import hang, making, progress, scene, sweep, wording
from gpualert.rundir import index, reader, survivor
from gpualert.rundir.clock import rfc3339
from gpualert.telemetry import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpualert.rundir.reader import Run

log_dir_option = click.option(
    "--log-dir",
    metavar="DIR",
    envvar="GPUALERT_LOG_DIR",
    help="Where run directories are kept. Default: the usual places.",
)
FOLLOW_EVERY_S = 0.2
TAIL_LINES = 15
"""How many of the last lines are shown where none is decisive."""
SURVIVOR_DEADLINE_S = 20.0


def directories(log_dir: str | None) -> list[str]:
    """The log directories to look in: as asked for, as configured, else the usual ones."""
    if log_dir is None:
        log_dir = config.load()[0].log.dir
    return reader.log_directories(log_dir, dict(os.environ))


def find(name: str, log_dir: str | None) -> Run:
    """The run of that name.

    Raises:
        Refused: There is none, or more than one.
    """
    try:
        return reader.find(name, directories(log_dir))
    except reader.NoSuchRunError as error:
        raise Refused(str(error)) from None


@click.command()
@log_dir_option
@format_option
@click.option(
    "--again", is_flag=True, help="Make the report again, with the rules and settings of today; tells nobody."
)
@click.argument("run", default="latest")
def report(log_dir: str | None, form: str, again: bool, run: str) -> None:
    """Say why a run ended as it did.

    RUN is its id, the start of it, part of its name, a directory, or latest (the default). A run whose supervisor died
    with its job is closed, reported and mailed first, once.
    """
    found = find(run, log_dir)
    if survivor.is_open(found):
        if survivor.is_alive(found):
            if hang.goes_on(record.read(found.path)):
                hanging.show(found, form)
                return
            got_to = harmless(progress_text.phrase(progress.of(found, goes_on=True)))
            told = f"still running{': ' if got_to else ''}{got_to}"
            raise Refused(f"{found.run_id} is {told} ({_follow(found, log_dir)} shows its output)")
        try:
            sweep.close_and_report(found.path, time.monotonic() + SURVIVOR_DEADLINE_S)
        except OSError as error:
            raise Refused(f"cannot close {found.path} ({error.strerror})") from None
        found = reader.Run.read(found.path)
    made = found.report
    if made is None or again:
        made = _make(found)
    if form == "json":
        print_json(made, indent=1)
        return
    click.echo(harmless(_as_text(made, found.path)))


def _follow(run: Run, log_dir: str | None) -> str:
    """What to type to see a run's output: with its whole path unless it is found without."""
    return f"gpualert logs --follow {run.run_id if log_dir is None else shlex.quote(run.path)}"


def _make(run: Run) -> dict[str, Any]:
    """Make the report again, and write it where that can be."""
    log = making.logger(run.path)
    settings = making.settings_of(run, log)
    made = making.make(run, settings, making.redaction(settings), log)
    making.recollect(run, made, settings, log, may_hold=False)
    if run.report is not None:
        made["artifacts"] = run.report.get("artifacts") or []
        made["notifications"] = run.report.get("notifications") or []
    try:
        making.write(run.path, made)
    except OSError as error:
        click.echo(f"gpualert: cannot write {run.path} ({error.strerror}): the report is only shown", err=True)
    return made


def _as_text(made: dict[str, Any], directory: str) -> str:
    run, end, diagnosis = made.get("run", {}), made.get("exit", {}), made["diagnosis"]
    lines = [
        f"{diagnosis['class']}: {diagnosis['summary']}",
        f"{run.get('name') or run.get('run_id')}: {wording.ending(end)} after {wording.duration(end.get('duration_s'))}"
        + (f", {wording.place(run)}" if wording.place(run) else ""),
    ]
    got_to = progress_text.phrase(made.get("progress"))
    lines += [f"got to {got_to}"] if got_to else []
    lines += [f"note: {warning}" for warning in diagnosis.get("warnings", [])]
    if diagnosis["evidence"]:
        lines += ["", "evidence (line of output.log, or a fact from outside of it)"]
        lines += [f"  {'' if e['line'] is None else e['line']:>8}  {e['text']}" for e in diagnosis["evidence"]]
    lines += scene.text_lines((made.get("hang") or {}).get("scene"))
    tail = (made.get("quotes") or {}).get("tail") or []
    if not diagnosis.get("root") and diagnosis["class"] != "success" and tail:
        lines += ["", "the last lines"] + [f"  {line}" for line in tail[-TAIL_LINES:]]
    if diagnosis["suggestions"]:
        lines += ["", "what to do"] + [f"  - {suggestion}" for suggestion in diagnosis["suggestions"]]
    lines += hanging.measured(made)
    if made.get("artifacts"):
        lines += ["", "artifacts"]
        lines += [
            f"  {a['fate']:<12} {a['path']}" + (f" ({a['note']})" if a["note"] else "") for a in made["artifacts"]
        ]
    if made.get("notifications"):
        lines += ["", "told"]
        lines += [
            f"  {n['outcome']:<12} {', '.join(n['to'])}" + (f" ({n['detail']})" if n["detail"] else "")
            for n in made["notifications"]
        ]
    if made.get("trouble"):
        lines += ["", "gpualert's own trouble"] + [f"  {line}" for line in made["trouble"]]
    return "\n".join([*lines, "", f"kept in {directory}"])


@click.command()
@log_dir_option
@format_option
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="How many, newest first."
)
def runs(log_dir: str | None, form: str, limit: int) -> None:
    """List what has run, newest first."""
    found = [os.path.join(place, run) for place in directories(log_dir) for run in reader.run_ids(place)]
    found.sort(key=os.path.basename, reverse=True)
    rows = [_row(reader.Run.read(path)) for path in found[:limit]]
    if form == "json":
        print_json(rows, indent=1)
        return
    if not rows:
        click.echo("no runs" + (f" in {log_dir}" if log_dir else ""))
        return
    click.echo(f"{'STARTED':<20} {'TOOK':>7}  {'EXIT':<18} {'CLASS':<20} {'PROGRESS':<16} RUN")
    for row in rows:
        ended = row["ending"] or "-"
        click.echo(
            harmless(
                f"{row['started_at'][:19]:<20} {row['took']:>7}  {ended:<18} {row['class'] or '-':<20} "
                f"{progress_text.short(row['progress']) or '-':<16} {row['run_id']}"
            )
        )


def _row(run: Run) -> dict[str, Any]:
    state = "ended" if run.exit is not None else "running" if survivor.is_alive(run) else "interrupted"
    state = "hanging" if state == "running" and hang.goes_on(record.read(run.path)) else state
    diagnosis = (run.report or {}).get("diagnosis") or {}
    seconds = run.exit.get("duration_s") if run.exit else None
    return {
        "run_id": run.run_id,
        "name": run.facts.get("name"),
        "started_at": str(run.facts.get("started_at") or ""),
        "state": state,
        "ending": wording.ending(run.exit) if run.exit is not None else state,
        "exit_code": run.exit.get("exit_code") if run.exit else None,
        "signal": run.exit.get("signal") if run.exit else None,
        "duration_s": seconds,
        "took": wording.duration(seconds) if isinstance(seconds, int | float) else "-",
        "class": diagnosis.get("class"),
        "progress": (run.report or {}).get("progress") or progress.of(run, goes_on=state == "running", brief=True),
        "path": run.path,
    }


@click.command()
@log_dir_option
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only what came by this stream.")
@click.option("--timestamps", is_flag=True, help="Put the time of its arrival before each line.")
@click.option("--follow", is_flag=True, help="Go on until the run ends.")
@format_option
@click.argument("run", default="latest")
def logs(log_dir: str | None, stream: str | None, timestamps: bool, follow: bool, form: str, run: str) -> None:
    """Print the output of a run: its bytes as they were, or with the times of their arrival.

    RUN is as for report; the default is latest. With --format json each line is an object of its own, {"at", "stream",
    "text"}, where bytes that are no UTF-8 are replaced.
    """
    found = find(run, log_dir)
    wanted = {"stdout": {index.STDOUT}, "stderr": {index.STDERR}}.get(stream or "")
    shared = False
    printer = _Printer(timestamps=timestamps, as_json=form == "json")
    try:
        for piece in _pieces(found, follow=follow):
            if wanted is not None and piece.stream in (index.BOTH, index.TERMINAL):
                shared = True
            elif wanted is not None and piece.stream not in wanted:
                continue
            printer.add(piece)
        printer.end()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Refused(f"cannot read {found.log_path} ({error.strerror})") from None
    if shared:
        click.echo("gpualert: stdout and stderr were one file in this run: both are shown", err=True)


def _pieces(run: Run, *, follow: bool) -> Iterator[reader.Piece]:
    """The output so far; with ``follow`` until the run has ended."""
    offset = entry = 0
    while True:
        ended = not follow or os.path.exists(os.path.join(run.path, "exit.json")) or not survivor.is_alive(run)
        for piece in reader.output(run, offset, entry):
            if piece.at_us is None and not ended:
                break  # its record is not written yet
            offset += len(piece.data)
            yield piece
        if ended:
            return
        entry = _entries(run, offset)
        sys.stdout.flush()
        time.sleep(FOLLOW_EVERY_S)


def _entries(run: Run, offset: int) -> int:
    """How many records of the index cover the first ``offset`` bytes."""
    count = total = 0
    try:
        with open(os.path.join(run.path, "output.idx"), "rb") as file:
            for _, _, length in index.records(file.read()):
                if total >= offset:
                    break
                total += length
                count += 1
    except (OSError, ValueError):
        return 0
    return count


class _Printer:
    """Prints pieces; with times or as JSON, line by line, each stream's lines apart."""

    def __init__(self, *, timestamps: bool, as_json: bool) -> None:
        self._by_line = timestamps or as_json
        self._as_json = as_json
        self._open: dict[int | None, tuple[int | None, bytes]] = {}
        self._out = sys.stdout.buffer
        self._show: Callable[[bytes], bytes] = _shown if sys.stdout.isatty() else bytes

    def add(self, piece: reader.Piece) -> None:
        """Print a piece."""
        if not self._by_line:
            self._write(self._show(piece.data))
            return
        at_us, held = self._open.pop(piece.stream, (piece.at_us, b""))
        *lines, rest = (held + piece.data).split(b"\n")
        for line in lines:
            self._line(piece.stream, at_us, line)
            at_us = piece.at_us
        if rest:
            self._open[piece.stream] = (at_us, rest)

    def _line(self, stream: int | None, at_us: int | None, line: bytes) -> None:
        if self._as_json:
            name = index.STREAM_NAMES.get(stream) if stream is not None else None
            told = {
                "at": rfc3339(at_us) if at_us else None,
                "stream": name,
                "text": line.decode("utf-8", "replace"),
            }
            self._write(json_text(told).encode() + b"\n")
            return
        time_text = rfc3339(at_us) if at_us else "-" * 27
        self._write(time_text.encode() + b" " + self._show(line) + b"\n")

    def _write(self, data: bytes) -> None:
        """Write, and tell a disk that is full here from a log that cannot be read."""
        try:
            self._out.write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Refused(f"cannot write the answer: {error.strerror}") from None

    def end(self) -> None:
        """Print what was left without a line end."""
        for stream, (at_us, rest) in self._open.items():
            self._line(stream, at_us, rest)


def _shown(data: bytes) -> bytes:
    """Bytes for a terminal: colours and line ends stay, what would do more is shown instead of done."""
    text = data.decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c in "\n\t\r" else _escape(c) for c in text).encode("utf-8", "replace")


def _escape(c: str) -> str:
    return f"\\x{ord(c):02x}"
