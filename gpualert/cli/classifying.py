"""``gpualert classify`` and ``gpualert explain``."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpualert.cli.output import Refused, harmless, print_json
from gpualert.diagnosis import Facts, Rulebook, RuleError, answers

if TYPE_CHECKING:
    from collections.abc import Iterator

STATUS = click.IntRange(0, 255)
SIGNAL = click.IntRange(1, 64)


class Directories(click.types.StringParamType):
    """Directories with rules; in the environment variable with commas between them, as ``gpualert run`` reads it."""

    envvar_list_splitter = ","


rules_option = click.option(
    "--rules",
    type=Directories(),
    multiple=True,
    metavar="DIR",
    envvar="GPUALERT_RULES",
    help="Directories with rules of your own.",
)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """What cannot be written to standard output is said in one line; a reader that has gone is none of that."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter would try again at its end
        raise Refused(f"cannot write to standard output ({error.strerror})") from None


def rulebook(directories: tuple[str, ...]) -> Rulebook:
    """The rules, with those of ``--rules``.

    Raises:
        Refused: A rule file is wrong.
    """
    try:
        return Rulebook.load(tuple(directory.strip() for directory in directories if directory.strip()))
    except RuleError as error:
        raise Refused(str(error)) from None


@click.command()
@click.option("--exit-code", type=STATUS, metavar="N", help="The exit code that the job ended with.")
@click.option("--signal", type=SIGNAL, metavar="N", help="The number of the signal that ended the job.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to answer."
)
@click.option(
    "--batch", metavar="FILE.jsonl", help='Objects {"id","log","exit_code","signal"}, one a line; - is stdin.'
)
@rules_option
@click.argument("log", nargs=-1)
def classify(
    exit_code: int | None,
    signal: int | None,
    form: str,
    batch: str | None,
    rules: tuple[str, ...],
    log: tuple[str, ...],
) -> None:
    """Say why a job failed, from its log.

    LOG is a file (also gzip, bzip2, xz, or UTF-16), a pipe, or - for standard input.

    \b
    examples
      gpualert classify --exit-code 1 slurm-1234.out
      kubectl logs train-0 | gpualert classify --format json -
    """
    known = rulebook(rules)
    if batch is not None:
        if log:
            raise click.UsageError("--batch takes no further logs")
        _classify_batch(batch, known)
        return
    if not log:
        raise click.UsageError("no log to classify (- is standard input)")
    failed = False
    for path in log:
        try:
            source: Any = sys.stdin.buffer if path == "-" else path
            answer = answers.classify(source, Facts(exit_code, signal), known, name=path)
        except OSError as error:
            click.echo(f"gpualert: cannot read {harmless(path)} ({error.strerror})", err=True)
            failed = True
            continue
        with _answering():
            if form == "json":
                print_json(answer)
            else:
                click.echo(_as_text(answer, named=len(log) > 1))
    if failed:
        sys.exit(1)


def _classify_batch(path: str, rules: Rulebook) -> None:
    try:
        with click.open_file(path, encoding="utf-8", errors="replace") as lines:
            for answer in answers.batch(lines, rules):
                with _answering():
                    print_json(answer)
    except OSError as error:
        raise Refused(f"cannot read {path} ({error.strerror})") from None
    except answers.BatchError as error:
        raise Refused(f"{path}: {error}") from None


def _as_text(answer: dict[str, Any], *, named: bool) -> str:
    lines = [f"{answer['path']}:"] if named else []
    lines.append(f"{answer['class']}: {answer['summary']}")
    lines += [
        f"  {e['line']:>8}  {e['text']}" if e["line"] is not None else f"            {e['text']}"
        for e in answer["evidence"]
    ]
    lines += [f"  note: {warning}" for warning in answer.get("warnings", [])]
    lines += [f"  try: {suggestion}" for suggestion in answer["suggestions"]]
    lines.append(
        f"  confidence {answer['confidence']:.2f}, {'a retry may help' if answer['retryable'] else 'no retry'}"
    )
    return harmless("\n".join(lines))


@click.command()
@rules_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown"]),
    default="text",
    help="markdown: all classes as one page.",
)
@click.argument("name", metavar="[CLASS]", required=False)
def explain(rules: tuple[str, ...], form: str, name: str | None) -> None:
    """Say what a class of failure means, what to do, and how it is recognised; without CLASS, list all."""
    known = rulebook(rules)
    with _answering():
        if form == "markdown":
            click.echo(answers.markdown(known))
            return
        if name is None:
            family = ""
            for cls in known.classes.values():
                if cls.family != family:
                    family = cls.family
                    click.echo(f"{family}")
                click.echo(f"  {cls.name:<22} {cls.meaning}")
            return
        try:
            click.echo(harmless(answers.explain(name, known)))
        except KeyError:
            raise Refused(f"there is no class {name} (gpualert explain lists them)") from None
