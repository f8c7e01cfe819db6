"""Critics, their value heads, values by two streams, and networks that follow others."""

import copy
import math

import pytest
import torch
from tests.algorithms.fixed import fill

from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Discrete, Spaces
from rlrun.nn import Bins, Critics, Follow, Quantiles, Value, frozen_copy, value_head_of
from rlrun.training.metrics import MetricStore

from .spaces_for_tests import ACTIONS, MIXED, OBSERVATIONS, VECTOR, box, draw, multi


def critics(action, observation=VECTOR, **options):
    torch.manual_seed(0)
    return Critics(Spaces(observation, action), **{"hidden": (16, 16), **options})


@pytest.mark.parametrize(
    ("observation", "action"), [*((name, "mixed") for name in OBSERVATIONS), *(("vector", name) for name in ACTIONS)]
)
def test_every_space_has_values(observation, action):
    space = OBSERVATIONS[observation][0]
    network = critics(ACTIONS[action], space, hidden=(8,))
    c, _ = network.codec.split(draw(ACTIONS[action], 2, 3))
    tail = (network.codec.width,) if network.codec.discrete else ()
    assert network(draw(space, 2, 3), c).shape == (2, 2, 3, *tail)


def test_gradients_reach_action_and_all_members():
    network, c = critics(box(2)), draw(box(2), 5).requires_grad_()
    network(draw(VECTOR, 5), c).square().sum().backward()
    assert c.grad.abs().sum() > 0
    assert all(member.abs().sum() > 0 for parameter in network.parameters() for member in parameter.grad)


def test_one_encoder_serves_all_members():
    network = critics(Discrete(2), OBSERVATIONS["small pixels"][0], members=3)
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in network.modules()) == 2


def test_doubled_values_are_double_precision():
    observation, _ = OBSERVATIONS["camera and speed"]
    network = critics(box(2), observation, layer_norm=True, value_head=Bins(11, least=-1.0, largest=1.0))
    seen, c = draw(observation, 5), torch.rand(5, 2)
    layers = copy.deepcopy(network.layers).double()
    logits = layers(torch.cat((network.encoder(seen), c), -1).double())  # [2, 5, 11]
    torch.testing.assert_close(network.doubled(seen, c), network.value_head.mean(logits), atol=1e-12, rtol=0.0)
    torch.testing.assert_close(network.doubled(seen, c), network(seen, c).double(), atol=1e-5, rtol=0.0)


def test_exported_critics_take_any_batch():
    network, batch = critics(Discrete(3)), torch.export.Dim("batch", min=2, max=100_000)
    program = torch.export.export(network, (draw(VECTOR, 5),), dynamic_shapes=({0: batch},))
    observation = draw(VECTOR, 20_000)
    torch.testing.assert_close(program.module()(observation), network(observation))


def test_value_is_one_number_a_row():
    assert Value(Spaces(VECTOR, Discrete(2)))(draw(VECTOR, 5, 2)).shape == (5, 2)


def test_target_network_moves_by_tau():
    fast, slow = torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(1)
    follow = Follow(slow, fast)
    torch.nn.init.constant_(fast.weight, 3.0)
    fast.running_mean.fill_(7.0)
    fast.num_batches_tracked.fill_(2)
    follow.move(0.25)
    assert [slow.weight.tolist(), slow.running_mean.tolist(), slow.num_batches_tracked.tolist()] == [[1.5], [7.0], 2]


def test_following_begins_with_a_copy():
    fast = critics(box(2))
    other = critics(box(2), init="orthogonal")
    Follow(other, fast)
    for slow in (other, frozen_copy(fast)):
        assert all(torch.equal(a, b) and a is not b for a, b in zip(slow.parameters(), fast.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in slow.parameters())


# --- value heads


def bins(count=5, least=0.0, largest=5.0, **options):
    return Bins(count, least=least, largest=largest, **options)


@pytest.mark.parametrize("value_head", [Quantiles(5), bins()], ids=["quantiles", "bins"])
@pytest.mark.parametrize(
    ("action", "width"), [(box(2), ()), (Discrete(4), (4,)), (MIXED, (24,))], ids=["box", "discrete", "mixed"]
)
def test_values_are_means_of_outputs(action, width, value_head):
    network = critics(action, value_head=value_head)
    c, _ = network.codec.split(draw(action, 3))
    observation = draw(VECTOR, 3)
    outputs = network.raw_output(observation, c)
    assert outputs.shape == (2, 3, *width, 5)
    means = outputs.mean(-1) if isinstance(value_head, Quantiles) else outputs.softmax(-1) @ torch.arange(0.5, 5.0)
    torch.testing.assert_close(network(observation, c), means)


def test_plain_network_has_scalar_outputs():
    network = torch.nn.Linear(1, 2)
    function, value_head = value_head_of(network)
    assert (function, value_head.size) == (network, 1)


@pytest.mark.parametrize("action", [Discrete(3), multi(8, 9), multi(7, 7, 7)], ids=["one", "several", "alike"])
def test_mean_of_a_choice_is_value(action):
    network = critics(action, quantiles=6)
    observation, k = draw(VECTOR, 3), network.codec.choices(draw(action, 3))
    quantiles = network.value_head.select(network.raw_output(observation), k, network.codec)
    assert quantiles.shape == (2, 3, 6)
    torch.testing.assert_close(quantiles.mean(-1), network.codec.select(network(observation), k))


def test_distance_of_bins_is_cross_entropy():
    value_head = bins(count=2, least=0.0, largest=2.0, smoothing=1.0)  # deviation 1
    logits = torch.tensor([[[0.0, math.log(3.0)]], [[0.0, 0.0]]])  # two members: (1/4, 3/4), (1/2, 1/2)
    losses = value_head.distance(logits, torch.tensor([1.0]), huber=None)  # from the middle both bins have a half
    assert losses.flatten().tolist() == pytest.approx([-0.5 * math.log(3 / 16), math.log(2.0)], abs=1e-5)
    inner, outer = (0.5 * math.erf(x / math.sqrt(2.0)) for x in (1.0, 2.0))
    losses = value_head.distance(logits, torch.tensor([9.0]), huber=None)  # counts as 2: what is left within 1 and 2
    wanted = -(inner * math.log(0.75) + (outer - inner) * math.log(0.25)) / outer
    assert losses.flatten().tolist() == pytest.approx([wanted, math.log(2.0)], abs=1e-5)


def test_clamped_targets_are_a_metric():
    store = MetricStore()
    store.put(bins().metrics(torch.tensor([-1.0, 0.0, 5.0, 6.0, 7.0])))
    assert float(store.read()["target/clamped"]) == pytest.approx(0.6)


def test_dueling_adds_centered_advantages():
    network = critics(Discrete(3), members=1, hidden=(), dueling=True, quantiles=2)
    fill(network.layers.value.layers[0], 10.0, 20.0)
    fill(network.layers.advantage.layers[0], 1.0, 0.0, 2.0, 0.0, 6.0, 3.0)
    # first quantile: 10 + (1, 2, 6) - 3; second: 20 + (0, 0, 3) - 1
    assert network.raw_output(draw(VECTOR, 1))[0, 0].tolist() == [[8.0, 19.0], [9.0, 19.0], [13.0, 22.0]]


@pytest.mark.parametrize("action", [multi(8, 9), multi(7, 7, 7), MIXED], ids=["branches", "alike", "mixed"])
def test_advantages_are_centered_by_branch(action):
    network = critics(action, dueling=True)
    c, _ = network.codec.split(draw(action, 3))
    observation = draw(VECTOR, 3)
    values, features, start = network(observation, c), network.encoder(observation), 0
    alone = network.layers.value(features if c is None else torch.cat((features, c), -1)).squeeze(-1)
    for choices in network.codec.branches:
        branch, start = values[..., start : start + choices], start + choices
        torch.testing.assert_close(branch.mean(-1), alone / len(network.codec.branches))


def test_quantiles_learn_from_row_means():
    losses = Quantiles(5).distance(torch.zeros(2, 3, 5), torch.tensor([0.0, 0.0, 100.0]), huber=1.0)
    expected = torch.tensor([0.0, 0.0, 49.75]).expand(2, 3)  # shares of 1/2 on average, of 100 - 1/2
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: bins(count=1), ConfigError, "^bins: wanted at least 2, least < largest and smoothing > 0"),
        (lambda: bins(least=5.0), ConfigError, "^bins: wanted at least 2, least < largest and smoothing > 0"),
        (lambda: bins(smoothing=0.0), ConfigError, "^bins: wanted at least 2, least < largest and smoothing > 0"),
        (lambda: critics(multi(8, 9), value_head=bins()), SpaceError, r"adds up over 2 \(remove \+with=hlgauss"),
        (
            lambda: critics(box(2), value_head=bins(), quantiles=8),
            ConfigError,
            "8 quantiles of a return or bins, not both",
        ),
        (lambda: critics(box(2), dueling=True), SpaceError, r"^dueling is for values of choices; .* Box\[2\]"),
    ],
)
def test_bad_settings_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_bins_serve_joint_choices():
    assert critics(multi(8, 8), value_head=bins()).codec.joint
