"""What a person names: a job, an array, some of its tasks, or a heterogeneous job."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpualert.slurm import hostlist

_FORM = re.compile(r"(\d{1,10})(?:_(\d{1,7}|\[[^\]]+\])|\+\d{1,4})?")


@dataclass(frozen=True, slots=True)
class JobId:
    """A job as it was named.

    Attributes:
        number: Its number; the first one of a heterogeneous job, the one of the array of a task.
        tasks: Which tasks of the array; None for all, and for jobs that are none.
        text: What it is called, in a directory's name too: ``123``, ``123_4``, ``123_0-9``.
    """

    number: int
    tasks: frozenset[int] | None
    text: str


def parse(text: str) -> JobId:
    """A job's id as Slurm's commands take and print it.

    The components of a heterogeneous job (``123+1``) are one job: whichever is named, all are meant.

    Args:
        text: ``123``, ``123_4``, ``123_[0-9]`` or ``123+1``.

    Raises:
        ValueError: It is none; says what would be.
    """
    found = _FORM.fullmatch(text.strip())
    if found is not None:
        number, tasks = int(found[1]), found[2]
        if not tasks:
            return JobId(number, None, str(number))
        try:
            return JobId(number, hostlist.numbers(tasks), f"{number}_{tasks.strip('[]').partition('%')[0]}")
        except ValueError:
            pass
    raise ValueError(f"{text!r} is no job id: 123, an array's 123_4 or 123_[0-9], a heterogeneous job's 123+0")
