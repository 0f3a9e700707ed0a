"""What earlier attempts say of a failure, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpualert.attempts import streak
from gpualert.attempts.streak import Attempt
from gpualert.notify import notice
from gpualert.report import attempts, wording
from gpualert.rundir import shapes

ONE = Attempt("20261202T000000.000000Z-x-aaaaaa", "cuda_oom", "f" * 16, 1_780_000_000.0, 90.0, node="gpu-17")


def chain(count: int, apart_s: float = 750.0, **each: Any) -> tuple[Attempt, ...]:
    """Attempts; a list gives each its own value."""
    rows = []
    for number in range(count):
        values = {key: value[number] if isinstance(value, list) else value for key, value in each.items()}
        rows.append(replace(ONE, run_id=f"run-{number}", ended_at=ONE.ended_at + apart_s * number, **values))
    return tuple(rows)


def diagnosis(**more: Any) -> dict[str, Any]:
    return {
        "class": "cuda_oom", "family": "gpu", "summary": "out of memory", "confidence": 0.9, "root": None, "evidence": [],
        "suggestions": ["a smaller batch"], "retryable": False, "node_suspect": False, **more,
    }  # fmt: skip


def report(found: streak.Streak, **more: Any) -> dict[str, Any]:
    made = {
        "run": {"name": "llama-7b", "run_id": "run"}, "exit": {"duration_s": 90.0, "exit_code": 1},
        "diagnosis": diagnosis(**more), "notifications": [],
    }  # fmt: skip
    attempts.apply(made, found)
    return made


@pytest.mark.parametrize(
    ("count", "each", "advice"),
    [
        (1, {"step": 41200.0}, None),
        (3, {"step": 41200.0}, "do not retry: the same failure 3 times in 25m at the same step (41200)"),
        (3, {"step": [41190.0, 41210.0, 41200.0]}, "do not retry: the same failure 3 times in 25m at the same step (41200)"),
        (2, {"step": [41200.0, 300.0]}, "do not retry: the same failure 2 times in 12m, never beyond step 41200"),
        (2, {"epoch": 3.0}, "do not retry: the same failure 2 times in 12m at the same epoch (3)"),
        (2, {"duration_s": 14.0}, "do not retry: the same failure 2 times in 12m, each after about 14s"),
        (2, {"duration_s": [1.0, 40.0]}, "do not retry: the same failure 2 times in 12m"),
        (2, {"step": [41200.0, None]}, "do not retry: the same failure 2 times in 12m, never beyond step 41200"),
        (2, {"cls": "terminated", "step": 5.0}, None),
        (2, {"cls": "interrupted", "step": 5.0}, None),
        (2, {"cls": "evicted", "step": 5.0}, None),
        (2, {"cls": "node_lost", "step": 5.0}, None),
    ],
)  # fmt: skip
def test_the_same_twice_without_progress_is_not_to_be_retried(
    count: int, each: dict[str, Any], advice: str | None
) -> None:
    made = report(streak.Streak(chain(count, **each)))
    assert made["attempt"]["advice"] == advice
    assert made["diagnosis"]["suggestions"] == [*([advice] if advice else []), "a smaller batch"]


def test_what_may_pass_by_itself_has_a_second_chance() -> None:
    twice = report(streak.Streak(chain(2, step=5.0)), retryable=True)
    assert (twice["diagnosis"]["retryable"], twice["attempt"]["advice"]) == (True, None)
    thrice = report(streak.Streak(chain(3, step=5.0)), retryable=True)
    assert thrice["diagnosis"]["retryable"] is False
    assert thrice["attempt"]["advice"] == "do not retry: the same failure 3 times in 25m at the same step (5)"


@pytest.mark.parametrize(
    ("nodes", "advice", "suspect"),
    [
        (["gpu-17"] * 3, "same node each time (gpu-17): exclude it", True),
        (["gpu-1", "gpu-2", "gpu-3"], "do not retry: the same failure 3 times in 25m at the same step (7); another node each time (gpu-1, gpu-2, gpu-3): not the node", False),
        (["gpu-1", "gpu-1", "gpu-3"], "do not retry: the same failure 3 times in 25m at the same step (7)", True),
        (["gpu-1", None, "gpu-1"], "do not retry: the same failure 3 times in 25m at the same step (7)", True),
    ],
)  # fmt: skip
def test_the_nodes_tell_whether_it_is_the_node(nodes: list[str | None], advice: str, suspect: bool) -> None:
    made = report(streak.Streak(chain(3, node=nodes, step=7.0)), node_suspect=True)
    assert (made["attempt"]["advice"], made["diagnosis"]["node_suspect"]) == (advice, suspect)


def test_a_failure_that_is_not_the_nodes_says_nothing_of_nodes() -> None:
    assert "node" not in report(streak.Streak(chain(3)))["attempt"]["advice"]


@pytest.mark.parametrize(
    ("length_s", "words"), [(2.5, "2.5s"), (40, "40s"), (125, "2m05s"), (1500, "25m"), (1519, "25m"), (11520, "3h12m"), (7200, "2h")]
)  # fmt: skip
def test_a_span_says_no_more_than_matters(length_s: float, words: str) -> None:
    assert attempts.span(length_s) == words


def test_the_subject_of_a_crash_loop() -> None:
    found = streak.Streak(chain(5, 375.0, step=41200.0, told_at=[1.0, 2.0, 3.0, None, None]))
    made = report(found)
    assert notice.subject("ended", made).startswith("[gpualert] llama-7b failed: cuda_oom")
    assert not attempts.hold(made, found, ONE.ended_at + 1500)
    assert notice.subject("ended", made) == "[gpualert] llama-7b crash loop: cuda_oom 5 times in 25m (same step 41200)"


def test_one_that_is_held_says_why_and_until_when() -> None:
    told = [ONE.ended_at + 750.0 * number for number in range(3)]
    found = streak.Streak(chain(4, step=41200.0, told_at=[*told, None]))
    made = report(found)
    assert attempts.hold(made, found, told[-1] + 750)
    (row,) = made["notifications"]
    assert (row["channel"], row["to"], row["outcome"]) == ("all", [], "held")
    assert row["detail"] == "the same failure 4 times; number 5 is told, or one after 21:51Z (notify.repeats)"
    assert attempts.held(made) == f"nobody told: {row['detail']}"
    assert shapes.REPORT(made)["notifications"] == made["notifications"]


def test_the_table_lists_the_same_and_what_nobody_was_told_of() -> None:
    held = (replace(ONE, run_id="old", cls="nan_loss", ended_at=ONE.ended_at - 60, epoch=2.5, held=True),)
    made = report(streak.Streak(chain(3, step=[7.0, 8.0, 8.0], told_at=[5.0, None, None]), held=held))
    listed = attempts.rows(made)
    assert [(row["run"], row["class"], row["got to"], row["told"]) for row in listed] == [
        ("old", "nan_loss", "epoch 2.5", "no"), ("run-0", "cuda_oom", "step 7", "yes"), ("run-1", "cuda_oom", "step 8", "no"),
    ]  # fmt: skip
    assert (listed[1]["after"], listed[1]["node"]) == ("1m30s", "gpu-17")
    assert [line.split()[0] for line in attempts.text(made)] == ["when", *(row["when"].split()[0] for row in listed)]


def test_of_a_long_loop_the_table_shows_the_end_and_counts_the_rest() -> None:
    held = chain(attempts.ROWS_MAX + 15, held=True)
    made = report(streak.Streak((*held, replace(ONE, run_id="last")), held=held))
    assert attempts.rows(made)[0]["when"] == "and 15 more"
    assert len(attempts.rows(made)) == attempts.ROWS_MAX + 1
    assert len(made["attempt"]["progress"]) == attempts.ROWS_MAX


def test_a_report_without_attempts_has_no_table() -> None:
    assert attempts.rows({"attempt": None}) == []
    assert attempts.text({}) == []
    assert attempts.headline({}) == ""


def test_a_forged_name_makes_no_line_of_its_own() -> None:
    made = report(streak.Streak(chain(2, node="gpu\nFrom: x\x1b[2J")))
    assert all("\n" not in line and "\x1b" not in line for line in attempts.text(made))


def test_what_not_to_do_stands_before_what_to_do() -> None:
    assert wording.steps({"suggestions": ["a", "b"]}) == ["try: a"]
    assert wording.steps({"suggestions": ["do not retry: x", "a", "b"]}) == ["do not retry: x", "try: a"]
    assert wording.steps({"suggestions": ["a", "b", "c"]}, 2) == ["try: a", "try: b"]
    assert wording.steps({"suggestions": []}) == []
