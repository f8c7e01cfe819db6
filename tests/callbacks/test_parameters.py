"""Metrics of parameters and actions, and the trace of a profiler, which change no training."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from tests.callbacks.batches import Batches
from tests.identical import compare
from torch import nn

import rlrun
from rlrun.callbacks import LossCallback, ParameterLogs, Profile
from rlrun.callbacks.diagnostics.parameters import noise_scale
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.runs.directory import RunDir
from rlrun.training.metrics import as_numbers
from rlrun.training.trainer import Trainer

PUSH = Box((2,), -np.ones(2), np.ones(2))
TINY = ["algorithm=dqn", "env=cartpole", "preset=null", "algorithm.warmup_steps=20", "stop.env_steps=60"]


class Product(LossCallback):
    """The loss of an element is the sum of w a; its gradient is the mean of a."""

    def loss(self, action, valid=None):
        loss = self.network(action["push"]).sum(-1)
        return loss if valid is None else loss * valid * (valid.numel() / valid.sum())


class Weighs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.inner.weight)

    def forward(self, x):
        return self.inner(x)


def logs_of(optimizer, **tensors):
    spaces = Spaces(observation=PUSH, action=Composite({"push": PUSH, "side": Discrete(3)}))
    loss, logs = Product(Weighs(), optimizer), ParameterLogs(spaces)
    Trainer({"loss": loss, "logs": logs}, Batches(**tensors)).train()
    return logs


def test_norms_and_actions_are_those_of_the_update():
    push = torch.tensor([[[0.0, 0.5], [1.0, 0.5]], [[9.0, 9.0], [0.5, 2.0]]])
    side = torch.tensor([[0, 2], [1, 2]])
    valid = torch.tensor([[True, True], [False, True]])
    logs = logs_of(partial(torch.optim.SGD, lr=1.0), action={"push": push, "side": side}, valid=valid)
    metrics = logs.metrics
    spreads = {name: metrics.pop(name).values for name in list(metrics) if isinstance(metrics[name], rlrun.Histogram)}
    numbers = {name: float(value) for name, value in metrics.items()}
    gradient = push[valid].mean(0)
    assert numbers.pop("gradient_norm/loss_inner_weight") == pytest.approx(float(gradient.norm()))
    assert numbers.pop("weight_norm/loss_inner_weight") == pytest.approx(float((1.0 - gradient).norm()))
    assert spreads.keys() == {"weight/loss_inner_weight", "gradient/loss_inner_weight"}
    assert spreads["weight/loss_inner_weight"][0].tolist() == pytest.approx((1.0 - gradient).tolist())
    assert spreads["gradient/loss_inner_weight"][0].tolist() == pytest.approx(gradient.tolist())
    assert numbers == {
        "action/mean_0": pytest.approx(0.5),
        "action/deviation_0": pytest.approx((0.5 / 3) ** 0.5),
        "action/mean_1": pytest.approx(1.0),
        "action/deviation_1": pytest.approx(0.5**0.5),
        "action/share_2_0": pytest.approx(1 / 3),
        "action/share_2_1": 0.0,
        "action/share_2_2": pytest.approx(2 / 3),
    }


class Noisy(LossCallback):
    def loss(self, x, scale=1.0):
        return scale * self.network(x + torch.randn_like(x)).sum(-1)


def test_outputs_of_modules_are_those_of_one_more_evaluation():
    layers = nn.Linear(1, 1), nn.BatchNorm1d(1, affine=False), nn.ReLU(inplace=True), nn.Dropout(0.5)
    nn.init.ones_(layers[0].weight), nn.init.zeros_(layers[0].bias)
    loss = Noisy(nn.Sequential(*layers), partial(torch.optim.SGD, lr=0.0))
    logs = ParameterLogs(Spaces(observation=PUSH, action=Discrete(2)), outputs=True)
    batch = {"x": torch.tensor([[-4.0], [1.0], [6.0]]), "action": torch.zeros(3, dtype=torch.int64)}
    Trainer({"loss": loss, "logs": logs}, Batches(**batch)).train()
    average, generator = layers[1].running_mean.clone(), torch.get_rng_state()
    metrics = {name: value.values for name, value in logs.metrics.items() if name.startswith("output/")}
    assert torch.equal(torch.get_rng_state(), generator)
    inputs = (batch["x"] + torch.randn(3, 1)).flatten()
    normed = (inputs - average) / (layers[1].running_var + 1e-5).sqrt()
    wanted = {
        "loss_0": inputs,
        "loss_1": normed,
        "loss_2": normed.relu(),
        "loss_3": normed.relu(),
        "loss": normed.relu(),
    }
    for name, values in wanted.items():
        torch.testing.assert_close(metrics.pop(f"output/{name}"), values)
    assert metrics == {}
    assert torch.equal(layers[1].running_mean, average)
    assert all(module.training and not module._forward_hooks for module in loss.network.modules())


def test_a_resumed_run_has_the_metrics_of_before():
    tensors = {"push": torch.ones(4, 2), "side": torch.zeros(4, dtype=torch.int64)}
    logs = logs_of(torch.optim.Adam, action=tensors)
    resumed = ParameterLogs(Spaces(observation=PUSH, action=PUSH))
    resumed.load_state_dict(logs.state_dict())
    assert np.isnan(resumed.metrics["noise_scale/loss"])  # one gradient says nothing of noise
    numbers = as_numbers(logs.metrics)
    assert "weight/loss_inner_weight/q05" in numbers
    assert {name: resumed.metrics[name] for name in numbers if "noise" not in name} == {
        name: value for name, value in numbers.items() if "noise" not in name
    }


@pytest.mark.parametrize(("steps", "tolerance"), [(20, 0.3), (1000, 0.15)])
def test_noise_scale_is_that_of_the_gradients(steps, tolerance):
    generator, rows, count = torch.Generator().manual_seed(0), 8, 4_000
    weight = nn.Parameter(torch.zeros(count))
    optimizer = torch.optim.Adam([weight], lr=0.0)
    for _ in range(steps):
        noise = torch.randn(count, generator=generator) / rows**0.5
        weight.grad = 0.2 + 2.0 * noise  # of each number the gradient is 0.2, its variance in a row 4
        optimizer.step()
    assert float(noise_scale(optimizer, rows)) == pytest.approx(4.0 / 0.2**2, rel=tolerance)
    assert noise_scale(torch.optim.SGD([weight], lr=0.1), rows) is None


def test_metrics_and_traces_change_no_training(tmp_path, capfd):
    plain, logged = tmp_path / "plain", tmp_path / "logged"
    rlrun.train(TINY, run_dir=plain)
    extras = ("+with=[parameter_logs,profile]", "callbacks.parameter_logs.outputs=true")
    extras += ("profile.first=3", "profile.last=5")
    rlrun.train([*TINY, *extras], run_dir=logged)
    groups = compare(plain, logged, watched=False)
    assert [name for name in ("parameters", "optimizers", "memory", "generators") if not groups[name]] == []
    record = json.loads((logged / "metrics.jsonl").read_text().splitlines()[-1])
    shares = [record[f"action/share_0_{choice}"] for choice in (0, 1)]
    assert sum(shares) == pytest.approx(1.0)
    assert record["noise_scale/q_loss"] is None or record["noise_scale/q_loss"] > 0.0
    assert [name for name in record if name.startswith("gradient_norm/q_loss")]
    assert "output/q_loss_layers_layers_0/q50" in record
    trace = json.loads((logged / "trace.json").read_text())
    steps = [event for event in trace["traceEvents"] if event.get("name") == "aten::_fused_adam_"]
    assert len(steps) == 3
    assert "profiler" not in capfd.readouterr().err
    assert {"name", "ph", "ts", "dur", "pid", "tid"} <= steps[0].keys()  # the complete events of chrome://tracing


def test_a_short_run_writes_its_trace(tmp_path):
    profile = Profile(first=1, last=9)
    run = RunDir.claim(tmp_path / "run")
    profile.begin_training(run.path)
    profile.begin_cycle(1)
    profile.end_cycle(1)
    assert not run.trace.exists()
    profile.end_training(KeyboardInterrupt())
    assert "traceEvents" in json.loads(run.trace.read_text())
    profile = Profile(first=1, last=9)  # of a resume
    profile.begin_training(run.path, 4)
    for update in (5, 6):
        profile.begin_cycle(update)
        profile.end_cycle(update)
    lines = run.log.read_text().splitlines()
    assert [line.partition("profile: ")[2] for line in lines if "no trace" in line] == [
        "no trace: the run was resumed at update 5, after profile.first=1"
    ]
    with pytest.raises(ConfigError, match="profile: wanted 1 <= first <= last, got first=9 and last=1"):
        Profile(first=9, last=1)
