"""What the facts of a run's end say by themselves."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from gpualert.diagnosis import memory
from gpualert.diagnosis.amounts import span
from gpualert.diagnosis.model import Diagnosis, Evidence, Facts

if TYPE_CHECKING:
    from gpualert.diagnosis.machine import Hang
    from gpualert.diagnosis.rulebook import Rulebook

CERTAIN = 0.95
TIMEOUT_CODE = 124
ABORTS_OUTRANKED_FROM = 0.7
STOP_WINDOW_S = 600.0
"""A stop signal that came longer than this before the end was survived."""
NEAR_LIMIT = 0.88
"""Memory at this share of its limit, just before a supervisor died with its job, points to the out-of-memory killer."""

_BOTH = "the supervisor was killed, and the job with it or after it"
"""What is known when a supervisor has left no exit status: the job may have lived on for a while without it."""

_STOPPED = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted", signal.SIGHUP: "terminated"}
_STOPPED |= {signal.SIGQUIT: "terminated", signal.SIGUSR1: "terminated", signal.SIGUSR2: "terminated"}
_STOPPED |= {signal.SIGXCPU: "terminated", signal.SIGALRM: "hang"}
_CHECKPOINT = (signal.SIGUSR1, signal.SIGUSR2)
_BROKEN = {signal.SIGSEGV: "segfault", signal.SIGBUS: "segfault", signal.SIGABRT: "native_abort"}
_BROKEN |= {signal.SIGILL: "native_abort", signal.SIGFPE: "native_abort", signal.SIGTRAP: "native_abort"}
_BROKEN |= {signal.SIGSYS: "native_abort"}

_MADE_BY_STOP = frozenset(
    {"traceback", "runtime_error", "peer_lost", "nccl_timeout", "nccl_error", "rendezvous_timeout", "dataloader_worker",
     "network_error", "native_abort", "terminated", "interrupted"}
)  # fmt: skip
"""Classes whose text a stop signal brings about by itself."""


def normalised(facts: Facts) -> Facts:
    """Facts with a shell's 128+N told as what it is, signal N, and kills counted that only the kernel tells of."""
    code = facts.exit_code
    if facts.machine is not None and not facts.counted and not facts.oom_kills:
        facts = replace(facts, oom_kills=memory.kills_told(facts.machine))
    if facts.signal is None and code is not None and 128 < code < 128 + 65:
        return replace(facts, signal=code - 128)
    return facts


def succeeded(facts: Facts) -> bool:
    """Whether the run ended with exit code 0."""
    return facts.exit_code == 0 and facts.signal is None and not facts.interrupted


def name_of(number: int) -> str:
    """``SIGTERM`` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stop_signal(facts: Facts) -> int | None:
    """The signal from outside that ended the job; None where none did, or it came too long before the end.

    SIGUSR1 and SIGUSR2 mostly ask for a checkpoint; they count only for a job that died of them.
    """
    before = facts.stopped_before_end_s
    if before is not None and before > STOP_WINDOW_S:
        return None
    asked = (number for number in facts.forwarded if number in _STOPPED)
    return next((number for number in asked if number not in _CHECKPOINT or number == facts.signal), None)


def explained_by_stop(facts: Facts) -> frozenset[str]:
    """The classes that are only consequences, given a stop signal from outside or our own limit."""
    ended = facts.timed_out or (facts.hang is not None and facts.hang.terminated)
    return _MADE_BY_STOP if ended or stop_signal(facts) is not None else frozenset()


def answer(
    rules: Rulebook, cls: str, confidence: float, summary: str, *evidence: str, advice: tuple[str, ...] = ()
) -> Diagnosis:
    """A diagnosis from facts alone.

    Args:
        rules: Where the class's family and advice come from.
        cls: The class.
        confidence: How sure this is, 0..1.
        summary: One line for a person.
        evidence: The facts, in one line each.
        advice: What to do before the class's advice.
    """
    known = rules.classes[cls]
    return Diagnosis(
        cls,
        known.family,
        confidence,
        summary,
        None,
        tuple(Evidence(None, text, cls, "root") for text in evidence),
        (*advice, *known.advice),
        known.retryable,
        known.node_suspect,
    )


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB"


def from_facts(facts: Facts, rules: Rulebook) -> Diagnosis | None:
    """What the facts say without the log; None when they say nothing.

    Args:
        facts: The facts, normalised.
        rules: Where a class's advice comes from.
    """
    if facts.launch_error is not None:
        cls = "not_executable" if facts.exit_code == 126 else "command_not_found"
        return answer(rules, cls, 0.99, facts.launch_error, "the command could not be executed")
    if facts.interrupted:
        return _lost(facts, rules)
    if facts.timed_out:
        limit = f"{facts.timeout_s:g} s" if facts.timeout_s is not None else "its limit"
        return answer(rules, "terminated", 0.97, f"ended by gpualert's own --timeout after {limit}", "--timeout")
    if facts.oom_kills and (facts.signal == signal.SIGKILL or not succeeded(facts)):
        limit = f" (limit {_gib(facts.memory_limit)})" if facts.memory_limit else ""
        count = f"{facts.oom_kills} process{'es' if facts.oom_kills > 1 else ''}"
        text = f"the out-of-memory killer ended {count} of this run{limit}"
        return answer(rules, "oom_killer", 0.97, text, f"control group: oom_kill {facts.oom_kills}")
    if facts.hang is not None and facts.hang.terminated:
        return _hung(facts.hang, rules, 0.95, "gpualert ended it (hang.action = terminate)")
    return _by_signal(facts, rules)


def _hung(hang: Hang, rules: Rulebook, confidence: float, end: str) -> Diagnosis:
    """A run that hung until something ended it."""
    why = f": {hang.why}" if hang.why else ""
    text = f"it hung for {span(hang.silent_s)}{why}; {end}"
    return answer(rules, "hang", confidence, text, f"no sign of life for {span(hang.silent_s)}{why}", end)


def outranked_from(found: Diagnosis | None) -> float:
    """From which level on text says more than these facts: an abort mostly follows what the log names.

    Args:
        found: What the facts say.
    """
    return ABORTS_OUTRANKED_FROM if found is not None and found.cls == "native_abort" else 2.0


def _by_signal(facts: Facts, rules: Rulebook) -> Diagnosis | None:
    stop = stop_signal(facts)
    if stop is not None and not succeeded(facts):
        cls = _STOPPED[signal.Signals(stop)]
        late = f", then {name_of(facts.signal)}" if facts.signal not in (None, stop) else ""
        if facts.hang is not None:
            return _hung(facts.hang, rules, 0.8, f"it was still hanging when {name_of(stop)} came from outside{late}")
        text = f"stopped from outside by {name_of(stop)}{late}"
        return answer(rules, "terminated" if cls == "hang" else cls, 0.93, text, f"{name_of(stop)} was forwarded")
    if facts.signal is None:
        return None
    if facts.signal == signal.SIGKILL:
        return None
    number = signal.Signals(facts.signal) if facts.signal in signal.Signals.__members__.values() else None
    if number in _STOPPED:
        return answer(rules, _STOPPED[number], 0.85, f"ended by {number.name}", f"wait status: {number.name}")
    if number == signal.SIGBUS and memory.shared_full(facts):
        text = f"crashed with SIGBUS, and shared memory was full: {memory.shared_words(facts)}"
        return answer(rules, "shm_exhausted", 0.93, text, memory.shared_words(facts), "wait status: SIGBUS")
    if number in _BROKEN:
        return answer(rules, _BROKEN[number], 0.8, f"crashed with {number.name}", f"wait status: {number.name}")
    return None


def _lost(facts: Facts, rules: Rulebook) -> Diagnosis:
    """The supervisor died, and the job with it or after it."""
    if facts.oom_kills:
        text = f"{_BOTH}; the control group counts a process ended by the out-of-memory killer"
        return answer(rules, "oom_killer", 0.95, text, f"control group: oom_kill {facts.oom_kills}")
    stop = stop_signal(facts)
    if stop is not None:
        text = f"stopped from outside by {name_of(stop)}, then {_BOTH}"
        return answer(rules, "terminated", 0.95, text, f"{name_of(stop)} was forwarded")
    last, limit = facts.memory_last, facts.memory_limit
    if last is not None and limit and last >= NEAR_LIMIT * limit:
        text = f"{_BOTH}, with {_gib(last)} of {_gib(limit)} memory in use"
        return answer(rules, "oom_killer", 0.95, text, "the last memory sample was near the limit")
    if (words := memory.pressing(facts)) is not None:
        return answer(rules, "oom_killer", 0.75, f"{_BOTH}, under memory pressure: {words}", words)
    left = f"; last memory sample {_gib(last)}" + (f" of {_gib(limit)}" if limit else "") if last is not None else ""
    text = f"{_BOTH}, and nothing says why{left}"
    return answer(rules, "lost", 0.95, text)


def unexplained(facts: Facts, rules: Rulebook) -> Diagnosis:
    """When neither facts nor log name a cause."""
    if facts.signal == signal.SIGKILL and (words := memory.pressing(facts)) is not None:
        text = f"ended by SIGKILL from outside under memory pressure: {words}"
        return answer(rules, "oom_killer", 0.7, text, "wait status: SIGKILL", words)
    if facts.hang is not None:
        how = f"exit code {facts.exit_code}" if facts.signal is None else name_of(facts.signal)
        return _hung(facts.hang, rules, 0.65, f"it was still hanging when it ended with {how}")
    if facts.signal == signal.SIGKILL:
        text = (
            "ended by SIGKILL from outside, and nothing shows memory pressure: "
            "a grace period that was over, a hard limit, or a person"
        )
        return answer(rules, "unknown", 0.5, text, "wait status: SIGKILL")
    if facts.exit_code == TIMEOUT_CODE and facts.signal is None:
        text = "exit code 124, as timeout(1) gives when its limit was reached"
        return answer(rules, "terminated", 0.6, text, "exit code 124")
    how = f"exit code {facts.exit_code}" if facts.exit_code is not None else "no exit status"
    if facts.signal is not None:
        how = name_of(facts.signal)
    return answer(rules, "unknown", 0.3, f"failed with {how}, and the log does not say why")


def success(facts: Facts, rules: Rulebook) -> Diagnosis:
    """Exit code 0."""
    found = answer(rules, "success", 0.98, "the command ended without error")
    if facts.oom_kills:
        warning = f"the out-of-memory killer ended {facts.oom_kills} of its processes, but the exit code is 0"
        return replace(found, confidence=0.7, warnings=(warning,))
    if facts.hang is not None and facts.hang.terminated:
        warning = f"it hung, and gpualert ended it; the exit code is 0 all the same ({facts.hang.why or 'no progress'})"
        return replace(found, confidence=0.7, warnings=(warning,))
    return found
