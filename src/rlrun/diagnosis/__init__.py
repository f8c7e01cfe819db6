"""Why a run does not learn, from its files; the twin of `rlrun why`."""

from rlrun.diagnosis.making import Diagnosis, Finding, why
from rlrun.diagnosis.table import RULES, Rule

__all__ = ["RULES", "Diagnosis", "Finding", "Rule", "why"]
