"""The watcher: follows pods, Jobs and nodes, and tells of each attempt of a job that has failed, once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpualert.cluster.apierror import ApiError
from gpualert.cluster.backoff import Backoff
from gpualert.cluster.listwatch import ListWatch
from gpualert.report import attempts, incident, making
from gpualert.report.timeline import seconds_of
from gpualert.watch import marks, repeats, slim
from gpualert.watch.assessing import Assessor
from gpualert.watch.book import Book
from gpualert.watch.storm import Storm, digest
from gpualert.watch.telling import RECIPIENTS, Teller, next_mark, quietly

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.cluster.api import Api
    from gpualert.cluster.lease import Lease
    from gpualert.cluster.metrics import Metrics
    from gpualert.config import Settings
    from gpualert.config.settings import Watch
    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.incident.model import Verdict
    from gpualert.supervisor.redaction import Redaction
    from gpualert.watch.book import Attempt, Entry
    from gpualert.watch.marks import Mark, Marked
    from gpualert.watch.owners import Owner
    from gpualert.watch.slim import Object

TICK_S = 0.5
QUICK_S = 3.0
"""After all pods of an attempt have ended: their last changes come one by one."""
SKEW_MIN_S = 2.0
"""A node's clock that is off by less is taken to be right."""
SUSPECT = "gpualert.dev/suspect"
ONLY_STOPPED = frozenset({"terminated", "interrupted", "evicted"})


@dataclass(slots=True)
class Retry:
    """An attempt whose telling has not worked yet.

    Attributes:
        pauses: How long to wait before the next try.
        at: When that is, on the monotonic clock.
    """

    pauses: Backoff = field(default_factory=lambda: Backoff(5.0, 300.0))
    at: float = 0.0


class Watcher:
    """Watches, and tells.

    Args:
        api: The API server.
        settings: The settings.
        rules: Classes and rules.
        mask: Masks secrets.
        spool_directory: Where mails are kept until a server has taken them.
        lease: The election; None where there is only this one.
        metrics: What is counted.
        say: Takes a line for people.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        rules: Rulebook,
        mask: Redaction,
        spool_directory: str,
        lease: Lease | None,
        metrics: Metrics | None,
        say: Callable[[str], None],
    ) -> None:
        self.told: Watch = settings.watch
        self.api, self.settings, self.say, self._mask = api, settings, say, mask
        self.lease, self.metrics, self._spool = lease, metrics, spool_directory
        self.lock = threading.Lock()
        self.book = Book(self.told.only, self.told.unschedulable_after)
        self.nodes: dict[str, Object] = {}
        self.skews: dict[str, float] = {}
        self.storm = Storm(self.told.per_hour)
        self.repeats = repeats.Repeats()
        self.watches: list[ListWatch] = []
        self._assessor = Assessor(api, rules, mask, say, self.nodes, self.skews)
        self._teller = Teller(api, settings, mask, spool_directory, say, self.told.cluster)
        self._retries: dict[tuple[Owner, int], Retry] = {}
        self._least: dict[str, list[float]] = {}
        self._server = Retry(Backoff(2.0, 120.0))
        self._stop = threading.Event()
        self._resumed: set[tuple[str, int]] = set()

    # -- following -----------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Begin to follow what may be followed; what may not is said, with the permission that is missing."""
        namespaces = self.told.namespaces or [""]
        for namespace in namespaces:
            place = f"/namespaces/{namespace}" if namespace else ""
            self._follow(f"/api/v1{place}/pods", "", "pods", namespace, slim.pod, self._pod, needed=True)
            self._follow(f"/apis/batch/v1{place}/jobs", "batch", "jobs", namespace, slim.job, self._job)
        self._assessor.read_nodes = not self.told.namespaces
        if not self.told.namespaces:
            self._follow("/api/v1/nodes", "", "nodes", "", slim.node, self._node)
        for watch in self.watches:
            watch.start()

    def _follow(
        self, path: str, group: str, resource: str, namespace: str, keep: Any, handler: Any, *, needed: bool = False
    ) -> None:
        missing = [verb for verb in ("list", "watch") if not self.api.may(verb, resource, namespace, group)]
        if missing:
            where = f"in namespace {namespace}" if namespace else "in the whole cluster"
            line = (
                f"may not {' and '.join(missing)} {resource} {where}: grant it, or name namespaces (watch.namespaces)"
            )
            if needed:
                raise ApiError(403, "Forbidden", line)
            self.say(f"{line}; goes on without")
            return
        self.watches.append(ListWatch(self.api, path, keep, handler, say=self.say))

    def _pod(self, kind: str, pod: Object) -> None:
        if kind == "synced":
            return
        with self.lock:
            self.book.pod(pod, gone=kind == "deleted")

    def _job(self, kind: str, job: Object) -> None:
        if kind == "synced":
            return
        meta = job["metadata"]
        key = (meta["namespace"], meta["name"])
        with self.lock:
            if kind == "deleted":
                self.book.jobs.pop(key, None)
            else:
                self.book.jobs[key] = job
                self.repeats.see(job)

    def _node(self, kind: str, node: Object) -> None:
        if kind == "synced":
            return
        name = node["metadata"]["name"]
        with self.lock:
            if kind == "deleted":
                self.nodes.pop(name, None)
                return
            before = self.nodes.get(name)
            self.nodes[name] = node
            beat = seconds_of(node["beat"])
            if kind == "modified" and beat is not None and before is not None and before["beat"] != node["beat"]:
                self._clock(name, time.time() - beat)

    def _clock(self, name: str, late_s: float) -> None:
        """A node's heartbeat came so many seconds after the time that it carries; the least delay tells its clock."""
        heard = self._least.setdefault(name, [])
        heard.append(late_s)
        del heard[:-10]
        least = min(heard)
        # A clock that is ahead shows at once; one that is behind only when no delay explains it.
        ahead = least < -SKEW_MIN_S
        behind = least > SKEW_MIN_S and len(heard) >= 3
        if ahead or behind:
            self.skews[name] = -least
        else:
            self.skews.pop(name, None)

    # -- the loop ------------------------------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether all that is followed has been read in whole."""
        return bool(self.watches) and all(watch.synced for watch in self.watches)

    @property
    def leads(self) -> bool:
        """Whether this one acts."""
        return self.lease is None or self.lease.held

    def run(self) -> None:
        """Watch until stopped."""
        while not self._stop.wait(TICK_S):
            if self.synced and self.leads:
                self.look()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        for watch in self.watches:
            watch.stop()

    def look(self) -> None:
        """One look at everything: tell what is due."""
        with self.lock:
            self.book.look_again()
            due = list(self.book.due(self.told.settle, self.told.settle_most, QUICK_S))
            pending = self._left_by_others()
        for marked, report in pending:
            self._resume(marked, report)
        for attempt in due:
            key = (attempt.owner, attempt.number)
            retry = self._retries.get(key)
            if self._stop.is_set() or not self.leads or (retry is not None and time.monotonic() < retry.at):
                continue
            try:
                done = self._attend(attempt)
            except ApiError as error:
                self.say(f"{attempt.owner}: {error}")
                done = False
            if done:
                self._retries.pop(key, None)
            else:
                retry = self._retries.setdefault(key, Retry())
                retry.at = time.monotonic() + retry.pauses.next()
        self._send_digests()
        if self.metrics is not None:
            self.metrics.mail_pending(len(self._retries))

    def _left_by_others(self) -> list[tuple[Marked, dict[str, Any]]]:
        """Reports that somebody kept on a Job and has not told: the pods may be gone."""
        found = []
        for job in self.book.jobs.values():
            notes, meta = job["metadata"]["annotations"], job["metadata"]
            path = f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs/{meta['name']}"
            if marks.PENDING in notes and (path, hash(notes[marks.PENDING])) not in self._resumed:
                self._resumed.add((path, hash(notes[marks.PENDING])))
                raw = {"metadata": {"resourceVersion": "", "uid": meta["uid"], "annotations": notes}}
                marked = marks.of(path, raw)
                if marked.pending is not None:
                    found.append((marked, marked.pending))
        return found

    def _resume(self, seen: Marked, report: dict[str, Any]) -> None:
        """Tell what a watcher before this one has marked and not told."""
        with self.lock:
            alive = any(
                attempt.owner.namespace == report["run"]["namespace"]
                and attempt.owner.name == report["run"]["name"]
                and attempt.number == report["incident"]["attempt"]
                for attempt in self.book.attempts.values()
            )
        if alive:
            return  # it comes up by its pods
        with quietly(self.say, seen.path):
            marked = marks.read(self.api, seen.path)
            mark = marked.marks.get(report["incident"]["attempt"]) if marked is not None else None
            if marked is None or mark is None or marked.pending is None:
                return
            if mark.state == "digest":
                self.storm.waiting[report["run"]["namespace"]].setdefault(mark.incident, report)
            elif mark.state == "telling":
                if self._mail(report, marked.annotations.get(RECIPIENTS)):
                    self._teller.mark(marked, replace(mark, state="told"), report, pending=False)
                else:
                    self._resumed.discard((seen.path, hash(seen.annotations.get(marks.PENDING, ""))))

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _attend(self, attempt: Attempt) -> bool:
        """Look at an attempt that has failed and stands still, and tell of it where that has not been done.

        Returns:
            Whether nothing is left to do for now.
        """
        with self.lock:
            job = (
                self.book.jobs.get((attempt.owner.namespace, attempt.owner.name))
                if attempt.owner.kind == "Job"
                else None
            )
            state = attempt.changed_at
            if attempt.told == f"{state}":
                return True
        verdict, ranks = self._assessor.assess(attempt, job)
        if verdict.cls == "success":
            self._settled(attempt, state)
            return True
        marked = self._marked(attempt)
        if marked is None and self._was_taken_away(verdict, attempt):
            self._settled(attempt, state)  # somebody has deleted the job, and its pods ended with it
            return True
        if marked is not None and marked.deleted and self._was_taken_away(verdict, attempt):
            self._settled(attempt, state)
            return True
        report = self._report(attempt, verdict, ranks, marked)
        # The marks go with the job, and its pods change once more by going: that is nothing new.
        said = (verdict.cls, tuple(sorted(str(row["name"]) for row in report["ranks"] if row["role"] == "root")))
        done = attempt.verdict == said or self._tell(attempt, report, marked)
        if done:
            attempt.verdict = said
            self._settled(attempt, state)
        return done

    def _settled(self, attempt: Attempt, state: float) -> None:
        with self.lock:
            attempt.told = f"{state}"

    def _was_taken_away(self, verdict: Verdict, attempt: Attempt) -> bool:
        with self.lock:
            gone = all(entry.gone or entry.life.pod["metadata"]["deleted"] for entry in attempt.entries.values())
        return verdict.cls in ONLY_STOPPED or (gone and verdict.cls == "unknown" and verdict.confidence <= 0.5)

    def _marked(self, attempt: Attempt) -> Marked | None:
        """The object that carries the attempt's marks: the job, else the first of its pods that is still there."""
        path = attempt.owner.path if not attempt.owner.part or attempt.owner.kind != "Pod" else None
        if path is not None:
            try:
                marked = marks.read(self.api, path)
            except ApiError as error:
                if error.status != 403:
                    raise
                self.say(f"{attempt.owner} may not be read ({error}): marks go on its pods")
            else:
                if marked is not None or attempt.owner.kind == "Pod":
                    return marked
        for entry in self._present(attempt):
            meta = entry.life.pod["metadata"]
            marked = marks.read(self.api, f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")
            if marked is not None and marked.uid == meta["uid"]:
                return marked
        return None

    def _present(self, attempt: Attempt) -> list[Entry]:
        with self.lock:
            entries = [entry for entry in attempt.entries.values() if not entry.gone]
        return sorted(entries, key=lambda entry: str(entry.life.pod["metadata"]["name"]))

    def _report(
        self, attempt: Attempt, verdict: Verdict, ranks: dict[tuple[str, int], Any], marked: Marked | None
    ) -> dict[str, Any]:
        owner = attempt.owner
        uid = marked.uid if marked is not None else min(uid for uid, _ in attempt.entries)
        name = owner.part if owner.kind == "Pod" and owner.part else owner.name
        parts = (owner.namespace, owner.kind.lower(), owner.name, owner.part, uid[:8], str(attempt.number))
        told = ".".join(part for part in parts if part)
        job = incident.Job(told, name, owner.kind, owner.namespace, attempt.number, owner.path or "")
        first = next(iter(verdict.roots), None)
        broken = next(
            (attempt.entries[key] for key, rank in ranks.items() if first is not None and rank.name == first.name), None
        )
        quotes = self._assessor.quotes(broken) if broken is not None else None
        return incident.build(job, verdict, self._mask, quotes=quotes, trouble=[])

    def _tell(self, attempt: Attempt, report: dict[str, Any], marked: Marked | None) -> bool:
        owner, namespace = attempt.owner, attempt.owner.namespace
        if marked is not None:
            for known in marked.marks.values():
                self.storm.seen(namespace, known)
        before = marked.marks.get(attempt.number) if marked is not None else None
        mark = next_mark(before, attempt.number, report)
        if mark is None:
            if before is not None and before.state == "digest":
                self.storm.waiting[namespace].setdefault(before.incident, report)
            return True
        now = time.time()
        with self.lock:
            found = self.repeats.note(attempt, marked, self.book.jobs.values(), report)
        mark = repeats.marking(mark, found)
        may_be_held = found is not None and self._may_be_held(attempt, marked, before, report)
        if found is not None and may_be_held and attempts.hold(report, found, now):
            return self._hold(attempt, marked, mark, report, counted=before is not None)
        own = before is not None or self.storm.may(namespace, now)
        if marked is not None:
            state = replace(mark, state="telling" if own else "digest")
            marked = self._mark(marked, state, report, pending=True)
            if marked is None:
                return False  # it has changed under us: look again
        if not self.leads:
            return False
        self._teller.event(owner, marked.uid if marked is not None else "", report)
        report["incident"]["path"] = marked.path if marked is not None else None
        if not own:
            self.storm.waiting[namespace][report["incident"]["id"]] = report
            self._count(attempt, report)
            return True
        told = self._mail(report, self._recipients(attempt, marked))
        if told:
            self.storm.told[namespace][f"{mark.incident} {mark.revision}"] = now
            if before is None:
                self._count(attempt, report)
            self._label(report)
            if marked is not None:
                mark = replace(mark, state="told", at=now)
                written = self._mark(marked, mark, report, pending=False) if marked.path else None
                self.repeats.remember(owner, written or marked, mark)
        return told

    def _may_be_held(
        self, attempt: Attempt, marked: Marked | None, before: Mark | None, report: dict[str, Any]
    ) -> bool:
        """Whether it may wait for one that follows: not when it was told, or somebody was at it."""
        settings = self._teller.settings_for(self._recipients(attempt, marked))
        return (before is None or before.state == marks.HELD) and making.may_be_held(report, settings)

    def _hold(
        self, attempt: Attempt, marked: Marked | None, mark: Mark, report: dict[str, Any], *, counted: bool
    ) -> bool:
        """Mark that the same has happened again, and mail nobody; the Event and the count are as ever."""
        mark = replace(mark, state=marks.HELD)
        if marked is not None:
            now_marked = self._mark(marked, mark, report, pending=False)
            if now_marked is None:
                return False  # it has changed under us: look again
            self.repeats.remember(attempt.owner, now_marked, mark)
        self.say(f"{attempt.owner}: {attempts.held(report)}")
        if self.leads:
            self._teller.event(attempt.owner, marked.uid if marked is not None else "", report)
            if not counted:
                self._count(attempt, report)
        return True

    def _mail(self, report: dict[str, Any], recipients: str | None) -> bool:
        """Mail, unless the server did not answer a moment ago: then all wait together."""
        if time.monotonic() < self._server.at:
            return False
        if self._teller.mail(report, recipients):
            self._server.pauses.reset()
            return True
        self._server.at = time.monotonic() + self._server.pauses.next()
        return False

    def _mark(self, marked: Marked, mark: Mark, report: dict[str, Any], *, pending: bool) -> Marked | None:
        """Write a mark; where that is not allowed it is said, and remembered only as long as this process lives."""
        try:
            return self._teller.mark(marked, mark, report, pending=pending)
        except ApiError as error:
            if error.status != 403:
                raise
            self.say(f"{marked.path} may not be patched ({error}): after a restart of the watcher it is told again")
            return replace(marked, path="")

    def _recipients(self, attempt: Attempt, marked: Marked | None) -> str | None:
        if marked is not None and RECIPIENTS in marked.annotations:
            return marked.annotations[RECIPIENTS]
        notes = (entry.life.pod["metadata"]["annotations"] for entry in attempt.entries.values())
        return next((note[RECIPIENTS] for note in notes if RECIPIENTS in note), None)

    def _count(self, attempt: Attempt, report: dict[str, Any]) -> None:
        if self.metrics is None:
            return
        failed = attempt.first_failure_at
        delay = time.time() - failed if failed is not None else 0.0
        hours = report["cost"]["gpu_hours"] if report["cost"] else 0.0
        self.metrics.incident(report["diagnosis"]["class"], report["diagnosis"]["family"], delay, hours)

    def _label(self, report: dict[str, Any]) -> None:
        """Label the nodes that are suspect; only where that is wanted, and never a cordon."""
        if not self.told.label_nodes or not report["diagnosis"]["node_suspect"]:
            return
        for name in report["incident"]["nodes"]:
            with quietly(self.say, f"no label on node {name}"):
                self.api.patch(
                    f"/api/v1/nodes/{name}", {"metadata": {"labels": {SUSPECT: report["diagnosis"]["class"]}}}
                )

    # -- what waits ----------------------------------------------------------------------------------------------------

    def _send_digests(self) -> None:
        now = time.time()
        for namespace in self.storm.due(now, self.told.digest_every):
            reports = list(self.storm.waiting[namespace].values())
            self.storm.digest_at[namespace] = now
            if self._mail(digest(namespace, reports, self.told.per_hour), None):
                self.storm.waiting[namespace].clear()
                for report in reports:
                    self._digested(report)

    def _digested(self, report: dict[str, Any]) -> None:
        """Mark that an incident was told in a digest."""
        path = report["incident"].get("path")
        with quietly(self.say, str(path)):
            marked = marks.read(self.api, path) if path else None
            mark = marked.marks.get(report["incident"]["attempt"]) if marked is not None else None
            if marked is not None and mark is not None and mark.state == "digest":
                self._teller.mark(marked, replace(mark, state="told"), report, pending=False)
