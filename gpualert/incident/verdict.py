"""The verdict over ranks: the first to break, not the loudest; a disruption before any crash; no guess.

What a rank's own log shows is weighed by its class: a cause (memory, hardware, an exception) breaks a job; a collective
that timed out, a lost peer or a SIGTERM is mostly what another rank's end did to it; a rank that is silent may be the
one that all others wait for, which its silence alone does not prove.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpualert.incident.collective import out_of_step
from gpualert.incident.model import Finding, MachineFact, Part, Rank, Role, Verdict
from gpualert.incident.naming import named, numbers
from gpualert.incident.order import DISRUPTION_S, after, before, earliest, moved, near
from gpualert.incident.suspects import alone, clearly_first, not_relayed, still_printed, waited_for
from gpualert.incident.worth import class_of, commonest, ends_in_abort, fine, hardware, mute, same, silent_class, weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.diagnosis.rulebook import Rulebook

DOUBT = 0.5
DISRUPTED = frozenset({"terminated", "evicted", "interrupted", "deadline_exceeded"})
INDEPENDENT = frozenset(
    {"cuda_oom", "cuda_device_assert", "oom_killer", "ram_oom", "shm_exhausted", "disk_full", "data_error", "node_lost",
     "nan_loss", "missing_module", "config_error"}
)  # fmt: skip
"""Classes that no other rank's end brings about."""


def judge(
    ranks: Sequence[Rank], facts: Sequence[MachineFact] = (), *, expected: int | None = None, rules: Rulebook
) -> Verdict:
    """Say which rank of a job broke first, and why.

    Args:
        ranks: What is known of each rank; ranks that never showed up are not among them.
        facts: What was seen from outside.
        expected: How many ranks there should be; None where nothing tells.
        rules: Where a class's advice comes from.

    Returns:
        The verdict; the same for the same input in any order.
    """
    ordered = sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.name))
    return _Incident(tuple(ordered), tuple(facts), expected, rules).decide()


class _Incident:
    """One job's ranks, each with what the facts say of it."""

    def __init__(
        self, ranks: tuple[Rank, ...], facts: tuple[MachineFact, ...], expected: int | None, rules: Rulebook
    ) -> None:
        self.rules = rules
        self.facts = facts
        self.used: list[MachineFact] = []
        seen = {rank.rank for rank in ranks if rank.rank is not None}
        self.ranks = [*map(self._with_facts, ranks), *self._never_started(seen)]
        seen = {rank.rank for rank in self.ranks if rank.rank is not None}
        self.missing = tuple(n for n in range(expected or 0) if n not in seen) if seen else ()

    # -- what each rank says -------------------------------------------------------------------------------------------

    def _with_facts(self, rank: Rank) -> Rank:
        """A rank with what was seen of it or of its node, where that says more than its own log."""
        for fact in self.facts:
            about_it = (fact.rank is not None and fact.rank == rank.rank) or (fact.name and fact.name == rank.name)
            elsewhere = fact.rank is not None or fact.name
            on_node = not elsewhere and fact.node is not None and fact.node == rank.node
            about_all = not elsewhere and fact.node is None
            if not (about_it or on_node or about_all) or fact.finding is None or rank.state in ("succeeded", "waiting"):
                continue
            if about_it and self._is_told_by_itself(fact, rank):
                self.used.append(fact)  # its own log or report says the same
                rank = rank if rank.broke_at is not None else replace(rank, broke_at=moved(fact.at, rank))
                continue
            disrupts = fact.finding.cls in DISRUPTED
            if not self._explains(fact, rank, disrupts=disrupts):
                continue
            self.used.append(fact)
            own = rank.finding
            texts = (own.root, *own.texts) if own and own.root else ()
            state = "failed" if rank.state == "running" and about_it else rank.state
            if state == "running" and fact.finding.cls == "node_lost":
                state = "gone"  # what the API still calls running, nobody has seen since
            found = replace(fact.finding, texts=tuple(text for text in texts if text)[:3])
            rank = replace(rank, finding=found, broke_at=moved(fact.at, rank), state=state)
        return rank

    def _never_started(self, seen: set[int]) -> list[Rank]:
        """Ranks that are known by what was seen of them alone."""
        told = {fact.rank: fact for fact in self.facts if fact.finding and fact.rank is not None}
        unseen = [(number, fact) for number, fact in told.items() if number is not None and number not in seen]
        self.used += [fact for _, fact in unseen]
        return [Rank(f.name or f"rank {n}", n, f.node, "waiting", f.finding, broke_at=f.at) for n, f in unseen]

    @staticmethod
    def _is_told_by_itself(fact: MachineFact, rank: Rank) -> bool:
        """Whether a rank's own log or report says of its GPU what its driver told."""
        told, seen = rank.finding, fact.finding
        return told is not None and seen is not None and seen.family == "hardware" and told.cls == seen.cls

    def _explains(self, fact: MachineFact, rank: Rank, *, disrupts: bool) -> bool:
        """Whether a fact says more of a rank than its own log: the log shows a symptom, or nothing, and not before."""
        worth = weight(rank)
        if worth >= (3.0 if disrupts else 2.5):
            return False
        if rank.state == "running" and fact.name is None and fact.rank is None and not disrupts:
            return fact.finding is not None and fact.finding.cls == "node_lost"
        broke, at = rank.when, fact.at
        return broke is None or at is None or worth == 0 or at <= broke + DISRUPTION_S

    # -- the decision --------------------------------------------------------------------------------------------------

    def decide(self) -> Verdict:
        failed = [rank for rank in self.ranks if rank.state in ("failed", "gone") and not fine(rank)]
        if not failed and not any(rank.state == "waiting" for rank in self.ranks):
            return self._all_well()
        disrupted = self._disruption(failed)
        if disrupted is not None:
            return disrupted
        causes = [rank for rank in failed if weight(rank) >= 2.0]
        hard = [rank for rank in causes if weight(rank) >= 2.5]
        if hard:
            return self._caused(hard, failed)
        if causes:
            return self._aborted(causes, failed)
        return self._symptoms(failed)

    def _all_well(self) -> Verdict:
        parts = tuple(Part(rank, "fine", rank.finding.cls if rank.finding else None) for rank in self.ranks)
        running = sum(rank.state == "running" for rank in self.ranks)
        text = f"{running} of {len(self.ranks)} ranks are running" if running else "all ranks ended without error"
        return Verdict("success", "success", 0.98, text, parts, self.missing)

    def _disruption(self, failed: Sequence[Rank]) -> Verdict | None:
        """A job that was stopped from outside, wholly or in part, before anything else broke."""
        stopped = [rank for rank in failed if rank.finding and rank.finding.cls in DISRUPTED]
        if not stopped:
            return None
        first = earliest(stopped)
        others = [rank for rank in failed if rank not in stopped]
        causes = [rank for rank in others if weight(rank) >= 2.0 and not ends_in_abort(rank)]
        if any(not after(rank, first) for rank in causes):
            return None
        from_outside = any(fact.finding and fact.finding.cls in DISRUPTED for fact in self.used)
        # Without word from outside, a SIGTERM is also what a launcher sends the others when one has broken.
        suspects = [*(r for r in others if mute(r) or weight(r) < 2.0), *(r for r in self.ranks if r.state == "gone")]
        if not from_outside and any(before(rank, first) for rank in suspects):
            return None
        if not from_outside and others and not clearly_first(stopped, others):
            return None
        together = [rank for rank in stopped if near(rank, first)]
        # Where all were stopped at once no rank broke first; where one was stopped and the others broke, that one did.
        roots = together if len(together) * 2 <= len(self.ranks) and others else []
        cls = Counter(rank.finding.cls for rank in together if rank.finding).most_common(1)[0][0]
        finding = next(rank.finding for rank in together if rank.finding and rank.finding.cls == cls)
        if roots:
            summary = f"{named(roots)} stopped from outside ({finding.summary}), and the others broke because of it"
        else:
            how_many = f"all {len(self.ranks)} ranks" if len(stopped) == len(self.ranks) else f"{len(stopped)} ranks"
            summary = f"{how_many} stopped from outside: {finding.summary}"
        return self._verdict(finding, roots, summary, 0.93, stopped=stopped)

    def _caused(self, causes: Sequence[Rank], failed: Sequence[Rank]) -> Verdict:
        first = self._first_of(causes)
        assert first.finding is not None  # noqa: S101  (mypy: a cause has a finding)
        alike = [rank for rank in causes if same(rank, first)]
        roots = not_relayed([rank for rank in alike if near(rank, first)])
        others = [rank for rank in causes if rank not in alike and self._independent(rank, first)]
        confidence = min(first.finding.confidence, 0.97)
        if others:
            confidence = min(confidence, 0.75)
        unknown_times = [rank for rank in causes if rank.when is None and not same(rank, first)]
        if unknown_times and len(causes) > 1:
            confidence = min(confidence, 0.6)
        summary = f"{named(roots)}: {first.finding.summary}"
        if others:
            told = "; ".join(f"{named([rank])}: {rank.finding.summary}" for rank in others[:2] if rank.finding)
            summary += f"; independently of it {told}"
        followed = sum(rank not in roots and rank not in others for rank in failed)
        if followed:
            summary += f" ({followed} other rank{'s' if followed > 1 else ''} followed)"
        return self._verdict(first.finding, [*roots, *others], summary, confidence, same=alike)

    def _first_of(self, causes: Sequence[Rank]) -> Rank:
        """The first cause; among those that their clocks cannot tell apart, the one that says most."""
        first = earliest(causes)
        close = [rank for rank in causes if near(rank, first) or rank.when is None]
        return max(close, key=lambda rank: (weight(rank), -(rank.when or 0.0) if rank.when else -1e18))

    def _independent(self, rank: Rank, first: Rank) -> bool:
        """Whether a cause came about without the first one's doing."""
        finding = rank.finding
        if finding is None or (rank.node is not None and rank.node == first.node and hardware(first)):
            return False
        if finding.cls in INDEPENDENT or finding.family == "hardware":
            return True
        return near(rank, first) and not ends_in_abort(rank)

    def _aborted(self, causes: Sequence[Rank], failed: Sequence[Rank]) -> Verdict:
        """Aborts and library errors alone: the first of them, unless a rank that says nothing went before."""
        first = earliest(causes)
        wordless = [rank for rank in failed if mute(rank) and not after(rank, first)]
        if wordless:
            return self._symptoms(failed)
        roots = not_relayed([rank for rank in causes if same(rank, first) and near(rank, first)])
        assert first.finding is not None  # noqa: S101  (the same)
        if len(roots) == len(failed) > 1 and first.finding.cls in ("nccl_error", "dataloader_worker"):
            roots = []  # each blames the others
        sure = 0 < len(roots) * 2 <= len(failed) or len(roots) == len(self.ranks)
        confidence = min(first.finding.confidence, 0.8 if sure else DOUBT)
        who = named(roots) if roots else f"all {len(failed)} ranks at once"
        return self._verdict(first.finding, roots, f"{who}: {first.finding.summary}", confidence)

    def _symptoms(self, failed: Sequence[Rank]) -> Verdict:
        """Nothing but symptoms: whoever is missing is named, and not accused."""
        loud = [rank for rank in failed if not mute(rank)]
        wordless = [rank for rank in failed if mute(rank)]
        waiting = [rank for rank in self.ranks if rank.state == "waiting"]
        quiet = [rank for rank in self.ranks if rank.state == "running"] if loud else []
        killed = [rank for rank in wordless if rank.state == "failed"]
        if waiting and all(rank.finding for rank in waiting) and waiting[0].finding:
            found = waiting[0].finding
            return self._verdict(found, waiting, f"{named(waiting)} never started: {found.summary}", found.confidence)
        if killed and (first := earliest(killed)) and not any(before(rank, first) for rank in loud):
            # Ended without a word, before or with all others: it is what they noticed, though not why.
            roots = not_relayed([rank for rank in killed if near(rank, first)])
            if len(roots) < len(self.ranks) or len(roots) == 1:
                finding = first.finding or Finding("unknown", "unknown")
                text = f"{named(roots)} ended first, and nothing says why: {finding.summary}"
                return self._verdict(replace(finding, cls=silent_class(finding)), roots, text, DOUBT)
        suspects = [*(rank for rank in wordless if rank.state == "gone"), *waiting, *quiet]
        if (suspects or self.missing) and loud:
            return self._silence(suspects, loud)
        astray = out_of_step(loud)
        if astray:
            finding = astray[0].finding or Finding("nccl_timeout", "distributed")
            text = f"{named(astray)} waited in another collective than the others: {finding.summary}"
            return self._verdict(finding, astray, text, DOUBT)
        done = [rank for rank in self.ranks if fine(rank)]
        if done and len(done) * 2 < len(loud) and (seen := commonest(loud)) is not None:
            text = f"{named(done)} had ended without error, and the others waited for it: {seen.summary}"
            return self._verdict(seen, done, text, DOUBT)
        if late := waited_for(loud):
            finding = commonest([rank for rank in loud if rank not in late]) or Finding("unknown", "unknown")
            text = f"the others waited for {named(late)}, which did not come in time: {finding.summary}"
            return self._verdict(finding, late, text, DOUBT)
        if (lone := alone(loud)) is not None and lone.finding is not None:
            text = f"{named([lone])} broke first: {lone.finding.summary}"
            return self._verdict(lone.finding, [lone], text, DOUBT)
        finding = commonest(loud or wordless) or Finding("unknown", "unknown", summary="nothing says why")
        text = f"{len(failed)} ranks ended in {finding.cls}, and none of them shows a cause: {finding.summary}"
        return self._verdict(replace(finding, suggestions=()), [], text, min(finding.confidence, DOUBT))

    def _silence(self, suspects: Sequence[Rank], loud: Sequence[Rank]) -> Verdict:
        """The others wait for ranks that say nothing."""
        missing = f"rank{'s' if len(self.missing) > 1 else ''} {numbers(self.missing)}" if self.missing else ""
        who = " and ".join(part for part in (named(suspects) if suspects else "", missing) if part)
        seen = commonest(loud)
        noticed = f"the others ended in {seen.cls}" if seen else "the others broke"
        if self.missing and not suspects and seen is not None:
            text = f"{who} never showed up; {noticed}"
            return self._verdict(replace(seen, suggestions=()), [], text, DOUBT)
        busy = [rank for rank in suspects if rank.state == "running" and still_printed(rank, loud)]
        if busy and len(busy) == len(suspects) and seen is not None:
            text = f"the others waited for {who}, still at work elsewhere: {seen.summary}"
            return self._verdict(seen, busy, text, DOUBT)
        finding = Finding("unknown", "unknown")
        single = [*suspects] if len(suspects) == 1 and not self.missing else []
        text = f"{who} said nothing; {noticed}"
        return self._verdict(finding, single, text, DOUBT)

    # -- the answer ----------------------------------------------------------------------------------------------------

    def _verdict(
        self,
        finding: Finding,
        roots: Sequence[Rank],
        summary: str,
        confidence: float,
        *,
        same: Sequence[Rank] = (),
        stopped: Sequence[Rank] = (),
    ) -> Verdict:
        known = self.rules.classes.get(finding.cls)
        advice = finding.suggestions or (known.advice if known else ())
        parts = [Part(rank, self._role(rank, roots, same, stopped), class_of(rank)) for rank in self.ranks]
        order: dict[Role, int] = {"root": 0, "silent": 1, "confirmation": 2, "cascade": 3, "stopped": 4, "fine": 5}
        parts.sort(key=lambda part: (order[part.role], part.rank.when or 0.0 if part.role == "root" else 0.0))
        node_suspect = finding.node_suspect or bool(known and known.node_suspect)
        return Verdict(
            finding.cls,
            known.family if known else finding.family,
            round(confidence, 2),
            summary,
            tuple(parts),
            self.missing,
            tuple(dict.fromkeys(self.used)),
            tuple(advice),
            finding.retryable or bool(known and known.retryable),
            node_suspect,
        )

    def _role(self, rank: Rank, roots: Sequence[Rank], same: Sequence[Rank], stopped: Sequence[Rank]) -> Role:
        if rank in roots:
            return "root"
        if rank in same:
            return "confirmation"
        if rank.state in ("running", "waiting", "gone"):
            return "silent"
        if rank in stopped or (rank.finding and rank.finding.cls in DISRUPTED):
            return "stopped"
        return "fine" if fine(rank) else "cascade"
