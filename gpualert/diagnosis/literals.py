"""The literal text that every match of a pattern must contain, so that one quick scan finds all candidate lines."""

from __future__ import annotations

from functools import lru_cache
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

MIN_LENGTH = 3


@lru_cache(maxsize=4096)
def required(pattern: str) -> list[str] | None:
    """Literals of which every match of ``pattern`` contains at least one.

    Args:
        pattern: A regular expression in the syntax that Python's ``re`` and RE2 share.

    Returns:
        The literals; None when there is no such set of useful ones.

    Raises:
        re.error: The pattern is malformed.
    """
    return _of_sequence(list(parser.parse(pattern)))


def _of_sequence(items: list[Any]) -> list[str] | None:
    """The best set among the parts of a sequence: each part must match, so any part's set will do."""
    options: list[list[str]] = []
    run = ""
    for operation, argument in [*items, (None, None)]:
        if operation is constants.LITERAL:
            run += chr(argument)
            continue
        if run:
            options.append([run])
            run = ""
        inner = _of_item(operation, argument)
        if inner:
            options.append(inner)
    options = [option for option in options if min(map(len, option)) >= MIN_LENGTH]
    return max(options, key=lambda option: min(map(len, option)) - 2 * len(option), default=None)


def _of_item(operation: Any, argument: Any) -> list[str] | None:
    if operation is constants.SUBPATTERN:
        return _of_sequence(list(argument[3]))
    if operation is constants.BRANCH:
        found: list[str] = []
        for branch in argument[1]:
            inner = _of_sequence(list(branch))
            if inner is None:
                return None
            found += inner
        return found
    if operation in (constants.MAX_REPEAT, constants.MIN_REPEAT) and argument[0] > 0:
        return _of_sequence(list(argument[2]))
    return None
