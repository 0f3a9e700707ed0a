"""Storm control: of many incidents in an hour and namespace only some have a mail of their own, the rest one digest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpualert import __version__
from gpualert.report import building, incident
from gpualert.rundir.clock import now_us, rfc3339

if TYPE_CHECKING:
    from gpualert.watch.marks import Mark

HOUR_S = 3600.0
ROWS_MAX = 200


@dataclass(slots=True)
class Storm:
    """Counts what has been told, by namespace; what is marked on the jobs is counted too after a restart.

    Attributes:
        per_hour: How many incidents of a namespace have a mail of their own in an hour; 0 for all.
        told: When incidents were told, in seconds since 1970, by namespace and incident.
        waiting: Incidents that wait for the digest, by namespace: their reports.
        digest_at: When the last digest of a namespace went out.
    """

    per_hour: int
    told: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    waiting: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    digest_at: dict[str, float] = field(default_factory=dict)

    def seen(self, namespace: str, mark: Mark) -> None:
        """A mark that was found on a job.

        Args:
            namespace: The job's namespace.
            mark: The mark.
        """
        if mark.state == "told":
            self.told[namespace].setdefault(f"{mark.incident} {mark.revision}", mark.at)

    def may(self, namespace: str, now: float) -> bool:
        """Whether another incident of a namespace may have a mail of its own.

        Args:
            namespace: The namespace.
            now: Seconds since 1970.
        """
        if not self.per_hour:
            return True
        recent = {key: at for key, at in self.told[namespace].items() if now - at < HOUR_S}
        self.told[namespace] = recent
        return len(recent) < self.per_hour

    def due(self, now: float, every_s: float) -> list[str]:
        """The namespaces whose digest is due.

        Args:
            now: Seconds since 1970.
            every_s: How often, in seconds.
        """
        return [
            name for name, reports in self.waiting.items() if reports and now - self.digest_at.get(name, 0) >= every_s
        ]


def digest(namespace: str, reports: list[dict[str, Any]], per_hour: int) -> dict[str, Any]:
    """One report for many incidents, shaped like an incident whose ranks are the jobs.

    Args:
        namespace: The namespace.
        reports: The incidents' reports.
        per_hour: How many have a mail of their own.
    """
    counts: dict[str, int] = defaultdict(int)
    for report in reports:
        counts[report["diagnosis"]["class"]] += 1
    classes = ", ".join(f"{count} {cls}" for cls, count in sorted(counts.items(), key=lambda item: -item[1]))
    suspects = sorted({str(r["run"]["node"]) for r in reports if r["diagnosis"]["node_suspect"] and r["run"]["node"]})
    first = max(reports, key=lambda report: report["diagnosis"]["confidence"])
    now = rfc3339(now_us())
    rows = [_row(report) for report in reports[:ROWS_MAX]]
    text = f"{len(reports)} more incidents in {namespace}: {classes}"
    if suspects:
        text += f"; suspect nodes: {', '.join(suspects[:10])}"
    return {
        "schema": building.SCHEMA,
        "incident": {
            "id": f"digest-{namespace}-{now}", "kind": "Namespace", "attempt": 0, "revision": 0, "broke_at": None,
            "roots": [], "nodes": suspects, "digest": [report["incident"]["id"] for report in reports],
        },
        "run": {
            "run_id": f"digest-{namespace}-{now}", "name": namespace, "job": None, "namespace": namespace, "host": None,
            "rank": None, "world_size": None, "node": None, "started_at": None, "gpus": None,
        },
        "exit": {"exit_code": None, "signal": None, "duration_s": None, "ended_at": None, "last_output_at": None},
        "diagnosis": {
            **first["diagnosis"], "summary": text, "root": None, "evidence": [], "confidence": 1.0,
            "suggestions": [f"more than {per_hour} incidents an hour in one namespace: look for what they share"],
        },
        "silent_s": None, "cost": None, "timeline": None, "ranks": rows, "missing": [], "facts": [],
        "quotes": incident.NO_QUOTES, "artifacts": [], "notifications": [], "trouble": [],
        "made_at": now, "gpualert": __version__,
    }  # fmt: skip


def _row(report: dict[str, Any]) -> dict[str, Any]:
    diagnosis, run = report["diagnosis"], report["run"]
    return {
        "rank": run["rank"], "name": f"{report['incident']['kind']} {run['name']}", "node": run["node"], "role": "root",
        "state": "failed", "class": diagnosis["class"], "summary": diagnosis["summary"], "root": None,
        "exit_code": report["exit"]["exit_code"], "signal": report["exit"]["signal"],
        "broke_at": report["incident"]["broke_at"], "ended_at": report["exit"]["ended_at"], "after_s": None,
        "log": None, "run_id": run["run_id"],
    }  # fmt: skip
