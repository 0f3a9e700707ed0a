"""Which of a node's GPUs are the job's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.gpu.visible import CUDA, ROCM, Candidate, chosen, narrowed

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")
GPUS = [Candidate(uuid) for uuid in UUIDS]
DIVIDED = [Candidate("GPU-aa11", ("MIG-1111", "MIG-1122")), Candidate("GPU-bb33", ("MIG-3333",))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, [0, 1, 2, 3]),
        ("0", [0]),
        ("3,1", [1, 3]),
        ("1,1", [1]),
        ("GPU-bb", [2]),
        ("gpu-bb33", []),  # the prefix is written so
        ("GPU-BB33", [2]),
        ("GPU-aa", []),  # two of them
        ("GPU-", []),
        ("0,GPU-zz,1", [0]),
        ("1,4,2", [1]),
        ("1,-1,2", [1]),
        ("1,,2", [1]),
        ("-1", []),
        ("", []),
        (" ", []),
        ("void", []),
        ("none", []),
        ("\u0663", []),  # a digit, but not to CUDA
        ("0000000000000001", []),
    ],
)
def test_a_variable_names_gpus(text: str | None, found: list[int]) -> None:
    assert chosen(text, GPUS) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("MIG-1122", [0]), ("MIG-33", [1]), ("MIG-1111,MIG-3333", [0, 1]), ("MIG-GPU-bb33/1/0", [1]), ("MIG-11", [0])],
)
def test_a_part_names_its_gpu(text: str, found: list[int]) -> None:
    assert chosen(text, DIVIDED) == found


def test_the_second_variable_counts_what_the_first_leaves() -> None:
    assert narrowed({"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1"}, ROCM, GPUS) == [3]
    assert narrowed({"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "9"}, CUDA, GPUS) == [2]
    assert narrowed({}, CUDA, GPUS) == [0, 1, 2, 3]


@given(st.text())
def test_whatever_a_variable_holds_some_gpus_are_left(text: str) -> None:
    found = chosen(text, GPUS)
    assert found == sorted(set(found))
    assert set(found) <= set(range(4))


@given(st.lists(st.sampled_from([*map(str, range(6)), *UUIDS, "-1", "", "x"])))
def test_what_comes_after_an_entry_that_fits_none_is_not_looked_at(entries: list[str]) -> None:
    fitting = {"0": 0, "1": 1, "2": 2, "3": 3} | {uuid: index for index, uuid in enumerate(UUIDS)}
    expected = set()
    for entry in entries:
        if entry not in fitting:
            break
        expected.add(fitting[entry])
    assert chosen(",".join(entries), GPUS) == sorted(expected)


@given(st.sets(st.integers(0, 3), min_size=1), st.data())
def test_indices_and_uuids_name_the_same_gpus(gpus: set[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(sorted(gpus)))
    assert (
        chosen(",".join(map(str, order)), GPUS) == chosen(",".join(UUIDS[gpu] for gpu in order), GPUS) == sorted(gpus)
    )
