"""What a person sees on stderr when a run has failed."""

from __future__ import annotations

from typing import Any

from gpualert.report import wording

PREFIX = "gpualert: "
LINE_MAX = 240


def _line(text: str) -> str:
    text = wording.printable(text).strip()
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 3] + "..."


def block(report: dict[str, Any], directory: str, outcome: str) -> str:
    """The block for a failed run, or for a success that looks suspicious; empty for a clean success.

    Args:
        report: The report.
        directory: The run directory.
        outcome: What became of the mail; empty when none was wanted.
    """
    diagnosis, end = report["diagnosis"], report["exit"]
    clean = diagnosis["class"] == "success" and not diagnosis.get("warnings")
    if clean:
        return ""
    how = f"{wording.ending(end)} after {wording.duration(end.get('duration_s'))}"
    lines = [f"{diagnosis['class']}: {_line(diagnosis['summary'])} ({how})"]
    root = diagnosis["root"]
    if root and root["line"] is not None:
        lines.append(f"  output.log:{root['line']}  {_line(root['text'])}")
    lines += [f"  note: {_line(warning)}" for warning in diagnosis.get("warnings", [])[:2]]
    lines += [f"  try: {_line(suggestion)}" for suggestion in diagnosis["suggestions"][:1]]
    kept = f"  kept in {wording.printable(directory)}"
    lines.append(f"{kept} · {outcome}" if outcome else kept)
    return "".join(f"{PREFIX}{line}\n" for line in lines)
