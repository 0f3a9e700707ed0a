"""How far a training is, in one phrase for people."""

from __future__ import annotations

from typing import Any, TypeGuard

UNIT_MAX = 20
_PER_SECOND = {"step": "steps", "batch": "batches", "it": "it", "samples": "samples", "epoch": "epochs"}


def phrase(progress: dict[str, Any] | None, *, pace: bool = True) -> str:
    """``step 41200 of 50000 (82 %), epoch 3, loss 1.873, 3.1 it/s, 42 % slower than before since 05:12Z``.

    Args:
        progress: What ``Tracker.state`` gives, or ``report.json`` holds.
        pace: Say how fast it goes.

    Returns:
        The phrase; empty where nothing is known.
    """
    if not progress:
        return ""
    parts = [place(progress)]
    loss, nan = progress.get("loss"), _clock(progress.get("nan_since"))
    if nan:
        parts.append(f"loss not finite since {nan}")
    elif _is_number(loss):
        parts.append(f"loss {_figures(loss)}")
    rate = progress.get("rate")
    if pace and _is_number(rate) and rate > 0 and progress.get("step") is not None:
        unit = str(progress.get("unit") or "step")[:UNIT_MAX]
        parts.append(
            f"{_figures(rate, 3)} {_PER_SECOND.get(unit, unit)}/s" if rate >= 1 else f"{_figures(1 / rate, 3)} s/{unit}"
        )
    parts.append(slower(progress))
    return ", ".join(part for part in parts if part)


def place(progress: dict[str, Any] | None) -> str:
    """``step 41200 of 50000 (82 %), epoch 3``; empty where nothing is known.

    Args:
        progress: As for ``phrase``.
    """
    if not progress:
        return ""
    parts = []
    step, total, epoch, epochs = (progress.get(name) for name in ("step", "total", "epoch", "epochs"))
    if _is_number(step):
        of = (
            f" of {total:.0f} ({100 * step / total:.0f} %)"
            if _is_number(total) and 0 <= step <= total and total
            else ""
        )
        word = "sample" if progress.get("unit") in ("sample", "samples") else "step"
        parts.append(f"{word} {step:.0f}{of}")
    if _is_number(epoch):
        told = f"{epoch:.0f}" if float(epoch).is_integer() else f"{epoch:.3g}"
        parts.append(f"epoch {told} of {epochs:.0f}" if _is_number(epochs) and epoch <= epochs else f"epoch {told}")
    return ", ".join(parts)


def short(progress: dict[str, Any] | None) -> str:
    """``41200/50000 82%`` or ``epoch 3/10``, for a narrow column; empty where nothing is known.

    Args:
        progress: As for ``phrase``.
    """
    if not progress:
        return ""
    step, total, epoch, epochs = (progress.get(name) for name in ("step", "total", "epoch", "epochs"))
    if _is_number(step):
        if _is_number(total) and 0 <= step <= total and total:
            return f"{_brief(step)}/{_brief(total)} {int(100 * step / total)}%"
        return f"step {_brief(step)}"
    if _is_number(epoch):
        return f"epoch {epoch:.3g}/{epochs:.0f}" if _is_number(epochs) and epoch <= epochs else f"epoch {epoch:.3g}"
    return ""


def slower(progress: dict[str, Any] | None) -> str:
    """``42 % slower than before since 05:12Z``; empty where it is not.

    Args:
        progress: As for ``phrase``.
    """
    part = (progress or {}).get("slower")
    if not _is_number(part) or part <= 0:
        return ""
    since = _clock((progress or {}).get("since"))
    return f"{100 * part:.0f} % slower than before" + (f" since {since}" if since else "")


def _brief(count: float) -> str:
    """At most six characters."""
    if count < 100_000:
        return f"{count:.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if count < 1000 * size:
            return f"{count / size:.4g}{unit}"
    return "many"


def _figures(value: float, figures: int = 4) -> str:
    """A few figures, without an exponent where that reads well."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.{figures}g}"


def _clock(moment: object) -> str:
    """``05:12Z`` of an RFC 3339 time in UTC."""
    return f"{moment[11:16]}Z" if isinstance(moment, str) and len(moment) >= 20 else ""


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
