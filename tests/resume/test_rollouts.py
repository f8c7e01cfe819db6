"""Runs that are left inside a rollout, an epoch, a phase or a burst: they end as the run that never stopped."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.conf.files import small
from tests.identical import compare, differing

import rlrun
from rlrun.algorithms.on_policy.ppg import AuxiliaryLoss
from rlrun.callbacks import CriticLoss
from rlrun.callbacks.losses.loss import LossCallback
from rlrun.collect import Collector

from . import kills
from .twins import assert_exact, copy_as_killed, differences_of, records, signal_at, walk

WINDOWS = ("algorithm.burn_in=1", "algorithm.warmup_steps=24", "algorithm.batch_size=4", "memory.length=60")
ENCODER = ("encoder=recurrent", "encoder.core_size=3")
SGD = "{_target_: torch.optim.SGD, _partial_: true, momentum: 0.9}"
TERMS = (
    *("encoder.core=gru", "predictive.steps=2"),
    f"optimizer.groups.predictive={{names: [predictive], exclude: [q_loss], optimizer: {SGD}}}",
)
ALGORITHMS = {
    "ppo": ["algorithm=ppo", "algorithm.horizon=16", "algorithm.batch_size=8", "algorithm.epochs=2"],
    "a2c": ["algorithm=a2c", "algorithm.horizon=4"],
    "dqn": ["algorithm=dqn", "memory=prioritized", "memory.sampler.mix=0.9", "algorithm.n_step=2", *WINDOWS],
    "taac": ["algorithm=taac_l", "env.kwargs.continuous=true", "algorithm.random_start=true", *WINDOWS],
    "repeats": ["algorithm=action_repeat", "algorithm.most_steps=3", *WINDOWS],
    "shared": ["algorithm=sac", "env.kwargs.continuous=true", *WINDOWS, "+with=shared_encoder", *ENCODER],
    "terms": ["algorithm=dqn", *WINDOWS, "+with=[representation_shared,predictive_shared,parameter_groups]", *TERMS],
}
RECURRENT = (
    *("env=recall", "preset=null", "num_envs=3", "algorithm.hidden=[8,8]", "algorithm.core_size=4"),
    *("algorithm.unroll=4", "stop.env_steps=null", "stop.updates=40", "checkpoint.every=24", "log.every=10"),
    *("checkpoint.keep_last=null", "evaluation.every=60", "evaluation.episodes=2", "logger=[]"),
)
OFFLINE, STORED = 7, 49  # updates; rows, without the one that was done last, which has no outcome
PHASES = 3  # each after two rollouts of 18 rows, learned from twice in fours; a phase goes over them twice
UPDATES = PHASES * (2 * 2 * 4 + 2 * 9)


def recurrent(algorithm="ppo", core="lstm"):
    return [*ALGORITHMS[algorithm], *RECURRENT, f"algorithm.recurrent={core}"]


def rollouts():
    """Return a run that learns twice from each rollout of 6 steps of 3 envs, in minibatches of 4."""
    composed = small("algorithm/ppo", envs=3)
    composed.config.stop.updates = 40
    return composed


def bursts():
    """Return a run of 48 steps at a time, followed by as many updates."""
    more = ("stop.env_steps=200", "algorithm.hidden=[8,8]", "checkpoint.every=32", "checkpoint.keep_last=null")
    replay = ("memory.length=120", "algorithm.warmup_steps=40", "algorithm.batch_size=8", "algorithm.collect_steps=48")
    return [*kills.CELLS["dqn-cartpole-4-sync"], *more, *replay]


def offline():
    """Return a run that learns from stored data before its first environment step."""
    composed = small("with/offline_then_online", envs=1)
    composed.config.offline.updates, composed.config.stop.updates = OFFLINE, OFFLINE + 6
    composed.config.evaluation.every = 3
    return composed


def phasic():
    composed = small("algorithm/ppg", envs=3)
    composed.config.algorithm.auxiliary.interval = 2
    composed.config.algorithm.auxiliary.epochs = 2
    composed.config.stop.updates = UPDATES
    return composed


REQUESTS = {"recurrent": recurrent, "phasic": phasic, "rollouts": rollouts, "bursts": bursts, "offline": offline}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Stand where the demonstrations are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("folder"))
        patch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train without a stop, once for all tests; return the result, and all that its trainer reaches."""
    results = {}

    def train(name):
        if name not in results:
            result = rlrun.train(REQUESTS[name](), run_dir=tmp_path_factory.mktemp("whole") / "run")
            results[name] = result, walk(result.trainer)
        return results[name]

    return train


@pytest.mark.parametrize(
    ("algorithm", "core"),
    [
        *(("ppo", "lstm"), ("a2c", "gru"), ("dqn", "lstm")),  # tests/conf: SAC, by presets
        *(("taac", "lstm"), ("repeats", "gru"), ("shared", "null"), ("terms", "null")),
    ],
)
def test_recurrent_run_killed_inside_an_epoch_or_episode(algorithm, core, tmp_path):
    assert_exact(recurrent(algorithm, core), tmp_path, at=60)


@pytest.mark.parametrize("at", [18, 54])
def test_run_left_between_phases(at, whole, tmp_path):
    result, expected = whole("phasic")
    assert result.trainer.callbacks["auxiliary"].updates == 108
    copy_as_killed(result.run_dir, tmp_path / "resumed", at=at)
    lines = differences_of(expected, rlrun.resume(tmp_path / "resumed"))
    assert not lines, "\n".join(lines)
    assert records(tmp_path / "resumed") == records(result.run_dir)


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        *(("recurrent", kind, count) for kind, count in ((Collector, 20), (LossCallback, 17))),
        *(("phasic", AuxiliaryLoss, count) for count in (1, 20)),
        *(("rollouts", kind, count) for kind, count in ((Collector, 14), (LossCallback, 17))),
        *(("bursts", kind, count) for kind, count in ((Collector, 41), (LossCallback, 9))),
        *(("offline", CriticLoss, count) for count in (2, OFFLINE, OFFLINE + 1)),
    ],
)
def test_signal_inside_a_rollout_phase_or_burst(name, kind, count, whole, tmp_path, monkeypatch):
    result, expected = whole(name)
    signal_at(monkeypatch, kind, "_step" if kind is Collector else "step", count)
    stopped = rlrun.train(REQUESTS[name](), run_dir=tmp_path / "run")
    assert stopped.summary["status"] == "stopped"
    if name == "recurrent":
        assert np.abs(stopped.trainer.callbacks["collector"].state).max() > 0
    lines = differences_of(expected, rlrun.resume(tmp_path / "run"))
    assert not lines, "\n".join(lines)
    same = compare(result.run_dir, tmp_path / "run")
    assert all(same.values()), differing(result.run_dir, tmp_path / "run")


def test_no_step_is_made_before_its_time_and_the_memory_goes_on(whole):
    result, _ = whole("offline")
    assert result.summary["env_steps"] == 6  # no warm-up comes between
    assert len(result.trainer.loader.table) == STORED + 6 - 1  # the newest has no successor yet
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluated = [(row["updates"], row["env_steps"]) for row in rows if "evaluation/mean_return" in row]
    assert evaluated == [(3, 0), (6, 0), (7, 0), (10, 3), (13, 6)]
    assert [(row["updates"], row["env_steps"]) for row in rows if "loss/q_loss" in row][:2] == [(5, 0), (7, 0)]
