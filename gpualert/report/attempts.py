"""What earlier attempts say of a failure, in words: advice, whether it is told of now, and the table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.attempts import earlier, identity, streak
from gpualert.report import wording
from gpualert.report.timeline import seconds_of
from gpualert.rundir.clock import rfc3339, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpualert.attempts.streak import Attempt, Streak

LOOP = 3
"""So often the same without progress is called a crash loop."""
ROWS_MAX = 20
NODES_MAX = 5
HELD = "held"
CHANNEL = "all"
_COLUMNS = ("when", "after", "got to", "node", "class", "told", "run")


def of_run(path: str, facts: dict[str, Any], report: dict[str, Any]) -> Streak | None:
    """Look at a run's earlier attempts, and write into its report what they say.

    Args:
        path: The run's directory.
        facts: What its ``run.json`` holds.
        report: The report; ``attempt`` is filled in, the diagnosis' suggestions and ``retryable`` may change.

    Returns:
        The streak that it belongs to; None for a success.
    """
    whose = identity.of(facts)
    return note(report, whose, earlier.of_run(path, facts))


def note(report: dict[str, Any], whose: tuple[str, ...], before: Iterable[Attempt]) -> Streak | None:
    """Write into a report what the attempts before say.

    Args:
        report: The report of a run or an incident; changed.
        whose: The job (see ``identity.of``).
        before: Its earlier attempts, newest first.

    Returns:
        The streak; None for a success.
    """
    report["attempt"] = None
    if report["diagnosis"]["class"] == "success":
        return None
    found = streak.of(earlier.attempt_of(report, whose), before)
    apply(report, found)
    return found


def apply(report: dict[str, Any], found: Streak) -> None:
    """Write a streak into a report.

    Args:
        report: The report; changed.
        found: The streak.
    """
    diagnosis, last = report["diagnosis"], found.attempts[-1]
    advice = advise(found, diagnosis)
    report["attempt"] = {
        "fingerprint": last.fingerprint,
        "number": found.number,
        "same": found.same,
        "first_at": _stamp(found.first_at),
        "last_at": _stamp(last.ended_at),
        "progress": [_row(one) for one in found.attempts[-ROWS_MAX:]],
        "held": [_row(one) for one in found.held[-ROWS_MAX:]],
        "held_count": len(found.held),
        "place": place(found)[1],
        "advice": advice,
        "loop": False,
    }
    if advice is not None:
        diagnosis["suggestions"] = [advice, *diagnosis["suggestions"]]


def advise(found: Streak, diagnosis: dict[str, Any]) -> str | None:
    """What the attempts so far advise; None where they advise nothing.

    Args:
        found: The streak.
        diagnosis: The diagnosis of the last one; ``retryable`` and ``node_suspect`` are changed.
    """
    if found.same < 2 or found.stopped:
        return None
    where = ""
    if diagnosis["node_suspect"]:
        nodes = [one.node for one in found.attempts]
        names = [name for name in dict.fromkeys(nodes) if name]
        if len(names) == 1 and all(nodes):
            return f"same node each time ({_name(names[0])}): exclude it"
        if len(names) == len(nodes):
            diagnosis["node_suspect"] = False
            shown = ", ".join(map(_name, names[-NODES_MAX:]))
            where = f"; another node each time ({'..., ' if len(names) > NODES_MAX else ''}{shown}): not the node"
    # What may pass by itself has a second chance.
    if found.same < 3 and diagnosis["retryable"]:
        return where.removeprefix("; ") or None
    diagnosis["retryable"] = False
    words = place(found)[0]
    return f"do not retry: the same failure {found.same} times in {span(found.lasted_s)}{words}{where}"


def place(found: Streak) -> tuple[str, str]:
    """Where the attempts of a streak came to: `` at the same step (41200)`` and ``same step 41200``.

    Args:
        found: The streak.

    Returns:
        As a sentence goes on, and short; empty where nothing is known.
    """
    for word, values in (
        ("step", [one.step for one in found.attempts]),
        ("epoch", [one.epoch for one in found.attempts]),
    ):
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            low, high = min(known), max(known)
            if high - low <= max(streak.FEW * high, 1 if word == "step" else 0):
                last = f"{known[-1]:.10g}"
                return f" at the same {word} ({last})", f"same {word} {last}"
            return f", never beyond {word} {high:.10g}", f"never beyond {word} {high:.10g}"
        if known:
            return f", never beyond {word} {max(known):.10g}", f"never beyond {word} {max(known):.10g}"
    took = [one.duration_s for one in found.attempts if one.duration_s is not None]
    if len(took) < found.same or max(took) > streak.ALIKE * min(took):
        return "", ""
    return f", each after about {span(took[-1])}", f"each after about {span(took[-1])}"


def span(length_s: float) -> str:
    """``25m``, ``3h12m``, ``40s``: without seconds from ten minutes on.

    Args:
        length_s: A time span in seconds.
    """
    rounded = round(length_s / 60) * 60 if length_s >= 600 else length_s
    return wording.duration(rounded).removesuffix("00s").removesuffix("00m")


def hold(report: dict[str, Any], found: Streak, now: float) -> bool:
    """Hold a notification back where the same was told before; the report says that, and why.

    Args:
        report: The report; its notifications are filled in.
        found: The streak that it is the last of.
        now: Seconds since 1970.

    Returns:
        Whether it is held.
    """
    report["attempt"]["loop"] = found.same >= LOOP
    if streak.is_due(found, now):
        return False
    report["notifications"] = [entry(found.same, _last_told(found), now)]
    return True


def entry(same: int, told_at: float | None, now: float) -> dict[str, Any]:
    """What ``notifications`` says of one that is held.

    Args:
        same: How often the same has happened.
        told_at: When somebody was told last, in seconds since 1970.
        now: Seconds since 1970.
    """
    later = f", or one after {_stamp(told_at + streak.HOUR_S)[11:16]}Z" if told_at is not None else ""
    why = f"the same failure {same} times; number {streak.next_milestone(same)} is told{later} (notify.repeats)"
    return {"channel": CHANNEL, "to": [], "outcome": HELD, "detail": why, "at": seconds(int(now * 1e6))}


def held(report: dict[str, Any]) -> str:
    """Why a report's notification is held back, in a few words; empty where it is not.

    Args:
        report: The report.
    """
    for row in report["notifications"]:
        if row["outcome"] == HELD:
            return f"nobody told: {row['detail']}"
    return ""


def headline(report: dict[str, Any]) -> str:
    """``crash loop: cuda_oom 5 times in 25m (same step 41200)``; empty where it is none.

    Args:
        report: The report.
    """
    told = report.get("attempt")
    if not told or not told.get("loop"):
        return ""
    cls = report["diagnosis"]["class"]
    lasted = span(max((seconds_of(told["last_at"]) or 0.0) - (seconds_of(told["first_at"]) or 0.0), 0.0))
    what = "stopped again" if cls in streak.STOPPED else "crash loop"
    where = f" ({told['place']})" if told["place"] else ""
    return f"{what}: {cls} {told['same']} times in {lasted}{where}"


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """The table of earlier attempts: those with the same failure, and whatever else nobody was told of.

    Args:
        report: The report.

    Returns:
        For each row ``when``, ``after``, ``got to``, ``node``, ``class``, ``told`` and ``run``; oldest first.
    """
    told = report.get("attempt")
    if not told:
        return []
    listed = {row["run_id"]: row for row in (*told["progress"][:-1], *told["held"])}
    found = [_shown(row) for row in sorted(listed.values(), key=lambda row: str(row["at"]))]
    left = told["held_count"] - len(told["held"])
    if left > 0:
        found.insert(0, dict.fromkeys(_COLUMNS, "") | {"when": f"and {left} more", "told": "no"})
    return found


def text(report: dict[str, Any]) -> list[str]:
    """The table as lines of text.

    Args:
        report: The report.
    """
    listed = rows(report)
    if not listed:
        return []
    columns = [name for name in _COLUMNS if any(row[name] for row in listed)]
    table = [dict(zip(_COLUMNS, _COLUMNS, strict=True)), *listed]
    widths = {name: min(max(len(row[name]) for row in table), 60) for name in columns}
    return ["  ".join(row[name][:60].ljust(widths[name]) for name in columns).rstrip() for row in table]


def _shown(row: dict[str, Any]) -> dict[str, str]:
    step, epoch = row["step"], row["epoch"]
    got = f"step {step:.10g}" if step is not None else f"epoch {epoch:.4g}" if epoch is not None else ""
    return {
        "when": f"{row['at'][:10]} {row['at'][11:19]}Z",
        "after": wording.duration(row["duration_s"]),
        "got to": got,
        "node": _name(row["node"] or ""),
        "class": _name(row["class"]),
        "told": "no" if row["told_at"] is None else "yes",
        "run": _name(row["run_id"]),
    }


def _row(one: Attempt) -> dict[str, Any]:
    return {
        "run_id": one.run_id,
        "at": _stamp(one.ended_at),
        "duration_s": one.duration_s,
        "step": one.step,
        "epoch": one.epoch,
        "node": one.node,
        "class": one.cls,
        "told_at": _stamp(one.told_at) if one.told_at is not None else None,
    }


def _last_told(found: Streak) -> float | None:
    return max((one.told_at for one in found.attempts if one.told_at is not None), default=None)


def _name(text: str) -> str:
    return wording.printable(str(text))[:80]


def _stamp(at_s: float) -> str:
    return rfc3339(int(min(max(at_s, 0.0), 1e11) * 1e6))
