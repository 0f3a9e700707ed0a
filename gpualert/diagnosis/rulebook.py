"""Classes and rules as data: TOML files beside the engine, and a user's own."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import re2

from gpualert.diagnosis import literals
from gpualert.diagnosis.sieve import Probe, probes_of, trigger_of
from gpualert.diagnosis.text import names_nothing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES_FILE = os.path.join(HERE, "classes.toml")
RULES_DIRECTORY = os.path.join(HERE, "rules")

LEVELS = {
    "evidence": 4.0,
    "cause": 3.0,
    "driver": 2.5,
    "exception": 2.0,
    "generic": 1.5,
    "symptom": 1.0,
    "echo": 0.7,
    "wrapper": 0.0,
}
"""How much a rule's match says: a kernel's or driver's own word; a cause; a driver's word on what a program may have
done to it; an exception that may have been wrapped; an exception of which only the name is known; what mostly follows a
cause elsewhere; what the other ranks say when one has broken; what always follows."""

_CLASS_KEYS = {"family", "paper", "meaning", "advice", "retryable", "node_suspect", "symptom"}
_RULE_KEYS = {"id", "class", "pattern", "level", "positive", "negative", "summary", "suggest"}
_RULE_KEYS |= {"with_success", "lasting", "unless", "trigger", "ignore_case", "lookup", "yields_to"}


class RuleError(Exception):
    """A rule file is wrong; the message names file, rule and key."""


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One class of the taxonomy.

    Attributes:
        name: Its name (``cuda_oom``).
        family: Its family (``gpu``).
        paper: The paper's class for it; empty where it has none.
        meaning: What it means, one sentence.
        advice: What to do, most useful first.
        retryable: A retry without any change may succeed.
        node_suspect: The node is suspect.
        symptom: It mostly follows a cause elsewhere.
    """

    name: str
    family: str
    paper: str = ""
    meaning: str = ""
    advice: tuple[str, ...] = ()
    retryable: bool = False
    node_suspect: bool = False
    symptom: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """How one form of a class is recognised in a line of the log.

    Attributes:
        id: Its name, unique among all rules.
        cls: The class it speaks for.
        pattern: A regular expression (RE2), searched in a line without escapes.
        level: How much a match says, see ``LEVELS``.
        positive: Lines that it must match.
        negative: Lines that it must not match.
        summary: A template for the summary, with the pattern's named groups.
        suggest: Templates for suggestions that come before the class's advice.
        with_success: It also speaks when the exit code is 0.
        lasting: A match counts only when it still held at the end (NaN that stays).
        unless: A pattern; lines that match it too do not count.
        trigger: A cheaper pattern that matches wherever ``pattern`` may; derived from its fixed text when empty.
        lookup: For a named group, what its values mean; the meaning is there for templates as ``<group>_means``.
        yields_to: Ids of rules that say the same more exactly; where one of them matches close by, it decides.
        source: The file it comes from.
        alternatives: The pattern's alternatives, where it was given as a list.
    """

    id: str
    cls: str
    pattern: str
    level: float
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    summary: str = ""
    suggest: tuple[str, ...] = ()
    with_success: bool = False
    lasting: bool = False
    unless: str = ""
    trigger: str = ""
    lookup: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    yields_to: tuple[str, ...] = ()
    source: str = field(default="", compare=False)
    alternatives: tuple[str, ...] = field(default=(), compare=False)


def _check_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise RuleError(f"{where}: unknown key '{unknown[0]}' (known: {', '.join(sorted(known))})")


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RuleError(f"{where}: {key} must be a list of texts")
    return tuple(value)


def _text(table: Mapping[str, Any], key: str, where: str, default: str = "") -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise RuleError(f"{where}: {key} must be a text")
    return value


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise RuleError(f"{where}: {key} must be true or false")
    return value


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise RuleError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RuleError(f"{path}: is not valid TOML ({error})") from None


def _class(name: str, table: Mapping[str, Any], path: str) -> FailureClass:
    where = f"{path}: class {name}"
    _check_keys(table, _CLASS_KEYS, where)
    if not _text(table, "family", where):
        raise RuleError(f"{where}: family is missing")
    return FailureClass(
        name,
        _text(table, "family", where),
        _text(table, "paper", where),
        _text(table, "meaning", where),
        _texts(table, "advice", where),
        _flag(table, "retryable", where),
        _flag(table, "node_suspect", where),
        _flag(table, "symptom", where),
    )


def _rule(table: Mapping[str, Any], classes: Mapping[str, FailureClass], path: str) -> Rule:
    where = f"{path}: rule {table.get('id', '?')}"
    _check_keys(table, _RULE_KEYS, where)
    for key in ("id", "class"):
        if not _text(table, key, where):
            raise RuleError(f"{where}: {key} is missing")
    cls = table["class"]
    if cls not in classes:
        raise RuleError(f"{where}: class '{cls}' is unknown (define it under [class.{cls}])")
    level = _text(table, "level", where, "symptom" if classes[cls].symptom else "cause")
    if level not in LEVELS:
        raise RuleError(f"{where}: level must be one of {', '.join(LEVELS)}, not '{level}'")
    fold = "(?i)" if _flag(table, "ignore_case", where) else ""
    alternatives = _alternatives(table, where)
    rule = Rule(
        table["id"],
        cls,
        fold + "|".join(alternatives),
        LEVELS[level],
        _texts(table, "positive", where),
        _texts(table, "negative", where),
        _text(table, "summary", where),
        _texts(table, "suggest", where),
        _flag(table, "with_success", where),
        _flag(table, "lasting", where),
        _text(table, "unless", where),
        _text(table, "trigger", where),
        _lookup(table, where),
        _texts(table, "yields_to", where),
        path,
        tuple(f"{fold}{part}" for part in alternatives),
    )
    for key, pattern in (("pattern", rule.pattern), ("unless", rule.unless), ("trigger", rule.trigger)):
        if pattern:
            _check_pattern(pattern, rule.alternatives if key == "pattern" else (pattern,), f"{where}: {key}")
    if not rule.trigger and not all(map(literals.required, rule.alternatives)):
        raise RuleError(f"{where}: pattern needs some fixed text of at least {literals.MIN_LENGTH} characters")
    return rule


def _lookup(table: Mapping[str, Any], where: str) -> dict[str, dict[str, str]]:
    value = table.get("lookup", {})
    tables = value.values() if isinstance(value, dict) else [None]
    if not all(isinstance(inner, dict) and all(isinstance(text, str) for text in inner.values()) for inner in tables):
        raise RuleError(f"{where}: lookup must be tables of texts, one for each named group")
    return dict(value)


def _alternatives(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """One pattern, given as a text, or as a list of alternatives."""
    value = table.get("pattern")
    parts = (value,) if isinstance(value, str) else _texts(table, "pattern", where)
    if not parts or not all(parts):
        raise RuleError(f"{where}: pattern is missing")
    return parts


def _check_pattern(pattern: str, alternatives: Iterable[str], where: str) -> None:
    try:
        re2.compile(pattern)
        for alternative in alternatives:
            literals.required(alternative)
    except (re2.error, re.error) as error:
        raise RuleError(f"{where}: is not a valid pattern ({error})") from None


class Rulebook:
    """All classes and rules.

    Attributes:
        classes: Classes by name.
        rules: The rules; later files' rules replace earlier ones of the same id.
        order: Each rule's place among them, by id.
    """

    def __init__(self, classes: Mapping[str, FailureClass], rules: Iterable[Rule]) -> None:
        self.classes = dict(classes)
        self.rules = list({rule.id: rule for rule in rules}.values())
        self.order = {rule.id: number for number, rule in enumerate(self.rules)}

    @classmethod
    @lru_cache(maxsize=8)
    def load(cls, extra: tuple[str, ...] = ()) -> Rulebook:
        """The rules that come with gpualert, and those in the directories ``extra``.

        Raises:
            RuleError: A file is wrong.
        """
        classes = {name: _class(name, table, CLASSES_FILE) for name, table in _read(CLASSES_FILE).items()}
        rules: list[Rule] = []
        for directory in (RULES_DIRECTORY, *extra):
            try:
                names = sorted(name for name in os.listdir(directory) if name.endswith(".toml"))
            except OSError as error:
                raise RuleError(f"{directory}: cannot be read ({error.strerror})") from None
            for name in names:
                path = os.path.join(directory, name)
                tree = _read(path)
                _check_keys(tree, {"class", "rule"}, path)
                for class_name, table in tree.get("class", {}).items():
                    classes[class_name] = _class(class_name, table, path)
                rules += [_rule(table, classes, path) for table in tree.get("rule", [])]
        return cls(classes, rules)

    @cached_property
    def probes(self) -> list[Probe]:
        """The alternatives of all rules' patterns."""
        return probes_of(self.rules)

    @cached_property
    def trigger(self) -> Any:
        """One pattern over bytes that matches wherever any rule may."""
        return trigger_of(self.probes)

    @cached_property
    def _set(self) -> Any:
        options = re2.Options()
        options.max_mem = 64 << 20
        made = re2.Set.SearchSet(options)
        for rule in self.rules:
            made.Add(rule.pattern)
        made.Compile()
        return made

    @cached_property
    def _unless(self) -> dict[int, Any]:
        return {number: re2.compile(rule.unless) for number, rule in enumerate(self.rules) if rule.unless}

    @lru_cache(maxsize=1024)  # noqa: B019  (a rulebook lives as long as its process)
    def _compiled(self, pattern: str) -> Any:
        return re2.compile(pattern)

    def matches(self, line: str) -> list[Rule]:
        """The rules that a line matches; words that only count what has not happened, or name an option, match none."""
        matched = [
            self.rules[number]
            for number in self._set.Match(line) or ()
            if number not in self._unless or not self._unless[number].search(line)
        ]
        return [rule for rule in matched if not self._names_nothing(rule, line)]

    def _names_nothing(self, rule: Rule, line: str) -> bool:
        found = self._compiled(rule.pattern).finditer(line)
        return all(names_nothing(line, part.start(), part.end()) for part in found)

    def groups(self, rule: Rule, line: str) -> dict[str, str]:
        """The named groups of a rule's match in a line; empty where it does not match."""
        found = re2.search(rule.pattern, line)
        groups = {} if found is None else {key: value for key, value in found.groupdict().items() if value is not None}
        for name, meanings in rule.lookup.items():
            if groups.get(name) in meanings:
                groups[f"{name}_means"] = meanings[groups[name]]
        return groups
