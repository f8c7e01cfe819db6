"""Whether algorithms and environments keep the promises of a run; the twin of `rlrun plugin test`."""

from rlrun.conformance.kit import plugin_test
from rlrun.conformance.verdicts import Examined, Report, Verdict

__all__ = ["Examined", "Report", "Verdict", "plugin_test"]
