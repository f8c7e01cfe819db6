"""Parts of other libraries' documentation: each trains at first try, or one line says what to change."""

import re

import gymnasium
import numpy as np
import pytest
from tests.command import code_of

import rlrun

pytestmark = pytest.mark.usefixtures("project")
PARTS = "tests.peers.parts"
TINY = (
    *("algorithm.hidden=[8,8]", "algorithm.batch_size=4", "stop.env_steps=40", "logger=[]", "preset=null"),
    *("evaluation.every=20", "evaluation.episodes=1", "evaluation.max_steps=10"),
)
DQN = ("algorithm=dqn", *TINY, "algorithm.warmup_steps=20", "memory.length=1000")
CARTPOLE = (*DQN, "env=cartpole")
PPO = ("algorithm=ppo", "env=cartpole", *TINY, "algorithm.horizon=16", "algorithm.epochs=1")


PENDULUM = ("env=pendulum", *TINY, "algorithm.warmup_steps=20", "memory.length=1000")
SAC, TD3 = ("algorithm=sac", *PENDULUM), ("algorithm=td3", *PENDULUM)


def network(place: str, text: str) -> str:
    return f"networks.{place}={{_target_: {PARTS}.{text}}}"


def part(place: str, name: str) -> str:
    return f"{place}._target_={PARTS}.{name}"


WORKS = {
    "DQN": (*CARTPOLE, network("q", "DQN, n_observations: 4, n_actions: 2")),
    "QNetwork": (*CARTPOLE, part("networks.q", "QNetwork")),
    "actor_net": (*CARTPOLE, network("q", "actor_net, num_cells: 8, outputs: 2")),
    "SmoothL1": (*CARTPOLE, part("callbacks.q_loss", "SmoothL1")),
    "SoftQNetwork": (*SAC, part("networks.critics", "SoftQNetwork")),
    "SoftQNetwork of TD3": (*TD3, part("networks.critics", "SoftQNetwork")),
    "Actor": (*SAC, part("networks.policy", "Actor")),
    "TD3Actor": (*TD3, network("policy", "TD3Actor, state_dim: 3, action_dim: 1")),
    "TwinMSE": (*TD3, part("callbacks.q_loss", "TwinMSE")),
    "TwinMSE of SAC": (*SAC, part("callbacks.q_loss", "TwinMSE")),
    "CustomNetwork": (*PPO, part("networks.actor_critic", "CustomNetwork")),
    "CustomNetwork of numbers": (*PPO, "env=pendulum", part("networks.actor_critic", "CustomNetwork")),
    "ActorCritic": (*PPO, part("networks.actor_critic", "ActorCritic")),
    "ClippedPolicy": (*PPO, part("callbacks.ppo", "ClippedPolicy")),
    "SimpleCorridor": (*DQN, f"env.target={PARTS}.SimpleCorridor", "+env.kwargs.config.corridor_length=5"),
    "CustomEnv": (*DQN, f"env.target={PARTS}.CustomEnv", "env.kwargs.arg1=40"),
    "RelativePosition": (
        *(*DQN, f"env.target={PARTS}.GridWorldEnv"),
        f"env.wrappers=[{{_target_: {PARTS}.RelativePosition}}]",
    ),
    "DiscreteActions": (
        *(*DQN, "env=pendulum"),
        f"env.wrappers=[{{_target_: {PARTS}.DiscreteActions, disc_to_cont: [[-2.0], [0.0], [2.0]]}}]",
    ),
}
CNN = (*DQN, f"env.target={PARTS}.CustomEnv")
SAYS_HOW = {  # a call, what its one line says, and the call that the line leads to, where that is an override
    "CustomCNN": (
        (*CNN, network("q", "CustomCNN, observation_space: '${env.observation_space}', features_dim: 2")),
        "did you mean 'env.single_observation_space'",
        None,
    ),
    "CustomCNN, then": (
        (*CNN, network("q", "CustomCNN, features_dim: 2")),
        r"x.float\(\) / 255 in its forward makes numbers of images",
        (*CNN, network("q", "ScaledCNN, features_dim: 2")),
    ),
    "Agent": (
        (*PPO, f"networks.actor_critic._target_={PARTS}.Agent"),
        "it lacks act, evaluate_actions, value, head, state_size: .* a plain nn.Module returns",
        None,
    ),
    "TD3Actor": (
        (*TD3, network("policy", "TD3Actor, state_dim: 3, action_dim: 1, max_action: 2.0")),
        r"actions up to 2, wanted \[-1, 1\]",
        (*TD3, network("policy", "TD3Actor, state_dim: 3, action_dim: 1, max_action: 1.0")),
    ),
    "DQN": (
        (*CARTPOLE, network("q", "DQN, n_observations: 4, n_actions: 3")),
        r"networks.q: DQN gives \[B, 3\], wanted \[B, 2\] \(choices\)",
        None,
    ),
    "Actor of choices": (
        ("algorithm=sac", *CARTPOLE[1:], network("policy", "TD3Actor, state_dim: 4, action_dim: 2")),
        "softmax of the critics, networks.critics",
        None,
    ),
    "ValueLoss": (
        (*CARTPOLE, f"callbacks.q_loss._target_={PARTS}.ValueLoss"),
        "derive it from .* a loss from rlrun.callbacks.LossCallback",
        None,
    ),
    "TensorboardCallback": (
        (*CARTPOLE, f"+callbacks.mine._target_={PARTS}.TensorboardCallback"),
        "derive it from rlrun.training.callback.Callback",
        None,
    ),
    "PoleAngle": (
        (*CARTPOLE, f"+callbacks.mine._target_={PARTS}.PoleAngle"),
        "derive it from rlrun.training.callback.Callback",
        None,
    ),
}
WAYS = {name: way for name, (_, _, way) in SAYS_HOW.items() if way}


@pytest.mark.parametrize("overrides", [*WORKS.values(), *WAYS.values()], ids=[*WORKS, *WAYS])
def test_the_part_trains(overrides, capfd):
    assert code_of("train", *overrides) == 0, capfd.readouterr().err
    assert capfd.readouterr().out.startswith("completed: mean return ")


@pytest.mark.parametrize(("overrides", "message", "way"), SAYS_HOW.values(), ids=SAYS_HOW)
def test_one_line_says_how(overrides, message, way, capfd):
    assert code_of("train", *overrides) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert re.search(message, err), err


@pytest.mark.parametrize("name", ["QNetwork", "actor_net"])
def test_a_network_of_another_library_predicts_without_its_environment(name, monkeypatch):
    assert code_of("train", *WORKS[name], "--run-dir", "run") == 0
    monkeypatch.setattr(gymnasium, "make", None)
    action, _ = rlrun.load("run", trust=["tests"]).predict(np.zeros(4, np.float32))
    assert action in (0, 1)


@pytest.mark.parametrize("name", ["QNetwork", "actor_net"])
def test_a_network_of_another_library_is_exported(name, capfd):
    assert code_of("train", *WORKS[name], "--run-dir", "run") == 0
    assert code_of("export-onnx", "run") == 0, capfd.readouterr().err
