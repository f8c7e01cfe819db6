"""A schedule provides a number by name."""

import pytest
from tests.callbacks.batches import Batches

import rlrun
from rlrun.callbacks import Schedule
from rlrun.core.schedules import Linear
from rlrun.ops import surrogate
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer


class Clock(Callback):
    """Ten environment steps an update."""

    provides = ("step",)

    def begin_training(self):
        self.now = 0
        return {"step": 0}

    def begin_batch(self):
        self.now += 10
        return {"step": self.now}


class Reader(Callback):
    data_group = "default"

    def __init__(self):
        self.seen = []

    def begin_batch(self, beta):
        self.seen.append(beta)


@pytest.mark.parametrize(
    ("value", "callbacks", "expected"),
    [
        (Linear(0.0, 1.0, steps=20), {"clock": Clock()}, [0.5, 1.0, 1.0, 1.0]),  # environment steps
        (Linear(0.0, 1.0, steps=4), {}, [0.25, 0.5, 0.75, 1.0]),  # updates
        (0.4, {}, [0.4] * 4),
    ],
)
def test_number_follows_steps_or_updates(value, callbacks, expected):
    reader, schedule = Reader(), Schedule("beta", value)
    Trainer({"reader": reader, "beta": schedule, **callbacks}, Batches("x", times=4)).train()
    assert reader.seen == expected
    assert schedule.metrics == {"schedule/beta": reader.seen[-1]}


def test_number_is_known_before_updates():
    class Early(Callback):
        def begin_training(self, beta):
            self.found = beta

    early = Early()
    Trainer({"beta": Schedule("beta", Linear(0.5, 1.0, steps=4)), "early": early}, Batches("x", times=4)).train()
    assert early.found == pytest.approx(0.5)


# --- by name, from the command line

CLIP = "{_target_: rlrun.core.schedules.Linear, first: 0.4, last: 0.0, steps: 64}"
SMALL = ["env=bandit", "algorithm.hidden=[8]", "num_envs=2", "logger=[]", "stop.env_steps=32", "log.every=16"]
SMALL += ["algorithm.horizon=8", "evaluation.every=0"]
WARM_UP = "algorithm.warmup_steps=8"
PPO = ["algorithm=ppo", *SMALL, "algorithm.batch_size=8", "algorithm.epochs=2"]


def test_clip_follows_environment_steps(tmp_path, monkeypatch):
    clips = []

    def spy(log_ratio, advantage, *, clip):
        clips.append(clip)
        return surrogate(log_ratio, advantage, clip=clip)

    monkeypatch.setattr("rlrun.ops.surrogate", spy)
    schedule = f"+callbacks.clip={{_target_: rlrun.callbacks.Schedule, provides: clip, value: {CLIP}}}"
    rlrun.train([*PPO, schedule], run_dir=tmp_path / "run")
    assert clips == [pytest.approx(0.3)] * 4 + [pytest.approx(0.2)]  # after 16 of 64 steps; at 32 the budget ends it


@pytest.mark.parametrize(
    ("overrides", "losses"),
    [
        (PPO, {"ppo"}),
        (["algorithm=sac", *SMALL[1:-2], "env=mixedaction", WARM_UP], {"q_loss", "policy", "temperature"}),
    ],
)
def test_every_loss_anneals_its_learning_rate(overrides, losses, tmp_path):
    rate = ["callbacks.learning_rate.value.last=0.002", "callbacks.learning_rate.value.steps=64"]
    overrides = [*overrides, "algorithm.lr=0.01", "+with=anneal", *rate]
    callbacks = rlrun.train(overrides, run_dir=tmp_path / "run").trainer.callbacks
    rates = {name: callbacks[name].optimizer.param_groups[0]["lr"] for name in losses}
    assert rates == dict.fromkeys(losses, pytest.approx(0.006))  # half of the way after 32 steps
    assert {name for name in callbacks if f"learning_rate/{name}" in callbacks[name].metrics} == losses
