"""The states of layers that remember: taken, loaded, frozen and pooled."""

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from tests.resume.environments import Bounded

from rlrun import checkpointing as storage
from rlrun.core.errors import RlrunError
from rlrun.env.wrapper_state import LayerStates, has_moments, joint_moments, pool


class Derived(wrappers.NormalizeObservation):
    """Adds a memory of its own, and offers that only."""

    def __init__(self, env):
        super().__init__(env)
        self.resets = 0

    def reset(self, **arguments):
        self.resets += 1
        return super().reset(**arguments)

    def state_dict(self):
        return {"resets": self.resets, "log": [self.resets]}

    def load_state_dict(self, state):
        self.resets = state["resets"]


def pendulum(*layers):
    env = gymnasium.make("Pendulum-v1")
    for layer in layers:
        env = layer(env)
    return env


def walk(env, steps, seed=3):
    """Return observations and rewards of an episode of actions by a seed."""
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    seen = [observation]
    for _ in range(steps):
        observation, reward, *_ = env.step(env.action_space.sample())
        seen += [observation, reward]
    return np.concatenate([np.ravel(part) for part in seen])


LAYERS = {
    "both of Gymnasium": [wrappers.NormalizeObservation, wrappers.NormalizeReward],
    "below a stack": [wrappers.NormalizeObservation, lambda env: wrappers.FrameStackObservation(env, 3)],
    "a derived one": [Derived, wrappers.NormalizeReward],
    "one's own": [Bounded],
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_a_fresh_environment_with_a_loaded_state_continues_bit_for_bit(layers):
    first, second = pendulum(*layers), pendulum(*layers)
    walk(first, 40)
    tensors, tree = storage.split(LayerStates(first).state_dict())
    LayerStates(second).load_state_dict(storage.merge(tensors, tree))
    np.testing.assert_array_equal(walk(first, 30, seed=5), walk(second, 30, seed=5))
    assert repr(LayerStates(first).state_dict()) == repr(LayerStates(second).state_dict())


def test_a_state_is_a_copy():
    env = pendulum(Derived, wrappers.NormalizeReward, Bounded)
    walk(env, 5)
    states = LayerStates(env)
    before = states.state_dict()
    text = repr(before)
    walk(env, 5)
    assert repr(before) == text
    states.load_state_dict(before)
    walk(env, 5)
    assert repr(before) == text


def test_frozen_statistics_stay_and_other_memories_go_on():
    env = pendulum(Derived, wrappers.NormalizeReward)
    walk(env, 20)
    states = LayerStates(env)
    states.freeze()
    before = states.state_dict()
    walk(env, 20)
    after = states.state_dict()
    for name, moments in (("1.Derived", "obs_rms"), ("0.NormalizeReward", "return_rms")):
        assert repr(after[name][moments]) == repr(before[name][moments])
    assert after["1.Derived"]["own"]["resets"] == 2


def test_pooled_moments_are_those_of_all_samples_together():
    generator = np.random.default_rng(0)
    samples = [generator.normal(3.0 * index, 1.0 + index, (5 + 20 * index, 4)) for index in range(3)]
    parts = [{"mean": part.mean(0), "var": part.var(0), "count": len(part)} for part in samples]
    joint, everything = joint_moments(parts), np.concatenate(samples)
    np.testing.assert_allclose(joint["mean"], everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(joint["var"], everything.var(0), rtol=1e-12)
    assert joint["count"] == len(everything)
    assert type(joint["count"]) is int


def test_states_of_several_environments_are_pooled_by_their_counts_wherever_moments_are():
    envs = [pendulum(wrappers.NormalizeObservation, Bounded) for _ in range(3)]
    for index, env in enumerate(envs):
        walk(env, 10 * (index + 1), seed=index)
    states = [LayerStates(env).state_dict() for env in envs]
    pooled = pool(states)
    assert pooled["0.Bounded"] == states[0]["0.Bounded"]  # no moments: those of the first
    moments = pooled["1.NormalizeObservation"]["obs_rms"]
    assert moments["count"] == pytest.approx(sum((11, 21, 31)), abs=1e-3)
    assert moments["mean"].dtype == states[0]["1.NormalizeObservation"]["obs_rms"]["mean"].dtype
    own = [{"0.Own": {"own": {"parts": {"x": {"mean": m, "var": 0.0, "count": 2.0}}, "kept": m}}} for m in (1.0, 3.0)]
    assert pool(own)["0.Own"]["own"] == {"parts": {"x": {"mean": 2.0, "var": 1.0, "count": 4.0}}, "kept": 1.0}
    assert pool(states[:1]) is states[0]


def test_a_single_environment_is_left_out_where_only_wrappers_are_asked_for():
    class Counting(gymnasium.envs.classic_control.PendulumEnv):
        def state_dict(self):
            return {"episodes": 3}

        def load_state_dict(self, state):
            raise AssertionError

    env = wrappers.NormalizeReward(Counting())
    assert [*LayerStates(env).layers] == ["0.NormalizeReward", "1.Counting"]
    assert [*LayerStates(env, wrappers_only=True).layers] == ["0.NormalizeReward"]


def test_states_of_other_layers_and_failing_layers_are_named():
    env = LayerStates(pendulum(Derived))
    with pytest.raises(RlrunError, match=r"the state is of 0.Bounded, and this environment remembers by 0.Derived"):
        env.load_state_dict({"0.Bounded": {}})
    with pytest.raises(RlrunError, match="env: load_state_dict of Derived failed: KeyError: 'obs_rms'"):
        env.load_state_dict({"0.Derived": {}})


def test_moments_are_known_by_what_they_hold():
    class Moments:
        mean, var, count = 0.0, 1.0, 2

        def update(self, sample):
            pass

    class Table:
        """Has functions of these names."""

        def update(self): ...
        def mean(self): ...
        def var(self): ...
        def count(self): ...

    env = pendulum(Bounded)
    for value, expected in ((Moments(), True), ({"a": [Moments()]}, True), (Table(), False), (3.0, False)):
        env.something = value
        assert has_moments(env) is expected
