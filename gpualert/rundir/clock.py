"""Times as the run directory writes them: RFC 3339, UTC, microseconds."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def rfc3339(us: int) -> str:
    """``2026-12-01T05:12:00.123456Z`` for microseconds since 1970."""
    t = time.gmtime(us // 1_000_000)
    return f"{t[0]:04d}-{t[1]:02d}-{t[2]:02d}T{t[3]:02d}:{t[4]:02d}:{t[5]:02d}.{us % 1_000_000:06d}Z"


def seconds(us: int) -> str:
    """``2026-12-01T05:12:00Z`` for microseconds since 1970."""
    return rfc3339(us)[:19] + "Z"


def compact(us: int) -> str:
    """``20261201T051200.123456Z`` for microseconds since 1970; sorts as text."""
    return rfc3339(us).replace("-", "").replace(":", "")
