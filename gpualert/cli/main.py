"""The command line: one group, one module for each kind of command."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from gpualert import __version__
from gpualert.cli import attending, classifying, configuring, reading
from gpualert.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, message="gpualert %(version)s")
def cli() -> None:
    """Put gpualert in front of a training command: it keeps the output, says why the job failed, and tells a person.

    \b
    gpualert run -- python train.py        run a command
    gpualert runs                          list what has run
    gpualert report latest                 why the last one ended as it did
    gpualert classify train.log            diagnose any log
    """


for command in (
    run,
    classifying.classify,
    classifying.explain,
    reading.report,
    reading.runs,
    reading.logs,
    attending.attend,
    configuring.flush,
    configuring.check,
    configuring.version,
    configuring.completion,
):
    cli.add_command(command)


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a command and exit.

    Args:
        arguments: What follows ``gpualert``.
    """
    try:
        cli.main(list(arguments), prog_name="gpualert", standalone_mode=True)
    except BrokenPipeError:
        # Whoever read us has gone: end quietly, as other filters do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    sys.exit(0)
