"""A secret that is cut is still a secret: it is masked before a line is shortened."""

from __future__ import annotations

import pytest

from gpualert.diagnosis import Facts, diagnose, excerpt
from gpualert.supervisor.redaction import Redaction

SECRET = "hf_" + "abcdefghij" * 4
MASK = Redaction([SECRET]).mask


def leaks(text: str) -> bool:
    return any(SECRET[n : n + 6] in text for n in range(len(SECRET) - 5))


@pytest.mark.parametrize("before", range(140, 330, 7))
def test_a_secret_at_the_edge_of_evidence_and_summary_is_masked_whole(before: int) -> None:
    error = f"RuntimeError: {'x' * before} {SECRET} {'y' * 300}"
    answer = diagnose(f"{error}\n".encode(), Facts(exit_code=1), mask=MASK)
    assert answer.cls == "runtime_error"
    assert not leaks(str(answer.as_dict()))


@pytest.mark.parametrize("before", [0, 1960, 1990, 2000, 2010, 2040, 3000, 6060, 6090, 9000])
@pytest.mark.parametrize("where", ["front", "back"])
def test_a_secret_at_the_edge_of_a_very_long_line_is_masked_whole(before: int, where: str) -> None:
    filler = "-" * before
    cause = "CUDA out of memory. Tried to allocate 2.00 GiB."
    line = f"{'z' * 9000}{SECRET}{filler}{cause}" if where == "front" else f"{cause}{filler}{SECRET}{'z' * 9000}"
    answer = diagnose(f"{line}\n".encode(), Facts(exit_code=1), mask=MASK)
    assert answer.cls == "cuda_oom"
    assert not leaks(str(answer.as_dict()))


@pytest.mark.parametrize("before", range(440, 520, 5))
def test_a_secret_at_the_edge_of_a_quoted_line_is_masked_whole(before: int) -> None:
    line = f"{'x' * before}{SECRET}{'y' * 300}"
    log = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{line}\nKeyError: 1\n'.encode()
    quoted = [excerpt.context(log, 4, mask=MASK), excerpt.tail(log, mask=MASK)]
    quoted.append(excerpt.traceback_around(log, 4, mask=MASK))
    assert not leaks(str(quoted))


def test_masking_does_not_hide_the_cause() -> None:
    answer = diagnose(b"CUDA out of memory\n", Facts(exit_code=1), mask=Redaction(["memory"]).mask)
    assert (answer.cls, answer.root and answer.root.text) == ("cuda_oom", "CUDA out of [masked]")


def test_an_exception_of_any_name_is_masked() -> None:
    log = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\ncv2.error: {SECRET}\n'.encode()
    assert not leaks(str(diagnose(log, Facts(exit_code=1), mask=MASK).as_dict()))
