import copy

import pytest
import torch

from rlrun.core.spaces import Discrete, Spaces
from rlrun.nn import Bins, Critics, Follow, Value, frozen_copy

from .spaces_for_tests import ACTIONS, OBSERVATIONS, VECTOR, box, draw


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
