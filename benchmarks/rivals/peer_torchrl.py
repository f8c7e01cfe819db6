"""SAC and PPO of torchrl to be timed: python -m benchmarks.rivals.peer_torchrl NAME NUMBERS BEGUN.

As peer_stable_baselines3; loops of its collector, memory and losses in the manner of its examples.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import Compose, DoubleToFloat, GymEnv, InitTracker, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

from benchmarks.rivals.counted import count


def opened(numbers: dict[str, Any]) -> Any:
    """Return all lanes."""
    lanes = numbers["num_envs"]
    env = SerialEnv(lanes, lambda: GymEnv(numbers["env"])) if lanes > 1 else GymEnv(numbers["env"])
    return TransformedEnv(env, Compose(DoubleToFloat(), InitTracker(), StepCounter()))


def actor_of(env: Any, hidden: list[int], activation: type[nn.Module]) -> Any:
    """Return a policy of choices, or of a squashed normal distribution."""
    choices = getattr(env.action_spec_unbatched.space, "n", None)
    outputs = choices or 2 * env.action_spec_unbatched.shape[-1]
    layers = MLP(out_features=outputs, num_cells=hidden, activation_class=activation)
    if choices:
        keys, shown, kind, limits = ["logits"], layers, Categorical, {}
    else:
        keys, shown, kind = ["loc", "scale"], nn.Sequential(layers, NormalParamExtractor()), TanhNormal
        space = env.action_spec_unbatched.space
        limits = {"low": space.low, "high": space.high, "tanh_loc": False}
    return ProbabilisticActor(
        module=TensorDictModule(shown, in_keys=["observation"], out_keys=keys),
        spec=env.action_spec_unbatched,
        in_keys=keys,
        distribution_class=kind,
        distribution_kwargs=limits,
        return_log_prob=True,
    )


def sac(numbers: dict[str, Any]) -> None:
    """Train, one update a step."""
    env = opened(numbers)
    actor = actor_of(env, numbers["hidden"], nn.ReLU)
    judge = MLP(out_features=1, num_cells=numbers["hidden"], activation_class=nn.ReLU)
    critic = ValueOperator(judge, in_keys=["action", "observation"])
    with torch.no_grad():
        TensorDictSequential(actor, critic)(env.reset())
    loss = SACLoss(actor_network=actor, qvalue_network=critic, num_qvalue_nets=numbers["ensemble"])
    loss.make_value_estimator(gamma=numbers["discount"])
    slow = SoftUpdate(loss, tau=numbers["target_rate"])
    rate = {"lr": numbers["lr"]}
    critics = torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), **rate)
    policy = torch.optim.Adam(loss.actor_network_params.flatten_keys().values(), **rate)
    temperature = torch.optim.Adam([loss.log_alpha], **rate)
    memory = TensorDictReplayBuffer(storage=LazyTensorStorage(numbers["length"]), batch_size=numbers["batch_size"])
    stepped = Collector(
        env, actor, frames_per_batch=1, total_frames=10 * numbers["last"], init_random_frames=numbers["warmup_steps"]
    )
    for made, row in enumerate(stepped, start=1):
        memory.extend(row.reshape(-1))
        if made > numbers["warmup_steps"]:
            told = loss(memory.sample())
            for optimiser in (critics, policy, temperature):
                optimiser.zero_grad()
            (told["loss_qvalue"] + told["loss_actor"] + told["loss_alpha"]).backward()
            for optimiser in (critics, policy, temperature):
                optimiser.step()
            slow.step()


def ppo(numbers: dict[str, Any]) -> None:
    """Train by rollouts of all lanes."""
    env = opened(numbers)
    actor = actor_of(env, numbers["hidden"], nn.Tanh)
    value = ValueOperator(MLP(out_features=1, num_cells=numbers["hidden"], activation_class=nn.Tanh))
    with torch.no_grad():
        value(actor(env.reset()))
    advantages = GAE(gamma=numbers["discount"], lmbda=numbers["lambda"], value_network=value, average_gae=False)
    loss = ClipPPOLoss(
        actor_network=actor,
        critic_network=value,
        clip_epsilon=numbers["clip"],
        entropy_coeff=numbers["entropy_weight"],
        critic_coeff=numbers["value_weight"],
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimiser = torch.optim.Adam(loss.parameters(), lr=numbers["lr"])
    rows = numbers["horizon"] * numbers["num_envs"]
    memory = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=SamplerWithoutReplacement(), batch_size=numbers["batch_size"]
    )
    for rollout in Collector(env, actor, frames_per_batch=rows, total_frames=10 * numbers["last"]):
        with torch.no_grad():
            advantages(rollout)
        memory.extend(rollout.reshape(-1))
        for _ in range(numbers["epochs"]):
            for batch in memory:
                told = loss(batch)
                optimiser.zero_grad()
                sum(told[key] for key in ("loss_objective", "loss_critic", "loss_entropy") if key in told).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), numbers["max_grad_norm"])
                optimiser.step()


def main(name: str, given: str, begun: str) -> None:
    """Train until the window is over, when this process ends."""
    torch.set_num_threads(1)
    numbers = json.loads(given)
    count(numbers, float(begun))
    {"sac": sac, "ppo": ppo}[name](numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])
