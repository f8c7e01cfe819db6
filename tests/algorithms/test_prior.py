"""Priors over actions: their densities, and what soft actor-critic makes of them."""

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch

from rlrun import train
from rlrun.algorithms.actor_critic.prior import PolicyPrior, SameActionPrior, UniformPrior
from rlrun.algorithms.actor_critic.sac import SoftQTarget, TemperatureLoss
from rlrun.callbacks import SoftPolicyLoss
from rlrun.commands.check import check
from rlrun.core.errors import RequestError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.nn import Critics, Policy, Temperature

from .fixed import CONTINUOUS, DISCRETE, LINE, MANY, MIXED, column, critics_of, policy_of, sgd
from .runs import REPLAY

FLAGS = Box((3,), np.zeros(3, np.float32), np.ones(3, np.float32))
MASKED = Spaces(Composite({"line": LINE, "action_mask": FLAGS}), Discrete(3))
LOG_2, LOG_3 = math.log(2.0), math.log(3.0)
KL = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)  # of (1/4, 3/4) from even choices


def wide(size):
    return Spaces(LINE, Box((size,), np.full(size, -1.0, np.float32), np.full(size, 1.0, np.float32)))


def previous(*levels, known=True):
    return {"value": column(*levels), "known": torch.tensor([known] * len(levels))}


def near(value, mean, deviation):
    """Return the density of a normal distribution cut to [-1, 1]."""
    within = [0.5 * (1 + math.erf((end - mean) / deviation / math.sqrt(2))) for end in (-1.0, 1.0)]
    height = math.exp(-0.5 * ((value - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    return height / (within[1] - within[0])


@pytest.mark.parametrize("size", [1, 6])
def test_uniform_density_is_of_a_box(size):
    assert UniformPrior(wide(size))(torch.rand(2, size)).tolist() == pytest.approx([-math.log(2**size)] * 2)


def test_density_after_actions_is_a_mixture():
    log_prior = SameActionPrior(CONTINUOUS, share=0.7, deviation=0.25)(column(0.3, -0.9), previous(0.5, -0.8))
    expected = [0.3 * near(c, 0.0, 2.0) + 0.7 * near(c, mean, 0.5) for c, mean in ((0.3, 0.5), (-0.9, -0.8))]
    assert log_prior.tolist() == pytest.approx(np.log(expected).tolist(), abs=1e-5)


def test_density_of_all_actions_is_one():
    points = torch.linspace(-1, 1, 20_001)
    for before, known in ((0.9, True), (0.9, False)):
        rows = {"value": torch.full((20_001, 1), before), "known": torch.full((20_001,), known)}
        density = SameActionPrior(CONTINUOUS)(points.unsqueeze(-1), rows).exp()
        assert float(torch.trapezoid(density, points)) == pytest.approx(1.0, abs=1e-4)


def test_first_action_has_a_symmetric_prior():
    prior, ends = SameActionPrior(wide(2)), torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    before = {"value": torch.ones(2, 2), "known": torch.tensor([False, False])}
    begun = prior(ends, before)
    assert float(begun[0]) == pytest.approx(float(begun[1]), abs=1e-6)
    going_on = prior(ends, before | {"known": torch.tensor([True, True])})
    assert float(going_on[0] - begun[0]) == pytest.approx(2 * math.log(0.1), abs=1e-6)  # far from the action before
    assert float(going_on[1] - begun[1]) > 2.0


def networks_with(prior, *weights):
    """Return critics that say the same online and slow, a policy that plays 1/2 at log-density -1.5, and α 0.2."""
    critics = critics_of(CONTINUOUS, *[([[0.0], [weight]], [1.0]) for weight in weights])
    return critics, *policy_of(CONTINUOUS, critics, prior=prior)


@pytest.mark.usefixtures("no_noise")
def test_target_counts_the_prior_density():
    prior = SameActionPrior(CONTINUOUS)
    target = SoftQTarget(*networks_with(prior, 3.0, 4.0), discount=0.99)
    inputs = (column(1, 1), torch.ones(2), torch.tensor([False, True]))
    q_target = target.begin_batch(*inputs, next_previous=previous(0.4, 0.4))["q_target"].tolist()
    log_prior = math.log(0.1 * near(0.5, 0.0, 2.0) + 0.9 * near(0.5, 0.4, 0.2))
    assert q_target == pytest.approx([1 + 0.99 * (1.0 + 1.5 + 0.2 * (1.5 + log_prior)), 1.0], abs=1e-5)


@pytest.mark.usefixtures("no_noise")
def test_policy_follows_the_prior():
    critics, policy, temperature = networks_with(SameActionPrior(CONTINUOUS, share=0.999), 0.0)
    loss = SoftPolicyLoss(policy, sgd, critics=critics, temperature=temperature)
    before = previous(0.8)
    element, outputs, _ = loss.loss(column(0), before)
    log_prior = float(policy.prior(column(0.5), before))
    assert outputs["policy_entropy"].tolist() == [[pytest.approx(1.5 + log_prior, abs=1e-5)]]
    assert element.tolist() == pytest.approx([0.2 * (-1.5 - log_prior) - 1.0], abs=1e-5)
    loss.backward(column(0), before)
    assert float(policy.gaussian.mode(column(0)).detach()) > 0.5


def test_entropy_target_is_the_negative_divergence():
    spaces = wide(3)
    _, temperature = policy_of(CONTINUOUS, critics_of(CONTINUOUS, ([[0.0], [0.0]], [0.0])))
    loss = TemperatureLoss(temperature, sgd, spaces=spaces, divergence=3.0, target={"continuous": 7.0})
    assert loss.target.tolist() == [-9.0]


def test_choices_have_no_prior():
    before = {"value": {"level": column(0.1), "side": torch.tensor([1])}, "known": torch.tensor([True])}
    log_prior = SameActionPrior(MIXED)(column(0.1), before)
    assert float(log_prior) == pytest.approx(math.log(0.1 * near(0.1, 0.0, 2.0) + 0.9 * near(0.1, 0.1, 0.2)), abs=1e-5)


def test_numbers_that_were_not_done_before_are_uniform():
    """As for how many steps an action is repeated: the action before has one number, and c two."""
    log_prior = SameActionPrior(CONTINUOUS)(torch.tensor([[0.3, 0.9]]), previous(0.5))
    expected = math.log(0.1 * near(0.3, 0.0, 2.0) + 0.9 * near(0.3, 0.5, 0.2)) - LOG_2
    assert log_prior.tolist() == pytest.approx([expected], abs=1e-5)


def observed(*flags):
    return {"line": torch.zeros(len(flags), 1), "action_mask": torch.tensor(flags)}


def test_uniform_choices_are_those_that_are_allowed():
    assert UniformPrior(DISCRETE).choices(column(0)).tolist() == pytest.approx([-LOG_2] * 2)
    assert UniformPrior(MANY).choices(column(0)).tolist() == pytest.approx([-LOG_2] * 14)  # seven decisions
    assert UniformPrior(MIXED).choices(column(0)).tolist() == pytest.approx([-LOG_2] * 2)
    masked = UniformPrior(MASKED).choices(observed([0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0])).exp().tolist()
    assert masked == [pytest.approx(row) for row in ([0, 0.5, 0.5], [0, 0, 1], [1 / 3] * 3, [1 / 3] * 3)]


def test_divergence_of_choices_counts_in_values():
    """Choices are played by 1/4 and 3/4; the last step is terminated."""
    critics = critics_of(DISCRETE, ([[0.0, 0.0]], [1.0, 1.0 + 0.2 * LOG_3]))
    policy, temperature = policy_of(DISCRETE, critics, prior=UniformPrior(DISCRETE))
    inputs = (column(1, 1), torch.ones(2), torch.tensor([False, True]))
    q_target = SoftQTarget(critics, policy, temperature, discount=0.5).begin_batch(*inputs)["q_target"]
    assert q_target.tolist() == pytest.approx([1 + 0.5 * (1.0 + 0.75 * 0.2 * LOG_3 - 0.2 * KL), 1.0])


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize(
    ("spaces", "even"),
    [(DISCRETE, [[LOG_2]] * 2), (MIXED, [[LOG_2] * 2] * 2), (MANY, [[7 * LOG_2]] * 2), (MASKED, [[LOG_2], [LOG_3]])],
    ids=["discrete", "mixed", "many", "masked"],
)
def test_uniform_prior_takes_the_entropy_of_even_actions_off(spaces, even):
    """The policy stays; a mask allows two of three choices, and then three."""
    observation = observed([0, 1, 1], [1, 1, 1]) if spaces is MASKED else column(0.3, -0.4)
    critics, results = Critics(spaces, hidden=()), []
    for prior in (None, UniformPrior(spaces)):
        policy, temperature = policy_of(spaces, critics, alphas=(0.2,) * len(even[0]), prior=prior)
        results.append(SoftPolicyLoss(policy, sgd, critics=critics, temperature=temperature).loss(observation))
    torch.testing.assert_close(results[0][1]["policy_entropy"] - results[1][1]["policy_entropy"], torch.tensor(even))
    torch.testing.assert_close(results[1][0] - results[0][0], torch.full((2,), 0.2 * LOG_2 * (spaces is MIXED)))


@pytest.mark.parametrize(("spaces", "expected"), [(DISCRETE, 1), (MANY, 7), (MASKED, 1), (MIXED, 1)])
def test_divergence_of_choices_has_a_target(spaces, expected):
    """Of nine in ten for one choice of two, unless it is given; of a mask as for one decision between two."""
    temperature, entropy = Temperature(spaces), -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    options = {"spaces": spaces, "divergence": 3.0}
    assert float(TemperatureLoss(temperature, sgd, **options).target[-1]) == pytest.approx(expected * entropy)
    options["choice_prior"] = True
    assert float(TemperatureLoss(temperature, sgd, **options).target[-1]) == pytest.approx(expected * (entropy - LOG_2))
    assert float(TemperatureLoss(temperature, sgd, target={"discrete": -0.5}, **options).target[-1]) == -0.5


def prior_of(spaces, *rows):
    """Return a policy whose distribution has these parameters, times the observation."""
    network = Policy(spaces, hidden=())
    with torch.no_grad():
        network.head.layer.weight.copy_(column(*rows))
        network.head.layer.bias.zero_()
    return network


def test_policy_prior_sees_the_observation():
    network = prior_of(MIXED, math.atanh(0.5), 0.0, 0.0, LOG_3)  # mean, log_std, and two choices
    critics = critics_of(MIXED, ([[0.0, 0.0], [0.0, 0.0]], [0.3, 0.0]))
    policy, _ = policy_of(MIXED, critics, alphas=(0.2, 0.2), prior=PolicyPrior(network))
    log_prior = policy.prior(column(0.5, 0.5), None, column(1, 0))
    peak = -0.5 * math.log(2 * math.pi) - math.log(0.75)
    assert log_prior.tolist() == pytest.approx([peak, peak - 0.5 * math.atanh(0.5) ** 2])
    assert policy.prior.choices(column(1)).exp().tolist() == [pytest.approx([0.25, 0.75])]
    equal = torch.zeros(1, 2, 2)
    with patch.object(network, "heads", wraps=network.heads) as heads:
        choices, less_prior = policy.choices(equal, column(1, 0))
    assert heads.call_count == 1
    torch.testing.assert_close(choices.exp(), torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    assert less_prior.abs().max() < 1e-6
    assert policy.act(column(1, 2), explore=False)["side"].tolist() == [0, 1]  # 0.3 against 0.2 log 3, and twice that
    assert not {*policy.modules()} & {network, policy.prior}
    assert [*policy.prior.state_dict()] == []


@pytest.mark.usefixtures("no_noise")
def test_policy_moves_to_a_policy_prior_that_stays():
    network = prior_of(CONTINUOUS, math.atanh(0.8), -2.0)
    before = [parameter.clone() for parameter in network.parameters()]
    critics, policy, temperature = networks_with(PolicyPrior(network), 0.0)
    loss = SoftPolicyLoss(policy, sgd, critics=critics, temperature=temperature)
    _, outputs, _ = loss.loss(column(1))
    log_prior = policy.prior(column(0.5), None, column(1)).tolist()
    assert outputs["policy_entropy"].tolist() == [[pytest.approx(1.5 + log_prior[0])]]
    loss.backward(column(1))
    assert float(policy.gaussian.mode(column(1)).detach()) > 0.5
    assert all(map(torch.equal, before, network.parameters()))


@pytest.mark.parametrize("prior", ["uniform_prior", "policy_prior"])
def test_priors_of_repeated_actions(prior, tmp_path):
    overrides = ["algorithm=action_repeat", "env=pendulum", f"+with={prior}", *REPLAY]
    trainer = train(overrides, run_dir=tmp_path / "run").trainer
    policy = trainer.callbacks["policy"].policy
    assert policy.prior.branches == policy.codec.branches == (5,)
    assert policy.prior.choices(torch.zeros(1, 3)).exp().sum(-1).flatten().tolist() == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("algorithm=taac", "+with=uniform_prior"), r"^networks\.policy\.prior: \S+SwitchingPolicy takes no argument"),
        (
            ("algorithm=taac", "+with=same_action_prior"),
            r"^memory\.columns\..*, and algorithm=taac lacks it",
        ),
        (("algorithm=mdq", "+with=policy_prior"), r"^networks\.policy\.prior: \S+BinPolicy takes no argument 'prior'"),
        (
            ("algorithm=seditor", "+with=uniform_prior", "lagrangian.thresholds=[null,0]"),
            r"^callbacks\.temperature: \+with=uniform_prior needs it, and algorithm=seditor lacks it",
        ),
    ],
)
def test_algorithms_without_a_prior_say_so(overrides, message):
    with pytest.raises(RequestError, match=message):
        check([*overrides, "env=pendulum"])
