"""What two learners do in tests, one of them in a child of a process that has imported everything already."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.forked import PATHS, Started

from rlrun import ops
from rlrun.algorithms.lagrangian import LagrangianWeights, RewardWeights
from rlrun.callbacks.entropy import batch_mean
from rlrun.compile.fused_adam import average_gradients
from rlrun.config import compose
from rlrun.core.errors import DataError, LearnerError
from rlrun.loading.assembly import builder_of
from rlrun.memory import JointLoader
from rlrun.nn import Normalizer
from rlrun.nn.recurrent import with_state
from rlrun.ops.distributions import given
from rlrun.runs import learners
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer

COUNT = 2
PPO = ("observation", "action", "log_prob", "value", "advantage", "return_", "valid")
REPLAY = ("observation", "action", "reward", "terminated", "next_observation")
WINDOWS = (*REPLAY, "truncated", "trajectory", "next_trajectory", "valid", "weight")
STATES = {"dqn": 8, "recurrent_sac": 8, "taac": 8}  # numbers of the state before a window, of networks of width 4
CASES = {
    "dqn": ("env=cartpole", "algorithm.recurrent=lstm", "algorithm.core_size=4"),
    "recurrent_sac": ("algorithm.recurrent=gru", "algorithm.core_size=4"),
    "taac": ("algorithm.recurrent=gru", "algorithm.core_size=4"),
    "ppo": ("+with=trust_region", "+with=entropy_target", "callbacks.trust_region.per_dim=0.0001"),
    "sac": ("+with=target_scale", "algorithm.target_subset=1", "algorithm.ensemble=3", "algorithm.max_grad_norm=0.5"),
    "td3": (  # beside further critics, in a data group that has three updates for each of its own
        "callbacks.q_target.noise=0",
        "+networks.twin={_target_: rlrun.nn.Critics, spaces: '${spaces}', hidden: [8]}",
        "+callbacks.twin_target={_target_: rlrun.algorithms.ddpg.DeterministicQTarget, critics: '${networks.twin}', "
        "policy: '${networks.policy}', tau: 0.1, data_group: twin}",
        "+callbacks.twin={_target_: rlrun.callbacks.JointLoss, optimizer: '${optimizer}', data_group: twin, terms: "
        "{twin: {_target_: rlrun.callbacks.CriticLoss, network: '${networks.twin}', optimizer: null}}}",
    ),
}
NAMES = {
    "dqn": ("q_target", "q_loss"),
    **dict.fromkeys(("recurrent_sac", "taac"), ("q_target", "q_loss", "policy", "temperature")),
    "ppo": ("ppo", "entropy_target", "trust_region"),
    "sac": ("target_scale", "q_target", "q_loss", "policy", "temperature"),
    "td3": ("q_target", "twin_target", "q_loss", "policy", "twin"),
}
TINY = ("env=pendulum", "preset=null", "algorithm.hidden=[8,8]", "algorithm.lr=0.01")


def still(kind: str, like: torch.Tensor) -> torch.Tensor:
    """Be no noise at all, so that envs act alike whoever steps them."""
    return torch.zeros_like(like)


def batches(names: tuple[str, ...], rank: int, count: int) -> list[dict[str, torch.Tensor]]:
    """Return this learner's rows of some batches."""
    generator = torch.Generator().manual_seed(7)
    result = []
    for _ in range(6):
        rows = {name: torch.randn(16, generator=generator) for name in names}
        rows |= {name: torch.randn(16, 3, generator=generator) for name in names if "observation" in name}
        rows["action"] = torch.rand(16, 1, generator=generator) * 1.8 - 0.9
        if "terminated" in rows:
            rows["terminated"] = rows["terminated"] > 1.0
        if "valid" in rows:
            rows["valid"] = rows["valid"] > 0.0  # not as many of each share
        result.append({name: value[rank::count] for name, value in rows.items()})
    return result


def windows(algorithm: str, rank: int, count: int) -> list[dict[str, Any]]:
    """Return this learner's windows of some batches, for recurrent networks: 3 of 5 steps count, in each window."""
    generator = torch.Generator().manual_seed(7)
    step, result = torch.arange(5).expand(16, 5), []
    for _ in range(6):
        seen = torch.randn(16, 6, 4 if algorithm == "dqn" else 3, generator=generator)
        state = torch.randn(16, STATES[algorithm], generator=generator)
        over, during = (torch.rand(16, 5, generator=generator) > 0.8 for _ in range(2))
        rows: dict[str, Any] = {"reward": torch.randn(16, 5, generator=generator), "terminated": over & during}
        rows |= {"truncated": over & ~during, "valid": step > 1, "weight": (step > 1) * 5 / 3}
        rows["action"] = during.long() if algorithm == "dqn" else torch.randn(16, 5, 1, generator=generator).tanh()
        repeats = torch.randint(0, 2, (16, 6, 1), generator=generator)
        trajectory = torch.cat((torch.randn(16, 6, 1, generator=generator).tanh(), repeats), -1)
        rows |= {"trajectory": trajectory[:, :-1], "next_trajectory": trajectory[:, 1:]}
        rows = {name: value[rank::count] for name, value in rows.items()}
        for name, shift in (("observation", 0), ("next_observation", 1)):
            rows[name] = with_state(*(part[rank::count] for part in (seen, state, step + shift)))
        result.append(rows)
    return result


class Given:
    """A loader of batches that are there."""

    def __init__(self, names: tuple[str, ...], batches: list[dict[str, Any]], repeats: int = 1) -> None:
        self._names = names
        self._batches = batches * repeats

    def names(self) -> dict[str, tuple[str, ...]]:
        return {"default": self._names}

    def __iter__(self) -> Any:
        return ({"default": batch} for batch in self._batches)


class Seen(Callback):
    """Keep the divergence by which epochs end and penalties adapt."""

    data_group = "default"

    def end_batch(self, approx_kl: torch.Tensor) -> None:
        self.divergence = approx_kl.clone()


def trained(algorithm: str) -> dict[str, torch.Tensor]:
    """Return the parameters that some updates lead to, and what else they have moved."""
    share, names = (learners.rank(), learners.count()), PPO if algorithm == "ppo" else REPLAY
    if algorithm in STATES:
        loader: Any = Given(WINDOWS, windows(algorithm, *share))
    else:
        loader = Given(names, batches(names, *share))
    if algorithm == "td3":  # 102 updates
        first, further = (Given(REPLAY, batches(REPLAY, *share), repeats) for repeats in (6, 17))
        loader = JointLoader(default=first, twin={"loader": further, "times": 3})
    config = compose([f"algorithm={algorithm.removeprefix('recurrent_')}", *TINY, *CASES[algorithm]])
    builder = builder_of(config.config, device="cpu")
    builder.get("seeds").apply()
    callbacks = {name: builder.get(f"callbacks.{name}") for name in NAMES[algorithm]}
    if algorithm == "ppo":
        callbacks["seen"] = Seen()
    torch.manual_seed(learners.rank())  # what is drawn from here on is each learner's own
    trainer = Trainer(callbacks, loader)
    with given(still):
        trainer.train()
    tensors = {}
    for path, part in builder.built.items():
        if isinstance(part, torch.nn.Module):
            tensors |= {f"{path}.{name}": value.clone() for name, value in part.state_dict().items()}
    if algorithm == "ppo":
        tensors["entropy_weight"] = callbacks["entropy_target"].log.clone()
        tensors["approx_kl"] = callbacks["seen"].divergence
        tensors["change"] = torch.tensor(callbacks["trust_region"].ratio)
    elif algorithm == "sac":
        tensors["scale"] = callbacks["target_scale"].statistics.scale.clone()
    return tensors


def measured() -> dict[str, torch.Tensor]:
    """Return statistics of a batch of which each learner has some rows, not all as many."""
    rank, count = learners.rank(), learners.count()
    rows = torch.randn(12, 2, generator=torch.Generator().manual_seed(3)) * 3.0 + 1.0
    mine = rows if count == 1 else (rows[:8], rows[8:])[rank]
    normalizer = Normalizer([2])
    normalizer.update(mine)
    normalizer.update(mine[:0] if rank else rows[:4])  # one of them has nothing
    large = torch.nn.Linear(300, 300)
    large.weight.grad, large.bias.grad = torch.full((300, 300), 1.0 + rank), torch.full((300,), 3.0 * rank)
    average_gradients([*large.parameters()])
    half = ops.normalized(rows[rank::count, 0], None)
    valid = torch.arange(12) % 3 > 0
    paid = SimpleNamespace(tally=SimpleNamespace(reward_sum=mine.double().sum(0).numpy(), reward_steps=len(mine)))
    weights = RewardWeights(SimpleNamespace(rewards=2))
    lagrangian = LagrangianWeights(weights, partial(torch.optim.SGD, lr=0.1), thresholds=[None, 0.5], paid=paid)
    lagrangian.end_batch(step=12)
    return {
        "weights": weights().detach(),
        "moments": normalizer.statistics[0].moments,
        "entropy": batch_mean(mine, torch.ones(len(mine), dtype=torch.bool)),
        "normalized": torch.cat([torch.tensor(row) for row in zip(*learners.gathered(half.tolist()), strict=True)]),
        "valid": ops.normalized(rows[rank::count, 1], valid[rank::count])[:1],
        "weight": large.weight.grad[:1],
        "bias": large.bias.grad[:1],
    }


def differing() -> str:
    """Return the error of learners whose networks differ."""
    module = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(module.weight, float(learners.rank()))
    try:
        learners.require_same({"networks.q": module})
    except LearnerError as error:
        return str(error)
    return ""


def all_of_it() -> dict[str, Any]:
    tensors: dict[str, Any] = {algorithm: trained(algorithm) for algorithm in CASES}
    return {**tensors, "measured": measured(), "differing": differing()}


def second(place: str, result: str) -> None:
    """Be the second of two learners, and store its results."""
    learners.be(1)
    with learners.joined(Path(place), COUNT, "gloo"):
        tensors = all_of_it()
        torch.save(tensors, result)
        learners.gathered(None)


def stuck(place: str) -> None:
    """Be the second of two learners, and do nothing for long."""
    learners.be(1)
    with learners.joined(Path(place), COUNT, "gloo"):
        time.sleep(8.0)


def met(folder: Path) -> int:
    """Return how many learners have joined at a place."""
    place = folder / "place"
    child = Started(stuck, str(place), paths=[*sys.path, PATHS[0]])
    try:
        with learners.joined(place, COUNT, "gloo"):
            return learners.count()
    finally:
        child.kill()


def interrupted(folder: Path, signal_after: Callable[[], None]) -> None:
    """Wait for a learner that is stuck, until what a signal raises ends that."""
    place = folder / "place"
    child = Started(stuck, str(place), paths=[*sys.path, PATHS[0]])
    with learners.joined(place, COUNT, "gloo"):
        signal_after()
        try:
            learners.mean_(torch.zeros(3))
        finally:
            child.kill()


def both(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of two learners, of which this process is the first."""
    place, result = folder / "place", folder / "result.pt"
    child = Started(second, str(place), str(result), paths=[*sys.path, PATHS[0]])
    try:
        with learners.joined(place, COUNT, "gloo"):
            tensors = all_of_it()
            learners.gathered(None)
        child.wait(30)
    finally:
        child.kill()
    return tensors, torch.load(result)


def _serve(connection: Connection) -> None:
    from rlrun.commands.follow_learner import serve

    os.setpgid(0, 0)
    with given(still):
        serve(connection.fileno(), os.getppid())


def fail(connection: Connection) -> None:
    from rlrun.commands.train import Experiment

    def follow(self: Experiment, run_dir: Any) -> None:
        raise DataError("the reward of env 3 is nan")

    Experiment.follow = follow  # type: ignore[method-assign]
    _serve(connection)


def learner(connection: Connection, work: Callable[[Connection], None] = _serve) -> Started:
    """Start what `rlrun.runs.learners.process_group` starts in an interpreter of its own; it finds the same modules."""
    return Started(work, connection, paths=[*sys.path, PATHS[0]])
