"""The commands as functions of Python: train, resume, evaluate, play, fork, check, diff, ls, checkpoints."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlrun.commands import check as check
    from rlrun.commands import checkpoints as checkpoints
    from rlrun.commands import evaluate as evaluate
    from rlrun.commands import expect as expect
    from rlrun.commands import ls as ls
    from rlrun.commands import resume as resume
    from rlrun.commands import train as train
    from rlrun.commands import watch as watch

__all__ = ["check", "checkpoints", "evaluate", "expect", "ls", "resume", "train", "watch"]


def __getattr__(name: str) -> ModuleType:
    """Import a module on first use: `rlrun --help` must not load torch."""
    if name not in __all__:
        raise AttributeError(f"module 'rlrun.commands' has no attribute '{name}'")
    return importlib.import_module(f"rlrun.commands.{name}")
