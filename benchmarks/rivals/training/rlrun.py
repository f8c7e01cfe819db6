"""rlrun, by the overrides of a command, which leave out evaluations, checkpoints and logs."""

from __future__ import annotations

from pathlib import Path

import rlrun
from benchmarks.rivals.training.work import Work
from rlrun.core.processes import tune_process

PACKAGES = ("rlrun",)


def train(work: Work) -> None:
    """Train on, past any budget of the config, in a process as the command sets it up."""
    tune_process()
    rlrun.train([*work.overrides, f"stop.env_steps={10 * work.last}"], run_dir=Path("run"))
