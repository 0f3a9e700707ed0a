"""A group's earlier attempts: the incidents that lie beside its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpualert.attempts import earlier, identity
from gpualert.report import attempts
from gpualert.report.timeline import seconds_of
from gpualert.rundir.writer import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.attempts.streak import Streak
    from gpualert.group.members import Members

DIRECTORY = "incident"


def note(group: Members, report: dict[str, Any], where: str) -> Streak | None:
    """Look at the incidents before a group's, and write into its report what they say.

    Args:
        group: The group.
        report: The incident's report; ``attempt`` and ``progress`` are filled in, its advice may change.
        where: The incident's own directory.

    Returns:
        The streak; None for a success.
    """
    report["progress"] = _furthest(group)
    whose = identity_of(group)
    parent = os.path.dirname(os.path.dirname(os.path.abspath(group.directory)))
    began = seconds_of(report["run"].get("started_at"))
    others = [path for path in _incidents(parent) if path != os.path.abspath(where)]
    found = attempts.note(report, whose, earlier.of_incidents(others, began, whose) if began is not None else ())
    if found is not None:
        report["attempt"]["identity"] = list(whose)
    return found


def identity_of(group: Members) -> tuple[str, ...]:
    """Whose incident it is: the same for all attempts of a job.

    Args:
        group: The group.
    """
    run = min(group.listed, key=lambda member: member.rank).registered
    name = identity.scheduled_name(str(run.get("job") or run.get("name") or ""))
    return ("group", str(run.get("namespace") or ""), name, str(run.get("cwd") or ""))


def _furthest(group: Members) -> dict[str, Any] | None:
    """How far the ranks were: the one that got furthest."""
    told = [member.reported.get("progress") for member in group.listed if member.reported]
    known = [one for one in told if isinstance(one, dict)]
    return max(known, key=lambda one: (_real(one.get("epoch")), _real(one.get("step"))), default=None)


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0


def _incidents(parent: str) -> list[str]:
    """The directories of incidents, those of the groups that changed last first."""
    groups = sorted(_directories(parent), key=_changed, reverse=True)[: earlier.LOOKED_AT]
    found = [os.path.join(path, DIRECTORY) for group in groups for path in _directories(group)]
    return sorted(found, key=lambda path: _changed(os.path.join(path, REPORT)), reverse=True)


def _directories(path: str) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            yield from (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
