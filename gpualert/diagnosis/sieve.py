"""Which lines of a log are worth a look: all that hold a rule's fixed text, as long as these are few.

Where a log is full of a word (a million lines that say "Error"), the alternatives of rules that wait for this word are
searched for themselves, and where these match everywhere as well, only their first and last matches are looked at: they
are all that a decision needs. So the time that a log takes depends on its size, and hardly on what it says.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import re2

from gpualert.diagnosis import literals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpualert.diagnosis.rulebook import Rule

BUSY = 300
"""How many lines are looked at because of one word, before it counts as one that this log is full of."""
BUSY_BYTES = 64 << 10
"""One more for so many bytes of the log."""
CROWD, CROWD_BYTES, CROWD_BUSY = 4000, 16 << 10, 20
"""The same for all words together; where a log is full of all of them, each counts as busy sooner."""
FLOOD = 8000
"""When that many were looked at although nothing more can be searched for itself, the middle of the log is given up."""
SEARCHED_MAX = 16
"""How many alternatives are searched for themselves: each costs a pass. Others wait for the end of the log."""
LESSONS_MAX = 24
"""How often one learns what the log is full of; then it is full of everything, and only its start and end tell."""
BLOCKS_KEPT = 41
MAX_MEMORY = 64 << 20

_GROUP_NAME = re.compile(r"\(\?P<\w+>")
_END_OF_LINE = re.compile(r"(?<!\\)\$")


@dataclass(frozen=True, slots=True)
class Probe:
    """One alternative of a rule's pattern.

    Attributes:
        pattern: The alternative.
        words: Fixed texts, of which every match holds at least one; empty where ``trigger`` is given.
        trigger: A cheaper pattern that matches wherever the alternative may.
    """

    pattern: str
    words: frozenset[str]
    trigger: str


def probes_of(rules: Iterable[Rule]) -> list[Probe]:
    """The alternatives of all rules.

    Args:
        rules: The rules.
    """
    probes = {}
    for rule in rules:
        for pattern in rule.alternatives:
            words = () if rule.trigger else literals.required(pattern) or ()
            probes[pattern, rule.trigger] = Probe(pattern, frozenset(words), rule.trigger)
    return list(probes.values())


def trigger_of(probes: Sequence[Probe]) -> Any:
    """One pattern over bytes that matches wherever any of the alternatives may; None for none.

    Args:
        probes: The alternatives.
    """
    exact: set[str] = set()
    folded: set[str] = set()
    for probe in probes:
        (folded if "(?i" in probe.pattern else exact).update(probe.words)
    parts = list(dict.fromkeys(probe.trigger for probe in probes if probe.trigger))
    parts += [re2.escape(word) for word in _shortest(exact)]
    parts += [f"(?i:{re2.escape(word)})" for word in _shortest(folded)]
    if not parts:
        return None
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    return re2.compile("|".join(parts).encode("utf-8"), options)


def _shortest(words: set[str]) -> list[str]:
    """The words that contain no other of them: the longer ones add nothing."""
    text = "\n" + "\n".join(sorted(words)) + "\n"
    longer = set()
    for word in words:
        place = text.find(word)
        while place >= 0:
            begin, end = text.rfind("\n", 0, place + 1) + 1, text.find("\n", place)
            if end - begin > len(word):
                longer.add(text[begin:end])
            place = text.find(word, end)
    return sorted(words - longer)


@lru_cache(maxsize=256)
def _over_bytes(pattern: str) -> Any:
    """A pattern for lines as one for a block of many raw lines."""
    text = _END_OF_LINE.sub(r"(?:\\s*$)", _GROUP_NAME.sub("(?:", pattern))
    return re2.compile(f"(?m)(?:{text})".encode())


class Searched:
    """An alternative that is searched for itself.

    Attributes:
        pattern: It, over bytes.
        found: How many matches were looked at.
        resting: It matches everywhere, so that only the blocks with its last matches are noted.
        blocks: These blocks: offset, length, and the number of lines before.
    """

    __slots__ = ("blocks", "found", "pattern", "resting")

    def __init__(self, probe: Probe) -> None:
        self.pattern = _over_bytes(probe.pattern)
        self.found = 0
        self.resting = False
        self.blocks: deque[tuple[int, int, int]] = deque(maxlen=BLOCKS_KEPT)

    def places(self, block: bytes) -> Iterator[int]:
        """Where in a block it matches; a line's end that it takes for a blank before it does not count.

        Args:
            block: Whole lines of the log.
        """
        for found in self.pattern.finditer(block):
            yield found.end() - len(found.group().lstrip(b"\r\n"))


class Sieve:
    """Finds the places in a log that are worth a look, and learns what the log is full of.

    Attributes:
        searched: The alternatives that are searched for themselves.
        blind: Whether there were too many of them, so that the end of the log has to be looked at once more.
    """

    def __init__(self, probes: Sequence[Probe], trigger: Any) -> None:
        """Nothing is known of the log yet.

        Args:
            probes: The alternatives of all rules.
            trigger: A pattern that matches wherever any of them may.
        """
        self._waiting = list(probes)
        self._trigger = trigger
        self._looked: Counter[str] = Counter()
        self._all = self._learnt = 0
        self.searched: list[Searched] = []
        self.blind = False

    def places(self, block: bytes, offset: int, line: int) -> Iterator[tuple[int, str]]:
        """Places in a block, in order, each with the word that was found there (none for an alternative's own match).

        Args:
            block: Whole lines of the log.
            offset: Where the block begins, in bytes.
            line: How many lines came before.
        """
        own = sorted(
            (place, "") for searched in self.searched for place in self._matches(searched, block, offset, line)
        )
        if self._trigger is None:
            yield from own
            return
        position = 0
        for found in self._trigger.finditer(block):
            place = found.start()
            while position < len(own) and own[position][0] < place:
                yield own[position]
                position += 1
            yield place, found.group().decode("utf-8", "replace")
        yield from own[position:]

    def _matches(self, searched: Searched, block: bytes, offset: int, line: int) -> Iterator[int]:
        limit = BUSY + offset // BUSY_BYTES
        if not searched.resting:
            for place in searched.places(block):
                yield place
                searched.found += 1
                if searched.found > limit:
                    searched.resting = True
                    break
        if searched.resting and searched.pattern.search(block):
            searched.blocks.append((offset, len(block), line))

    def looked(self, word: str) -> None:
        """Note that a line was looked at because of a word.

        Args:
            word: The word.
        """
        self._looked[word] += 1
        self._all += 1

    def learn(self, offset: int) -> None:
        """Between two blocks: stop waiting for words that the log is full of.

        Args:
            offset: How much of the log has been read, in bytes.
        """
        crowded = self._all > CROWD + offset // CROWD_BYTES
        limit = CROWD_BUSY if crowded else BUSY + offset // BUSY_BYTES
        busy = [word for word, count in self._looked.items() if word and count > limit]
        if not busy:
            return
        for word in busy:
            del self._looked[word]
        for probe in [probe for probe in self._waiting if _waits_for(probe, busy)]:
            self._waiting.remove(probe)
            if len(self.searched) < SEARCHED_MAX:
                self.searched.append(Searched(probe))
            else:
                self.blind = True
        self._learnt += 1
        flooded = self.blind and self._all > FLOOD + offset // CROWD_BYTES
        if flooded or self._learnt > LESSONS_MAX:
            self._waiting, self.blind = [], True
        self._trigger = trigger_of(self._waiting)
        re2.purge()  # the former one and its automaton


def _waits_for(probe: Probe, words: Sequence[str]) -> bool:
    if probe.trigger:
        return any(re2.search(probe.trigger, word) for word in words)
    folded = {word.lower() for word in words}
    return any(own.lower() in folded for own in probe.words)
