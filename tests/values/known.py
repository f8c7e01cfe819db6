"""Values that are known exactly, learned by every algorithm that has one.

The environments have one state, or two that alternate. Each step pays, and ends the episode with a probability, or at a
time limit; actions change nothing. So the value follows from a linear equation, whatever the policy does. Algorithms
that learn from a memory learn from one that random actions filled; the others from rollouts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from omegaconf import OmegaConf
from tests.configs import ALGORITHMS
from tests.short import shrink
from torch import Tensor

import rlrun
from rlrun import config as configuration
from rlrun.algorithms.search.muzero import MuZeroLoss
from rlrun.callbacks.losses.critic import CriticLoss
from rlrun.callbacks.losses.policy import ActorCriticLoss
from rlrun.config.places import first_comment, packaged_dir
from rlrun.core.typing import Array
from rlrun.memory import ReturnNormalize
from rlrun.nn.recurrent import present
from rlrun.training.callback import Callback

DISCOUNT, LIMIT, ENDS = 0.8, 5, 0.2  # γ, steps of an episode that is cut off, probability that a step ends one
EPISODES = 100  # after which their lengths recur
REWARDS = {1: (1.0,), 2: (1.0, 0.0)}  # of a step, by the state it starts from
ENDINGS = ("terminated", "truncated", "both")
SHARE, SMALLEST_SHARE = 0.03, 0.08  # of the value that may be missing; where the smallest of several critics counts
ROWS = 2_000  # of random actions in the memory at most
# no value of this environment is learned: they clone, plan, want a game, or only act
WITHOUT = ("airl", "alphazero", "bc", "causal_bc", "gail", "handcrafted", "latent_mbrl", "mbrl", "pets")


class Known(gymnasium.Env[Array, Any]):
    """States that alternate, from the first one on; what is done changes nothing.

    observation: the state, one-hot. ending: by termination, by a time limit, or by either. rewards: 2 = a second one,
    half of the first. apart: several envs begin with other episodes. The lengths of episodes are those of a geometric
    distribution, each as often as it should be.
    """

    def __init__(
        self, states: int = 1, *, ending: str = "both", continuous: bool = False, rewards: int = 1, apart: bool = False
    ) -> None:
        self.states, self.rewards, self.apart = states, rewards, apart
        self.ends = 0.0 if ending == "truncated" else ENDS
        self.ending = ending
        self.observation_space = Box(0.0, 1.0, (states,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)
        if rewards > 1:
            self.reward_space = Box(0.0, 1.0, (rewards,), np.float32)
        self.episode, self.first = 0, True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if self.first and self.apart and seed is not None:
            self.episode = seed
        self.first = False
        place = (self.episode * 37 % EPISODES + 0.5) / EPISODES  # each hundredth once, neighbors far apart
        self.episode += 1
        self.length = math.ceil(math.log(place) / math.log(1.0 - self.ends)) if self.ends else math.inf
        # Recurrent networks learn nothing of the step behind a limit that is always the same.
        limits = {"terminated": math.inf, "truncated": LIMIT + self.episode % 3 - 1, "both": LIMIT}
        self.limit = limits[self.ending]
        self.step_number = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        reward: Any = REWARDS[self.states][self.step_number % self.states]
        self.step_number += 1
        terminated = self.step_number == self.length
        truncated = not terminated and self.step_number == self.limit
        if self.rewards > 1:
            reward = np.array([reward, 0.5 * reward], np.float32)
        return self._observe(), reward, terminated, truncated, {}

    def _observe(self) -> Array:
        observation = np.zeros(self.states, np.float32)
        observation[self.step_number % self.states] = 1.0
        return observation

    def value(self) -> list[float]:
        """Return the true value of each state."""
        states, reach = self.states, DISCOUNT * (1.0 - self.ends)
        following = np.roll(np.eye(states), 1, axis=1)  # state -> the next one
        values = np.linalg.solve(np.eye(states) - reach * following, np.array(REWARDS[states]))
        return [float(value) for value in values]


class Reading(Callback):
    """Average what the critics, or the value network, say of each state over the updates from `first` on."""

    data_group: str | None = "default"

    def __init__(self, states: int, first: int) -> None:
        self.first, self.updates = first, 0
        self.sums, self.counts = np.zeros(states), np.zeros(states)
        self.loss: Any = None

    def begin_training(self, callbacks: Mapping[str, Callback]) -> None:
        kinds = CriticLoss | ActorCriticLoss | MuZeroLoss
        losses = [
            callback
            for callback in callbacks.values()
            if any(isinstance(part, kinds) for part in (callback, *getattr(callback, "terms", {}).values()))
        ]
        self.loss = losses[0] if losses else None

    def end_batch(self, observation: Tensor, weight: Tensor | None = None) -> None:
        self.updates += 1
        if self.updates < self.first or self.loss is None or not self.loss.store.fresh:
            return
        metric = self.loss.store.newest["value/mean"]  # as the loss has it: of each element
        if isinstance(self.loss, MuZeroLoss):
            value = metric
        else:
            value = metric.mean(0) if isinstance(self.loss, CriticLoss) else metric.tensors[0]
        state = present(observation).argmax(-1)
        if value.shape != state.shape:
            return  # an update of something else
        learned = torch.ones_like(state, dtype=torch.bool) if weight is None else (weight > 0).expand_as(state)
        for number in range(len(self.sums)):
            here = (state == number) & learned  # no loss teaches the first steps of a recurrent window
            self.sums[number] += float(value[here].sum())
            self.counts[number] += int(here.sum())

    @property
    def values(self) -> list[float]:
        return [float(value) for value in self.sums / np.maximum(self.counts, 1.0)]


class Mode(NamedTuple):
    """Overrides of an algorithm, and which algorithms have them."""

    overrides: tuple[str, ...]
    algorithms: tuple[str, ...]


EACH = ("env.kwargs.rewards=2", "+with=reward_weights", "reward_weights=[0.5,1.0]")  # their sum is the one of others
MODES = {
    "n_step": Mode(("algorithm.n_step=3",), ("dqn", "sac", "sarsa")),
    "td_lambda": Mode(("+with=td_lambda",), ("dqn", "sac", "sarsa")),
    "recurrent": Mode(("algorithm.recurrent=gru",), ("ppo", "sarsa_recurrent", "dqn", "sac", "td3", "iql")),
    "prioritized": Mode(("memory=prioritized", "memory.sampler.beta=1.0"), ("dqn", "sac", "sarsa")),
    "normalized": Mode(("+with=observation_norm",), ("dqn", "sac", "ppo", "sarsa")),
    "reward_critics": Mode(
        (*EACH, "+with=reward_critics"),
        ("dqn", "dsac", "iql", "mdq", "qrsac", "sac", "sarsa", "sarsa_recurrent", "taac"),
    ),
    "reward_values": Mode((*EACH, "+with=reward_values"), ("a2c", "ppo", "ppg")),
    "choices": Mode(("env.kwargs.continuous=false",), ("sac", "ppo", "iql")),
    "repeated": Mode(("+with=action_repeat", "action_repeat.most_steps=2", "algorithm.ensemble=2"), ("dqn", "td3")),
    "on_policy": Mode(("+with=on_policy", "on_policy.horizon=100"), ("sarsa",)),
    "truncated": Mode(("+networks.policy.distribution=truncated",), ("sac",)),
    "bf16": Mode(("precision=bf16",), ("dqn", "sac", "ppo", "sarsa")),
}
QUIET = ("evaluation.every=0", "checkpoint.every=0", "checkpoint.keep_best=false", "logger=[]", "log.every=0")
SMALL = {  # numbers that are given where an algorithm has the key
    "algorithm.hidden": "[]",  # few numbers: little of the luck of single actions is learned
    "algorithm.core_size": 8,
    "algorithm.discount": DISCOUNT,
    "algorithm.lr": 0.03,
    "algorithm.temperature.initial": 1.0e-6,  # entropy does not count
    "algorithm.temperature.largest": 1.0e-6,  # and is not made to count by learning
    "algorithm.entropy_weight": 0.0,
    "algorithm.action_weight": 1.0,  # a policy that finds where the memory was lucky would overrate all
    "algorithm.tau": 0.2,
    "algorithm.target_every": 1,
    "algorithm.warmup_steps": ROWS - 10,
    "algorithm.updates_per_step": 1_000,
    "algorithm.batch_size": 400,
    "algorithm.unroll": 4,
    "algorithm.burn_in": 1,
    "algorithm.epochs": 10,
    "memory.length": 2 * ROWS,  # slots: the last observation of an episode takes one, too
    "num_envs": 1,
}
UPDATES, FEWER_UPDATES = 250, 150
MORE_UPDATES = {"iql-recurrent": 400, "muzero-None": 500}
SLOW = ("action_repeat", "doac", "dsac", "qrsac")  # in spite of several critics
OWN = {  # of single algorithms
    "genrl": ("init.networks.vae=null",),  # whatever its latent actions are decoded to
    "seditor": ("lagrangian.thresholds=[null,0]", "env.kwargs.rewards=2"),
}
QUANTILES = {"algorithm.huber": None}  # the mean of Huber's quantiles is not the mean of the return
IMPLICIT = {**QUANTILES, "algorithm.fractions": 8, "algorithm.batch_size": 100}
DEEP = {"algorithm.hidden": "[16]", "algorithm.lr": 0.01}  # where one layer at least is wanted
FEW = {"algorithm.batch_size": 100}
WINDOWS = {**DEEP, **FEW}
ROLLOUTS = {"algorithm.horizon": 32, "num_envs": 8}
NUMBERS: dict[str, dict[str, Any]] = {
    "a2c": {"algorithm.horizon": 5, "num_envs": 5},
    "ppo": ROLLOUTS,
    "ppg": {**ROLLOUTS, "algorithm.auxiliary.interval": 2},
    "trac": ROLLOUTS,
    "qrsac": {**QUANTILES, "algorithm.quantiles": 16, "algorithm.batch_size": 100},
    "dsac": {**IMPLICIT, **DEEP},
    "doac": {**IMPLICIT, **DEEP},
    "sarsa_recurrent": WINDOWS,
    "sarsa_ddpg_recurrent": WINDOWS,
    "iql-recurrent": {"algorithm.lr": 0.005},  # large steps make critics sway, and an expectile follows what is high
    **{f"{algorithm}-bf16": DEEP for algorithm in MODES["bf16"].algorithms},
    "mbpo": {  # most of what is learned from is imagined
        "algorithm.updates_per_step": 25,
        "imagination.every": 1,
        "imagination.model.every": ROWS,
        "imagination.model.hidden": "[]",
        "imagination.model.members": 2,
        "imagination.model.elites": 2,
        "imagination.model.lr": 0.01,
        "imagination.model.min_updates": 300,
    },
    "merlin": {
        **DEEP,
        "num_envs": 8,
        "algorithm.horizon": 8,
        "algorithm.slots": 4,
        "algorithm.latent": 4,
        "algorithm.predictor.lstm_size": "[8]",
        "algorithm.actor.lstm_size": "[8]",
    },
    "muzero": {
        **dict.fromkeys(("algorithm.dynamics", "algorithm.prediction"), "[16]"),
        **FEW,
        "algorithm.latent": 8,
        "algorithm.unroll": 2,
        "algorithm.td_steps": 3,
        "algorithm.lr": 0.01,
        "algorithm.tau": 1.0,
        "algorithm.target_every": 10,
        "algorithm.value_head.exact": True,  # of random returns the mean, and not that of their roots
        "algorithm.value_head.count": 11,
    },
    "taac": FEW,
    "taac_l": FEW,
    "taac_q": FEW,
}


class Case(NamedTuple):
    """An algorithm on an environment of known values, maybe in a mode."""

    algorithm: str
    states: int
    ending: str
    mode: str | None = None

    @property
    def name(self) -> str:
        states = "chain" if self.states > 1 else "state"
        return "-".join(filter(None, (self.algorithm, states, self.ending, self.mode)))


def algorithms() -> list[str]:
    """Return the algorithms of conf/ that learn a value."""
    return [name for name in ALGORITHMS if name not in WITHOUT]


def in_ci() -> Iterator[Case]:
    """Yield the chain with both endings for each algorithm and mode, and each ending alone once a kind of algorithm."""
    yield from (Case(algorithm, 2, "both") for algorithm in algorithms())
    yield from (Case(algorithm, 2, "both", mode) for mode, (_, those) in MODES.items() for algorithm in those)
    yield from (Case(algorithm, 1, ending) for algorithm in ("dqn", "sac", "ppo", "sarsa") for ending in ENDINGS[:2])


def discrete(algorithm: str) -> bool:
    """Tell whether an algorithm wants choices, which the first comment of its file says."""
    return first_comment(packaged_dir() / "algorithm" / f"{algorithm}.yaml").endswith("; discrete actions")


def overrides(case: Case) -> list[str]:
    """Return the overrides of a run that learns a known value."""
    known = {"states": case.states, "ending": case.ending, "continuous": not discrete(case.algorithm), "rewards": 1}
    known["apart"] = "num_envs" in NUMBERS.get(case.algorithm, {})
    kwargs = ",".join(f"{key}:{str(value).lower()}" for key, value in known.items())
    task = [
        f"algorithm={case.algorithm}",
        "env.target=tests.values.known.Known",
        f"env.kwargs={{{kwargs}}}",
        "preset=null",
    ]
    return [*task, *(MODES[case.mode].overrides if case.mode else ()), *OWN.get(case.algorithm, ()), *QUIET]


def own_numbers(case: Case) -> dict[str, Any]:
    """Return the numbers of a case that differ from those of others: of its algorithm, and of its mode."""
    return {**NUMBERS.get(case.algorithm, {}), **NUMBERS.get(f"{case.algorithm}-{case.mode}", {})}


def learned(
    case: Case,
    run_dir: Path,
    updates: int | None = None,
    numbers: Mapping[str, Any] | None = None,
    further: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the learned and the true value of each state, and the largest error as a share.

    updates: None = as many as are enough; fewer for the smallest of several critics, whose bar is higher.
    further: overrides of the run.
    """
    composed = configuration.compose([*overrides(case), *further])
    in_mode = f"{case.algorithm}-{case.mode}"
    config = shrink(composed, numbers or {**SMALL, **own_numbers(case)}).config
    several = (OmegaConf.select(config, "algorithm.ensemble") or 1) > 1
    few = several and case.states > 1 and case.mode != "normalized" and case.algorithm not in SLOW
    updates = updates or MORE_UPDATES.get(in_mode, FEWER_UPDATES if few else UPDATES)
    reading = {"_target_": "tests.values.known.Reading", "states": case.states, "first": updates // 2}
    OmegaConf.update(config, "callbacks.reading", reading, force_add=True)
    config.stop.updates = updates
    with mock.patch("rlrun.nn.precision.LARGE", 0):  # narrow layers would stay float32
        result = rlrun.train(composed, run_dir=run_dir)
    trainer: Any = result.trainer
    values = [value / _reward_scale(trainer.loader) for value in trainer.callbacks["reading"].values]
    true = Known(case.states, ending=case.ending).value()
    error = max(abs(value / exact - 1.0) for value, exact in zip(values, true, strict=True))
    bar = SMALLEST_SHARE if several else SHARE
    return {"values": values, "true": true, "error": error, "bar": bar, "passed": error <= bar}


def _reward_scale(loader: Any) -> float:
    """Return what rewards were multiplied by, where they are divided by the deviation of returns."""
    scales = [adaptor.normalizer for adaptor in getattr(loader, "adaptors", ()) if isinstance(adaptor, ReturnNormalize)]
    return float(scales[0](torch.ones(()))) if scales else 1.0
