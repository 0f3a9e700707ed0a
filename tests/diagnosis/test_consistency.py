"""How a run ended decides what its text may mean."""

from __future__ import annotations

import pytest

from gpualert.diagnosis import Facts, Rulebook, diagnose
from gpualert.diagnosis.consistency import ENDS
from gpualert.report.building import facts_of
from gpualert.rundir.reader import Run

MISSING = "cat: /data/x: No such file or directory\n"
UNCAUGHT = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    open("x")\n'
UNCAUGHT += "FileNotFoundError: [Errno 2] No such file or directory: 'x'\n"
KILLED = "Out of memory: Killed process 1 (python)\n"
RAY = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"


@pytest.mark.parametrize(
    ("text", "facts", "cls"),
    [
        ("^C\n", Facts(signal=11), "segfault"),
        ("^C\n", Facts(exit_code=139), "segfault"),
        ("^C\n", Facts(exit_code=1, supervised=True), "unknown"),
        ("^C\n", Facts(exit_code=1), "interrupted"),
        ("^C\n", Facts(exit_code=1, supervised=True, forwarded=(2,)), "interrupted"),
        ("^C\nKeyboardInterrupt\n", Facts(signal=2, supervised=True), "interrupted"),
        ("bash: foo: command not found\n", Facts(signal=11), "segfault"),
        ("bash: foo: command not found\n", Facts(signal=9), "unknown"),
        ("bash: foo: command not found\n", Facts(exit_code=127, supervised=True), "command_not_found"),
        (MISSING, Facts(signal=11), "segfault"),
        (MISSING, Facts(signal=9), "unknown"),
        (MISSING, Facts(signal=15), "terminated"),
        (MISSING, Facts(exit_code=1), "file_not_found"),
        (UNCAUGHT, Facts(signal=11), "file_not_found"),
        (KILLED, Facts(exit_code=1, counted=True), "unknown"),
        (KILLED, Facts(signal=9, counted=True), "unknown"),
        (KILLED, Facts(exit_code=1), "oom_killer"),
        (KILLED, Facts(exit_code=1, counted=True, oom_kills=1), "oom_killer"),
        (RAY, Facts(exit_code=1, counted=True), "oom_killer"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", Facts(signal=11), "gpu_ecc"),
        ("terminate called after throwing an instance of 'x'\n" + MISSING, Facts(signal=6), "file_not_found"),
    ],
)
def test_the_end_outranks_what_was_printed(text: str, facts: Facts, cls: str) -> None:
    assert diagnose(f"step 1\n{text}".encode(), facts).cls == cls


def test_the_table_names_classes_and_rules_that_there_are() -> None:
    rules = Rulebook.load()
    known = {*rules.classes, *(rule.id for rule in rules.rules)}
    for end in ENDS:
        assert end.rules_out | end.weakens <= known, end.name
        assert end.rules_out | end.weakens


def _facts(end: dict[str, object] | None) -> Facts:
    return facts_of(Run("/nowhere", {"argv": ["x"]}, end, None))


def test_absence_is_a_fact_only_where_gpualert_watched_to_the_end() -> None:
    watched = _facts({"exit_code": 1, "forwarded": [], "cgroup": {"oom_kill": 0}})
    assert (watched.supervised, watched.counted) == (True, True)
    uncounted = _facts({"exit_code": 1, "forwarded": [], "cgroup": None})
    assert (uncounted.supervised, uncounted.counted) == (True, False)
    killed = _facts({"exit_code": None, "interrupted": True, "cgroup": {"oom_kill": 0}})
    assert (killed.supervised, killed.counted) == (False, False)
    assert not _facts(None).supervised


def test_a_killed_supervisor_is_said_to_have_died_first_or_with_its_job() -> None:
    both = "the supervisor was killed, and the job with it or after it"
    dead = {"exit_code": None, "interrupted": True}
    for facts in ({}, {"oom_kills": 1}, {"forwarded": (15,)}, {"memory_last": 990, "memory_limit": 1000}):
        assert both in diagnose(b"", Facts(**dead, **facts)).summary  # type: ignore[arg-type]
