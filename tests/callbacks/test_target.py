"""Targets of many critics, and of several steps."""

import pytest
import torch
from tests.configs import ALGORITHMS, env_of, keys
from torch import nn

from rlrun import ops
from rlrun.algorithms.actor_critic.sac import SoftQTarget
from rlrun.callbacks import LambdaReturn, TargetCallback
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError
from rlrun.env import make
from rlrun.nn import Critics, SoftPolicy, Temperature

SPACES = make("Pendulum-v1").spaces


def target(members, target_subset):
    critics, temperature = Critics(SPACES, hidden=[4], members=members), Temperature(SPACES)
    return SoftQTarget(
        critics, SoftPolicy(SPACES, critics, temperature, hidden=[4]), temperature, target_subset=target_subset
    )


def test_smallest_of_random_pair_counts():
    torch.manual_seed(0)
    q_target, value = target(3, 2), torch.tensor([[1.0], [2.0], [3.0]])
    minima = [q_target.smallest(value).item() for _ in range(3_000)]
    assert set(minima) == {1.0, 2.0}
    assert minima.count(1.0) / 3_000 == pytest.approx(2 / 3, abs=0.03)  # two of the three pairs hold the first
    assert target(3, None).smallest(value).item() == target(3, 3).smallest(value).item() == 1.0


@pytest.mark.parametrize("target_subset", [0, 4])
def test_target_subset_is_limited(target_subset):
    with pytest.raises(
        ConfigError, match=f"target_subset: wanted a number from 1 to 3, of critics, got {target_subset}"
    ):
        target(3, target_subset)


@pytest.mark.parametrize(("actor_q", "value"), [("first", 2.0), ("min", 1.0), ("mean", 2.0)])
def test_actor_q_combines_critics(actor_q, value):
    assert ops.guiding(torch.tensor([[2.0], [1.0], [3.0]]), actor_q).tolist() == [value]


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if {"target_subset", "layer_norm", "dropout"} <= keys(name)]
)
def test_critics_are_regularized_by_plain_keys(algorithm):
    overrides = ["algorithm.ensemble=5", "algorithm.target_subset=2", "algorithm.layer_norm=true"]
    overrides += ["algorithm.dropout=0.01", *["init.networks.vae=null"] * (algorithm == "genrl")]
    overrides += ["algorithm.updates_per_step=20"] + ["algorithm.actor_q=mean"] * (algorithm != "dqn")
    experiment = Experiment(
        compose([f"algorithm={algorithm}", env_of(algorithm), "algorithm.hidden=[8,8]", *overrides])
    )
    critics = experiment.trainer.callbacks["q_loss"].critics
    ensemble = critics.features if hasattr(critics, "features") else critics.layers
    assert (critics.members, ensemble.dropout, ensemble.layers[0].normed) == (5, 0.01, True)
    assert experiment.trainer.callbacks["q_target"].target_subset == 2
    loader = experiment.trainer.loader
    assert getattr(loader, "parts", {"default": loader})["default"].rate == 20


def test_dropout_acts_in_updates_alone():
    critics, seen = Critics(SPACES, hidden=[64], dropout=0.5), (torch.ones(1, 3), torch.ones(1, 1))
    with torch.no_grad():  # acting, and targets
        assert torch.equal(critics(*seen), critics(*seen))
    assert not torch.equal(critics(*seen), critics(*seen))
    critics.eval()
    assert torch.equal(critics(*seen), critics(*seen))


@pytest.mark.parametrize("terminal_masking", [True, False])
def test_values_after_terminations_count_on_request(terminal_masking):
    callback = TargetCallback(nn.Linear(1, 1), discount=0.5, terminal_masking=terminal_masking)
    ends, value = torch.tensor([True, False]), torch.tensor([4.0, 6.0])
    outputs, _ = callback.bootstrap(torch.ones(2), ends, value, None)
    assert outputs["q_target"].tolist() == [1.0 if terminal_masking else 3.0, 4.0]
    assert ends.tolist() == [True, False]


@pytest.mark.parametrize("algorithm", ["sac", "dqn", "ddpg", "qrsac", "taac_l", "sarsa", "mdq", "iql"])
def test_every_target_bootstraps_after_terminations_on_request(algorithm):
    overrides = [f"algorithm={algorithm}", "preset=null", f"env={'cartpole' if algorithm == 'dqn' else 'pendulum'}"]
    config = compose([*overrides, "device=cpu", "+callbacks.q_target.terminal_masking=false"]).config
    target = Builder(config).get("callbacks.q_target")
    assert target.masked(torch.tensor([True])).tolist() == [False]


def test_target_distance_is_relative():
    network = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        network.weight[:] = torch.tensor([[3.0, 4.0]])
    target = TargetCallback(network, tau=0.5)
    target.name = "q"
    _, metrics = target.bootstrap(torch.zeros(1), torch.zeros(1, dtype=torch.bool), torch.zeros(1), None)
    target.store.put(metrics)  # as an update does
    assert float(target.metrics["target_distance/q"]) == 0.0
    with torch.no_grad():
        network.weight *= 2.0
    assert float(target.metrics["target_distance/q"]) == 0.5
    target.end_batch()
    assert float(target.metrics["target_distance/q"]) == 0.25


STEPS = 4
NEVER = torch.zeros(1, STEPS, dtype=torch.bool)


def at(*steps: int) -> torch.Tensor:
    return torch.isin(torch.arange(STEPS), torch.tensor(steps)).unsqueeze(0)


def one_step(reward: float = 3.0, value: float = 2.0, terminated: torch.Tensor = NEVER) -> dict[str, torch.Tensor]:
    """Values, rewards and discount of the worked numbers: V = 2, r = 3, γ = 0.9."""
    rewards, values = torch.full((1, STEPS), reward), torch.full((1, STEPS), value)
    target = ops.one_step_return(rewards, values, terminated=terminated, discount=0.9)
    return {"q_target": target, "reward": rewards, "terminated": terminated}


def longer(given: dict[str, torch.Tensor], lambda_: float = 2 / 3, **more: torch.Tensor) -> list[float]:
    target = LambdaReturn(lambda_=lambda_, discount=0.9)
    targets = target.begin_batch(**{"truncated": NEVER, **given, **more})["q_target"]
    return [round(value, 5) for value in targets.flatten().tolist()]


def test_worked_numbers():
    assert longer(one_step()) == [8.0928, 7.488, 6.48, 4.8]
    assert longer(one_step(), truncated=at(2)) == [7.488, 6.48, 4.8, 4.8]
    assert longer(one_step(terminated=at(1))) == [5.4, 3.0, 6.48, 4.8]
    assert longer(one_step(), 0.0) == [4.8] * 4
    assert longer(one_step(), 1.0) == [11.6292, 9.588, 7.32, 4.8]  # the last: 3 + 0.9 · 2


def test_padding_after_episodes_is_ignored():
    assert longer(one_step(), valid=at(0, 1)) == [6.48, 4.8, 4.8, 4.8]
    assert longer(one_step(), valid=at(0, 1, 2, 3)) == [8.0928, 7.488, 6.48, 4.8]


def test_discount_of_the_batch_goes_first():
    assert longer(one_step(), discount=torch.full((1, STEPS), 0.9)) == [8.0928, 7.488, 6.48, 4.8]
    single, doubled = one_step(), one_step(6.0, 4.0)
    both = {name: torch.stack((single[name], doubled[name]), -1) for name in ("q_target", "reward")}
    value = LambdaReturn(lambda_=2 / 3, discount=0.9).begin_batch(**both, terminated=NEVER, truncated=NEVER)["q_target"]
    torch.testing.assert_close(value[..., 1], 2.0 * value[..., 0])  # rewards may have dimensions
    assert round(value[0, 0, 0].item(), 4) == 8.0928


def test_quantiles_are_lengthened_by_whole_returns_only():
    given = one_step()
    quantiles = torch.cat((given["q_target"].unsqueeze(-1), given["q_target"].unsqueeze(-1) + 0.9), -1)  # V = 2 and 3
    parts = {"reward": given["reward"], "terminated": NEVER, "truncated": at(1), "valid": at(0, 1, 2, 3)}
    value = LambdaReturn(lambda_=1.0, discount=0.9).begin_batch(q_target=quantiles, **parts)["q_target"]
    assert value[0, :, 0].tolist() == pytest.approx([7.32, 4.8, 7.32, 4.8])
    assert value[0, :, 1].tolist() == pytest.approx([7.32 + 0.81, 5.7, 7.32 + 0.81, 5.7])  # γ² and γ of the difference
    with pytest.raises(ConfigError, match=r"td_lambda\.lambda: wanted 0 or 1, as these critics learn distributions"):
        LambdaReturn(lambda_=0.9, discount=0.9).begin_batch(q_target=quantiles, **parts)


def test_quantiles_of_several_rewards_have_a_discount_for_each_reward():
    single = one_step()
    reward = torch.stack((single["reward"], single["reward"]), -1)  # [1, T, 2]
    quantiles = single["q_target"].reshape(1, STEPS, 1, 1).expand(1, STEPS, 2, 3)
    target = LambdaReturn(lambda_=1.0, discount=[0.9, 0.5])
    value = target.begin_batch(q_target=quantiles, reward=reward, terminated=NEVER, truncated=at(1))["q_target"]
    assert value[0, 0, 0].tolist() == pytest.approx([7.32] * 3)  # 3 + 0.9 · 4.8
    assert value[0, 0, 1].tolist() == pytest.approx([5.4] * 3)  # 3 + 0.5 · 4.8
    assert value[0, 1].flatten().tolist() == pytest.approx([4.8] * 6)


def test_quantiles_at_fractions_of_each_step_are_not_lengthened():
    parts = {**one_step(), "truncated": NEVER, "target_widths": torch.full((1, STEPS, 2), 0.5)}
    with pytest.raises(ConfigError, match=r"set algorithm\.fixed=true and td_lambda\.lambda=1"):
        LambdaReturn(lambda_=1.0, discount=0.9).begin_batch(**parts)


def test_invalid_lambda_returns_are_refused():
    with pytest.raises(ConfigError, match=r"td_lambda\.lambda: wanted a number from 0 to 1, got 1\.5"):
        LambdaReturn(lambda_=1.5, discount=0.9)
    with pytest.raises(ConfigError, match=r"algorithm\.n_step=1, not 3"):
        LambdaReturn(lambda_=0.5, discount=0.9, n_step=3)
    flat = {name: value[0] for name, value in one_step().items()}
    with pytest.raises(ConfigError, match=r"td_lambda\.length must be at least 2"):
        longer(flat, truncated=NEVER[0])
    several = {**one_step(), "q_target": torch.zeros(1, STEPS, 5)}
    with pytest.raises(ConfigError, match="wanted 0 or 1, as these critics learn distributions"):
        longer(several)
