"""A hang as a report tells of it: since when, what shows it, and what to do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gpualert.report import scene, wording
from gpualert.rundir import shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.telemetry.record import Telemetry

Hang = dict[str, Any]


def of(seen: Telemetry, ended: Mapping[str, Any] | None = None) -> Hang | None:
    """The hang that a run is in, was in when it ended, or has just come out of.

    Args:
        seen: What the collector has left.
        ended: ``hang`` of ``exit.json``: what the supervisor did about it; None where it did nothing.

    Returns:
        ``state`` (``suspected``; ``terminated`` when gpualert ended the run for it; ``over``), ``since`` (when the
        silence began), ``at`` (when that was noticed), ``silent_s``, ``why``, ``step`` (the last training step) and
        ``scene`` (see ``report.scene``; a hang that is over has none). None where there was no hang.
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
    kept["scene"] = None if over else scene.fitted(told.get("scene"))
    kept["step"] = (seen.last("progress") or {}).get("step")
    found = shapes.HANG(kept)
    if found is shapes.MISSING or found["state"] not in ("suspected", "over", "terminated"):
        return None
    hang: Hang = found
    hang["why"] = hang["why"][: scene.LINE_MAX]
    return hang


def goes_on(seen: Telemetry) -> bool:
    """Whether a run hangs now.

    Args:
        seen: What the collector has left so far.
    """
    told = seen.last("hang")
    return told is not None and told.get("state") == "suspected"


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


def for_page(hang: Mapping[str, Any] | None, limit: int = scene.LINES_MAX) -> dict[str, Any] | None:
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
        "scene": scene.shown(hang.get("scene"), limit),
    }
