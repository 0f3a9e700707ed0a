"""Real logs with known causes."""

from __future__ import annotations

from pathlib import Path

import classification

from gpualert.diagnosis import Rulebook, diagnose


def test_real_logs_are_classified() -> None:
    rules = Rulebook.load()
    cases = classification.real_cpu()
    pairs = classification.judged(cases, lambda case: diagnose(case.log, case.facts, rules=rules).cls)
    wrong = [(case.id, *pair) for case, pair in zip(cases, pairs, strict=True) if pair[0] != pair[1]]
    assert classification.macro_f1(pairs) >= 0.98, wrong


def test_the_baselines_do_worse() -> None:
    cases = classification.real_cpu()
    for baseline in (classification.by_exit_code, classification.by_keyword, classification.by_last_line):
        assert classification.macro_f1(classification.judged(cases, baseline)) < 0.6


def test_scores_are_what_they_are_called() -> None:
    pairs = [("a", "a"), ("a", "b"), ("b", "b"), ("c", "b")]
    assert classification.scores(pairs, "a") == (1.0, 0.5, 2 / 3)
    assert classification.scores(pairs, "b") == (1 / 3, 1.0, 0.5)
    assert classification.macro_f1(pairs) == (2 / 3 + 0.5 + 0) / 3


def test_forms_of_many_versions_and_frameworks_are_classified() -> None:
    rules = Rulebook.load()
    cases = classification.corpus(Path(__file__).resolve().parents[1] / "data" / "forms.jsonl")
    pairs = classification.judged(cases, lambda case: diagnose(case.log, case.facts, rules=rules).cls)
    wrong = [(case.id, *pair) for case, pair in zip(cases, pairs, strict=True) if pair[0] != pair[1]]
    assert wrong == []


def test_every_class_that_text_can_show_has_five_examples() -> None:
    rules = Rulebook.load()
    by_facts = {"lost", "unknown", "success"}
    for cls in rules.classes.values():
        if cls.family != "watcher" and cls.name not in by_facts:
            assert sum(len(rule.positive) for rule in rules.rules if rule.cls == cls.name) >= 5, cls.name
