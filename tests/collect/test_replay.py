"""An episode that is played twice shows whether a resume would be exact."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.command import code_of

from rlrun.collect.replay import replay
from rlrun.commands.check import check
from rlrun.core.errors import RequestError
from rlrun.env import make

HERE = "tests.collect.test_replay"


class Walk(gymnasium.Env):
    """Episodes of six steps; each subclass has something that seed and actions do not decide."""

    observation_space, action_space = Box(-np.inf, np.inf, (2,), np.float32), Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episodes, self.place = 0, self.episodes + 1, self.np_random.random()
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        self.place += action
        return self.look(), self.reward(), self.ends(), False, {}

    def look(self):
        return np.array([self.place, self.steps], np.float32)

    def reward(self):
        return 1.0

    def ends(self):
        return self.steps == 6


class Soft(Walk):
    """Begins where the episode before ended."""

    place = 0.0

    def look(self):
        return np.array([self.episodes, self.steps], np.float32)


class Paid(Walk):
    def reward(self):
        return float(self.episodes if self.steps == 3 else 0)


class Late(Paid):
    """Changes after some episodes only."""

    def reward(self):
        return float(self.episodes > 4 and self.steps == 3)


class Longer(Walk):
    def ends(self):
        return self.steps == 3 + self.episodes


class Offered(Paid):
    def state_dict(self):
        return {"episodes": self.episodes}

    def load_state_dict(self, state):
        self.episodes = state["episodes"]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (Walk, "exact: an episode of 6 steps, played twice"),
        (Offered, "exact: an episode of 6 steps, played twice"),
        (Soft, "approximate: reset: observation differs"),
        (Paid, "approximate: step 3 of the episode: reward differs"),
        (Late, "approximate: step 3 of the episode: reward differs"),
        (Longer, "approximate: step 4 of the episode: terminated differs"),
    ],
)
def test_first_difference_is_named(kind, result, vectorization):
    env = make(target=f"{HERE}.{kind.__name__}", vectorization=vectorization)
    assert replay(env) == result
    env.close()


@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({"seed_episodes": False}, "approximate: env.seed_episodes=false: later episodes have no seed"),
        ({"vectorization": "native"}, r"approximate: cartpole (native) has no record of its episodes"),
    ],
)
def test_what_keeps_no_episode_says_so(options, result):
    assert replay(make("CartPole-v1", **options)) == result


def test_check_prints_the_result(capsys):
    assert code_of("check", "algorithm=dqn", f"env.target={HERE}.Paid", "--replay") == 0
    assert "replay    approximate: step 3 of the episode: reward differs" in capsys.readouterr().out
    assert not [line for line in check(["algorithm=dqn", "env=cartpole"]) if line.startswith("replay")]


def test_data_alone_has_no_episode():
    with pytest.raises(RequestError, match="--replay: env=none: there is no environment"):
        check(["algorithm=classifier"], replay=True)
