"""A run that hangs, shown by ``gpualert report`` while it does, and what was measured of any run."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gpualert.cli.output import harmless, print_json
from gpualert.report import building, cost, hang, machine, making, recall, running, scene, wording

if TYPE_CHECKING:
    from gpualert.rundir.reader import Run

TAIL_LINES = 15


def show(run: Run, form: str) -> None:
    """Show what the alarm tells of a run, as things stand now.

    Args:
        run: The run.
        form: ``text`` or ``json``.
    """
    settings = making.settings_of(run, making.logger(os.devnull))
    mask, _ = recall.recalling(making.redaction(settings), run.path)
    made = building.running(running.so_far(run), datetime.now(UTC), mask)
    if made["hang"] is not None:
        made["hang"]["action"] = settings.hang.action
    if form == "json":
        print_json(made, indent=1)
        return
    click.echo(harmless("\n".join([*_text(made, run), "", f"kept in {run.path}"])))


def _text(made: dict[str, Any], run: Run) -> list[str]:
    told = made["hang"]
    if told is None:
        return ["it goes on again"]
    since = f"running since {wording.duration(made['exit'].get('duration_s'))}"
    where = wording.place(made["run"])
    return [
        f"hangs: {hang.line(told)}",
        f"{made['run'].get('name') or run.run_id}: {since}" + (f", {where}" if where else ""),
        *scene.text_lines(told["scene"]),
        "",
        "the last lines",
        *(f"  {line}" for line in made["quotes"]["tail"][-TAIL_LINES:]),
        "",
        "what to do",
        *(f"  - {step}" for step in hang.advice(made, run.path)),
        *measured(made),
    ]


def measured(made: dict[str, Any]) -> list[str]:
    """What was measured of a run, as far as it is worth a word.

    Args:
        made: Its report.
    """
    lines = []
    for head, rows in (("cost", cost.words(made.get("cost"))), ("machine", machine.lines(made.get("machine")))):
        lines += ["", head, *(f"  {name:<14} {value}" for name, value in rows)] if rows else []
    return lines
