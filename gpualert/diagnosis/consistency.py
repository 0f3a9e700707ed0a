"""Which text an end leaves room for: a process that a signal ended was not ended by a file that was missing.

One table: a kind of end, the text that it rules out, and the text that it weakens, which then counts only where it
ended the run by itself: inside its last, uncaught traceback.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpualert.diagnosis import memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.diagnosis.model import Facts
    from gpualert.diagnosis.rulebook import Rule

_ABORTS = (signal.SIGABRT, signal.SIGTRAP)
"""An abort mostly follows what the log names (an uncaught C++ exception, a failed check), so it weakens nothing."""
_SAID_WITHOUT_BREAKING = frozenset(
    {"file_not_found", "permission", "missing_module", "checkpoint_error", "data_error", "network_error", "auth_error",
     "config_error", "syntax_error", "shape_mismatch", "dtype_mismatch", "device_mismatch", "nan_loss", "div_zero",
     "assertion", "runtime_error", "traceback"}
)  # fmt: skip
"""Classes of what a program does wrong by itself: each ends it by an exception and an exit code, never by a signal."""
_OOM_BY_KERNEL = frozenset({"oomk.kernel", "oomk.shell"})
"""Rules that quote the kernel; Slurm, Ray and Kubernetes also tell of kills elsewhere, which no counter here knows."""


@dataclass(frozen=True, slots=True)
class End:
    """A kind of end.

    Attributes:
        name: What it is.
        holds: Whether a run ended so.
        rules_out: Classes, or ids of rules, of which no text counts.
        weakens: Classes, or ids of rules, of which only text inside the last, uncaught traceback counts.
    """

    name: str
    holds: Callable[[Facts], bool]
    rules_out: frozenset[str] = frozenset()
    weakens: frozenset[str] = frozenset()


ENDS = (
    End("a signal", lambda f: f.signal is not None, rules_out=frozenset({"command_not_found", "not_executable"})),
    End(
        "a signal that is no abort",
        lambda f: f.signal is not None and f.signal not in _ABORTS,
        weakens=_SAID_WITHOUT_BREAKING,
    ),
    End(
        "a crash",
        lambda f: f.signal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS),
        weakens=frozenset({"interrupted"}),
    ),
    End(
        "an exit code that no shell gives for a missing command",
        lambda f: f.exit_code not in (None, 127, 1, 2),
        rules_out=frozenset({"command_not_found"}),
    ),
    End(
        "an exit code that no shell gives for a file it cannot execute",
        lambda f: f.exit_code not in (None, 126, 127, 1, 2),
        rules_out=frozenset({"not_executable"}),
    ),
    End("shared memory never half full", memory.shared_roomy, rules_out=frozenset({"shm.bus"})),
    End("no out-of-memory kill, by the counters", lambda f: f.counted and not f.oom_kills, rules_out=_OOM_BY_KERNEL),
    End(
        "no interrupt, since gpualert would have passed it on",
        lambda f: f.supervised and signal.SIGINT not in (*f.forwarded, f.signal),
        weakens=frozenset({"interrupted"}),
    ),
)


def impossible(rule: Rule, facts: Facts, *, uncaught: bool) -> bool:
    """Whether a run that ended so cannot have ended because of what a rule's match says.

    Args:
        rule: The rule.
        facts: The facts, normalised.
        uncaught: The match is inside the last traceback of its rank, after which nothing went on.
    """
    names = {rule.id, rule.cls}
    ends = [end for end in ENDS if end.holds(facts)]
    return any(names & end.rules_out for end in ends) or (not uncaught and any(names & end.weakens for end in ends))
