"""The decision: facts first, then causes over symptoms, the end over the middle, the first to break over the loudest.

The engine knows no class by the text that shows it; what it decides from facts alone is in ``ending.py``, and what they
leave room for in ``consistency.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from gpualert.diagnosis import consistency, ending, joining, torchrun, traceback
from gpualert.diagnosis.model import Diagnosis, Evidence, Facts
from gpualert.diagnosis.reader import CHUNK, Hit, LogSource, Scan, line_starts, lines_from, open_log
from gpualert.diagnosis.rulebook import LEVELS, FailureClass, Rulebook
from gpualert.diagnosis.text import calm, shorten, unprefixed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpualert.diagnosis.reader import Mask

AFTER_BYTES, BEFORE_BYTES = 128 << 10, 8 << 10
EVIDENCE_MAX = 6
CHAINS_MAX = 24
PROGRESS_LINES = 2
"""How many lines of progress show that a run went on."""
SURVIVED = 2.5
"""What a match loses that the run has survived, or that is about something beside it."""
PROBED = 0.5
"""What an exception loses by which a program only tried whether something is there."""
CODE, DISTRIBUTED = "code", "distributed"
"""The families of what a program does wrong by itself, and of what ranks notice of each other."""
NEAR_LINES = 12
"""How far apart lines about one error may be: its wrapper, its location, and what it says in the end."""

# A line that shows that training went on: an epoch, step or progress bar with numbers.
_PROGRESS = re.compile(
    r"\b(?:epoch|step|iter|iteration|batch|global_step|train_step)s?\b[^\w\n]{0,4}\d+"
    r"|\d+%\|"
    r"|\b\d+(?:\.\d+)?\s?(?:it|s|samples|tokens|examples)/(?:s|it|sec|second)\b"
    r"|['\"]?loss['\"]?[ :=]{1,4}['\"]?\d",
    re.IGNORECASE,
)
_TROUBLE = re.compile(r"error|exception|traceback|fail|File \"|warn|nan\b|killed|signal", re.IGNORECASE)
_FINITE_LOSS = re.compile(r"loss['\"]?[ :=]{1,4}['\"]?\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A match that may be the cause.

    Attributes:
        hit: The match.
        level: How much it says here, between the levels of ``LEVELS``.
    """

    hit: Hit
    level: float


def diagnose(
    log: LogSource, facts: Facts | None = None, *, rules: Rulebook | None = None, mask: Mask | None = None
) -> Diagnosis:
    """Say why a run ended as it did.

    Args:
        log: Its output: a path, the bytes, or a binary stream that can seek.
        facts: What is known apart from the log.
        rules: Classes and rules; those that come with gpualert when None.
        mask: Masks secrets in what is quoted from the log, before it is shortened; nothing is masked when None.

    Returns:
        The diagnosis; the same for the same input.

    Raises:
        OSError: The log cannot be read.
    """
    rules = rules or Rulebook.load()
    facts = facts or Facts()
    stream = open_log(log)
    facts = ending.normalised(facts)
    try:
        found = _Case(stream, facts, rules, mask).decide()
    finally:
        if stream is not log:
            stream.close()
    return joining.joined(found, facts, rules)


class _Case:
    """One log with its facts."""

    def __init__(self, log: BinaryIO, facts: Facts, rules: Rulebook, mask: Mask | None) -> None:
        self.log = log
        self.facts = facts
        self.rules = rules
        self.scan = Scan(log, rules, mask)
        self._mask = mask
        self._progress_after: dict[tuple[int, int | None], bool] = {}
        self._progress: dict[int, list[tuple[int, int | None, str]]] = {}
        tables = [hit for hit in self.scan.hits if hit.rule.id == TABLE_RULE]
        self._first_rank = torchrun.first_rank(log, tables[-1].offset) if tables else None

    def decide(self) -> Diagnosis:
        by_facts = ending.from_facts(self.facts, self.rules)
        if by_facts is not None and by_facts.cls == "hang" and (cause := self._before_silence()) is not None:
            return cause
        if by_facts is not None and by_facts.confidence >= ending.CERTAIN:
            return self._with_evidence(by_facts, self._candidates())
        if ending.succeeded(self.facts):
            return self._success()
        candidates = self._candidates()
        best = self._best(candidates)
        enough = ending.outranked_from(by_facts)
        if by_facts is not None and (best is None or best.level < enough or self._overruled(best)):
            return self._with_evidence(by_facts, candidates)
        if best is None or best.level <= LEVELS["wrapper"]:
            best = self._last_resort()
            if best is not None:
                return replace(self._from(best, []), confidence=0.45)
        if best is None:
            return self._with_evidence(ending.unexplained(self.facts, self.rules), candidates)
        return self._from(best, candidates)

    def _before_silence(self) -> Diagnosis | None:
        """The cause that the log shows of a hang, from before nothing moved any more; None where it shows none.

        What was printed later came of the stop that ended the run.
        """
        size = self.facts.hang.log_bytes if self.facts.hang is not None else None
        made_by_stop = ending.explained_by_stop(self.facts) if size is None else frozenset()
        final = self._final_chains(self._chains())
        candidates = [
            one
            for one in self._candidates()
            if (size is None or one.hit.offset < size)
            and one.hit.rule.cls not in ("hang", *made_by_stop)
            and (one.level >= LEVELS["driver"] or (one.level > LEVELS["symptom"] and _around(one.hit, final)))
        ]
        best = self._best(candidates)
        return None if best is None else self._from(best, candidates)

    def _last_resort(self) -> Candidate | None:
        """The last uncaught exception, although output went on after it: a buffered stream comes out late."""
        chains = self._chains()
        if not chains:
            return None
        last = chains[-1]
        inside = [h for h in self.scan.hits if last.first_line <= h.line <= last.last_line and h.rank == last.rank]
        best = self._best([Candidate(hit, hit.rule.level) for hit in inside if hit.rule.level > LEVELS["wrapper"]])
        if best is not None or not last.exceptions:
            return best
        # An exception whose name is like no other (cv2.error): the traceback tells that it is one.
        error = last.exceptions[-1]
        if any(hit.line == error.line for hit in inside):
            return None  # a wrapper, which says nothing by itself
        rule = next(rule for rule in self.rules.rules if rule.id == EXCEPTION_RULE)
        return Candidate(Hit(rule, error.line, last.offset, self._shown(error), last.rank), rule.level)

    def _spliced(self, chains: Sequence[traceback.Chain]) -> list[Hit]:
        """Exceptions that no rule could see, because another process's line was spliced into theirs."""
        seen = {hit.line for hit in self.scan.hits if hit.rule.level > LEVELS["wrapper"]}
        rule = next(rule for rule in self.rules.rules if rule.id == EXCEPTION_RULE)
        return [
            Hit(rule, error.line, chain.offset, self._shown(error), chain.rank)
            for chain in chains
            for error in chain.exceptions
            if error.spliced and error.line not in seen
        ]

    def _shown(self, error: traceback.Exception_) -> str:
        text = f"{error.name}: {error.message}" if error.message else error.name
        return self._mask(text) if self._mask else text

    def _overruled(self, best: Candidate) -> bool:
        """Whether what the facts say explains the matched text away (a stop signal and the errors it makes)."""
        return best.hit.rule.cls in ending.explained_by_stop(self.facts) or (
            ending.stop_signal(self.facts) is not None and best.level <= LEVELS["exception"]
        )

    # -- candidates ----------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Candidate]:
        """Every match with what it is worth here."""
        chains = self._chains()
        final = self._final_chains(chains)
        listed = []
        exact = {hit.offset for hit in self.scan.hits if hit.rule.level not in (LEVELS["generic"], LEVELS["wrapper"])}
        # Where the same line says something more exact, that an exception was raised says nothing.
        telling = [h for h in self.scan.hits if h.rule.level != LEVELS["generic"] or h.offset not in exact]
        telling += self._spliced(chains)
        probing = {line for chain in final for line in traceback.probed(chain)}
        inside = [hit.rule.level for hit in telling if hit.rule.level and _around(hit, final) is not None]
        naming = [(chain, self._shown_in(chain, telling)) for chain in final]
        symptom = bool(inside) and max(inside) <= LEVELS["symptom"]
        for hit in telling:
            chain = _around(hit, final)
            if consistency.impossible(hit.rule, self.facts, uncaught=chain is not None):
                continue
            if hit.rule.lasting and not self._holds(hit):
                continue
            level = float(hit.rule.level)
            if chain is None and self._beside(hit, chains, ends_in_symptom=symptom):
                level -= SURVIVED
            elif chain is None and level < LEVELS["evidence"]:
                # A driver's word stands beside a traceback: the program sees the same as some CUDA error.
                if level != LEVELS["driver"] and any(self._settles(*other, hit) for other in naming):
                    level -= SURVIVED  # what the run ended in says more
                elif self._survived(hit):
                    level -= SURVIVED
            if hit.line in probing:
                level -= PROBED
            listed.append(Candidate(hit, min([level, *(at - 0.1 for at in self._betters(hit))])))
        return listed

    def _beside(self, hit: Hit, chains: Sequence[traceback.Chain], *, ends_in_symptom: bool) -> bool:
        """Whether a match is about something beside the job.

        What a program's file, network or module trouble breaks, breaks with an exception or with the end of a script. A
        line that says of itself that it is a warning, or one outside every traceback of a run that ended in another
        trouble, is about a tool that somebody called on the way, or a request that was tried again.
        """
        if self._family(hit) != CODE or hit.rule.lasting:
            return False
        if calm(hit.text):
            return True
        if hit.rule.cls == "command_not_found" and self.facts.exit_code not in (None, 127):
            return True
        return _around(hit, chains) is None and (ends_in_symptom or hit.line < self._broke_at)

    @cached_property
    def _broke_at(self) -> int:
        """The last line that shows something in the machine, or between the ranks, breaking."""
        broke = (h.line for h in self.scan.hits if h.rule.level >= LEVELS["cause"] and self._family(h) != CODE)
        return max(broke, default=0)

    def _shown_in(self, chain: traceback.Chain, hits: Sequence[Hit]) -> frozenset[str]:
        """The families of the causes that a traceback names."""
        inside = [hit for hit in hits if chain.first_line <= hit.line <= chain.last_line]
        return frozenset(self._family(hit) for hit in inside if hit.rule.level >= LEVELS["generic"])

    def _settles(self, chain: traceback.Chain, families: frozenset[str], earlier: Hit) -> bool:
        """Whether a final traceback of the same rank names a cause of its own, so that what came before does not count.

        What one process says of the others (a broken collective) is no cause of what broke in the machine before.
        """
        if earlier.line >= chain.first_line or (earlier.rank is not None and earlier.rank != chain.rank):
            return False
        return bool(families - {DISTRIBUTED}) or (bool(families) and self._family(earlier) in (CODE, DISTRIBUTED))

    def _family(self, hit: Hit) -> str:
        return self.rules.classes[hit.rule.cls].family

    def _betters(self, hit: Hit) -> Iterable[float]:
        """The levels of the rules that say more exactly what a match says, where they match close by."""
        for other in self.scan.hits if hit.rule.yields_to else ():
            same_rank = None in (hit.rank, other.rank) or hit.rank == other.rank
            if other.rule.id in hit.rule.yields_to and same_rank and abs(other.line - hit.line) <= NEAR_LINES:
                yield other.rule.level

    def _chains(self) -> list[traceback.Chain]:
        headers = [hit for hit in self.scan.hits if hit.rule.id == TRACEBACK_RULE]
        chains: list[traceback.Chain] = []
        for hit in headers[-CHAINS_MAX:]:
            if any(chain.first_line < hit.line <= chain.last_line and chain.rank == hit.rank for chain in chains):
                continue
            chain = traceback.parse(self.log, hit.offset, hit.line, hit.rank)
            if chain is not None:
                chains.append(chain)
        return chains

    def _final_chains(self, chains: Sequence[traceback.Chain]) -> list[traceback.Chain]:
        """The last traceback of each rank, where nothing went on after it."""
        last = {chain.rank: chain for chain in chains}
        return [chain for chain in last.values() if not self._went_on(chain.last_line, chain.offset, chain.rank)]

    def _survived(self, hit: Hit) -> bool:
        return self._went_on(hit.line, hit.offset, hit.rank)

    def _went_on(self, line: int, offset: int, rank: int | None) -> bool:
        """Whether training went on after a place in the log; that another rank still trained for a while is no sign."""
        if (line, rank) not in self._progress_after:
            # What was printed word for word before, the other ranks print of the same step.
            before = {
                text
                for chunk in range(max(offset - BEFORE_BYTES, 0) // CHUNK, offset // CHUNK + 1)
                for place, _, text in self._progress_in(chunk)
                if offset - BEFORE_BYTES < place <= offset
            }
            shown = (
                text
                for chunk in range(offset // CHUNK, (offset + AFTER_BYTES) // CHUNK + 1)
                for place, its, text in self._progress_in(chunk)
                if offset < place < offset + AFTER_BYTES
                and (rank is None or its in (None, rank))
                and text not in before
            )
            # One line may have been written before, by the other stream: they are read apart.
            self._progress_after[line, rank] = len(list(islice(shown, PROGRESS_LINES))) == PROGRESS_LINES
        return self._progress_after[line, rank]

    def _progress_in(self, chunk: int) -> list[tuple[int, int | None, str]]:
        """Where in a chunk of the log training went on, by whom, in which words; tracebacks hold no progress."""
        if chunk not in self._progress:
            self._progress[chunk] = [
                (offset, *unprefixed(text))
                for offset, text in line_starts(self.log, chunk)
                if not text.startswith(" ") and _PROGRESS.search(text) and not _TROUBLE.search(text)
            ]
        return self._progress[chunk]

    def _lasts(self, hit: Hit) -> bool:
        """Whether nothing after a match shows a finite loss again."""
        return not any(
            number > 0 and _FINITE_LOSS.search(text) and "nan" not in text.lower() and "train_runtime" not in text
            for number, text in lines_from(self.log, hit.offset, AFTER_BYTES)
        )

    def _best(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The highest level; among equals the rank that its launcher saw fail first, then the first to appear."""

        def place(candidate: Candidate) -> tuple[float, bool, int, int]:
            hit = candidate.hit
            elsewhere = self._first_rank is not None and hit.rank is not None and hit.rank != self._first_rank
            return -candidate.level, elsewhere, hit.offset, self.rules.order[hit.rule.id]

        return min(candidates, key=place, default=None)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _success(self) -> Diagnosis:
        """Exit code 0: what the log shows is a warning, unless a rule says that such an end is none."""
        spoiling = [hit for hit in self.scan.hits if hit.rule.with_success and self._holds(hit)]
        first = self._best([Candidate(hit, hit.rule.level) for hit in spoiling])
        if first is not None:
            found = self._from(first, [first])
            return replace(found, confidence=min(found.confidence, 0.8))
        answer = ending.success(self.facts, self.rules)
        warnings = list(answer.warnings)
        for chain in self._final_chains(self._chains()):
            error = chain.exceptions[-1]
            name = self._mask(error.name) if self._mask else error.name
            warnings.append(f"line {error.line}: {name} was not caught, but the exit code is 0")
        return replace(answer, warnings=tuple(warnings[:3]))

    def _holds(self, hit: Hit) -> bool:
        """Whether what a match says was still so at the end."""
        return self._lasts(hit) if hit.rule.lasting else not self._survived(hit)

    def _with_evidence(self, answer: Diagnosis, candidates: Sequence[Candidate]) -> Diagnosis:
        """An answer from facts, with the line of the log beside it that says the same, or else the most telling one."""
        same = self._best([candidate for candidate in candidates if candidate.hit.rule.cls == answer.cls])
        if same is not None:
            line = _evidence(same.hit, "root")
            return replace(answer, root=line, evidence=(line, *answer.evidence))
        best = self._best([candidate for candidate in candidates if candidate.level > LEVELS["wrapper"]])
        return answer if best is None else replace(answer, evidence=(*answer.evidence, _evidence(best.hit, "cascade")))

    def _from(self, best: Candidate, candidates: Sequence[Candidate]) -> Diagnosis:
        hit = best.hit
        cls = self.rules.classes[hit.rule.cls]
        groups = self.rules.groups(hit.rule, hit.text)
        others = sorted(
            (c for c in candidates if c.hit.line != hit.line and c.level > 0),
            key=lambda c: (-c.level, c.hit.line),
        )
        evidence = [_evidence(hit, "root")]
        for other in others:
            role = "confirmation" if other.hit.rule.cls == hit.rule.cls else "cascade"
            if len(evidence) < EVIDENCE_MAX and all(e.line != other.hit.line for e in evidence):
                evidence.append(_evidence(other.hit, role))
        return Diagnosis(
            cls.name,
            cls.family,
            _confidence(best, others),
            _summary(cls, hit, groups),
            evidence[0],
            tuple(evidence),
            (*(_filled(template, groups) for template in hit.rule.suggest), *cls.advice),
            cls.retryable,
            cls.node_suspect,
        )


_CERTAINTY = (0.4, 0.7, 0.85, 0.93, 0.97)
TRACEBACK_RULE, EXCEPTION_RULE, TABLE_RULE = "python.traceback", "python.exception", "torchrun.first"


def _around(hit: Hit, chains: Sequence[traceback.Chain]) -> traceback.Chain | None:
    for chain in chains:
        if chain.first_line <= hit.line <= chain.last_line + 1 and (hit.rank is None or hit.rank == chain.rank):
            return chain
    return None


def _evidence(hit: Hit, role: str) -> Evidence:
    return Evidence(hit.line, shorten(hit.text), hit.rule.cls, role, hit.rank)  # type: ignore[arg-type]


def _filled(template: str, groups: dict[str, str]) -> str:
    """A template with the match's groups; a group that did not match is left out with its brackets."""
    text = re.sub(r"\[([^\[\]]*)\]", lambda part: _optional(part[1], groups), template)
    return re.sub(r"\{(\w+)\}", lambda name: groups.get(name[1], "?"), text)


def _optional(part: str, groups: dict[str, str]) -> str:
    names = re.findall(r"\{(\w+)\}", part)
    return part if all(name in groups for name in names) else ""


def _summary(cls: FailureClass, hit: Hit, groups: dict[str, str]) -> str:
    if hit.rule.summary:
        return shorten(_filled(hit.rule.summary, groups), 200)
    _, text = unprefixed(hit.text)
    text = text.strip()
    if text.rstrip(":").replace(".", "").isidentifier():  # an exception without a message
        return f"{cls.meaning.rstrip('.')} ({text.rstrip(':')})"
    return shorten(text or cls.meaning, 200)


def _confidence(best: Candidate, others: Sequence[Candidate]) -> float:
    """How sure this is: less for symptoms, and where another class says as much."""
    base = _CERTAINTY[max(min(int(best.level), 4), 0)]
    rivals = {c.hit.rule.cls for c in others if c.level >= best.level and c.hit.rule.cls != best.hit.rule.cls}
    return round(base - min(0.1 * len(rivals), 0.3), 2)
