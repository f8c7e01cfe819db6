"""On-policy runs on every kind of space, and together with what changes observations and rewards."""

import pytest

import rlrun
from rlrun.algorithms.on_policy.ppo import PPOLoss

pytestmark = pytest.mark.usefixtures("folder")
SMALL = (
    *("preset=null", "num_envs=2", "algorithm.hidden=[8,8]", "algorithm.horizon=4", "logger=[]"),
    *("evaluation.episodes=1", "evaluation.max_steps=5", "evaluation.every=0", "checkpoint.every=0"),
)
TOYS = ("ImageObservation", "DiscreteStart", "MultiDiscreteAction", "TupleSpaces", "MixedAction")
PLACES = {**{toy: f"env.target=rlrun.env.toys.{toy}" for toy in TOYS}, "pendulum": "env=pendulum"}


def trained(algorithm: str, *overrides: str, updates: int):
    request = [f"algorithm={algorithm}", *SMALL, *overrides, f"stop.updates={updates}"]
    return rlrun.train(request, run_dir="run").trainer


@pytest.mark.parametrize("place", PLACES)
def test_first_update_has_the_acting_policy(place):
    size = ("algorithm.batch_size=8", "algorithm.shared=true", "algorithm.entropy_weight=0.1")
    loss = trained("ppo", PLACES[place], *size, updates=1).callbacks["ppo"]
    assert abs(float(loss.metrics["policy/approx_kl"])) < 1e-6
    assert float(loss.metrics["policy/clipped"]) == 0.0
    assert [name for name, parameter in loss.network.named_parameters() if parameter.grad is None] == []


FAST = ("env=cartpole", "algorithm.lr=0.05", "algorithm.batch_size=4", "algorithm.epochs=2")  # 4 updates a rollout
MOVES = ("policy/approx_kl", "policy/clipped")


def moves(found):
    return [float(found[name]) for name in MOVES]


@pytest.fixture
def log_ratios(monkeypatch):
    """Return the log ratios of each update."""
    log_ratios, end = [], PPOLoss.end_batch

    def end_batch(self, step=None):
        log_ratios.append(self.store.newest["policy/approx_kl"].tensors[0].double())
        end(self, step)

    monkeypatch.setattr(PPOLoss, "end_batch", end_batch)
    return log_ratios


def test_divergence_is_the_last_rollouts_mean(log_ratios):
    trainer = trained("ppo", *FAST, updates=5)  # at the first update of a rollout, as the logger mostly comes
    seen, clip = [], trainer.callbacks["ppo"].clip
    for log_ratio in log_ratios:
        ratio = log_ratio.exp()
        seen.append([float((ratio - 1 - log_ratio).mean()), float(((ratio - 1).abs() > clip).double().mean())])
    assert seen[4] == pytest.approx([0.0, 0.0], abs=1e-6)
    mean = [sum(values) / 4 for values in zip(*seen[:4], strict=True)]
    assert min(mean) > 0.001
    assert moves(trainer.callbacks["ppo"].metrics) == pytest.approx(mean, abs=1e-6)


def test_adaptors_come_before_advantages():
    added = "+with=[reward_scale,reward_clip,observation_norm]"
    loader = trained("ppo", "env=pendulum", "algorithm.batch_size=8", added, updates=1).loader
    order = [type(adaptor).__name__ for adaptor in loader.adaptors]
    assert set(order[:2]) == {"RewardScale", "RewardClip"}
    assert set(order[2:-1]) == {"ReturnNormalize", "ObservationNormalize"}
    assert order[-1] == "Advantages"


STORED = ("+agent.log_prob=true", "+memory.columns.log_prob={}")  # how likely the actions were as they were chosen


@pytest.mark.parametrize(
    ("core", "overrides"),
    [
        ("null", ()),
        ("gru", ("+with=observation_norm",)),
        ("null", ("+with=observation_norm", "memory.adaptors.observation_norm.update=rollout")),
        ("gru", ("+with=observation_norm", "normalizers.observation.mode=em", "+normalizers.observation.rate=0.5")),
        ("gru", ("+with=[reward_norm,reward_clip,return_norm]",)),
        ("null", ("+with=rnd",)),
        ("gru", ("+with=representation", "representation.lr=1e-15")),
        ("gru", ("+with=async", "async.kind=thread")),
    ],
)
def test_log_probs_agree_without_steps(overrides, core, log_ratios):
    still = ("algorithm.lr=1e-15", f"algorithm.recurrent={core}", "algorithm.unroll=2", "algorithm.batch_size=8")
    stored = () if "+with=async" in overrides else STORED  # a column that is there by itself then
    trained("ppo", "env=pendulum", *still, *stored, *overrides, "algorithm.epochs=1", updates=6)
    assert len(log_ratios) == 6
    assert max(float(log_ratio.abs().max()) for log_ratio in log_ratios) <= 1e-5
