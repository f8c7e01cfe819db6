"""A run from config to files: what it leaves behind, and that it can be repeated."""

import gc
import logging
import os
import random
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tests.command import code_of
from tests.identical import GROUPS, compare, stamps
from threadpoolctl import threadpool_info

import rlrun
from rlrun.commands import check as checking
from rlrun.config import load as load_config
from rlrun.core.errors import ConfigError, RequestError
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer

from .conftest import TINY as SHORT
from .conftest import read, records

ROOT = Path(__file__).parents[2]
DQN = ("algorithm=dqn", "env=cartpole", "algorithm.n_step=1")
SAC = ("algorithm=sac", "env=pendulum")
TINY = (*SHORT, "checkpoint.every=50", "log.every=20")


@pytest.fixture(scope="module")
def dqn(tmp_path_factory):
    return rlrun.train([*DQN, *TINY], run_dir=tmp_path_factory.mktemp("dqn") / "run")


@pytest.fixture(scope="module")
def sac(tmp_path_factory):
    return rlrun.train([*SAC, *TINY], run_dir=tmp_path_factory.mktemp("sac") / "run")


# --- what a run directory holds


class Odd(Callback):
    metrics = {"odd/text": "a text", "odd/\x1b[2J": "a text"}


def test_the_log_and_the_terminal_have_warnings_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a script without logging of its own
    run = rlrun.train([*DQN, *TINY, f"+callbacks.odd._target_={__name__}.Odd"], run_dir=tmp_path / "run").run_dir
    log = (run / "log.txt").read_text()
    for text in (log, capsys.readouterr().err):
        assert text.count("metric 'odd/text' has the type str") == text.count("preset: dqn_cartpole (tuned for") == 1
        assert "\x1b" not in text
    logging.getLogger("rlrun").warning("later")
    assert (run / "log.txt").read_text() == log


def test_run_directory_holds_what_is_promised(dqn):
    names = {path.name for path in dqn.run_dir.iterdir()}
    files = {"config.yaml", "overrides.txt", "manifest.json", "status.json", "metrics.jsonl", "summary.json"}
    assert names == files | {"checkpoints", "lock", "log.txt"}  # the last names the preset
    checkpoints = {path.name for path in (dqn.run_dir / "checkpoints").iterdir()}
    assert {"latest", "best", "0000000050-0000000015", "0000000100-0000000040"} <= checkpoints
    assert all(re.fullmatch(r"latest|best|segments|\d{10}-\d{10}", name) for name in checkpoints)
    assert (dqn.run_dir / "checkpoints" / "latest").read_text() == "0000000100-0000000040\n"


def test_the_summary_has_the_promised_keys(dqn):
    summary = read(dqn.run_dir / "summary.json")
    assert list(summary)[:5] == ["status", "env_steps", "updates", "episodes", "seconds"]
    assert set(summary) - {"stopped_by"} == {
        *("status", "env_steps", "updates", "episodes", "seconds", "env_steps_per_second"),
        *("evaluation", "best", "objective"),
    }
    assert set(summary["evaluation"]) == {"mean_return", "std_return", "episodes", "env_steps"}
    assert (summary["status"], summary["env_steps"], summary["updates"]) == ("completed", 100, 40)
    assert summary["objective"] == summary["evaluation"]["mean_return"] <= summary["best"]["mean_return"]


def test_a_run_without_evaluation_has_no_objective(tmp_path):
    summary = rlrun.train([*DQN, *TINY, "evaluation.every=0"], run_dir=tmp_path / "run").summary
    assert (summary["evaluation"], summary["best"], summary["objective"]) == (None, None, None)


def test_manifest_and_status_describe_the_run(dqn):
    manifest, status = (read(dqn.run_dir / f"{name}.json") for name in ("manifest", "status"))
    assert {"command", "seed", "parent", "project", "git", "python", "packages", "platform", "device"} <= set(manifest)
    assert (manifest["seed"], manifest["parent"], manifest["device"]) == (0, None, "cpu")
    assert manifest["packages"]["torch"] == metadata.version("torch")
    assert set(status) == {"status", "host", "pid", "heartbeat"}
    assert (status["status"], status["pid"]) == ("completed", os.getpid())


def test_the_saved_config_composes_the_same_run(dqn):
    saved = load_config(dqn.run_dir / "config.yaml")
    assert OmegaConf.to_container(saved) == OmegaConf.to_container(dqn.config)
    assert (dqn.run_dir / "overrides.txt").read_text().splitlines() == [*DQN, *TINY]


def test_metrics_lie_on_the_axis_of_environment_steps(dqn):
    lines = records(dqn.run_dir)
    assert all(list(line)[:3] == ["env_steps", "updates", "seconds"] for line in lines)
    assert [line["env_steps"] for line in lines if "loss/q_loss" in line] == [22, 40, 60, 80, 100]
    assert [line["env_steps"] for line in lines if "evaluation/mean_return" in line] == [40, 80, 100]


def test_the_twin_returns_live_objects(dqn):
    assert isinstance(dqn.trainer, Trainer)
    assert dqn.trainer.state["update"] == dqn.summary["updates"] == 40
    assert dqn.summary == read(dqn.run_dir / "summary.json")
    assert all(isinstance(callback, Callback) for callback in dqn.trainer.callbacks.values())
    assert dqn.describe().splitlines()[1] == str(dqn.run_dir)


@pytest.mark.parametrize("overrides", ["algorithm=dqn", {"algorithm": "dqn"}, [3], None])
def test_overrides_that_are_no_list_are_refused(overrides):
    with pytest.raises(ConfigError, match=r"^overrides are a list of texts, such as \[.*\], got "):
        rlrun.train(overrides)


def test_what_train_returned_is_taken_for_its_run(dqn, monkeypatch):
    assert rlrun.evaluate(dqn, episodes=1).run == dqn.run_dir
    assert rlrun.resume(dqn).run_dir == dqn.run_dir
    for function in (rlrun.evaluate, rlrun.resume, rlrun.play, rlrun.export_onnx, rlrun.why):
        with pytest.raises(RequestError, match=r"^wanted the path of one run or file, got \[Result\("):
            function([dqn])


# --- the same command twice

SAME = dict.fromkeys(GROUPS, True)


def test_envs_in_processes_of_their_own_change_nothing(tmp_path):
    request = [*SAC, *TINY, "num_envs=2", "seed=3"]
    for kind in ("sync", "async"):
        rlrun.train([*request, f"env.vectorization={kind}"], run_dir=tmp_path / kind)
    assert compare(tmp_path / "sync", tmp_path / "async") == SAME


def test_another_process_gives_the_same_run(tmp_path, dqn):
    overrides = [sys.executable, "-m", "rlrun", "train", *DQN, *TINY, "--run-dir", "run"]
    subprocess.run(overrides, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert compare(tmp_path / "run", dqn.run_dir) == SAME


def test_another_seed_gives_another_run(sac, tmp_path):
    match = compare(rlrun.train([*SAC, *TINY, "seed=1"], run_dir=tmp_path / "run").run_dir, sac.run_dir)
    assert [match[group] for group in ("parameters", "optimizers", "generators", "metrics")] == [False] * 4


@pytest.mark.parametrize(
    "watching",
    [("evaluation.every=0",), ("evaluation.every=30", "evaluation.video=true", "log.every=7", "checkpoint.every=10")],
)
def test_watching_a_run_changes_none_of_it(watching, sac, tmp_path):
    other = rlrun.train([*SAC, *TINY, *watching], run_dir=tmp_path / "run").run_dir
    assert compare(other, sac.run_dir, watched=False) == dict.fromkeys(GROUPS[:-1], True)
    assert len(list((other / "videos").glob("*.mp4"))) == (4 if len(watching) > 1 else 0)


# --- evaluation of a finished run


def replay(result, seeds: list[int], to_env, limit: int = 20) -> list[float]:
    """Play episodes with plain gymnasium and the run's policy."""
    agent, env = result.trainer.callbacks["collector"].agent, gymnasium.make(result.config.env.id)
    returns = []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, episode_end, steps = 0.0, False, 0
        while not episode_end and steps < limit:
            action = agent(observation[None].astype(np.float32), explore=False)["action"][0]
            observation, reward, terminated, truncated, _ = env.step(to_env(action))
            total, episode_end, steps = total + float(reward), terminated or truncated, steps + 1
        returns.append(total)
    return returns


@pytest.mark.parametrize(("name", "to_env"), [("dqn", int), ("sac", lambda action: 2.0 * action)])
def test_episodes_of_an_evaluation_can_be_replayed_by_anybody(name, to_env, request):
    result = request.getfixturevalue(name)
    evaluation = rlrun.evaluate(result.run_dir, episodes=6, seed=11)
    assert evaluation.seeds == [11, 12, 13, 14, 15, 16]
    assert evaluation.returns == pytest.approx(replay(result, evaluation.seeds, to_env), rel=1e-4)
    assert len(set(evaluation.returns)) > 1


def test_an_evaluation_writes_nothing_into_the_run(dqn):
    before = stamps(dqn.run_dir)
    rlrun.evaluate(dqn.run_dir, episodes=1)
    assert stamps(dqn.run_dir) == before


def settings_of_the_process():
    """Return threads, precision and random states of this process."""
    threads = [(library["filepath"], library["num_threads"]) for library in threadpool_info()]
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().tolist()
    precision = torch.get_float32_matmul_precision()
    return torch.get_num_threads(), threads, precision, *map(repr, states)


OTHER = ("threads=1", "precision=medium")
CALLS = {
    "train": lambda run: rlrun.train([*DQN, *TINY, *OTHER], run_dir=run),
    "resume": lambda run: rlrun.resume(run, ["stop.env_steps=120"]),
    "evaluate": lambda run: rlrun.evaluate(run, episodes=1),
    "check": lambda run: checking.check([*DQN, *TINY, *OTHER]),
}


def test_python_calls_leave_the_process_as_it_was(tmp_path):
    threads, run = torch.get_num_threads(), tmp_path / "run"
    try:
        torch.set_num_threads(3)
        before = settings_of_the_process()
        for name, call in CALLS.items():
            call(run)
            assert settings_of_the_process() == before, name
        with pytest.raises(RequestError):
            rlrun.train([*DQN, *OTHER, "env.id=Nowhere-v0"])
        assert settings_of_the_process() == before
    finally:
        torch.set_num_threads(threads)


def test_the_command_looks_for_garbage_of_its_own_alone(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("frozen"))
    rlrun.train([*DQN, *TINY], run_dir=tmp_path / "called")
    assert calls == []
    assert code_of("train", *DQN, *TINY, "--run-dir", str(tmp_path / "run")) == 0
    assert code_of("resume", str(tmp_path / "run"), "stop.env_steps=110") == 0
    assert calls == ["frozen"] * 2
