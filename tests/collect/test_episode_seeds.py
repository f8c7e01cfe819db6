"""Every episode of training begins with a reset by its own seed."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlrun.collect import AsyncCollector, ByIdCollector, Collector, RandomAgent
from rlrun.core.seeds import EpisodeSeeds, Seeds, episode_seed
from rlrun.env import EnvById, make
from rlrun.env.by_id import Crowd
from rlrun.memory import Table

from .probes import collector_for


class Told(gymnasium.Env):
    """Episodes of two steps, or so many; observation: [the seed of the newest reset, or -1; the step]."""

    def __init__(self, length=2):
        self.observation_space, self.action_space = Box(-1, 2**31, (2,), np.int64), Discrete(2)
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.seed, self.count = -1 if seed is None else seed, 0
        return self.look(), {}

    def step(self, action):
        self.count += 1
        return self.look(), 0.0, self.count == self.length, False, {}

    def look(self):
        return np.array([self.seed, self.count], np.int64)


def told(**options):
    return make(target="tests.collect.test_episode_seeds.Told", **options)


def begun(env, kind=Collector, **options):
    return collector_for(env, kind=kind, table=Table(spaces=env.spaces, length=600, num_envs=env.num_envs), **options)


def seeds_in(collector):
    """Return the seeds of stored episodes."""
    return {int(seed) for seed in collector.table.sample(2000)["observation"][:, 0]}


def expected(envs, episodes, branch=40):
    return {episode_seed(branch, env_index, episode) for env_index in envs for episode in episodes}


KINDS = {
    "sync": ("sync", Collector),
    "workers": ("async", Collector),
    "thread": ("sync", partial(AsyncCollector, kind="thread")),
    "process": ("sync", AsyncCollector),
}


@pytest.mark.parametrize(("vectorization", "kind"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_seed_is_of_run_env_and_episode(vectorization, kind, count):
    collector = begun(told(num_envs=count, vectorization=vectorization), kind, seed=40, first_env=2)
    collector.collect(8 * count)
    collector.end_training(None)
    assert seeds_in(collector) == expected(range(2, 2 + count), range(4))


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_without_seeds_only_first_resets_have_one(vectorization):
    collector = begun(told(num_envs=2, vectorization=vectorization, seed_episodes=False), seed=40)
    collector.collect(16)
    collector.end_training(None)
    assert seeds_in(collector) == {-1} | expected(range(2), [0])


@pytest.mark.parametrize(("vectorization", "kind"), KINDS.values(), ids=KINDS)
def test_resumed_run_counts_on(vectorization, kind):
    build = partial(told, num_envs=2, vectorization=vectorization, kwargs={"length": 3})
    first, second = begun(build(), kind, seed=40), begun(build(), kind, seed=40, begin=False)
    first.collect(8)  # of the second episode, one step was made
    for theirs, mine in ((first, second), (first.env, second.env), (first.table, second.table)):
        mine.load_state_dict(theirs.state_dict())
    second.begin_training()
    second.collect(4)
    # The open episode continues and ends, or the next one has begun and goes on.
    assert second.observation.tolist() == [[episode_seed(40, i, 2), 0 if kind is Collector else 2] for i in range(2)]
    for collector in (first, second):
        collector.end_training(None)


def test_by_id_resets_by_seed():
    env = EnvById(Crowd())
    seeds, reset = [], env.world.dict_reset
    env.world.dict_reset = lambda seed=None: (seeds.append(seed), reset(seed))[1]
    collector = ByIdCollector(env, RandomAgent(env.spaces.action, seed=0), Table(length=500, spaces=env.spaces), seed=4)
    collector.begin_training()
    state = {**collector.state_dict()}
    collector.load_state_dict(state)
    collector.begin_training()
    assert seeds == [episode_seed(4, 0, 0), episode_seed(4, 0, 1)]


def test_seeds_are_below_two_to_the_31_and_differ():
    seeds = [episode_seed(branch, i, j) for branch in (0, Seeds(1).envs) for i in range(30) for j in range(50)]
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    assert len(set(seeds)) == len(seeds)


def test_ranks_share_the_seeds_of_one_run():
    whole = EpisodeSeeds(7, 4).every()
    assert [*EpisodeSeeds(7, 2).every(), *EpisodeSeeds(7, 2, first_env=2).every()] == whole
