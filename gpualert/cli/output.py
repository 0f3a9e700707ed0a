"""Printing for a terminal: nothing in a log may act on it."""

from __future__ import annotations

import json
from typing import Any

import click

from gpualert.supervisor.values import parse_duration


def duration(text: str) -> float:
    """Seconds of a duration such as ``30s``."""
    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter("must be a duration such as 30s or 5m") from None


format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to answer."
)


def harmless(text: str) -> str:
    """``text`` with control characters and escapes shown instead of done; tabs and line ends stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON, with what could act on a terminal escaped; it means the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON."""
    click.echo(json_text(value, indent=indent))


class Refused(click.ClickException):
    """What was asked for cannot be done: one line, exit status 1."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Print the line."""
        click.echo(f"gpualert: {harmless(self.message)}", file=file, err=True)
