"""SAC and PPO of tianshou to be timed: python -m benchmarks.rivals.peer_tianshou NAME NUMBERS BEGUN.

As peer_stable_baselines3; one lane after another in its DummyVectorEnv, no test steps, no log.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch.distributions import Categorical, Distribution, Independent, Normal

from benchmarks.rivals.counted import count


class Parts:
    """Lanes, and networks for what they show."""

    def __init__(self, numbers: dict[str, Any]) -> None:
        self.numbers = numbers
        self.lanes = DummyVectorEnv([lambda: gymnasium.make(numbers["env"])] * numbers["num_envs"])
        env = gymnasium.make(numbers["env"])
        self.observation, self.action = env.observation_space, env.action_space
        self.adam = AdamOptimizerFactory(lr=numbers["lr"])

    def net(self, *, concat: bool = False, activation: type[torch.nn.Module] = torch.nn.ReLU) -> Net:
        """Return layers of what is observed, or of that and actions."""
        actions = self.action.shape if concat else 0
        shape, hidden = self.observation.shape, self.numbers["hidden"]
        return Net(state_shape=shape, action_shape=actions, hidden_sizes=hidden, concat=concat, activation=activation)

    def collector(self, policy: Any, length: int) -> Collector[Any]:
        """Return what steps the lanes."""
        memory = VectorReplayBuffer(length, self.numbers["num_envs"])
        return Collector(policy, self.lanes, memory, exploration_noise=True)


def normal(told: tuple[torch.Tensor, torch.Tensor]) -> Distribution:
    """Return the distribution of continuous actions."""
    return Independent(Normal(*told), 1)


def sac(numbers: dict[str, Any]) -> None:
    """Train, one update a step."""
    parts = Parts(numbers)
    size = int(np.prod(parts.action.shape or ()))
    actor = ContinuousActorProbabilistic(
        preprocess_net=parts.net(), action_shape=parts.action.shape, unbounded=True, conditioned_sigma=True
    )
    critics = [ContinuousCritic(preprocess_net=parts.net(concat=True)) for _ in range(2)]
    learner: Any = SAC(
        policy=SACPolicy(actor=actor, action_space=parts.action),
        policy_optim=parts.adam,
        critic=critics[0],
        critic_optim=parts.adam,
        critic2=critics[1],
        critic2_optim=parts.adam,
        tau=numbers["target_rate"],
        gamma=numbers["discount"],
        alpha=AutoAlpha(-float(size), 0.0, parts.adam),
    )
    collector = parts.collector(learner, numbers["length"])
    collector.reset()
    collector.collect(n_step=numbers["warmup_steps"], random=True)
    learner.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=10 * numbers["last"],
            collection_step_num_env_steps=1,
            update_step_num_gradient_steps_per_sample=numbers["updates_per_step"],
            batch_size=numbers["batch_size"],
            verbose=False,
            show_progress=False,
        )
    )


def ppo(numbers: dict[str, Any]) -> None:
    """Train by rollouts of all lanes."""
    parts = Parts(numbers)
    nets = [parts.net(activation=torch.nn.Tanh) for _ in range(2)]
    choices = getattr(parts.action, "n", None)
    actor: Any
    critic: Any
    draw: Callable[..., Distribution]
    if choices is not None:
        actor = DiscreteActor(preprocess_net=nets[0], action_shape=choices, softmax_output=False)
        critic, draw = DiscreteCritic(preprocess_net=nets[1]), lambda logits: Categorical(logits=logits)
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=nets[0], action_shape=parts.action.shape, unbounded=True)
        critic, draw = ContinuousCritic(preprocess_net=nets[1]), normal
    learner: Any = PPO(
        policy=ProbabilisticActorPolicy(
            actor=actor, dist_fn=draw, action_space=parts.action, action_scaling=choices is None
        ),
        critic=critic,
        optim=parts.adam,
        eps_clip=numbers["clip"],
        vf_coef=numbers["value_weight"],
        ent_coef=numbers["entropy_weight"],
        max_grad_norm=numbers["max_grad_norm"],
        gae_lambda=numbers["lambda"],
        gamma=numbers["discount"],
    )
    rows = numbers["horizon"] * numbers["num_envs"]
    learner.run_training(
        OnPolicyTrainerParams(
            training_collector=parts.collector(learner, rows),
            max_epochs=1,
            epoch_num_steps=10 * numbers["last"],
            collection_step_num_env_steps=rows,
            update_step_num_repetitions=numbers["epochs"],
            batch_size=numbers["batch_size"],
            verbose=False,
            show_progress=False,
        )
    )


def main(name: str, given: str, begun: str) -> None:
    """Train until the window is over, when this process ends."""
    torch.set_num_threads(1)
    numbers = json.loads(given)
    count(numbers, float(begun))
    {"sac": sac, "ppo": ppo}[name](numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])
