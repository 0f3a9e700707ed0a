"""The flight recorder: asking for dumps, reading what the job wrote without trusting it, and naming who is missing."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.hang import flightrecorder, pickled
from gpualert.hang.collectives import Dump, findings

NS = 10**9
BEGAN = 1_780_000_000
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.tuples(inner),
)


@given(PLAIN, st.integers(2, 5))
def test_plain_values_come_back_from_every_protocol(value: Any, protocol: int) -> None:
    assert pickled.loads(pickle.dumps(value, protocol)) == value


@given(st.binary())
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        pickled.loads(data)
    except pickled.PickleError:
        pass


@given(PLAIN, st.data())
def test_a_damaged_pickle_is_a_value_or_an_error(value: Any, draw: Any) -> None:
    data = bytearray(pickle.dumps(value, 2))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        pickled.loads(bytes(data))
    except pickled.PickleError:
        pass


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("protocol", range(6))
def test_no_global_is_ever_looked_up(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickled.PickleError):
        pickled.loads(pickle.dumps({"version": Evil()}, protocol))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02X\xff\xff\xff\x7f.",  # a text of 2 GiB that is not there
        b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02T\xff\xff\xff\xffx.",  # a length below nothing
        b"\x80\x02j\xff\xff\xff\xff.",  # a memo entry that nobody made
        b"\x80\x02u.", b"\x80\x02(.", b"t.", b"a.", b"",
        b"\x80\x02]r\xff\xff\xff\xff" + b"a" * 1000 + b".",
    ],
)  # fmt: skip
def test_claims_that_the_bytes_do_not_keep_are_errors(data: bytes) -> None:
    with pytest.raises(pickled.PickleError):
        pickled.loads(data)


def test_a_memo_number_takes_no_memory_for_those_before_it() -> None:
    assert pickled.loads(b"\x80\x02]r\xff\xff\xff\x7f.") == []


# -- what dumps say ----------------------------------------------------------------------------------------------------


def entry(seq: int, state: str, name: str = "nccl:all_reduce", line: int = 44, **more: Any) -> dict[str, Any]:
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 2696},
            {"name": "wrapper", "filename": "/opt/torch/distributed/c10d_logger.py", "line": 83},
            {"name": "train_step", "filename": "/app/train.py", "line": line},
        ],
        "record_id": seq - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq,
        "p2p_seq_id": 0, "op_id": seq, "profiling_name": name, "time_created_ns": (BEGAN + seq) * NS,
        "input_sizes": [[3, 4]], "input_dtypes": ["Float"], "output_sizes": [[3, 4]], "output_dtypes": ["Float"],
        "state": state, "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(entries: list[dict[str, Any]], ranks: int = 4) -> dict[str, Any]:
    return {
        "version": "2.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {
            "0": {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 2}
        },
        "entries": entries,
    }


def told(values: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return findings([Dump.of(rank, value) for rank, value in values.items()])


DONE = [entry(seq, "completed", line=seq) for seq in range(1, 1234)]


def test_a_rank_that_never_entered_is_named_with_where_it_was() -> None:
    waiting = dump([*DONE[-50:], entry(1234, "scheduled")])
    found = told({0: waiting, 1: waiting, 2: dump(DONE[-50:]), 3: waiting})
    (group,) = found["groups"]
    assert group["text"] == (
        "rank 2 never entered all_reduce #1234 (group default_pg); ranks 0-1, 3 wait for it since 2026-05-28T20:47:14Z"
    )
    assert (group["lagging"], group["waiting"], group["missing"]) == ([2], [0, 1, 3], [])
    assert group["frames"] == ["train_step (/app/train.py:1233)"]
    assert group["waiting_frames"] == ["train_step (/app/train.py:44)"]


def test_a_rank_in_another_collective_is_named() -> None:
    waits, other = dump([entry(7, "started")], 3), dump([entry(7, "started", "nccl:broadcast")], 3)
    (group,) = told({0: waits, 1: other, 2: waits})["groups"]
    assert group["text"].startswith("rank 1 calls broadcast where the others call all_reduce #7 (group default_pg)")
    assert group["lagging"] == [1]


def test_a_rank_without_a_dump_is_named() -> None:
    waits = dump([entry(7, "scheduled")], 3)
    (group,) = told({0: waits, 2: waits})["groups"]
    assert group["text"].startswith("rank 1 left no recording; the others are in all_reduce #7")
    assert (group["lagging"], group["missing"]) == ([], [1])


def test_all_ranks_in_one_collective_point_at_what_connects_them() -> None:
    waits = dump([entry(7, "started")], 2)
    (group,) = told({0: waits, 1: waits})["groups"]
    assert group["text"].startswith("all ranks have entered all_reduce #7")


def test_what_is_complete_waits_for_nobody() -> None:
    assert told({0: dump(DONE), 1: dump(DONE[:-1])})["groups"] == []
    assert findings([]) == {}


def test_the_group_with_a_missing_rank_comes_first() -> None:
    data = ("1", "data_parallel")
    values = {
        rank: {
            **dump([entry(7, "started"), *([entry(3, "scheduled", process_group=data)] if rank else [])], 2),
            "pg_config": {
                "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
                "1": {"name": "1", "desc": "data_parallel", "ranks": "[0, 1]"},
            },
        }
        for rank in (0, 1)
    }
    found = told(values)
    assert [group["group"] for group in found["groups"]] == ["data_parallel", "default_pg"]
    assert found["groups"][0]["lagging"] == [0]


def test_a_group_that_a_full_recorder_has_lost_accuses_nobody() -> None:
    full = {**dump([entry(seq, "completed", process_group=("9", "other")) for seq in range(1, 1500)], 2)}
    (group,) = told({0: dump([entry(7, "scheduled")], 2), 1: full})["groups"]
    assert group["lagging"] == []


def test_point_to_point_messages_are_no_collectives() -> None:
    assert told({0: dump([entry(7, "scheduled", is_p2p=True)])})["groups"] == []


@given(
    st.dictionaries(
        st.sampled_from(["version", "pg_config", "entries", "pg_status"]),
        st.one_of(
            PLAIN,
            st.lists(st.dictionaries(st.sampled_from([*entry(1, "started")]), PLAIN)),
            st.dictionaries(st.text(), st.dictionaries(st.sampled_from(["name", "desc", "ranks"]), PLAIN)),
        ),
    )
)
def test_hostile_dumps_are_plain_findings_or_errors(value: dict[str, Any]) -> None:
    try:
        found = findings([Dump.of(0, value), Dump.of(1, dump([entry(3, "scheduled")]))])
    except ValueError:
        return
    json.dumps(found)


# -- files and pipes ---------------------------------------------------------------------------------------------------


def write(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps(value, 2))


def test_ranks_are_asked_through_their_pipes_and_their_dumps_awaited(tmp_path: Path) -> None:
    variables = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/ask_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/trace_",
    }
    pipes = []
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"ask_{rank}.pipe")
        pipes.append(os.open(tmp_path / f"ask_{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK))
    os.mkfifo(tmp_path / "ask_2.pipe")  # its rank has gone
    (tmp_path / "ask_3.pipe").write_text("no pipe")
    (tmp_path / "ask_4.pipe").symlink_to("ask_0.pipe")
    assert flightrecorder.trigger(variables) == [0, 1]
    assert (tmp_path / "ask_3.pipe").read_text() == "no pipe"

    def answer() -> None:
        for rank, pipe in enumerate(pipes):
            if os.read(pipe, 10) == b"1":
                write(tmp_path / f"trace_{rank}", dump(DONE[-3:] + ([entry(1234, "started")] if rank else []), 2))

    late = threading.Timer(0.5, answer)
    late.start()
    found = flightrecorder.told(variables, time.time() - 60, time.monotonic() + 60, [0, 1])
    late.join()
    for pipe in pipes:
        os.close(pipe)
    assert found["ranks"] == [0, 1]
    assert found["groups"][0]["text"].startswith("rank 0 never entered all_reduce #1234")


def test_old_strange_and_oversized_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flightrecorder, "FILE_MAX", 1 << 20)
    variables = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}
    good = dump([entry(7, "scheduled")], 2)
    write(tmp_path / "trace_0", good)
    write(tmp_path / "trace_1", good)
    os.utime(tmp_path / "trace_1", (1, 1))
    os.mkfifo(tmp_path / "trace_2")
    (tmp_path / "trace_3").symlink_to("trace_0")
    (tmp_path / "trace_4").mkdir()
    (tmp_path / "trace_5").write_bytes(b"\x80\x02" + bytes(2 << 20))
    (tmp_path / "trace_6").write_bytes(b"\x80\x02cos\nsystem\n.")
    write(tmp_path / "trace_7.txt", good)
    (tmp_path / "trace_8").write_text(json.dumps(good))
    dumps, wrong = flightrecorder.harvest(variables, time.time() - 60, time.monotonic() + 60)
    assert [one.rank for one in dumps] == [0, 8]
    assert len(wrong) == 2
    assert "larger than 1 MiB" in wrong[0]
    assert "more than plain values" in wrong[1]


def test_where_dumps_are_looked_for() -> None:
    assert flightrecorder.prefixes({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/x/t_", "HOME": "/h"}) == ["/x/t_"]
    assert flightrecorder.prefixes({"HOME": "/h"}) == [
        "/tmp/nccl_trace_rank_", "/h/.cache/torch/comm_lib_trace_rank_", "/h/.cache/torch/nccl_trace_rank_",
    ]  # fmt: skip


@given(st.text())
def test_any_prefix_in_the_environment_is_harmless(text: str) -> None:
    variables = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": text.lstrip("/."), "TORCH_FR_DUMP_TEMP_FILE": text.lstrip("/.")}
    assert flightrecorder.trigger(variables) == []
    assert flightrecorder.told(variables, time.time() + 1e6, time.monotonic() + 60) == {}
