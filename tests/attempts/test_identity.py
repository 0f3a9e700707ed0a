"""Which runs are attempts of one job."""

from __future__ import annotations

from typing import Any

import pytest

from gpualert.attempts import identity

ARGV = ["python", "train.py", "--lr", "0.1"]
BARE = {"name": "python", "argv": ARGV, "cwd": "/home/x"}
POD = {"name": "llama", "namespace": "ml", "job": "llama", "pod": "llama-0-abcde", "argv": ARGV}
SLURM = {"name": "llama", "job": "llama", "slurm_job_id": "4711", "argv": [*ARGV, "--id=4711"]}
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**BARE, "name": "llama-7b"}, {**BARE, "name": "llama-7b", "cwd": "/elsewhere", "argv": ["sh"]}),
    (BARE, {**BARE, "host": "other"}),
    (POD, {**POD, "pod": "llama-0-fghij", "argv": ["sh"]}),
    ({**POD, "job": "nightly-29412345"}, {**POD, "job": "nightly-29413785"}),
    (SLURM, {**SLURM, "slurm_job_id": "4712", "argv": [*ARGV, "--id=4712"]}),
    ({**POD, "rank": 3}, {**POD, "rank": 3, "pod": "other"}),
]
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**BARE, "name": "llama-7b"}, {**BARE, "name": "llama-13b"}),
    (BARE, {**BARE, "argv": [*ARGV[:-1], "0.2"]}),
    (BARE, {**BARE, "cwd": "/home/y"}),
    (POD, {**POD, "namespace": "other"}),
    ({**POD, "job": None}, {**POD, "job": None, "pod": "other"}),
    (SLURM, {**SLURM, "argv": ["sh"]}),
    (SLURM, {**SLURM, "name": "other"}),
    ({**POD, "rank": 3}, {**POD, "rank": 4}),
    ({**BARE, "rank": 0}, BARE),
    (POD, {**POD, "container": "second"}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_attempts_of_one_job(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert identity.of(one) == identity.of(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_jobs_and_other_ranks(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert identity.of(one) != identity.of(other)


def test_nothing_known_is_no_error() -> None:
    assert identity.of({}) == identity.of({"argv": None, "name": None})
