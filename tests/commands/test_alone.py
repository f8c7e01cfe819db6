"""Policies that learned from data alone are evaluated where the user says, loaded, exported and shown."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import rlrun
from rlrun.commands.play import play
from rlrun.core.errors import RequestError
from rlrun.memory import spaces_in
from rlrun.memory.formats import table_file

TINY = ["algorithm.hidden=[8]", "logger=[]", "device=cpu", "preset=null", "checkpoint.every=0", "stop.updates=4"]
SMALL = [*TINY, "algorithm.batch_size=8"]


class Several(gymnasium.Env):
    """A Dict of a number and a choice from 3 on; actions are a bounded number and a choice from 1 on."""

    def __init__(self, actions=2):
        spaces = gymnasium.spaces
        self.observation_space = spaces.Dict(
            {"far": spaces.Box(-2.0, 6.0, (2,)), "which": spaces.Discrete(4, start=3), "bits": spaces.MultiBinary(3)}
        )
        self.action_space = spaces.Tuple((spaces.Box(0.0, 10.0, (1,)), spaces.Discrete(actions, start=1)))

    def _seen(self):
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains((np.asarray(action[0], np.float32), action[1]))
        self.steps += 1
        return self._seen(), float(action[0][0]), False, self.steps == 9, {}


SEVERAL = ["env.target=tests.commands.test_alone.Several"]
ENVS = {"pendulum": ["env=pendulum"], "cartpole": ["env=cartpole"], "several": SEVERAL, "recurrent": ["env=pendulum"]}
RECURRENT = ["algorithm.recurrent=gru", "algorithm.unroll=4", "algorithm.burn_in=1", "algorithm.batch_size=4"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return the path of a stored memory for each environment."""
    folder = tmp_path_factory.mktemp("data")
    for name, where in ENVS.items():
        acts = ["algorithm=sac", "algorithm.warmup_steps=60", "algorithm.batch_size=8", *where]
        acts += RECURRENT if name == "recurrent" else []
        stored = [f"memory.export.path={folder / name}.zip", "stop.env_steps=64", "stop.updates=null"]
        rlrun.train([*acts, *TINY, *stored, "evaluation.every=0"], run_dir=folder / name)
    return folder


CASES = {
    "iql": ("pendulum", ["algorithm=iql", *SMALL]),
    "iql of choices": ("cartpole", ["algorithm=iql", *SMALL]),
    "iql of several": ("several", ["algorithm=iql", *SMALL]),
    "bc": ("pendulum", ["algorithm=bc", *SMALL]),
    "causal_bc": ("pendulum", ["algorithm=causal_bc", *SMALL]),
    "dqn": ("cartpole", ["algorithm=dqn", *SMALL]),
    "sac": ("several", ["algorithm=sac", *SMALL]),
    "td3": ("pendulum", ["algorithm=td3", *SMALL]),
    "recurrent": ("recurrent", ["algorithm=sac", *TINY, *RECURRENT]),
}


@pytest.mark.parametrize("case", CASES)
def test_policies_of_data_alone(case, data, tmp_path, monkeypatch):
    name, overrides = CASES[case]
    where, run = ENVS[name], tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    memory = tmp_path / "data.zip"
    memory.write_bytes((data / f"{name}.zip").read_bytes())
    overrides = [*overrides, "+with=offline_alone", "dataset=data.zip"]
    rlrun.train(overrides, run_dir=run)
    rlrun.resume(run, ["stop.updates=6"])
    beside = rlrun.train(
        [*overrides[:-2], "+with=offline", "dataset=data.zip", *where, "evaluation.every=0", "stop.updates=6"],
        run_dir=tmp_path / "beside",
    )
    result = rlrun.evaluate(run, episodes=3, overrides=where)
    own = rlrun.evaluate(beside, episodes=3).returns
    assert result.returns == own  # the same spaces, so the same policy
    exported = rlrun.export_onnx(run)
    assert exported.about["parity"]["rows"] > 50
    assert exported.about["episode"] is None
    memory.unlink()  # neither evaluation nor loading reads the data
    assert rlrun.evaluate(run, episodes=3, overrides=where).returns == result.returns
    assert rlrun.evaluate(exported.path, episodes=3, overrides=where).returns == pytest.approx(result.returns, rel=1e-4)
    env = Several() if name == "several" else gymnasium.make("CartPole-v1" if name == "cartpole" else "Pendulum-v1")
    policy, twin = rlrun.load(run), rlrun.load(beside)
    assert (policy.observation_space, policy.action_space) == (twin.observation_space, twin.action_space)
    observation, _ = env.reset(seed=3)
    action, _ = policy.predict(observation)
    assert str(action) == str(twin.predict(observation)[0])
    with pytest.raises(RequestError, match=r"data\.zip cannot be read"):
        rlrun.export_onnx(run)


def test_what_the_way_out_is(data, tmp_path):
    run = tmp_path / "run"
    rlrun.train(["algorithm=iql", *SMALL, "+with=offline_alone", f"dataset={data}/cartpole.zip"], run_dir=run)
    for call, verb in ((rlrun.evaluate, "eval"), (play, "play")):
        with pytest.raises(RequestError, match=rf"has no environment; name one: rlrun {verb} \S+ env=NAME"):
            call(run)
        with pytest.raises(RequestError, match=r"seed=3: a run that learned from data alone takes env=NAME"):
            call(run, overrides=["seed=3"])
    with pytest.raises(RequestError, match=r"learned from observations Box\[4\] .* 'pendulum' are Box\[3\]"):
        rlrun.evaluate(run, overrides=["env=pendulum"])
    with pytest.raises(RequestError, match=r"a run plays in its own environment"):
        rlrun.evaluate(data / "cartpole", overrides=["env=cartpole"])
    assert len(rlrun.evaluate(run, episodes=2, overrides=["env.id=CartPole-v1", "evaluation.max_steps=5"]).returns) == 2


def test_an_environment_may_have_more_choices(data, tmp_path):
    rlrun.train(
        ["algorithm=sac", *SMALL, "+with=offline_alone", f"dataset={data}/several.zip"], run_dir=tmp_path / "run"
    )
    more = [*SEVERAL, "env.kwargs.actions=3"]
    assert len(rlrun.evaluate(tmp_path / "run", episodes=2, overrides=more).returns) == 2
    with pytest.raises(RequestError, match=r"learned from actions"):
        rlrun.evaluate(tmp_path / "run", overrides=[*SEVERAL, "env.kwargs.actions=1"])


def test_stored_memories_record_the_spaces(data):
    spaces = spaces_in(str(data / "pendulum.zip"))
    assert (float(spaces.action.low[0]), float(spaces.action.high[0])) == (-2.0, 2.0)
    assert spaces.observation.high.tolist() == [1.0, 1.0, 8.0]
    several = spaces_in(str(data / "several.zip"))
    assert several.observation.parts["which"].start == 3
    assert [*several.action.parts] == ["0", "1"]
    assert json.dumps(table_file.about(Path(data / "cartpole.zip"))["spaces"])
