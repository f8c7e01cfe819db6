"""What is written is read, the least used slot goes first, and gradients come through reads alone."""

import pytest
import torch

from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import Spaces
from rlrun.nn import ActorCritic, ExternalMemory, MemoryCore
from rlrun.nn.external_memory import Reader

from .spaces_for_tests import ACTIONS, VECTOR
from .test_recurrent import B, F, T, ended_at, gradients, step_by_step

SPACES = Spaces(VECTOR, next(iter(ACTIONS.values())))
SHARP = torch.full((1, 1), 200.0)


def empty(memory, rows=1):
    return {name: torch.zeros(rows, *shape) for name, shape in memory.shapes.items()}


def filled(memory, values):
    state = empty(memory)
    for value in values:
        state = memory.write(state, value[None])
    return state


def test_what_was_written_is_read():
    memory, values = ExternalMemory(4, 3, decay=1.0), torch.eye(3) * torch.tensor([1.0, -2.0, 3.0])
    state = filled(memory, values)
    assert torch.equal(state["content"][0], torch.cat((values, torch.zeros(1, 3))))
    for value in values:
        found, weights, _ = memory.read(state, value[None, None], SHARP)
        torch.testing.assert_close(found[0, 0], value)
        assert weights.max() == 1.0


def test_weights_are_a_softmax_of_cosines_and_add_to_usage():
    memory = ExternalMemory(3, 2, decay=1.0)
    state = filled(memory, torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    found, weights, after = memory.read(state, torch.tensor([[[3.0, 0.0], [0.0, -1.0]]]))  # strengths of 5
    wanted = (5.0 * torch.tensor([[1.0, 0.5**0.5, 0.0], [0.0, -(0.5**0.5), 0.0]])).softmax(-1)
    torch.testing.assert_close(weights[0], wanted)
    torch.testing.assert_close(found[0], wanted @ state["content"][0])
    torch.testing.assert_close(after["usage"][0], torch.tensor([1.0, 1.0, 0.0]) + wanted.sum(0))
    assert torch.equal(after["content"], state["content"])


def test_the_least_used_slot_is_overwritten_and_others_decay():
    memory = ExternalMemory(2, 1)  # decays by 1/2
    state = filled(memory, torch.tensor([[8.0], [4.0]]))
    assert state["content"].flatten().tolist() == [4.0, 4.0]
    state["usage"] = torch.tensor([[1.5, 1.25]])
    state = memory.write(state, torch.tensor([[1.0]]))
    assert state["content"].flatten().tolist() == [2.0, 1.0]
    assert state["usage"].tolist() == [[1.5, 2.25]]


def test_each_environment_has_a_memory_of_its_own():
    memory = ExternalMemory(3, 2)
    state = empty(memory, 2)
    state["usage"][1, 0] = 1.0
    state = memory.write(state, torch.ones(2, 2))
    assert state["content"].sum(-1).tolist() == [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]


def test_later_values_are_written_to_earlier_slots():
    memory = ExternalMemory(3, 1, decay=1.0, retroactive=0.5)
    state = filled(memory, torch.tensor([[1.0], [10.0], [100.0]]))
    # slot 0: 1/2 of the next value, 1/4 of the one after; slot 1: 1/2 of the last
    assert state["content"][0].tolist() == [[1.0, 30.0], [10.0, 50.0], [100.0, 0.0]]
    assert state["trace"].tolist() == [[0.125, 0.25, 0.5]]


def test_gradients_come_through_reads_alone():
    memory, value = ExternalMemory(3, 2), torch.tensor([[1.0, 2.0]], requires_grad=True)
    state = memory.write(empty(memory), value)
    assert not state["usage"].requires_grad
    key = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    found, _, after = memory.read(state, key)
    assert not after["usage"].requires_grad
    assert all(gradient.abs().sum() > 0.0 for gradient in torch.autograd.grad(found.sum(), (key, value)))
    unread = memory.write(after, torch.zeros(1, 2))["usage"]
    assert not unread.requires_grad


def test_a_reader_begins_with_the_strength_of_keys_without_one():
    memory = ExternalMemory(3, 2)
    reader = Reader(memory, 4, 2)
    state = filled(memory, torch.randn(2, 2))
    found, weights, _ = reader(torch.zeros(1, 4), state)  # keys of zeros
    assert found.shape == (1, 4)
    torch.testing.assert_close(weights, torch.full((1, 2, 3), 1 / 3))
    assert reader.layer.bias.tolist() == [0.0] * 4 + [5.0] * 2


@pytest.mark.parametrize("retroactive", [None, 0.9])
@pytest.mark.parametrize("places", [[], [(0, 6), (1, 2), (1, 3)]])
def test_a_window_equals_its_steps(places, retroactive):
    torch.manual_seed(1)
    core, episode_end = MemoryCore(F, 4, slots=3, width=2, keys=2, retroactive=retroactive), ended_at(places)
    features = torch.randn(B, T, F, requires_grad=True)
    state = torch.rand(B, core.state_size, requires_grad=True)
    wanted, output = step_by_step(core, features, state, episode_end), core(features, state, episode_end)
    torch.testing.assert_close(output, wanted)
    pairs = zip(gradients(core, output, features, state), gradients(core, wanted, features, state), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected)


def test_an_episode_begins_with_an_empty_memory():
    torch.manual_seed(1)
    core = MemoryCore(F, 4, slots=3, width=2)
    features = torch.randn(B, T, F)
    within = core(features, torch.rand(B, core.state_size), ended_at([(b, 3) for b in range(B)]))
    torch.testing.assert_close(within[:, 4:], core(features[:, 4:], None))


def test_recurrent_networks_take_it():
    network = ActorCritic(SPACES, hidden=(8,), core=MemoryCore, core_size=5)
    state = network.initial_state(2)
    _, after = network.advance(torch.zeros(2, *VECTOR.shape), state)
    assert after.shape == state.shape == (2, network.state_size)


def test_what_has_no_meaning_is_refused():
    for options, message in (
        ({"slots": 0}, "slots: wanted a whole number from 1, got 0"),
        ({"decay": 1.5}, "decay: wanted a number from 0 to 1, got 1.5"),
        ({"retroactive": -1.0}, "retroactive: wanted a number from 0 to below 1, got -1.0"),
        ({"retroactive": 1.0}, "retroactive: wanted a number from 0 to below 1, got 1.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            ExternalMemory(**{"slots": 2, "width": 2, **options})
    with pytest.raises(RequestError):
        MemoryCore(F, 4)(torch.zeros(B, F), None)
    with pytest.raises(ConfigError, match=r"algorithm\.recurrent: a Linear has no 'size'"):
        ActorCritic(SPACES, core=lambda inputs, size: torch.nn.Linear(inputs, size))
