"""Normalizing samples: where statistics come from, and what sees them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.memory import NStep, Table
from rlrun.memory.adaptors.adaptor import Adaptor, arrange
from rlrun.memory.adaptors.transforms import (
    Normalize,
    ObservationNormalize,
    ReturnNormalize,
    RewardNormalize,
    WeighRewards,
)
from rlrun.nn import Rewards
from rlrun.nn.normalizer import Normalizer, ReturnNormalizer

from .tables import add_steps

SPACES = Spaces(Box((2,), np.zeros(2), np.ones(2)), Discrete(2))


def rms(**settings: Any) -> Normalizer:
    return Normalizer([], form="rms", **settings)


def filled(*adaptors: Adaptor, rows: int = 30) -> Table:
    """Return a table in which row i has observation [i, -i], reward i + 1."""
    table = Table(length=50, spaces=SPACES, adaptors=adaptors)
    return add_steps(
        table, rows, lambda i: {"observation": np.float32([[i, -i]]), "action": [0], "reward": np.float32([i + 1])}
    )


def test_both_observations_use_the_same_statistics() -> None:
    normalizer = Normalizer(SPACES)
    table = filled(ObservationNormalize(normalizer))
    batch = table.sample(200)
    assert torch.allclose(batch["observation"].mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(batch["observation"].std(0, correction=0), torch.ones(2), atol=1e-4)
    step = batch["next_observation"] - batch["observation"]  # one step is 1 / deviation
    assert torch.allclose(step, step[0].expand_as(step), atol=1e-4)
    assert (step[0] * torch.tensor([1.0, -1.0]) > 0.05).all()


@pytest.mark.parametrize(
    ("settings", "updates"),
    [({"update": "replay"}, 2), ({"update": "rollout"}, 5), ({"update": "never"}, 0), ({"limit": 1}, 1)],
)
def test_statistics_learn_from_one_place(settings: dict[str, Any], updates: int) -> None:
    normalizer = Normalizer(SPACES, speed=1)
    adaptor = ObservationNormalize(normalizer, **settings)
    table = filled(adaptor, rows=5)
    assert normalizer.updates == (5 if updates == 5 else 0)
    batch = [table.sample(8), table.sample(8, 4)][0]
    normalizer(torch.ones(3, 2))
    assert normalizer.updates == updates
    if updates == 0:
        assert torch.equal(batch["observation"][:, 0], -batch["observation"][:, 1])
        adaptor.rollout(ROLLOUT | {"valid": torch.ones(1, 3, dtype=torch.bool)})
        assert normalizer.updates == 0
    if updates == 5:
        assert normalizer(torch.tensor([2.0, -2.0])).tolist() == pytest.approx([0.0, 0.0])  # the mean of 0 … 4


def test_padding_does_not_count() -> None:
    normalizer = Normalizer([2])
    batch = {"observation": torch.tensor([[[1.0, 2.0], [9.0, 9.0]]]), "valid": torch.tensor([[True, False]])}
    adapted = ObservationNormalize(normalizer)(batch, None)
    assert adapted["observation"][0, 0].tolist() == pytest.approx([0.0, 0.0])


def test_leaves_have_their_own_statistics() -> None:
    space = Composite({"near": Box((), np.zeros(()), np.ones(())), "far": Box((), np.zeros(()), np.ones(()))})
    adaptor = ObservationNormalize(Normalizer(Spaces(space, Discrete(2)), leaves=["far"]))
    observation = {"near": torch.tensor([1.0, 3.0]), "far": torch.tensor([100.0, 300.0])}
    batch = adaptor({"observation": observation, "next_observation": observation}, None)
    assert batch["observation"]["far"].tolist() == pytest.approx([-1.0, 1.0])
    assert batch["next_observation"]["near"].tolist() == [1.0, 3.0]
    assert adaptor.requires == ("observation.far",)


def test_columns_are_normalized_and_clipped() -> None:
    batch = {"reward": torch.tensor([3.0, -4.0, 0.0, 5.0])}  # squares 9 + 16 + 0 + 25 = 50, mean 12.5
    rewards = RewardNormalize(rms())(batch, None)["reward"]
    assert torch.allclose(rewards, batch["reward"] / 12.5**0.5)
    clipped = RewardNormalize(rms(clip=2.0), limit=1)
    clipped({"reward": torch.ones(10)}, None)
    assert clipped({"reward": torch.tensor([100.0, -100.0, 0.5])}, None)["reward"].tolist() == [2.0, -2.0, 0.5]
    height = Normalize("height", Normalizer([]))({"height": torch.tensor([1.0, 3.0])}, None)["height"]
    assert height.tolist() == pytest.approx([-1.0, 1.0])


def test_sums_are_of_normalized_rewards() -> None:
    normalizer = rms(clip=1.0)
    normalizer.update(torch.full((4,), 10.0))  # so a reward of 10 is 1
    n_step = NStep(steps=3, discount=1.0)
    batch = filled(n_step, RewardNormalize(normalizer, update="never")).sample(200)
    start = batch["observation"][:, :1]
    steps = (start + torch.arange(1, 4)).clamp(max=30)  # rewards 1 … 30
    count = (batch["next_observation"][:, 0] - start[:, 0]).round()[:, None]
    expected = ((steps / 10).clamp(max=1) * (torch.arange(3) < count)).sum(1)
    assert torch.allclose(batch["reward"], expected)


def test_statistics_are_of_single_steps() -> None:
    normalizer = rms(speed=1)
    table = filled(NStep(steps=10, discount=1.0), RewardNormalize(normalizer))
    for _ in range(100):
        table.sample(64)
    assert float(normalizer(torch.tensor(1.0))) == pytest.approx((29 * 59 / 6) ** -0.5 * 1.0, rel=0.05)


ROLLOUT = {
    "observation": torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]]),
    "reward": torch.tensor([[3.0, 4.0, 9.0]]),
}


@pytest.mark.parametrize("update", ["replay", "rollout"])
def test_rollouts_are_normalized_before_learning(update: Any) -> None:
    normalizer = Normalizer([2])
    adaptor = ObservationNormalize(normalizer, update=update)
    batch = ROLLOUT | {"valid": torch.tensor([[True, True, False]])}
    assert torch.equal(adaptor.rollout(batch)["observation"], batch["observation"])  # there were no statistics
    assert normalizer(torch.tensor([2.0, 4.0])).tolist() == pytest.approx([0.0, 0.0])  # the mean of the first two
    later = adaptor.rollout(batch | {"observation": batch["observation"] + 4})["observation"]
    assert later[0, 0].tolist() == pytest.approx([3.0, 1.0])  # (5 - 2) / 1, (6 - 4) / 2
    assert normalizer(torch.tensor([4.0, 6.0])).tolist() == pytest.approx([0.0, 0.0])  # each row counts alike


def vec_normalize(reward: Any, episode_end: Any, discount: float) -> float:
    """Return the deviation of running discounted returns, of rewards [T, N], step by step as VecNormalize has it."""
    returns, seen = np.zeros(reward.shape[1]), []
    for now, over in zip(reward, episode_end, strict=True):
        returns = returns * discount + now
        seen.extend(returns)
        returns[over] = 0.0
    return float(np.std(seen))


RNG = np.random.default_rng(0)
REWARD, ENDED = RNG.normal(2.0, 3.0, (40, 3)).astype(np.float32), RNG.random((40, 3)) < 0.1


def returns_normalized(clip: float | None = 10.0) -> ReturnNormalize:
    return ReturnNormalize(ReturnNormalizer(discount=0.9, num_envs=3, clip=clip))


def table_with_episode(adaptor: ReturnNormalize) -> Table:
    """Return a table of three envs with an episode of the rewards 1 and 2, added as a whole."""
    table = Table(length=50, num_envs=3, spaces=SPACES, adaptors=[adaptor])
    row = {"observation": np.zeros((2, 2), np.float32), "action": [0, 0], "reward": np.float32([1.0, 2.0])}
    table.add_episode(row | {"terminated": [False, False], "truncated": [False, True]}, np.zeros(2, np.float32))
    return table


def test_table_rewards_use_returns_deviation() -> None:
    adaptor = returns_normalized()
    table = Table(length=200, num_envs=3, spaces=SPACES, adaptors=[adaptor])
    for at, (reward, episode_end) in enumerate(zip(REWARD, ENDED, strict=True)):
        row = {"observation": np.zeros((3, 2), np.float32), "action": [0, 0, 0], "reward": reward}
        table.add(None, row | {"terminated": episode_end & (at % 2 == 0), "truncated": episode_end & (at % 2 == 1)})
        if episode_end.any():
            table.close(episode_end, np.zeros((int(episode_end.sum()), 2), np.float32))
    rewards = torch.tensor([1.0, -2.0, 1e9])
    wanted = rewards / vec_normalize(REWARD, ENDED, 0.9)
    normalized = adaptor({"reward": rewards}, None)["reward"]
    torch.testing.assert_close(normalized, wanted.clamp(-10, 10), rtol=1e-5, atol=0)


@pytest.mark.parametrize("several", [False, True])
def test_rollout_rewards_use_returns_deviation(several: bool) -> None:
    adaptor, apart = returns_normalized(clip=None), WeighRewards([2.0, 1.0], apart=Rewards([2.0, 1.0]))
    for first, last in ((0, 25), (25, 40)):  # episodes go on from the one to the other
        part = {"reward": REWARD[first:last], "terminated": ENDED[first:last], "truncated": ENDED[first:last] * False}
        batch = {name: torch.from_numpy(array).transpose(0, 1) for name, array in part.items()}
        if several:  # whose sum by these weights is the reward
            arrange([apart, adaptor], rewards=2, on_policy=True)
            batch["reward"] = torch.stack((batch["reward"], -batch["reward"]), -1)
        rewards = adaptor.rollout(batch | {"valid": torch.ones_like(batch["terminated"])})["reward"]
        torch.testing.assert_close(rewards, batch["reward"] / vec_normalize(REWARD[:last], ENDED[:last], 0.9))
        restored = returns_normalized(clip=None)
        restored.normalizer.load_state_dict(adaptor.normalizer.state_dict())
        adaptor = restored


def test_returns_follow_order_of_rows() -> None:
    first, second = returns_normalized().normalizer, returns_normalized()
    steps, episode_end = np.array([[1.0, 9.0, 2.0]]), np.zeros((1, 3), np.bool_)
    first.advance(steps, episode_end, np.array([[True, False, True]]), np.array([1]))
    assert first.running.tolist() == pytest.approx([0.0, 2.9, 0.0])
    table_with_episode(second)
    assert float(second.normalizer(torch.tensor(1.0))) == pytest.approx(1 / np.std([1.0, 2.9]))
    assert second.normalizer.running.tolist() == [0.0, 0.0, 0.0]


def test_statistics_learn_from_files(tmp_path: Path) -> None:
    first, second = returns_normalized(), returns_normalized()
    table_with_episode(first).store(tmp_path / "memory.zip")
    refilled = Table(length=50, num_envs=3, spaces=SPACES, adaptors=[second])
    refilled.restore(tmp_path / "memory.zip")
    assert float(second.normalizer(torch.tensor(1.0))) == pytest.approx(float(first.normalizer(torch.tensor(1.0))))
    counted = second.normalizer.updates
    with refilled.unobserved():  # as a resumed run, whose statistics are saved, takes the file in again
        refilled.restore(tmp_path / "memory.zip")
    assert (len(refilled), second.normalizer.updates) == (2, counted)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^update: wanted one of .* \(did you mean 'replay'\?\)"):
        ObservationNormalize(Normalizer([2]), update="reply")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Normalize reads 'heigth'"):
        filled(Normalize("heigth", Normalizer([])))
