"""Environments of users are played, and never changed: in evaluations and by a resume."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from tests.identical import compare, differing
from tests.resume.environments import (
    SERVERS,
    Averages,
    Bandit,
    Bounded,
    Careless,
    Connected,
    Counter,
    Curriculum,
    Dice,
    Draws,
    Forgetful,
    Grid,
    Optioned,
    Remote,
    Shifted,
    Spotlight,
    Strict,
)

import rlrun
from rlrun.commands.check import check
from rlrun.core.errors import RequestError
from rlrun.core.seeds import Seeds

from .twins import copy_as_killed

SHORT = ["algorithm.hidden=[16]", "algorithm.batch_size=16", "logger=[]", "stop.env_steps=320", "evaluation.every=80"]
SHORT += ["evaluation.episodes=3", "checkpoint.every=110", "checkpoint.keep_last=null", "log.every=20"]
DQN = ["algorithm=dqn", "algorithm.warmup_steps=40", "algorithm.updates_per_step=0.2"]
PPO = ["algorithm=ppo", "algorithm.horizon=40"]


def overrides(kind, *more):
    algorithm = PPO if kind is Bandit else DQN
    return [*algorithm, *SHORT, f"env.target=tests.resume.environments.{kind.__name__}", *more]


def trained_and_resumed(kind, folder, *more):
    whole = rlrun.train(overrides(kind, *more), run_dir=folder / "whole")
    copy_as_killed(folder / "whole", folder / "resumed", at=110)
    resumed = rlrun.resume(folder / "resumed")
    return whole, resumed, manifest_of(folder / "resumed")


def manifest_of(run):
    return json.loads((run / "manifest.json").read_text())


def wrapped(wrapper):
    return [f"env.wrappers=[{{_target_: {wrapper.__module__}.{wrapper.__name__}}}]"]


NORMALIZED = wrapped(NormalizeReward)
CASES = {
    "shared objects": (Grid, ["num_envs=2"]),
    "own generator": (Dice, ["env.vectorization=async", "num_envs=2"]),
    "options": (Optioned, ["env.reset_options.length=11"]),
    "state_dict": (Curriculum, ["num_envs=2"]),
    "state_dict in workers": (Curriculum, ["env.vectorization=async", "num_envs=3"]),
    "wrapper that learns": (Grid, NORMALIZED),
    "wrapper with a state_dict": (Dice, ["num_envs=3", *wrapped(Bounded)]),
    "wrapper that shares an array": (Grid, ["num_envs=2", *wrapped(Spotlight)]),
    "generators of numpy and torch": (Draws, ["num_envs=2"]),
    "rollouts of a bandit": (Bandit, ["num_envs=2"]),
}


@pytest.mark.parametrize(("kind", "more"), CASES.values(), ids=CASES)
def test_resume_is_exact(kind, more, tmp_path):
    *_, manifest = trained_and_resumed(kind, tmp_path, *more)
    same = compare(tmp_path / "whole", tmp_path / "resumed")
    assert all(same.values()), differing(tmp_path / "whole", tmp_path / "resumed")
    assert manifest["resume"] == "exact"


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("kind", [Counter, Careless])
def test_episode_that_goes_another_way_is_approximate(kind, vectorization, tmp_path):
    *_, manifest = trained_and_resumed(kind, tmp_path, "num_envs=2", f"env.vectorization={vectorization}")
    assert manifest["resume"] == "approximate"
    assert "every env: played again, its episode had other observations or rewards" in json.dumps(manifest)


def test_without_seeds_of_episodes_it_is_approximate(tmp_path):
    *_, manifest = trained_and_resumed(Grid, tmp_path, "env.seed_episodes=false")
    assert manifest["resume"] == "approximate"
    assert "its episode has no seed (env.seed_episodes)" in json.dumps(manifest)


def test_connections_are_made_once(tmp_path):
    SERVERS.clear()
    whole = rlrun.train(overrides(Connected, "num_envs=2"), run_dir=tmp_path / "whole")
    assert len(SERVERS) == 2 + 3  # of training, and of evaluation
    assert [len(asked) for asked in SERVERS[2:]] == [4, 4, 4]  # one episode each evaluation
    copy_as_killed(whole.run_dir, tmp_path / "resumed", at=110)
    SERVERS.clear()  # of the process that was killed
    rlrun.resume(tmp_path / "resumed")
    assert len(SERVERS) == 2 + 3
    assert manifest_of(tmp_path / "resumed")["resume"] == "exact"


@pytest.fixture
def port():
    """Run a server; give its port."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("served.py"))], stdout=subprocess.PIPE, text=True
    )
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


OPTIONS = {"length": 11}
EVALUATED = {  # environment, wrappers of the loop by hand, its options, more overrides
    "shared objects": (Grid, (), None, []),
    "own generator": (Dice, (), None, ["env.vectorization=async"]),
    "connection made once": (Connected, (), None, ["num_envs=3"]),
    "state_dict": (Curriculum, (), None, []),
    "generators of numpy and torch": (Draws, (), None, ["num_envs=2", "evaluation.num_envs=2"]),
    "options": (Optioned, (), OPTIONS, ["env.reset_options.length=11", "env.vectorization=async", "num_envs=2"]),
    "wrapper that shares an array": (
        Grid,
        (Spotlight,),
        None,
        ["env.wrappers=[{_target_: tests.resume.environments.Spotlight}]"],
    ),
    "wrapper that learns rewards": (Grid, (), None, ["num_envs=3", *NORMALIZED]),
    "bandit": (Bandit, (), None, ["num_envs=2"]),
    "bandit and a wrapper that learns": (*(Bandit, (), None, ["num_envs=2", *wrapped(NormalizeObservation)]),),
    "server": (Remote, (), None, ["num_envs=2"]),
}


def test_server_is_asked_through_one_connection_an_environment(port, tmp_path):
    process, number = port
    *_, manifest = trained_and_resumed(Remote, tmp_path, "num_envs=2", f"+env.kwargs.port={number}")
    assert manifest["resume"] == "exact"
    same = compare(tmp_path / "whole", tmp_path / "resumed")
    assert all(same.values()), differing(tmp_path / "whole", tmp_path / "resumed")
    process.kill()
    assert sorted(process.communicate()[0].split()) == 2 * (2 + 3) * ["connected"] + 2 * (2 + 3) * ["left"]


@pytest.mark.parametrize("wrapper", [Forgetful, Shifted])
def test_wrapper_that_remembers_and_offers_nothing_is_approximate(wrapper, tmp_path):
    *_, manifest = trained_and_resumed(Grid, tmp_path, *wrapped(wrapper))
    assert manifest["resume"] == "approximate"
    (line,) = [line for line in check(overrides(Grid, *wrapped(wrapper)), replay=True) if "replay" in line]
    assert f"approximate: {wrapper.__name__} remembers across episodes, and offers no state_dict: evaluations" in line
    with pytest.raises(RequestError, match=f"{wrapper.__name__} learns from observations"):
        rlrun.export_onnx(tmp_path / "whole", output=tmp_path / "policy.onnx")
    assert "its episode had other observations or rewards" in json.dumps(manifest)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_every_reset_has_a_seed_and_options(vectorization, tmp_path, caplog):
    more = ["num_envs=2", f"env.vectorization={vectorization}", "env.reset_options.length=7", *wrapped(Averages)]
    run = rlrun.train(overrides(Strict, *more, "stop.env_steps=120"), run_dir=tmp_path / "run")
    assert "Averages learns while it wraps the environment" in caplog.text
    assert rlrun.load(run).predict(np.zeros(4, np.float32))[0] in range(4)
    rlrun.export_onnx(run, output=tmp_path / "policy.onnx")


@pytest.mark.parametrize(("kind", "wrappers", "options", "more"), EVALUATED.values(), ids=EVALUATED)
def test_evaluations_are_those_of_the_policy(kind, wrappers, options, more, tmp_path, request):
    """Evaluation within training equals `rlrun eval` and a loop by hand, at every checkpoint."""
    build = kind
    if kind is Remote:
        _, number = request.getfixturevalue("port")
        build, more = partial(kind, number), [*more, f"+env.kwargs.port={number}"]
    words = overrides(kind, "checkpoint.every=80", "stop.env_steps=240", *more)
    run = rlrun.train(words, run_dir=tmp_path / "run")
    name = "evaluation/mean_return"
    lines = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluated = {line["env_steps"]: line[name] for line in lines if name in line}
    assert len(evaluated) >= 3
    seed = Seeds(0).evaluation
    for steps, mean in evaluated.items():
        result = rlrun.evaluate(run, checkpoint=str(steps), episodes=3, seed=seed)
        assert result.mean_return == pytest.approx(mean)
        policy, returns = rlrun.load(f"{run.run_dir}@{steps}"), []
        for episode in range(3):
            env, over = build(), False
            for wrapper in wrappers:
                env = wrapper(env)
            observation, _ = env.reset(seed=seed + episode, options=options and {**options})
            returns.append(0.0)
            while not over:
                observation, reward, terminated, truncated, _ = env.step(policy.predict(observation)[0])
                returns[-1] += reward
                over = terminated or truncated
            env.close()
        assert returns == result.returns
