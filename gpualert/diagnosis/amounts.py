"""How bytes, time spans and moments read in a diagnosis."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def of_limit(used: int, limit: int) -> str:
    """``63.9 of 64.0 MiB``: both in the limit's unit.

    Args:
        used: How much there was, in bytes.
        limit: How much there may be, in bytes.
    """
    size, unit = next(((size, unit) for size, unit in _UNITS if limit >= size), (1, "bytes"))
    if size == 1:
        return f"{used} of {limit} bytes"
    return f"{used / size:.1f} of {limit / size:.1f} {unit}"


def span(seconds: float) -> str:
    """``3h12m``, ``31m`` or ``12s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    if whole >= 600:
        return f"{whole // 60}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def moment(at: float) -> str:
    """``05:58:41Z`` for seconds since 1970."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
