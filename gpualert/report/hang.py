"""A hang as a report tells of it: since when, what shows it, and what the processes were doing.

What the collector found there comes from the job's own processes: it is taken as far as it has its shape, bounded, and
made into lines of printable text before anybody shows it.
"""

from __future__ import annotations

import shlex
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpualert.report import wording
from gpualert.rundir import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpualert.telemetry.record import Telemetry

STACKS_MAX, TEXT_MAX, SCENE_MAX = 200, 64 << 10, 256 << 10
"""How many stacks there are, how many characters one has, and all of the scene."""
LINES_MAX, LINE_MAX = 200, 400
"""How many lines of stacks a mail shows, and how many characters of each."""
ROWS_MAX = 64
"""How many ranks, lines of the kernel and notes are told of."""
PIDS_SHOWN = 8
STACKS_NAME = "stacks.txt"

Hang = dict[str, Any]


def _line(value: Any) -> Any:
    """One line: a text, or an object that says it in words of its own."""
    if isinstance(value, dict):
        told = value.get("text")
        value = told if isinstance(told, str) else " ".join(str(part) for part in value.values() if _plain(part))
    return value[:LINE_MAX] if isinstance(value, str) and value.strip() else shapes.MISSING


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


_SCENE = shapes.table(
    {
        "stacks": shapes.listed(shapes.STACK),
        **dict.fromkeys(("processes", "kernel", "notes"), shapes.listed(_line)),
        "flight": _line,
        "ranks": shapes.listed(shapes.LAST_LINE),
    },
    {"stacks": list, "processes": list, "kernel": list, "flight": None, "ranks": list, "notes": list},
)
"""What the collector leaves of a scene; where it gives more than a text, its words are taken."""


def of(seen: Telemetry, ended: Mapping[str, Any] | None = None) -> Hang | None:
    """The hang that a run is in, was in when it ended, or has just come out of.

    Args:
        seen: What the collector has left.
        ended: ``hang`` of ``exit.json``: what the supervisor did about it; None where it did nothing.

    Returns:
        ``state`` (``suspected``; ``terminated`` when gpualert ended the run for it; ``over``), ``since`` (when the
        silence began), ``at`` (when that was noticed), ``silent_s``, ``why``, ``step`` (the last training step) and
        ``scene``: ``stacks`` (``pids``, ``names``, ``text``), ``processes``, ``kernel``, ``flight``, ``ranks``
        (``rank``, ``line``, ``at``) and ``notes``; a hang that is over has none. None where there was no hang.
    """
    told = seen.last("hang")
    stopped = bool(ended and ended.get("terminated"))
    if told is None and not stopped:
        return None
    told = dict(told) if told is not None else {"state": "terminated", **(ended or {})}
    if stopped:
        told["state"] = "terminated"
    over = told.get("state") == "over"
    kept = {key: told.get(key) for key in ("state", "since", "at", "silent_s", "why")}
    scene = shapes.MISSING if over else _SCENE(told.get("scene"))
    kept["scene"] = _bounded(scene) if isinstance(scene, dict) else None
    kept["step"] = (seen.last("progress") or {}).get("step")
    found = shapes.HANG(kept)
    if found is shapes.MISSING or found["state"] not in ("suspected", "over", "terminated"):
        return None
    hang: Hang = found
    hang["why"] = hang["why"][:LINE_MAX]
    return hang


def goes_on(seen: Telemetry) -> bool:
    """Whether a run hangs now.

    Args:
        seen: What the collector has left so far.
    """
    told = seen.last("hang")
    return told is not None and told.get("state") == "suspected"


def _bounded(scene: dict[str, Any]) -> dict[str, Any]:
    """A scene that fits into a report: nothing else than what is known, and not too much of it."""
    room = SCENE_MAX
    stacks = []
    for stack in scene["stacks"][:STACKS_MAX]:
        text = stack["text"][: min(room, TEXT_MAX)]
        room -= len(text)
        stacks.append(
            {"pids": stack["pids"][:ROWS_MAX], "names": [name[:120] for name in stack["names"][:4]], "text": text}
        )
        if room <= 0:
            break
    return {
        "stacks": stacks,
        **{key: scene[key][:ROWS_MAX] for key in ("processes", "kernel", "notes")},
        "flight": scene["flight"],
        "ranks": [{**row, "line": row["line"][:LINE_MAX]} for row in scene["ranks"][: 4 * ROWS_MAX]],
    }


def without_scene(report: dict[str, Any]) -> dict[str, Any]:
    """A report that tells of the hang without what was found there.

    Args:
        report: The report.
    """
    return {**report, "hang": {**report["hang"], "scene": None}} if report.get("hang") else report


# -- for a person ------------------------------------------------------------------------------------------------------


def line(hang: Mapping[str, Any]) -> str:
    """The hang in one line: ``no output for 31m; 8 processes used 0.2 % of one core``.

    Args:
        hang: The report's ``hang``.
    """
    return wording.printable(hang["why"] or f"nothing happened for {wording.duration(hang['silent_s'])}")


def shown(hang: Mapping[str, Any] | None, limit: int = LINES_MAX) -> dict[str, Any] | None:
    """What a template shows of a hang, all of it printable text; None where there is no scene to show.

    Args:
        hang: The report's ``hang``.
        limit: How many lines of stacks at most.

    Returns:
        ``stacks`` (``head`` and ``lines``), ``left`` (how many lines are not among them), ``ranks`` (number and last
        line), ``flight``, ``kernel`` and ``notes``.
    """
    scene = (hang or {}).get("scene")
    if not scene:
        return None
    stacks, left, room = [], 0, limit
    for stack in scene["stacks"]:
        lines = list(_lines(stack["text"]))
        taken = lines[: max(room, 0)]
        room -= len(taken)
        left += len(lines) - len(taken)
        if taken:
            stacks.append({"head": _head(stack), "lines": taken})
    return {
        "stacks": stacks,
        "left": left,
        "ranks": [(row["rank"], wording.printable(row["line"])) for row in scene["ranks"]],
        "flight": wording.printable(scene["flight"] or ""),
        "kernel": [wording.printable(text) for text in scene["kernel"] or scene["processes"]],
        "notes": [wording.printable(text) for text in scene["notes"]],
    }


def advice(report: Mapping[str, Any], directory: str) -> list[str]:
    """What to do about a run that hangs, and what gpualert does.

    Args:
        report: The report of the run so far.
        directory: The run directory.
    """
    told, run = report.get("hang") or {}, report["run"]
    pids = [pid for stack in (told.get("scene") or {}).get("stacks") or [] for pid in stack["pids"]]
    follow, inside = f"gpualert logs --follow {shlex.quote(directory)}", ""
    if run.get("pod"):
        pod = f"-n {run.get('namespace') or 'default'} {run['pod']}"
        follow, inside = f"kubectl logs -f {pod}", f"kubectl exec {pod} -- "
    steps = [f"look at it: {follow}; stacks of now: {inside}py-spy dump --pid {pids[0] if pids else 'PID'}"]
    if told.get("action") == "terminate":
        steps.append(
            "gpualert has sent SIGTERM and SIGKILL (hang.action = terminate), and it has not ended: something in it "
            "waits in the kernel, for a file server or a device; only that, or the node's restart, ends it"
        )
    else:
        steps.append(
            "the job still runs, and gpualert leaves it alone; with hang.action = terminate (--hang-action) it would "
            "have been ended: SIGTERM, then SIGKILL after --kill-after"
        )
    steps.append("if such a pause is usual here, raise hang.after (--hang-after); 0 turns the watch off")
    return [wording.printable(step) for step in steps]


def for_page(hang: Mapping[str, Any] | None, limit: int = LINES_MAX) -> dict[str, Any] | None:
    """What a template shows of a hang: ``line``, ``since`` and ``scene``; None where there is none.

    Args:
        hang: The report's ``hang``.
        limit: How many lines of stacks at most.
    """
    if not hang:
        return None
    return {
        "line": line(hang),
        "since": wording.printable(hang.get("since") or ""),
        "scene": shown(hang, limit),
    }


def text_lines(hang: Mapping[str, Any] | None) -> list[str]:
    """What was found there, as lines for a terminal; empty where nothing was.

    Args:
        hang: The report's ``hang``.
    """
    scene = shown(hang)
    if scene is None:
        return []
    lines = ["", "NCCL's flight recorder", f"  {scene['flight']}"] if scene["flight"] else []
    if scene["stacks"]:
        lines += ["", "where it waits"]
        for stack in scene["stacks"]:
            lines += [f"  {stack['head']}", *(f"    {text}" for text in stack["lines"])]
        lines += [f"  ... {scene['left']} lines more in telemetry.jsonl"] if scene["left"] else []
    if scene["kernel"]:
        lines += ["", "what the kernel says of the processes", *(f"  {text}" for text in scene["kernel"])]
    if scene["ranks"]:
        lines += ["", "what each rank printed last", *(f"  {rank:>5}  {text}" for rank, text in scene["ranks"])]
    return [*lines, *(f"note: {text}" for text in scene["notes"])]


def stacks_text(hang: Mapping[str, Any] | None) -> str:
    """All stacks as a text file; empty where there are none.

    Args:
        hang: The report's ``hang``.
    """
    whole = shown(hang, limit=1 << 20)
    if whole is None or not whole["stacks"]:
        return ""
    parts = ["\n".join([stack["head"], *(f"  {text}" for text in stack["lines"])]) for stack in whole["stacks"]]
    if whole["kernel"]:
        parts.append("\n".join(["What the kernel says of them", *(f"  {text}" for text in whole["kernel"])]))
    return "\n\n".join(parts) + "\n"


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
