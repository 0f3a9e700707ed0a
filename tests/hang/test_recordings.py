"""The detector on recordings: real jobs that are quiet and healthy raise no alarm, real hangs do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hang import healthy

from gpualert.hang.moment import Gpu, Moment, Suspicion
from gpualert.hang.rhythm import Rhythm

RECORDINGS = Path(__file__).resolve().parent / "recordings"
HANGS = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("hang-*.jsonl.gz"))
DEFAULT_AFTER_S, DEFAULT_WARMUP_S = 1800.0, 600.0
Gpus = Callable[[float], tuple[Gpu, ...]]


def no_gpus(_at: float) -> tuple[Gpu, ...]:
    return ()


def moments(name: str, times: float, gpus: Gpus = no_gpus) -> Iterator[Moment]:
    """A recording, with time and what grows with it made longer so many times: rates stay as they were."""
    with gzip.open(RECORDINGS / f"{name}.jsonl.gz", "rt") as lines:
        for line in lines:
            look = json.loads(line)
            at = look["at"] * times
            yield Moment(
                at, look["log"], look["cpu"] * times, int(look["io"] * times), look["step"], look["states"], gpus(at)
            )


def told(seen: Iterator[Moment], after_s: float, warmup_s: float) -> list[Suspicion]:
    rhythm = Rhythm(after_s, warmup_s)
    return [suspicion for moment in seen if (suspicion := rhythm.observe(moment)) is not None]


@pytest.mark.parametrize("name", healthy.ALL)
def test_a_quiet_healthy_job_raises_no_alarm_by_default(name: str) -> None:
    # Made so long that its longest pause is just shorter than what makes a hang.
    times = min(60.0, 0.9 * DEFAULT_AFTER_S / max(healthy.ALL[name].pause_s, 1.0))
    assert told(moments(name, times), DEFAULT_AFTER_S, DEFAULT_WARMUP_S) == []


@pytest.mark.parametrize("name", healthy.ALL)
def test_nor_with_a_patience_little_longer_than_its_pauses(name: str) -> None:
    after = max(1.15 * healthy.ALL[name].pause_s, 5.0)
    assert told(moments(name, 1.0), after, 0.0) == []


@pytest.mark.parametrize("name", HANGS)
@pytest.mark.parametrize(
    ("times", "after_s", "warmup_s"), [(1.0, 10.0, 0.0), (60.0, DEFAULT_AFTER_S, DEFAULT_WARMUP_S)]
)
def test_a_hang_raises_one_alarm(name: str, times: float, after_s: float, warmup_s: float) -> None:
    (suspicion,) = told(moments(name, times), after_s, warmup_s)
    assert suspicion.state == "suspected"
    assert after_s <= suspicion.silent_s < 2 * after_s


def test_every_hang_is_recorded() -> None:
    assert len(HANGS) == 7
    assert len(healthy.ALL) >= 12


# GPUs that are a model of ours: the machine that recorded the jobs has none.


def evaluating(at: float) -> tuple[Gpu, ...]:
    """Four GPUs that work, now more and now less, in the memory that they have."""
    return tuple((60 + (at / 7 + index * 11) % 36, 4e10, 350 + (at / 3) % 120) for index in range(4))


def idle(_at: float) -> tuple[Gpu, ...]:
    return ((0.0, 4e10, 70.0),) * 4


def test_a_silent_evaluation_on_gpus_raises_no_alarm() -> None:
    # The processors of the recording do nothing at all; only the GPUs tell that there is work.
    assert told(moments("hang-deadlock", 60.0, evaluating), DEFAULT_AFTER_S, DEFAULT_WARMUP_S) == []


@pytest.mark.parametrize("name", ["compile", "evaluation", "checkpoint", "download", "xz"])
def test_work_of_processors_and_files_while_the_gpus_wait_raises_no_alarm(name: str) -> None:
    assert told(moments(name, 60.0, idle), DEFAULT_AFTER_S, DEFAULT_WARMUP_S) == []


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_with_idle_gpus_tells_of_them(name: str) -> None:
    (suspicion,) = told(moments(name, 60.0, idle), DEFAULT_AFTER_S, DEFAULT_WARMUP_S)
    assert "GPUs 0-3 at 0 %" in suspicion.why


@pytest.mark.parametrize("name", [name for name, job in healthy.ALL.items() if job.pause_s])
def test_the_pauses_are_in_the_recordings(name: str) -> None:
    assert told(moments(name, 1.0), 0.4 * healthy.ALL[name].pause_s, 0.0)[0].state == "suspected"
