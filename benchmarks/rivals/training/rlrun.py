"""rlrun, by the words of a command, which leave out evaluations, checkpoints and logs."""

from __future__ import annotations

from pathlib import Path

import rlrun
from benchmarks.rivals.training.work import Work

PACKAGES = ("rlrun",)


def train(work: Work) -> None:
    """Train on, past any budget of the config."""
    rlrun.train([*work.words, f"stop.env_steps={10 * work.last}"], run_dir=Path("run"))
