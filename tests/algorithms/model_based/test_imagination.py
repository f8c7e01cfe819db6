"""Imagined rows: 50 of a model that multiplies, with ends inside an episode; and runs that learn from them."""

import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv
from torch import nn

import rlrun
from rlrun.algorithms.model_based.imagination import Imagination
from rlrun.core.errors import ConfigError, RequestError, SpaceError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Composite, Spaces
from rlrun.env import ModelEnv
from rlrun.memory import Mix, Table
from rlrun.nn import Dynamics, WorldModel

from .test_planning import box

SPACES = Spaces(box(2, 1e6), box(2))
FACTOR = 1.5


class Multiplies(nn.Module):
    """s' = 1.5 s, and the reward is the sum of s'."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.empty = nn.Parameter(torch.zeros(1))

    def forward(self, rows):
        state = rows[:, :2]
        return torch.cat(((FACTOR - 1.0) * state, FACTOR * state.sum(1, keepdim=True)), 1)


class Agent:
    outputs = ("action",)

    def __call__(self, observation, state=None, *, explore=True):
        assert explore
        return {"action": np.ones((len(observation), 2), np.float32)}


def model(ended=None, members=3):
    dynamics = Dynamics(SPACES, members=members, elites=None, deterministic=True, ends=False, network=Multiplies)
    return WorldModel(dynamics, ended=ended)


def imagined(length=5, *, envs=10, ended=None, **options):
    table = Table(grows=True, length=envs, num_envs=envs, spaces=SPACES)
    part = Imagination(model(ended), Agent(), table, SPACES, length=length, after=0, **options)
    return part, table


def rows_of(table, count=400):
    sample = table.sample(count)
    return {name: value.numpy() for name, value in sample.items()}


def test_rows_are_those_of_the_model():
    part, table = imagined()
    start = torch.from_numpy(np.random.default_rng(0).uniform(1.0, 2.0, (10, 2)).astype(np.float32))
    part.begin_batch(start, 0)
    assert len(table) == 50
    rows = rows_of(table)
    np.testing.assert_allclose(rows["next_observation"], FACTOR * rows["observation"], rtol=1e-3)
    np.testing.assert_allclose(rows["reward"], rows["next_observation"].sum(1), rtol=1e-3)
    steps = np.log(rows["observation"][:, None] / start.numpy()) / np.log(FACTOR)
    nearest = np.abs(steps - np.round(steps)).max(-1).min(1)
    assert nearest.max() < 1e-3  # each is a start, multiplied by the factor a whole number of times
    assert not rows["terminated"].any()
    assert rows["truncated"].mean() == pytest.approx(0.2, abs=0.1)


def test_episodes_that_end_are_not_continued():
    part, table = imagined(ended=lambda observation, action, after: after[..., 0] > 4.0)
    part.begin_batch(torch.tensor([[1.0, 1.0]] * 5 + [[3.0, 1.0]] * 5), 0)
    rows = rows_of(table)
    assert len(table) == 5 * 4 + 5  # 1 → 1.5 → 2.25 → 3.4 → 5.1, and 3 → 4.5
    assert (rows["terminated"] == (rows["next_observation"][:, 0] > 4.0)).all()
    assert (rows["observation"][:, 0] <= 4.0).all()


def test_what_lies_outside_is_counted_at_the_end_of_each_episode():
    part, _ = imagined(length=20, ended=lambda observation, action, after: after[..., 0] > 2.0)
    part.begin_batch(torch.tensor([[0.001, 0.001]] * 5 + [[1.9, 1.9]] * 5), 0)  # 5 last for many steps, and 5 for one
    assert part.metrics["imagination/outside"] == 0.0


def test_the_table_grows_with_the_length_and_keeps_the_newest_calls():
    part, table = imagined(Linear(1, 3, 100), keep=2)
    start = torch.ones(10, 2)
    for step in (0, 0, 0):
        part.begin_batch(start, step)
    assert len(table) == 2 * 10
    for step in (100, 100, 100):
        part.begin_batch(start, step)
    assert 2 * 30 <= len(table) <= 2 * 40
    assert part.metrics["imagination/length"] == 3


def test_nothing_is_imagined_before_the_model_has_learned():
    part, table = imagined(keep=1)
    part.after = 3
    part.begin_batch(torch.ones(10, 2), 0)
    assert len(table) == 0
    part.model.dynamics.seen.fill_(3.0)
    part.begin_batch(torch.ones(10, 2), 0)
    assert len(table) == 50


def test_a_model_is_a_vector_environment_of_gymnasium():
    env = ModelEnv(model(), SPACES, 4, max_steps=3, starts=np.ones((2, 2), np.float32))
    assert isinstance(env, VectorEnv)
    first, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    assert np.array_equal(first, again)
    assert env.observation_space.contains(first)
    for _ in range(3):
        after, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert after.dtype == np.float32
    np.testing.assert_allclose(after, FACTOR**3 * first, rtol=1e-5)
    assert reward.shape == terminated.shape == truncated.shape == (4,)
    assert (truncated.all(), terminated.any()) == (True, False)
    part, _ = env.reset(options={"reset_mask": np.array([True, False, False, True])})
    np.testing.assert_allclose(part[1], after[1])
    np.testing.assert_allclose(part[0], 1.0)
    with pytest.raises(RequestError, match="ModelEnv: nothing says where episodes begin"):
        ModelEnv(model(), SPACES, 4).reset()


class MayEnd(Multiplies):
    def forward(self, rows):
        return torch.cat((super().forward(rows), torch.full((len(rows), 1), -1.0986)), 1)  # the logit of 1/4


@pytest.mark.parametrize(("ending", "share"), [(0.0, 0.0), (1.0, 0.25)])
def test_episodes_end_with_the_predicted_probability_once_an_end_was_seen(ending, share):
    dynamics = Dynamics(SPACES, members=2, deterministic=True, network=MayEnd)
    dynamics.ending.fill_(ending)
    env = ModelEnv(WorldModel(dynamics), SPACES, 4_000, starts=np.ones((1, 2), np.float32))
    env.reset(seed=0)
    assert env.step(np.zeros((4_000, 2), np.float32))[2].mean() == pytest.approx(share, abs=0.03 * share / 0.25)


def test_each_member_steps_as_many_envs():
    class Numbered(Multiplies):
        count = 0

        def __init__(self, inputs, outputs):
            super().__init__(inputs, outputs)
            self.number = Numbered.count
            Numbered.count += 1

        def forward(self, rows):
            return torch.full((len(rows), 3), float(self.number))

    dynamics = Dynamics(SPACES, members=3, elites=None, deterministic=True, ends=False, network=Numbered)
    env = ModelEnv(WorldModel(dynamics), SPACES, 9)
    env.reset(seed=0, options={"observation": np.zeros((9, 2), np.float32)})
    seen = np.array([env.step(np.zeros((9, 2), np.float32))[1] for _ in range(40)])
    assert all(sorted(step.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2] for step in seen)
    assert (np.unique(seen, axis=0).shape[0]) > 20  # another draw each time


def test_a_share_may_be_a_schedule_and_another_the_rest():
    parts = [Table(length=100, spaces=SPACES) for _ in range(2)]
    for number, table in enumerate(parts):
        for _ in range(20):
            row = {"observation": np.full((1, 2), number), "action": np.zeros((1, 2)), "reward": np.zeros(1)}
            table.add(None, {**row, "terminated": np.zeros(1, bool), "truncated": np.zeros(1, bool)})
    share = Linear(0.0, 0.9, 10)
    mix = Mix({"imagined": {"table": parts[1], "share": share}, "own": {"table": parts[0], "share": None}})
    counts = [int(mix.sample(100)["observation"][:, 0].sum()) for _ in range(12)]
    assert counts == [0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 90]
    restored = Mix({"imagined": {"table": parts[1], "share": share}, "own": {"table": parts[0], "share": None}})
    restored.load_state_dict(mix.state_dict())
    assert int(restored.sample(10)["observation"][:, 0].sum()) == 9
    with pytest.raises(ConfigError, match="where a share is a schedule, one other share is null"):
        Mix([{"table": parts[0], "share": share}, {"table": parts[1], "share": 0.5}])
    with pytest.raises(ConfigError, match=r"loader.parts.1.share: it is -0.5 at sample 0"):
        Mix([{"table": parts[0], "share": 1.5}, {"table": parts[1], "share": None}])


@pytest.mark.parametrize("algorithm", ["td3", "dqn", "sac"])
def test_any_algorithm_of_replay_learns_from_imagined_rows(algorithm, tmp_path):
    env = "env=cartpole" if algorithm == "dqn" else "env=pendulum"
    small = ["algorithm.hidden=[8]", "algorithm.warmup_steps=60", "imagination.episodes=8", "imagination.every=5"]
    small += ["imagination.model.hidden=[8]", "imagination.model.every=20", "stop.env_steps=100", "logger=[]"]
    overrides = [f"algorithm={algorithm}", env, "preset=null", "+with=imagination", *small, "evaluation.every=0"]
    trainer = rlrun.train([*overrides, "algorithm.batch_size=20"], run_dir=tmp_path / "run").trainer
    mixed = trainer.loader.parts["default"].table
    table = mixed.parts[0].table
    assert len(table) >= 24
    assert {part.name: part.weight for part in mixed.parts} == {"imagined": 950_000, "own": 50_000}


LENGTHS = "imagination.length={_target_: rlrun.core.schedules.Linear, first: 1, last: 3, steps: 100}"
SMALL = ["preset=null", "algorithm.hidden=[8]", "algorithm.warmup_steps=40", "algorithm.batch_size=20", "logger=[]"]
SMALL += ["imagination.episodes=8", "imagination.model.hidden=[8]", "imagination.model.every=20", "evaluation.every=0"]


def test_a_resumed_run_equals_the_one_that_never_stopped(tmp_path):
    overrides = ["algorithm=td3", "env=pendulum", "+with=imagination", LENGTHS, *SMALL]
    through = rlrun.train([*overrides, "stop.env_steps=120"], run_dir=tmp_path / "through")
    rlrun.train([*overrides, "stop.env_steps=80"], run_dir=tmp_path / "stopped")
    resumed = rlrun.resume(tmp_path / "stopped", ["stop.env_steps=120"])
    rows = [run.trainer.loader.parts["default"].table.sample(200) for run in (through, resumed)]
    assert all(torch.equal(rows[0][name], rows[1][name]) for name in ("observation", "action", "reward"))


def test_adaptors_do_not_learn_from_imagined_rows():
    shown = []
    table = Table(grows=True, length=10, num_envs=10, spaces=SPACES)
    table._observers = (shown.append,)
    part = Imagination(model(), Agent(), table, SPACES, length=2, after=0)
    part.begin_batch(torch.ones(10, 2), 0)
    assert (len(table), shown) == (20, [])


def test_returns_and_columns_of_a_users_own_stand_beside_imagination(tmp_path):
    additions = "+with=[imagination,untransformed,return_norm]"
    overrides = ["algorithm=td3", "env=pendulum", additions, "stop.env_steps=60", *SMALL]
    trainer = rlrun.train(overrides, run_dir=tmp_path / "run").trainer
    imagined, own = trainer.loader.parts["default"].table.tables
    assert len(imagined) >= 8
    assert {*own.sample(2)["untransformed"]} == {"observation", "action", "reward", "terminated", "next_observation"}


@pytest.mark.parametrize(("length", "error"), [(0, ConfigError), (Linear(0, 5, 10), ConfigError)])
def test_episodes_have_a_step(length, error):
    with pytest.raises(error, match="length must be at least 1, not 0"):
        imagined(length)


def test_action_masks_and_agents_with_a_state_are_refused():
    masked = Spaces(Composite({"action_mask": box(2), "place": box(2)}), SPACES.action)
    table = Table(grows=True, length=10, num_envs=10, spaces=SPACES)
    with pytest.raises(SpaceError, match="a model predicts no action mask"):
        Imagination(model(), Agent(), table, masked)
    agent = Agent()
    agent.initial_state = lambda count: np.zeros((count, 1))
    with pytest.raises(ConfigError, match="an agent with a state"):
        Imagination(model(), agent, table, SPACES)


def test_to_compare_a_saved_table_changes_nothing():
    """A fork asks first whether all parts fit; a table that grows by itself grows when it is loaded."""
    part, larger = imagined(keep=4)
    part.begin_batch(torch.ones(10, 2), 0)
    state = larger.state_dict()
    other, table = imagined(keep=4)
    before = table.index.size
    table.require_alike(state)
    assert table.index.size == before < larger.index.size
    table.load_state_dict(state)
    assert (table.index.size, len(table)) == (larger.index.size, 50)
    assert other.table is table
