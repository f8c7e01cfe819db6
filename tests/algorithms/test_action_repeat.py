"""Actions that are decided on for several steps: how memory sums them, and how agents repeat them."""

import numpy as np
import pytest
import torch

from rlrun.algorithms.actor_critic.action_repeat import Persistent, Repeats, decisions, follow, persistent
from rlrun.collect import Collector, evaluate
from rlrun.collect.evaluate import sampling
from rlrun.core.errors import ConfigError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Composite, Spaces
from rlrun.env import make
from rlrun.memory import Table
from rlrun.nn import ActionCodec

from .fixed import CONTINUOUS, DISCRETE, LINE

COLUMNS = {"lasts": {"dtype": "int64"}}


def table_of(*lasts, end=None, steps=3, spaces=None):
    """Return a table with one episode; observation i is [i], each reward 1, and what is done at i is i / 10."""
    adaptors = [Repeats(steps=steps, most=steps, discount=0.5, spaces=spaces)]
    table = Table(length=20, spaces=CONTINUOUS, columns=COLUMNS, adaptors=adaptors)
    for i, remaining in enumerate(lasts):
        episode_end = {name: [end == name and i == len(lasts) - 1] for name in ("terminated", "truncated")}
        row = {"observation": [[i]], "action": [[i / 10]], "reward": [1.0], "lasts": [remaining]}
        table.add(None, row | episode_end)
    if end:
        table.close(None, [[len(lasts)]])
    return table


def rows(table):
    """Return of each row: reward, discount over γ, successor, terminated, and steps of the decision."""
    batch = table.sample(300)
    assert torch.equal(batch["action"]["action"], batch["observation"] / 10)
    outcomes = {}
    columns = (batch["reward"], batch["discount"] / 0.5, batch["next_observation"][:, 0], batch["terminated"])
    for row in zip(batch["observation"][:, 0], *columns, batch["action"]["repeats"] + 1, strict=True):
        outcomes[int(row[0])] = tuple(float(value) for value in row[1:])
    return [outcomes[i] for i in sorted(outcomes)]


ONE = (1.0, 1.0, 1.0, 0.0, 1.0)  # a decision of one step, from observation 0 to 1


@pytest.mark.parametrize(
    ("lasts", "end", "steps", "expected"),
    [
        # the last two are within a decision of three steps: what was left of it
        (
            (1, 2, 1, 3, 2, 1),
            "truncated",
            3,
            {0: ONE, 1: (1.5, 0.5, 3.0, 0.0, 2.0), 3: (1.75, 0.25, 6.0, 0.0, 3.0), 4: (1.5, 0.5, 6.0, 0.0, 2.0)},
        ),
        ((1, 3, 2), "terminated", 3, {1: (1.5, 0.5, 3.0, 1.0, 3.0)}),
        ((1, 3, 2), "truncated", 3, {1: (1.5, 0.5, 3.0, 0.0, 3.0)}),  # the steps that were made, for what was decided
        # a decision that has not ended counts as far as it is stored
        ((1, 3, 2, 1), None, 3, {0: ONE, 1: (1.5, 0.5, 3.0, 0.0, 3.0), 2: (1.0, 1.0, 3.0, 0.0, 2.0)}),
        ((1, 1), "terminated", 1, {0: ONE, 1: (1.0, 1.0, 2.0, 1.0, 1.0)}),
    ],
)
def test_decisions_sum_their_rewards(lasts, end, steps, expected):
    outcomes = rows(table_of(*lasts, end=end, steps=steps))
    assert {number: outcomes[number] for number in expected} == expected
    assert end or len(outcomes) == len(expected)


def test_number_of_steps_is_read_as_it_is_stored():
    most = 5
    spaces = decisions(CONTINUOUS, most=most, number=True)
    batch = table_of(3, 2, 1, 5, 4, 3, 2, 1, end="truncated", steps=most, spaces=spaces).sample(300)
    nothing = {"action": batch["action"]["action"], "left": torch.zeros(300)}
    _, steps = follow(batch["action"], nothing, most)
    lasts = torch.tensor([3, 2, 1, 5, 4, 3, 2, 1])
    assert torch.equal(steps, lasts[batch["observation"][:, 0].long()])
    ends = np.array(
        [[-1.0], [-0.61], [-0.59], [0.0], [1.0]], np.float32
    )  # five equal parts: -1, -0.6, -0.2, 0.2, 0.6, 1
    _, steps = follow({"action": ends, "repeats": ends}, {"action": ends, "left": np.zeros(5)}, most)
    assert steps.tolist() == [1, 1, 2, 3, 5]


class Q:
    """Values the second of two choices and the last number of steps."""

    def __init__(self, most):
        self.codec = ActionCodec(decisions(DISCRETE, most=most))

    def act(self, observation, explore):
        return {
            "action": torch.ones(len(observation), dtype=torch.int64),
            "repeats": torch.full((len(observation),), 2),
        }


def test_epsilon_follows_env_steps_and_is_saved():
    spaces, options = decisions(DISCRETE, most=3), {"epsilon": Linear(1.0, 0.0, steps=10), "seed": 1}
    agent, again = (persistent(Q(3), spaces=spaces, most=3, **options) for _ in range(2))
    state, lengths = agent.initial_state(1), []
    for _ in range(40):
        response = agent(np.zeros((1, 1), np.float32), state)
        state, lengths = response["state"], [*lengths, int(response["lasts"][0])]
    assert agent.agent.steps == 40  # not the number of decisions
    assert lengths[-6:] in ([3, 2, 1] * 2, [2, 1, 3] * 2, [1, 3, 2] * 2)  # epsilon is 0
    assert agent.metrics["explore/epsilon"] == 0.0
    again.load_state_dict(agent.state_dict())
    assert again.agent.steps == 40
    assert again.metrics == agent.metrics
    with pytest.raises(ConfigError, match=r"evaluation\.epsilon: repeated actions .* are not sampled step by step"):
        sampling(agent, 0.5, seed=0)


def test_agents_act_on_their_device():
    agent = persistent(Q(3), spaces=decisions(DISCRETE, most=3), most=3, epsilon=0.1, seed=1, device="meta")
    assert (agent.device, agent.agent.device) == ("meta", "meta")


def test_own_agents_are_not_repeated():
    with pytest.raises(ConfigError, match=r"^agent: action_repeat wants a PolicyAgent, .*'optimism'"):
        persistent(Q(3), spaces=decisions(DISCRETE, most=3), most=3, optimism=1.0)
    with pytest.raises(ConfigError, match=r"sum rewards by algorithm\.n_step"):
        Repeats(most=3)


class Scripted:
    """Decides on what the observation says: the action, and for how many steps."""

    def __init__(self):
        self.codec = ActionCodec(decisions(Spaces(LINE, Composite({"push": LINE})), most=4))
        self.asked = 0

    def act(self, observation, explore):
        self.asked += 1
        return {"action": {"push": observation[:, :1]}, "repeats": observation[:, 1].long() - 1}


def test_envs_repeat_decided_actions():
    policy = Scripted()
    agent = Persistent(policy, spaces=Spaces(LINE, Composite({"push": LINE})))
    state, history = agent.initial_state(2), []
    seen = [[[0.1, 3], [0.2, 1]], [[9, 4], [0.3, 2]], [[9, 4], [9, 4]], [[0.4, 2], [0.5, 1]], [[9, 4], [0.6, 1]]]
    for observation in np.array(seen, np.float32):
        before = state
        response = agent(observation, state)
        state = response["state"]
        envs = zip(response["action"]["push"][:, 0], response["lasts"], strict=True)
        history.append([(float(push), int(steps)) for push, steps in envs])
        action, after = agent.respond(*(_tensors(tree) for tree in (observation, before)), True)
        assert np.array_equal(action["push"].numpy(), response["action"]["push"])  # exports do the same
        assert after["left"].tolist() == state["left"].tolist()
    assert history == [
        [(pytest.approx(0.1), 3), (pytest.approx(0.2), 1)],
        [(pytest.approx(0.1), 2), (pytest.approx(0.3), 2)],
        [(pytest.approx(0.1), 1), (pytest.approx(0.3), 1)],
        [(pytest.approx(0.4), 2), (pytest.approx(0.5), 1)],
        [(pytest.approx(0.4), 1), (pytest.approx(0.6), 1)],
    ]
    assert agent.metrics["repeat/switched"] == pytest.approx((1 + 0.5 + 0 + 1 + 0.5) / 5, abs=0.01)
    assert policy.asked == 5 + 4  # by respond; and where an env had nothing left


def _tensors(tree):
    return {name: _tensors(part) for name, part in tree.items()} if isinstance(tree, dict) else torch.from_numpy(tree)


@pytest.mark.parametrize("random", [True, False])
def test_memory_holds_remaining_steps(random):
    env = make("Pendulum-v1", num_envs=2)
    result = Persistent(Uniform(env.spaces), spaces=env.spaces)
    table = Table(spaces=env.spaces, num_envs=2, length=1000, columns=COLUMNS)
    collector = Collector(env, result, table, warm_up_seed=3)
    collector.begin_training()
    assert collector.collect(900, random=random) == 900  # environment steps, whatever was decided
    batch = table.sample(500, 2)
    (now, then), (before, after) = batch["lasts"].unbind(1), batch["action"].unbind(1)
    assert torch.equal(then[now > 1], now[now > 1] - 1)
    assert torch.equal(after[now > 1], before[now > 1])
    assert not (after == before)[now == 1].any()
    assert set(then[now == 1].tolist()) == {1, 2, 3, 4}
    episodes = evaluate(env.copy(num_envs=2), result, episodes=2, seed=1)
    assert episodes.lengths == [200, 200]
    env.close()


class Uniform:
    """Decides at random."""

    def __init__(self, spaces):
        self.codec = ActionCodec(decisions(spaces, most=4))

    def act(self, observation, explore):
        count = len(observation)
        return {"action": 2 * torch.rand(count, 1) - 1, "repeats": torch.randint(4, (count,))}
