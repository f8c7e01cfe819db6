"""Actions that the environment executed are stored in place of the agent's."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Tuple

from rlrun.collect import Collector
from rlrun.collect.async_collector import AsyncCollector
from rlrun.commands.check import check
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, DataError
from rlrun.env import make
from rlrun.memory import Table
from rlrun.memory.table.episodes import Stored


class Tutored(gymnasium.Env):
    """An expert acts at every second step, as the info says; three steps, the last terminates or is cut off."""

    observation_space = Box(0.0, 9.0, (1,))

    def __init__(self, choice=False, cut=False, executed=None):
        self.action_space = Tuple([Box(-2.0, 4.0, (1,)), Discrete(3, start=1)]) if choice else Box(-2.0, 4.0, (1,))
        self.executed = executed if executed is not None else ((2.5,), 3) if choice else (2.5,)
        self.cut = cut

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.at += 1
        last = self.at == 3
        info = {"expert": self.executed} if self.at % 2 == 0 else {}
        return np.full(1, self.at, np.float32), 1.0, last and not self.cut, last and self.cut, info


class Centre:
    """Acts in the middle of each space."""

    outputs = ("action",)

    def __call__(self, observation, state=None, *, explore=True):
        count = len(observation)
        return {"action": np.zeros((count, 1), np.float32)}


class Centres(Centre):
    def __call__(self, observation, state=None, *, explore=True):
        return {"action": {"0": np.zeros((len(observation), 1), np.float32), "1": np.zeros(len(observation), np.int64)}}


def rows(kind=Collector, agent=None, **kwargs):
    env = make(target=f"{__name__}.Tutored", kwargs=kwargs, num_envs=2)
    table = Table(spaces=env.spaces, length=50, num_envs=2)
    collector = kind(env, agent or Centre(), table, executed_action="expert")
    collector.begin_training()
    try:
        collector.collect(12)
    finally:
        collector.end_training(None)
    return [episode.row for episode in Stored.of(table)]


@pytest.mark.parametrize("kind", [Collector, partial(AsyncCollector, kind="thread")], ids=["sync", "async"])
@pytest.mark.parametrize("cut", [False, True])
def test_executed_actions_are_stored(kind, cut):
    episodes = rows(kind, cut=cut)
    assert len(episodes) == 4
    for row in episodes:
        assert row["action"].tolist() == [[0.0], [0.5], [0.0]]  # 2.5 of [-2, 4] is 0.5 of [-1, 1]
        assert (row["terminated"][-1], row["truncated"][-1]) == (not cut, cut)


def test_parts_of_actions_are_converted():
    for row in rows(agent=Centres(), choice=True):
        assert row["action"]["0"].tolist() == [[0.0], [0.5], [0.0]]
        assert row["action"]["1"].tolist() == [0, 2, 0]  # the choice 3 of 1 to 3


@pytest.mark.parametrize("executed", [(1.0, 2.0), (float("nan"),), "left", {"x": 1}, [9.0] * 99])
def test_what_is_no_action_is_refused(executed):
    with pytest.raises(DataError, match=r"^env 0 executed expert=.{,100}, by its info; that is no action$"):
        rows(executed=executed)


def test_choices_are_whole():
    with pytest.raises(DataError, match="that is no action"):
        rows(agent=Centres(), choice=True, executed=((2.5,), 1.5))


def test_rollouts_have_the_log_prob_of_stored_actions():
    overrides = ["algorithm=ppo", f"env.target={__name__}.Tutored", "+with=executed_action", "executed_action=expert"]
    config = compose([*overrides, "num_envs=2", "algorithm.horizon=6", "algorithm.batch_size=12", "device=cpu"]).config
    builder = Builder(config)
    trainer = builder.get("trainer")
    trainer.loader.collector.begin_training()
    batch = next(iter(trainer.loader))["default"]
    second = batch["observation"][:, 0] == 1.0
    assert (second.sum(), batch["action"][second].unique().tolist()) == (4, [0.5])
    evaluated = builder.get("networks.actor_critic").evaluate_actions(batch["observation"], batch["action"])
    torch.testing.assert_close(batch["log_prob"], evaluated.log_prob.detach())


def test_columns_of_the_agents_own_action_are_refused():
    with pytest.raises(ConfigError, match="executed_action: the memory stores log_prob, which is of the agent's own"):
        check(["algorithm=ppo", "env=pendulum", "+with=executed_action", "+with=async"])
