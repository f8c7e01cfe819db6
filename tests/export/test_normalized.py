"""What NormalizeObservation learned is part of a file, and of a loaded policy: both take raw observations."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

import rlrun
from rlrun.core.errors import RequestError
from rlrun.loading.policy import frozen

HERE = "tests.collect.test_wrapper_statistics"
REWARDS = "{_target_: gymnasium.wrappers.NormalizeReward}"
NORMALIZE = "{_target_: gymnasium.wrappers.NormalizeObservation}"
RUN = (
    *("algorithm=ppo", "env=cartpole", "preset=null", "algorithm.hidden=[8]", "algorithm.horizon=64", "num_envs=2"),
    *("stop.env_steps=256", "evaluation.every=0", "logger=[]", "algorithm.lr=0.05"),
)
STACKS = {
    "alone": "",
    "below a stack": ",{_target_: gymnasium.wrappers.FrameStackObservation, stack_size: 3}",
    "below a joined stack": ",{_target_: rlrun.env.wrappers.FrameStack, count: 2, axis: 0}",
    "below a goal, beside rewards": f",{REWARDS},{{_target_: rlrun.env.wrappers.RandomGoal, count: 3}}",
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_a_file_takes_raw_observations_and_acts_the_same(tmp_path, stack):
    run = tmp_path / "run"
    rlrun.train([*RUN, f"env.wrappers=[{NORMALIZE}{stack}]"], run_dir=run)
    file = rlrun.export_onnx(run)
    assert "NormalizeObservation" not in json.dumps(file.about["env"])
    assert rlrun.evaluate(file.path, episodes=3).returns == rlrun.evaluate(run, episodes=3).returns
    policy, exported = rlrun.load(run), rlrun.load(file.path)
    assert policy.observation_space == exported.observation_space
    with frozen(run) as opened:
        opened.take(opened.directory.checkpoint("latest"))
        seen, raw = opened.env.copy(), opened.env.copy_bare()
        seen.freeze_wrappers(opened.wrappers)
        for seed in range(20):
            action = opened.agent(seen.reset(seed), None, explore=False)["action"][0]
            raw.reset(seed)
            observation, _ = raw.envs[0].reset(seed=seed)
            assert policy.predict(observation)[0] == exported.predict(observation)[0] == action


def test_numbers_far_from_zero_are_normalized_before_they_are_rounded(tmp_path):
    listed = f"{{_target_: gymnasium.wrappers.RescaleObservation, min_obs: 100.0, max_obs: 101.0}},{NORMALIZE}"
    rlrun.train([*RUN, "env=pendulum", f"env.wrappers=[{listed}]"], run_dir=tmp_path / "run")
    assert rlrun.export_onnx(tmp_path / "run").about["parity"]["largest"] < 1e-5


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (f"{{_target_: {HERE}.Open}}", "Open learns from observations"),
        (f"{{_target_: {HERE}.Hidden}}", "Hidden learns from observations"),
        (f"{NORMALIZE},{{_target_: {HERE}.Hidden, learn: false}}", "Hidden changes what NormalizeObservation gives"),
    ],
    ids=["a state of its own", "no state", "around it"],
)
def test_other_wrappers_that_learn_are_refused_with_a_way_out(tmp_path, listed, reason):
    rlrun.train([*RUN, f"env.wrappers=[{listed}]"], run_dir=tmp_path / "run")
    with pytest.raises(RequestError, match=rf"env.wrappers: {reason}.*\+with=observation_norm"):
        rlrun.export_onnx(tmp_path / "run")


def test_exports_during_training_take_raw_observations(tmp_path):
    rlrun.train([*RUN, f"env.wrappers=[{NORMALIZE}]", "+with=export_onnx"], run_dir=tmp_path / "run")
    (file,) = (tmp_path / "run" / "exports").glob("*.onnx")
    raw = gymnasium.make("CartPole-v1").observation_space
    loaded, policy = rlrun.load(file), rlrun.load(tmp_path / "run")
    assert loaded.observation_space == policy.observation_space == raw
    observations = np.stack([raw.sample() % 3 for _ in range(9)])
    np.testing.assert_array_equal(loaded.predict(observations)[0], policy.predict(observations)[0])


class Open(CartPoleEnv):
    """Counts the open environments of its kind."""

    made, open = 0, 0

    def __init__(self):
        super().__init__()
        Open.made, Open.open = Open.made + 1, Open.open + 1

    def close(self):
        Open.open -= 1


@pytest.mark.parametrize("listed", [NORMALIZE, REWARDS])
def test_exports_share_environments_that_the_end_closes(tmp_path, listed):
    Open.made = Open.open = 0
    overrides = [RUN[0], *RUN[2:], f"env.target={__name__}.Open", f"env.wrappers=[{listed}]", "+with=export_onnx"]
    rlrun.train([*overrides, "export.every=64"], run_dir=tmp_path / "run")
    files = [*(tmp_path / "run" / "exports").glob("*.onnx")]
    assert (len(files), Open.made, Open.open) == (2, 2 + (2 if listed == NORMALIZE else 1), 0)


def test_a_policy_whose_rewards_a_vector_wrapper_normalizes_is_exported(tmp_path):
    def vector(num_envs=1, **kwargs):
        return wrappers.vector.NormalizeReward(CartPoleVectorEnv(num_envs, **kwargs))

    gymnasium.register("Paid/CartPole-v0", entry_point=CartPoleEnv, vector_entry_point=vector)
    try:
        paid = [RUN[0], *RUN[2:], "env.id=Paid/CartPole-v0", "env.vectorization=native"]
        rlrun.train(paid, run_dir=tmp_path / "run")
        assert rlrun.export_onnx(tmp_path / "run").about["parity"]["largest"] < 1e-5
    finally:
        del gymnasium.registry["Paid/CartPole-v0"]
