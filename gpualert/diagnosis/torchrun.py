"""torchrun's table of failures: which rank it saw fail first.

Source: PyTorch, ``torch/distributed/elastic/multiprocessing/errors``: the table ends in the section ``Root Cause (first
observed failure)``; the first entry under ``Failures`` is mostly a rank that torchrun ended itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpualert.diagnosis.reader import lines_from

if TYPE_CHECKING:
    from typing import BinaryIO

SECTION = "Root Cause (first observed failure)"
SECTION_BYTES = 4096
_RANK = re.compile(r"\brank\s*: (\d+) \(local_rank")


def first_rank(log: BinaryIO, offset: int) -> int | None:
    """The rank that the table names as the first to fail.

    Args:
        log: The log.
        offset: Where the section's heading starts, in bytes.

    Returns:
        None when the table is cut off before it.
    """
    for _, text in lines_from(log, offset, SECTION_BYTES):
        found = _RANK.search(text)
        if found:
            return int(found[1])
    return None
