"""Progress recognised in output: which lines tell how far a training has come, in the words of those who print them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpualert.progress import bars, lines, records
from gpualert.progress import step as made
from gpualert.progress.step import INT, REAL, Phase, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Step", "read"]

TEXT_MAX = 1 << 20
"""Characters of a text that are looked at, from its end."""
LINES_MAX, STEPS_MAX = 160, 48
"""How many lines that may tell something are read closely, and how many signs are enough."""
LINE_MEAN = 160
"""Characters that such a line has at most, on average: what bounds the time that a hostile text takes."""

_MEGATRON = re.compile(r"iteration\s{1,9}(?P<step>\d{1,12})\s{0,3}/\s{0,9}(?P<total>\d{1,12}) \|")
_MEGATRON_TIME = re.compile(r"elapsed time per iteration \((?P<unit>ms|s)\):\s{1,4}(?P<time>\d{1,9}(?:\.\d{1,6})?)")
_NEMO = re.compile(r"training epoch (?P<epoch>\d{1,6}), iteration (?P<step>\d{1,12})/(?P<total>\d{1,12})")
_NEMO_TIME = re.compile(r"train_step_timing in s: (?P<time>\d{1,6}(?:\.\d{1,6})?)")
_NANOGPT = re.compile(rf"(?<![\w])iter (?P<step>\d{{1,12}}): loss {REAL}, time (?P<time>\d{{1,9}}(?:\.\d{{1,4}})?)ms")
_DEEPSPEED = re.compile(r"(?:\s|^|\])step=(?P<step>\d{1,12}), skipped=\d")
_DEEPSPEED_TIMER = re.compile(r"epoch=(?P<epoch>\d{1,6})/micro_step=\d{1,12}/global_step=(?P<step>\d{1,12})")
_FAIRSEQ = re.compile(r"epoch (?P<epoch>\d{1,6}):\s{1,9}(?P<step>\d{1,12}) / (?P<total>\d{1,12}) (?=\w)")
_FAIRSEQ_RATE = re.compile(r"[ ,]ups=(?P<rate>\d{1,6}(?:\.\d{1,4})?)")
# timm "Train: 3 [ 150/1251 ( 12%)]", MMEngine "Epoch(train) [3][150/1251]", torchvision "Epoch: [3]  [ 150/1251]",
# PyTorch's examples "Train Epoch: 3 [6400/60000 (11%)]", Swin "Train: [3/300][150/1251]", mmcv "Iter [50/80000]".
_BRACKETS = re.compile(
    r"(?:train|test|val(?:id(?:ation)?)?|eval|epoch|iter)(?:[ _]epoch)?(?:\((?P<mode>\w{1,12})\))?:?\s{0,3}"
    r"(?P<epoch>\d{1,6})?:?\s{0,3}(?:\[\s{0,6}(?P<outer>\d{1,9})(?:/(?P<outers>\d{1,9}))?\]\s{0,3})?"
    r"\[\s{0,9}(?P<step>\d{1,12})\s{0,2}/\s{0,9}(?P<total>\d{1,12})(?:\s{0,2}\(\s{0,3}\d{1,3}(?:\.\d{1,3})?%\))?\]"
)
_BATCH_TIME = re.compile(r"(?<![\w])(?:batch_)?time:?\s{1,4}(?P<time>\d{1,6}\.\d{1,6})s?(?![\w])")
_TUTORIAL = re.compile(r"\[\s{0,4}(?P<epoch>\d{1,6}),\s{1,8}(?P<step>\d{1,9})\]\s{0,2}loss")
_QUICKSTART = re.compile(r"\[\s{0,9}(?P<step>\d{1,12})\s{0,2}/\s{0,9}(?P<total>\d{1,12})\]")
_OLMO = re.compile(
    r"\[(?:epoch=(?P<epoch>\d{1,6})(?:/(?P<epochs>\d{1,6}))?\]\[)?(?P<word>step|batch)=(?P<step>\d{1,12})"
    r"(?:/(?P<total>\d{1,12}))?(?:,\s?epoch=(?P<later>\d{1,6}))?\]"
)
_METRIC_LINE = re.compile(
    rf"\s{{0,9}}(?:train[ /])?(?:loss/train/total|(?:train/)?(?:crossentropy|ce)loss)[:=]\s?(?P<loss>{REAL})"
)
_BOOSTING = re.compile(r"\[(?P<step>\d{1,9})\]\s{1,4}(?:d?train|validation_\d|valid\w{0,8}|eval)\S{0,40}[-:']")
_VERL = re.compile(r"(?<![\w/])step:(?P<step>\d{1,12}) - (?=\S{1,80}:)")
_LIGHTNING_SAVES = re.compile(r"epoch (?P<epoch>\d{1,6}), global step (?P<step>\d{1,12}):")
# Of others: a word for a step and a number.
_STEP = re.compile(
    r"(?:step|iteration|iter|batch|update)(?P<many>s)?(?:_idx|_num| idx)?['\"]?\s{0,2}(?:[:=#(\[]|no\.)?\s{0,9}"
    rf"(?P<step>{INT})(?:\s{{0,3}}(?:/|of|out of)\s{{0,9}}(?P<total>{INT}))?(?![\w%]|\.\d)"
)
_STEP_BEFORE = re.compile(r"(?:(?:^|[^\w/.\-])(?:(?:global|train|training|optimizer|opt|update)[ _-])?)$")
_NO_STEP_BEFORE = re.compile(
    r"(?:max|min|total|warm-?up|last|per|every|save|saved|each|best|next|resum\w{0,4}|from|at|first|start\w{0,4}|final|num"
    r"|accumulation|until|after|before|micro|log|logging|eval|mini|checkpoint|of|load\w{0,3}|skip\w{0,4})[ _-]{1,3}$"
)
_EPOCH = re.compile(
    r"epoch(?P<many>s)?['\"]?\s{0,2}[:=#(\[]?\s{0,6}(?P<epoch>\d{1,6}(?:\.\d{1,9})?)"
    r"(?:\s{0,2}(?:/|of)\s{0,6}(?P<epochs>\d{1,6}))?(?![\w%])"
)
_EPOCH_ALONE = re.compile(
    r"(?:.{0,120}?[|:\]>-] )?\W{0,40}(?:begin(?:ning)?|start(?:ing)?|running)?(?: of)?(?: training| train)?"
    r" ?epoch\W{1,4}\d{1,6}"
    r"(?:\s{0,2}(?:/|of)\s{0,2}\d{1,6})?(?:\s{0,2}(?:took|finished|done|completed?|ended|started|time)\b.{0,80})?\W{0,40}$"
)
# "step 7", "[node 1] step 11", "iter 45 mean -0.0083": nothing but a step and numbers.
_BARE = re.compile(
    r"(?:(?:\[[^\]]{0,20}\]|rank \d{1,6}|node \d{1,6}):?\s){0,2}(?:step|iter|iteration|batch)[ :=]{1,3}\d{1,12}"
    rf"(?:[,:|]?\s{{1,3}}(?:[a-z_]{{1,16}}[ =:]{{1,3}})?{REAL}){{0,6}}[\s.|,;]{{0,4}}$"
)
_METRIC = re.compile(
    r"(?:loss|(?<![a-z])lr|learning[ _]rate|(?<![a-z])acc(?:uracy)?|grad[ _]?norm|ppl|perplexity|(?<![a-z])mfu"
    r"|(?<![a-z])tps|rewards?|return|bleu|(?<![a-z])wer|(?<![a-z])auc|(?<![a-z])f1|m?iou|(?<![a-z])map|throughput|(?<![a-z])m[as]e"
    rf"|error)\w{{0,12}}['\"]?\s{{0,3}}[:=|]?\s{{0,6}}['\"(\[]?(?:tensor\()?{REAL}"
    r"|\d\s?(?:it|steps?|samples?|tok(?:en)?s?|images?|img|examples?|seq)/s|\ds/(?:it|step)|\dms/step"
)
_TIMED = re.compile(r"(?<![a-z])(?:eta|time|elapsed|took)\W{1,3}\d")
_EVALUATION = re.compile(r"(?<![a-z])(?:eval|valid|val(?![a-z])|test)[a-z]{0,6}[\])\s:|_-]{0,4}(?:set|epoch)?\W{0,3}$")
_RATE = re.compile(
    r"(?P<fast>\d{1,6}(?:\.\d{1,4})?)\s?(?:it|steps?|batch(?:es)?)/s|(?P<slow>\d{1,6}(?:\.\d{1,4})?)\s?s/(?:it|step|batch)"
    r"|(?P<ms>\d{1,9}(?:\.\d{1,4})?)\s?ms(?:/(?:it|step)|(?= \|| \(step\)))"
)
_FEW = 20
"""A count this low beside a time alone numbers stages, not steps."""


def read(text: str, *, lines_max: int = LINES_MAX, steps_max: int = STEPS_MAX) -> tuple[Step, ...]:
    """The signs of progress in a piece of output.

    Of a bar that is drawn again and again only the last state is told.

    Args:
        text: Whole lines; a carriage return ends a line too. Of a long text the end is read.
        lines_max: How many lines that may tell something are read closely, from the end.
        steps_max: How many signs are enough.

    Returns:
        What was found, in the order of the text.
    """
    found: list[Step] = []
    drawn: set[str] = set()
    looked, room = 0, lines_max * LINE_MEAN
    for raw in lines.backwards(text[-TEXT_MAX:]):
        if "%|" in raw:
            series = bars.series(raw)
            if series is not None:
                if series in drawn:
                    continue
                drawn.add(series)
        elif not _may_tell(raw.lower()):
            continue
        looked += 1
        room -= len(raw)
        if looked > lines_max or room < 0:
            break
        found.extend(_signs(raw))
        if len(found) >= steps_max:
            break
    found.reverse()
    return tuple(found)


def _may_tell(low: str) -> bool:
    """Whether a line is worth a closer look; this is asked of every line, so it must be quick."""
    return (
        "step" in low or "epoch" in low or "iter" in low or "loss" in low or "batch" in low or "train" in low
        or "it [" in low or "s/it" in low or "/s]" in low or "━" in low or "[=" in low or "rmse" in low
        or "update" in low
    )  # fmt: skip


def _signs(raw: str) -> Iterator[Step]:
    """What one line tells, the last first."""
    rank, line = lines.ranked(lines.clean(raw))
    low = line.lower()
    behind = low
    bar = bars.read(line, low, rank)
    if bar is not None:
        behind = bars.rest(low)
        told = records.trainer(line, behind, rank) if behind is not low else None
        if told is not None:
            yield told
        yield bar
        return
    if "{" in low:
        told = records.trainer(line, low, rank) or records.json_line(line, rank)
        if told is not None:
            yield told
        if told is not None or line.startswith('{"'):
            return
    told = _printed(line, low, rank)
    if told is not None:
        yield told


def _printed(line: str, low: str, rank: int | None) -> Step | None:
    """What a line of words and numbers tells."""
    for needle, pattern, name in _KNOWN:
        if needle in low:
            found = pattern.search(low)
            if found is not None:
                return _known(name, found, line, low, rank)
    return _generic(line, low, rank)


_KNOWN = (
    ("training epoch", _NEMO, "nemo"),
    ("iteration ", _MEGATRON, "megatron"),
    ("iter ", _NANOGPT, "nanogpt"),
    ("skipped=", _DEEPSPEED, "deepspeed"),
    ("micro_step=", _DEEPSPEED_TIMER, "deepspeed"),
    (" / ", _FAIRSEQ, "fairseq"),
    ("=", _OLMO, "olmo"),
    ("] loss", _TUTORIAL, "pytorch"),
    ("]", _BRACKETS, "brackets"),
    ("loss", _METRIC_LINE, "metric"),
    ("]", _BOOSTING, "boosting"),
    (" - ", _VERL, "verl"),
    ("global step", _LIGHTNING_SAVES, "lightning"),
)


def _known(name: str, found: re.Match[str], line: str, low: str, rank: int | None) -> Step | None:
    """A sign in words that are known."""
    told = found.groupdict()
    rate: float | None = None
    phase: Phase = "train"
    unit, per_epoch = "step", None
    epoch, epochs = made.epoch(told.get("epoch") or told.get("later")), made.epochs(told.get("epochs"))
    if name == "megatron":
        time, unit = _MEGATRON_TIME.search(low), "it"
        if time:
            rate = made.per_second(float(time["time"]) / (1000 if time["unit"] == "ms" else 1))
    elif name == "nemo":
        time, per_epoch = _NEMO_TIME.search(low), True
        rate = made.per_second(float(time["time"])) if time else None
    elif name == "nanogpt":
        rate, unit = made.per_second(float(told["time"]) / 1000), "it"
    elif name == "fairseq":
        ups, per_epoch = _FAIRSEQ_RATE.search(low), True
        rate = float(ups["rate"]) if ups else None
    elif name == "olmo":
        name = "olmo" if told["word"] == "step" else "composer"
        unit, per_epoch = told["word"], False
    elif name == "pytorch":
        per_epoch = True
    elif name == "brackets":
        return _bracketed(found, line, low, rank)
    loss = made.loss(low) if name not in ("metric", "boosting") else made.real(told.get("loss"))
    return Step(
        name, made.count(told.get("step")), made.count(told.get("total")), epoch, epochs, loss, rate, unit, rank, phase,
        line[: made.SHOWN_MAX], per_epoch=per_epoch,
    )  # fmt: skip


def _bracketed(found: re.Match[str], line: str, low: str, rank: int | None) -> Step | None:
    told = found.groupdict()
    words = found[0]
    epoch, epochs = made.epoch(told["epoch"] or told["outer"]), made.epochs(told["outers"])
    if words.startswith("epoch") and epoch is None:
        return _generic(line, low, rank)  # "Epoch [3/10], Step [150/1251]"
    loss = made.loss(low)
    mode = told["mode"] or words
    evaluates = mode.startswith(("test", "val", "eval")) or low[max(found.start() - 8, 0) : found.start()].endswith(
        ("test ", "val ")
    )
    time = _BATCH_TIME.search(low, found.end())
    rate = made.per_second(float(time["time"])) if time else None
    samples = "%)]" in words and "epoch" in words  # PyTorch's examples count samples, timm counts batches
    name = (
        "mmengine" if told["mode"] or "iter [" in words else "pytorch" if samples
        else "timm" if words.startswith(("train:", "test:")) else "torchvision"
    )  # fmt: skip
    return Step(
        name, made.count(told["step"]), made.count(told["total"]), epoch, epochs, loss, None if samples else rate,
        "samples" if samples else "it", rank, "eval" if evaluates else "train", line[: made.SHOWN_MAX],
        per_epoch=epoch is not None or None,
    )  # fmt: skip


def _generic(line: str, low: str, rank: int | None) -> Step | None:
    """``step 100 loss 1.8``, ``epoch 3 step 100/4000 loss=1.8``, ``step:  10  loss:  7.2  memory: ...  tps: 7,500``."""
    counted, epoch = _counted(low), _epoch_in(low)
    if counted is None and epoch is None:
        return _quickstart(line, low, rank)
    loss = made.loss(low)
    metric = loss is not None or _METRIC.search(low) is not None
    step = made.count(counted["step"]) if counted else None
    total = made.count(counted["total"]) if counted else None
    if not metric:
        timed = counted is not None and (total or 0) >= _FEW and _TIMED.search(low) is not None
        both = counted is not None and epoch is not None and total is not None
        alone = epoch is not None and _EPOCH_ALONE.match(low) is not None
        bare = counted is not None and _BARE.match(low) is not None
        if not (timed or both or alone or bare):
            return None
    begin = min(found.start() for found in (counted, epoch) if found)
    evaluates = _EVALUATION.search(low[max(begin - 24, 0) : begin]) is not None
    if step is not None and loss is None and not evaluates:
        evaluates = re.search(r"(?<![a-z])(?:val|eval|test)[a-z]{0,7}[ _/]\w{0,10}(?:loss|acc)", low) is not None
    rate = _RATE.search(low)
    seconds = None if rate is None else rate["slow"] or rate["ms"]
    per_second = None
    if rate is not None:
        per_second = (
            float(rate["fast"]) if rate["fast"] else made.per_second(float(seconds or 0) / (1000 if rate["ms"] else 1))
        )
    return Step(
        "lines",
        step,
        total,
        made.epoch(epoch["epoch"]) if epoch else None,
        made.epochs(epoch["epochs"]) if epoch else None,
        loss,
        per_second,
        "step"
        if counted is None or counted[0].startswith(("step", "update"))
        else "batch"
        if counted[0].startswith("batch")
        else "it",
        rank,
        "eval" if evaluates else "train",
        line[: made.SHOWN_MAX],
    )


def _counted(low: str) -> re.Match[str] | None:
    """Where a line counts a step: one that is being done, not a setting or one that was."""
    for found in _STEP.finditer(low):
        if found["many"] and not found["total"]:
            continue
        before = low[max(found.start() - 20, 0) : found.start()]
        if _STEP_BEFORE.search(before) and not _NO_STEP_BEFORE.search(before):
            return found
    return None


def _epoch_in(low: str) -> re.Match[str] | None:
    for found in _EPOCH.finditer(low):
        if found["many"] and not found["epochs"]:
            continue
        before = low[max(found.start() - 20, 0) : found.start()]
        if not before or (before[-1] not in "_/.-" and not before[-1].isalnum() and not _NO_STEP_BEFORE.search(before)):
            return found
    return None


def _quickstart(line: str, low: str, rank: int | None) -> Step | None:
    """``loss: 2.301  [   64/60000]`` (PyTorch's first tutorial), ``[100/5000] loss: 2.1``."""
    loss = made.loss(low)
    found = _QUICKSTART.search(low) if loss is not None else None
    if found is None:
        return None
    return Step(
        "lines", made.count(found["step"]), made.count(found["total"]), loss=loss, unit="it", rank=rank,
        line=line[: made.SHOWN_MAX],
    )  # fmt: skip
