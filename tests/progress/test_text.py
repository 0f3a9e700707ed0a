"""How progress reads."""

from __future__ import annotations

from typing import Any

import pytest

from gpualert.progress import text

FULL: dict[str, Any] = {
    "at": "2026-12-01T05:58:41.000000Z", "format": "hf", "step": 41_200, "total": 50_000, "epoch": 3, "loss": 1.873,
    "rate": 3.1, "unit": "it", "slower": 0.42, "since": "2026-12-01T05:12:07.000000Z", "finish_in_s": 2838.7,
}  # fmt: skip


def test_the_whole_phrase() -> None:
    assert text.phrase(FULL) == (
        "step 41200 of 50000 (82 %), epoch 3, loss 1.873, 3.1 it/s, 42 % slower than before since 05:12Z"
    )
    assert text.phrase(FULL, pace=False) == (
        "step 41200 of 50000 (82 %), epoch 3, loss 1.873, 42 % slower than before since 05:12Z"
    )
    assert text.place(FULL) == "step 41200 of 50000 (82 %), epoch 3"
    assert text.short(FULL) == "41200/50000 82%"


@pytest.mark.parametrize(
    ("progress", "phrase", "short"),
    [
        (None, "", ""),
        ({}, "", ""),
        ({"step": 7}, "step 7", "step 7"),
        ({"step": 7, "total": 5}, "step 7", "step 7"),
        ({"step": 0, "total": 5}, "step 0 of 5 (0 %)", "0/5 0%"),
        ({"step": 6400, "total": 60_000, "unit": "samples"}, "sample 6400 of 60000 (11 %)", "6400/60000 10%"),
        ({"epoch": 0.1234}, "epoch 0.123", "epoch 0.123"),
        ({"epoch": 3, "epochs": 10, "loss": 0.00012}, "epoch 3 of 10, loss 0.00012", "epoch 3/10"),
        ({"epoch": 12, "epochs": 10}, "epoch 12", "epoch 12"),
        ({"step": 7, "rate": 0.25, "unit": "it"}, "step 7, 4 s/it", "step 7"),
        ({"step": 7, "rate": 1250.0, "unit": "batch"}, "step 7, 1250 batches/s", "step 7"),
        ({"step": 1_234_567_890_123, "total": 10**13}, "step 1234567890123 of 10000000000000 (12 %)", "1.235T/10T 12%"),
        ({"step": 7, "loss": 12_345.6}, "step 7, loss 12346", "step 7"),
        ({"step": 7, "loss": -3e25}, "step 7, loss -3e+25", "step 7"),
        ({"step": True, "epoch": "x", "loss": None, "slower": "much"}, "", ""),
    ],
)
def test_what_is_known_is_said_and_no_more(progress: dict[str, Any] | None, phrase: str, short: str) -> None:
    assert text.phrase(progress) == phrase
    assert text.short(progress) == short


@pytest.mark.parametrize("step", [1, 99_999, 100_000, 999_999, 1_000_000, 123_456_789, 10**12])
def test_the_short_form_fits_a_narrow_column(step: int) -> None:
    assert len(text.short({"step": step, "total": 10**12, "epoch": 1})) <= 18
