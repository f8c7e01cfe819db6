"""What two ranks do in tests, the second one in a child of a process that has imported everything already."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.forked import PATHS, Started

import rlrun
from rlrun import ops
from rlrun.algorithms.actor_critic.lagrangian import LagrangianWeights, RewardWeights
from rlrun.callbacks import Interrupt
from rlrun.callbacks.losses.entropy import batch_mean
from rlrun.compile.fused_adam import average_gradients
from rlrun.config import compose
from rlrun.core import distributed
from rlrun.core.errors import DataError, RankError
from rlrun.loading.assembly import builder_of
from rlrun.memory import JointLoader
from rlrun.nn import Normalizer
from rlrun.nn.recurrent import with_state
from rlrun.ops.distributions import given
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
        "+callbacks.twin_target={_target_: rlrun.algorithms.actor_critic.ddpg.DeterministicQTarget, "
        "critics: '${networks.twin}', policy: '${networks.policy}', tau: 0.1, data_group: twin}",
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
    """Return this rank's rows of some batches."""
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
    """Return this rank's windows of some batches, for recurrent networks: 3 of 5 steps count, in each window."""
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
    share, names = (distributed.rank(), distributed.world_size()), PPO if algorithm == "ppo" else REPLAY
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
    torch.manual_seed(distributed.rank())  # what is drawn from here on is each rank's own
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
    """Return statistics of a batch of which each rank has some rows, not all as many."""
    rank, count = distributed.rank(), distributed.world_size()
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
        "normalized": torch.cat(
            [torch.tensor(row) for row in zip(*distributed.all_gather(half.tolist()), strict=True)]
        ),
        "valid": ops.normalized(rows[rank::count, 1], valid[rank::count])[:1],
        "weight": large.weight.grad[:1],
        "bias": large.bias.grad[:1],
    }


def differing() -> str:
    """Return the error of ranks whose networks differ."""
    module = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(module.weight, float(distributed.rank()))
    try:
        distributed.require_same({"networks.q": module})
    except RankError as error:
        return str(error)
    return ""


def all_of_it() -> dict[str, Any]:
    tensors: dict[str, Any] = {algorithm: trained(algorithm) for algorithm in CASES}
    return {**tensors, "measured": measured(), "differing": differing()}


@contextmanager
def environment(rank: int, port: int) -> Iterator[None]:
    """Have the variables of torchrun, by which two processes meet."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": COUNT, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, str(value))
        yield


def _serve(port: int, work: Callable[..., Any], args: Sequence[Any]) -> None:
    os.setpgid(0, 0)
    with environment(1, port), given(still):
        work(*args)


@contextmanager
def beside(work: Callable[..., Any], *args: Any) -> Iterator[Started]:
    """Be the first of two ranks, as long as a `with` block lasts, while a process is the second and calls a function.

    It is forked from one that has imported everything already.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    child = Started(_serve, port, work, args, paths=[*sys.path, PATHS[0]])
    try:
        with environment(0, port):
            yield child
    finally:
        child.kill()


def train(overrides: list[str], run: Path, seen: Callable[[], None] | None = None) -> Any:
    """Train as both ranks; `seen` is called by the second one before."""
    with beside(_second, seen, rlrun.train, overrides, run):
        return rlrun.train(overrides, run_dir=run)


def resume(run: Path, overrides: list[str]) -> Any:
    """Resume as both ranks."""
    with beside(_second, None, rlrun.resume, run, overrides):
        return rlrun.resume(run, overrides)


def _second(before: Callable[[], None] | None, function: Callable[..., Any], *args: Any) -> None:
    if before is not None:
        before()
    if function is rlrun.train:
        rlrun.train(args[0], run_dir=args[1])
    else:
        function(*args)


def leave_by(end: Callable[[], None]) -> None:
    """Let this process meet its end in its 15th update."""
    meet, calls = Interrupt.end_cycle, []

    def end_cycle(self: Interrupt) -> None:
        calls.append(1)
        if len(calls) == 15:
            end()
        meet(self)

    Interrupt.end_cycle = end_cycle  # type: ignore[method-assign]


def terminated() -> None:
    leave_by(partial(signal.raise_signal, signal.SIGTERM))


def killed() -> None:
    leave_by(partial(os.kill, os.getpid(), signal.SIGKILL))


def failing() -> None:
    def fail() -> None:
        raise DataError("the reward of env 3 is nan")

    leave_by(fail)


def computed(result: str) -> None:
    """Store what the second rank computes."""
    with distributed.joined():
        torch.save(all_of_it(), result)
        distributed.all_gather(None)


def stuck() -> None:
    """Be a rank that does nothing for long."""
    with distributed.joined():
        time.sleep(8.0)


def interrupted(signal_after: Callable[[], None]) -> None:
    """Wait for a rank that is stuck, until what a signal raises ends that."""
    with beside(stuck) as child, distributed.joined():
        signal_after()
        try:
            distributed.mean_(torch.zeros(3))
        finally:
            child.kill()


def both(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what two ranks compute."""
    with beside(computed, str(folder / "result.pt")) as child:
        with distributed.joined():
            tensors = all_of_it()
            distributed.all_gather(None)
        child.wait(30)
    return tensors, torch.load(folder / "result.pt")
