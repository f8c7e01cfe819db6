"""Numbers of losses that follow a schedule because somebody provides their name, from the command line."""

from __future__ import annotations

import pytest

import rlrun
from rlrun.ops import surrogate

LINEAR = "{_target_: rlrun.core.schedules.Linear, first: 0.4, last: 0.0, steps: 64}"
SMALL = ["env=bandit", "algorithm.hidden=[8]", "num_envs=2", "logger=[]", "stop.env_steps=32", "log.every=16"]
SMALL += ["algorithm.horizon=8", "evaluation.every=0"]
PPO = ["algorithm=ppo", *SMALL, "algorithm.batch_size=8", "algorithm.epochs=2"]


def schedule(name: str, value: str = LINEAR) -> str:
    return f"+callbacks.{name}={{_target_: rlrun.callbacks.Schedule, provides: {name}, value: {value}}}"


def test_clip_follows_environment_steps(tmp_path, monkeypatch):
    clips = []

    def spy(log_ratio, advantage, *, clip):
        clips.append(clip)
        return surrogate(log_ratio, advantage, clip=clip)

    monkeypatch.setattr("rlrun.ops.surrogate", spy)
    rlrun.train([*PPO, schedule("clip")], run_dir=tmp_path / "run")
    assert clips == [pytest.approx(0.3)] * 4 + [pytest.approx(0.2)]  # after 16 of 64 steps; at 32 the budget ends it


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_zero_entropy_weight_gives_no_bonus(algorithm, tmp_path):
    overrides = [f"algorithm={algorithm}", *SMALL]
    weights = {}
    for name, override in {
        "never": "algorithm.entropy_weight=0",
        "scheduled": schedule("entropy_weight", "0.0"),
        "constant": "algorithm.entropy_weight=0.1",
        "by_name": schedule("entropy_weight", "0.1"),
    }.items():
        trained = rlrun.train([*overrides, "algorithm.entropy_weight=0.7", override], run_dir=tmp_path / name).trainer
        loss = trained.callbacks[algorithm]
        weights[name] = [parameter.detach().clone() for parameter in loss.parameters]
    same = {
        (a, b): all((x == y).all() for x, y in zip(weights[a], weights[b], strict=True))
        for a, b in (("never", "scheduled"), ("constant", "by_name"), ("never", "constant"))
    }
    assert list(same.values()) == [True, True, False]


@pytest.mark.parametrize(
    ("overrides", "losses"),
    [
        (PPO, {"ppo"}),
        (["algorithm=a2c", *SMALL], {"a2c"}),
        (["algorithm=dqn", *SMALL[:-2], "algorithm.warmup_steps=8"], {"q_loss"}),
        (
            ["algorithm=sac", "env=mixedaction", *SMALL[1:-2], "algorithm.warmup_steps=8"],
            {"q_loss", "policy", "temperature"},
        ),
    ],
)
def test_every_loss_anneals_its_learning_rate(overrides, losses, tmp_path):
    overrides = [*overrides, "algorithm.lr=0.01", "+with=anneal", "callbacks.learning_rate.value.last=0.002"]
    callbacks = rlrun.train(
        [*overrides, "callbacks.learning_rate.value.steps=64"], run_dir=tmp_path / "run"
    ).trainer.callbacks
    rates = {name: callbacks[name].optimizer.param_groups[0]["lr"] for name in losses}
    assert rates == dict.fromkeys(losses, pytest.approx(0.006))  # half of the way after 32 steps
    assert {name for name in callbacks if f"learning_rate/{name}" in callbacks[name].metrics} == losses
