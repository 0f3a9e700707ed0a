"""Pauses that grow: how long to wait before trying a struggling server again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Doubling pauses with jitter, so that many clients do not come back in step.

    Attributes:
        base_s: The first pause in seconds, before jitter.
        cap_s: No pause is longer, in seconds.
        failures: How many pauses have been taken since the last reset.
    """

    base_s: float = 0.5
    cap_s: float = 30.0
    failures: int = field(default=0, init=False)

    def next(self) -> float:
        """The next pause in seconds, between half and all of what its turn allows."""
        whole = min(self.base_s * float(2 ** min(self.failures, 30)), self.cap_s)
        self.failures += 1
        return whole * random.uniform(0.5, 1.0)  # noqa: S311  (spread, not a secret)

    def reset(self) -> None:
        """Things work again: the next pause is a short one."""
        self.failures = 0
