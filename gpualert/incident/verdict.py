"""The verdict over ranks: the first to break, not the loudest; a disruption before any crash; no guess.

What a rank's own log shows is weighed by its class: a cause (memory, hardware, an exception) breaks a job; a collective
that timed out, a lost peer or a SIGTERM is mostly what another rank's end did to it; a rank that is silent may be the
one that all others wait for, which its silence alone does not prove.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpualert.incident.collective import out_of_step
from gpualert.incident.model import Finding, MachineFact, Part, Rank, Role, Verdict
from gpualert.incident.naming import named, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpualert.diagnosis.rulebook import Rulebook

TOGETHER_S = 5.0
"""Ranks that break the same way within so many seconds broke together (plus what their clocks may be off)."""
DISRUPTION_S = 60.0
"""What breaks within this time after a disruption, broke because of it: a grace period is 30 s by default (Kubernetes,
``terminationGracePeriodSeconds``), and a job scheduler's up to a minute."""
DOUBT = 0.5
DISRUPTED = frozenset({"terminated", "evicted", "interrupted", "deadline_exceeded"})
FAMILIES = frozenset({"hardware", "watcher"})
ABORTS = frozenset({"nccl_error", "native_abort", "segfault", "cuda_runtime", "dataloader_worker"})
"""Classes that are causes, but also how a rank ends whose peers have gone."""
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
            rank = replace(rank, finding=found, broke_at=_moved(fact.at, rank), state=state)
        return rank

    def _never_started(self, seen: set[int]) -> list[Rank]:
        """Ranks that are known by what was seen of them alone."""
        told = {fact.rank: fact for fact in self.facts if fact.finding and fact.rank is not None}
        unseen = [(number, fact) for number, fact in told.items() if number is not None and number not in seen]
        self.used += [fact for _, fact in unseen]
        return [Rank(f.name or f"rank {n}", n, f.node, "waiting", f.finding, broke_at=f.at) for n, f in unseen]

    def _explains(self, fact: MachineFact, rank: Rank, *, disrupts: bool) -> bool:
        """Whether a fact says more of a rank than its own log: the log shows a symptom, or nothing, and not before."""
        weight = _weight(rank)
        if weight >= (3.0 if disrupts else 2.5):
            return False
        if rank.state == "running" and fact.name is None and fact.rank is None and not disrupts:
            return fact.finding is not None and fact.finding.cls == "node_lost"
        broke, at = rank.when, fact.at
        return broke is None or at is None or weight == 0 or at <= broke + DISRUPTION_S

    # -- the decision --------------------------------------------------------------------------------------------------

    def decide(self) -> Verdict:
        failed = [rank for rank in self.ranks if rank.state in ("failed", "gone") and not _fine(rank)]
        if not failed and not any(rank.state == "waiting" for rank in self.ranks):
            return self._all_well()
        disrupted = self._disruption(failed)
        if disrupted is not None:
            return disrupted
        causes = [rank for rank in failed if _weight(rank) >= 2.0]
        hard = [rank for rank in causes if _weight(rank) >= 2.5]
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
        first = _earliest(stopped)
        others = [rank for rank in failed if rank not in stopped]
        causes = [rank for rank in others if _weight(rank) >= 2.0 and not _ends_in_abort(rank)]
        if any(not _after(rank, first) for rank in causes):
            return None
        from_outside = any(fact.finding and fact.finding.cls in DISRUPTED for fact in self.used)
        # Without word from outside, a SIGTERM is also what a launcher sends the others when one has broken.
        suspects = [*(r for r in others if _mute(r) or _weight(r) < 2.0), *(r for r in self.ranks if r.state == "gone")]
        if not from_outside and any(_before(rank, first) for rank in suspects):
            return None
        if not from_outside and others and not _clearly_first(stopped, others):
            return None
        together = [rank for rank in stopped if _near(rank, first)]
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
        same = [rank for rank in causes if _same(rank, first)]
        roots = _not_relayed([rank for rank in same if _near(rank, first)])
        others = [rank for rank in causes if rank not in same and self._independent(rank, first)]
        confidence = min(first.finding.confidence, 0.97)
        if others:
            confidence = min(confidence, 0.75)
        unknown_times = [rank for rank in causes if rank.when is None and not _same(rank, first)]
        if unknown_times and len(causes) > 1:
            confidence = min(confidence, 0.6)
        summary = f"{named(roots)}: {first.finding.summary}"
        if others:
            told = "; ".join(f"{named([rank])}: {rank.finding.summary}" for rank in others[:2] if rank.finding)
            summary += f"; independently of it {told}"
        followed = sum(rank not in roots and rank not in others for rank in failed)
        if followed:
            summary += f" ({followed} other rank{'s' if followed > 1 else ''} followed)"
        return self._verdict(first.finding, [*roots, *others], summary, confidence, same=same)

    def _first_of(self, causes: Sequence[Rank]) -> Rank:
        """The first cause; among those that their clocks cannot tell apart, the one that says most."""
        first = _earliest(causes)
        near = [rank for rank in causes if _near(rank, first) or rank.when is None]
        return max(near, key=lambda rank: (_weight(rank), -(rank.when or 0.0) if rank.when else -1e18))

    def _independent(self, rank: Rank, first: Rank) -> bool:
        """Whether a cause came about without the first one's doing."""
        finding = rank.finding
        if finding is None or (rank.node is not None and rank.node == first.node and _hardware(first)):
            return False
        if finding.cls in INDEPENDENT or finding.family == "hardware":
            return True
        return _near(rank, first) and not _ends_in_abort(rank)

    def _aborted(self, causes: Sequence[Rank], failed: Sequence[Rank]) -> Verdict:
        """Aborts and library errors alone: the first of them, unless a rank that says nothing went before."""
        first = _earliest(causes)
        mute = [rank for rank in failed if _mute(rank) and not _after(rank, first)]
        if mute:
            return self._symptoms(failed)
        roots = _not_relayed([rank for rank in causes if _same(rank, first) and _near(rank, first)])
        assert first.finding is not None  # noqa: S101  (the same)
        if len(roots) == len(failed) > 1 and first.finding.cls in ("nccl_error", "dataloader_worker"):
            roots = []  # each blames the others
        sure = 0 < len(roots) * 2 <= len(failed) or len(roots) == len(self.ranks)
        confidence = min(first.finding.confidence, 0.8 if sure else DOUBT)
        who = named(roots) if roots else f"all {len(failed)} ranks at once"
        return self._verdict(first.finding, roots, f"{who}: {first.finding.summary}", confidence)

    def _symptoms(self, failed: Sequence[Rank]) -> Verdict:
        """Nothing but symptoms: whoever is missing is named, and not accused."""
        loud = [rank for rank in failed if not _mute(rank)]
        mute = [rank for rank in failed if _mute(rank)]
        waiting = [rank for rank in self.ranks if rank.state == "waiting"]
        quiet = [rank for rank in self.ranks if rank.state == "running"] if loud else []
        killed = [rank for rank in mute if rank.state == "failed"]
        if waiting and all(rank.finding for rank in waiting) and waiting[0].finding:
            found = waiting[0].finding
            return self._verdict(found, waiting, f"{named(waiting)} never started: {found.summary}", found.confidence)
        if killed and (first := _earliest(killed)) and not any(_before(rank, first) for rank in loud):
            # Ended without a word, before or with all others: it is what they noticed, though not why.
            roots = _not_relayed([rank for rank in killed if _near(rank, first)])
            if len(roots) < len(self.ranks) or len(roots) == 1:
                finding = first.finding or Finding("unknown", "unknown")
                text = f"{named(roots)} ended first, and nothing says why: {finding.summary}"
                return self._verdict(replace(finding, cls=_silent_class(finding)), roots, text, DOUBT)
        suspects = [*(rank for rank in mute if rank.state == "gone"), *waiting, *quiet]
        if (suspects or self.missing) and loud:
            return self._silence(suspects, loud)
        astray = out_of_step(loud)
        if astray:
            finding = astray[0].finding or Finding("nccl_timeout", "distributed")
            text = f"{named(astray)} waited in another collective than the others: {finding.summary}"
            return self._verdict(finding, astray, text, DOUBT)
        done = [rank for rank in self.ranks if _fine(rank)]
        if done and len(done) * 2 < len(loud) and (seen := _commonest(loud)) is not None:
            text = f"{named(done)} had ended without error, and the others waited for it: {seen.summary}"
            return self._verdict(seen, done, text, DOUBT)
        if late := _waited_for(loud):
            finding = _commonest([rank for rank in loud if rank not in late]) or Finding("unknown", "unknown")
            text = f"the others waited for {named(late)}, which did not come in time: {finding.summary}"
            return self._verdict(finding, late, text, DOUBT)
        if (lone := _alone(loud)) is not None and lone.finding is not None:
            text = f"{named([lone])} broke first: {lone.finding.summary}"
            return self._verdict(lone.finding, [lone], text, DOUBT)
        finding = _commonest(loud or mute) or Finding("unknown", "unknown", summary="nothing says why")
        text = f"{len(failed)} ranks ended in {finding.cls}, and none of them shows a cause: {finding.summary}"
        return self._verdict(replace(finding, suggestions=()), [], text, min(finding.confidence, DOUBT))

    def _silence(self, suspects: Sequence[Rank], loud: Sequence[Rank]) -> Verdict:
        """The others wait for ranks that say nothing."""
        missing = f"rank{'s' if len(self.missing) > 1 else ''} {numbers(self.missing)}" if self.missing else ""
        who = " and ".join(part for part in (named(suspects) if suspects else "", missing) if part)
        seen = _commonest(loud)
        noticed = f"the others ended in {seen.cls}" if seen else "the others broke"
        if self.missing and not suspects and seen is not None:
            text = f"{who} never showed up; {noticed}"
            return self._verdict(replace(seen, suggestions=()), [], text, DOUBT)
        busy = [rank for rank in suspects if rank.state == "running" and _still_printed(rank, loud)]
        if busy and len(busy) == len(suspects) and seen is not None:
            text = f"the others waited for {who}, still at work elsewhere: {seen.summary}"
            return self._verdict(seen, busy, text, DOUBT)
        finding = Finding("unknown", "unknown")
        alone = [*suspects] if len(suspects) == 1 and not self.missing else []
        text = f"{who} said nothing; {noticed}"
        return self._verdict(finding, alone, text, DOUBT, silent=suspects)

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
        silent: Sequence[Rank] = (),
    ) -> Verdict:
        known = self.rules.classes.get(finding.cls)
        advice = finding.suggestions or (known.advice if known else ())
        parts = [Part(rank, self._role(rank, roots, same, stopped), _cls(rank)) for rank in self.ranks]
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
            tuple(named([rank]) for rank in silent),
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
        return "fine" if _fine(rank) else "cascade"


# -- what one rank is worth --------------------------------------------------------------------------------------------


def _fine(rank: Rank) -> bool:
    return rank.state == "succeeded" or (rank.finding is not None and rank.finding.cls == "success")


def _cls(rank: Rank) -> str | None:
    return rank.finding.cls if rank.finding else None


def _mute(rank: Rank) -> bool:
    """Whether a rank ended without saying why."""
    return rank.finding is None or rank.finding.cls in ("unknown", "lost")


def _silent_class(finding: Finding) -> str:
    return finding.cls if finding.cls == "lost" else "unknown"


def _hardware(rank: Rank) -> bool:
    return rank.finding is not None and rank.finding.family in FAMILIES


def _ends_in_abort(rank: Rank) -> bool:
    return rank.finding is not None and rank.finding.cls in ABORTS


_CRASHES = frozenset({"segfault", "native_abort", "unknown"})


def _not_relayed(ranks: Sequence[Rank]) -> Sequence[Rank]:
    """The ranks that crashed themselves: one that exits with 128+N, or whose launcher's table says so, passes it on."""
    own = [r for r in ranks if r.finding is None or r.finding.cls not in _CRASHES or r.signal not in (None, 15)]
    return own or ranks


def _waited_for(loud: Sequence[Rank]) -> Sequence[Rank]:
    """The few ranks that did not time out themselves, and broke only after the others, which waited for them."""
    waiting = [rank for rank in loud if _cls(rank) == "nccl_timeout"]
    rest = [rank for rank in loud if _cls(rank) != "nccl_timeout"]
    if not rest or len(rest) * 2 >= len(waiting):
        return []
    first = _earliest(waiting)
    return rest if all(_before(first, rank) for rank in rest) else []


def _alone(loud: Sequence[Rank]) -> Rank | None:
    """The rank that broke long before all others and says something else; None where none did."""
    if len(loud) < 2:
        return None
    first = _earliest(loud)
    rest = [rank for rank in loud if rank is not first]
    return first if all(_before(first, r) and not _near(first, r) and not _same(first, r) for r in rest) else None


def _still_printed(rank: Rank, loud: Sequence[Rank]) -> bool:
    """Whether a rank that runs still printed when the others broke."""
    first = _earliest(loud).when
    last = rank.last_output_at
    return first is not None and last is not None and last - rank.skew_s >= first - DISRUPTION_S


_SYMPTOMS = {
    "nccl_timeout": 1.0,
    "rendezvous_timeout": 1.0,
    "peer_lost": 1.0,
    "terminated": 1.0,
    "interrupted": 1.0,
    "hang": 1.0,
    "deadline_exceeded": 1.0,
    "network_error": 2.6,
    "runtime_error": 2.6,
    "traceback": 2.6,
    "unknown": 0.0,
    "lost": 0.0,
    "success": 0.0,
}


_PASSED_ON = re.compile(
    r"\b(?:worker|rank|actor|child|process|engine|peer|task)(?:\s|s\b|core)?.{0,40}\b(?:failed|died|exited|crashed|dead|killed)\b"
    r"|[Bb]roken pipe|Connection reset",
    re.IGNORECASE,
)
"""How an exception reads that tells of another process's end."""


def _weight(rank: Rank) -> float:
    """How much of a cause a rank's class is: 4 the machine, 3 a cause, 2 an abort, 1 a symptom, 0 nothing."""
    finding = rank.finding
    if finding is None:
        return 0.0
    if finding.root is not None and finding.family == "code" and _PASSED_ON.search(finding.root):
        return 2.0
    if finding.cls in _SYMPTOMS:
        return _SYMPTOMS[finding.cls]
    if finding.family in FAMILIES or finding.cls == "oom_killer":
        return 4.0
    return 2.0 if finding.cls in ABORTS else 3.0


# -- times -------------------------------------------------------------------------------------------------------------


def _earliest(ranks: Iterable[Rank]) -> Rank:
    return min(ranks, key=lambda rank: (rank.when is None, rank.when or 0.0, rank.rank or 0, rank.name))


def _slack(one: Rank, other: Rank) -> float:
    return max(one.slack_s, other.slack_s)


def _near(one: Rank, other: Rank) -> bool:
    """Whether two ranks broke together, as far as their clocks can tell."""
    if one is other:
        return True
    if one.when is None or other.when is None:
        return True
    return abs(one.when - other.when) <= TOGETHER_S + _slack(one, other)


def _before(one: Rank, other: Rank) -> bool:
    """Whether the first broke before the other, beyond what their clocks may be off."""
    return one.when is not None and other.when is not None and one.when < other.when - _slack(one, other)


def _after(one: Rank, other: Rank) -> bool:
    """Whether the first broke after the other, or with it."""
    return one.when is None or other.when is None or one.when > other.when - _slack(one, other)


def _clearly_first(stopped: Sequence[Rank], others: Sequence[Rank]) -> bool:
    first = _earliest(stopped)
    return all(_before(first, rank) for rank in others if not _fine(rank))


def _moved(at: float | None, rank: Rank) -> float | None:
    """A time by the common clock as the rank's own clock shows it."""
    return None if at is None else at + rank.skew_s


# -- words -------------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def _same(one: Rank, other: Rank) -> bool:
    """Whether two ranks show the same: one class, and lines that differ in numbers alone where both show one."""
    if one.finding is None or other.finding is None or one.finding.cls != other.finding.cls:
        return False
    mine, theirs = one.finding.root, other.finding.root
    if mine is None or theirs is None or one.finding.family in ("gpu", *FAMILIES):
        return True
    return _NUMBER.sub("#", mine)[:120] == _NUMBER.sub("#", theirs)[:120]


def _commonest(ranks: Sequence[Rank]) -> Finding | None:
    """The finding of the class that most ranks show; the earliest rank's."""
    known = [rank for rank in ranks if rank.finding is not None]
    if not known:
        return None
    cls = Counter(_cls(rank) for rank in known).most_common(1)[0][0]
    return _earliest(rank for rank in known if _cls(rank) == cls).finding
