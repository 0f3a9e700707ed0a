"""What is recognised as progress in output, and what is not."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from progress.samples import ELSEWHERE, NOTHING, PROGRESS

from gpualert.progress.formats import STEPS_MAX, read
from gpualert.progress.step import SHOWN_MAX, Step


def _one(text: str) -> Step:
    found = read(text)
    assert len(found) == 1, found
    return found[0]


def test_the_table_is_as_wide_as_the_field() -> None:
    assert len(PROGRESS) >= 60
    assert len({source for source, _, _ in PROGRESS}) >= 14
    assert len(ELSEWHERE) + len(NOTHING) >= 60


@pytest.mark.parametrize(("source", "line", "told"), PROGRESS)
def test_progress_of_real_projects(source: str, line: str, told: tuple[object, ...]) -> None:
    step = _one(line)
    assert (step.step, step.total, step.epoch, step.epochs, step.phase) == (*told[:4], told[6])
    for found, expected in ((step.loss, told[4]), (step.rate, told[5])):
        assert found == (pytest.approx(expected, nan_ok=True) if expected is not None else None)


@pytest.mark.parametrize(("phase", "line"), ELSEWHERE)
def test_what_goes_on_beside_the_training_is_kept_apart(phase: str, line: str) -> None:
    assert _one(line).phase == phase


@pytest.mark.parametrize("line", NOTHING)
def test_what_is_no_progress(line: str) -> None:
    assert read(line) == ()


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: step 12 loss 3.5", 3),
        ("[rank: 1] step 12 loss 3.5", 1),
        ("[default5]:step 12 loss 3.5", 5),
        ("[1,7]<stdout>:step 12 loss 3.5", 7),
        ("2: step 12 loss 3.5", 2),
        ("[Rank 4] step 12 loss 3.5", 4),
        ("(RayTrainWorker rank=6, pid=1193, ip=10.244.4.193) step 12 loss 3.5", 6),
        ("[Local Rank 2 | Rank 10] step 12 loss 3.5", 10),
        ("\x1b[32m[rank3]:\x1b[0m step 12 loss 3.5", 3),
        ("2026-12-01 05:12:00,123 - trainer - INFO - step 12 loss 3.5", None),
        ("rank: 123456789123 step 12 loss 3.5", None),
        ("local_rank=3 step 12 loss 3.5", None),
    ],
)
def test_who_printed_it(line: str, rank: int | None) -> None:
    step = _one(line)
    assert (step.rank, step.step, step.loss) == (rank, 12, 3.5)


def test_of_a_bar_that_is_drawn_again_the_last_state_is_told() -> None:
    drawn = "".join(f"\r {n // 40:3d}%|▎  | {n}/4000 [01:02<33:21,  1.94it/s]" for n in range(500))
    assert [step.step for step in read(drawn)] == [499]


def test_nested_bars_are_told_each() -> None:
    text = (
        "\rEpochs:  10%|█         | 1/10 [01:00<09:00, 60.0s/it]\n"
        "\rtrain:  50%|█████     | 10/20 [00:30<00:30,  3.0s/it, loss=1.5]\x1b[A\n"
        "\rtrain:  55%|█████▌    | 11/20 [00:33<00:27,  3.0s/it, loss=1.4]\x1b[A"
    )
    assert [(step.step, step.epoch, step.loss) for step in read(text)] == [(None, 1, None), (11, None, 1.4)]


def test_a_record_behind_a_bar_in_the_same_line() -> None:
    line = "Train:   2%|▏         | 1/60 [00:55<54:36, 55.53s/it]{'loss': '0.6647', 'grad_norm': '0.8371', 'epoch': '0.08421', 'global_step/max_steps': '1/60'}"
    bar, record = read(line)
    assert (bar.step, bar.total, bar.loss) == (1, 60, None)
    assert (record.step, record.total, record.epoch, record.loss) == (1, 60, 0.08421, 0.6647)


def test_the_order_is_that_of_the_text_and_the_end_is_read_of_a_long_one() -> None:
    text = "\n".join(f"step {n} loss 1.5" for n in range(1000))
    found = [step.step for step in read(text)]
    assert found == list(range(1000 - STEPS_MAX, 1000))


def test_progress_between_the_lines_of_a_library() -> None:
    noise = "gpu-17:2211:2319 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n" * 100
    assert [step.step for step in read(f"{noise}step 7 loss 1.5\n{noise}")] == [7]


def test_what_is_kept_of_a_line_is_short_and_clean() -> None:
    step = _one("\x1b[31mstep 7\x1b[0m loss 1.5 " + "x" * 10_000)
    assert step.line.startswith("step 7 loss 1.5 xxx")
    assert len(step.line) == SHOWN_MAX


def test_numbers_that_nobody_can_count_to_are_none() -> None:
    assert read("step 999999999999999999999999 loss 1.5") == ()
    assert _one("step 999999999999999 loss 1.5").step is None
    assert _one('{"step": 1e300, "epoch": 2, "loss": 1.5}').step is None
    assert _one("{'loss': 1e999, 'learning_rate': 1, 'epoch': 0.5}").loss == math.inf


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    for step in read(text):
        assert step.step is None or 0 <= step.step <= 10**12
        assert step.epoch is None or 0 <= step.epoch <= 10**6


@given(st.binary(max_size=4000))
def test_no_bytes_break_it(data: bytes) -> None:
    read(data.decode("utf-8", "replace"))
    read(data.decode("latin-1"))


_PIECES = st.sampled_from(
    ["step", "epoch", " ", "loss", "=", ":", "1", "99", "/", "%|", "|", "[", "]", "{'", '{"', "}", "nan", "it/s", "\r", "\n",
     "iter", "━━━", "[=>", "\x1b[", "0.5", "e", ",", "-", "(", ")", "train", "'epoch'", '"step"', "rank", "<", "\0", "ٳ", "²"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=80).map("".join))
def test_no_mixture_of_its_own_words_breaks_it(text: str) -> None:
    for step in read(text):
        assert step.phase in ("train", "eval", "other")
        assert step.loss is None or isinstance(step.loss, float)


@given(st.sampled_from(PROGRESS), st.data())
def test_no_damage_to_a_real_line_breaks_it(sample: tuple[str, str, object], data: st.DataObject) -> None:
    line = sample[1]
    begin, end = sorted((data.draw(st.integers(0, len(line))), data.draw(st.integers(0, len(line)))))
    read(line[:begin] + data.draw(st.text(max_size=5)) + line[end:])


def test_lines_without_end_are_read_at_their_beginning() -> None:
    assert read("x" * 5_000_000 + " step 7 loss 1.5") == ()
    assert [step.step for step in read("step 7 loss 1.5 " + "y" * 900_000)] == [7]
    assert read("\0" * 3_000_000) == ()


def test_hostile_lines_are_few_that_are_read_closely() -> None:
    generator = random.Random(7)
    words = ["step=1", "iter 2", "[batch=1", "epoch: [3]", "%|", "loss", "train: [", "1/2", "{'", "━━━"]
    text = "\n".join(" ".join(generator.choices(words, k=300)) for _ in range(300))
    read(text)  # takes as long as LINES_MAX * LINE_MEAN characters do; the suite's time limit bounds it
    assert read(text + "\nstep 7 loss 1.5")[-1].step == 7
