"""Responses of agents."""

import numpy as np
import pytest
import torch
from tests.algorithms.runs import REPLAY

import rlrun
from rlrun import checkpointing as storage
from rlrun.algorithms.actor_critic.sac import SoftPolicy, Temperature
from rlrun.collect import EpsilonGreedy, PolicyAgent, RandomAgent
from rlrun.collect.agents import random_agent
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Spaces
from rlrun.nn import Critics
from rlrun.nn.normalizer import Normalizer

EYE = Box((1,), np.array([-1.0]), np.array([1.0]))
ARMS = Spaces(EYE, Discrete(5, start=3))
LOOK = np.zeros((1000, 1), np.float32)


class Last(torch.nn.Module):
    """Always says 4."""

    def act(self, observation, explore=False):
        assert explore is False
        return torch.full((len(observation),), 4)


def greedy(epsilon, seed=0):
    return EpsilonGreedy(Last(), epsilon=epsilon, spaces=ARMS, seed=seed)


class Counting(Last):
    """Counts its steps in its state."""

    state_size = 1

    def advance(self, observation, state, explore=False):
        return self.act(observation, explore), state + 1


@pytest.mark.parametrize("explore", [True, False])
def test_exported_exploration_keeps_the_state(explore):
    agent = EpsilonGreedy(Counting(), epsilon=0.5, spaces=ARMS, seed=0)
    action, after = agent.respond(torch.from_numpy(LOOK), torch.ones(1000, 1), explore)
    assert after.tolist() == [[2.0]] * 1000
    assert (action == 4).float().mean() == pytest.approx(0.6 if explore else 1.0, abs=0.06)


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 1.0), (0.25, 0.75 + 0.25 / 5), (1.0, 0.2)])
def test_share_of_random_actions_is_epsilon(epsilon, share):
    agent = greedy(epsilon)
    action = np.concatenate([agent(LOOK)["action"] for _ in range(10)])
    assert (action == 4).mean() == pytest.approx(share, abs=0.02)
    assert set(action) <= {0, 1, 2, 3, 4}


def test_other_actions_are_equally_likely():
    action = np.concatenate([greedy(0.5, seed)(LOOK)["action"] for seed in range(10)])
    assert np.bincount(action)[:4] / 10_000 == pytest.approx(np.full(4, 0.1), abs=0.01)


def test_epsilon_follows_steps_of_all_envs():
    agent, seen = greedy(Linear(1.0, 0.0, steps=4000)), []
    for _ in range(5):
        seen.append(agent.metrics["explore/epsilon"])
        share = (agent(LOOK)["action"] != 4).mean()
        assert share == pytest.approx(0.8 * seen[-1], abs=0.05)
    assert seen == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_greedy_action_changes_no_state():
    agent = greedy(1.0)
    before = agent.state_dict()
    assert (agent(LOOK, explore=False)["action"] == 4).all()
    assert agent.state_dict() == before


PARTS = {
    "bounded": Box((2,), np.full(2, -5.0), np.full(2, 9.0)),
    "free": Box((2,), np.full(2, -np.inf), np.full(2, np.inf)),
    "one": Discrete(3, start=7),
    "many": MultiDiscrete(np.array([[2, 3], [4, 5]]), np.full((2, 2), 6)),
}


def test_random_actions_fill_every_space():
    action = RandomAgent(Composite({**PARTS, "0": Composite({"1": Discrete(2)})}), seed=0)(LOOK)["action"]
    assert action["bounded"].dtype == np.float32
    assert action["bounded"].min() == pytest.approx(-1.0, abs=0.01)
    assert action["bounded"].max() == pytest.approx(1.0, abs=0.01)
    assert float(action["free"].std()) == pytest.approx(1.0, abs=0.1)
    assert set(action["one"]) == {0, 1, 2}
    assert action["many"].shape == (1000, 2, 2)
    assert [set(action["many"][:, i, j]) for i in (0, 1) for j in (0, 1)] == [set(range(n)) for n in (2, 3, 4, 5)]
    assert set(action["0"]["1"]) == {0, 1}


def test_random_actions_follow_their_seed():
    first, same, different = (RandomAgent(PARTS["bounded"], seed=seed).draw(5)["action"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != different).all()


def soft_agent():
    spaces = Spaces(EYE, Composite({"a": EYE, "k": Discrete(4)}))
    return PolicyAgent(SoftPolicy(spaces, Critics(spaces, hidden=()), Temperature(spaces), hidden=()))


def test_policy_repeats_best_and_explores():
    torch.manual_seed(0)
    agent = soft_agent()
    before = torch.get_rng_state()
    play, again = (agent(LOOK, explore=False)["action"] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(play["a"], again["a"])
    np.testing.assert_array_equal(play["k"], again["k"])
    explored = agent(LOOK)["action"]
    assert len(np.unique(explored["a"])) > 900
    assert set(explored["k"]) == {0, 1, 2, 3}


class Allowed(EpsilonGreedy):
    """Keeps to the arms whose numbers in the observation are above 0, at random too."""

    def at_random(self, space, *, seed):
        class Random(RandomAgent):
            def __call__(self, observation, state=None, *, explore=True):
                odds = self.rng.random(observation.shape) * (observation > 0)
                return {"action": odds.argmax(-1)}

        return Random(space, seed=seed)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_random_actions_may_depend_on_observations(num_envs):
    agent = Allowed(Last(), epsilon=1.0, spaces=ARMS, seed=1)
    seen = np.tile(np.array([0, 1, 0, 1, 1], np.float32), (num_envs, 1))
    for act in (agent, random_agent(agent, ARMS.action, seed=5)):
        drawn = {int(action) for _ in range(30) for action in act(seen)["action"]}
        assert drawn == {1, 3, 4}


def test_warm_up_is_uniform_by_default():
    assert type(random_agent(PolicyAgent(Last()), ARMS.action, seed=5)) is RandomAgent
    assert RandomAgent(ARMS.action, seed=1).initial_state(3) is None


SPACES = Spaces(Box((2,), np.zeros(2), np.ones(2)), Discrete(4))


class Echo:
    """Acts by what it sees."""

    def act(self, observation, explore):
        return observation


def agents(preprocess):
    greedy = EpsilonGreedy(Echo(), epsilon=0.0, spaces=SPACES, seed=0, preprocess=preprocess)
    return [PolicyAgent(Echo(), preprocess=preprocess), greedy]


@pytest.mark.parametrize("explore", [True, False])
def test_preprocess_is_applied_in_order(explore):
    for agent in agents({"add": lambda x: x + 1, "left out": None, "double": lambda x: x * 2}):
        assert agent(np.ones((3, 2), np.float32), explore=explore)["action"].tolist() == [[4.0, 4.0]] * 3
    for agent in agents(torch.neg):  # one function needs no name
        assert agent(np.ones((1, 2), np.float32), explore=explore)["action"].tolist() == [[-1.0, -1.0]]


def test_acting_never_updates_statistics():
    normalizer = Normalizer(SPACES)
    normalizer.update(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    seen = np.array([[3.0, 10.0]], np.float32)
    for agent in agents({"norm": normalizer}):
        assert agent(seen)["action"].tolist() == [pytest.approx([1.0, -1.0])]
        assert seen.tolist() == [[3.0, 10.0]]
    assert normalizer.updates == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    overrides = ["algorithm=sac", "env=pendulum", "with=[observation_norm,reward_norm]", *REPLAY]
    overrides += ["evaluation.every=1000", "evaluation.episodes=2", "evaluation.max_steps=30"]
    return rlrun.train(overrides, run_dir=tmp_path_factory.mktemp("norm") / "run")


def test_samples_and_agent_share_one_normalizer(run):
    table = run.trainer.callbacks["collector"].table
    (adaptor,) = (candidate for candidate in table.adaptors if candidate.provides[0] == "observation")
    assert run.trainer.callbacks["collector"].agent.preprocess == (adaptor.normalizer,)
    assert adaptor.normalizer.updates == run.summary["updates"]


def test_evaluation_equals_live_agent(run):
    live = run.trainer.callbacks["evaluation"]
    report = rlrun.evaluate(run.run_dir, episodes=2, seed=live.seed)
    assert report.mean_return == live.last["mean_return"]


def test_evaluation_depends_on_the_statistics(run):
    agent = run.trainer.callbacks["collector"].agent
    look = np.random.default_rng(0).uniform(-5, 5, (20, 3)).astype(np.float32)
    plain = PolicyAgent(agent.policy)(look, explore=False)["action"]
    assert not np.allclose(agent(look, explore=False)["action"], plain, atol=1e-3)


def test_checkpoint_holds_statistics_once(run):
    where = run.run_dir / "checkpoints"
    folder = where / (where / "latest").read_text().strip()
    names = [path for path in storage.read_manifest(folder).parts if "norm" in path]
    assert sorted(names) == ["normalizers.observation", "normalizers.reward"]
