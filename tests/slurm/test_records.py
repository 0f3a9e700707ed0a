"""What Slurm's commands print is read as it is meant, names and paths with anything in them too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpualert.slurm import hostlist, jobid, record
from gpualert.slurm.jobid import JobId

DATA = Path(__file__).resolve().parent.parent / "data" / "slurm"


@pytest.fixture(autouse=True)
def paris(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm prints local times without saying so."""
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def jobs(version: str) -> dict[str, record.Record]:
    return {one.label: one for one in record.jobs((DATA / f"scontrol-{version}.txt").read_text())}


def test_jobs_tasks_and_components_are_told_apart() -> None:
    found = jobs("22.05")
    assert list(found) == ["1", "3_2", "11_[1-3]", "15+0", "15+1", "20", "21"]
    assert (found["3_2"].number, found["3_2"].exit_code, found["3_2"].stdout) == (14, 3, "/home/ann/run/slurm-3_2.out")
    assert (found["15+1"].number, found["15+1"].name, found["15+1"].nodes, found["15+1"].tasks) == (
        16,
        "het2.sh",
        ("gpu02",),
        2,
    )
    assert (found["20"].state, found["20"].exit_code, found["20"].signal, found["20"].reason) == (
        "TIMEOUT",
        None,
        15,
        "TimeLimit",
    )
    assert (found["21"].restarts, found["21"].reason) == (2, "")
    assert [one.ended for one in found.values()] == [True, True, False, True, True, True, True]


def test_times_are_local_and_unknown_ones_none() -> None:
    found = jobs("22.05")
    assert found["1"].started_at == 1796199232.0  # 2026-12-02T08:13:52Z
    assert (found["11_[1-3]"].started_at, found["11_[1-3]"].nodes) == (None, ())


def test_names_commands_and_paths_may_hold_spaces_and_what_looks_like_a_field() -> None:
    job = jobs("24.05")["4711"]
    assert (job.name, job.command) == ("my job StdOut=/etc/passwd", "/home/ann/train.sbatch LR=0.1 WorkDir")
    assert (job.work_dir, job.stdout) == ("/home/ann/run 7", "/home/ann/run 7/log-%j-%t.out")
    assert (job.exit_code, job.signal, job.gpus, job.nodes) == (None, None, 16, ("gpu01", "gpu02"))


def test_the_accounting_knows_steps_and_who_cancelled() -> None:
    found = {one.label: one for one in record.accounted((DATA / "sacct-23.11.txt").read_text())}
    assert list(found) == ["4711", "4720_3", "4720_[4-9%2]", "4730+0", "4730+1"]
    assert found["4711"].name == "llama|7b"
    assert [(step.name, step.state, step.tasks) for step in found["4711"].steps] == [
        ("batch", "FAILED", 1), ("extern", "COMPLETED", 2), ("0", "OUT_OF_MEMORY", 16),
    ]  # fmt: skip
    assert (found["4720_3"].state, found["4720_3"].cancelled_by, found["4720_3"].number) == ("CANCELLED", "1001", 4724)
    assert (found["4730+1"].number, found["4730+1"].component) == (4731, 1)


def test_the_accounting_adds_to_what_slurmctld_says_and_stands_in_for_what_it_forgot() -> None:
    kept = [
        record.Record(4711, "RUNNING", "llama", stdout="/x/slurm-4711.out"),
        record.Record(1, "FAILED", exit_code=1),
    ]
    (job, other, *rest) = record.merged(kept, record.accounted((DATA / "sacct-23.11.txt").read_text()))
    assert (job.state, job.exit_code, job.stdout, len(job.steps)) == ("FAILED", 1, "/x/slurm-4711.out", 3)
    assert (other.number, len(rest)) == (1, 4)


def test_nodes_have_their_reason_with_its_time() -> None:
    one, two, seven = record.node_list((DATA / "nodes-23.11.txt").read_text())
    assert (one.suspect, one.reason, one.since) == (False, "", None)
    assert (two.gone, two.reason) == (True, "Not responding")
    assert (seven.gone, seven.suspect, seven.reason) == (False, True, "NHC: GPU 3 has fallen off the bus")
    assert seven.since == 1796210740.0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", ("gpu01",)),
        ("gpu[01-03,07],login1", ("gpu01", "gpu02", "gpu03", "gpu07", "login1")),
        ("r[1-2]n[08-09]-ib", ("r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib")),
        ("(null)", ()),
        ("None assigned", ()),
        ("", ()),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...]) -> None:
    assert hostlist.nodes(text) == names


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("123", JobId(123, None, "123")),
        ("123_4", JobId(123, frozenset({4}), "123_4")),
        ("123_[0-2,8-12:2%3]", JobId(123, frozenset({0, 1, 2, 8, 10, 12}), "123_0-2,8-12:2")),
        ("123+1", JobId(123, None, "123")),
    ],
)
def test_job_ids(text: str, named: JobId) -> None:
    assert jobid.parse(text) == named


@pytest.mark.parametrize(
    "text", ["", "x", "12x", "123_", "123_[]", "123_[3-1]", "123.0", "-1", "123_[0-99999999999]", "../1"]
)
def test_what_is_no_job_id_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no job id: 123, an array's 123_4"):
        jobid.parse(text)
