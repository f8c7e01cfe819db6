"""Losses of soft actor-critic: what they train, and in which direction."""

import math

import pytest
import torch
import torch._dynamo
from tests.nn.spaces_for_tests import draw
from torch import nn

from rlrun import train
from rlrun.algorithms.actor_critic.sac import SoftPolicy, Temperature, TemperatureLoss
from rlrun.callbacks import CriticLoss, SoftPolicyLoss
from rlrun.core.spaces import Composite, Discrete, MultiDiscrete, Spaces
from rlrun.nn import ActionCodec, Critics

from .fixed import ALL, COIN, CONTINUOUS, DISCRETE, LINE, MANY, MIXED, adam, column, critics_of, policy_of, sgd

FLAT = [([[0.0], [0.0]], [0.0])] * 2
FLAT_MIXED = [([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.5 * math.log(3.0)])] * 2


def policy_loss(spaces, members, optimizer=sgd, **options):
    critics = critics_of(spaces, *members)
    policy, temperature = policy_of(spaces, critics, **options)
    return SoftPolicyLoss(policy, optimizer, critics=critics, temperature=temperature)


def test_entropy_is_of_the_losss_sample():
    torch.manual_seed(0)
    loss, outputs, _ = policy_loss(CONTINUOUS, FLAT).loss(column(0, 1, 2))  # without values only 0.2 * log_prob is left
    torch.testing.assert_close(outputs["policy_entropy"], -loss.detach().unsqueeze(-1) / 0.2)
    assert len(outputs["policy_entropy"].unique()) == 3


def test_mixed_entropies_stand_side_by_side():
    torch.manual_seed(0)
    loss, outputs, _ = policy_loss(MIXED, FLAT_MIXED, alphas=(0.2, 0.5)).loss(column(0, 1))
    log_prob = (loss.detach() + 0.75 * 0.5 * math.log(3.0)) / 0.2  # less the expected value of the choices
    expected = torch.stack((-log_prob, torch.full((2,), 0.562335)), -1)
    torch.testing.assert_close(outputs["policy_entropy"], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("clip", "slope"), [(None, 2 * 0.162117), (1.0, 2 * 0.162117), (0.1, 0.1)])
def test_gradient_goes_through_the_action(clip, slope, monkeypatch):
    class Parabola(nn.Module):
        codec = ActionCodec(CONTINUOUS)

        def forward(self, observation, c):
            return -(c - 0.3).square().squeeze(-1).unsqueeze(0)

    monkeypatch.setattr("torch.randn_like", torch.zeros_like)
    policy, temperature = policy_of(CONTINUOUS, Parabola(), level=math.tanh(0.5), alphas=(1e-9,))
    loss = SoftPolicyLoss(policy, sgd, critics=Parabola(), temperature=temperature, action_gradient_clip=clip)
    loss.backward(column(0))
    # a = tanh 0.5 = 0.462117: -dQ/dw = 2 (a - 0.3) (1 - a^2)
    assert float(policy.gaussian.layers[-1].bias.grad[0]) == pytest.approx(slope * 0.786448, abs=1e-6)


def test_losses_are_single_graphs():
    """No clock, no counter, no branch on data; tests/compile runs other spaces and losses."""
    spaces = Spaces(LINE, Composite({"level": CONTINUOUS.action, "many": MANY.action}))
    critics, temperature = Critics(spaces, hidden=(4,)), Temperature(spaces)
    policy = SoftPolicy(spaces, critics, temperature, hidden=(4,))
    batch = {"observation": torch.zeros(4, 1), "action": draw(spaces.action, 4), "q_target": torch.zeros(4)}
    policy_loss = SoftPolicyLoss(policy, adam, critics=critics, temperature=temperature)
    for loss, names in ((policy_loss, ("observation",)), (CriticLoss(critics, adam), batch)):
        torch._dynamo.reset()
        report = torch._dynamo.explain(loss.loss)(**{name: batch[name] for name in names})
        assert (report.graph_break_count, report.graph_count) == (0, 1)


@pytest.mark.parametrize("spaces", ALL.values(), ids=ALL)
def test_policy_owns_no_other_network(spaces):
    critics, temperature = Critics(spaces, hidden=(4,)), Temperature(spaces)
    policy = SoftPolicy(spaces, critics, temperature, hidden=(4,))
    theirs = {id(parameter) for parameter in (*critics.parameters(), *temperature.parameters())}
    assert not theirs & {id(parameter) for parameter in policy.parameters()}
    assert set(policy.state_dict()) == {name for name, _ in policy.named_parameters()}


def test_discrete_policy_has_exact_entropy():
    loss = policy_loss(DISCRETE, [([[0.0, 0.0]], [0.0, 0.5 * math.log(3.0)])], adam, alphas=(0.5,))
    outputs = loss.backward(column(0, 1))
    assert loss.optimizer is None
    assert outputs["policy_entropy"].flatten().tolist() == pytest.approx([0.562335] * 2, abs=1e-5)
    assert not outputs["policy_entropy"].requires_grad


def test_exploring_samples_playing_takes_best():
    policy, _ = policy_of(MIXED, critics_of(MIXED, *FLAT_MIXED), alphas=(0.2, 0.5))
    torch.manual_seed(0)
    target_subset, best = policy.act(torch.zeros(4000, 1)), policy.act(torch.zeros(5, 1), explore=False)
    assert float(target_subset["side"].float().mean()) == pytest.approx(0.75, abs=0.03)
    assert float(target_subset["level"].detach().std()) > 0.3
    assert best["side"].tolist() == [1] * 5
    assert best["level"].flatten().tolist() == pytest.approx([0.5] * 5)


def test_critics_fit_the_stored_numbers():
    loss = CriticLoss(critics_of(MIXED, ([[0.0, 0.0], [2.0, 4.0]], [0.0, 1.0])), sgd)
    action = {"level": column(0.5, 0.5), "side": torch.tensor([0, 1])}
    assert loss.loss(column(0, 0), action, torch.zeros(2))[0].tolist() == [1.0, 9.0]


def test_critics_may_have_their_own_branches():
    spaces = Spaces(LINE, Composite({"0": Discrete(2), "1": Discrete(2)}))
    critics = Critics(spaces, hidden=(), joint_limit=1)  # two branches of two, not one of four
    policy, _ = policy_of(spaces, critics, alphas=(1.0,))
    probabilities = policy.choices(critics(column(0)), column(0))[0].exp()
    assert float(probabilities.detach().sum()) == pytest.approx(2.0)


def temperature_loss(spaces, *, initial=1.0, largest=None, **options):
    return TemperatureLoss(Temperature(spaces, initial=initial, largest=largest), sgd, spaces=spaces, **options)


def test_temperature_follows_its_target():
    loss = temperature_loss(MIXED, target={"continuous": -1.0, "discrete": 0.5})
    loss.backward(torch.tensor([[-1.5, 0.6], [-1.3, 0.8]]))  # means -1.4 and 0.7, learning rate 1
    assert loss.network.log.tolist() == pytest.approx([0.4, -0.2], abs=1e-6)


def test_target_entropy_may_come_by_name():
    for target, expected in ((-1.0, [0.4, -1.7]), (torch.tensor([-1.0, 0.5]), [0.4, -0.2])):
        loss = temperature_loss(MIXED, target={"continuous": 9.0, "discrete": 9.0})
        loss.backward(torch.tensor([[-1.5, 0.6], [-1.3, 0.8]]), target_entropy=target)
        assert loss.network.log.tolist() == pytest.approx(expected, abs=1e-6)
        assert float(loss.metrics["entropy_target/continuous"]) == -1.0


def test_temperature_stays_below_its_largest():
    loss = temperature_loss(CONTINUOUS, initial=1.5, largest=2.0, target={"continuous": 0.0})
    loss.backward(torch.tensor([[-9.0]]))
    loss.end_batch()
    assert float(loss.network.of("continuous")) == pytest.approx(2.0)
    loss.backward(torch.tensor([[1.0]]))
    loss.end_batch()
    assert float(loss.network.of("continuous")) == pytest.approx(2.0 / math.e)


@pytest.mark.parametrize(
    ("action", "targets"),
    [
        (LINE, [-0.99967]),
        (COIN, [0.325083]),
        (Discrete(3), [0.394398]),
        (MultiDiscrete(torch.tensor([2, 3]).numpy(), torch.zeros(2).long().numpy()), [0.325083 + 0.394398]),
        (Composite({"a": LINE, "b": LINE, "k": Discrete(4)}), [2 * -0.99967, 0.434944]),
    ],
)
def test_default_targets_are_the_golden_numbers(action, targets):
    assert temperature_loss(Spaces(LINE, action)).target.tolist() == pytest.approx(targets, abs=1e-5)


def test_given_targets_and_shares_come_first():
    loss = temperature_loss(MIXED, target={"continuous": None, "discrete": 0.2}, share={"continuous": 0.1})
    assert loss.target.tolist() == pytest.approx([math.log(0.2), 0.2], abs=1e-6)


def test_policy_every_delays_policy_and_temperature(tmp_path):
    overrides = ["algorithm=sac", "env=pendulum", "algorithm.dropout=0.5", "+callbacks.q_target.dropout=true"]
    numbers = ["algorithm.policy_every=3", "algorithm.warmup_steps=16", "algorithm.hidden=[8]", "stop.updates=8"]
    trainer = train([*overrides, *numbers, "evaluation.every=0"], run_dir=tmp_path / "run").trainer
    updates = {name: trainer.callbacks[name].updates for name in ("q_loss", "policy", "temperature")}
    assert updates == {"q_loss": 8, "policy": 2, "temperature": 2}
    target = trainer.callbacks["q_target"]
    with torch.no_grad():
        values = [target.target_network(torch.ones(4, 3), torch.ones(4, 1)) for _ in range(2)]
    assert not torch.equal(*values)
