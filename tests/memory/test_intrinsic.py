"""Intrinsic rewards as an adaptor: added once, to the right transitions, and nothing stored is changed."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.core.typing import Batch
from rlrun.memory import (
    Hindsight,
    Intrinsic,
    NStep,
    ObservationNormalize,
    Prefetch,
    ReplayLoader,
    Rollout,
    RolloutLoader,
    Scale,
    StepReward,
    Table,
    UniformEjector,
    effort,
)
from rlrun.memory.adaptors.intrinsic import Bonus
from rlrun.memory.adaptors.transforms import RewardClip, RewardScale
from rlrun.nn.normalizer import Normalizer

from .tables import add_steps

LINE = Box((1,), np.full(1, -np.inf), np.full(1, np.inf))
SPACES = Spaces(LINE, Discrete(3))


class Constant(Bonus):
    """Finds 0.5 everywhere."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nn.Linear(1, 1), **options)

    def view(self, step: Batch) -> Batch:
        return {"observation": self.seen(step["next_observation"])}

    def measure(self, view: Batch) -> Tensor:
        return torch.full(view["observation"].shape[:-1], 0.5)


class Linear(Constant):
    """Finds 100 times the observation, 10 times the action and the next observation, so that each can be read off."""

    requires = ("observation", "action", "next_observation")

    def view(self, step: Batch) -> Batch:
        return {name: self.seen(step[name]) if name != "action" else step[name] for name in self.requires}

    def measure(self, view: Batch) -> Tensor:
        return 100 * view["observation"][..., 0] + 10 * view["action"] + view["next_observation"][..., 0]


def bonus_of(step: int, first: int = 0) -> float:
    """Return what `Linear` finds of a step of an episode whose first observation is given."""
    return 100 * (first + step) + 10 * (step % 3) + (first + step + 1)


def filled(*adaptors: Any, lengths: Any = (4,), opened: int = 0, **settings: Any) -> Table:
    """Store episodes: observation 10 e + i, action i % 3, reward i + 1 at step i of episode e; they terminate."""
    table = Table(length=60, spaces=SPACES, adaptors=adaptors, **settings)
    for episode, length in enumerate([*lengths, opened]):
        first, last = 10.0 * episode, [[10.0 * episode + length]] if episode < len(lengths) else None
        row = [{"observation": [[first + i]], "action": [i % 3], "reward": [i + 1]} for i in range(length)]
        add_steps(table, length, row.__getitem__, end="terminated" if last else None, last=last)
    return table


def by_observation(batch: Batch, value: Tensor) -> dict[float, float]:
    """Return a column by the observation of its row."""
    return dict(zip(batch["observation"].flatten().tolist(), value.flatten().tolist(), strict=True))


def rollout(*adaptors: Any, ends: Any = (), horizon: int = 6, **settings: Any) -> RolloutLoader:
    """Return rollouts of two envs: env n observes 100 n + i; after rows in `ends` 0.5 more, and then i goes on."""
    table = Rollout(spaces=SPACES, num_envs=2)

    class Script:
        steps = 0
        observation = np.float32([[0], [100]])

        def collect(self, steps: int, random: bool = False) -> int:
            i = self.steps // 2
            row = {"observation": self.observation, "action": np.array([i % 3] * 2), "reward": np.float32([1, 2])}
            episode_end = i in ends
            table.add(None, row | {"terminated": [episode_end, False], "truncated": [False, False]})
            self.steps += 2
            self.observation = self.observation + 1
            if episode_end:
                table.close(np.array([0]), self.observation[:1] + 0.5)
            return 2

    return RolloutLoader(table=table, collector=Script(), horizon=horizon, adaptors=adaptors, **settings)


def batch_of(loader: Any) -> Batch:
    (groups,) = itertools.islice(loader, 1)
    return groups["default"]


def half(**settings: Any) -> Intrinsic:
    return Intrinsic({"half": Constant(weight=2.0)}, extrinsic_weight=0.0, **settings)


def test_constant_bonus_is_added_once():
    assert (batch_of(rollout(half()))["reward"] == 1.0).all()
    table = filled(half())
    for _ in range(3):
        assert (table.sample(50)["reward"] == 1.0).all()
        assert (table.sample(20, 3)["reward"] == 1.0).all()
    assert table.storage.gather("reward", np.arange(4)).tolist() == [1, 2, 3, 4]


def test_rewards_are_summed_with_bonuses():
    bonuses = {"half": Constant(weight=2.0), "linear": Linear(weight=0.5), "none": None}
    batch = filled(Intrinsic(bonuses, extrinsic_weight=2.0)).sample(100)
    assert by_observation(batch, batch["reward"]) == {i: 2.0 * (i + 1) + 1.0 + 0.5 * bonus_of(i) for i in range(4)}


@pytest.mark.parametrize("ejector", [None, UniformEjector(seed=0)], ids=["ring", "pool"])
@pytest.mark.parametrize("length", [1, 2])
def test_n_step_sums_the_bonuses(ejector, length):
    table = filled(
        NStep(steps=3, discount=0.5), Intrinsic({"linear": Linear()}), lengths=(4, 3), opened=3, ejector=ejector
    )
    rewards: dict[float, float] = {}
    for _ in range(30):
        batch = table.sample(100, length)
        rewards |= by_observation(batch, batch["reward"])
    expected = {}
    for first, count in ((0, 4), (10, 3), (20, 2)):  # of the open episode the last row waits for its successor
        paid = [i + 1 + bonus_of(i, first) for i in range(count)]
        sums = [sum(0.5**k * value for k, value in enumerate(paid[i : i + 3])) for i in range(count)]
        expected |= {first + i: value for i, value in enumerate(sums)}
    assert rewards == expected


def linear(observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
    """Return what `Linear` finds."""
    return 100 * observation[..., 0] + 10 * action + next_observation[..., 0]


def test_functions_pay_for_transitions():
    intrinsic = Intrinsic({"step_reward": StepReward(linear, weight=0.5)}, extrinsic_weight=2.0)
    batch = filled(NStep(steps=2, discount=1.0), intrinsic).sample(100)
    paid = [2.0 * (i + 1) + 0.5 * bonus_of(i) for i in range(4)]
    assert by_observation(batch, batch["reward"]) == {i: sum(paid[i : i + 2]) for i in range(4)}
    batch = batch_of(rollout(intrinsic))
    assert by_observation(batch, batch["reward"])[103.0] == 2.0 * 2.0 + 0.5 * bonus_of(3, 100)
    assert effort(torch.zeros(1, 3), torch.tensor([[0.5, 1.0]]), torch.zeros(1, 3)).tolist() == [-0.625]
    with pytest.raises(ConfigError, match=r"continuous actions alone; step_reward\._target_="):
        effort(torch.zeros(1, 3), torch.tensor([1]), torch.zeros(1, 3))


def test_rewards_of_another_shape_are_refused():
    column = Intrinsic({"step_reward": StepReward(lambda observation, action, following: following)})
    with pytest.raises(ConfigError, match=r"step_reward: wanted rewards \[4\], one a step, got \[4, 1\]"):
        filled(column).sample(4)


def test_reward_adaptors_keep_their_order():
    intrinsic = Intrinsic({"linear": Linear()})
    before = filled(RewardClip(-1, 1), intrinsic, NStep(steps=2, discount=1.0)).sample(100)
    assert by_observation(before, before["reward"])[1] == 2.0 + bonus_of(1) + bonus_of(2)
    after = filled(intrinsic, RewardScale(0.5), NStep(steps=2, discount=1.0)).sample(100)
    assert by_observation(after, after["reward"])[1] == 0.5 * (2.0 + 3.0 + bonus_of(1) + bonus_of(2))


def test_wrong_uses_are_refused():
    with pytest.raises(ConfigError, match=r"Intrinsic.bonuses: there is none"):
        Intrinsic({"rnd": None})
    with pytest.raises(ConfigError, match=r"what Intrinsic makes of a batch depends on the update before"):
        Prefetch(ReplayLoader(table=filled(half()), collector=None, batch=4))


@pytest.mark.parametrize("chunk", [1, 5, 4096])
def test_rollouts_pay_for_last_observations(chunk):
    bonus = Linear()
    bonus.chunk = chunk
    batch = batch_of(rollout(Intrinsic({"linear": bonus}, extrinsic_weight=0.0), ends=(2,)))
    expected = {env_index + i: bonus_of(i, env_index) for env_index in (0, 100) for i in range(6)}
    expected[2] += 0.5  # where env 0 arrived, not where its next episode begins
    assert by_observation(batch, batch["reward"]) == expected


def test_bonuses_see_the_goals_of_hindsight():
    spaces = Spaces(Composite({"achieved_goal": LINE, "desired_goal": LINE}), Discrete(2))

    class Wanted(Constant):
        def measure(self, view: Batch) -> Tensor:
            return view["observation"]["desired_goal"][..., 0]

    hindsight = Hindsight(reward=lambda achieved, desired: np.zeros(achieved.shape[:-1], np.float32), share=1.0)
    hindsight.terminated = None
    adaptors = [NStep(steps=3, discount=1.0), Intrinsic({"wanted": Wanted()}), hindsight]
    table = Table(length=50, spaces=spaces, adaptors=adaptors)
    goals = [{"achieved_goal": [[i]], "desired_goal": [[-1.0]]} for i in range(20)]
    add_steps(table, 20, lambda i: {"observation": goals[i], "action": [0], "reward": [0.0]})
    batch = table.sample(200)
    goal, step = batch["observation"]["desired_goal"][:, 0], batch["observation"]["achieved_goal"][:, 0]
    assert (goal > step).all()
    assert torch.equal(batch["reward"], (19 - step).clamp(max=3) * goal)  # row 19 waits for its next observation


def test_loss_gets_single_transitions():
    normalize = ObservationNormalize(Normalizer(SPACES))
    table = filled(
        Intrinsic({"linear": Linear()}), NStep(steps=3, discount=0.5), Scale("observation", factor=7.0), normalize
    )
    view = table.sample(100)["linear"]
    assert torch.equal(view["next_observation"], view["observation"] + 1)
    assert torch.equal(view["action"], view["observation"][:, 0].long() % 3)
    assert torch.equal(
        view["bonus"], 100 * view["observation"][:, 0] + 10 * view["action"] + view["next_observation"][:, 0]
    )


def test_rollouts_keep_the_bonus_inputs():
    loader = rollout(Intrinsic({"linear": Linear()}), columns=["observation"], minibatch=4, epochs=2)
    assert loader.names() == {"default": ("observation", "linear")}
    for groups in itertools.islice(loader, 6):
        batch = groups["default"]
        assert set(batch) == {"observation", "linear"}
        assert torch.equal(batch["linear"]["observation"], batch["observation"])
        assert torch.equal(batch["linear"]["next_observation"], batch["observation"] + 1)


def normalized(**settings: Any) -> tuple[Linear, Normalizer, Normalizer]:
    seen, reward_norm = Normalizer(SPACES, speed=1), Normalizer([], form="rms", speed=1)
    return Linear(observation=seen, reward=reward_norm, **settings), seen, reward_norm


def test_statistics_move_once_a_sample():
    bonus, seen, reward_norm = normalized()
    table = filled(Intrinsic({"linear": bonus}), NStep(steps=2, discount=0.0))  # 0: only the first step's reward counts
    for count in range(1, 4):
        batch = table.sample(50)
        assert (seen.updates, reward_norm.updates) == (count, count)
        reward = batch["linear"]["bonus"] + batch["observation"][:, 0] + 1  # looked up as sampled
        assert torch.allclose(batch["reward"], reward)


def test_statistics_use_next_observations():
    bonus, seen, reward_norm = normalized()
    batch = batch_of(rollout(Intrinsic({"linear": bonus}, extrinsic_weight=0.0), ends=(2,), epochs=3))
    following = batch["next_observation"][:, 0].double()
    assert following.max() == 106
    assert 3.5 in following
    moments = seen.statistics[0].moments[:, 0]
    assert torch.allclose(moments, torch.stack([following.mean(), following.square().mean()]))
    assert (seen.updates, reward_norm.updates) == (1, 1)
    assert batch["reward"].square().mean().sqrt() == pytest.approx(1.0, abs=1e-5)  # of the first batch by itself


def test_padding_moves_no_statistics():
    bonus, seen, _ = normalized()
    table = filled(Intrinsic({"linear": bonus}), lengths=(2, 2), short="pad")
    batch = table.sample(64, 5)
    assert not batch["valid"].all()
    following = batch["next_observation"][batch["valid"]]
    assert seen.statistics[0].moments[0, 0] == pytest.approx(float(following.double().mean()), rel=1e-6)
