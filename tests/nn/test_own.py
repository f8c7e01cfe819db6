"""Plain modules in the place of a packaged network's layers: what they get, and what becomes of their outputs."""

from functools import partial

import pytest
import torch
from torch import nn

from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Discrete, Spaces
from rlrun.nn import ActorCritic, Critics, DeterministicPolicy, Policy, SoftPolicy, SquashedGaussian, Temperature
from rlrun.nn.value_heads import Quantiles

from .spaces_for_tests import MIXED, VECTOR, box, draw

ACTION = box(2)


class Rows(nn.Module):
    """Sums of its inputs, each times the number of its output; it refuses inputs that are not rows."""

    def __init__(self, outputs, first=0.0, tanh=False):
        super().__init__()
        self.scale = nn.Parameter(torch.arange(outputs) + first)
        self.tanh = tanh

    def forward(self, *inputs):
        assert all(value.dim() == 2 for value in inputs)
        values = torch.cat(inputs, -1).sum(-1, keepdim=True) * self.scale
        return values.tanh() if self.tanh else values


class Pair(nn.Module):
    """Policy and value as a tuple, the value without a last dimension."""

    def __init__(self, outputs):
        super().__init__()
        self.policy, self.critic = Rows(outputs, 1.0), Rows(1, 7.0)

    def forward(self, observation):
        return self.policy(observation), self.critic(observation).squeeze(-1)


@pytest.mark.parametrize("lead", [(3,), (3, 4)])
def test_critics_get_rows_of_observation_and_action(lead):
    network = Critics(Spaces(VECTOR, ACTION), layers=partial(Rows, 1, first=2.0), members=3)
    seen, c = draw(VECTOR, *lead), draw(ACTION, *lead)
    values = network(seen, c)
    torch.testing.assert_close(values, (2.0 * (seen.sum(-1) + c.sum(-1))).expand(3, *lead))
    assert len({parameter.data_ptr() for parameter in network.parameters()}) == 3


def test_values_of_choices_are_outputs():
    network = QNetwork(Spaces(VECTOR, Discrete(3)), layers=partial(Rows, 3, first=-1.0))
    seen = torch.tensor([[1.0] * 4, [-1.0] * 4]).expand(2, 4)[:, : VECTOR.shape[0]]
    assert network(seen)[0].argmax(-1).tolist() == network.act(seen).tolist() == [2, 0]


def test_quantiles_are_outputs_too():
    with pytest.raises(ConfigError, match=r"Rows gives \[B, 3\], wanted \[B, 12\] \(choices × 4 numbers each\)"):
        Critics(Spaces(VECTOR, Discrete(3)), layers=partial(Rows, 3), value_head=Quantiles(4))
    network = Critics(Spaces(VECTOR, Discrete(3)), layers=partial(Rows, 12), value_head=Quantiles(4))
    assert network.raw_output(draw(VECTOR, 5)).shape == (2, 5, 3, 4)


def test_one_module_is_one_member():
    with pytest.raises(ConfigError, match="one module cannot be 2 members"):
        Critics(Spaces(VECTOR, ACTION), layers=Rows(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": partial(nn.Flatten)}, "remove encoder=…"),
        ({"core": "gru"}, "remove algorithm.recurrent"),
        ({"dueling": True}, "remove algorithm.dueling"),
    ],
)
def test_options_of_layers_that_are_replaced_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        QNetwork(Spaces(VECTOR, Discrete(3)), layers=partial(Rows, 3), **options)


@pytest.mark.parametrize(
    ("network", "actions", "outputs", "read"),
    [
        (Policy, box(1), 1, "1 means and 0 logits; 1 log_std of its own"),
        (Policy, box(1), 2, "1 means, 1 log_std and 0 logits"),
        (ActorCritic, box(1), 2, "1 means and 0 logits, then 1 of value; 1 log_std of its own"),
        (ActorCritic, box(1), 3, "1 means, 1 log_std and 0 logits, then 1 of value"),
        (ActorCritic, Discrete(3), 4, "0 means and 3 logits, then 1 of value"),
    ],
)
def test_a_policy_says_how_it_reads_outputs(network, actions, outputs, read):
    policy = network(Spaces(VECTOR, actions), layers=partial(Rows, outputs))
    assert policy.outputs == f"outputs [B, {outputs}] are {read}"


def test_a_gaussian_has_mean_and_log_std_in_this_order():
    gaussian = SquashedGaussian(Spaces(VECTOR, ACTION), layers=partial(Rows, 4))
    seen = draw(VECTOR, 5)
    mean, log_std = gaussian.normal(seen)
    total = seen.sum(-1)
    torch.testing.assert_close(mean, torch.stack((0 * total, total), -1))
    torch.testing.assert_close(log_std, torch.stack((2 * total, 3 * total), -1).clamp(-20.0, 2.0))


def test_a_deterministic_policy_is_not_squashed_twice():
    policy = DeterministicPolicy(Spaces(VECTOR, ACTION), layers=partial(Rows, 2, tanh=True))
    seen = draw(VECTOR, 5)
    torch.testing.assert_close(policy(seen)[:, 1], seen.sum(-1).tanh())
    with pytest.raises(ConfigError, match=r"wanted \[-1, 1\]"):
        DeterministicPolicy(Spaces(VECTOR, ACTION), layers=partial(Rows, 2))


@pytest.mark.parametrize(("outputs", "free"), [(2, True), (4, False)])
def test_a_policy_has_log_std_of_its_own_or_of_the_module(outputs, free):
    policy = Policy(Spaces(VECTOR, ACTION), layers=partial(Rows, outputs))
    seen = draw(VECTOR, 3, 4)
    heads = policy.heads(seen)
    assert heads.mean.shape == heads.log_std.shape == (3, 4, 2)
    torch.testing.assert_close(heads.mean[..., 1], seen.sum(-1))
    assert (policy.head.log_std is not None) == free
    if not free:
        torch.testing.assert_close(heads.log_std[..., 0], (2 * seen.sum(-1)).clamp(-20.0, 2.0))


def test_policy_and_value_come_from_one_module():
    network = ActorCritic(Spaces(VECTOR, Discrete(3)), layers=partial(Pair, 3))
    seen = draw(VECTOR, 3, 4)
    torch.testing.assert_close(network.value(seen), 7.0 * seen.sum(-1))
    evaluated = network.evaluate_actions(seen, torch.ones(3, 4, dtype=torch.long))
    logits = seen.sum(-1, keepdim=True) * torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(evaluated.log_prob, logits.log_softmax(-1)[..., 1])
    torch.testing.assert_close(evaluated.value, network.value(seen))


def test_mixed_actions_have_means_then_logits():
    network = ActorCritic(Spaces(VECTOR, MIXED), layers=lambda: Pair(sum(network_widths())))
    heads = network.heads(draw(VECTOR, 5))
    count, width = network_widths()
    assert heads.mean.shape == (5, count)
    assert heads.choices.shape == (5, width)


def network_widths():
    codec = Policy(Spaces(VECTOR, MIXED)).codec
    return codec.continuous, codec.width


def test_a_soft_policy_over_choices_has_no_layers():
    spaces = Spaces(VECTOR, Discrete(2))
    critics = Critics(spaces)
    with pytest.raises(ConfigError, match="softmax of the critics"):
        SoftPolicy(spaces, critics, Temperature(spaces), layers=partial(Rows, 2))


class Flipped(Pair):
    """Value and policy, in the wrong order."""

    def forward(self, observation):
        return self.critic(observation), self.policy(observation)


class Turned(nn.Module):
    """Outputs [F, B] in place of [B, F], which look right for a batch of F."""

    def __init__(self, outputs):
        super().__init__()
        self.layer = nn.LazyLinear(outputs)

    def forward(self, *inputs):
        return self.layer(torch.cat(inputs, -1)).T


class Gives(nn.Module):
    """Something of each observation."""

    def __init__(self, change):
        super().__init__()
        self.change, self.layer = change, nn.LazyLinear(2)

    def forward(self, observation):
        return self.change(self.layer(observation))


def test_policy_and_value_in_the_wrong_order_are_refused():
    with pytest.raises(ConfigError, match=r"Flipped gives outputs of widths \[1, 2\], wanted 1 as the last one"):
        ActorCritic(Spaces(VECTOR, Discrete(2)), layers=partial(Flipped, 2))


@pytest.mark.parametrize(
    "network",
    [
        lambda: QNetwork(Spaces(VECTOR, Discrete(2)), layers=partial(Turned, 2)),
        lambda: Critics(Spaces(VECTOR, Discrete(2)), layers=partial(Turned, 2)),
        lambda: Policy(Spaces(VECTOR, Discrete(2)), layers=partial(Turned, 2)),
        lambda: SquashedGaussian(Spaces(VECTOR, box(1)), layers=partial(Turned, 2)),
    ],
)
def test_turned_outputs_are_refused(network):
    with pytest.raises(ConfigError, match=r"Turned gives \[2, 3\] of 3 rows, wanted \[3, F\]"):
        network()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: None, "gives a NoneType, wanted a tensor"),
        (lambda rows: rows.detach().numpy(), "gives a ndarray, wanted a tensor"),
        (lambda rows: (rows, rows), "gives a tuple, wanted a tensor"),
        (lambda rows: rows.sum(), "gives \\[\\] of 2 rows"),
    ],
)
def test_other_outputs_are_named(change, message):
    with pytest.raises(ConfigError, match=f"Gives {message}"):
        QNetwork(Spaces(VECTOR, Discrete(2)), layers=partial(Gives, change))


def test_double_outputs_become_what_networks_compute_in():
    network = QNetwork(Spaces(VECTOR, Discrete(2)), layers=partial(Gives, torch.Tensor.double))
    assert network(draw(VECTOR, 5)).dtype == torch.float32


class Normalized(nn.Module):
    """Batch norm below a dense layer and a tanh."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs)

    def forward(self, *inputs):
        return self.layer(self.norm(torch.cat(inputs, -1))).tanh()


@pytest.mark.parametrize(
    "network",
    [
        lambda: QNetwork(Spaces(VECTOR, Discrete(3)), layers=partial(Normalized, VECTOR.size, 3)),
        lambda: Critics(Spaces(VECTOR, ACTION), members=2, layers=partial(Normalized, VECTOR.size + 2, 1)),
        lambda: DeterministicPolicy(Spaces(VECTOR, ACTION), layers=partial(Normalized, VECTOR.size, 2)),
        lambda: Policy(Spaces(VECTOR, ACTION), layers=partial(Normalized, VECTOR.size, 4)),
    ],
)
def test_statistics_begin_with_training(network):
    parts = [*network().modules()]
    norms = [part for part in parts if isinstance(part, nn.BatchNorm1d)]
    assert norms
    assert all(norm.num_batches_tracked == 0 and norm.training for norm in norms)
    assert all(part.training for part in parts)


def test_a_module_that_wants_rows_learns_that_a_state_is_a_number():
    with pytest.raises(ConfigError, match=r"number, int64 \[B\], for torch\.nn\.Embedding or one_hot"):
        QNetwork(Spaces(Discrete(5), Discrete(3)), layers=partial(nn.Linear, 5, 3))


def test_twins_in_one_module_are_refused_with_the_way_to_have_two():
    with pytest.raises(ConfigError, match=r"gives a tuple, wanted a tensor .*`members` makes several"):
        Critics(Spaces(VECTOR, ACTION), members=2, layers=lambda: Twins(VECTOR.size + 2))


class Twins(nn.Module):
    """Both values of a pair of critics."""

    def __init__(self, inputs):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 1), nn.Linear(inputs, 1)

    def forward(self, observation, action):
        row = torch.cat([observation, action], -1)
        return self.first(row), self.second(row)
