"""The join: what log and exit status say, weighed against what was measured beside the run.

Facts outrank text, and causes outrank symptoms: a GPU that fell off the bus is why a collective timed out; it is not
why a module is missing. A sign decides only over what it brings about; beside every other answer it stands as evidence.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpualert.diagnosis import ending, memory, signs
from gpualert.diagnosis.amounts import span
from gpualert.diagnosis.machine import GPU_HARDWARE
from gpualert.diagnosis.model import Diagnosis, Evidence, Facts, Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.diagnosis.signs import Sign

FACTS_MAX, CONTEXT_MAX, WARNINGS_MAX = 4, 2, 3
"""How many signs stand beside an answer, how many of them about the node alone, how many warn of a success."""
CONFIRMED = 0.98
UNCONFIRMED = 0.75
"""How sure a driver's word in the log is that the driver itself did not give to us, who listened."""
_BY_PROGRAM = frozenset({"cuda_illegal_access", "cuda_device_assert", "cuda_runtime", "gpu_library"})
"""Classes that an Xid of the application's confirms."""
_DRIVERS_WORD = re.compile(r"NVRM: Xid")
_SAID = ("hardware", "counter", "kernel")


def joined(found: Diagnosis, facts: Facts, rules: Rulebook) -> Diagnosis:
    """A diagnosis of log and exit status, with what was measured.

    Args:
        found: That diagnosis.
        facts: The facts, normalised.
        rules: Classes and rules.

    Returns:
        The same where nothing was measured, or nothing of it matters.
    """
    if (why := memory.full_instead(found, facts)) is not None:
        instead = ending.answer(rules, "shm_exhausted", 0.8, why, memory.shared_words(facts))
        found = replace(instead, evidence=(*instead.evidence, *_followed(found)), root=None)
    if facts.machine is not None:
        seen = signs.of(facts.machine, rules)
        found = _warned(found, seen) if found.cls == "success" else _weighed(found, seen, facts, rules)
        found = replace(found, broken=signs.broken(seen))
    if facts.hang is not None and found.cls not in ("hang", "success"):
        why = f": {facts.hang.why}" if facts.hang.why else ""
        found = _beside(
            found, f"no sign of life for {span(facts.hang.silent_s)} before the end{why}", "hang", "cascade"
        )
    return memory.with_numbers(found, facts)


def _weighed(found: Diagnosis, seen: Sequence[Sign], facts: Facts, rules: Rulebook) -> Diagnosis:
    same = next((sign for sign in seen if _confirms(sign, found)), None)
    decisive = next((sign for sign in seen if _decides(sign, found, facts)), None)
    if same is not None and (decisive is None or decisive.strength != "hardware" or same.strength == "hardware"):
        found = replace(found, confidence=max(found.confidence, CONFIRMED), at=same.at)
    elif decisive is not None:
        found = _decided(decisive, found, facts, rules)
    elif _unheard(found, facts):
        gpus = f"{facts.machine.gpus} GPU{'s' if facts.machine.gpus > 1 else ''}" if facts.machine else ""
        text = f"the driver reported no Xid on the job's {gpus} while it ran"
        found = _beside(found, text, found.cls, "cascade")
        found = replace(found, confidence=min(found.confidence, UNCONFIRMED))
    return _evidenced(found, seen)


def _confirms(sign: Sign, found: Diagnosis) -> bool:
    if sign.survived:
        return False
    if sign.strength == "application":
        return found.cls in _BY_PROGRAM
    return sign.strength in _SAID and sign.cls == found.cls


def _decides(sign: Sign, found: Diagnosis, facts: Facts) -> bool:
    """Whether a sign is the cause of what log and exit status show."""
    if sign.survived or not sign.over:
        return False
    if ending.stop_signal(facts) is not None and found.cls in ("terminated", "interrupted"):
        return sign.strength == "hardware" and sign.deadly and _before_stop(sign, facts)
    return sign.explains(found.cls, found.root.text if found.root is not None else "")


def _before_stop(sign: Sign, facts: Facts) -> bool:
    """Whether it came before the job was stopped from outside, so that the stop ended what had broken."""
    ended = facts.machine.ended_at if facts.machine is not None else None
    if facts.timed_out or ended is None or sign.at is None or facts.stopped_before_end_s is None:
        return False
    return sign.at < ended - facts.stopped_before_end_s


def _decided(sign: Sign, found: Diagnosis, facts: Facts, rules: Rulebook) -> Diagnosis:
    """The answer that a sign gives; what the log shows becomes what followed."""
    summary = sign.summary
    stop = ending.stop_signal(facts)
    if found.cls in ("terminated", "interrupted") and stop is not None:
        summary += f"; then stopped from outside by {ending.name_of(stop)}"
    elif found.cls == "hang":
        summary += "; then nothing moved any more"
    answer = ending.answer(rules, sign.cls, sign.confidence, summary, sign.text)
    if sign.strength == "application":
        # What a program can bring about is looked for in the program, not in the node.
        advice = rules.classes["cuda_illegal_access"].advice
        answer = replace(answer, suggestions=advice, node_suspect=False)
    if found.cls in ("lost", "terminated", "interrupted"):
        answer = replace(answer, confidence=min(answer.confidence, 0.85))
    return replace(answer, evidence=(*answer.evidence, *_followed(found)), at=sign.at)


def _followed(found: Diagnosis) -> Iterator[Evidence]:
    """What stood for an answer that a fact has taken the place of."""
    for evidence in found.evidence:
        yield replace(evidence, role="cascade")


def _unheard(found: Diagnosis, facts: Facts) -> bool:
    """Whether a driver's word stands in the log that the driver did not give to us, though we listened to its GPUs."""
    if facts.machine is None or not facts.machine.gpus or facts.machine.xids or found.cls not in GPU_HARDWARE:
        return False
    return found.root is not None and _DRIVERS_WORD.search(found.root.text) is not None


def _beside(found: Diagnosis, text: str, cls: str, role: Role) -> Diagnosis:
    return replace(found, evidence=(*found.evidence, Evidence(None, text, cls, role)))


def _evidenced(found: Diagnosis, seen: Sequence[Sign]) -> Diagnosis:
    """An answer with the signs beside it that did not decide."""
    told = {evidence.text for evidence in found.evidence}
    added, context = 0, 0
    for sign in seen:
        about_node = sign.strength == "context"
        if sign.text in told or added >= FACTS_MAX or (about_node and context >= CONTEXT_MAX):
            continue
        role: Role = "confirmation" if _confirms(sign, found) or sign.cls == found.cls else "cascade"
        text = f"{sign.text} (training went on)" if sign.survived else sign.text
        found = _beside(found, text, sign.cls, role)
        added, context = added + 1, context + about_node
    return found


def _warned(found: Diagnosis, seen: Sequence[Sign]) -> Diagnosis:
    """A success that saw something break: the code stays 0."""
    broken = [sign for sign in seen if sign.strength in ("hardware", "counter") and sign.cls != "nvlink_error"]
    broken += [sign for sign in seen if sign.strength == "hardware" and sign.cls == "nvlink_error"]
    broken += [
        sign for sign in seen if sign.strength == "kernel" and sign.cls in ("segfault", "io_error", "oom_killer")
    ]
    texts = [f"{sign.text}, but the exit code is 0" for sign in broken]
    warnings = tuple(dict.fromkeys((*found.warnings, *texts)))[:WARNINGS_MAX]
    return replace(found, warnings=warnings)
