"""``gpualert group``: which rank of a job broke first, from what its ranks left behind."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from gpualert import config
from gpualert.cli.output import Refused, format_option, print_json
from gpualert.diagnosis import Rulebook
from gpualert.group import sources, together
from gpualert.incident import judge
from gpualert.report import incident, making, ranks, wording

DEADLINE_S = 60.0


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@format_option
@click.option("--tell", is_flag=True, help="Also tell whom the settings name, of a group that nobody has told of yet.")
@click.option("--all", "every", is_flag=True, help="Also show jobs that ended without error.")
def group(directories: tuple[str, ...], form: str, tell: bool, every: bool) -> None:
    """Say which rank of a job broke first, and why.

    \b
    DIR may be
      a directory of gpualert run --group-dir      what the ranks told each other
      a log directory of gpualert run              the runs in it that have a rank
      a --log-dir of torchrun                      its logs and error files
      a directory with one log file for each rank  log_0.txt, worker-3.log, slurm-77_3.out ...

    The exit status is 1 when a job failed, 0 when none did.
    """
    rules, mask, failed, reports = Rulebook.load(), making.redaction(), False, []
    for directory in directories:
        try:
            found = sources.find(directory, rules)
        except OSError as error:
            raise Refused(f"cannot read {directory} ({error.strerror})") from None
        if not found:
            raise Refused(f"{directory} holds no ranks: neither runs of gpualert, logs of torchrun, nor numbered logs")
        for one in found:
            verdict = judge(one.ranks, one.facts, expected=one.expected, rules=rules)
            first = next(iter(verdict.roots), None)
            quotes = sources.quotes(one, first, mask) if first is not None else None
            report = incident.build(one.job, verdict, mask, quotes=quotes, trouble=list(one.troubles))
            failed = failed or verdict.cls != "success"
            if verdict.cls != "success" or every or form == "json":
                reports.append(report)
                if form == "text":
                    click.echo(as_text(report))
    if form == "json":
        print_json(reports, indent=1)
    elif not reports:
        click.echo("no job failed (--all shows those that did not)")
    if tell:
        _tell(directories, mask)
    raise SystemExit(1 if failed else 0)


def as_text(report: dict[str, Any]) -> str:
    """An incident for a terminal.

    Args:
        report: Its report.
    """
    diagnosis, job = report["diagnosis"], report["run"]
    attempt = report["incident"]["attempt"]
    name = wording.printable(str(job["name"])) + (f", attempt {attempt}" if attempt else "")
    said = f"{diagnosis['class']}: {wording.printable(diagnosis['summary'])}"
    lines = [f"{name}: {said} (confidence {diagnosis['confidence']:.2f})"]
    if diagnosis["root"]:
        lines.append(f"  {wording.printable(diagnosis['root']['text'])}")
    lines += [f"  {wording.printable(f['reason'])}: {wording.printable(f['message'])}" for f in report["facts"][:5]]
    lines += [f"  try: {wording.printable(suggestion)}" for suggestion in diagnosis["suggestions"][:2]]
    lines += ["", *(f"  {line}" for line in ranks.text(report).splitlines()), ""]
    lines += [f"  note: {wording.printable(str(trouble))}" for trouble in report["trouble"]]
    return "\n".join(lines)


def _tell(directories: tuple[str, ...], mask: Any) -> None:
    settings, problems = config.load(given={})
    for problem in problems:
        click.echo(f"gpualert: {problem}", err=True)
    for directory in directories:
        for path in sources.shared(directory):
            until = time.monotonic() + DEADLINE_S
            try:
                done = together.look(path, settings, mask, until, lambda text: click.echo(text, err=True), still=True)
            except OSError as error:
                raise Refused(f"cannot write {path} ({error.strerror})") from None
            if done.said:
                click.echo(f"gpualert: {os.path.basename(os.path.dirname(path))}: {done.said}", err=True)
