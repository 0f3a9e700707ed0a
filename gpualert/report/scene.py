"""What was found where a job hangs, as reports keep and show it.

It comes from the job's own processes: it is taken as far as it has its shape, bounded, and made into lines of printable
text before anybody shows it. A report keeps ``stacks`` and ``kernel`` (what the kernel says of processes; rows of
``pids``, ``names`` and ``text``), ``flight`` (what NCCL's flight recorder says: ``text`` and ``frames``), ``ranks``
(``rank``, ``line``, ``at``) and ``notes`` (why something is missing).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from gpualert.report import wording
from gpualert.rundir import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STACKS_MAX, TEXT_MAX, SCENE_MAX = 200, 64 << 10, 256 << 10
"""How many stacks there are, how many characters one has, and all of them."""
LINES_MAX, LINE_MAX = 200, 400
"""How many lines of stacks a mail shows, and how many characters of each."""
KERNEL_LINES_MAX = 48
"""How many lines of what the kernel says are shown."""
ROWS_MAX = 64
"""How many ranks, sentences and notes are told of."""
PIDS_SHOWN = 8
STACKS_NAME = "stacks.txt"

Scene = dict[str, Any]


def fitted(told: object) -> Scene | None:
    """The scene as a report keeps it; None where there is none.

    Args:
        told: What the collector has left of it; anything may stand in it.
    """
    if not isinstance(told, dict):
        return None
    flight = told.get("flight")
    flight = flight if isinstance(flight, dict) else {}
    found = shapes.SCENE({**told, "flight": flight.get("groups")})
    notes = shapes.SCENE({"notes": flight.get("notes")})["notes"]
    return {
        "stacks": _bounded(found["stacks"]),
        "kernel": _bounded(found["kernel"]),
        "flight": [
            {"text": row["text"][:LINE_MAX], "frames": [frame[:LINE_MAX] for frame in row["frames"][:8]]}
            for row in found["flight"][:8]
        ],
        "ranks": [{**row, "line": row["line"][:LINE_MAX]} for row in found["ranks"][: 4 * ROWS_MAX]],
        "notes": [note[:LINE_MAX] for note in [*found["notes"], *notes][:ROWS_MAX]],
    }


def _bounded(stacks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    room, kept = SCENE_MAX, []
    for stack in stacks[:STACKS_MAX]:
        text = stack["text"][: min(room, TEXT_MAX)]
        room -= len(text)
        names = [name[:120] for name in stack["names"][:4]]
        kept.append({"pids": stack["pids"][:ROWS_MAX], "names": names, "text": text})
        if room <= 0:
            break
    return kept


def shown(scene: Mapping[str, Any] | None, limit: int = LINES_MAX) -> dict[str, Any] | None:
    """What a template shows, all of it printable text; None where there is nothing to show.

    Args:
        scene: The scene of a report.
        limit: How many lines of stacks at most.

    Returns:
        ``stacks`` and ``kernel`` (each ``head`` and ``lines``), ``left`` (how many lines of stacks are not among them),
        ``flight`` (lines), ``ranks`` (number and last line) and ``notes``.
    """
    if not scene:
        return None
    stacks, left = _groups(scene["stacks"], limit)
    flight = [line for row in scene["flight"] for line in (row["text"], *(f"  at {frame}" for frame in row["frames"]))]
    return {
        "stacks": stacks,
        "left": left,
        "kernel": _groups(scene["kernel"], max(limit, KERNEL_LINES_MAX) if limit > LINES_MAX else KERNEL_LINES_MAX)[0],
        "flight": [wording.printable(line) for line in flight],
        "ranks": [(row["rank"], wording.printable(row["line"])) for row in scene["ranks"]],
        "notes": [wording.printable(text) for text in scene["notes"]],
    }


def _groups(stacks: Sequence[Mapping[str, Any]], limit: int) -> tuple[list[dict[str, Any]], int]:
    """Heads and lines of as many stacks as there is room for, and how many lines there is none for."""
    found, left, room = [], 0, limit
    for stack in stacks:
        lines = list(_lines(stack["text"]))
        taken = lines[: max(room, 0)]
        room -= len(taken)
        left += len(lines) - len(taken)
        if taken:
            found.append({"head": _head(stack), "lines": taken})
    return found, left


def _lines(text: str) -> Iterator[str]:
    """A stack's lines, each without control characters and of bearable length."""
    for row in islice(text.splitlines(), 10_000):
        if row.strip():
            yield wording.printable(row.expandtabs(4)).rstrip()[:LINE_MAX]


def _head(stack: Mapping[str, Any]) -> str:
    """``8 processes: python train.py (12, 13, ...)``."""
    pids, names = stack["pids"], [wording.printable(name) for name in stack["names"]]
    count = f"{len(pids)} processes" if len(pids) > 1 else "process"
    listed = ", ".join(map(str, pids[:PIDS_SHOWN])) + (", ..." if len(pids) > PIDS_SHOWN else "")
    if len(pids) == 1:
        return f"process {listed}: {', '.join(names)}" if names else f"process {listed}"
    return f"{count}: {', '.join(names) or 'python'}" + (f" ({listed})" if listed else "")


def text_lines(scene: Mapping[str, Any] | None) -> list[str]:
    """What was found, as lines for a terminal; empty where nothing was.

    Args:
        scene: The scene of a report.
    """
    told = shown(scene)
    if told is None:
        return []
    lines = ["", "NCCL's flight recorder", *(f"  {text}" for text in told["flight"])] if told["flight"] else []
    for title, key in (("where it waits", "stacks"), ("what the kernel says of the processes", "kernel")):
        lines += ["", title] if told[key] else []
        for group in told[key]:
            lines += [f"  {group['head']}", *(f"    {text}" for text in group["lines"])]
        if key == "stacks" and told["left"]:
            lines.append(f"  ... {told['left']} lines more in telemetry.jsonl")
    if told["ranks"]:
        lines += ["", "what each rank printed last", *(f"  {rank:>5}  {text}" for rank, text in told["ranks"])]
    return [*lines, *(f"note: {text}" for text in told["notes"])]


def stacks_text(scene: Mapping[str, Any] | None) -> str:
    """All stacks as a text file; empty where there are none.

    Args:
        scene: The scene of a report.
    """
    told = shown(scene, limit=1 << 20)
    if told is None or not (told["stacks"] or told["kernel"]):
        return ""
    parts = []
    for key in ("stacks", "kernel"):
        parts += ["What the kernel says of the processes"] if key == "kernel" and told[key] else []
        parts += ["\n".join([group["head"], *(f"  {text}" for text in group["lines"])]) for group in told[key]]
    return "\n\n".join(parts) + "\n"
