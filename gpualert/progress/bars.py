"""Progress bars: those of tqdm (Lightning, Hugging Face, NeMo, torchtune), of rich, Keras and Ultralytics."""

from __future__ import annotations

import re

from gpualert.progress import step as made
from gpualert.progress.step import INT, REAL, Phase, Step

# tqdm's own format (tqdm.std, format_meter): description, percent, bar, count, and in brackets time, rate and the rest.
_SIZE = r"\d{1,15}(?:\.\d{1,6})?"
_TQDM = re.compile(
    rf"%\|[^|\n]{{0,400}}\|\s{{0,4}}(?P<n>{_SIZE})(?P<n_times>[kmgt]?)/(?P<total>{_SIZE}|\?)(?P<total_times>[kmgt]?)"
    r"\s?\[(?P<inside>[^\]]{0,400})\]?"
)
_PERCENT = re.compile(r"\s{0,8}\d{1,3}$")
_ENDLESS = re.compile(
    r"(?:^|[\s:])(?P<n>\d{1,12}) ?(?P<unit>[a-z]{1,20})? \[(?P<inside>\d{1,4}:\d\d(?::\d\d)?,[^\]]{0,300})\]?"
)
_RATE = re.compile(
    r"(?P<value>\d{1,9}(?:\.\d{1,6})?)(?P<times>[kmgt]?)\s?"
    r"(?:(?P<unit>[^\s,/\]\d]{1,20})/s(?:ec)?\b|s/(?P<per>[^\s,/\]]{1,20}))"
)
_TIMES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# Keras' Progbar (keras/src/utils/progbar.py), and as it was before Keras 3.
_KERAS = re.compile(
    rf"(?:^|\s)(?P<n>{INT})/(?P<total>{INT}|unknown)\s{{1,3}}(?:[━╸╺─]{{2,80}}|\[[=>.\-]{{2,80}}\]|-)\s{{0,3}}"
    r"(?=-?\s{0,2}(?:eta|\d{1,6}s|\d{1,2}:\d\d|\d{1,6}[mµu]s))"
)
_KERAS_RATE = re.compile(r"(?P<value>\d{1,6})(?P<times>[mµu]?)s/(?:step|epoch|sample)")
# rich (Lightning's RichProgressBar) and Ultralytics since 8.3.
_BLOCKS = re.compile(rf"[━╸╺─]{{3,200}}\s{{1,3}}(?P<n>{INT})/(?P<total>{INT})(?=\s|$)(?!\s{{0,2}}[kmgt]?i?b\b)")
# "1/100  3.61G  1.482  1.812  1.017  332  640:": epoch, memory, losses (ultralytics/engine/trainer.py).
_YOLO = re.compile(
    rf"(?P<epoch>\d{{1,6}})/(?P<epochs>\d{{1,6}})\s+(?:\d{{1,5}}(?:\.\d{{1,3}})?[gmk]?)\s+(?P<loss>{REAL}\s.*)$"
)
# "1|250|Loss: 1.87": epoch and step (torchtune's recipes).
_TORCHTUNE = re.compile(rf"(?P<epoch>\d{{1,6}})\|(?P<step>\d{{1,12}})\|loss: (?P<loss>{REAL})")

_EPOCH = re.compile(
    r"(?<![a-z])ep(?:och)?s?\W{0,4}(?P<epoch>\d{1,6}(?:\.\d{1,6})?)(?:\s{0,2}(?:/|of)\s{0,2}(?P<epochs>\d{1,6}))?"
)
_EPOCHS_ALONE = re.compile(r"\W{0,4}(?:training |train )?(?:epochs?|global_epoch)\W{0,4}$")
_TRAINING = re.compile(
    r"(?<![a-z])(?:train|pretrain|fine-?tun|fit(?:ting)?(?![a-z])|epoch|ep(?![a-z])|steps?(?![a-z])|iter|batch|learn"
    r"|progress|updat|optimi|rounds?(?![a-z])|total(?![a-z]))"
)
_EVALUATION = re.compile(r"(?<![a-z])(?:eval|valid|val(?![a-z])|test|sanity|predict|infer|dev(?![a-z])|generation)")
_ELSE = re.compile(
    r"(?<![a-z])(?:download|fetch|map(?:ping)?(?![a-z])|filter|tokeni|preprocess|load|checkpoint|sav(?:e|ing)(?![a-z])"
    r"|upload"
    r"|generating|resolv|extract|pack|group|cast|flatten|creat|convert|warm-?up|compil|captur|build|scan|cach"
    r"|prepar|index|process|quanti|calibrat|merg|unzip|pars|read|comput|copy|import|collect|encod|embed|shard)"
    r"|\.(?:safetensors|bin|json|pt|pth|ckpt|gguf|zip|gz|tar|txt|parquet|model|npz|h5|onnx)(?![a-z])"
)
_DATA_UNITS = ("b", "ib", "bytes", "byte", "ex", "examples", "files", "file", "shard", "shards", "rows", "docs")


def read(line: str, low: str, rank: int | None) -> Step | None:
    """What a bar tells; None where the line has none.

    Args:
        line: The line, clean.
        low: The same in lower case.
        rank: Who printed it.
    """
    at = low.find("%|")
    if at >= 0:
        found = _TQDM.match(low, at)
        return _tqdm(line, low[:at], found, rank) if found else None
    if (
        "━" in low
        or "[=" in low
        or "[>" in low
        or "/step" in low
        or "[." in low
        or " - eta:" in low
        or "s - loss" in low
    ):
        return _keras(line, low, rank) or _blocks(line, low, rank)
    found = _ENDLESS.search(low)
    return _endless(line, low, found, rank) if found else None


def rest(low: str) -> str:
    """What stands behind a bar in the same line, since programs print while bars are drawn.

    Args:
        low: The line, in lower case.
    """
    at = low.find("%|")
    found = _TQDM.match(low, at) if at >= 0 else None
    return low[found.end() :] if found else low


def series(line: str) -> str | None:
    """What is the same in every state of a bar: its description and its total; None where there is no bar.

    Args:
        line: The line, as it is.
    """
    at = line.find("%|")
    if at < 0:
        return None
    end = line.find("|", at + 2)
    total = line[end : end + 40].partition("/")[2].partition(" ")[0]
    return f"{line[:at].rstrip('0123456789 ')}\0{total}" if "{" not in line[end:] else None


def _tqdm(line: str, before: str, found: re.Match[str], rank: int | None) -> Step | None:
    description = _PERCENT.sub("", before)[-160:]
    # Another bar, or something else, may stand before this one in the same line.
    cut = description.rfind("/s")
    if cut >= 0:
        description = description[cut:].partition("]")[2]
    description = description.strip(" :\t-")
    inside = found["inside"]
    rate, unit = _speed(inside.partition("<")[2] or inside)
    n, total = _sized(found["n"], found["n_times"]), _sized(found["total"], found["total_times"])
    loss = made.loss(inside)
    tune, yolo = _TORCHTUNE.search(description), _YOLO.search(description)
    phase = phase_of(description, unit, loss=loss is not None or tune is not None or yolo is not None)
    epoch = _EPOCH.search(description)
    values: dict[str, float | int | None] = {"epoch": None, "epochs": None}
    name = "tqdm"
    if _EPOCHS_ALONE.match(description) or unit in ("epoch", "epochs", "ep"):
        return Step("tqdm", None, None, n, total, loss, None, "epoch", rank, phase, line[: made.SHOWN_MAX])
    if tune:
        name, loss = "torchtune", made.real(tune["loss"])
        values["epoch"] = made.epoch(tune["epoch"])
    elif yolo:
        name, loss = "ultralytics", _not_finite(yolo["loss"])
        values = {"epoch": made.epoch(yolo["epoch"]), "epochs": made.epochs(yolo["epochs"])}
    elif epoch:
        name = "lightning" if "v_num" in inside else "tqdm"
        values = {"epoch": made.epoch(epoch["epoch"]), "epochs": made.epochs(epoch["epochs"])}
    return Step(
        name, n, total, values["epoch"], _whole(values["epochs"]), loss, rate, unit, rank, phase,
        line[: made.SHOWN_MAX], per_epoch=values["epoch"] is not None or None,
    )  # fmt: skip


def _endless(line: str, low: str, found: re.Match[str], rank: int | None) -> Step | None:
    rate, unit = _speed(found["inside"].partition(",")[2])
    told = found["unit"] or unit
    description = low[: found.start()].strip(" :\t-")[-160:]
    if told.endswith(("s", "m", "h")) and rate is None:
        return None  # a time, not a count
    loss = made.loss(found["inside"])
    phase = phase_of(description, unit, loss=loss is not None)
    return Step("tqdm", made.count(found["n"]), None, None, None, loss, rate, unit, rank, phase, line[: made.SHOWN_MAX])


def _keras(line: str, low: str, rank: int | None) -> Step | None:
    found = _KERAS.search(low)
    if found is None:
        return None
    per_step = _KERAS_RATE.search(low, found.end())
    scale = {"": 1.0, "m": 1e-3, "µ": 1e-6, "u": 1e-6}
    rate = made.per_second(int(per_step["value"]) * scale[per_step["times"]]) if per_step else None
    total = None if found["total"] == "unknown" else made.count(found["total"])
    loss = made.loss(low, found.end())
    return Step(
        "keras", made.count(found["n"]), total, None, None, loss, rate, "step", rank, "train",
        line[: made.SHOWN_MAX], per_epoch=True,
    )  # fmt: skip


def _blocks(line: str, low: str, rank: int | None) -> Step | None:
    found = _BLOCKS.search(low)
    if found is None:
        return None
    description = (
        low[: found.start()].strip(" :%\t0123456789") if "%" in low[: found.start()][-6:] else low[: found.start()]
    )
    rate, unit = _speed(low[found.end() :])
    loss = made.loss(low, found.end())
    yolo, epoch = _YOLO.search(low[: found.start()]), _EPOCH.search(description)
    phase = phase_of(description.strip(), unit, loss=loss is not None or yolo is not None)
    if yolo:
        loss = _not_finite(yolo["loss"])
    told = yolo or epoch
    return Step(
        "ultralytics" if yolo else "rich", made.count(found["n"]), made.count(found["total"]),
        made.epoch(told["epoch"]) if told else None, made.epochs(told["epochs"]) if told else None,
        loss, rate, unit, rank, phase, line[: made.SHOWN_MAX], per_epoch=told is not None or None,
    )  # fmt: skip


def phase_of(description: str, unit: str, *, loss: bool) -> Phase:
    """What a bar is about.

    Args:
        description: The words before it, in lower case.
        unit: What it counts.
        loss: Whether a loss stands behind it: then it is a training, whatever else its words say.
    """
    other, evaluates, trains = (pattern.search(description) for pattern in (_ELSE, _EVALUATION, _TRAINING))
    if unit in _DATA_UNITS and not loss:
        return "other"
    if other and not loss:
        return "other"
    if evaluates and not (trains and trains.start() < evaluates.start()):
        return "eval"
    return "train" if trains or loss or not re.search(r"[^\W\d_]{2}", description) else "other"


def _speed(text: str) -> tuple[float | None, str]:
    """How many a second, and of what."""
    found = _RATE.search(text)
    if found is None:
        return None, "it"
    value = float(found["value"]) * _TIMES[found["times"]]
    if found["per"]:
        return made.per_second(value), _unit(found["per"])
    return value, _unit(found["unit"])


def _unit(text: str) -> str:
    return text if text.isascii() and text.replace("_", "").isalpha() else "it"


def _sized(text: str, times: str) -> int | None:
    if text == "?":
        return None
    value = float(text) * _TIMES[times]
    return int(value) if value <= made.COUNT_MAX else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _not_finite(text: str) -> float | None:
    """NaN where one of several losses is; which of them is the loss nobody can say."""
    return float("nan") if re.search(r"(?<![a-z])(?:nan|inf)(?![a-z])", text) else None
