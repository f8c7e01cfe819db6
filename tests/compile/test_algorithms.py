"""Whole runs, with each update as one graph."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tests.configs import ALGORITHMS, env_of
from tests.short import RESUMED, SMALL
from torch import nn

from rlrun import resume, train
from rlrun.checkpointing import load
from rlrun.config import compose
from rlrun.core.clock import is_clock
from rlrun.core.errors import DataError
from rlrun.runs.directory import RunDir

PENDULUM, CARTPOLE = "env=pendulum", "env=cartpole"
RUNS = {
    "a2c": ("algorithm=a2c", "env=maskedchain"),
    "ppo": (
        *("algorithm=ppo", PENDULUM, "+with=[rnd,entropy_target_sgd]"),
        "+callbacks.clip={_target_: rlrun.callbacks.Schedule, provides: clip, value: 0.3}",
    ),
    "ppg": ("algorithm=ppg", CARTPOLE),
    "dqn": (
        "algorithm=dqn",
        "env=maskedchain",
        "+with=prioritized",
        "algorithm.target_every=2",
        "algorithm.ensemble=2",
    ),
    "sac": ("algorithm=sac", CARTPOLE, "algorithm.max_grad_norm=0.1", "algorithm.policy_every=2"),
    "td3": ("algorithm=td3", PENDULUM),
    "hlgauss": (
        "algorithm=sac",
        PENDULUM,
        "+with=hlgauss",
        "hlgauss.least=-800",
        "hlgauss.largest=100",
        "algorithm.policy_every=2",
    ),
    "dsac": ("algorithm=dsac", PENDULUM, "precision=high"),
    "mdq": ("algorithm=mdq", PENDULUM, "+with=observation_norm"),
    "taac": (
        *("algorithm=taac", PENDULUM),
        *("+callbacks.q_loss.loss_weight=0.5", "+callbacks.q_target.terminal_masking=false"),
    ),
    "shared encoder": (
        *("algorithm=td3", PENDULUM, "encoder.hidden=[9]", "representation.model=[9]"),
        "+with=[representation_shared,autoencoder_shared,shared_encoder,smoothed_policy]",
    ),
    "residual": (
        *("algorithm=ppo", "env.target=rlrun.env.toys.ImageObservation", "encoder=impala"),
        *("encoder.images.channels=[2,2]", "encoder.features=9"),
    ),
    "representation": (
        *("algorithm=sac", PENDULUM, "+with=[representation,entropy_target]"),
        "+networks.policy.distribution=truncated",
    ),
    "latents": (*("algorithm=dqn", CARTPOLE), "+with=muzero_representation"),
}
UNTRIED = {  # for the sake of time: their updates are like those above, or want data
    *("action_repeat", "bc", "causal_bc", "ddpg", "doac", "handcrafted", "iql", "oac", "qrsac", "sarsa", "sarsa_ddpg"),
    *(
        "alphazero",
        "genrl",
        "latent_mbrl",
        "mbrl",
        "merlin",
        "muzero",
        "pets",
        "sarsa_ddpg_recurrent",
        "sarsa_recurrent",
        "seditor",
    ),
    *("airl", "gail", "taac_l", "taac_q", "trac"),
}
WIDE = {  # more than NARROW: a product stays one node of the graph, where sizes of the task do not make it several
    "algorithm.hidden": "[9,9]",
    "algorithm.batch_size": 9,
    "muzero_representation.hidden": "[9]",
    "muzero_representation.dynamics": "[9]",
    "muzero_representation.prediction": "[9]",
    "muzero_representation.latent": 9,
    "muzero_representation.batch_size": 9,
    "muzero_representation.unroll": 2,
    "imagination.model.hidden": "[9,9]",
}
RUNS |= {name: (f"algorithm={name}", env_of(name)) for name in ALGORITHMS if name not in {*RUNS, *UNTRIED}}


def small(overrides: tuple[str, ...], numbers: dict[str, Any] = SMALL) -> list[str]:
    config = compose(list(overrides)).config
    known = {
        key: value
        for key, value in {**numbers, **WIDE}.items()
        if OmegaConf.select(config, key, default=...) is not ...
    }
    return [*overrides, *(f"{key}={'null' if value is None else value}" for key, value in known.items())]


def leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{place}.{key}")
    elif isinstance(tree, torch.Tensor | int | float) and "second" not in place:
        yield place, torch.as_tensor(tree, dtype=torch.float64)


def left(trainer: Any) -> dict[str, Any]:
    """Return what a run has learned and counted."""
    parts = {name: part for name, part in trainer.state["parts"].items() if isinstance(part, nn.Module)}
    states = {name: part.state_dict() for name, part in {**parts, **trainer.callbacks}.items()}
    return {place: value for place, value in leaves(states) if not is_clock(place.rpartition(".")[2])}


@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS)
def test_graph_run_equals_hook_run(overrides, interpreted, tmp_path, caplog):
    overrides = [*small(overrides), "stop.updates=6", "stop.env_steps=null"]
    plain = left(train(overrides, run_dir=tmp_path / "plain").trainer)
    assert interpreted == []
    with caplog.at_level(logging.WARNING, "rlrun"):
        fused = left(train([*overrides, "compile=true"], run_dir=tmp_path / "fused").trainer)
    assert interpreted
    assert [record.message for record in caplog.records if "compile" in record.message] == []
    assert fused.keys() == plain.keys()
    for place, value in plain.items():
        torch.testing.assert_close(fused[place], value, rtol=2e-3, atol=2e-5, msg=lambda why, at=place: f"{at}: {why}")


@pytest.mark.parametrize("name", ["dqn", "sac", "ppg", "taac"])
def test_graph_run_equals_hook_run_in_double_precision(name, double, interpreted, tmp_path):
    """Priorities, delays, clips, ensembles and phases leave no difference after 50 updates."""
    overrides = [*small(RUNS[name]), "stop.updates=50", "stop.env_steps=null"]
    plain = left(train(overrides, run_dir=tmp_path / "plain").trainer)
    fused = left(train([*overrides, "compile=true"], run_dir=tmp_path / "fused").trainer)
    assert interpreted
    assert fused.keys() == plain.keys()
    for place, value in plain.items():
        torch.testing.assert_close(fused[place], value, rtol=1e-8, atol=1e-8, msg=lambda why, at=place: f"{at}: {why}")


@pytest.mark.parametrize("name", ["td3", "a2c"])
def test_resumed_graph_run_is_exact(name, interpreted, tmp_path):
    overrides = [*small(RUNS[name], RESUMED), "compile=true"]
    whole = left(train(overrides, run_dir=tmp_path / "whole").trainer)
    train([*overrides, "stop.updates=11"], run_dir=tmp_path / "cut")
    continued = left(resume(tmp_path / "cut", ["stop.updates=24"]).trainer)
    for place, value in whole.items():
        assert torch.equal(continued[place], value), place


@pytest.mark.parametrize("compile", [False, True])
def test_infinite_loss_fails_before_checkpoint(compile, interpreted, tmp_path):
    overrides = [
        *small(("algorithm=dqn", CARTPOLE)),
        "algorithm.lr=1e30",
        f"compile={compile}",
        "checkpoint.every=4",
        "log.every=0",
    ]
    with pytest.raises(DataError, match=r"callbacks\.q_loss: the loss is (nan|inf) at its update \d+;"):
        train([*overrides, "stop.env_steps=null", "stop.updates=40"], run_dir=tmp_path / "run")
    checkpoints = RunDir(tmp_path / "run").checkpoint_dirs()
    assert checkpoints
    for checkpoint in checkpoints:
        assert all(value.isfinite().all() for _, value in leaves(load(checkpoint)["networks.q"]))


def test_compiled_run_equals_hook_run(tmp_path):
    overrides = [*small(("algorithm=sac", CARTPOLE)), "stop.updates=6", "stop.env_steps=null"]  # one graph
    plain = left(train(overrides, run_dir=tmp_path / "plain").trainer)
    fused = left(train([*overrides, "compile=true"], run_dir=tmp_path / "fused").trainer)
    for place, value in plain.items():
        torch.testing.assert_close(fused[place], value, rtol=2e-3, atol=2e-5, msg=lambda why, at=place: f"{at}: {why}")
