"""Lines of output as a person reads them: without escapes, and with the rank that printed them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_MAX = 2000
"""Characters of a line that are looked at."""
RANK_MAX = 10_000_000

# ECMA-48 control sequences; what else a terminal would act on says nothing here.
_ESCAPES = re.compile(r"\x1b\[[0-9;:?<=>]{0,40}[ -/]{0,4}[@-~]|\x1b[@-Z\\-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PREFIX = re.compile(
    r"\[rank: ?(\d{1,8})\]:?\s?"  # Lightning
    r"|\[rank(\d{1,8})\]:\s?"  # torch.distributed
    r"|\[(?:default|trainer|worker)?(\d{1,8})\]:\s?"  # torchrun --tee, Intel MPI -l
    r"|\[\d{1,8},(\d{1,8})\]<std(?:out|err)>:\s?"  # Open MPI --tag-output
    r"|\((?:[\w.:]{1,60} ){0,3}(?:rank=(\d{1,8}),? )?pid=\d{1,10}(?:, ip=[\d.]{1,40})?\)\s?"  # Ray
    r"|(\d{1,5}): "  # srun --label
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ,]{0,2}\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?[\s:]{0,3}"
)
_INSIDE = re.compile(r"\brank[ :=]{0,2}(\d{1,8})\b")
_NOT_GLOBAL = re.compile(r"local[ _]?$")


def backwards(text: str) -> Iterator[str]:
    """The lines of a text, the last one first; a carriage return ends a line too, as progress bars use it.

    Args:
        text: The text.

    Yields:
        Each line that is not blank, as it is, at most its first ``LINE_MAX`` characters.
    """
    for line in reversed(text.replace("\r", "\n").split("\n")):
        if len(line) > 2:
            yield line[:LINE_MAX]


def clean(line: str) -> str:
    """A line without what a terminal would act on.

    Args:
        line: The line.
    """
    if line.isprintable():
        return line
    return _CONTROLS.sub("", _ESCAPES.sub("", line).replace("\t", "    "))


def ranked(line: str) -> tuple[int | None, str]:
    """Which rank printed a line, where it says so, and the line without what launchers and loggers put before it.

    Args:
        line: The line, clean.
    """
    rank = None
    line = line.lstrip()
    for _ in range(4):
        found = _PREFIX.match(line)
        if found is None:
            break
        told = next((group for group in found.groups() if group), None)
        rank = int(told) if told is not None else rank
        line = line[found.end() :].lstrip()
    if rank is None and "rank" in (head := line[:160].lower()):
        for found in _INSIDE.finditer(head):
            if not _NOT_GLOBAL.search(head[: found.start()]):
                rank = int(found[1])
                break
    return (rank if rank is None or rank <= RANK_MAX else None), line
