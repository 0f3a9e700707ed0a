"""What healthy training prints is evidence of nothing: numbers, counters, options, tables, and names of what may fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpualert.diagnosis import Facts, diagnose

LINES = (Path(__file__).parent / "ordinary.txt").read_text().splitlines()
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
FAILURES = {
    "unknown": "",
    "traceback": f"{TRACEBACK}KeyError: 'labels'\n",
    "file_not_found": f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: 'x.yaml'\n",
    "cuda_oom": f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "nccl_timeout": "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)\n",
    "nan_loss": "Loss is nan, stopping training\n",
}


@pytest.mark.parametrize("line", LINES)
def test_an_ordinary_line_names_no_cause(line: str) -> None:
    assert diagnose(f"{line}\n".encode(), Facts(exit_code=1)).cls == "unknown"


def test_an_ordinary_line_before_a_failure_changes_nothing() -> None:
    wrong = [
        (cls, line, found)
        for cls, text in FAILURES.items()
        for line in LINES
        if (found := diagnose(f"{line}\n{text}".encode(), Facts(exit_code=1)).cls) != cls
    ]
    assert wrong == []


@pytest.mark.parametrize("cls", FAILURES)
def test_all_ordinary_lines_before_a_failure_change_nothing(cls: str) -> None:
    log = "\n".join(LINES) + "\n" + FAILURES[cls]
    assert diagnose(log.encode(), Facts(exit_code=1)).cls == cls


def test_all_ordinary_lines_and_a_crash_are_that_crash() -> None:
    log = ("\n".join(LINES) + "\n").encode()
    assert diagnose(log, Facts(signal=11)).cls == "segfault"
    assert diagnose(log, Facts(signal=6)).cls == "native_abort"
    assert diagnose(log, Facts(signal=9)).cls == "unknown"
    assert diagnose(log, Facts(exit_code=0)).cls == "success"
