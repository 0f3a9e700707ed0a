"""How often the same without progress, and when somebody is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.attempts import streak
from gpualert.attempts.streak import Attempt

OOM = Attempt("r", "cuda_oom", "f" * 16, 1000.0, 100.0)


def chain(*rows: dict[str, Any]) -> list[Attempt]:
    """Attempts ten minutes apart, oldest first."""
    return [replace(OOM, run_id=f"r{n}", ended_at=1000.0 + 600 * n, **row) for n, row in enumerate(rows)]


def of(*rows: dict[str, Any]) -> streak.Streak:
    *before, last = chain(*rows)
    return streak.of(last, reversed(before))


STUCK = {"step": 41200.0}
OTHER = {"cls": "nan_loss", "fingerprint": "0" * 16}


@pytest.mark.parametrize(
    ("rows", "same"),
    [
        ([STUCK], 1),
        ([STUCK] * 3, 3),
        ([{"step": 41200.0}, {"step": 41210.0}, {"step": 41150.0}], 3),
        ([{"step": 100.0}, {"step": 5000.0}, {"step": 9000.0}], 1),
        ([{"step": 100.0}, {"step": 5000.0}, {"step": 5000.0}], 2),
        ([{"step": 5000.0}, {"step": 100.0}, {"step": 5000.0}], 3),
        ([{"step": 5000.0}, {"step": 100.0}, {"step": 3000.0}], 3),
        ([STUCK, {}], 2),
        ([{}, STUCK], 1),
        ([{"epoch": 3.0}, {"epoch": 3.0}], 2),
        ([{"epoch": 3.0}, {"epoch": 4.0}], 1),
        ([{"epoch": 1.5, "step": 900.0}, {"epoch": 2.1, "step": 60.0}], 1),
        ([{"epoch": 2.1, "step": 60.0}, {"epoch": 1.5, "step": 900.0}], 2),
        # Two per cent further, after hours of work of its own.
        ([{"step": 1e6}, {"step": 1.02e6, "rate": 1.0, "duration_s": 30_000.0}], 1),
        ([{"step": 1e6}, {"step": 1.02e6, "rate": 1.0, "duration_s": 1_020_000.0}], 2),
        ([{"duration_s": 100.0}, {"duration_s": 150.0}], 2),
        ([{"duration_s": 100.0}, {"duration_s": 3600.0}], 1),
        ([{"duration_s": 0.05}, {"duration_s": 40.0}], 2),
        ([{"duration_s": None}, {"duration_s": 40.0}], 2),
        ([{"log_bytes": 1 << 20}, {"log_bytes": 5 << 20}], 1),
        ([{"log_bytes": 10}, {"log_bytes": 3000}], 2),
        ([STUCK, STUCK, OTHER, STUCK], 1),
        ([STUCK, STUCK, {"cls": "success", "fingerprint": ""}, STUCK, STUCK], 2),
        ([STUCK, {"cls": "evicted", "fingerprint": "0" * 16}, STUCK], 2),
    ],
)
def test_the_same_without_progress_is_counted(rows: list[dict[str, Any]], same: int) -> None:
    assert of(*rows).same == same


def test_attempts_that_failed_in_any_way_are_numbered() -> None:
    assert of(STUCK).number == 1
    assert of({**OTHER, "number": 6}, STUCK).number == 7
    assert of({"cls": "success", "fingerprint": ""}, STUCK).number == 1
    assert of(STUCK, STUCK, STUCK).number == 3


def test_no_more_is_read_than_needed() -> None:
    read = []

    def before() -> Any:
        for one in reversed(chain(*[{"told_at": 5.0}] * 50, OTHER | {"told_at": 5.0}, STUCK)):
            read.append(one)
            yield one

    assert streak.of(replace(OOM, step=41200.0), before()).same == 2
    assert len(read) == 2


def test_what_is_not_to_be_read_any_more_is_counted_as_the_oldest_says() -> None:
    found = of({**STUCK, "same": 30, "first_at": 10.0, "number": 31}, STUCK, STUCK)
    assert (found.same, found.number, found.first_at, found.unseen) == (32, 32, 10.0, 29)
    # Where the beginning is there, it counts.
    assert of(OTHER, {**STUCK, "same": 30, "first_at": 10.0}, STUCK).same == 2
    assert of({"step": 7.0, "same": 30}, STUCK, STUCK).same == 2


def test_what_was_held_is_known_until_somebody_is_told() -> None:
    told, held = {**STUCK, "told_at": 5.0}, {**STUCK, "held": True}
    assert [one.run_id for one in of(told, held, told, held, held, STUCK).held] == ["r3", "r4"]
    # Also what was held of another failure.
    assert [one.run_id for one in of(told, held, held, OTHER).held] == ["r1", "r2"]
    assert of(held, told, OTHER).held == ()


def test_told_at_one_two_three_five_and_then_at_each_double() -> None:
    assert [count for count in range(1, 200) if streak.milestone(count)] == [1, 2, 3, 5, 10, 20, 40, 80, 160]
    assert [streak.next_milestone(count) for count in (0, 1, 2, 3, 4, 5, 19, 20)] == [1, 2, 3, 5, 5, 10, 20, 40]


@pytest.mark.parametrize(
    ("rows", "now", "due"),
    [
        (["told"] * 3, 2300.0, True),
        (["told"] * 4, 2900.0, False),
        (["told", "told", "told", "held", "held"], 3500.0, True),
        (["told", "told", "told", "held", "held", "held"], 4000.0, True),  # the fifth was to be told, and was not
        (["told"] * 5 + ["held"] * 2, 4500.0, False),
        (["told"] * 5 + ["held"] * 2, 8000.0, True),  # an hour later
        (["no", "no", "no", "no"], 3000.0, True),
        (["told", "told", "no"], 2300.0, True),
    ],
)
def test_when_somebody_is_told(rows: list[str], now: float, due: bool) -> None:
    made = chain(*[STUCK] * len(rows))
    made = [
        replace(one, told_at=one.ended_at if row == "told" else None, held=row == "held")
        for one, row in zip(made, rows, strict=True)
    ]
    made[-1] = replace(made[-1], told_at=None, held=False)
    assert streak.is_due(streak.of(made[-1], reversed(made[:-1])), now) is due


ROW = st.fixed_dictionaries(
    {
        "step": st.none() | st.floats(0, 1e6),
        "epoch": st.none() | st.floats(0, 100),
        "duration_s": st.none() | st.floats(0, 1e6),
        "told_at": st.none() | st.floats(0, 1e6),
        "cls": st.sampled_from(["cuda_oom", "success", "evicted"]),
        "fingerprint": st.sampled_from(["a", "b"]),
    }
)


@given(st.lists(ROW, min_size=1, max_size=30))
def test_a_streak_is_the_end_of_the_attempts_and_ends_with_the_last(rows: list[dict[str, Any]]) -> None:
    made = chain(*rows)
    found = streak.of(made[-1], reversed(made[:-1]))
    assert found.attempts[-1] == made[-1]
    assert all(one in made for one in found.attempts)
    assert list(found.attempts) == sorted(found.attempts, key=lambda one: one.ended_at)
    assert {one.fingerprint for one in found.attempts} == {made[-1].fingerprint}
    assert 1 <= found.same <= found.number <= len(made)
