"""How the decision is made: facts first, causes over symptoms, the end over the middle, the first rank to break."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpualert.diagnosis import Diagnosis, Facts, diagnose, excerpt, traceback

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


def test_an_exception_into_which_another_rank_printed_is_read() -> None:
    log = (
        b'step 2 loss 6.0\nTraceback (most recent call last):\n  File "t.py", line 11, in <module>\n    x()\n'
        b"KeyErrorstep 3 loss 6.000\n: 'input_ids'\nstep 3 loss 6.000\n"
        b"RuntimeError: [pair.cc:598] Connection closed by peer [127.0.0.1]:721\n"
    )
    found = diagnose(log, Facts(exit_code=1))
    assert (found.cls, found.summary) == ("traceback", "KeyError: 'input_ids'")


def of(log: str, **facts: object) -> Diagnosis:
    facts.setdefault("exit_code", 1)
    return diagnose(log.encode(), Facts(**facts))  # type: ignore[arg-type]


def tb(error: str, prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()", error]
    return "".join(f"{prefix}{line}\n" for line in lines)


def test_a_printed_error_before_success_is_no_failure() -> None:
    assert of(f"{OOM}\nretrying with batch 4\nstep 2 loss 1.0\ndone\n", exit_code=0).cls == "success"


def test_an_error_that_was_survived_is_not_the_cause() -> None:
    assert of(tb(OOM) + "".join(f"step {n} loss 1.5\n" for n in range(9)) + tb("KeyError: 'labels'")).cls == "traceback"


def test_the_cause_is_named_and_not_the_collective_that_timed_out() -> None:
    log = (
        "[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)\n"
        + tb(OOM, "[rank3]: ")
        + tb("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.", "[rank0]: ")
    )
    found = of(log)
    assert (found.cls, found.evidence[0].rank) == ("cuda_oom", 3)
    assert {e.cls for e in found.evidence[1:]} & {"nccl_timeout", "nccl_error"}


def test_the_rank_that_torchrun_saw_fail_first_is_the_one() -> None:
    table = "Root Cause (first observed failure):\n[0]:\n  time      : x\n  host      : gpu-17\n  rank      : 3 (local_rank: 3)\n"
    log = tb("ValueError: bad", "[rank0]: ") + tb("ValueError: bad", "[rank3]: ") + table
    assert of(log).evidence[0].rank == 3
    assert of(log.replace(table, "")).evidence[0].rank == 0
    assert of(log.replace("  rank      : 3", "")).evidence[0].rank == 0  # cut off


def test_advice_is_no_evidence() -> None:
    log = "RuntimeError: CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    assert of(log).cls == "cuda_illegal_access"


def test_a_frames_file_name_and_source_line_are_no_evidence() -> None:
    log = (
        tb("ValueError: bad").replace("    main()", '    raise GatedRepoError("401 Client Error")')
        + "CUDACachingAllocator.cpp:12\n"
    )
    assert of(log).cls == "traceback"


def test_the_first_exception_of_a_chain_is_the_cause() -> None:
    log = (
        tb("FileNotFoundError: [Errno 2] No such file or directory: 'x'")
        + "\n"
        + traceback.CAUSED_BY
        + "\n\n"
        + tb("RuntimeError: cannot set up")
    )
    assert of(log).cls == "file_not_found"


def test_facts_outrank_text() -> None:
    assert of(tb(OOM), exit_code=None, signal=9, oom_kills=1).cls == "oom_killer"
    assert of("", exit_code=None, signal=15, forwarded=(15,)).cls == "terminated"
    assert of(tb("KeyError: 'x'"), forwarded=(15,)).cls == "terminated"
    assert of("", exit_code=None, signal=2, forwarded=(2,)).cls == "interrupted"
    assert of("", timed_out=True, timeout_s=60.0).summary.endswith("after 60 s")
    assert of("", exit_code=127, launch_error="x: command not found").cls == "command_not_found"
    assert of("", exit_code=126, launch_error="x: Permission denied").cls == "not_executable"


def test_a_stop_signal_that_was_survived_long_ago_is_not_the_reason() -> None:
    log = tb("KeyError: 'x'")
    assert of(log, forwarded=(1,), stopped_before_end_s=86400.0).cls == "traceback"
    assert of(log, forwarded=(15,), stopped_before_end_s=3.0).cls == "terminated"
    assert of(log, forwarded=(10,)).cls == "traceback"  # SIGUSR1 asks for a checkpoint
    assert of("", exit_code=None, signal=10, forwarded=(10,)).cls == "terminated"


def test_a_kill_without_evidence_of_memory_is_unknown_and_says_so() -> None:
    found = of("step 1\nKilled\n", exit_code=None, signal=9)
    assert (found.cls, "from outside" in found.summary, "memory" in found.summary) == ("unknown", True, True)


def test_a_shells_code_is_the_signal_it_stands_for() -> None:
    assert of("", exit_code=139).cls == "segfault"
    assert of("", exit_code=134).cls == "native_abort"


def test_nothing_known_is_unknown_with_little_confidence() -> None:
    found = of("all quiet\n")
    assert (found.cls, found.confidence < 0.5, found.root) == ("unknown", True, None)


def test_a_dead_supervisor_is_lost_or_out_of_memory() -> None:
    nothing = {"exit_code": None, "interrupted": True}
    assert of("", **nothing).cls == "lost"
    assert of("", **nothing, memory_last=990, memory_limit=1000).cls == "oom_killer"
    assert of("", **nothing, memory_last=100, memory_limit=1000).cls == "lost"
    assert of("", **nothing, forwarded=(15,)).cls == "terminated"


def test_summary_and_advice_use_the_numbers_of_the_log() -> None:
    log = f"{OOM} of which 1.21 GiB is free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory 71.01 GiB is allocated by PyTorch, and 5.10 GiB is reserved by PyTorch but unallocated.\n"
    found = of(log)
    assert found.summary == "CUDA out of memory on GPU 0, asked for 2.00 GiB with 1.21 GiB of 79.15 GiB free"
    assert found.suggestions[0].startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (5.10 GiB is reserved")


@pytest.mark.parametrize(
    "prefix",
    ["", "[rank3]: ", "[default0]:", "3: ", "[1,0]<stderr>:", "(RayTrainWorker pid=12, ip=10.0.0.1) ", "2026-12-01T05:12:00.123Z ",
     "[pod/train-0/main] ", "2026-12-01 05:12:00,123 ERROR worker: ", " 41%|####      | 41/100 [00:01<00:02, 30.1it/s]\r", "\x1b[31m"],
)  # fmt: skip
def test_prefixes_colours_and_progress_bars_hide_nothing(prefix: str) -> None:
    assert of(f"{prefix}{OOM}\n").cls == "cuda_oom"


def test_line_numbers_are_those_of_the_log() -> None:
    log = "".join(f"line {n}\n" for n in range(200_000)) + OOM + "\n" + "tail\n" * 1000
    found = of(log)
    assert found.root is not None
    assert found.root.line == 200_001
    assert excerpt.context(log.encode(), 200_001, 1, 1) == [(200_000, "line 199999"), (200_001, OOM), (200_002, "tail")]


def test_a_million_near_matches_are_read_and_bounded() -> None:
    log = "RuntimeError: CUDA error: out of memory?\n" * 100_000
    found = of(log)
    assert (found.cls, len(found.evidence) <= 6) == ("cuda_oom", True)


LINES = st.lists(
    st.one_of(
        st.binary(max_size=200),
        st.sampled_from(
            [b"Traceback (most recent call last):", b'  File "a.py", line 1, in f', b"KeyError: 1", traceback.DURING.encode(),
             b"[rank1]: RuntimeError: x", b"+ Exception Group Traceback (most recent call last):", b"  | ValueError: y", b"\r\r\x1b[",
             b"step 3 loss nan", OOM.encode(), b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1", b"\xff\xfe\x00"]
        ),
    ),
    max_size=40,
)  # fmt: skip


@given(LINES, st.none() | st.integers(0, 255), st.none() | st.integers(1, 64))
@settings(max_examples=300, deadline=None)
def test_any_bytes_get_an_answer_and_always_the_same(lines: list[bytes], code: int | None, number: int | None) -> None:
    log = b"\n".join(lines)
    facts = Facts(exit_code=code, signal=number)
    first = diagnose(log, facts)
    assert diagnose(io.BytesIO(log), facts).as_dict() == first.as_dict()
    assert 0 <= first.confidence <= 1
    for line in range(1, 4):
        excerpt.context(log, line)
        excerpt.traceback_around(log, line)
    excerpt.tail(log)


def test_a_traceback_is_parsed_with_its_chain() -> None:
    log = tb("OSError: a") + "\n" + traceback.DURING + "\n\n" + tb("pkg.mod.CustomError: b: c")
    chain = traceback.parse(io.BytesIO(log.encode()), 0, 1, None)
    assert chain is not None
    assert [(e.name, e.message, e.line, e.chained) for e in chain.exceptions] == [
        ("OSError", "a", 4, ""), ("pkg.mod.CustomError", "b: c", 11, traceback.DURING),
    ]  # fmt: skip


def test_interleaved_ranks_are_taken_apart() -> None:
    zero, one = tb("KeyError: 0", "[rank0]: ").splitlines(), tb("IndexError: 1", "[rank1]: ").splitlines()
    log = "\n".join(line for pair in zip(zero, one, strict=True) for line in pair).encode()
    first = traceback.parse(io.BytesIO(log), 0, 1, 0)
    second = traceback.parse(io.BytesIO(log), len(zero[0]) + 1, 2, 1)
    assert first is not None
    assert second is not None
    assert (first.exceptions[0].name, second.exceptions[0].name) == ("KeyError", "IndexError")


def test_the_traceback_around_a_line_is_quoted_whole() -> None:
    log = "before\n" + tb("OSError: a") + "\n" + traceback.DURING + "\n\n" + tb("ValueError: b") + "after\n"
    quoted = excerpt.traceback_around(log.encode(), 12)
    assert (quoted[0], quoted[-1]) == ("Traceback (most recent call last):", "ValueError: b")
    assert "OSError: a" in quoted
