"""``gpualert run --help``; the command itself is the supervisor's, which imports none of this."""

from __future__ import annotations

from typing import Any

import click

from gpualert.supervisor.options import OPTIONS


def _parameters() -> list[click.Parameter]:
    made: list[click.Parameter] = []
    for option in OPTIONS:
        where = [part for part in (option.environment, f"key {option.key}" if option.in_file else "") if part]
        if option.off_flag:
            where[0] += "=0"
        text = option.help + (f"  [{', '.join(where)}]" if where else "")
        flag = option.flag or option.off_flag
        switch = option.kind == "switch"
        made.append(
            click.Option(
                [flag], is_flag=switch, metavar=option.metavar or None, multiple=option.kind == "list", help=text
            )
        )
    made.append(click.Argument(["command"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARG]..."))
    return made


def _called(**_told: Any) -> None:
    """Reached only when somebody imports this instead of starting gpualert."""
    raise click.UsageError("start it as: gpualert run [OPTIONS] [--] COMMAND [ARG]...")


run = click.Command(
    "run",
    callback=_called,
    params=_parameters(),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a command under supervision.",
    help="""Run COMMAND unchanged, keep every byte of its output, say why it failed, and exit exactly as it did.

Each option is also an environment variable and a key of the configuration file; command line over environment over
file over default.

\b
exit status
  N    the command's own exit code; ended by a signal, gpualert ends by the same one (as PID 1: 128 + its number)
  127  the command was not found
  126  it was found but cannot be executed
  125  gpualert was called wrongly

\b
examples
  gpualert run -- python train.py --epochs 3
  gpualert run --email-to ml-oncall@example.org --artifact 'metrics/*.json' -- torchrun --nproc-per-node 8 train.py
  gpualert run --timeout 12h --name llama-7b -- ./train.sh""",
)
