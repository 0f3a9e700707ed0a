"""The fingerprint of a failure: the same whenever the same job fails in the same way."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXT_MAX, KEPT_MAX = 1024, 160
"""How much of a line is read, and how much of what it comes to counts: a termination message cuts a long line."""
NUMBER = "#"

# Kubernetes makes the end of a pod's name from these letters ("k8s.io/apimachinery/pkg/util/rand").
_POD = "[bcdfghjklmnpqrstvwxz2456789]"
_IDS = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    # tempfile, mktemp, and whatever a program puts into the directory for such things.
    (re.compile(r"(?<![\w.])(/(?:var/)?tmp|/dev/shm)/[^/\s'\":,)]+"), r"\1/<id>"),
    (re.compile(r"\b(tmp|pymp-)[a-z0-9_]{8}\b|\btmp\.\w{6,}"), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"(?<![\w:])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{1,4}(?![\w:])", re.IGNORECASE), "<address>"),
    (re.compile(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "<id>"),
    # Letters and digits in turn, three changes at least: k3v9qd, but not float16, conv2d or sm_90.
    (re.compile(r"(?<![^\W_])(?=(?:[a-z]+\d+[a-z]+\d|\d+[a-z]+\d+[a-z]))[a-z\d]{5,}(?![^\W_])", re.IGNORECASE), "<id>"),
    (re.compile(rf"-{_POD}{{8,10}}-{_POD}{{5}}\b"), "-<id>"),
    (re.compile(rf"(?<=[a-z\d])-(?=[a-z]*\d){_POD}{{5}}\b"), "-<id>"),
)
_DAYS, _MONTHS = "mon|tue|wed|thu|fri|sat|sun", "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_CLOCK, _ZONE = r"\d\d:\d\d:\d\d(?:[.,]\d+)?", r"(?:\s?(?:z\b|[+-]\d\d:?\d\d\b))?"
_TIMES = tuple(
    (re.compile(pattern, re.IGNORECASE), "<time>")
    for pattern in (
        # 2026-12-01T05:12:00.123456Z, 2026/12/01 05:12:00,123
        rf"\b\d{{4}}[-/.]\d\d[-/.]\d\d(?:[t_ ]+(?:{_CLOCK}|\d\d:\d\d){_ZONE})?",
        # Tue Dec  1 05:12:00 2026; Dec  1 05:12:00
        rf"\b(?:(?:{_DAYS})\s+)?(?:{_MONTHS})\s+\d{{1,2}}\s+{_CLOCK}(?:\s+\d{{4}})?\b",
        rf"\b{_CLOCK}{_ZONE}",
    )
)
_UNITS = "ns|us|ms|s|secs?|seconds?|mins?|minutes?|h|hours?|milliseconds?"
_AMOUNTS = tuple(
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (r"\d[\d.,]*\s?(?:bytes?|[kmgtp]i?b)\b", "<size>"),
        (rf"\d[\d.,]*\s?(?:{_UNITS})\b", "<span>"),
        (r"[-+]?\d(?:[\d.,_]*\d)?(?:e[-+]?\d+)?", NUMBER),
        # A list of numbers is one number: shapes and ranks differ in how many they name.
        (r"#(?:(?:\s?[,x*]\s?|\s)#)+", NUMBER),
    )
)


def without_ids(text: str) -> str:
    """``text`` without what is new each time: ids, times, addresses, names of temporary files; numbers stay.

    Args:
        text: Such as an argument of a command.
    """
    for pattern, instead in (*_IDS[:-2], *_TIMES):
        text = pattern.sub(instead, text)
    return text


def normalised(line: str) -> str:
    """A line without what differs from one time to the next: numbers, sizes, times, ids, addresses, paths' parts.

    Args:
        line: The line, of any length and with anything in it.

    Returns:
        At most ``KEPT_MAX`` characters, none of them a decimal digit or a control character.
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in line[:TEXT_MAX]).split())
    for pattern, instead in (*_TIMES, *_IDS, *_AMOUNTS):
        text = pattern.sub(instead, text)
    return text[:KEPT_MAX].rstrip()


def of(cls: str, line: str, identity: Iterable[str]) -> str:
    """The fingerprint.

    Args:
        cls: The class of the failure.
        line: The decisive line; where there is none, how the run ended.
        identity: Whose failure it is (see ``identity.of``).

    Returns:
        16 hexadecimal digits.
    """
    parts = "\0".join((cls, normalised(line), *identity))
    return hashlib.sha256(parts.encode("utf-8", "replace")).hexdigest()[:16]
