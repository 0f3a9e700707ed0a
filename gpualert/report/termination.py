"""The final termination message: for ``kubectl describe pod``, and for programs its last line."""

from __future__ import annotations

import json
from typing import Any

from gpualert.progress import text as progress
from gpualert.report import wording
from gpualert.rundir.termination import cut

VERDICT_MAX = 400
QUOTED_MAX = 3


def _line(text: str, limit: int = 600) -> str:
    """One line that starts neither like the machine's line nor like gpualert's own."""
    text = wording.printable(text).strip()
    if text.startswith(("{", "gpualert:")):
        text = f"| {text}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def machine_line(report: dict[str, Any], log: str) -> dict[str, Any]:
    """The message's last line: what a program wants to know.

    Args:
        report: The report.
        log: The run directory.
    """
    run, end, diagnosis = report["run"], report["exit"], report["diagnosis"]
    return {
        "gpualert": 1,
        "class": diagnosis["class"],
        "family": diagnosis["family"],
        "exit_code": end.get("exit_code"),
        "signal": end.get("signal"),
        "run_id": run.get("run_id"),
        "rank": run.get("rank"),
        "node": run.get("node") or run.get("host"),
        "log": log,
        "root": diagnosis["root"]["text"] if diagnosis["root"] else None,
        "confidence": diagnosis["confidence"],
        "at": (report.get("timeline") or {}).get("cause_at"),
    } | _progress(report)


def _progress(report: dict[str, Any]) -> dict[str, Any]:
    """How far it got; nothing where nobody knows."""
    told = report.get("progress") or {}
    known = {name: told[name] for name in ("step", "epoch") if told.get(name) is not None}
    return {"progress": known} if known else {}


def _machine(report: dict[str, Any], log: str, limit: int) -> str:
    """The machine's line in at most ``limit`` bytes: the quoted root gives way first."""
    fields = machine_line(report, log)
    for allowed in (300, 100, 0):
        if fields["root"] is not None:
            fields["root"] = fields["root"][:allowed] or None
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode("utf-8", "replace")) <= limit:
            return text
    return json.dumps({key: fields[key] for key in ("gpualert", "class", "family", "exit_code", "signal")})


def text(report: dict[str, Any], log: str, room: int) -> bytes:
    """The message.

    Args:
        report: The report.
        log: The run directory.
        room: How many bytes it may have.

    Returns:
        Valid UTF-8: the verdict first, then as many decisive lines and suggestions as fit, the machine's line last.
    """
    diagnosis, end, run = report["diagnosis"], report["exit"], report["run"]
    how = wording.ending(end)
    verdict = f"{diagnosis['class']}: {_line(diagnosis['summary'], VERDICT_MAX - len(how))} ({how})"
    got_to = progress.place(report.get("progress"))
    where = [wording.place(run), f"after {wording.duration(end.get('duration_s'))}", f"at {got_to}" if got_to else ""]
    silent = report.get("silent_s")
    if isinstance(silent, int | float):
        where.append(f"last output {wording.duration(silent)} before the end")
    lines = [", ".join(part for part in where if part)]
    quoted = [e["text"] for e in diagnosis["evidence"][:QUOTED_MAX] if e["line"] is not None]
    lines += [_line(quote) for quote in quoted]
    lines += [_line(step) for step in wording.steps(diagnosis)]
    lines += [f"note: {_line(warning)}" for warning in diagnosis.get("warnings", [])[:1]]
    head = verdict.encode("utf-8", "replace") + b"\n"
    last = _machine(report, log, max(room - len(head) - 1, 0)).encode("utf-8", "replace") + b"\n"
    body = b""
    for line in lines:
        encoded = line.encode("utf-8", "replace") + b"\n"
        if len(head) + len(body) + len(encoded) + len(last) <= room:
            body += encoded
    return cut(head, max(room - len(last), 0)) + body + last if len(last) < room else cut(head, room)
