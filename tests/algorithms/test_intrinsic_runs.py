"""Intrinsic rewards in whole runs: with off-policy and on-policy algorithms, added once, and resumed."""

import json

import numpy as np
import pytest
import torch

import rlrun
from rlrun.config import compose
from rlrun.core.errors import ConfigError

from .runs import REPLAY, ROLLOUT

pytestmark = pytest.mark.usefixtures("folder")


@pytest.mark.parametrize("steps", [1, 3])
def test_rnd_adds_the_documented_sum(steps, tmp_path):
    """Σ γ^k · (extrinsic · reward + weight · error / root mean square), each step's by itself."""
    weights = ("intrinsic.rnd.weight=0.5", "intrinsic.extrinsic_weight=3.0", f"algorithm.n_step={steps}")
    overrides = ["algorithm=sac", "env=pendulum", "preset=null", "+with=rnd", *weights, *REPLAY]
    trainer = rlrun.train(overrides, run_dir=tmp_path / "run").trainer
    table, network = trainer.loader.table, trainer.callbacks["rnd"].network
    (intrinsic,) = [adaptor for adaptor in table.adaptors if hasattr(adaptor, "bonuses")]
    bonus = intrinsic.bonuses["rnd"]
    for _ in range(3):
        batch = table.sample(32)
        rows = table._picked
        slots, lengths = rows.onward(steps)
        expected = torch.zeros(32)
        for k in range(steps):
            stored = rows.stored("reward", slots[:, k])
            following = rows.stored("observation", rows.where.after(slots[:, k], 1))
            seen = (following - bonus.observation.statistics[0].shift) * bonus.observation.statistics[0].scale
            error = network.error(seen.clamp(-5.0, 5.0)).detach()
            scaled = error / bonus.reward.statistics[0].moments[1].sqrt()
            counts = torch.from_numpy(k < lengths) * 0.99**k
            expected += counts * (3.0 * stored + 0.5 * scaled)
        assert torch.allclose(batch["reward"], expected.float(), rtol=1e-4)
        assert lengths.max() == steps


FAMILIES = {
    "dqn": ("algorithm=dqn", "env=cartpole", *REPLAY),
    "sac": ("algorithm=sac", "env=mixedaction", *REPLAY),
    "ppo": ("algorithm=ppo", "env=mixedaction", "algorithm.batch_size=16", *ROLLOUT),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_any_algorithm_takes_all_bonuses(family, tmp_path):
    overrides = [*FAMILIES[family], "+with=[rnd,icm,diayn]", "intrinsic.extrinsic_weight=1.0"]
    result = rlrun.train(overrides, run_dir=tmp_path / "run")
    assert result.summary["status"] == "completed"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "loss/rnd" in line][-1]
    for name in ("rnd", "icm", "diayn"):
        assert np.isfinite([last[f"loss/{name}"], last[f"intrinsic/{name}_bonus"]]).all()
    assert 0.0 <= last["intrinsic/diayn_right"] <= 1.0


def test_reported_returns_are_the_environments(tmp_path):
    overrides = [*FAMILIES["dqn"], "+with=rnd", "intrinsic.rnd.weight=1000.0", "intrinsic.extrinsic_weight=0.0"]
    result = rlrun.train(overrides, run_dir=tmp_path / "run")
    table, collector = result.trainer.loader.table, result.trainer.callbacks["collector"]
    assert collector.metrics["episode/return"] == collector.metrics["episode/length"]  # CartPole pays 1 a step
    assert (table.sample(50)["reward"] != 1.0).any()
    assert (table._picked.stored("reward", table._picked.index) == 1.0).all()


def test_nobody_can_draw_ahead(tmp_path):
    with pytest.raises(ConfigError, match=r"what Intrinsic makes of a batch depends on the update before"):
        rlrun.train([*FAMILIES["dqn"], "+with=[prefetch,rnd]"], run_dir=tmp_path / "run")


def test_skills_need_wrapped_environments(tmp_path):
    overrides = ["algorithm=dqn", "env.id=CartPole-v1", "env.vectorization=native", "+with=diayn"]
    with pytest.raises(ConfigError, match=r"env.wrappers wrap single environments; env.vectorization 'native' has non"):
        rlrun.train(overrides, run_dir=tmp_path / "run")


def test_skills_ignore_rewards_by_default():
    assert compose(["algorithm=sac", "env=pendulum", "+with=diayn"]).config.intrinsic.extrinsic_weight == 0.0
    assert compose(["algorithm=sac", "env=pendulum", "+with=rnd"]).config.intrinsic.extrinsic_weight == 1.0
