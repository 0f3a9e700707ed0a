"""Answers for ``gpualert classify`` and ``gpualert explain``."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, BinaryIO

from gpualert.diagnosis.engine import diagnose
from gpualert.diagnosis.model import Facts
from gpualert.diagnosis.opening import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpualert.diagnosis.rulebook import Rulebook


class BatchError(Exception):
    """A line of a batch is wrong; the message names it."""


def classify(source: str | BinaryIO, facts: Facts, rules: Rulebook, *, name: str) -> dict[str, Any]:
    """The answer for one log.

    Args:
        source: A path, also of a pipe or a compressed file, or a stream.
        facts: What is known apart from the log.
        rules: Classes and rules.
        name: What the answer calls it.

    Raises:
        OSError: The log cannot be read.
    """
    log = opened(source)
    try:
        return {"path": name, **diagnose(log, facts, rules=rules).as_dict()}
    finally:
        if log is not source:
            log.close()


def _status(row: dict[str, Any], key: str, number: int) -> int | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 256:
        raise BatchError(f"line {number}: {key} must be a number from 0 to 255, or null")
    return value


def batch(lines: Iterable[str], rules: Rulebook) -> Iterator[dict[str, Any]]:
    """The answers for a batch, in its order.

    Args:
        lines: JSON objects ``{"id", "log", "exit_code", "signal"}``, one a line; empty lines are passed over.
        rules: Classes and rules.

    Raises:
        BatchError: A line is no such object.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BatchError(f"line {number}: not JSON ({error})") from None
        except RecursionError:
            raise BatchError(f"line {number}: not JSON that anybody means (nested too deeply)") from None
        if not isinstance(row, dict) or not isinstance(row.get("log"), str):
            raise BatchError(f'line {number}: must be an object with "id" and "log"')
        facts = Facts(_status(row, "exit_code", number), _status(row, "signal", number))
        answer = diagnose(io.BytesIO(row["log"].encode("utf-8", "replace")), facts, rules=rules)
        yield {"id": row.get("id"), **answer.as_dict()}


def markdown(rules: Rulebook) -> str:
    """All classes as a page of documentation.

    Args:
        rules: Classes and rules.
    """
    lines = [
        "# Failure classes",
        "",
        "Made by `gpualert explain --format markdown`; the data is in `gpualert/diagnosis`.",
    ]
    family = ""
    for cls in rules.classes.values():
        if cls.family != family:
            family = cls.family
            lines += ["", f"## {family}"]
        marks = [
            word
            for word, holds in (
                ("a symptom", cls.symptom),
                ("retry", cls.retryable),
                ("suspect the node", cls.node_suspect),
            )
            if holds
        ]
        lines += ["", f"### {cls.name}" + (f" ({', '.join(marks)})" if marks else ""), "", cls.meaning]
        if cls.advice:
            lines += ["", *(f"- {advice}" for advice in cls.advice)]
        examples = [rule.positive[0] for rule in rules.rules if rule.cls == cls.name]
        if examples:
            lines += ["", "Recognised by lines such as", "", *(f"    {example[:150]}" for example in examples[:4])]
    return "\n".join(lines)


def explain(name: str, rules: Rulebook) -> str:
    """What a class means, what to do, and how it is recognised.

    Args:
        name: The class.
        rules: Classes and rules.

    Raises:
        KeyError: There is no such class.
    """
    cls = rules.classes[name]
    lines = [f"{cls.name} ({cls.family})", f"  {cls.meaning}"]
    notes = [
        text
        for text, holds in (
            ("a symptom: yields to a cause elsewhere in the log", cls.symptom),
            ("a retry may help", cls.retryable),
            ("suspect the node", cls.node_suspect),
        )
        if holds
    ]
    if notes:
        lines.append(f"  {'; '.join(notes)}")
    if cls.advice:
        lines += ["", "what to do"] + [f"  - {advice}" for advice in cls.advice]
    mine = [rule for rule in rules.rules if rule.cls == name]
    if mine:
        lines += ["", "recognised by lines such as"]
        lines += [f"  {example[:150]}" for rule in mine for example in rule.positive[:3]]
    else:
        lines += ["", "recognised by facts alone (wait status, counters, signals), not by text"]
    return "\n".join(lines)
