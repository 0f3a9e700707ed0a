"""Looking at an attempt as a whole: its pods, its nodes, its Events, and the verdict over them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpualert.cluster.apierror import ApiError
from gpualert.incident import judge
from gpualert.incident.model import MachineFact
from gpualert.incident.outside import meaning
from gpualert.report import incident
from gpualert.report.timeline import seconds_of
from gpualert.watch import ends, evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpualert.cluster.api import Api
    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.incident.model import Rank, Verdict
    from gpualert.supervisor.redaction import Redaction
    from gpualert.watch.book import Attempt, Entry
    from gpualert.watch.slim import Object

LOG_LINES, LOG_BYTES = 400, 256 << 10
LOGS_MAX = 16
"""Of how many pods without gpualert the log is read, those that ended first."""
QUOTED_LINES, QUOTED_BYTES = 40, 16 << 10


@dataclass(slots=True)
class Assessor:
    """Assesses attempts.

    Attributes:
        api: The API server.
        rules: Classes and rules.
        mask: Masks secrets.
        say: Takes a line for people.
        nodes: The nodes, slimmed, by name; empty where they may not be read.
        skews: How far a node's clock is ahead, in seconds, by name.
        read_nodes: Events on nodes may be read.
    """

    api: Api
    rules: Rulebook
    mask: Redaction
    say: Callable[[str], None]
    nodes: Mapping[str, Object]
    skews: Mapping[str, float]
    read_nodes: bool = True

    def assess(self, attempt: Attempt, job: Object | None) -> tuple[Verdict, dict[tuple[str, int], Rank]]:
        """The verdict over an attempt.

        Args:
            attempt: The attempt.
            job: The Job that owns it, slimmed, where a Job does.

        Returns:
            The verdict, and the ranks by pod uid and start.
        """
        entries = sorted(attempt.entries.items(), key=lambda item: item[1].life.pod["metadata"]["name"])
        self._read_logs([entry for _, entry in entries])
        ranks = {key: self._rank(entry) for key, entry in entries}
        ranks = _renumbered(ranks, dict(entries))
        since = min((rank.started_at for rank in ranks.values() if rank.started_at), default=None)
        facts = [fact for _, entry in entries for fact in ends.facts_of(entry.life, self.rules)]
        pods = [entry.life.pod["metadata"]["name"] for _, entry in entries]
        names = sorted({rank.node for rank in ranks.values() if rank.node})
        for name in names:
            if name in self.nodes:
                facts += evidence.of_node(self.nodes[name], since, self.rules)
        facts += evidence.of_events(
            self.api, attempt.owner.namespace, pods, names if self.read_nodes else (), since, self.rules, self.say
        )
        facts += _of_job(job, self.rules)
        verdict = judge(list(ranks.values()), _once(facts), expected=_expected(attempt, job), rules=self.rules)
        return verdict, ranks

    def _rank(self, entry: Entry) -> Rank:
        rank = ends.rank_of(entry.life, entry.place, self.rules, gone=entry.gone, log=entry.log)
        return replace(rank, skew_s=self.skews.get(rank.node or "", 0.0))

    def _read_logs(self, entries: list[Entry]) -> None:
        """The end of the log of pods that gpualert was not in, those that failed first."""
        wanted = [entry for entry in entries if entry.log is None and not entry.gone and ends.wants_log(entry.life)]
        wanted.sort(key=lambda entry: str(entry.life.state.get("finishedAt") or ""))
        for entry in wanted[:LOGS_MAX]:
            entry.log = self._tail(entry, LOG_LINES, LOG_BYTES)

    def _tail(self, entry: Entry, lines: int, size: int) -> bytes | None:
        meta = entry.life.pod["metadata"]
        present = next((row for row in entry.life.pod["containers"] if row["name"] == entry.life.container), None)
        previous = present is not None and present["restarts"] > entry.life.number
        try:
            return self.api.log_tail(
                meta["namespace"], meta["name"], entry.life.container, lines, size, previous=previous
            )
        except ApiError as error:
            if error.status not in (400, 404):  # no container yet, or gone with its node
                self.say(f"the log of {meta['namespace']}/{meta['name']} is not read ({error})")
            return None

    def quotes(self, entry: Entry) -> dict[str, Any]:
        """The end of a pod's log, as far as it is still there.

        Args:
            entry: The life that broke first.
        """
        log = entry.log
        if log is None and not entry.gone and entry.life.state.get("kind") == "terminated":
            log = self._tail(entry, QUOTED_LINES, QUOTED_BYTES)
        lines = (log or b"").decode("utf-8", "replace").splitlines()[-QUOTED_LINES:]
        return {**incident.NO_QUOTES, "tail": [self.mask.mask(line[:2000]) for line in lines]}


def _renumbered(
    ranks: dict[tuple[str, int], Rank], entries: dict[tuple[str, int], Entry]
) -> dict[tuple[str, int], Rank]:
    """Kubeflow's workers count from 1 only where there is a master beside them."""
    slots = {entry.place.slot.partition("/")[0] for entry in entries.values()}
    if "worker" not in slots or slots & {"master", "chief", "launcher"}:
        return ranks
    return {
        key: replace(rank, rank=rank.rank - 1)
        if rank.rank is not None and entries[key].life.machine is None and entries[key].place.slot.startswith("worker/")
        else rank
        for key, rank in ranks.items()
    }


def _expected(attempt: Attempt, job: Object | None) -> int | None:
    """How many ranks there should be."""
    if job is not None and attempt.owner.kind == "Job":
        wanted = [count for count in (job["completions"], job["parallelism"]) if isinstance(count, int)]
        return min(wanted) if job["indexed"] and wanted else None
    sizes = [entry.life.pod["world_size"] for entry in attempt.entries.values()]
    size = max((size for size in sizes if isinstance(size, int)), default=None)
    # Where a pod runs several ranks the world is larger than the pods are many.
    return size if size is not None and len(attempt.entries) == size else None


def _of_job(job: Object | None, rules: Rulebook) -> list[MachineFact]:
    """What the Job controller did to all of a Job's pods."""
    found = []
    for row in job["conditions"] if job is not None else ():
        reason = str(row.get("reason") or "")
        if (row["type"] == "Failed" and reason == "DeadlineExceeded") or (row["type"] == "Suspended"):
            reason = reason if row["type"] == "Failed" else "JobSuspended"
            text = str(row.get("message") or "")
            at = seconds_of(row.get("lastTransitionTime"))
            found.append(MachineFact(reason, text, at=at, finding=meaning(reason, text, rules)))
    return found


def _once(facts: list[MachineFact]) -> list[MachineFact]:
    return list(dict.fromkeys(facts))
