"""rlrun: an experiment is YAML, a result is one command."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlrun.core.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from rlrun.analysis.doctor import doctor as doctor
    from rlrun.analysis.report import report as report
    from rlrun.analysis.why import why as why
    from rlrun.commands.checkpoints import checkpoints as checkpoints
    from rlrun.commands.diff import diff as diff
    from rlrun.commands.evaluate import evaluate as evaluate
    from rlrun.commands.load import Policy as Policy
    from rlrun.commands.load import load as load
    from rlrun.commands.ls import ls as ls
    from rlrun.commands.play import play as play
    from rlrun.commands.query import query as query
    from rlrun.commands.resume import resume as resume
    from rlrun.commands.schema import schema as schema
    from rlrun.commands.train import Result as Result
    from rlrun.commands.train import train as train
    from rlrun.commands.upload import upload as upload
    from rlrun.core.clock import timed as timed
    from rlrun.devtools.init import init as init
    from rlrun.export.making import export_onnx as export_onnx
    from rlrun.runs.trust import trust as trust
    from rlrun.training.metrics import Histogram as Histogram
    from rlrun.training.metrics import Image as Image
    from rlrun.training.metrics import Text as Text
    from rlrun.training.metrics import Video as Video

_HOMES = {
    "Histogram": "training.metrics",
    "Image": "training.metrics",
    "Policy": "commands.load",
    "Result": "commands.train",
    "Text": "training.metrics",
    "Video": "training.metrics",
    "checkpoints": "commands.checkpoints",
    "diff": "commands.diff",
    "doctor": "analysis.doctor",
    "evaluate": "commands.evaluate",
    "export_onnx": "export.making",
    "load": "commands.load",
    "ls": "commands.ls",
    "play": "commands.play",
    "init": "devtools.init",
    "query": "commands.query",
    "report": "analysis.report",
    "resume": "commands.resume",
    "schema": "commands.schema",
    "timed": "core.clock",
    "train": "commands.train",
    "trust": "runs.trust",
    "upload": "commands.upload",
    "why": "analysis.why",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import the Python equivalents of the commands on first use: `rlrun --help` must not load torch."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"rlrun.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'rlrun' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
