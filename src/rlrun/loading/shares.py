"""What each of several learners has of a config's envs, batches and rows, and what has to learn alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlrun.collect import Collector
from rlrun.core.errors import ConfigError
from rlrun.memory import PhasicLoader, ReplayLoader, RolloutLoader
from rlrun.runs import learners
from rlrun.training.trainer import Trainer

SHARED = ("num_envs", "env.num_envs", "loader.batch", "loader.minibatch", "loader.phase_minibatch", "memory.length")
LOADERS = (ReplayLoader, RolloutLoader, PhasicLoader)


def count_of(config: DictConfig) -> int:
    """Return how many learners a config asks for; those of older runs ask for one."""
    return int(OmegaConf.select(config, "learners", default=1))


def shares(config: DictConfig) -> dict[str, Any]:
    """Return the values that differ between what a config says of all learners and what this one has.

    Raises:
        ConfigError: a number cannot be shared evenly, or a key wants one learner.
    """
    count, rank = count_of(config), learners.rank()
    if count == 1:
        return {}
    _require_none(config, count)
    values: dict[str, Any] = {"seeds.learner": rank}
    for key in SHARED:
        number = OmegaConf.select(config, key, default=None)
        if isinstance(number, int):
            if number % count:
                better = max(number // count, 1) * count
                raise ConfigError(f"learners={count}: {key}={number} cannot be shared evenly; {key}={better} can")
            values[key] = number // count
    if OmegaConf.select(config, "memory.length", default=0) is None:
        values["memory.learners"] = count
    values["seeds.first_env"] = rank * values.get("env.num_envs", 0)
    return values


def _require_none(config: DictConfig, count: int) -> None:
    """Refuse keys that say what one learner does."""
    origin = OmegaConf.select(config, "init.from", default=None)
    if origin is not None:
        raise ConfigError(f"learners={count}: a run from another (init.from={origin}) has one learner; learners=1")
    if OmegaConf.select(config, "compile", default=False):
        raise ConfigError(f"learners={count}: communication between learners is not compiled; compile=false")


def require_shareable(config: DictConfig, trainer: Trainer, built: Mapping[str, Any]) -> None:
    """Refuse parts that would decide by a share what is to be decided for all.

    Raises:
        ConfigError: naming the first.
    """
    count = count_of(config)
    if count == 1:
        return
    loader, collector = trainer.loader, getattr(trainer.loader, "collector", None)
    for kind, part, known in (("loader", loader, LOADERS), ("collector", collector, (Collector,))):
        if type(part) not in known:
            names = ", ".join(cls.__name__ for cls in known)
            what = f"a {type(part).__name__}" if part is not None else "none"
            raise ConfigError(f"learners={count}: the {kind} is {what}; several learners share that of {names} only")
    if collector is not None and collector.env.resets_itself:
        raise ConfigError(
            f"learners={count}: envs of {collector.env.name} that reset by themselves "
            f"(env.vectorization={collector.env.vectorization}) fall out of step; env.vectorization=sync"
        )
    for path, part in built.items():
        if reason := getattr(part, "one_learner", ""):
            raise ConfigError(f"learners={count}: {path} ({type(part).__name__}) wants one learner: {reason}")


def backend_of(device: str, count: int) -> str:
    """Return what learners speak by: NCCL where each has a GPU of its own, else gloo."""
    own = device == "cuda" and torch.cuda.device_count() >= count and torch.distributed.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if own else "gloo"
