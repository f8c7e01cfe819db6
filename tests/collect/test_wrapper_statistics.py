"""What wrappers learn goes along into evaluations, checkpoints and forks, and stays as it is there."""

import json
from contextlib import contextmanager
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.utils import RunningMeanStd

import rlrun
from rlrun.checkpointing import load
from rlrun.collect import RandomAgent
from rlrun.collect.evaluate import evaluate, stage
from rlrun.commands.check import check
from rlrun.env import make
from rlrun.env.wrapper_state import LayerStates

HERE = "tests.collect.test_wrapper_statistics"
NORMALIZE = "{_target_: gymnasium.wrappers.NormalizeObservation}"
RUN = (
    *(f"env.target={HERE}.Bandit", "algorithm=ppo", "algorithm.hidden=[32]", "algorithm.horizon=256", "preset=null"),
    *("algorithm.lr=3e-3", "num_envs=2", "stop.env_steps=2_500", "evaluation.every=1_000", "evaluation.episodes=16"),
    "logger=[]",
)


class Bandit(gymnasium.Env):
    """One step; the observation, 2 or 4, names the arm that pays."""

    def __init__(self):
        self.observation_space, self.action_space = Box(0, 10, (1,), np.float32), Discrete(2)

    def observe(self):
        return np.array([2.0 + 2.0 * self.arm], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.arm = int(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action):
        return self.observe(), float(action == self.arm), True, False, {}


class Hidden(gymnasium.ObservationWrapper):
    """Normalizes like Gymnasium's wrapper, and offers nothing."""

    def __init__(self, env, learn=True):
        super().__init__(env)
        self.observation_space = Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
        self.moments, self.learn = RunningMeanStd(shape=env.observation_space.shape), learn

    def observation(self, observation):
        if self.learn:
            self.moments.update(observation[None])
        return ((observation - self.moments.mean) / np.sqrt(self.moments.var + 1e-8)).astype(np.float32)


class Open(Hidden):
    """Offers its state, but cannot be frozen."""

    def state_dict(self):
        return {name: getattr(self.moments, name) for name in ("mean", "var", "count")}

    def load_state_dict(self, state):
        for name, value in state.items():
            setattr(self.moments, name, value)


class Doubled(gymnasium.Wrapper):
    """Pays twice."""

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, 2.0 * reward, *rest


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def by_hand(run, layers, episodes, seed=0):
    """Return the rewards of a loop over an environment with the checkpoint's states of wrappers, frozen."""
    env = Bandit()
    for layer in layers:
        env = layer(env)
    states = LayerStates(env)
    states.load_state_dict(load(rlrun.runs.directory.RunDir(run).checkpoint("latest"), ["env"])["env"]["wrappers"])
    states.freeze()
    saved = states.state_dict()
    total = []
    agent = _agent(run)
    for episode in range(episodes):
        states.load_state_dict(saved)
        observation, _ = env.reset(seed=seed + episode)
        action = agent(observation[None], None, explore=False)["action"][0]
        total.append(float(env.step(int(action))[1]))
    return total


def _agent(run):
    from rlrun.loading.policy import frozen

    with frozen(run) as policy:
        policy.take(policy.directory.checkpoint("latest"))
        return policy.agent


@pytest.mark.parametrize(
    ("listed", "layers", "more"),
    [
        (NORMALIZE, [wrappers.NormalizeObservation], ()),
        (NORMALIZE, [wrappers.NormalizeObservation], ("env.vectorization=async", "num_envs=3")),
        (f"{{_target_: {HERE}.Open}}", [Open], ("num_envs=1",)),
        (f"{{_target_: {HERE}.Open}}", [Open], ("evaluation.async=true",)),
    ],
    ids=["normalized", "in workers", "own", "evaluated next to training"],
)
def test_evaluations_see_what_training_sees(tmp_path, listed, layers, more):
    result = rlrun.train([*RUN, f"env.wrappers=[{listed}]", *more], run_dir=tmp_path / "run")
    assert result.summary["evaluation"]["mean_return"] == 1.0
    report = rlrun.evaluate(tmp_path / "run", episodes=40)
    assert report.returns == by_hand(tmp_path / "run", layers, 40) == [1.0] * 40


def test_without_a_state_one_line_names_the_way_out(tmp_path):
    def said(listed):
        return [line for line in check([*RUN, f"env.wrappers=[{listed}]"]) if line.startswith("wrappers")]

    (line,) = said(f"{{_target_: {HERE}.Hidden}}")
    assert "Hidden learns" in line
    assert "+with=observation_norm" in line
    for listed in (f"{{_target_: {HERE}.Hidden, learn: false}}", f"{{_target_: {HERE}.Open}}", NORMALIZE):
        assert said(listed) == []


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_raw_return_stands_beside_that_of_wrappers(tmp_path, vectorization):
    listed = f"env.wrappers=[{{_target_: {HERE}.Doubled}}]"
    rlrun.train([*RUN, listed, f"env.vectorization={vectorization}"], run_dir=tmp_path / "run")
    last = lines(tmp_path / "run")[-1]
    assert last["episode/return"] == pytest.approx(2.0 * last["episode/raw_return"])
    assert last["evaluation/mean_return"] == 2.0 * last["evaluation/mean_raw_return"] == 2.0
    report = rlrun.evaluate(tmp_path / "run", episodes=5)
    assert (report.mean_return, report.mean_raw_return) == (2.0, 1.0)


def test_evaluations_count_no_reward_by_what_training_paid(tmp_path):
    result = rlrun.train(
        [*RUN, "env.wrappers=[{_target_: gymnasium.wrappers.NormalizeReward}]"], run_dir=tmp_path / "run"
    )
    assert result.summary["evaluation"]["mean_return"] == 1.0
    assert lines(tmp_path / "run")[-1]["episode/return"] > 1.5
    assert rlrun.evaluate(tmp_path / "run", episodes=5).to_json()["raw_returns"] == [1.0] * 5


def test_evaluations_leave_statistics_as_they_are():
    env = make("Pendulum-v1", num_envs=2, wrappers=[wrappers.NormalizeObservation, Open])
    agent = RandomAgent(env.spaces.action, seed=1)
    env.reset(3)
    for _ in range(50):
        env.step(agent.draw(2)["action"])
    states, copy = env.wrapper_states(), env.copy(3)
    before = repr(states)
    results = []
    for _ in range(2):
        agent = RandomAgent(env.spaces.action, seed=5)
        results.append(evaluate(copy, agent, episodes=3, seed=0, max_steps=20, wrappers=states).returns)
    assert results[0] == results[1]
    assert repr(env.wrapper_states()) == repr(states) == before


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_shares_of_statistics_add_up(vectorization):
    kind = partial(make, "Pendulum-v1", wrappers=[wrappers.NormalizeObservation], vectorization=vectorization)
    first, second = kind(num_envs=3), kind(num_envs=2)
    agent = RandomAgent(first.spaces.action, seed=1)
    first.reset(3)
    for _ in range(30):
        first.step(agent.draw(3)["action"])
    saved = first.state_dict()
    second.load_state_dict({"wrappers": saved["wrappers"]})
    (old,), (new,) = (env.wrapper_states().values() for env in (first, second))
    for name in ("mean", "var", "count"):
        np.testing.assert_allclose(new["obs_rms"][name], old["obs_rms"][name], rtol=1e-5)
    first.close()
    second.close()
    assert repr(first.wrapper_states()) == repr(saved["wrappers"])  # also of workers that are gone


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_worker_that_collects_sends_its_statistics_and_gets_them_again(tmp_path, kind):
    more = ("+with=async", f"async.kind={kind}")
    result = rlrun.train([*RUN, f"env.wrappers=[{NORMALIZE}]", *more], run_dir=tmp_path / "run")
    assert result.summary["evaluation"]["mean_return"] == 1.0
    where = rlrun.runs.directory.RunDir(tmp_path / "run").checkpoint("latest")
    (state,) = load(where, ["env"])["env"]["wrappers"].values()
    rlrun.resume(tmp_path / "run", ["stop.env_steps=3_500"])
    (after,) = load(rlrun.runs.directory.RunDir(tmp_path / "run").checkpoint("latest"), ["env"])["env"][
        "wrappers"
    ].values()
    assert after["obs_rms"]["count"] > state["obs_rms"]["count"] + 500


def test_a_fork_begins_with_the_statistics_of_its_parent(tmp_path):
    listed = f"env.wrappers=[{NORMALIZE}]"
    rlrun.train([*RUN, listed], run_dir=tmp_path / "run")
    more = [f"init.from={tmp_path / 'run'}", "stop.env_steps=512", "num_envs=1"]
    result = rlrun.train([*RUN, listed, *more], run_dir=tmp_path / "fork")
    states = [
        next(
            iter(
                load(rlrun.runs.directory.RunDir(tmp_path / run).checkpoint("latest"), ["env"])["env"][
                    "wrappers"
                ].values()
            )
        )
        for run in ("run", "fork")
    ]
    counts = [state["obs_rms"]["count"] for state in states]
    assert counts[1] == pytest.approx(counts[0] + 2 * 512, abs=4)  # a reset and a step an episode
    assert result.summary["evaluation"]["mean_return"] == 1.0


@contextmanager
def native(entry, vector, num_envs=3):
    """Play 30 steps in a native vector environment."""
    name = "Normalized/Environment-v0"
    gymnasium.register(name, entry_point=entry, vector_entry_point=vector)
    try:
        env = make(name, num_envs=num_envs, vectorization="native")
        agent = RandomAgent(env.spaces.action, seed=1)
        env.reset(3)
        for _ in range(30):
            step = env.step(agent.draw(num_envs)["action"])
            env.restart(step.terminated | step.truncated)
        yield env
    finally:
        del gymnasium.registry[name]


def played(env, copy, **settings):
    agent = RandomAgent(env.spaces.action, seed=5)
    return evaluate(copy, agent, episodes=3, seed=0, wrappers=env.wrapper_states(), **settings)


def test_a_vector_environment_that_normalizes_is_evaluated_with_its_statistics():
    def vector(num_envs=1, **kwargs):
        return wrappers.vector.NormalizeObservation(CartPoleVectorEnv(num_envs, **kwargs))

    with native(CartPoleEnv, vector) as env:
        states, copy = env.wrapper_states(), stage(env, 3)
        played(env, copy)
        assert repr(copy.wrapper_states()).replace("False", "True") == repr(states)


class Rising(Bandit):
    """Three steps that pay 1, 2 and 3."""

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.count += 1
        return self.observe(), float(self.count), self.count == 3, False, {}


class Older(gymnasium.vector.VectorRewardWrapper):
    """Pays the number of resets so far, which it offers as its state."""

    def __init__(self, env):
        super().__init__(env)
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def rewards(self, rewards):
        return np.full_like(rewards, self.resets)

    def state_dict(self):
        return {"resets": self.resets}

    def load_state_dict(self, state):
        self.resets = state["resets"]


MODES = pytest.mark.parametrize("mode", gymnasium.vector.AutoresetMode)


@MODES
def test_evaluations_of_a_vector_environment_count_what_it_pays(mode):
    def vector(num_envs=1):
        return wrappers.vector.NormalizeReward(SyncVectorEnv([Rising] * num_envs, autoreset_mode=mode))

    with native(Rising, vector) as env:
        copy = stage(env, 3)
        for _ in range(2):
            assert (result := played(env, copy)).returns == result.raw_returns == [6.0] * 3
        assert repr(copy.wrapper_states()["0.NormalizeReward"]["return_rms"]) == repr(
            env.wrapper_states()["0.NormalizeReward"]["return_rms"]
        )


@MODES
def test_states_of_vector_wrappers_stay_as_they_are_in_evaluations(mode):
    def vector(num_envs=1):
        return Older(SyncVectorEnv([Rising] * num_envs, autoreset_mode=mode))

    with native(Rising, vector) as env:
        resets, copy = env.wrapper_states()["0.Older"]["own"]["resets"], stage(env, 3)
        for _ in range(2):
            assert (result := played(env, copy)).returns == [3.0 * (resets + 1)] * 3
            assert result.raw_returns == [6.0] * 3


def test_a_vector_environment_without_states_begins_each_evaluation_alike():
    def vector(num_envs=1):
        return Older(SyncVectorEnv([Rising] * num_envs))

    with native(Rising, vector) as env:
        copy, agent = stage(env, 2), RandomAgent(env.spaces.action, seed=5)
        first, second = (evaluate(copy, agent, episodes=2, seed=0).returns for _ in range(2))
    assert first == second == [3.0, 6.0]


def test_evaluation_keeps_vector_wrappers_that_remember_nothing():
    def vector(num_envs=1, **kwargs):
        env = CartPoleVectorEnv(num_envs, **kwargs)
        return wrappers.vector.TransformObservation(env, lambda observation: 2.0 * observation)

    with native(CartPoleEnv, vector) as env:
        single = CartPoleEnv()
        assert np.allclose(stage(env, 1).reset([7])[0], 2.0 * single.reset(seed=7)[0])


def test_a_run_continues_with_statistics_of_rewards_and_observations(tmp_path):
    listed = f"{NORMALIZE},{{_target_: gymnasium.wrappers.NormalizeReward}},{{_target_: {HERE}.Open}}"
    small = [f"env.target={HERE}.Bandit", "algorithm=dqn", "preset=null", "num_envs=2", "logger=[]"]
    small += ["algorithm.warmup_steps=100", "algorithm.hidden=[8]", "evaluation.every=0", f"env.wrappers=[{listed}]"]
    rlrun.train([*small, "stop.env_steps=512"], run_dir=tmp_path / "whole")
    rlrun.train([*small, "stop.env_steps=256"], run_dir=tmp_path / "part")
    rlrun.resume(tmp_path / "part", ["stop.env_steps=512"])
    whole, part = (
        load(rlrun.runs.directory.RunDir(tmp_path / run).checkpoint("latest"), ["env"])["env"]["wrappers"]
        for run in ("whole", "part")
    )
    assert repr(whole) == repr(part)
