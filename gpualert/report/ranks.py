"""The table of ranks: those that broke first in front, many that say the same in one row."""

from __future__ import annotations

from typing import Any

from gpualert.incident.naming import numbers
from gpualert.report import wording

ROWS_MAX = 40


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """The rows of an incident's table.

    Args:
        report: The incident's report.

    Returns:
        For each row ``ranks``, ``role``, ``class``, ``ended``, ``after``, ``node`` and ``name``, all as text. Ranks in
        the same role and with the same class and ending share a row, unless they broke first; at most ``ROWS_MAX``
        rows, the last of which then says how many ranks are not shown.
    """
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for number, row in enumerate(report["ranks"]):
        alone = number if row["role"] in ("root", "silent") else None
        key = (row["role"], row["class"], row["state"], row["exit_code"], row["signal"], alone)
        grouped.setdefault(key, []).append(row)
    shown = [_row(group) for group in grouped.values()]
    if report["missing"]:
        shown.append(_blank(numbers(report["missing"]), "missing", "never showed up"))
    if len(shown) > ROWS_MAX:
        left = len(shown) - ROWS_MAX + 1
        shown = [*shown[: ROWS_MAX - 1], _blank("", "", f"and {left} rows more, in report.json")]
    return shown


def where(report: dict[str, Any]) -> str:
    """Which ranks broke first, for a subject: `` on rank 3 (gpu-17)``, `` on ranks 0-7``, or whom nobody heard of.

    Args:
        report: The incident's report.
    """
    told = report["incident"]["roots"]
    roots, names = (
        [rank for rank in told if rank is not None],
        [row for row in report["ranks"] if row["role"] == "root"],
    )
    nodes = report["incident"]["nodes"]
    unit = report["incident"].get("unit", "rank")
    place = f" ({wording.printable(nodes[0])[:60]})" if len(nodes) == 1 else f" on {len(nodes)} nodes" if nodes else ""
    if roots and len(roots) < len(report["ranks"]):
        return f" on {unit}{'s' if len(roots) > 1 else ''} {numbers(roots)}{place}"
    if names and not roots and len(report["ranks"]) > 1:
        return f" on {wording.printable(str(names[0]['name']))[:80]}{place}"
    silent = [row["rank"] for row in report["ranks"] if row["role"] == "silent" and isinstance(row["rank"], int)]
    quiet = [*silent, *report["missing"]] if not roots else []
    if quiet:
        return f", nothing heard of {unit}{'s' if len(quiet) > 1 else ''} {numbers(quiet)}"
    return f" on all {len(report['ranks'])} {unit}s" if len(report["ranks"]) > 1 else place


def _blank(ranks: str, role: str, ended: str) -> dict[str, str]:
    return {"ranks": ranks, "role": role, "class": "", "ended": ended, "after": "", "node": "", "name": ""}


def _row(group: list[dict[str, Any]]) -> dict[str, str]:
    first = group[0]
    nodes = list(dict.fromkeys(row["node"] for row in group if row["node"]))
    names = [str(row["name"]) for row in group]
    known = [row["rank"] for row in group if isinstance(row["rank"], int)]
    times = [row["after_s"] for row in group if row["after_s"] is not None]
    after = wording.duration(min(times)) if times else ""
    if times and max(times) - min(times) >= 1:
        after += f" to {wording.duration(max(times))}"
    failed = first["exit_code"] is not None or first["signal"] is not None
    return {
        "ranks": numbers(known) if len(known) == len(group) else f"{len(group)} ranks" if len(group) > 1 else "",
        "role": str(first["role"]),
        "class": str(first["class"] or ""),
        "ended": wording.ending(first) if failed else str(first["state"]),
        "after": after,
        "node": wording.printable(", ".join(nodes[:2])) + (f" and {len(nodes) - 2} more" if len(nodes) > 2 else ""),
        "name": wording.printable(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
    }


def text(report: dict[str, Any]) -> str:
    """The table for terminals and plain mails.

    Args:
        report: The incident's report.
    """
    head = {
        "ranks": report["incident"].get("unit", "rank"),
        "role": "role",
        "class": "class",
        "ended": "ended",
        "after": "after",
        "node": "node",
    }
    listed = [head, *rows(report)]
    columns = [key for key in (*head, "name") if any(row.get(key) for row in listed[1:])]
    head["name"] = "name"
    widths = {key: min(max(len(row[key]) for row in listed), 48) for key in columns}
    return "\n".join("  ".join(row[key][:48].ljust(widths[key]) for key in columns).rstrip() for row in listed)
