"""From a log and the facts of a run to the class of its failure (pure functions over plain data)."""

from gpualert.diagnosis.engine import diagnose
from gpualert.diagnosis.model import Diagnosis, Evidence, Facts
from gpualert.diagnosis.rulebook import Rulebook, RuleError

__all__ = ["Diagnosis", "Evidence", "Facts", "RuleError", "Rulebook", "diagnose"]
