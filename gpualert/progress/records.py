"""Records of metrics: dictionaries as the Hugging Face Trainer prints them, and lines of JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from gpualert.progress import step as made
from gpualert.progress.step import REAL, Phase, Step

_STEP = (
    "step", "global_step", "iteration", "iter", "num_updates", "train_step", "train/step", "train/global_step", "_step",
    "current_steps", "trainer/global_step", "global_steps", "batch_idx", "update",
)  # fmt: skip
_TOTAL = ("total_steps", "max_steps", "total", "num_steps", "total_iterations", "max_iters", "train_iters", "steps")
_LOSS = (
    "loss", "train_loss", "train/loss", "lm_loss", "lm loss", "training_loss", "reduced_train_loss", "loss/train",
    "total_loss", "train_inner/loss", "train/CrossEntropyLoss", "avg_loss", "train.loss",
)  # fmt: skip
_RATE = ("it_per_sec", "steps_per_second", "steps_per_sec", "ups", "it/s", "train_steps_per_second")
_FIELD = {
    name: re.compile(rf"['\"]{name}['\"]\s{{0,2}}:\s{{0,2}}['\"]?(?P<value>{REAL})")
    for name in ("loss", "epoch", "eval_loss", "train_loss")
}
# ms-swift adds this to what the Trainer prints.
_SWIFT = re.compile(r"['\"]global_step/max_steps['\"]: ['\"](?P<step>\d{1,12})/(?P<total>\d{1,12})")


def trainer(line: str, low: str, rank: int | None) -> Step | None:
    """``{'loss': 1.87, 'grad_norm': 0.9, 'learning_rate': 2e-05, 'epoch': 0.12}`` (transformers' PrinterCallback).

    Args:
        line: The line, clean.
        low: The same in lower case, or the end of it that may hold one.
        rank: Who printed it.
    """
    if "{'" not in low or "'epoch'" not in low:
        return None
    loss, epoch = _FIELD["loss"].search(low), _FIELD["epoch"].search(low)
    evaluates = _FIELD["eval_loss"].search(low) or "'eval_" in low
    final = "'train_runtime'" in low
    if epoch is None or not (loss or evaluates or "'learning_rate'" in low or final):
        return None
    phase: Phase = "train" if loss or not (evaluates or final) else "eval" if evaluates else "other"
    swift = _SWIFT.search(low)
    return Step(
        "hf",
        made.count(swift["step"]) if swift else None,
        made.count(swift["total"]) if swift else None,
        made.epoch(epoch["value"]),
        loss=made.real(loss["value"]) if loss else None,
        rank=rank,
        phase=phase,
        line=line[: made.SHOWN_MAX],
        per_epoch=False,
    )


def json_line(line: str, rank: int | None) -> Step | None:
    """A line that holds a JSON object with a step or an epoch, and something measured.

    Args:
        line: The line, clean; a logger's words may stand before the object.
        rank: Who printed it.
    """
    begin, end = line.find('{"'), line.rfind("}")
    if begin < 0 or end < begin:
        return None
    try:
        record = json.loads(line[begin : end + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    nested = record.get("data") or record.get("metrics")
    values = {**record, **nested} if isinstance(nested, dict) else record
    step, total, epoch = _first(values, _STEP), _first(values, _TOTAL), _first(values, ("epoch", "train/epoch"))
    counts = values.get("step")
    if isinstance(counts, list) and len(counts) > 1:  # NVIDIA's DLLogger: epoch, iteration
        epoch, step = _number(counts[0]), _number(counts[1])
    loss = next((value for name in _LOSS if (value := _number(values.get(name), finite=False)) is not None), None)
    evaluates = any(str(name).startswith(("eval", "val", "test")) for name in values)
    measured = loss is not None or evaluates or any(name in values for name in ("lr", "learning_rate", *_RATE))
    if (step is None and epoch is None) or not (measured or (step is not None and total)):
        return None
    valid = "valid |" in line[:begin] or "| valid" in line[:begin]
    return Step(
        "fairseq" if "num_updates" in values else "json",
        _count(step),
        _count(total),
        epoch if epoch is not None and epoch <= made.EPOCHS_MAX else None,
        _count(_first(values, ("epochs", "num_epochs", "max_epochs", "num_train_epochs"))),
        loss,
        _first(values, _RATE),
        rank=rank,
        phase="eval" if valid or (evaluates and loss is None) else "train",
        line=line[: made.SHOWN_MAX],
        per_epoch=False if isinstance(epoch, float) and epoch % 1 else None,
    )


def _first(values: dict[str, Any], names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := _number(values.get(name))) is not None), None)


def _number(value: object, *, finite: bool = True) -> float | None:
    """A number that is not absurd; loggers write some as texts."""
    if isinstance(value, str) and len(value) <= 40:
        value = made.real(value.replace(",", ""))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return float(value) if abs(value) <= made.COUNT_MAX else None
    return value if not finite or (math.isfinite(value) and 0 <= value <= made.COUNT_MAX) else None


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 0 else None
