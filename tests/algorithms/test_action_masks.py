"""An action that `action_mask` forbids is neither drawn nor the best, and counts in no target."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box as GymBox
from gymnasium.spaces import Dict, Discrete, MultiBinary
from tests.configs import ALGORITHMS, actions, keys
from tests.export.made import make, proven

import rlrun
from rlrun.algorithms.actor_critic.iql import AdvantageWeightedLoss
from rlrun.algorithms.imitation.bc import BCLoss
from rlrun.algorithms.value_based.dqn import QNetwork, QTarget
from rlrun.collect.agents import EpsilonGreedy, RandomAgent
from rlrun.core import spaces as ours
from rlrun.core.errors import RlrunError, SpaceError
from rlrun.env.toys import MaskedChain
from rlrun.env.wrappers import ActionMask, ActionRepeat, RandomGoal
from rlrun.nn import ActionCodec, Critics, Encoder, Normalizer, Policy, SoftPolicy, Temperature

from .fixed import COIN, LINE, sgd, write
from .runs import REPLAY, ROLLOUT

FIVE = ours.Composite({"a": ours.Discrete(2), "b": ours.Discrete(3)})


def spaces(action, flags):
    action_mask = ours.MultiDiscrete(np.full(flags, 2), np.zeros(flags, np.int64), dtype="int8")
    return ours.Spaces(ours.Composite({"action_mask": action_mask, "line": LINE}), action)


def seen(*flags, value=0.0):
    return {"line": torch.full((len(flags), 1), value), "action_mask": torch.tensor(flags, dtype=torch.int8)}


@pytest.mark.parametrize(
    ("joint_limit", "allowed"),
    [
        (64, [[False] * 3 + [True, False, True], [True, False, False] * 2]),  # (a, b) = (1, 0), (1, 2)
        (1, [[False, True, True, False, True], [True, True, True, False, False]]),
    ],
)
def test_flags_belong_to_choices(joint_limit, allowed):
    codec = ActionCodec(spaces(FIVE, 5), joint_limit=joint_limit)
    observation = seen([0, 1, 1, 0, 1], [0, 0, 1, 0, 0])  # without a flag of a, all of its choices
    values = codec.restrict(torch.zeros(3, 2, codec.width), observation)  # of three members
    assert (values[1] > -1.0).tolist() == allowed
    assert ActionCodec(ours.Spaces(LINE, FIVE)).restrict(values, None) is values


@pytest.mark.parametrize(
    ("both", "message"),
    [
        (spaces(ours.Discrete(3), 2), r"'action_mask' has 2 flags; Discrete\(3\) has 3 choices, and wants a flag"),
        (spaces(LINE, 1), "has no choices to forbid"),
        (ours.Spaces(ours.Composite({"x": spaces(COIN, 2).observation}), COIN), r"'x.action_mask': an .* at the top"),
        (ours.Spaces(ours.Composite({"action_mask": ours.Composite({"a": LINE})}), COIN), "is one array at the top"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(both, message):
    with pytest.raises(SpaceError, match=message):
        ActionCodec(both)


def test_a_mask_is_no_feature():
    both = spaces(ours.Discrete(3), 3)
    assert Encoder(both).size == 1
    assert Encoder(ours.Composite({"action_mask": both.observation.parts["action_mask"]})).size == 6  # all there is
    box = ours.Box((3,), np.zeros(3), np.ones(3))
    assert Normalizer(ours.Composite({"line": LINE, "action_mask": box})).leaves == ("line",)
    assert Normalizer(ours.Composite({"action_mask": box}), needed=False).leaves == ()


def test_policy_draws_what_is_allowed():
    policy = Policy(spaces(ours.Discrete(4), 4))
    observation = seen(*[[1, 0, 1, 0]] * 400)
    heads = policy.heads(observation)
    probability = heads.choices.exp().detach()
    assert probability[0].tolist() == pytest.approx([0.5, 0.0, 0.5, 0.0], abs=0.05)
    assert policy.head.entropy(heads)[0].item() == pytest.approx(math.log(2.0), abs=0.01)
    assert set(policy.act(observation).tolist()) == {0, 2}
    policy.head.entropy(heads).sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in policy.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("quantiles", [None, 2])
def test_target_counts_allowed_choices(double, quantiles):
    size = quantiles or 1
    network = QNetwork(spaces(ours.Discrete(3), 3), hidden=(), members=1, quantiles=quantiles)
    write(network, ([[0.0] * 3 * size], [9.0] * size + [2.0] * size + [1.0] * size))
    after = seen([0, 1, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0])  # no flag is set where an episode ends
    terminated = torch.tensor([False, False, False, True])
    outputs, _ = QTarget(network, double=double, discount=0.5).target(after, torch.ones(4), terminated)
    target = outputs["q_target"] if quantiles is None else outputs["q_target"].mean(-1)
    assert target.tolist() == [2.0, 1.5, 5.5, 1.0]
    assert network.act(after).tolist() == [1, 2, 0, 0]


def test_soft_policy_expects_allowed_choices():
    both = spaces(ours.Discrete(3), 3)
    critics = Critics(both, hidden=(), members=2)
    write(critics, *[([[0.0] * 3], [9.0, 2.0, 2.0])] * 2)
    policy = SoftPolicy(both, critics, Temperature(both, initial=0.001))
    observation = seen([0, 1, 1], [0, 1, 0])
    choices, _ = policy.choices(critics(observation), observation)
    assert choices.exp().tolist() == [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]
    assert policy.codec.expect(choices.exp(), choices).tolist() == pytest.approx([-math.log(2.0), 0.0])
    assert policy.act(observation, explore=False).tolist() == [1, 1]


@pytest.mark.parametrize("alpha", [1e-30, 1e10])
def test_choices_are_allowed_at_any_temperature(alpha):
    both = spaces(ours.Discrete(3), 3)
    critics = write(Critics(both, hidden=(), members=1), ([[0.0] * 3], [9.0, 2.0, 2.0]))
    observation = seen([0, 1, 1])
    choices, _ = SoftPolicy(both, critics, Temperature(both, initial=alpha)).choices(critics(observation), observation)
    assert choices.exp().tolist() == [[0.0, 0.5, 0.5]]
    assert bool((choices.exp() * choices).isfinite().all())


def test_stored_actions_that_are_forbidden_teach_nothing():
    policy = Policy(spaces(ours.Discrete(3), 3))
    observation, action = seen([1, 1, 0], [1, 1, 0]), torch.tensor([2, 0])
    loss = BCLoss(policy, sgd).loss(observation, action)
    assert loss[0] == 0.0 < loss[1]
    weighted, *_ = AdvantageWeightedLoss(policy, sgd).loss(observation, action, torch.zeros(2))
    torch.testing.assert_close(weighted, loss)


def test_random_actions_are_allowed():
    agent, flags = RandomAgent(FIVE, seed=0), np.array([[0, 1, 1, 0, 1]] * 3000)
    action = agent({"line": np.zeros((3000, 1)), "action_mask": flags})["action"]
    assert set(action["a"]) == {1}
    assert np.bincount(action["b"]) / 3000 == pytest.approx([0.5, 0.0, 0.5], abs=0.03)
    both = spaces(FIVE, 5)
    greedy = EpsilonGreedy(QNetwork(both), epsilon=1.0, spaces=both, seed=0)
    exported, _ = greedy.respond(seen(*[[0, 1, 1, 0, 1]] * 500), None, True)
    assert {(int(a), int(b)) for a, b in zip(exported["a"], exported["b"], strict=True)} == {(1, 0), (1, 2)}


def forms(algorithm):
    """Return how a small run of an algorithm is begun; IQL learns from its own actions here."""
    sizes = ("plan.horizon=2", "plan.population=4", "plan.elite=2", "plan.iterations=1")
    plan = [f"algorithm.{size}" for size in sizes if "plan" in keys(algorithm)]
    return (f"algorithm={algorithm}", *(ROLLOUT if "horizon" in keys(algorithm) else REPLAY), *plan)


UNTRIED = {"airl", "bc", "gail", "handcrafted"}  # of stored actions alone, and of the user's own policy
RUNS = {name: forms(name) for name in ALGORITHMS if actions(name) in ("discrete", "every") and name not in UNTRIED}
REFUSED = {name: RUNS.pop(name) for name in ("action_repeat", "mbpo")}  # a later mask is not known
RUNS["ppo with features"] = (*RUNS["ppo"], "+with=[representation,rnd,observation_norm]")
RUNS["dqn with latents"] = (
    *(*RUNS["dqn"], "+with=muzero_representation", "muzero_representation.reanalyze.share=0.5"),
    *("muzero_representation.warmup_steps=30", "muzero_representation.reanalyze.simulations=2"),
)
RUNS["recurrent ppo"] = (*RUNS["ppo"], "algorithm.recurrent=gru")


@pytest.fixture
def taken(monkeypatch):
    """Return for each step whether its action was allowed."""
    result, act = [], MaskedChain.act

    def watched(env, action):
        result.append(int(action) in env.allowed())
        return act(env, action)

    monkeypatch.setattr(MaskedChain, "act", watched)
    return result


@pytest.mark.parametrize("name", RUNS)
def test_no_run_takes_a_forbidden_action(name, taken, tmp_path):
    more = ("env=maskedchain", "preset=null", "evaluation.every=50", "evaluation.episodes=2")
    result = rlrun.train([*RUNS[name], *more], run_dir=tmp_path / "run")
    rlrun.evaluate(result.run_dir, episodes=2, stochastic=True)
    assert len(taken) > 200
    assert all(taken)


@pytest.mark.parametrize(
    ("name", "message"), [("action_repeat", "'action_mask' has 20 flags"), ("mbpo", "a model predicts no action mask")]
)
def test_a_later_action_may_be_forbidden(name, message, tmp_path):
    with pytest.raises(RlrunError, match=message):
        rlrun.train([*REFUSED[name], "env=maskedchain", "preset=null"], run_dir=tmp_path / "run")


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_an_exported_policy_knows_the_mask(algorithm):
    policy = make(f"algorithm={algorithm}", "env=maskedchain", "algorithm.hidden=[8]", "preset=null")
    for stochastic in (False, True):
        proven(policy, policy.graph(stochastic=stochastic), count=20)


class Doors(gymnasium.Env):
    """Give flags in the info, or by a method, or not at all."""

    observation_space, action_space = GymBox(-1.0, 1.0, (2,), np.float32), Discrete(3)

    def __init__(self, way):
        self.way, self.step_number = way, 0

    def flags(self):
        return [True, self.step_number % 2 == 0, False]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), self.info()

    def step(self, action):
        self.step_number += 1
        return np.zeros(2, np.float32), 0.0, False, False, self.info()

    def info(self):
        flags = {"info": self.flags(), "tuple": (np.array(self.flags()[:2]), np.zeros(1))}
        return {"action_mask": flags[self.way]} if self.way in flags else {}

    def action_masks(self):
        return np.array(self.flags() if self.way == "method" else [True])


@pytest.mark.parametrize("way", ["info", "method", "tuple"])
def test_flags_of_an_environment_are_observed(way):
    env = ActionMask(ActionMask(Doors(way)))
    assert env.observation_space == Dict({"observation": Doors.observation_space, "action_mask": MultiBinary(3)})
    assert env.reset(seed=0)[0]["action_mask"].tolist() == [1, 1, 0]
    assert env.step(0)[0]["action_mask"].tolist() == [1, 0, 0]


def test_wrappers_leave_the_mask_at_the_top():
    goals = RandomGoal(ActionMask(Doors("info")), count=2)
    observation, _ = goals.reset(seed=0)
    assert goals.observation_space.contains({**observation, "goal": np.int64(observation["goal"])})
    assert observation["action_mask"].tolist() == [1, 1, 0]
    with pytest.raises(SpaceError, match="ActionRepeat: an action mask may forbid what is repeated"):
        ActionRepeat(ActionMask(Doors("info")), 2)


def test_an_environment_without_flags_is_refused():
    with pytest.raises(RlrunError, match=r"ActionMask: wanted 3 flags as 'action_mask' in the info, or from a method"):
        ActionMask(Doors("none")).reset()
    with pytest.raises(SpaceError, match="have no choices"):
        ActionMask(gymnasium.make("Pendulum-v1"))
