"""The command line: one group, one module for each kind of command."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from gpualert import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

COMMANDS = {
    "run": "running",
    "classify": "classifying",
    "explain": "classifying",
    "report": "reading",
    "runs": "reading",
    "logs": "reading",
    "watch": "watching",
    "group": "grouping",
    "slurm": "slurm",
    "attend": "attending",
    "flush": "flushing",
    "init": "initializing",
    "check": "configuring",
    "install": "installing",
    "inject": "injecting",
    "version": "configuring",
    "completion": "configuring",
}
"""Each command with the module that has it; loaded only when it is called, since some need much."""

SILENT = ("run", "attend", "watch", "slurm", "flush", "install", "init")
"""What does its work without an answer, too."""


class Commands(click.Group):
    """The commands, each loaded when it is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """Their names, in the order of their use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gpualert.cli.{COMMANDS[cmd_name]}")
        command = getattr(module, f"{cmd_name}_command", None) or getattr(module, cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101  (mypy: getattr tells nothing)
        return command


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, message="gpualert %(version)s")
def cli() -> None:
    """Put gpualert in front of a training command: it keeps the output, says why the job failed, and tells a person.

    \b
    gpualert run -- python train.py        run a command
    gpualert runs                          list what has run
    gpualert report latest                 why the last one ended as it did
    gpualert classify train.log            diagnose any log
    """


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a command and exit.

    Args:
        arguments: What follows ``gpualert``.
    """
    _take_up_closed_descriptors()
    if sys.stdout is None:
        if arguments and arguments[0] not in SILENT:
            _give_up("stdout is closed: there is nowhere to answer")
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (for as long as we live)
    try:
        try:
            cli.main(list(arguments), prog_name="gpualert", standalone_mode=True)
        except SystemExit as error:
            try:
                sys.stdout.flush()
            except OSError:
                if error.code:
                    os._exit(error.code if isinstance(error.code, int) else 1)  # why is said already
                raise
            sys.exit(error.code)
    except BrokenPipeError:
        # Whoever read us has gone: end quietly, as other filters do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except OSError as error:
        about = f"{error.filename}:" if error.filename else "cannot write the answer:"
        _give_up(f"{about} {error.strerror or error}")
    sys.exit(0)


def _take_up_closed_descriptors() -> None:
    """Let no file of ours get the number of a standard descriptor that is closed."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which is the lowest that is free: this one


def _give_up(why: str) -> NoReturn:
    """Say why nothing can be answered, and end."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"gpualert: {why}", file=sys.stderr, flush=True)
    os._exit(1)  # what is left in the buffers cannot be written either
