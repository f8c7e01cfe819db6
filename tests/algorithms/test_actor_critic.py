"""A2C and PPO: losses worked by hand on a network whose answers are written down."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from rlrun.algorithms.on_policy.a2c import A2CLoss
from rlrun.algorithms.on_policy.ppo import KLPenalty, KLStop, PPOLoss
from rlrun.core.errors import ConfigError
from rlrun.nn import ActorCritic, Heads, Rewards

from .fixed import ALL, MIXED, adam, column, evaluate_loss

sgd = partial(torch.optim.SGD, lr=1.0)


class Written(nn.Module):
    """Answers with log-probabilities, entropies and values that are parameters."""

    def __init__(self, log_prob, value, entropy=(0.0, 0.0)) -> None:
        super().__init__()
        self.log_prob, self.value = (nn.Parameter(torch.tensor(numbers)) for numbers in (log_prob, value))
        self.entropy = nn.Parameter(torch.tensor(entropy).unsqueeze(-1))
        self.head = type("Head", (), {"parts": ("discrete",)})
        self.heads = Heads(None, None, None)

    def evaluate_actions(self, observation, action):
        return self


def a2c(network, **options):
    return A2CLoss(network, sgd, **options).loss(None, None, torch.tensor([2.0, -1.0]), torch.tensor([1.0, 5.0]))


def ppo(network, *, advantage, value=(0.0, 0.0), return_=(0.0, 0.0), named=None, **options):
    data = [torch.tensor(numbers) for numbers in ((0.0, 0.0), value, advantage, return_)]
    loss = PPOLoss(network, sgd, **{"value_weight": 0.0, **options})
    return loss.loss(None, None, *data, **(named or {}))


def test_a2c_by_hand():
    losses, outputs, _ = a2c(Written([-0.5, -2.0], [3.0, 3.0], (0.7, 0.1)), value_weight=0.25, entropy_weight=0.1)
    # -log π · A + 0.25 · (V - R)² - 0.1 · H
    assert losses.tolist() == pytest.approx([1.0 + 1.0 - 0.07, -2.0 + 1.0 - 0.01])
    assert outputs["policy_entropy"].flatten().tolist() == pytest.approx([0.7, 0.1])


def test_what_nobody_asks_for_is_computed_for_metrics_only():
    network = ActorCritic(ALL["mixed"])
    loss = PPOLoss(network, sgd)
    loss.requested_names = frozenset()
    seen = (column(0, 1), network.act(column(0, 1)))
    evaluated = network.evaluate_actions(*seen)
    zeros = torch.zeros_like(evaluated.value.detach())
    _, outputs, _ = evaluate_loss(loss, *seen, evaluated.log_prob.detach(), zeros, zeros, zeros)
    assert outputs == {}
    loss.end_batch()
    assert {"entropy/continuous", "entropy/discrete", "policy/approx_kl"} <= loss.metrics.keys()
    assert loss.metrics["entropy/continuous"] == loss.metrics["entropy/continuous"]  # looking draws nothing
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in loss.metrics.values())


@pytest.mark.parametrize("vetoed", [False, True])
def test_a_step_that_is_vetoed_changes_neither_parameters_nor_buffers(vetoed):
    network = Written([-0.5, -2.0], [3.0, 3.0])
    network.register_buffer("seen", torch.zeros(1))
    loss = PPOLoss(network, sgd)
    loss.veto = lambda outputs: vetoed
    loss.step(network.value.square(), {"updates": {"network.seen": torch.ones(1)}}, {})
    assert (network.value.tolist() == [3.0, 3.0], network.seen.tolist() == [0.0]) == (vetoed, vetoed)


def test_advantages_are_normalized_then_clamped():
    network = Written([-1.0, -1.0], [1.0, 5.0])
    assert a2c(network, normalize=True)[0].tolist() == pytest.approx([1.0, -1.0])
    assert a2c(network, normalize=True, advantage_clip=0.25)[0].tolist() == pytest.approx([0.25, -0.25])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [(1.5, 1.0, -1.2, 0.0), (1.1, 1.0, -1.1, -1.1), (0.5, -1.0, 0.8, 0.0), (1.5, -2.0, 3.0, 3.0)],
)
def test_the_clipped_surrogate_by_hand(ratio, advantage, expected, slope):
    network = Written([math.log(ratio)] * 2, [0.0, 0.0])
    losses, *_ = ppo(network, advantage=(advantage, advantage))
    assert losses.tolist() == pytest.approx([expected] * 2, abs=1e-6)
    losses.sum().backward()
    assert network.log_prob.grad.tolist() == pytest.approx([slope] * 2)  # a ratio beyond the clip teaches nothing


def test_numbers_by_name_go_before_the_constants():
    network = Written([math.log(1.5)] * 2, [0.0, 0.0], (0.5, 0.5))
    losses, *_ = ppo(network, advantage=(1.0, 1.0), named={"clip": 0.1, "entropy_weight": 2.0}, entropy_weight=0.0)
    assert losses.tolist() == pytest.approx([-1.1 - 1.0] * 2)


def test_a_penalty_on_the_divergence_by_hand():
    network = Written([math.log(1.5)] * 2, [0.0, 0.0])
    divergence = 1.5 - 1.0 - math.log(1.5)
    for options in ({"kl_weight": 2.0}, {"named": {"kl_weight": 2.0}}):
        losses, outputs, _ = ppo(network, advantage=(0.0, 0.0), **options)
        assert losses.tolist() == pytest.approx([2.0 * divergence] * 2)
        assert float(outputs["approx_kl"]) == pytest.approx(divergence)


def test_a_clipped_value_pays_for_the_larger_distance():
    network = Written([0.0, 0.0], [3.0, 0.5])
    options = {"advantage": (0.0, 0.0), "value": (1.0, 1.0), "return_": (3.0, 0.5), "value_weight": 1.0}
    assert ppo(network, **options)[0].tolist() == [0.0, 0.0]
    assert ppo(network, **options, value_clip=0.5)[0].tolist() == pytest.approx([1.5**2, 0.0])


@pytest.mark.parametrize(("value_clip", "losses"), [(None, [0.5, 2.0]), (0.5, [1.625, 2.125])])
def test_distances_are_means_over_rewards(value_clip, losses):
    network = Written([-0.5, -2.0], [[3.0, 1.0], [3.0, 0.0]])
    network.rewards = Rewards([0.5, -2.0])
    before, return_ = torch.ones(2, 2), torch.tensor([[3.0, 2.0], [1.0, 0.0]])
    batch = network.log_prob.detach(), before, torch.zeros(2), return_
    loss = PPOLoss(network, sgd, value_weight=1.0, value_clip=value_clip)
    elements, _, metrics = evaluate_loss(loss, None, None, *batch)
    assert elements.tolist() == pytest.approx(losses)
    assert [metrics[f"value/mean{part}"] for part in ("", "_0", "_1")] == pytest.approx([0.5 * 3 - 2 * 0.5, 3.0, 0.5])
    assert metrics["value/explained_variance"] == pytest.approx(1 - 0.5 / 4.5)  # weighed: -0.5, 1.5 of -2.5, 0.5
    losses, *_ = A2CLoss(network, sgd, value_weight=2.0).loss(None, None, torch.zeros(2), return_)
    assert losses.tolist() == [1.0, 4.0]


def test_value_loss_may_be_any_function():
    network = Written([-0.5, -2.0], [3.0, 4.5])
    smooth = nn.SmoothL1Loss(reduction="none")  # half the square up to 1, linear beyond
    for form in ({"distance": smooth}, {"huber": 1.0}):
        losses, *_ = a2c(network, value_weight=1.0, **form)
        assert losses.tolist() == pytest.approx([1.0 + 1.5, -2.0 + 0.125])
    options = {"advantage": (0.0, 0.0), "value": (1.0, 1.0), "return_": (1.0, 5.0), "value_weight": 1.0}
    assert ppo(network, **options, distance=smooth)[0].tolist() == pytest.approx([1.5, 0.125])
    assert ppo(network, **options, distance=smooth, value_clip=0.5)[0].tolist() == pytest.approx([1.5, 3.0])


def test_log_probabilities_are_clamped_before_the_ratio():
    network = Written([-6.0, 0.5], [0.0, 0.0])
    losses, *_ = ppo(network, advantage=(1.0, 1.0), log_prob_clip=0.1, clip=0.2)
    assert losses.tolist() == pytest.approx([-math.exp(-0.1), -math.exp(0.1)])
    _, outputs, _ = ppo(network, advantage=(1.0, 1.0), log_prob_clip=0.1)
    divergences = [math.expm1(ratio) - ratio for ratio in (-6.0, 0.5)]
    assert float(outputs["approx_kl"]) == pytest.approx(sum(divergences) / 2)  # of the policies as they are
    losses.sum().backward()
    assert network.log_prob.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": "smooth_l1"}, "distance: wanted a function, such as .*, got 'smooth_l1'"),
        (
            {"distance": nn.SmoothL1Loss(reduction="none"), "huber": 1.0},
            "distance: it replaces huber=1",
        ),
        ({"advantage_clip": -3.0}, r"advantage_clip: wanted a number above 0, got -3\.0"),
        ({"log_prob_clip": "six"}, "log_prob_clip: wanted a number above 0, got 'six'"),
    ],
)
def test_bad_settings_of_losses_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PPOLoss(Written([0.0], [0.0]), sgd, **options)


class Served:
    """A loader that served so many of its epochs."""

    def __init__(self) -> None:
        self.epoch, self.epochs, self.renewed = 0, 2, 0

    def renew(self):
        self.renewed += 1


@pytest.mark.parametrize("named", [True, False])  # configs saved before the stop had its loss name none
def test_kl_stop_skips_step_and_rollout(named):
    network = ActorCritic(ALL["discrete"], hidden=(8,))
    loader, loss = Served(), PPOLoss(network, partial(torch.optim.SGD, lr=0.1))
    stop = KLStop(loader, loss if named else None, limit=0.02)
    stop.begin_training({"ppo": loss, "kl_stop": stop})
    observation = column(0.3, -0.7, 0.1)
    action = network.act(observation)
    numbers = (torch.zeros(3), torch.tensor([1.0, -1.0, 0.5]), torch.ones(3))
    for moved, steps, renewed in ((0.1, 1, 0), (0.5, 1, 1), (0.1, 2, 1)):
        before = [parameter.clone() for parameter in network.parameters()]
        now = network.log_prob(observation, action).detach()
        outputs = loss.backward(observation, action, now - moved, *numbers)
        stop.end_batch(outputs["approx_kl"])
        stepped = any(not torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True))
        assert (loss.updates, loader.renewed, stepped) == (steps, renewed, moved == 0.1)
    assert stop.metrics["policy/early_stops"] == 1
    assert stop.hook("end_batch") is not None
    assert KLStop(loader, loss, limit=None).hook("end_batch") is None  # and nobody computes the divergence for it


def test_the_weight_of_the_penalty_follows_section_4_after_each_rollout():
    loader = Served()
    penalty = KLPenalty(loader, target=0.01, weight=1.0)
    rollouts = (
        ([9.0, 0.0151], 2.0),
        ([9.0, 0.0149], 2.0),
        ([0.0, 0.0068], 2.0),
        ([9.0, 0.0066], 1.0),
        ([9.0, 0.0], 0.5),
    )
    for divergences, weight in rollouts:
        before = penalty.weight
        for epoch, divergence in enumerate(divergences, 1):  # of two minibatches each
            for served, share in ((epoch - 1, 0.5), (epoch, 1.5)):
                loader.epoch = served
                assert penalty.begin_batch() == {"kl_weight": before}
                penalty.end_batch(torch.tensor(divergence * share))
                twin = KLPenalty(loader, target=0.01)
                twin.load_state_dict(penalty.state_dict())
                penalty = twin
        assert penalty.weight == weight


@pytest.mark.parametrize("kind", ALL)
def test_divergence_is_the_mean_log_ratio(kind):
    torch.manual_seed(1)
    old, new = (ActorCritic(ALL[kind], hidden=(8,), output_gain=1.0) for _ in range(2))
    observation = column(0.3).expand(40_000, 1)
    with torch.no_grad():
        heads = old.heads(observation)
        action, log_prob = old.head.sample(heads)
        mean = (log_prob - new.log_prob(observation, action)).mean()
        assert float(old.head.divergence(heads, new.heads(observation))[0]) == pytest.approx(float(mean), abs=0.03)


def test_a_shared_trunk_learns_from_values_and_an_own_one_leaves_the_policy_alone():
    for shared in (False, True):
        network = ActorCritic(ALL["discrete"], hidden=(8,), shared=shared)
        network.value(column(0.5)).sum().backward()
        learned = [parameter.grad is not None for parameter in network.trunk.parameters()]
        assert all(learned) if shared else not any(learned)


# --- rows of windows that are no steps weigh nothing

VALID = torch.tensor([[True, True, False, True], [False, True, True, True]])
OPTIONS = {"entropy_weight": 0.1, "normalize": True}


def valid_network(**options):
    torch.manual_seed(0)
    return ActorCritic(MIXED, hidden=(4,), output_gain=1.0, **options)


def batch(poison=1e3):
    """Return windows [2, 4] whose rows that are no steps hold absurd numbers."""
    torch.manual_seed(1)
    action = {"level": torch.rand(2, 4, 1) * 2 - 1, "side": torch.randint(0, 2, (2, 4))}
    columns = {name: torch.randn(2, 4) for name in ("log_prob", "value", "advantage", "return_")}
    columns = {name: torch.where(VALID, value, poison) for name, value in columns.items()}
    columns["log_prob"] = columns["log_prob"].clamp(-9e9, 0.0) - 1.0
    return {"observation": torch.randn(2, 4, 1), "action": action, **columns}


def rows_of(tree):
    return {name: rows_of(part) for name, part in tree.items()} if isinstance(tree, dict) else tree[VALID]


def asked(kind, columns):
    names = columns if kind is PPOLoss else ("observation", "action", "advantage", "return_")
    return {name: columns[name] for name in names}


@pytest.mark.parametrize("kind", [A2CLoss, PPOLoss])
def test_windows_lose_as_their_steps(kind, monkeypatch):
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)  # the entropy of a continuous part is drawn
    windows, alone = (kind(valid_network(), adam, **OPTIONS) for _ in range(2))
    loss, outputs, metrics = evaluate_loss(windows, **asked(kind, batch()), valid=VALID)
    expected, expected_outputs, expected_metrics = evaluate_loss(alone, **asked(kind, rows_of(batch())))
    torch.testing.assert_close(loss.mean(), expected.mean())
    assert not loss[~VALID].any()
    if kind is PPOLoss:
        torch.testing.assert_close(outputs["approx_kl"], expected_outputs["approx_kl"])
    torch.testing.assert_close(metrics, expected_metrics)


def test_invalid_rows_may_hold_anything():
    loss = PPOLoss(valid_network(), adam, kl_weight=0.5)
    columns = batch()
    columns["log_prob"] = torch.where(VALID, columns["log_prob"], -1e30)
    value, *_ = loss.loss(**columns, valid=VALID)
    value.mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in loss.parameters if parameter.grad is not None)


def test_recurrent_loss_reaches_the_first_row():
    net = valid_network(core="gru", core_size=3)
    loss = A2CLoss(net, adam)
    columns = asked(A2CLoss, batch(poison=0.0))
    columns["observation"].requires_grad_()
    columns["advantage"] = torch.zeros(2, 4).index_fill(1, torch.tensor(3), 1.0)  # of the last rows only
    columns["return_"] = net.value(columns["observation"], torch.zeros(2, 6)).detach()
    episode_end = torch.zeros(2, 4, dtype=torch.bool)
    episode_end[1, 1] = True
    value, *_ = loss.loss(**columns, state=torch.zeros(2, 6), episode_end=episode_end, valid=torch.ones(2, 4).bool())
    (reached,) = torch.autograd.grad(value[:, 3].sum(), columns["observation"])
    assert (reached.squeeze(-1) != 0).tolist() == [[True] * 4, [False, False, True, True]]


def test_value_may_have_layers_of_other_widths():
    network = ActorCritic(ALL["discrete"], hidden=(8,), value_hidden=(3, 5))
    widths = {name: len(parameter) for name, parameter in network.named_parameters() if "trunk" in name}
    assert widths["trunk.layers.0.weight"] == 8
    assert (widths["value_trunk.layers.0.weight"], widths["value_trunk.layers.2.weight"]) == (3, 5)
