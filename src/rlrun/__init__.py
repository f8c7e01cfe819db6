"""rlrun: an experiment is YAML, a result is one command."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlrun.conformance import plugin_test as plugin_test
    from rlrun.contrast import diff as diff
    from rlrun.diagnosis import why as why
    from rlrun.evaluation import evaluate as evaluate
    from rlrun.experiment import Result as Result
    from rlrun.experiment import train as train
    from rlrun.export.making import export_onnx as export_onnx
    from rlrun.health import doctor as doctor
    from rlrun.inspection import checkpoints as checkpoints
    from rlrun.lineup import ls as ls
    from rlrun.playing import play as play
    from rlrun.reporting.making import report as report
    from rlrun.resuming import resume as resume
    from rlrun.scaffold import init as init

_HOMES = {
    "Result": "experiment",
    "checkpoints": "inspection",
    "diff": "contrast",
    "doctor": "health",
    "evaluate": "evaluation",
    "export_onnx": "export.making",
    "ls": "lineup",
    "play": "playing",
    "init": "scaffold",
    "plugin_test": "conformance",
    "report": "reporting.making",
    "resume": "resuming",
    "train": "experiment",
    "why": "diagnosis",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import the Python twins of the commands on first use: `rlrun --help` must not load torch."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"rlrun.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'rlrun' has no attribute '{name}'")
