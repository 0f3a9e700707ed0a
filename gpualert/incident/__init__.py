"""From the ends of all ranks of a job to one incident: which rank broke first, where, and why (pure functions)."""

from gpualert.incident.model import Finding, MachineFact, Part, Rank, Verdict
from gpualert.incident.verdict import judge

__all__ = ["Finding", "MachineFact", "Part", "Rank", "Verdict", "judge"]
