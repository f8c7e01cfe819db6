"""rlrun: an experiment is YAML, a result is one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlrun.evaluation import evaluate as evaluate
    from rlrun.experiment import Result as Result
    from rlrun.experiment import train as train

__all__ = ["Result", "evaluate", "train"]


def __getattr__(name: str) -> Any:
    """Import the Python twins of the commands on first use: `rlrun --help` must not load torch."""
    if name in __all__:
        from rlrun import evaluation, experiment

        return evaluation.evaluate if name == "evaluate" else getattr(experiment, name)
    raise AttributeError(f"module 'rlrun' has no attribute '{name}'")
