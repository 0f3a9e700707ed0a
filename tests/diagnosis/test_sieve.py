"""Logs that are full of what rules wait for: first and last matches are found, rare ones between them too, in bounded work."""

from __future__ import annotations

import io
import re

import pytest

from gpualert.diagnosis import Facts, Rulebook, diagnose
from gpualert.diagnosis.reader import KEEP_FIRST, KEEP_LAST, Scan

RULES = Rulebook.load()
NOISE = b"".join(b"Error: CUDA out of memry RuntimeError NCCL WARN %d\n" % (n % 9) for n in range(40_000))
TRACEBACK = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nKeyError: %d\n'


class Watched(Rulebook):
    """Counts how many lines are matched in full."""

    looks = 0

    def matches(self, line: str) -> list[object]:  # type: ignore[override]
        self.looks += 1
        return super().matches(line)  # type: ignore[return-value]


def lines_of(log: bytes, rule: str) -> list[int]:
    return [hit.line for hit in Scan(io.BytesIO(log), RULES).hits if hit.rule.id == rule]


def test_the_first_and_the_last_matches_of_a_crowd_are_exact() -> None:
    log = b"".join(TRACEBACK % n for n in range(60_000))
    for rule, first in (("python.traceback", 1), ("python.exception", 4)):
        expected = [first + 4 * n for n in (*range(KEEP_FIRST), *range(60_000 - KEEP_LAST, 60_000))]
        assert lines_of(log, rule) == expected


def test_a_crowd_that_ends_long_before_the_log_does_keeps_its_last_matches() -> None:
    quiet = b"loading shard of the training data, all is well here\n" * 50_000
    log = b"".join(TRACEBACK % n for n in range(20_000)) + quiet + TRACEBACK % 7 + quiet
    assert lines_of(log, "python.exception")[-2:] == [80_000, 80_000 + 50_000 + 4]


@pytest.mark.parametrize(
    ("line", "cls"),
    [
        (b"OSError: [Errno 28] No space left on device\n", "disk_full"),
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "cuda_oom"),
        (b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n", "gpu_lost"),
    ],
)
def test_one_cause_amid_near_misses_is_found(line: bytes, cls: str) -> None:
    found = diagnose(NOISE + line + NOISE, Facts(exit_code=1))
    assert (found.cls, found.root and found.root.line) == (cls, 40_001)


def test_few_lines_of_a_crowd_are_looked_at() -> None:
    rules = Watched(RULES.classes, RULES.rules)
    Scan(io.BytesIO(NOISE), rules)
    assert rules.looks < 12_000  # of 40 000, and of ten times as many hardly more


def test_a_log_full_of_every_word_is_given_up_in_its_middle_but_not_at_its_ends() -> None:
    words = sorted({word for probe in RULES.probes for word in probe.words})
    crowd = "".join(f"x {words[n % len(words)]} {n} {words[n * 7 % len(words)]} y\n" for n in range(60_000)).encode()
    rules = Watched(RULES.classes, RULES.rules)
    cause = b"\nNVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    hits = Scan(io.BytesIO(cause + crowd + cause), rules).hits
    assert rules.looks < 40_000
    lines = [hit.line for hit in hits if hit.rule.id == "lost.xid"]
    assert lines == [2, 60_004]


def test_the_answer_is_the_same_each_time_and_in_any_kind_of_stream() -> None:
    log = NOISE + b"".join(TRACEBACK % n for n in range(5000)) + NOISE
    first = diagnose(log, Facts(exit_code=1)).as_dict()
    assert diagnose(io.BytesIO(log), Facts(exit_code=1)).as_dict() == first


def test_no_alternative_of_a_rule_is_missed_by_the_words_it_waits_for() -> None:
    for probe in RULES.probes:
        if probe.words:
            assert all(len(word) >= 3 for word in probe.words)
        else:
            assert probe.trigger
        assert re.compile(probe.pattern)
