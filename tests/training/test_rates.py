"""A second data group at a rate of its own: what it learns from, and what its updates move."""

import pytest
import torch
from tests.resume.twins import assert_exact, copy_as_killed

import rlrun
from rlrun.commands.train import Experiment
from rlrun.config import compose

TD3 = ("algorithm=td3", "env=pendulum", "preset=null", "algorithm.hidden=[8,8]", "algorithm.batch_size=8")
QUIET = (
    *("logger=[]", "evaluation.every=0", "algorithm.warmup_steps=20", "log.every=7"),
    *("checkpoint.every=1", "checkpoint.keep_last=40"),
)
CRITICS = "{_target_: rlrun.nn.Critics, spaces: '${spaces}', hidden: [8]}"
LOADER = "{_target_: rlrun.memory.ReplayLoader, table: '${memory}', collector: null, batch: 8}"
TARGET = (
    "rlrun.algorithms.actor_critic.ddpg.DeterministicQTarget, critics: '${networks.twin}', policy: '${networks.policy}'"
)
TERM = "{_target_: rlrun.callbacks.CriticLoss, network: '${networks.%s}', optimizer: null}"
TERMS = f"{{twin: {TERM % 'twin'}, third: {TERM % 'third'}}}"
TWIN = (  # further critics, in a data group of their own
    f"+networks.twin={CRITICS}",
    f"+networks.third={CRITICS}",
    f"+callbacks.twin_target={{_target_: {TARGET}, tau: 0.1, data_group: twin}}",
    "+callbacks.twin={_target_: rlrun.callbacks.JointLoss, optimizer: '${optimizer}', data_group: twin, "
    f"loss_weight: {{third: 0.5}}, terms: {TERMS}}}",
    "trainer.loader=${joint}",
)


def overrides(default, twin, *further, loader=LOADER):
    """Return overrides of TD3 beside further critics, at these rates: `times: 3`."""
    parts = {"default": "'${loader}'", "twin": loader}
    rates = {"default": default, "twin": twin}
    entries = [f"{name}: {{loader: {part}, {rates[name]}}}" for name, part in parts.items()]
    return [*TD3, *QUIET, *TWIN, f"+joint={{_target_: rlrun.memory.JointLoader, {', '.join(entries)}}}", *further]


@pytest.mark.parametrize(
    ("default", "twin", "updates"),
    [("times: 1", "times: 1", (12, 12)), ("times: 1", "times: 3", (12, 34)), ("times: 1", "every: 3", (12, 4))],
)
def test_targets_move_by_updates_of_their_group(default, twin, updates):
    experiment = Experiment(compose(overrides(default, twin, "algorithm.lr=1.0e-30", "stop.updates=12")))
    trainer = experiment.trainer
    targets = [trainer.callbacks[name] for name in ("q_target", "twin_target")]
    for parameter in {id(value): value for target in targets for value in target.network.parameters()}.values():
        parameter.data += 1.0  # networks stay from here on, so the distance falls by 1 - τ at each move
    gaps = [target._follow.distance().item() for target in targets]
    trainer.train()
    own, further = updates
    assert trainer.state["group_updates"] == {"default": own, "twin": further}
    assert (trainer.callbacks["q_loss"].updates, trainer.callbacks["twin"].updates) == updates
    assert trainer.callbacks["policy"].updates == own // 2
    first, second = (target._follow.distance().item() for target in targets)
    assert first == pytest.approx(gaps[0] * (1.0 - 0.005) ** (own // 2), rel=1e-4)
    assert second == pytest.approx(gaps[1] * (1.0 - 0.1) ** further, rel=1e-4)


@pytest.mark.parametrize(
    ("default", "twin"), [("times: 2", "times: 3"), ("times: 1", "every_steps: 4, times: 5"), ("times: 3", "every: 2")]
)
def test_rates_resume_exactly(default, twin, tmp_path):
    assert_exact(overrides(default, twin, "stop.updates=24"), tmp_path, at=25)


def test_explain_tells_rates_and_terms():
    text = Experiment(compose(overrides("times: 3", "every_steps: 250"))).explain()
    assert "discount (3 batches each round)\n" in text
    assert "discount (1 batch every 250 environment steps)\n" in text
    terms = "trains networks.twin and networks.third (adam, 196 parameters) by 1 × twin + 0.5 × third"
    assert f"{terms}; data group twin\n" in text


def test_forks_inherit_moments_and_count_from_zero(tmp_path):
    chosen = overrides("times: 1", "times: 2", "stop.updates=5")
    parent = rlrun.train(chosen, run_dir=tmp_path / "run").trainer
    fork = Experiment(compose([*chosen, f"init.from={tmp_path / 'run'}"]))
    fork.load_sources()
    assert parent.state["group_updates"] == {"default": 5, "twin": 9}
    assert fork.trainer.state["group_updates"] == {"default": 0, "twin": 0}
    ours, theirs = (trainer.callbacks["twin"].optimizer.state_dict()["state"] for trainer in (fork.trainer, parent))
    assert ours.keys() == theirs.keys() == {*range(8)}
    for place, moments in theirs.items():
        assert all(torch.equal(ours[place][name], value) for name, value in moments.items())
    copy_as_killed(tmp_path / "run", tmp_path / "killed", at=24)
    for name in ("run", "killed"):  # 7 or more updates of all groups were made
        resumed = rlrun.resume(tmp_path / name, ["stop.updates=7"]).trainer
        assert resumed.state["group_updates"] == {"default": 7, "twin": 13}


def test_updates_are_counted_by_group(tmp_path):
    result = rlrun.train(overrides("times: 2", "times: 3", "stop.updates=7"), run_dir=tmp_path / "run")
    assert result.trainer.state["group_updates"] == {"default": 7, "twin": 10}
    assert result.summary["updates"] == 10
    record = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert '"updates/twin": 10' in record
    assert "updates/default" not in record
