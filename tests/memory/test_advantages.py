"""Advantages of whole rollouts: the values of a network that can be computed by hand, and the ends of episodes."""

import numpy as np
import pytest
import torch
from torch import nn

from rlrun import ops
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Advantages
from rlrun.nn import ActorCritic, MixedPrecision, Rewards


class Sum(nn.Module):
    """The value of an observation is the sum of its entries."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.rows: list[int] = []

    def value(self, observation):
        self.rows.append(len(observation))
        return observation.sum(-1)

    def evaluate_actions(self, observation, action):
        class Found:
            value = observation.sum(-1)
            log_prob = -action.float()

        self.rows.append(len(observation))
        return Found


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(0)
    observation, final_observation = (torch.randn(3, 5, 2, generator=draw) for _ in range(2))
    terminated, truncated = torch.zeros(2, 3, 5, dtype=torch.bool)
    terminated[0, 1], truncated[1, 2] = True, True
    last = terminated | truncated
    last[:, -1] = True
    following = torch.where(last.unsqueeze(-1), final_observation, observation.roll(-1, 1))
    return {
        "observation": observation,
        "action": torch.randint(0, 3, (3, 5), generator=draw),
        "reward": torch.randn(3, 5, generator=draw),
        "terminated": terminated,
        "truncated": truncated,
        "next_observation": following,
    }


def test_next_values_use_next_observations(batch):
    adapted = Advantages(Sum(), discount=0.9, lambda_=0.8)(batch, None)
    episode_end = batch["terminated"] | batch["truncated"]
    value, following = batch["observation"].sum(-1), batch["next_observation"].sum(-1)
    options = {"terminated": batch["terminated"], "episode_end": episode_end, "discount": 0.9}
    torch.testing.assert_close(adapted["value"], value)
    torch.testing.assert_close(adapted["log_prob"], -batch["action"].float())
    torch.testing.assert_close(adapted["advantage"], ops.gae(batch["reward"], value, following, lambda_=0.8, **options))
    torch.testing.assert_close(adapted["return_"], adapted["advantage"] + value)


def test_images_may_go_through_in_pieces(batch):
    networks = Sum(), Sum()
    adaptors = [Advantages(network, discount=0.9, lambda_=0.8) for network in networks]
    adaptors[1].chunk = 4
    whole, pieces = (adaptor(batch, None) for adaptor in adaptors)
    assert networks[0].rows == [15, 5]  # all rows; the ends of three windows, a terminated and a truncated step
    assert max(networks[1].rows) == 4
    for name in ("value", "log_prob", "advantage", "return_"):
        assert torch.equal(pieces[name], whole[name])


def test_log_prob_is_stored_computed_or_absent(batch):
    stored = torch.randn(3, 5)
    adapted = Advantages(Sum(), discount=0.9, lambda_=0.8)(batch | {"log_prob": stored}, None)
    assert torch.equal(adapted["log_prob"], stored)
    adaptor = Advantages(Sum(), discount=0.9, lambda_=0.8, log_prob=False)
    assert adaptor.provides == ("value", "advantage", "return_")
    assert "log_prob" not in adaptor(batch, None)


def test_returns_may_have_another_lambda(batch):
    estimates = Advantages(Sum(), discount=0.9, lambda_=0.8, return_lambda=1.0)(batch, None)
    monte_carlo = Advantages(Sum(), discount=0.9, lambda_=1.0)(batch, None)
    torch.testing.assert_close(estimates["return_"], monte_carlo["return_"])
    assert not torch.allclose(estimates["advantage"], monte_carlo["advantage"])


def weighed(batch, ratio, **options):
    """Return V-trace's targets where the action was so many times less likely once than now."""
    stored = -batch["action"].float() - torch.as_tensor(ratio).log()
    return Advantages(Sum(), discount=0.9, v_trace=True, **options)(batch | {"log_prob": stored}, None), stored


def test_v_trace_without_change_equals_lambda(batch):
    weighted, stored = weighed(batch, 1.0, lambda_=0.8)
    plain = Advantages(Sum(), discount=0.9, lambda_=0.8)(batch, None)
    torch.testing.assert_close(weighted["return_"], plain["return_"])
    assert torch.equal(weighted["log_prob"], stored)
    without = Advantages(Sum(), discount=0.9, lambda_=0.8, v_trace=True)(batch, None)
    torch.testing.assert_close(without["advantage"], weighted["advantage"])


def test_v_trace_clips_ratios_at_one(batch):
    half, _ = weighed(batch, 0.5, lambda_=0.0)
    error = batch["reward"] + 0.9 * batch["next_observation"].sum(-1) * ~batch["terminated"] - half["value"]
    torch.testing.assert_close(half["return_"], half["value"] + 0.5 * error)
    last = half["advantage"][:, -1]  # the one row whose advantage looks no further
    torch.testing.assert_close(last, 0.5 * error[:, -1])
    double, once = (weighed(batch, ratio, lambda_=0.8)[0] for ratio in (2.0, 1.0))
    torch.testing.assert_close(double["advantage"], once["advantage"])


@pytest.mark.parametrize("discount", [0.9, [0.9, 0.5]])
@pytest.mark.parametrize("options", [{}, {"return_lambda": 0.3}, {"v_trace": True}])
def test_each_reward_has_returns(batch, discount, options):
    spaces = Spaces(Box((2,), np.full(2, -1.0), np.full(2, 1.0)), Discrete(3))
    network = ActorCritic(spaces, hidden=(4,), rewards=Rewards([2.0, -1.0]))
    batch |= {"log_prob": torch.full((3, 5), -1.3), "reward": torch.stack((batch["reward"], 1 - batch["reward"]), -1)}
    adapted = Advantages(network, discount=discount, lambda_=0.8, **options)(batch, None)
    advantage = torch.zeros(3, 5)
    for index, weight in enumerate((2.0, -1.0)):
        alone, one = ActorCritic(spaces, hidden=(4,)), slice(index, index + 1)
        state = network.state_dict()
        alone.load_state_dict({name: part[one] if "value_head" in name else part for name, part in state.items()})
        factor = discount if isinstance(discount, float) else discount[index]
        single = Advantages(alone, discount=factor, lambda_=0.8, **options)
        expected = single(batch | {"reward": batch["reward"][..., index]}, None)
        for name in ("value", "return_"):
            torch.testing.assert_close(adapted[name][..., index], expected[name])
        advantage += weight * expected["advantage"]
    torch.testing.assert_close(adapted["advantage"], advantage)


def test_values_have_the_precision_of_updates(batch, monkeypatch):
    """Otherwise the first ratios of a rollout would not be 1."""
    monkeypatch.setattr("rlrun.nn.precision.has_bfloat16", lambda device: True)
    spaces = Spaces(Box((2,), np.full(2, -1.0), np.full(2, 1.0)), Discrete(3))
    network = ActorCritic(spaces, hidden=(256, 256), output_gain=1.0)
    low = MixedPrecision("bf16", "cpu")
    options = {"discount": 0.9, "lambda_": 0.8}
    plain, mixed = (Advantages(network, **options, **around)(batch, None) for around in ({}, {"around": low}))
    with low:
        evaluated = network.evaluate_actions(batch["observation"], batch["action"])
    for name in ("log_prob", "value"):
        torch.testing.assert_close(mixed[name], getattr(evaluated, name), atol=1e-6, rtol=0.0)
        assert (plain[name] - mixed[name]).abs().max() > 1e-5
