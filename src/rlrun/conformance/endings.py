"""Whether an algorithm bootstraps where an episode is cut off, and only there.

It trains on episodes that are alike but for their end (`rlrun.env.toys.Ending`), twice each, with another last
observation. This may change what is learned from truncated episodes, by the value of what would have come after them,
and must not change what is learned from terminated ones. Two runs are compared bit for bit, so nothing has to be
learned, and no number to be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rlrun.config import compose
from rlrun.conformance.small import SMALL, shrink
from rlrun.conformance.verdicts import Verdict
from rlrun.errors import RequestError, SpaceError
from rlrun.experiment import train

NAME = "truncation"
NUMBERS = {**SMALL, "stop.updates": 6, "stop.env_steps": None, "num_envs": 2, "evaluation.every": 0}
Learned = dict[str, bytes]  # what every parameter became
ONE, OTHER = 0.5, -0.5  # last observations


def check(words: Sequence[str], folder: Path, config_dir: Path | None, settings: Mapping[str, Any]) -> Verdict:
    """Tell truncation from termination by what an algorithm learns.

    words: of a command that uses the algorithm, whose environment is replaced; folder: for the runs; settings: numbers
    that the user typed, which count.
    """
    base_words = [word for word in words if word.partition("=")[0].lstrip("+~").split(".")[0] != "env"]
    numbers = {key: value for key, value in NUMBERS.items() if key not in settings}

    @cache
    def learned(ending: str, last: float, reward: float = 1.0, continuous: bool = False) -> Learned:
        kwargs = {"ending": ending, "last": last, "reward": reward, "continuous": str(continuous).lower()}
        own = ["env=gym", "env.target=rlrun.env.toys.Ending", *(f"+env.kwargs.{k}={v}" for k, v in kwargs.items())]
        composed = shrink(compose([*base_words, "pair=null", *own], config_dir), numbers)
        name = f"{ending}_{last}_{reward}_{continuous}"
        return parameters(train(composed, run_dir=folder / name).trainer)

    try:
        return verdict(_handled(learned))
    except RequestError as error:
        return Verdict(NAME, "skipped", f"it cannot be built on the probe's environment: {error}")


def _handled(learned: Callable[..., Learned]) -> Callable[..., Learned]:
    """Return the probe with that kind of actions that the algorithm handles."""
    try:
        learned("truncated", ONE)
        return learned
    except SpaceError:
        return lambda *settings: learned(*settings, continuous=True)


def verdict(learned: Callable[..., Learned]) -> Verdict:
    """Judge by what is learned with an ending, a last observation and a reward."""
    cut, over = learned("truncated", ONE), learned("terminated", ONE)
    if not cut:
        return Verdict(NAME, "skipped", "it trains no network")
    cut_matters = cut != learned("truncated", OTHER)
    over_matters = over != learned("terminated", OTHER)
    if over_matters and cut == over:
        return Verdict(NAME, "failed", "an end by termination is bootstrapped from, as one by truncation is")
    if over_matters and not cut_matters:
        return Verdict(NAME, "failed", "an end by termination is bootstrapped from, and one by truncation is not")
    if over_matters:
        text = "the last observation of terminated episodes is learned from, too, as a model or statistics do"
        return Verdict(NAME, "skipped", text)
    if cut_matters:
        return Verdict(NAME, "ok", "bootstraps where episodes are truncated, not where they are terminated")
    if cut == learned("truncated", ONE, 0.25):
        return Verdict(NAME, "skipped", "it does not learn from rewards")
    return Verdict(
        NAME, "failed", "an end by truncation is not bootstrapped from: it counts as if nothing came after it"
    )


def parameters(trainer: Any) -> Learned:
    """Return the bytes of all parameters of a run's networks."""
    return {
        f"{path}.{name}": value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for path, part in trainer.state["parts"].items()
        if isinstance(part, torch.nn.Module)
        for name, value in part.named_parameters()
    }
