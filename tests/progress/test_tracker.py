"""Following a training from what its output tells, with times of our own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.progress import text
from gpualert.progress.formats import read
from gpualert.progress.tracker import COUNTERS_MAX, Tracker
from gpualert.rundir.clock import rfc3339

START = 1_800_000_000.0
EVERY_S = 5.0


def _at(seconds: float) -> str:
    return rfc3339(int((START + seconds) * 1e6))


class _Job:
    """A job whose output is looked at every five seconds, as the collector does."""

    def __init__(self) -> None:
        self.tracker, self.now = Tracker(), 0.0

    def prints(self, output: str, *, after: float = EVERY_S) -> bool:
        self.now += after
        return self.tracker.add(read(output), START + self.now, self.now)

    def steps(self, begin: int, rate: float, seconds: float, line: str = "step {0} loss 1.5") -> int:
        """Steps at a rate for a time; the last one."""
        step: float = begin
        for _ in range(int(seconds / EVERY_S)):
            step += rate * EVERY_S
            self.prints(line.format(int(step)))
        return int(step)

    @property
    def state(self) -> dict[str, Any]:
        state = self.tracker.state()
        assert state is not None
        return state


def test_before_any_sign_there_is_no_state() -> None:
    job = _Job()
    assert not job.prints("loading the data\n")
    assert job.tracker.state() is None


def test_a_run_that_goes_on() -> None:
    job = _Job()
    job.steps(41_000, 4, 600, "[step={0}/50000] loss 1.873")
    state = job.state
    assert state == {
        "at": _at(600), "format": "olmo", "step": 43_400, "total": 50_000, "unit": "step", "rate": pytest.approx(4, rel=0.1),
        "finish_in_s": pytest.approx(6600 / 4, rel=0.1), "loss": 1.873,
    }  # fmt: skip
    assert text.place(state) == "step 43400 of 50000 (87 %)"


def test_a_job_that_resumes_begins_where_it_was() -> None:
    job = _Job()
    job.prints("step 41200 loss 1.9")
    assert job.state["step"] == 41_200
    assert "rate" not in job.state  # 41200 steps were not done in these five seconds
    job.steps(41_200, 2, 120)
    assert job.state["rate"] == pytest.approx(2, rel=0.1)


def test_it_advances_when_the_step_does_and_not_when_the_same_output_is_read_again() -> None:
    job = _Job()
    assert job.prints("step 1 loss 1\nstep 2 loss 1\n")
    assert not job.prints("step 1 loss 1\nstep 2 loss 1\n")
    assert job.state["at"] == _at(5)
    assert job.prints("step 1 loss 1\nstep 2 loss 1\nstep 3 loss 1\n")
    assert job.state["at"] == _at(15)


def test_a_slow_down_that_lasts_is_told_with_its_time() -> None:
    job = _Job()
    last = job.steps(0, 10, 1800)
    assert "slower" not in job.state
    job.steps(last, 5.8, 900)
    state = job.state
    assert state["slower"] == pytest.approx(0.42, abs=0.02)
    assert _at(1740) <= state["since"] <= _at(1920)
    assert text.slower(state) == f"42 % slower than before since {state['since'][11:16]}Z"


def test_a_slow_run_does_not_become_its_own_measure() -> None:
    job = _Job()
    last = job.steps(0, 10, 1800)
    job.steps(last, 5, 4 * 3600)
    assert job.state["slower"] == pytest.approx(0.5, abs=0.02)
    assert job.state["since"] <= _at(1920)


def test_a_slow_down_that_is_over_is_no_longer_told() -> None:
    job = _Job()
    last = job.steps(0, 10, 1800)
    last = job.steps(last, 5, 900)
    assert "slower" in job.state
    job.steps(last, 10, 300)
    assert "slower" not in job.state


@pytest.mark.parametrize("pause_s", [60, 300, 1200])
def test_pauses_for_evaluation_and_saving_are_no_slow_down(pause_s: int) -> None:
    job = _Job()
    last = 0
    for _ in range(12):
        last = job.steps(last, 10, 600)
        job.prints("saving\n", after=pause_s)
    assert "slower" not in job.state


def test_a_wobble_is_no_slow_down() -> None:
    job, last = _Job(), 0
    for number in range(120):
        last = job.steps(last, 10 if number % 2 else 7, 60)
    assert "slower" not in job.state


def test_the_first_steps_which_compile_are_not_the_measure() -> None:
    job = _Job()
    last = job.steps(0, 0.2, 60)
    job.steps(last, 10, 1800)
    assert "slower" not in job.state


def test_a_clock_that_jumps_does_not_spoil_the_rate() -> None:
    job = _Job()
    last = job.steps(0, 4, 600)
    tracker, now = job.tracker, job.now
    tracker.add(read(f"step {last + 20} loss 1"), START - 86_400, now + 5)  # the wall clock alone
    assert tracker.state() == {**job.state, "at": rfc3339(int((START - 86_400) * 1e6))}
    assert job.state["rate"] == pytest.approx(4, rel=0.1)
    tracker.add(read(f"step {last + 40} loss 1"), START, now - 100_000)  # the other one too
    tracker.add(read(f"step {last + 80} loss 1"), START + 10, now - 99_990)
    assert job.state["rate"] == pytest.approx(4, rel=0.1)


def test_a_bar_that_begins_anew_with_each_epoch() -> None:
    job, line = _Job(), "Epoch {0}/5: {1}%|██| {2}/1000 [00:10<00:10, 9.9it/s, loss=0.5]"
    for done in range(0, 2550, 50):
        job.prints(line.format(done // 1000 + 1, done % 1000 // 10, done % 1000))
    state = job.state
    assert (state["step"], state["total"], state["epoch"], state["epochs"]) == (500, 1000, 3, 5)
    assert state["rate"] == pytest.approx(10, rel=0.05)
    assert state["finish_in_s"] == pytest.approx(2500 / 10, rel=0.05)


def test_where_the_number_of_epochs_is_unknown_nobody_knows_the_end() -> None:
    job = _Job()
    job.prints("Epoch 1:  50%|██| 500/1000 [00:10<00:10, 9.9it/s, v_num=3]")
    assert job.state["rate"] == 9.9
    assert "finish_in_s" not in job.state


def test_keras_tells_the_epoch_in_a_line_of_its_own() -> None:
    job = _Job()
    for number in range(100):
        epoch, batch = divmod(number * 40, 1600)
        job.prints(("" if batch else f"Epoch {epoch + 1}/10\n") + f"{batch}/1600 ━━━━━━━━━━ 12s 8ms/step - loss: 1.3")
    state = job.state
    assert (state["step"], state["total"], state["epoch"], state["epochs"]) == (99 * 40 % 1600, 1600, 3, 10)
    assert state["finish_in_s"] == pytest.approx((16_000 - 99 * 40) / 8, rel=0.05)


def test_an_evaluation_bar_without_a_name_does_not_take_the_place_of_the_training() -> None:
    job, bar = _Job(), "\r 10%|▎  | {0}/{1} [01:02<33:21,  1.94it/s]"
    for step in range(0, 1010, 10):
        job.prints(bar.format(step, 4000) + "\r{'loss': 1.9, 'learning_rate': 1e-5, 'epoch': 0.25}\n")
    for step in range(0, 600, 10):
        job.prints(bar.format(step, 600))
    assert (job.state["step"], job.state["total"]) == (1000, 4000)
    for step in range(1010, 1100, 10):
        job.prints(bar.format(step, 4000))
    assert (job.state["step"], job.state["total"]) == (1090, 4000)


def test_a_data_bar_without_a_name_gives_way_to_the_training() -> None:
    job, bar = _Job(), "\r 10%|▎  | {0}/{1} [01:02<33:21,  1.94it/s]"
    job.prints(bar.format(90_000, 100_000))
    job.prints(bar.format(100_000, 100_000))
    for step in range(0, 400, 10):
        job.prints(bar.format(step, 4000))
    assert (job.state["step"], job.state["total"]) == (390, 4000)


def test_bars_and_logged_lines_of_one_training_are_one_progress() -> None:
    job = _Job()
    for step in range(0, 500, 5):
        out = f"\r 10%|▎  | {step}/4000 [01:02<33:21,  1.0it/s]"
        out += f"\n{{'loss': 1.{step}, 'learning_rate': 1e-5, 'epoch': {step / 1000}}}\n" if step % 100 == 0 else ""
        job.prints(out)
    state = job.state
    assert (state["step"], state["total"], state["loss"], state["epoch"]) == (495, 4000, 1.4, 0.4)
    assert state["finish_in_s"] == pytest.approx(3505, rel=0.05)  # of the run: the epoch is a part of it


def test_of_several_ranks_rank_0_counts() -> None:
    job = _Job()
    job.prints("[rank3]: step 12 loss 3\n[rank0]: step 11 loss 3\n[rank1]: step 13 loss 3\n")
    assert (job.state["rank"], job.state["step"]) == (0, 11)


def test_without_rank_0_the_rank_that_is_behind_counts() -> None:
    job = _Job()
    job.prints("[rank3]: step 12 loss 3\n[rank2]: step 10 loss 3\n[rank1]: step 13 loss 3\n")
    assert (job.state["rank"], job.state["step"]) == (2, 10)


def test_ranks_that_do_not_say_who_they_are_make_no_step_back() -> None:
    job = _Job()
    for step in (10, 20, 19, 30, 29, 40):
        job.prints(f"step {step} loss 2")
    assert job.state["step"] == 40
    assert job.state["rate"] > 0


def test_a_training_that_goes_back_to_its_checkpoint_is_followed() -> None:
    job = _Job()
    last = job.steps(0, 10, 600)
    job.prints("restarting from the checkpoint\n", after=60)
    job.steps(last - 1000, 10, 30)
    assert job.state["step"] == last - 1000 + 300
    assert job.state["rate"] == pytest.approx(10, rel=0.1)


def test_since_when_the_loss_is_not_finite() -> None:
    job = _Job()
    job.prints("step 1 loss 2.5")
    job.prints("step 1 loss 2.5\nstep 2 loss nan")
    job.prints("step 1 loss 2.5\nstep 2 loss nan\nstep 3 loss inf")
    assert job.state["nan_since"] == _at(10)
    assert "loss" not in job.state
    assert text.phrase(job.state).startswith("step 3, loss not finite since ")
    job.prints("step 4 loss 2.4")
    assert (job.state["loss"], job.state.get("nan_since")) == (2.4, None)


def test_a_validation_is_no_progress_of_the_training() -> None:
    job = _Job()
    job.prints("step 1 loss 2.5")
    assert not job.prints("Validation DataLoader 0:  45%|████▌     | 45/100 [00:02<00:02, 20.0it/s]")
    assert not job.prints("Downloading model.safetensors:  45%|████▌     | 2.21G/4.92G [00:10<00:12, 220MB/s]")
    assert (job.state["step"], job.state["at"]) == (1, _at(5))


def test_epochs_alone_are_progress_too() -> None:
    job = _Job()
    for epoch in range(1, 5):
        assert job.prints(f"Epoch {epoch}/10: loss = 0.{9 - epoch}, val_loss = 0.5", after=60)
    state = job.state
    assert state == {
        "at": _at(240), "format": "lines", "epoch": 4, "epochs": 10, "loss": 0.5, "finish_in_s": pytest.approx(360),
    }  # fmt: skip
    assert text.phrase(state) == "epoch 4 of 10, loss 0.5"


def test_a_step_of_the_run_beside_its_epoch_tells_the_end() -> None:
    job = _Job()
    job.steps(40_000, 2, 600, "Epoch 8/10, step {0}/50000, loss 1.5")
    assert job.state["finish_in_s"] == pytest.approx((50_000 - 41_200) / 2, rel=0.05)


def test_a_step_of_the_epoch_beside_it_tells_the_end_too() -> None:
    job = _Job()
    job.steps(100, 2, 120, "Epoch [3/10], Step [{0}/6000], Loss: 1.5")
    assert job.state["finish_in_s"] == pytest.approx((6000 - 340 + 7 * 6000) / 2, rel=0.05)


def test_a_log_that_invents_counters_costs_no_memory() -> None:
    job = _Job()
    for number in range(1000):
        job.prints(f"[rank{number}]: step 5 loss 1\n 10%|▎  | 5/{number + 10} [00:02<00:21,  1.94it/s]")
    assert len(job.tracker._counters) <= COUNTERS_MAX
    assert job.state["step"] == 5


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**12), st.integers(0, 10**9), st.floats(allow_nan=True), st.integers(0, 10**6),
            st.floats(-1e6, 1e6), st.sampled_from([
                "step {0}/{1} loss {2}", "epoch {3} step {0} loss {2}", "Epoch {3}: 5%|█| {0}/{1} [00:01<00:02, 3it/s]",
                "5%|█| {0}/{1} [00:01<00:02, 3it/s]", "[rank{3}]: step {0} loss {2}", "Epoch {3}/{1}",
            ]),
        ),
        max_size=40,
    )
)  # fmt: skip
def test_whatever_is_told_the_state_can_be_written(told: list[tuple[int, int, float, int, float, str]]) -> None:
    from gpualert.rundir import jsontext, shapes

    tracker = Tracker()
    for step, total, loss, epoch, passed, form in told:
        tracker.add(read(form.format(step, total, loss, epoch)), START + passed, passed)
    state = tracker.state()
    if state is not None:
        fitted = shapes.PROGRESS(shapes.loads(jsontext.dumps(state)))
        assert set(fitted) >= set(state) - {"finish_in_s", "rate"}
        assert state.get("slower") is None or 0 <= state["slower"] <= 1
        for say in (text.phrase, text.place, text.short, text.slower):
            assert isinstance(say(fitted), str)
