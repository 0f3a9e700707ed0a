"""What a person sees on stderr when a run has failed."""

from __future__ import annotations

import os
from typing import Any

from gpualert.progress import text as progress
from gpualert.report import wording

PREFIX = "gpualert: "
LINE_MAX = 240
LINES_MAX = 4
"""Of gpualert's own trouble, the supervisor's lines included."""
_BAD, _ODD, _SOFT, _BOLD, _END = "\x1b[1;31m", "\x1b[1;33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def wants_colour(fd: int) -> bool:
    """Whether a descriptor is a terminal that may be coloured (no-color.org, and terminals that cannot).

    Args:
        fd: The descriptor.
    """
    return os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")


def _line(text: str) -> str:
    text = wording.printable(text).strip()
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 3] + "..."


def block(report: dict[str, Any], directory: str, outcome: str, *, colour: bool = False) -> str:
    """The block for a failed run, or for a success that looks suspicious; empty for a clean success.

    Args:
        report: The report.
        directory: The run directory.
        outcome: What became of the notifications; empty when none was wanted.
        colour: Set it with a terminal's colours.
    """

    def paint(code: str, text: str) -> str:
        return f"{code}{text}{_END}" if colour else text

    diagnosis, end = report["diagnosis"], report["exit"]
    clean = diagnosis["class"] == "success" and not diagnosis.get("warnings")
    if clean:
        return ""
    how = f"{wording.ending(end)} after {wording.duration(end.get('duration_s'))}"
    tone = _ODD if diagnosis["class"] == "success" else _BAD
    lines = [f"{paint(tone, diagnosis['class'])}: {paint(_BOLD, _line(diagnosis['summary']))} ({how})"]
    root = diagnosis["root"]
    if root and root["line"] is not None:
        where = paint(_SOFT, f"output.log:{root['line']}")
        lines.append(f"  {where}  {_line(root['text'])}")
    got_to = progress.phrase(report.get("progress"), pace=False)
    if got_to and diagnosis["class"] != "success":
        lines.append(f"  got to {_line(got_to)}")
    lines += [f"  note: {_line(warning)}" for warning in diagnosis.get("warnings", [])[:2]]
    lines += [f"  {_line(step)}" for step in wording.steps(diagnosis)]
    kept = f"  kept in {wording.printable(directory)}"
    lines.append(paint(_SOFT, f"{kept} · {outcome}" if outcome else kept))
    return "".join(f"{PREFIX}{line}\n" for line in lines)


def troubles(report: dict[str, Any]) -> str:
    """What went wrong inside the reporter, mistakes in its settings above all; four lines with the supervisor's own.

    Args:
        report: The report.
    """
    said = len(report["exit"].get("trouble") or [])
    lines = [_line(str(text)) for text in report["trouble"][said:]]
    shown = lines[: max(LINES_MAX - said, 0)]
    if shown and len(lines) > len(shown):
        shown[-1] += f" (and {len(lines) - len(shown)} more in report.json)"
    return "".join(f"{PREFIX}{line}\n" for line in shown)
