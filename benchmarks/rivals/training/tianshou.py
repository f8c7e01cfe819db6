"""tianshou, by its algorithms, collectors and trainers, with the numbers of a run of rlrun; it tests nothing.

It has no option to clip the gradients of DQN, nor to normalize the advantages of A2C.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from tianshou.algorithm import A2C, DQN, PPO, SAC, TD3
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic, dist_fn_categorical_from_logits
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from benchmarks.rivals.training.work import Work

PACKAGES = ("tianshou",)
BURST = 256  # env steps from one lot of DQN's updates to the next
Numbers = dict[str, Any]


class Networks:
    """Networks and optimizers of the sizes and rates of a run."""

    def __init__(self, env: str, numbers: Numbers) -> None:
        environment = gymnasium.make(env)
        self.spaces = {"action_space": environment.action_space, "observation_space": environment.observation_space}
        self.observation, self.space = environment.observation_space.shape, environment.action_space
        self.action = self.space.shape if isinstance(self.space, Box) else self.space.n
        self.numbers = numbers

    def below(self, **options: Any) -> Net:
        """Return layers for whatever stands on them."""
        return Net(state_shape=self.observation, hidden_sizes=list(self.numbers["hidden"]), **options)

    def critic(self) -> ContinuousCritic:
        """Return Q(s, a)."""
        return ContinuousCritic(preprocess_net=self.below(action_shape=self.action, concat=True))

    def adam(self) -> AdamOptimizerFactory:
        """Return what makes an optimizer."""
        return AdamOptimizerFactory(lr=self.numbers["lr"])


def sac(networks: Networks, numbers: Numbers) -> SAC:
    """Return soft actor-critic."""
    actor = ContinuousActorProbabilistic(
        preprocess_net=networks.below(), action_shape=networks.action, unbounded=True, conditioned_sigma=True
    )
    log_alpha = float(np.log(numbers["temperature"]["initial"]))
    return SAC(
        policy=SACPolicy(actor=actor, **networks.spaces),
        policy_optim=networks.adam(),
        critic=networks.critic(),
        critic_optim=networks.adam(),
        critic2=networks.critic(),
        critic2_optim=networks.adam(),
        tau=numbers["tau"],
        gamma=numbers["discount"],
        alpha=AutoAlpha(-float(np.prod(networks.action)), log_alpha, networks.adam()),
    )


def td3(networks: Networks, numbers: Numbers) -> TD3:
    """Return twin delayed deterministic policy gradients."""
    actor = ContinuousActorDeterministic(preprocess_net=networks.below(), action_shape=networks.action)
    noise = numbers["noise"]
    policy = ContinuousDeterministicPolicy(
        actor=actor, exploration_noise=GaussianNoise(sigma=noise["deviation"]), **networks.spaces
    )
    return TD3(
        policy=policy,
        policy_optim=networks.adam(),
        critic=networks.critic(),
        critic_optim=networks.adam(),
        critic2=networks.critic(),
        critic2_optim=networks.adam(),
        tau=numbers["tau"],
        gamma=numbers["discount"],
        policy_noise=noise["target"],
        noise_clip=noise["target_limit"],
        update_actor_freq=numbers["policy_every"],
    )


def dqn(networks: Networks, numbers: Numbers) -> DQN:
    """Return deep Q-learning; hardly a random action, the dearest case."""
    policy = DiscreteQLearningPolicy(
        model=networks.below(action_shape=networks.action), eps_training=numbers["epsilon"]["last"], **networks.spaces
    )
    return DQN(
        policy=policy,
        optim=networks.adam(),
        gamma=numbers["discount"],
        target_update_freq=numbers["target_every"],
        is_double=numbers["double"],
        huber_loss_delta=numbers["huber"],
    )


def actor_critic(networks: Networks, numbers: Numbers) -> dict[str, Any]:
    """Return what PPO and A2C have in common: policy and value with layers of their own."""
    actor_below, critic_below = (networks.below(activation=torch.nn.Tanh) for _ in range(2))
    if isinstance(networks.space, Box):
        options = {"dist_fn": normal, "action_bound_method": "clip"}
        actor: Any = ContinuousActorProbabilistic(
            preprocess_net=actor_below, action_shape=networks.action, unbounded=True
        )
        critic: Any = ContinuousCritic(preprocess_net=critic_below)
    else:
        options = {"dist_fn": dist_fn_categorical_from_logits, "action_scaling": False, "action_bound_method": None}
        actor = DiscreteActor(preprocess_net=actor_below, action_shape=networks.action, softmax_output=False)
        critic = DiscreteCritic(preprocess_net=critic_below)
    return {
        "policy": ProbabilisticActorPolicy(actor=actor, **options, **networks.spaces),
        "critic": critic,
        "optim": networks.adam(),
        "vf_coef": numbers["value_weight"],
        "ent_coef": numbers["entropy_weight"],
        "max_grad_norm": numbers["max_grad_norm"],
        "gae_lambda": numbers["lambda"],
        "gamma": numbers["discount"],
    }


def normal(parameters: tuple[Tensor, Tensor]) -> Distribution:
    """Return the distribution of actions."""
    return Independent(Normal(*parameters), 1)


def ppo(networks: Networks, numbers: Numbers) -> PPO:
    """Return proximal policy optimization."""
    own = {"eps_clip": numbers["clip"], "advantage_normalization": numbers["normalize"]}
    return PPO(**actor_critic(networks, numbers), **own)


def a2c(networks: Networks, numbers: Numbers) -> A2C:
    """Return advantage actor-critic."""
    return A2C(**actor_critic(networks, numbers))


MADE = {"sac": sac, "td3": td3, "dqn": dqn, "ppo": ppo, "a2c": a2c}


def train(work: Work) -> None:
    """Go on past the window."""
    numbers, num_envs = work.numbers, work.numbers["num_envs"]
    torch.manual_seed(0)
    algorithm: Algorithm[Any, Any] = MADE[work.algorithm](Networks(work.env, numbers), numbers)
    envs = DummyVectorEnv([lambda: gymnasium.make(work.env)] * num_envs)
    rollout = numbers.get("horizon", 0) * num_envs
    collector: Any = Collector(
        algorithm,
        envs,
        VectorReplayBuffer(rollout or numbers["length"], num_envs),
        exploration_noise=work.algorithm in ("td3", "dqn"),
    )
    collector.reset()
    shared: dict[str, Any] = {"training_collector": collector, "max_epochs": 1, "epoch_num_steps": 10 * work.last}
    shared |= {"verbose": False, "show_progress": False}
    if rollout:
        own = {"collection_step_num_env_steps": rollout, "batch_size": numbers.get("batch_size", rollout)}
        repetitions = numbers.get("epochs", 1)
        algorithm.run_training(OnPolicyTrainerParams(**shared, **own, update_step_num_repetitions=repetitions))
        return
    collector.collect(n_step=numbers["warmup_steps"], random=True)
    own = {"collection_step_num_env_steps": BURST if work.algorithm == "dqn" else 1}
    own |= {"batch_size": numbers["batch_size"]}
    share = numbers["updates_per_step"]
    algorithm.run_training(OffPolicyTrainerParams(**shared, **own, update_step_num_gradient_steps_per_sample=share))
