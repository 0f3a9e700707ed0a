"""The detector: what is a hang, what is none, and what it learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gpualert.hang.moment import Gpu, Moment, Suspicion
from gpualert.hang.repetition import Repetition
from gpualert.hang.rhythm import Rhythm, duration

MINUTE = 60.0
BUSY, IDLE = (95.0, 4e10, 600.0), (0.0, 4e10, 70.0)


@dataclass
class Job:
    """A job that does what it is told, and a detector that looks at it every five seconds."""

    after_s: float = 30 * MINUTE
    warmup_s: float = 0.0
    at: float = 1000.0
    cpu: float = 0.0
    io: float = 0.0
    log: int = 0
    step: int | None = None
    rhythm: Rhythm = field(init=False)
    told: list[Suspicion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rhythm = Rhythm(self.after_s, self.warmup_s)

    def goes_on(
        self,
        seconds: float,
        *,
        cores: float = 0.002,
        flow: float = 0.0,
        lines: bool = False,
        steps: bool = False,
        gpus: tuple[Gpu, ...] = (),
        states: dict[str, int] | None = None,
        fresh: bool | None = None,
        every: float = 5.0,
    ) -> list[Suspicion]:
        """Let it do that for a time; gives what was told meanwhile."""
        before = len(self.told)
        for _ in range(int(seconds / every)):
            self.at += every
            self.cpu += cores * every
            self.io += flow * every
            self.log += 80 if lines else 0
            self.step = (self.step or 0) + 1 if steps else self.step
            moment = Moment(
                self.at, self.log, self.cpu, int(self.io), self.step, states or {"S": 8}, gpus, fresh if lines else None
            )
            found = self.rhythm.observe(moment)
            if found is not None:
                self.told.append(found)
        return self.told[before:]

    def trains(self, seconds: float = 60 * MINUTE, gpus: tuple[Gpu, ...] = (BUSY,) * 8) -> None:
        assert self.goes_on(seconds, cores=8.0, flow=1e7, lines=True, steps=True, gpus=gpus) == []


def test_silence_without_work_is_a_hang_and_says_why() -> None:
    job = Job()
    job.trains()
    (found,) = job.goes_on(90 * MINUTE, gpus=(IDLE,) * 8)
    assert (found.state, found.rule) == ("suspected", "idle")
    assert found.why == "no output for 30m; 8 processes used 0.2 % of one core; GPUs 0-7 at 0 %"


def test_nothing_counts_while_a_job_warms_up() -> None:
    job = Job(after_s=5 * MINUTE, warmup_s=10 * MINUTE)
    assert job.goes_on(14 * MINUTE) == []
    (found,) = job.goes_on(2 * MINUTE)
    assert 5 * MINUTE <= found.silent_s <= 6 * MINUTE


def test_work_in_silence_is_no_hang() -> None:
    for cores, flow, gpus in ((1.0, 0.0, ()), (0.1, 0.0, ()), (0.0, 50e3, ()), (0.0, 0.0, (BUSY,) * 8)):
        job = Job()
        job.goes_on(MINUTE, lines=True)
        assert job.goes_on(300 * MINUTE, cores=cores, flow=flow, gpus=gpus) == []


def test_a_heartbeat_is_no_work() -> None:
    job = Job()
    job.trains()
    told = []
    for _ in range(60):
        told += job.goes_on(55, gpus=(IDLE,))
        told += job.goes_on(5, cores=0.1, flow=60e3, gpus=(IDLE,))  # somebody reads /proc and collects garbage
    assert [found.state for found in told] == ["suspected"]


def test_output_ends_a_hang_and_the_next_one_needs_three_times_as_long() -> None:
    job = Job()
    job.trains()
    (hang,) = job.goes_on(40 * MINUTE)
    (over,) = job.goes_on(MINUTE, cores=4.0, lines=True)
    assert (hang.state, over.state) == ("suspected", "over")
    assert over.why == "there is output again, after 40m"
    assert 40 * MINUTE <= over.silent_s <= 41 * MINUTE
    job.trains(10 * MINUTE)
    assert job.goes_on(115 * MINUTE) == []
    assert [found.state for found in job.goes_on(10 * MINUTE)] == ["suspected"]


def test_work_without_output_ends_a_hang_but_a_dump_of_itself_does_not() -> None:
    job = Job()
    job.trains()
    job.goes_on(40 * MINUTE)
    assert job.goes_on(10, cores=2.0, flow=5e6) == []
    assert job.goes_on(10 * MINUTE) == []
    (over,) = job.goes_on(MINUTE, cores=2.0)
    assert (over.state, over.why) == ("over", "it works again, still without output, after 50m")


def test_pauses_that_end_make_it_patient() -> None:
    job = Job(after_s=5 * MINUTE)
    for _ in range(3):
        job.trains(5 * MINUTE)
        assert job.goes_on(4 * MINUTE) == []
    job.trains(5 * MINUTE)
    assert job.goes_on(11 * MINUTE) == []
    (found,) = job.goes_on(3 * MINUTE)
    assert found.silent_s >= 11 * MINUTE


def test_what_nobody_saw_is_no_silence() -> None:
    job = Job()
    job.trains()
    assert job.goes_on(10 * MINUTE) == []
    job.at += 9 * 3600  # the lid was closed
    assert job.goes_on(19 * MINUTE) == []
    assert [found.state for found in job.goes_on(2 * MINUTE)] == ["suspected"]


def test_a_clock_that_stands_still_or_goes_back_harms_nothing() -> None:
    job = Job(after_s=MINUTE)
    job.trains(MINUTE)
    job.at -= 100
    assert job.goes_on(55) == []


def test_stopped_processes_are_told_of_and_their_pause_is_not_learned() -> None:
    job = Job()
    job.trains()
    (hang,) = job.goes_on(3600, states={"S": 7, "T": 1})
    assert hang.rule == "stopped"
    assert "1 of them stopped by a signal" in hang.why
    assert [found.state for found in job.goes_on(MINUTE, cores=4.0, lines=True)] == ["over"]
    job.trains(MINUTE)
    assert [found.state for found in job.goes_on(32 * MINUTE)] == ["suspected"]


def test_a_stopped_worker_counts_also_while_others_spin() -> None:
    job = Job()
    job.trains()
    (hang,) = job.goes_on(32 * MINUTE, cores=7.0, gpus=(IDLE,) * 8, states={"R": 7, "T": 1})
    assert hang.rule == "stopped"


def test_uninterruptible_processes_while_others_spin_take_twice_as_long() -> None:
    job = Job()
    job.trains(gpus=())
    assert job.goes_on(55 * MINUTE, cores=3.0, states={"R": 3, "D": 1}) == []
    (hang,) = job.goes_on(10 * MINUTE, cores=3.0, states={"R": 3, "D": 1})
    assert hang.rule == "uninterruptible"
    assert "waiting uninterruptibly" in hang.why


def test_gpus_that_spin_in_a_collective() -> None:
    job = Job()
    job.trains()
    spin = (100.0, 4e10, 145.0)
    (hang,) = job.goes_on(90 * MINUTE, cores=8.0, gpus=(*(spin,) * 7, IDLE))
    assert hang.rule == "gpu-spin"
    assert "GPUs 0-6 at 100 % with about 140 of its usual" in hang.why
    assert "GPU 7 at 0 %" in hang.why


def test_gpus_at_full_power_or_with_changing_memory_do_not_spin() -> None:
    job = Job()
    job.trains()
    assert job.goes_on(180 * MINUTE, cores=8.0, gpus=((100.0, 4e10, 560.0),) * 8) == []
    for turn in range(36):
        assert job.goes_on(5 * MINUTE, cores=8.0, gpus=((100.0, 4e10 + turn % 2 * 2e9, 145.0),) * 8) == []


def test_without_known_power_full_gpus_are_work() -> None:
    job = Job()
    job.trains(gpus=((98.0, None, None),))
    assert job.goes_on(300 * MINUTE, cores=8.0, gpus=((100.0, None, None),)) == []


def test_processors_that_spin_beside_gpus_that_were_busy_take_twice_as_long() -> None:
    job = Job()
    job.trains()
    assert job.goes_on(58 * MINUTE, cores=8.0, gpus=(IDLE,) * 8) == []
    (hang,) = job.goes_on(4 * MINUTE, cores=8.0, gpus=(IDLE,) * 8)
    assert (hang.rule, "8.0 cores" in hang.why) == ("cpu-spin", True)


def test_uneven_work_of_processors_beside_idle_gpus_is_work() -> None:
    job = Job()
    job.trains()
    for turn in range(60):
        assert job.goes_on(3 * MINUTE, cores=3.0 + 4.0 * (turn % 2), gpus=(IDLE,) * 8) == []


def test_a_long_compilation_before_the_first_step_is_work() -> None:
    job = Job(warmup_s=10 * MINUTE)
    assert job.goes_on(180 * MINUTE, cores=16.0, gpus=(IDLE,) * 8) == []


def test_the_same_lines_again_and_again_are_no_progress() -> None:
    job = Job()
    job.trains()
    (hang,) = job.goes_on(40 * MINUTE, lines=True, fresh=False, gpus=(IDLE,))
    assert hang.why.startswith("only the same lines for 30m")
    assert job.goes_on(120 * MINUTE, lines=True, fresh=False, gpus=(IDLE,)) == []


def test_new_lines_without_a_known_step_are_progress() -> None:
    job = Job()
    assert job.goes_on(300 * MINUTE, lines=True, fresh=True) == []


def test_output_while_the_steps_have_stopped_for_long_is_no_progress() -> None:
    job = Job()
    job.trains()
    assert job.goes_on(85 * MINUTE, lines=True, gpus=(IDLE,)) == []
    (hang,) = job.goes_on(10 * MINUTE, lines=True, gpus=(IDLE,))
    assert hang.why.startswith("no step after 720 for 90m")


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 100), st.integers(0, 1000), st.floats(0, 64), st.integers(0, 10**9),
            st.one_of(st.none(), st.floats(allow_nan=True)), st.dictionaries(st.sampled_from("RSDT"), st.integers(0, 9)),
            st.lists(st.tuples(*[st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))] * 3), max_size=3),
            st.one_of(st.none(), st.booleans()),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_hangs_and_their_ends_alternate_whatever_comes(looks: list[tuple]) -> None:  # type: ignore[type-arg]
    rhythm = Rhythm(20.0, 5.0)
    at, log, cpu, io = 0.0, 0, 0.0, 0
    told = []
    for gap, lines, used, moved, step, states, gpus, fresh in looks:
        at, log, cpu, io = at + gap, log + lines, cpu + used, io + moved
        found = rhythm.observe(Moment(at, log, cpu, io, step, states, tuple(gpus), fresh))
        if found is not None:
            told.append(found)
    assert [found.state for found in told] == ["suspected", "over"] * (len(told) // 2) + ["suspected"] * (len(told) % 2)
    assert all(found.silent_s >= 20.0 and "\n" not in found.why for found in told if found.state == "suspected")


def test_repetition_sees_through_times_but_not_through_counters() -> None:
    lines = Repetition()
    assert lines.fresh("2026-12-02 05:31:07,113 waiting for rank 5\n") is True
    assert lines.fresh("2026-12-02 05:31:17,114 waiting for rank 5\n") is False
    assert lines.fresh("2026-12-02 05:31:27,115 waiting for rank 5\r2026-12-02 05:31:28 waiting for rank 5\n") is False
    assert lines.fresh("2026-12-02 05:31:37,116 waiting for rank 6\n") is True
    assert lines.fresh("") is None


def test_repetition_forgets_what_was_long_ago() -> None:
    lines = Repetition()
    lines.fresh("checkpoint saved\n")
    for number in range(100):
        assert lines.fresh(f"loss {number}\n") is True
    assert lines.fresh("checkpoint saved\n") is True


@given(st.text())
def test_repetition_takes_any_text(text: str) -> None:
    assert Repetition().fresh(text) in (None, True)


def test_durations_for_a_person() -> None:
    assert [duration(seconds) for seconds in (5, 119, 120, 1860, 7500)] == ["5s", "119s", "2m", "31m", "2h05m"]
