"""Policies that were written: their numbers by hand, what they reach, and the file that they leave."""

import math

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.imitation.handcrafted import Balance, SwingUp, Thrust, WaypointFollow
from rlrun.collect import PolicyAgent, evaluate
from rlrun.core.spaces import Box, Spaces
from rlrun.env import make
from rlrun.memory.formats.sources import table_of

from .fixed import LINE


def pendulum(angle, speed):
    return torch.tensor([[math.cos(angle), math.sin(angle), speed]])


@pytest.mark.parametrize(
    ("angle", "speed", "action"),
    [
        (math.pi, 0.1, 0.3 * (30.0 - 0.005) * 0.1 / 2.0),  # hangs: 2 · 15 of energy are missing
        (math.pi, -1.0, -1.0),  # pushed on where it goes, with all there is
        (math.pi / 2, 6.0, -0.3 * (18.0 - 15.0) * 6.0 / 2.0),  # too fast: slowed down, -2.7 at most -1
        (0.1, 0.0, -12.0 * 0.1 / 2.0),  # near the top: back
        (-0.1, 0.5, (12.0 * 0.1 - 3.0 * 0.5) / 2.0),
        (0.0, 0.0, 0.0),
    ],
)
def test_swing_up_pumps_and_holds(angle, speed, action):
    assert float(SwingUp().act(pendulum(angle, speed))) == pytest.approx(min(max(action, -1.0), 1.0), abs=1e-5)


def test_balance_follows_the_weighted_sum():
    observation = torch.tensor(
        [[1.0, 0.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.1, -0.3], [0.0, 0.0, 0.1, -0.4]]
    )
    assert Balance().act(observation).tolist() == [1, 0, 1, 0]


def test_thrusts_are_the_least_of_a_force():
    observation = torch.tensor([[0.2, -0.1, 0.01, 0.02]])
    force = -2.29 * observation[0, :2] - 9.66 * observation[0, 2:]
    thrust = Thrust().act(observation)[0].double()
    directions = torch.tensor([[1.0, 0.5**0.5, 0.0, -(0.5**0.5)], [0.0, 0.5**0.5, 1.0, 0.5**0.5]], dtype=torch.float64)
    torch.testing.assert_close(thrust, torch.linalg.pinv(directions) @ force.double(), atol=1e-6, rtol=0)
    torch.manual_seed(0)
    noisy = Thrust().act(torch.zeros(20_000, 4), explore=True).double() @ directions.T
    assert noisy.std(0).tolist() == pytest.approx([0.5, 0.5], rel=0.03)


CAR = Box((3,), np.array([0.0, -1.0, 0.0], np.float32), np.ones(3, np.float32))


def driver(**options):
    return WaypointFollow(Spaces(LINE, CAR), **options)


@pytest.mark.parametrize(
    ("goal", "speed"),
    [
        ([60.0, 0.0], 1.0),
        ([30.0, 40.0], 1.0),
        ([15.0, -20.0], 0.5),
        ([1.5, 0.0], 0.03),
        ([1.0, 0.0], 0.0),
        ([0, 0.5], 0),
    ],
)
def test_driver_slows_down_and_stops(goal, speed):
    action = driver().drive({"goal": torch.tensor([goal]), "navigation": torch.tensor([[[1.0, 1.0]]])})
    torch.testing.assert_close(action, torch.tensor([[speed, 0.25, 0.0]]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("second", "steer"), [([1.0, 0.0], 0.0), ([0.0, 2.0], 0.5), ([-1.0, -1.0], -0.75), ([3.0, 3.0, 9.0], 0.25)]
)
def test_driver_steers_for_second_waypoint(second, steer):
    first = [5.0, -5.0, 7.0][: len(second)]
    observation = {"goal": torch.tensor([[80.0, 0.0]]), "navigation": torch.tensor([[first, second]])}
    torch.testing.assert_close(driver().drive(observation), torch.tensor([[1.0, steer, 0.0]]), atol=1e-6, rtol=0)
    action = driver().act(observation)  # as policies act: each entry from -1, the lower bound, to 1
    torch.testing.assert_close(action, torch.tensor([[1.0, steer, -1.0]]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("env", "policy", "least"),
    [
        ({"id": "Pendulum-v1"}, lambda spaces: SwingUp(), -250.0),
        ({"id": "CartPole-v1"}, lambda spaces: Balance(), 500.0),
        ({"target": "rlrun.env.toys.Road"}, WaypointFollow, 89.5),
    ],
)
def test_it_reaches_what_it_promises(env, policy, least):
    envs = make(**env, num_envs=16)
    evaluation = evaluate(envs, PolicyAgent(policy(envs.spaces)), episodes=16, seed=100)
    assert (evaluation.mean_return if least < 0 else min(evaluation.returns)) >= least


def test_run_exports_demonstrations(tmp_path):
    data = tmp_path / "demonstrations.zip"
    overrides = ["algorithm=handcrafted", "env=cartpole", "stop.env_steps=1200", "evaluation.episodes=2", "logger=[]"]
    summary = rlrun.train([*overrides, f"memory.export.path={data}"], run_dir=tmp_path / "run").summary
    assert (summary["env_steps"], summary["updates"], summary["evaluation"]["mean_return"]) == (1200, 12, 500.0)
    rows = table_of(str(data)).sample(64)
    assert torch.equal(Balance().act(rows["observation"]), rows["action"])
