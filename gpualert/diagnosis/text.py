"""Log text as a person would read it: without terminal escapes, and with the prefixes of launchers understood."""

from __future__ import annotations

import re

LINE_MAX = 2000
"""Characters of a line that matter; longer ones are cut around what matched."""

# ECMA-48 control sequences, operating system commands (titles, links), and two-character escapes.
_ESCAPES = re.compile(r"\x1b\[[0-9;:?<=>]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# Each takes one prefix off the start of a line; group 1, where there is one, is the rank.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank: ?(\d+)\]:?\s?",  # Lightning
        r"\[rank(\d+)\]:(?:\[[EWI]\d{3,4}[^\]]*\])?\s?",  # torch.distributed
        r"\[(?:default|trainer|worker)?(\d+)\]:\s?",  # torchrun --tee, Intel MPI -l
        r"\[\d+,(\d+)\]<std(?:out|err)>:\s?",  # Open MPI --tag-output
        r"\[(?:pod|container)/[^\]\s]+\]\s?",  # kubectl logs --prefix
        r"\((?:[\w.:]+ )*(?:rank=(\d+) )?pid=\d+(?:, ip=[\d.]+)?\)\s?",  # Ray, vLLM
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] ?",  # vLLM
        r"[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+:\d+\] ",  # glog
        r"(\d{1,5}): ",  # srun --label
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s+",  # timestamps
        r"\[\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]\s*",
        r"\[\s*\d{1,8}\.\d{6}\]\s",  # the kernel's ring buffer
    )
)
_RANK_INSIDE = re.compile(r"\[[Rr]ank[ :]{0,2}(\d+)\]|\bRank (\d+)\]")


def clean(raw: bytes) -> str:
    """A line without escapes and control characters; broken UTF-8 becomes U+FFFD."""
    text = raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\t", "    "))
    return text.rstrip()


def unprefixed(text: str) -> tuple[int | None, str]:
    """A line's rank, where a prefix tells it, and the line without its prefixes."""
    rank: int | None = None
    for _ in range(4):
        for pattern in _PREFIXES:
            found = pattern.match(text)
            if found:
                if pattern.groups and found.group(1) is not None:
                    rank = int(found.group(1))
                text = text[found.end() :]
                break
        else:
            break
    if rank is None:
        inside = _RANK_INSIDE.search(text[:200])
        if inside:
            rank = int(inside.group(1) or inside.group(2))
    return rank, text


# A line that its writer takes for no error: logging's, glog's, Ray's, vLLM's or NeMo's level, or Python's warnings.
_CALM = re.compile(
    r"^.{0,120}?(?:[\[(|:\s]|^)(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|Warning|debug|info|warn(?:ing)?)[\])|:]?(?:[\s:]|$)"
    r"|\b\w*Warning: |\[\w+ [IWD] \d{4}-|(?:^|[\s\]:])[IW]\d{3,4} \d\d:\d\d:\d\d"
)
_SEVERE = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|Error:|Exception:)")


def calm(text: str) -> bool:
    """Whether a line says of itself that it is a warning or less.

    Args:
        text: The line, clean.
    """
    return _CALM.search(text[:200]) is not None and _SEVERE.search(text[:200]) is None


def shorten(text: str, limit: int = 300) -> str:
    """At most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


# What follows a word that only counts or names something: "killed: 0", "found nan: False", "missing ranks: []".
_NONE_AFTER = re.compile(
    r"(?!.{0,30}\b(?:rank|gpu|device|worker|node|task|pid|id|index|code|line|status|host|cuda|stage|errno)\b)"
    r"[\w\s\"'()/*-]{0,30}[:=]\s{0,4}[\"']?"
    r"(?:0(?:\.0+)?(?![\w.:/\]-])|\[\]|(?:no|none|never|null|false|off|disabled|unlimited)\s*(?:$|[,;|)}\"']))",
    re.IGNORECASE,
)
_ZERO = re.compile(r"\s{1,3}0\s*(?:$|[,;|)])")
_NUMBERED = re.compile(r"(?:rank|gpu|device|worker|node|link|cuda|id|code|status|error|failure)$", re.IGNORECASE)
_NONE_BEFORE = re.compile(r"(?:^|[,;|(])\s*(?:0|no|zero)\s+(?:\w+\s+){0,3}$", re.IGNORECASE)
# An option or a field: one identifier with underscores or hyphens, and one word or number as its value.
_VALUE = re.compile(r"\s{0,2}[:=]\s{0,2}[\"']?[\w.+~-]*[\"']?\s*(?:$|[,;|})\]#]|[\w.-]+[:=])")
_ASSIGNED = re.compile(r"=[\"']?[\w.+~-]*")
_NAME = re.compile(r"[\w-]")
_RAISED = re.compile(r"(?:^|[\]:|] )[\w.]*(?:Error|Exception): \S+$")
_IDENTIFIER = re.compile(r"-{0,2}\w+(?:[_-]\w+)+")


def names_nothing(text: str, begin: int, end: int) -> bool:
    """Whether words of a line only count something that has not happened, or name an option.

    Args:
        text: The line, clean.
        begin: Where the words begin in it.
        end: Where they end.
    """
    if _RAISED.search(text):
        return False
    after = text[end : end + 80]
    while end < len(text) and _NAME.match(text, end):
        end += 1
    while begin and _NAME.match(text, begin - 1):
        begin -= 1
    name = text[begin:end]
    if _IDENTIFIER.fullmatch(name):
        pattern = _VALUE if name == name.lower() else _ASSIGNED
        if pattern.match(text, end):
            return True
    if _ZERO.match(after) and not _NUMBERED.search(name):
        return True
    return _NONE_AFTER.match(after) is not None or _NONE_BEFORE.search(text[max(begin - 60, 0) : begin]) is not None
