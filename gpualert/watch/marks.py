"""What has been told of a job, marked on the job itself: the watcher's only memory.

``gpualert.dev/incidents`` lists the attempts that were told of, ``gpualert.dev/verdict`` holds the last verdict for
programs, ``gpualert.dev/pending`` a report that no channel has taken yet. Writes carry the version that was read, so
of two watchers that tell at once one is refused before it has told anybody.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpualert.cluster.apierror import ApiError
from gpualert.rundir import shapes

if TYPE_CHECKING:
    from gpualert.cluster.api import Api

INCIDENTS, VERDICT, PENDING = "gpualert.dev/incidents", "gpualert.dev/verdict", "gpualert.dev/pending"
HELD = "held"
KEPT = 20
"""Attempts that are remembered on a job."""
PENDING_MAX = 100_000
"""Bytes of an annotation; all of an object's together may have 256 KiB (Kubernetes, "Annotations")."""
UNPACKED_MAX = 8 << 20

_MORE_FIELDS: dict[str, shapes.Shape] = {
    **dict.fromkeys(("fingerprint", "node"), shapes.text),
    **dict.fromkeys(("same", "number"), shapes.count),
    **dict.fromkeys(("step", "epoch", "took_s", "first_at", "ended_at"), shapes.seconds),
}
_MORE = shapes.table(_MORE_FIELDS)


@dataclass(frozen=True, slots=True)
class Mark:
    """What has been told of one attempt.

    Attributes:
        attempt: Which attempt.
        incident: The incident's id.
        cls: The class that was told.
        roots: The names of the ranks that broke first.
        revision: How often the verdict has changed.
        state: ``telling`` (somebody is at it, or was cut off), ``told``, ``digest`` (waits for the digest) or ``held``
            (the same as before: told with one that follows).
        at: When, in seconds since 1970.
        fingerprint: That of the failure; empty where a version before this one has marked it.
        same: How often it was the same without progress until then.
        number: How many attempts had failed in a row.
        step: How far it got.
        epoch: The same in epochs.
        took_s: How long it took, in seconds.
        node: Where it broke.
        first_at: When the first of the same ended, in seconds since 1970.
        ended_at: When it ended.
    """

    attempt: int
    incident: str
    cls: str
    roots: tuple[str, ...] = ()
    revision: int = 0
    state: str = "telling"
    at: float = 0.0
    fingerprint: str = ""
    same: int = 0
    number: int = 0
    step: float | None = None
    epoch: float | None = None
    took_s: float | None = None
    node: str | None = None
    first_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Marked:
    """An object of the API with its marks.

    Attributes:
        path: The object's path.
        version: Its resourceVersion.
        uid: Its uid.
        deleted: It is being deleted.
        marks: What has been told of it, by attempt.
        pending: The report that still has to be told; None where there is none.
        annotations: All of its annotations that are ours.
    """

    path: str
    version: str
    uid: str
    deleted: bool = False
    marks: dict[int, Mark] = field(default_factory=dict)
    pending: dict[str, Any] | None = None
    annotations: dict[str, str] = field(default_factory=dict)


def read(api: Api, path: str) -> Marked | None:
    """An object's marks; None where the object is gone.

    Args:
        api: The API server.
        path: The object's path.

    Raises:
        ApiError: It cannot be read for another reason.
    """
    try:
        return of(path, api.get(path))
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def of(path: str, raw: dict[str, Any]) -> Marked:
    """The marks of an object that has been read.

    Args:
        path: Its path.
        raw: The object.
    """
    meta = raw["metadata"]
    notes = {key: str(text) for key, text in (meta.get("annotations") or {}).items() if key.startswith("gpualert.dev/")}
    deleted = bool(meta.get("deletionTimestamp"))
    return Marked(path, str(meta["resourceVersion"]), meta["uid"], deleted, of_notes(notes), _pending(notes), notes)


def of_notes(notes: dict[str, str]) -> dict[int, Mark]:
    """The marks in annotations; none where somebody else has written there.

    Args:
        notes: The annotations.
    """
    try:
        rows = json.loads(notes.get(INCIDENTS, "[]"))
        marks = [
            Mark(
                int(row["attempt"]), str(row["incident"]), str(row["cls"]), tuple(map(str, row["roots"])),
                int(row["revision"]), str(row["state"]), float(row["at"]), **_more(row),
            )
            for row in rows
        ]  # fmt: skip
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}  # somebody has written over it: told once more is better than never
    return {mark.attempt: mark for mark in marks}


def _more(row: dict[str, Any]) -> dict[str, Any]:
    """What was not marked from the beginning, as far as it fits."""
    found = _MORE(row)
    return {name: found[name] for name in _MORE_FIELDS if found.get(name) is not None}


def _pending(notes: dict[str, str]) -> dict[str, Any] | None:
    if PENDING not in notes:
        return None
    try:
        packed = base64.b64decode(notes[PENDING], validate=True)
        report = json.loads(zlib.decompressobj().decompress(packed, UNPACKED_MAX))
        _ = report["run"]["run_id"], report["diagnosis"]["class"], report["incident"]["attempt"], report["ranks"]
    except (ValueError, TypeError, KeyError, binascii.Error, zlib.error, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def write(api: Api, marked: Marked, mark: Mark, report: dict[str, Any] | None, *, pending: bool) -> Marked:
    """Mark an attempt.

    Args:
        api: The API server.
        marked: The object as it was read.
        mark: What to mark.
        report: The incident's report; None leaves the verdict and what is pending as they are.
        pending: The report has still to be told, and is kept on the object.

    Returns:
        The object as it is now.

    Raises:
        ApiError: It is newer (409), gone (404), or may not be written (403).
    """
    mark = replace(mark, at=time.time())
    kept = {**marked.marks, mark.attempt: mark}
    rows = [
        {name: value for name, value in asdict(kept[number]).items() if value is not None}
        for number in sorted(kept)[-KEPT:]
    ]
    notes: dict[str, str | None] = {INCIDENTS: json.dumps(rows, separators=(",", ":"))}
    if report is not None:
        notes[VERDICT] = json.dumps(verdict(report), ensure_ascii=False, separators=(",", ":"))
        notes[PENDING] = pack(report) if pending else None
    body = {"metadata": {"resourceVersion": marked.version, "annotations": notes}}
    return of(marked.path, api.patch(marked.path, body))


def verdict(report: dict[str, Any]) -> dict[str, Any]:
    """What programs want to know of an incident: the shape of the termination message's last line.

    Args:
        report: The incident's report.
    """
    diagnosis, run, told = report["diagnosis"], report["run"], report["incident"]
    return {
        "gpualert": 1,
        "incident": told["id"],
        "attempt": told["attempt"],
        "class": diagnosis["class"],
        "family": diagnosis["family"],
        "confidence": diagnosis["confidence"],
        "summary": diagnosis["summary"][:400],
        "roots": [row["name"] for row in report["ranks"] if row["role"] == "root"][:16],
        "rank": run["rank"],
        "node": run["node"],
        "retryable": diagnosis["retryable"],
        "node_suspect": diagnosis["node_suspect"],
        "ranks": len(report["ranks"]),
        "at": report["made_at"],
    }


def pack(report: dict[str, Any]) -> str:
    """A report as an annotation; what is quoted goes first where it is too long, then the ranks that only followed."""
    shorter: dict[str, Any] = {**report, "quotes": {"context": [], "traceback": [], "tail": []}}
    first = [row for row in report["ranks"] if row["role"] in ("root", "silent")]
    shortest = {**shorter, "ranks": (first or report["ranks"])[:50]}
    text = ""
    for tried in (report, shorter, shortest):
        text = base64.b64encode(zlib.compress(json.dumps(tried).encode(), 6)).decode("ascii")
        if len(text) <= PENDING_MAX:
            break
    return text
