"""Runs whose networks learn in bfloat16: on every kind of algorithm, and left anywhere, as exact as others."""

import json

import pytest
import torch
from tests.short import SMALL, shrink

import rlrun
from rlrun.callbacks.losses.loss import LossCallback
from rlrun.callbacks.losses.target import TargetCallback
from rlrun.collect import PolicyAgent
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.core import machine
from rlrun.core.errors import RequestError
from rlrun.nn import precision

from .twins import assert_exact

WORDS = {
    "sac with bins": ["algorithm=sac", "env=mixedaction", "+with=hlgauss", "hlgauss.least=-5", "hlgauss.largest=5"],
    "dsac": ["algorithm=dsac", "env=pendulum"],
    "dqn on images": ["algorithm=dqn", "env.target=rlrun.env.toys.ImageObservation"],
    "sarsa": ["algorithm=sarsa_recurrent", "env=pendulum"],
    "ppo with a core": ["algorithm=ppo", "env=recall", "algorithm.recurrent=lstm"],
    "ppg": ["algorithm=ppg", "env=cartpole"],
    "taac": ["algorithm=taac", "env=pendulum"],
}
LEFT = (
    *("stop.env_steps=null", "stop.updates=40", "checkpoint.every=24", "checkpoint.keep_last=null", "log.every=10"),
    *("evaluation.every=60", "evaluation.episodes=2", "evaluation.max_steps=20", "logger=[]", "precision=bf16"),
    *("preset=null", "algorithm.hidden=[8,8]", "algorithm.batch_size=8"),
)
EXACT = {
    "sac": ["algorithm=sac", "env=pendulum", "algorithm.warmup_steps=12", "memory.length=100"],
    "ppo": ["algorithm=ppo", "env=recall", "algorithm.recurrent=gru", "num_envs=2", "algorithm.horizon=16"],
}


@pytest.fixture(autouse=True)
def low(tmp_path, monkeypatch):
    """Let any machine compute in bfloat16, and with networks of any size."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(precision, "LARGE", 0)
    with torch.backends.mkldnn.flags(enabled=machine.has_bfloat16("cpu")):  # oneDNN has no such LSTM elsewhere
        yield


@pytest.fixture
def seen(monkeypatch):
    """What losses, targets and gradients are made of, and whether networks were to learn or act in less."""
    record = {"losses": set(), "targets": set(), "gradients": set(), "updates": 0, "acting": set()}
    step, bootstrap, act = LossCallback.step, TargetCallback.bootstrap, PolicyAgent.__call__

    def stepped(self, elements, *rest, **named):
        record["losses"].add(elements.dtype)
        outputs = step(self, elements, *rest, **named)
        record["gradients"] |= {parameter.grad.dtype for parameter in self.parameters if parameter.grad is not None}
        record["updates"] += precision.lowered(0) is not None
        return outputs

    def target(self, *values):
        outputs, metrics = bootstrap(self, *values)
        record["targets"].add(outputs["q_target"].dtype)
        return outputs, metrics

    def acted(self, *values, **options):
        record["acting"].add(precision.lowered(0) is not None)
        return act(self, *values, **options)

    monkeypatch.setattr(LossCallback, "step", stepped)
    monkeypatch.setattr(TargetCallback, "bootstrap", target)
    monkeypatch.setattr(PolicyAgent, "__call__", acted)
    return record


@pytest.mark.parametrize("name", WORDS)
def test_parameters_losses_and_targets_stay_float32(name, seen, tmp_path):
    experiment = Experiment(shrink(compose([*WORDS[name], "precision=bf16"]), {**SMALL, "algorithm.warmup_steps": 16}))
    run = rlrun.runs.directory.RunDir.claim(tmp_path / "run")
    with experiment.begin(run):
        summary = experiment.train(run)
    assert (summary["status"], summary["updates"]) == ("completed", 3)
    assert seen["losses"] == seen["gradients"] == {torch.float32}
    assert seen["targets"] <= {torch.float32}
    assert seen["acting"] <= {False}
    assert seen["updates"] >= 3
    for part in experiment.parts.values():
        if isinstance(part, torch.nn.Module):
            assert {parameter.dtype for parameter in part.parameters()} <= {torch.float32}


@pytest.mark.parametrize("algorithm", EXACT)
def test_a_run_that_was_left_is_the_one_that_never_stopped(algorithm, tmp_path):
    assert_exact([*EXACT[algorithm], *LEFT], tmp_path, at=30)
    manifest = json.loads((tmp_path / "resumed" / "manifest.json").read_text())
    assert (manifest["precision"], manifest["resume"]) == ("bf16", "exact")
    with pytest.raises(RequestError, match="precision cannot change when a run is resumed"):
        rlrun.resume(tmp_path / "resumed", ["precision=highest"])


def test_a_run_is_evaluated_where_it_could_not_be_trained(tmp_path, monkeypatch):
    overrides = [*EXACT["sac"], *LEFT, "stop.updates=3"]
    rlrun.train(overrides, run_dir=tmp_path / "run")
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: False)
    assert rlrun.evaluate(tmp_path / "run", episodes=1)
    with pytest.raises(RequestError, match="no bfloat16 instructions"):
        rlrun.train(overrides, run_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()
