"""Agents that search from observations."""

import numpy as np
import pytest
import torch

from rlrun.algorithms.search import (
    BestOrDraw,
    Gumbel,
    Node,
    PersistentDraw,
    Puct,
    SearchAgent,
    SearchModel,
    search_of,
)
from rlrun.core import spaces as ours
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.progress import Progress
from rlrun.core.schedules import OverBudget, Step

LINE = ours.Box((1,), np.zeros(1), np.ones(1))
SPACES = ours.Spaces(LINE, ours.Discrete(3))


class Ladder(SearchModel):
    """States are numbers; action 2 pays 1, action 1 pays the number that was observed, and each step is another one."""

    def root(self, observation, rng=None):
        state = observation[:, 0].astype(np.float64)
        return self._node(state, np.zeros(len(state)))

    def __call__(self, state, action):
        return self._node(state, np.where(action == 2, 1.0, np.where(action == 1, state, 0.0)))

    def _node(self, state, reward):
        logits = np.zeros((len(state), 3))
        logits[:, 0] = np.where(state > 0.5, -np.inf, 0.0)  # forbidden there
        return Node(state, logits, 0.1 * state, reward, np.full(len(state), 0.5))


class Zero(torch.nn.Module):
    """A policy that takes action 0."""

    def act(self, observation, explore):
        return torch.zeros(len(observation), dtype=torch.int64)


def agent(search=None, spaces=SPACES, **options):
    search = search or Puct(simulations=12)
    return SearchAgent(Zero(), model=Ladder(), search=search, spaces=spaces, seed=3, **options)


OBSERVATION = np.linspace(0.0, 0.9, 7, dtype=np.float32)[:, None]


@pytest.mark.parametrize(
    "search",
    [
        Puct(simulations=12),
        Gumbel(simulations=12),
        Puct(simulations=12, parallel=3, regularized=("act", "search", "learn")),
    ],
)
def test_evaluations_take_the_best_action_of_each_row_by_itself(search):
    searches = agent(search)
    before = searches.state_dict()
    response = searches(OBSERVATION, explore=False)
    trees = search.grow(Ladder(), Ladder().root(OBSERVATION))
    assert response["action"].tolist() == search.acting(trees, 0.0).argmax(1).tolist() == [2] * 7
    np.testing.assert_allclose(response["search_policy"], search.policy(trees), rtol=1e-6)
    np.testing.assert_allclose(response["search_value"], trees.root_value, rtol=1e-6)
    assert (response["search_policy"][4:, 0] == 0).all()
    for row in range(7):
        alone = searches(OBSERVATION[[row]], explore=False)
        assert {name: value.tolist() for name, value in alone.items()} == {
            name: value[[row]].tolist() for name, value in response.items()
        }
    assert searches.state_dict() == before


def test_exploration_draws_by_the_policy_of_a_noisy_search_and_goes_on_after_a_resume():
    searches = agent(Puct(simulations=12, noise=0.5, alpha=0.5))
    first = searches(np.repeat(OBSERVATION, 300, 0))
    assert len(np.unique(first["search_policy"][:300], axis=0)) > 3  # noise of each row
    for row in range(7):
        rows = slice(300 * row, 300 * row + 300)
        drawn = np.bincount(first["action"][rows], minlength=3) / 300
        np.testing.assert_allclose(drawn, first["search_policy"][rows].mean(0), atol=0.1)
    assert searches.metrics["search/entropy"] > 0.3
    assert searches.metrics["search/value_moved"] > 0.3
    assert searches.metrics["search/value_size"] >= np.abs(first["search_value"]).mean() - 1e-6
    other = agent(Puct(simulations=12, noise=0.5, alpha=0.5))
    other.load_state_dict(searches.state_dict())
    assert dict(other.metrics) == dict(searches.metrics)
    again, wanted = other(OBSERVATION), searches(OBSERVATION)
    assert all((again[name] == wanted[name]).all() for name in wanted)
    assert (wanted["search_policy"] != first["search_policy"][::300]).any()


def test_temperature_follows_the_moves_of_each_episode():
    searches = agent(temperature=Step([1.0, 0.0], [2]))
    assert searches.outputs == ("action", "state", "search_policy", "search_value")
    observation = np.zeros((400, 1), np.float32)
    state = searches.initial_state(400)
    state["moves"][:200] = 1
    state = searches(observation, state)["state"]
    assert state["moves"].tolist() == [2] * 200 + [1] * 200
    action = searches(observation, state)["action"]
    assert (action[:200] == 2).all()
    assert (action[200:] != 2).any()
    assert agent().initial_state(3) is None


def test_a_sampler_draws_and_remembers():
    best = agent(sampler=BestOrDraw(0.0))
    assert best.initial_state(3) is None
    trees = best.search.grow(Ladder(), Ladder().root(OBSERVATION), agent().generator)
    assert best(OBSERVATION)["action"].tolist() == best.search.acting(trees).argmax(1).tolist()
    searches = agent(sampler=PersistentDraw(renewal=0.0), temperature=Step([1.0], []))
    state = searches.initial_state(7)
    assert {name: part.shape for name, part in state.items()} == {"moves": (7,), "drawn": (7, 3)}
    first = searches(OBSERVATION, state)["state"]
    second = searches(OBSERVATION, first)["state"]
    assert (first["drawn"] != 0).all()
    assert (first["drawn"] == second["drawn"]).all()
    assert second["moves"].tolist() == [2] * 7
    assert searches(OBSERVATION, state, explore=False)["state"]["drawn"].tolist() == state["drawn"].tolist()
    alone = agent(sampler=PersistentDraw())
    assert alone.outputs == ("action", "state", "search_policy", "search_value")
    assert alone.after(OBSERVATION, alone.initial_state(7)).keys() == {"drawn"}


def test_temperature_follows_the_budget():
    progress = Progress(env_steps=10)
    searches = agent(temperature=OverBudget(progress, Step([1.0, 0.0], [0.5])))
    observation, state = np.zeros((200, 1), np.float32), searches.initial_state(200)
    assert (searches(observation, state)["action"] != 2).any()
    progress.step = 5
    assert (searches(observation, state)["action"] == 2).all()


def test_the_policy_alone_is_exported():
    searches = agent()
    observation = torch.from_numpy(OBSERVATION)
    assert searches.respond(observation, None, False)[0].tolist() == [0] * 7
    assert searches.exported(OBSERVATION)["action"].tolist() == [0] * 7


def test_several_choices_are_one_choice_of_the_search():
    pair = ours.Spaces(LINE, ours.MultiDiscrete(np.array([1, 3]), np.zeros(2, np.int64)))
    assert agent(spaces=pair)(OBSERVATION, explore=False)["action"].tolist() == [[0, 2]] * 7


@pytest.mark.parametrize("action", [LINE, ours.MultiDiscrete(np.array([9, 9]), np.zeros(2, np.int64))])
def test_actions_that_are_no_single_choice_are_refused(action):
    with pytest.raises(SpaceError, match="a search without candidates takes one choice of a few; the action space is"):
        agent(spaces=ours.Spaces(LINE, action))


def test_a_negative_temperature_is_refused():
    with pytest.raises(ConfigError, match="temperature: wanted a number from 0, or a schedule, got -1"):
        agent(temperature=-1)


def test_keys_choose_a_search():
    assert search_of(simulations=7, c1=2.0) == Puct(simulations=7, c1=2.0, noise=0.25)
    assert search_of(gumbel=True, noise=0.5, c_scale=1.0, bounds=(-1.0, 1.0)) == Gumbel(noise=0.5, c_scale=1.0)
    assert search_of(gumbel=True).noise == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gumbel": True, "alpha": 0.1}, "alpha: wanted 0.3 with gumbel=true, which does not read it"),
        ({"gumbel": True, "regularized": ["act"]}, "regularized: wanted .* with gumbel=true"),
        ({"considered": 0}, "considered: wanted a whole number from 1, got 0"),
        ({"unexpanded": "maxx"}, "unexpanded: wanted one of a number, max, min, .* got 'maxx'"),
    ],
)
def test_what_a_search_does_not_read_is_refused_by_its_key(options, said):
    with pytest.raises(ConfigError, match=f"^{said}"):
        search_of(**options)


def test_model_follows_the_agent_to_another_device():
    searches = agent()
    searches(OBSERVATION[:1])
    assert searches.model.device == "cpu"
    searches.device = "meta"
    searches(OBSERVATION[:1])
    assert searches.model.device == "meta"


def test_random_actions_come_with_what_an_even_search_finds():
    mask = ours.Box((3,), np.zeros(3, np.int8), np.ones(3, np.int8), "int8")
    masked = ours.Spaces(ours.Composite({"action_mask": mask, "line": LINE}), ours.Discrete(3))
    observation = {"action_mask": np.array([[1, 1, 0], [0, 0, 1]], np.int8), "line": OBSERVATION[:2]}
    response = agent(spaces=masked).at_random(masked.action, seed=0)(observation)
    assert response["search_policy"].tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    assert response["search_value"].tolist() == [0.0, 0.0]
    assert response["action"][1] == 2
    plain = agent().at_random(SPACES.action, seed=0)(OBSERVATION)
    np.testing.assert_allclose(plain["search_policy"], 1 / 3)
    assert set(plain) == set(agent().outputs)
