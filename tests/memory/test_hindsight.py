"""Hindsight: goals reached later in the same episode, rewards as the environment gives them."""

from typing import Any

import numpy as np
import pytest
import torch

from rlrun import train
from rlrun.collect import Collector, RandomAgent
from rlrun.commands.check import check
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, DataError, RlrunError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.env import make
from rlrun.env.goals import GoalReward, PointReach
from rlrun.memory import Fifo, NStep, Scale, Table
from rlrun.memory.adaptors.hindsight import Hindsight

from .tables import add_steps

POINT = Box((1,), np.full(1, -np.inf, np.float32), np.full(1, np.inf, np.float32))
SPACES = Spaces(Composite({"achieved_goal": POINT, "desired_goal": POINT, "observation": POINT}), Discrete(2))


class Reach:
    """Pay 0 for the goal itself, where the episode ends, and -1 elsewhere."""

    def __init__(self, ends: bool = True) -> None:
        if not ends:
            self.terminated = None

    def __call__(self, achieved: Any, desired: Any) -> Any:
        return (achieved == desired).all(-1).astype(np.float32) - 1.0

    def terminated(self, achieved: Any, desired: Any) -> Any:
        return (achieved == desired).all(-1)


def observed(episode: int, step: int, envs: int = 1) -> dict[str, Any]:
    """What was achieved tells episode, step and env; what was wanted is never reached."""
    value = np.array([[100 * episode + step + 10_000 * env_index] for env_index in range(envs)], np.float32)
    return {"observation": value, "achieved_goal": value, "desired_goal": np.full((envs, 1), -1.0, np.float32)}


def fill(table: Table, *lengths: int, opened: int = 0, envs: int = 1) -> Table:
    """Store episodes of these lengths, and so many rows of one that is not over."""
    for episode, length in enumerate([*lengths, opened]):
        seen = [observed(episode, step, envs) for step in range(length + 1)]
        last = seen[length] if episode < len(lengths) else None
        rows = [
            {"observation": look, "action": np.zeros(envs, np.int64), "reward": np.full(envs, -1.0)} for look in seen
        ]
        add_steps(table, length, rows.__getitem__, end="truncated" if last else None, last=last)
    return table


def table_of(*lengths: int, opened: int = 0, adaptors: Any = (), ends: bool = True, **options: Any) -> Table:
    hindsight = Hindsight(reward=Reach(ends), spaces=SPACES, **{"share": 1.0, "seed": 3, **options})
    adaptors = adaptors if isinstance(adaptors, dict) else {"hindsight": None, **dict(enumerate(adaptors))}
    return fill(
        Table(length=1_000, spaces=SPACES, adaptors=adaptors | {"hindsight": hindsight}), *lengths, opened=opened
    )


def steps_and_goals(batch: Any) -> tuple[list[int], list[int]]:
    return tuple(batch["observation"][name].flatten().int().tolist() for name in ("achieved_goal", "desired_goal"))


def goals_of(table: Table, count: int = 4_000) -> dict[int, list[int]]:
    """Return the goals that were drawn for the row of each observation."""
    goal_lists: dict[int, list[int]] = {}
    for step, goal in zip(*steps_and_goals(table.sample(count)), strict=True):
        goal_lists.setdefault(step, []).append(goal)
    return goal_lists


def test_future_goals_are_drawn_evenly() -> None:
    goals = goals_of(table_of(4), 8_000)[0]
    shares = np.bincount(goals)[1:] / len(goals)
    assert np.abs(shares - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / len(goals))


@pytest.mark.parametrize(
    ("lengths", "options", "goals"),
    [
        ((4,), {}, {0: [1, 2, 3, 4], 1: [2, 3, 4], 2: [3, 4], 3: [4]}),
        ((4,), {"strategy": "final"}, {0: [4], 1: [4], 2: [4], 3: [4]}),
        ((4,), {"strategy": "episode"}, {step: [1, 2, 3, 4] for step in range(4)}),
        ((), {"opened": 4}, {0: [1, 2, 3], 1: [2, 3], 2: [3]}),  # the fourth row waits for its next observation
    ],
)
def test_strategies_draw_their_goals(lengths: Any, options: Any, goals: Any) -> None:
    assert {step: sorted(set(goals)) for step, goals in goals_of(table_of(*lengths, **options)).items()} == goals


@pytest.mark.parametrize("whole", [False, True])
def test_goals_stay_within_their_episode(whole: bool) -> None:
    hindsight = Hindsight(reward=Reach(), share=1.0)
    table = Table(length=60, num_envs=3, spaces=SPACES, adaptors=[hindsight], ejector=Fifo(whole=whole))
    fill(table, *[5, 9, 2, 1, 7] * 6, opened=3, envs=3)
    for step, goal in zip(*steps_and_goals(table.sample(5_000)), strict=True):
        assert goal // 100 == step // 100
        assert goal > step


def test_padding_gives_no_goals() -> None:
    hindsight = Hindsight(reward=Reach(), share=1.0)
    table = fill(Table(length=99, spaces=SPACES, adaptors=[hindsight], short="pad"), 3, 2)
    batch = table.sample(500, 4)
    last = batch["next_observation"]["achieved_goal"][:, -1, 0]  # padding repeats the last row
    assert torch.equal(batch["observation"]["desired_goal"][:, 0, 0], last)


def test_batches_have_the_new_goal_everywhere() -> None:
    batch = table_of(6).sample(500)
    reached = batch["next_observation"]["achieved_goal"] == batch["observation"]["desired_goal"]
    assert torch.equal(batch["observation"]["desired_goal"], batch["next_observation"]["desired_goal"])
    assert torch.equal(batch["reward"], reached[:, 0].float() - 1.0)
    assert torch.equal(batch["terminated"], reached[:, 0])
    assert 0.2 < batch["terminated"].float().mean() < 0.7  # 1/6 (1 + 1/2 + … + 1/6) = 0.41
    assert torch.equal(batch["observation"]["achieved_goal"] + 1, batch["next_observation"]["achieved_goal"])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_share_of_rows_is_relabelled(share: float) -> None:
    batch = table_of(50, share=share, strategy="final").sample(5_000)
    changed = batch["observation"]["desired_goal"][:, 0] != -1.0
    assert changed.float().mean() == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 5_000))
    assert (batch["next_observation"]["desired_goal"][~changed] == -1.0).all()
    assert (batch["reward"][~changed] == -1.0).all()


def test_windows_have_one_goal() -> None:
    batch = table_of(6).sample(1_000, 3)
    goal = batch["observation"]["desired_goal"][..., 0]  # [B, T]
    last = batch["next_observation"]["achieved_goal"][:, -1, 0]
    assert (goal == goal[:, :1]).all()
    assert (goal[:, 0] >= last).all()
    assert {(goal[:, 0] == last).any().tolist(), (goal[:, 0] == 6).any().tolist()} == {True}
    reached = batch["next_observation"]["achieved_goal"][..., 0] == goal
    assert torch.equal(batch["reward"], reached.float() - 1.0)


def by_step(batch: Any, name: str) -> dict[int, Any]:
    return dict(zip(batch["observation"]["achieved_goal"].flatten().int().tolist(), batch[name].tolist(), strict=True))


@pytest.mark.parametrize("ends", [True, False])
def test_later_steps_have_the_new_goal(ends: bool) -> None:
    reward = {0: -1.75, 1: -1.5, 2: -1.0, 3: 0.0}  # -1-1/2-1/4, -1-1/2+0, …
    terminated = {0: False, 1: ends, 2: ends, 3: ends}
    table = table_of(4, strategy="final", ends=ends, adaptors=[NStep(steps=3, discount=0.5)])
    before = {name: array.copy() for name, array in table.storage.arrays.items()}
    batch = table.sample(100)
    assert (by_step(batch, "reward"), by_step(batch, "terminated")) == (reward, terminated)
    assert (batch["next_observation"]["desired_goal"] == 4.0).all()
    assert all(np.array_equal(before[name], array) for name, array in table.storage.arrays.items())


def test_n_step_stops_at_the_goal() -> None:
    batch = table_of(6, adaptors=[NStep(steps=3, discount=0.5)]).sample(500)
    away = (batch["observation"]["desired_goal"] - batch["observation"]["achieved_goal"])[:, 0]
    span = away.clamp(max=3.0)
    assert torch.equal(batch["discount"], 0.5**span)
    assert torch.equal(batch["terminated"], away <= 3.0)
    assert torch.equal((batch["next_observation"]["achieved_goal"] - batch["observation"]["achieved_goal"])[:, 0], span)
    assert torch.equal(batch["reward"], torch.tensor([0.0, -1.0, -1.5, -1.75])[(away.clamp(max=4.0) - 1).long()])


def test_order_of_the_config_is_irrelevant() -> None:
    ahead, smaller = NStep(steps=2, discount=0.5), Scale("reward", factor=0.1)
    late = table_of(5, adaptors={"smaller": smaller, "ahead": ahead, "hindsight": None})
    early = table_of(5, adaptors={"hindsight": None, "ahead": ahead, "smaller": smaller})
    batches = late.sample(300), early.sample(300)
    assert [type(adaptor).__name__ for adaptor in late.adaptors] == ["Hindsight", "Scale", "NStep"]
    assert all(torch.equal(*(batch[name] for batch in batches)) for name in ("reward", "terminated", "discount"))


def test_rewards_use_goals_as_stored() -> None:
    change = [Scale("observation.achieved_goal", factor=10.0), NStep(steps=3, discount=0.5)]
    batch = table_of(4, strategy="final", adaptors=change).sample(100)
    assert sorted(set(batch["reward"].tolist())) == [-1.75, -1.5, -1.0, 0.0]


def test_disagreeing_ends_pass_unchecked() -> None:
    reward = Reach()
    reward.terminated = lambda achieved, desired: achieved[..., 0] > 2  # type: ignore[method-assign]
    with pytest.raises(DataError, match="got terminated True from the environment's function; stored is False"):
        fill(Table(length=99, spaces=SPACES, adaptors=[Hindsight(reward=reward)]), 5).sample(50)
    unchecked = Hindsight(reward=reward, check=0)
    assert fill(Table(length=99, spaces=SPACES, adaptors=[unchecked]), 5).sample(50)["terminated"].any()


def hindsight_of(**options: Any) -> Table:
    return fill(Table(length=99, spaces=SPACES, adaptors=[Hindsight(**{"reward": Reach(), **options})]), 5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"share": 1.5}, ConfigError, "share must lie from 0 to 1, not 1.5"),
        ({"strategy": "futur"}, ConfigError, "one of future, final, episode, got 'futur' .did you mean"),
        ({"spaces": Spaces(POINT, Discrete(2))}, SpaceError, "Dict with goals 'desired_goal' and 'achi"),
        ({"goal": "wanted", "spaces": SPACES}, SpaceError, "goals 'wanted' and 'achieved_goal' of one shape"),
        ({"reward": lambda *goals: goals[0][..., 0]}, DataError, r"got reward .* stored is -1\.0 .*in 4 of 4 rows"),
    ],
)
def test_wrong_uses_are_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hindsight_of(**options).sample(4)


def test_batch_of_no_table_is_refused() -> None:
    with pytest.raises(RlrunError, match="is not of one"):
        Hindsight(reward=Reach())({}, None)


def test_goals_may_be_nested() -> None:
    spaces = Spaces(Composite({"task": SPACES.observation, "clock": POINT}), Discrete(2))
    names = {"goal": "task.desired_goal", "achieved": "task.achieved_goal"}
    table = Table(length=9, spaces=spaces, adaptors=[Hindsight(reward=Reach(), spaces=spaces, share=1.0, **names)])
    seen = [{"task": observed(0, step), "clock": [[0.0]]} for step in range(3)]
    add_steps(table, 3, lambda step: {"observation": seen[step], "action": [0], "reward": [-1.0]})
    assert set(table.sample(50)["observation"]["task"]["desired_goal"].flatten().tolist()) == {1.0, 2.0}


def test_draws_differ_from_the_samplers() -> None:
    hindsight = Hindsight(reward=Reach(), seed=7)
    sampler = np.random.Generator(np.random.PCG64(7))
    assert not np.isclose(hindsight.generator.random(100), sampler.random(100)).any()


@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize(
    "names", [{"goal": "target"}, {"achieved": "position"}, {"goal": "target", "achieved": "position"}]
)
def test_parts_of_observations_have_any_names(names: dict[str, str], plus: str) -> None:
    overrides = ["algorithm=sac", "env=pointreach", "+with=hindsight", "num_envs=2", "device=cpu", "memory.length=400"]
    overrides += [f"env.kwargs.{key}={name}" for key, name in names.items()]
    overrides += [f"{plus}memory.adaptors.hindsight.{key}={name}" for key, name in names.items()]
    builder = Builder(compose(overrides).config)
    table, collector = builder.get("memory"), builder.get("loader").collector
    collector.begin_training()
    collector.collect(200)
    batch = table.sample(200)
    parts = names.get("achieved", "achieved_goal"), names.get("goal", "desired_goal")
    reached = (batch["next_observation"][parts[0]] - batch["next_observation"][parts[1]]).square().sum(-1) <= 0.05**2
    assert torch.equal(batch["reward"], reached.float() - 1.0)
    assert reached.any()


def test_a_name_that_is_missing_has_a_hint() -> None:
    with pytest.raises(SpaceError, match="did you mean 'desired_goal'"):
        check(["algorithm=sac", "env=pointreach", "+with=hindsight", "memory.adaptors.hindsight.goal=desired"])


@pytest.mark.parametrize("name", ["BitFlip", "PointReach"])
def test_relabelled_rewards_are_the_environments(name: str) -> None:
    env = make(target=f"rlrun.env.goals.{name}", num_envs=4)
    table = Table(length=4_000, num_envs=4, spaces=env.spaces, adaptors=[Hindsight(reward=GoalReward(env), seed=1)])
    collector = Collector(env, RandomAgent(env.spaces.action, seed=0), table)
    collector.begin_training()
    collector.collect(3_200)
    batch, task = table.sample(10_000), env.envs[0].unwrapped
    achieved, desired = (batch["next_observation"][part].numpy() for part in ("achieved_goal", "desired_goal"))
    goals = list(zip(achieved, desired, strict=True))
    assert batch["reward"].tolist() == [task.compute_reward(*pair, {}) for pair in goals]
    assert batch["terminated"].tolist() == [bool(task.compute_terminated(*pair, {})) for pair in goals]
    assert -0.9 < batch["reward"].mean() < -0.1


class Touching(PointReach):
    """Pays the force of each step, too, which only the info says."""

    batched = True

    def step(self, action: Any) -> Any:
        self.force = float(self.np_random.uniform())
        observation, reward, terminated, truncated, info = super().step(action)
        info = {"force": self.force, "name": "point", "place": np.array([self.force, 1.0])}
        return observation, reward + 2 * self.force, terminated, truncated, info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        if not info:  # as of super().step
            return super().compute_reward(achieved_goal, desired_goal, info)
        assert self.batched or np.ndim(info["force"]) == 0
        return super().compute_reward(achieved_goal, desired_goal, info) + info["force"] + info["place"][..., 0]


class TouchingOnce(Touching):
    batched = False


@pytest.mark.parametrize("name", ["Touching", "TouchingOnce"])
@pytest.mark.parametrize("addition", [(), ("algorithm.n_step=3",), ("+with=async", "collector.kind=thread")])
def test_a_reward_gets_the_infos_that_are_stored(name: str, addition: tuple[str, ...], tmp_path: Any) -> None:
    columns = ("+memory.columns.force={info: true}", "+memory.columns.place={info: true, shape: [2]}")
    hindsight = ("+with=hindsight", "memory.adaptors.hindsight.info=[force,place]", "memory.adaptors.hindsight.share=1")
    line = ("algorithm=sac", f"env.target={__name__}.{name}", "algorithm.hidden=[8]", "algorithm.warmup_steps=100")
    budget = ("stop.env_steps=150", "algorithm.batch_size=16", "memory.length=1000", "logger=[]", "evaluation.every=0")
    result = train([*line, *columns, *hindsight, *budget, *addition], run_dir=tmp_path / "run")
    table, env = result.trainer.loader.table, PointReach()
    batch = table.sample(100)
    if addition[:1] != ("algorithm.n_step=3",):
        goals = (batch["next_observation"][part].numpy() for part in ("achieved_goal", "desired_goal"))
        assert np.allclose(batch["reward"], env.compute_reward(*goals, {}) + 2 * batch["force"].numpy(), atol=1e-5)


def test_an_info_that_is_missing_is_refused(tmp_path: Any) -> None:
    line = ("algorithm=sac", f"env.target={__name__}.Touching", "algorithm.hidden=[8]", "evaluation.every=0")
    for column, got in ("absent={info: true}", "nothing"), ("name={info: true}", "'point'"):
        with pytest.raises(DataError, match=rf"memory.columns.\w+: wanted numbers \[\] in the info .*, got {got}"):
            train([*line, f"+memory.columns.{column}", "stop.env_steps=9"], run_dir=tmp_path / column[:4])


def test_a_reward_that_depends_on_info_is_refused() -> None:
    hindsight = Hindsight(reward=lambda achieved, desired: Reach()(achieved, desired) - 0.5, spaces=SPACES)
    table = fill(Table(length=100, spaces=SPACES, adaptors={"hindsight": hindsight}), 4)
    with pytest.raises(DataError, match=r"it reads an info that memory\.adaptors\.hindsight\.info does not name"):
        table.sample(8)
