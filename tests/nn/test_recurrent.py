"""A window at once is the same as step by step, whatever ends inside, and so are its gradients."""

import pytest
import torch

from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import Spaces, leaves_of
from rlrun.nn import ActorCritic, Core, Policy

from .spaces_for_tests import ACTIONS, OBSERVATIONS, VECTOR, draw

KINDS = ("gru", "lstm")
B, T, F, H = 5, 7, 3, 4
ENDS = {
    "nowhere": [],
    "at the last row": [(0, 6), (3, 6)],
    "once": [(2, 3)],
    "in every row": [(b, t) for b in range(B) for t in range(T)],
    "here and there": [(0, 0), (0, 1), (1, 5), (3, 2), (3, 4), (3, 6), (4, 3)],
}


def ended_at(places):
    episode_end = torch.zeros(B, T, dtype=torch.bool)
    for place in places:
        episode_end[place] = True
    return episode_end


def core_of(kind, inputs=F):
    torch.manual_seed(1)
    return Core(kind, inputs, H)


def step_by_step(core, features, state, episode_end):
    """Go through windows as an agent does: the state is that of an episode that begins behind each end."""
    outputs = []
    for t in range(features.shape[1]):
        output, state = core.step(features[:, t], state)
        outputs.append(output)
        state = torch.where(episode_end[:, t, None], torch.zeros_like(state), state)
    return torch.stack(outputs, 1)


def gradients(core, output, *inputs):
    loss = (output * torch.linspace(-1.0, 1.0, output.numel()).view_as(output)).sum()
    return torch.autograd.grad(loss, [*core.parameters(), *inputs])


@pytest.mark.parametrize("places", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_window_equals_its_steps(kind, places):
    core, episode_end = core_of(kind), ended_at(places)
    features = torch.randn(B, T, F, requires_grad=True)
    state = torch.randn(B, core.state_size, requires_grad=True)  # a window that begins within an episode
    wanted, output = step_by_step(core, features, state, episode_end), core(features, state, episode_end)
    torch.testing.assert_close(output, wanted, atol=1e-6, rtol=1e-5)
    pairs = zip(gradients(core, output, features, state), gradients(core, wanted, features, state), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_remembered_beyond_ends(kind):
    core, episode_end = core_of(kind), ended_at([(1, 3)])
    features = torch.randn(B, T, F, requires_grad=True)
    core(features, torch.zeros(B, core.state_size), episode_end)[1, 4:].sum().backward()
    reached = features.grad.abs().sum(-1) > 0
    assert reached.nonzero().tolist() == [[1, 4], [1, 5], [1, 6]]


def test_a_gru_step_is_the_equation():
    core = core_of("gru")
    x, h = torch.randn(2, F), torch.randn(2, H)
    weight, recurrent, bias, bias_h = core.layer.all_weights[0]
    (a, b, c), (d, e, f) = (weight.mul(1).mm(x.T).T + bias).chunk(3, -1), (recurrent.mm(h.T).T + bias_h).chunk(3, -1)
    reset, update = (a + d).sigmoid(), (b + e).sigmoid()
    wanted = (1 - update) * (c + reset * f).tanh() + update * h
    torch.testing.assert_close(core.step(x, h)[1], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_gates_begin_inclined_to_remember(kind):
    _, _, bias, bias_h = core_of(kind).layer.all_weights[0]
    assert bias.view(-1, H)[:, 0].tolist() == [0.0, 1.0] + [0.0] * (1 if kind == "gru" else 2)
    assert not bias_h.any()


@pytest.mark.parametrize("features", [(2, F), (2, 1, F)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_without_state_are_refused(kind, features):
    with pytest.raises(RequestError, match=r"needs the state before a step, .* memory\.columns\.state\.shape"):
        core_of(kind)(torch.zeros(features), None)


def test_windows_without_state_begin_episodes():
    core, features = core_of("lstm"), torch.randn(B, T, F)
    torch.testing.assert_close(core(features, None), core(features, torch.zeros(B, core.state_size)))


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"core: wanted one of gru, lstm, got 'gro' \(did you mean 'gru'\?\)"):
        Core("gro", 3, 4)


# --- networks


def network_of(kind, spaces=None, **options):
    torch.manual_seed(2)
    spaces = spaces or Spaces(VECTOR, ACTIONS["mixed"])
    return ActorCritic(spaces, hidden=(8,), core=kind, core_size=H, output_gain=1.0, **options)


def evaluated_by_steps(network, observation, action, state, episode_end, pick):
    steps = []
    for t in range(T):
        at = pick(t)
        evaluated = network.evaluate_actions(at(observation), at(action), state)
        torch.testing.assert_close(network.value(at(observation), state), evaluated.value)
        steps.append((evaluated.log_prob, evaluated.value))
        state = network.after(at(observation), state)
        state = torch.where(episode_end[:, t, None], network.initial_state(B), state)
    return [torch.stack(column, 1) for column in zip(*steps, strict=True)]


def rows_at(t):
    def pick(tree):
        return {name: pick(part) for name, part in tree.items()} if isinstance(tree, dict) else tree[:, t]

    return pick


SPACES = [*((name, "mixed") for name in OBSERVATIONS if "pixels" not in name), *(("vector", name) for name in ACTIONS)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("seen", "acted"), SPACES)
def test_every_space_has_recurrent_windows(seen, acted, shared):
    spaces = Spaces(OBSERVATIONS[seen][0], ACTIONS[acted])
    network = network_of("lstm", spaces, shared=shared)
    observation, action = draw(spaces.observation, B, T), draw(spaces.action, B, T)
    state, episode_end = torch.randn(B, network.state_size), ended_at(ENDS["here and there"])
    evaluated = network.evaluate_actions(observation, action, state, episode_end)
    log_prob, value = evaluated_by_steps(network, observation, action, state, episode_end, rows_at)
    torch.testing.assert_close(evaluated.log_prob, log_prob, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(evaluated.value, value, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(network.value(observation, state, episode_end), value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "shared", "size"), [("gru", True, H), ("gru", False, 2 * H), ("lstm", True, 2 * H), ("lstm", False, 4 * H)]
)
def test_state_has_one_row_per_env(kind, shared, size):
    network = network_of(kind, shared=shared)
    assert network.state_size == size
    assert torch.equal(network.initial_state(3), torch.zeros(3, size))


@pytest.mark.parametrize("shared", [False, True])
def test_state_has_halves_unless_shared(shared):
    network, observation = network_of("gru", shared=shared), draw(VECTOR, 2)
    state = torch.randn(2, network.state_size)
    changed = state.clone()
    changed[:, -H:] += 1.0
    assert torch.equal(network.heads(observation, state).mean, network.heads(observation, changed).mean) is not shared
    assert not torch.equal(network.value(observation, state), network.value(observation, changed))
    after, after_changed = network.after(observation, state), network.after(observation, changed)
    assert torch.equal(after[:, :H], after_changed[:, :H]) is not shared


@pytest.mark.parametrize("shared", [False, True])
def test_acting_advances_the_whole_state(shared):
    network, observation = network_of("lstm", shared=shared), draw(VECTOR, 6)
    state = torch.randn(6, network.state_size)
    action, after = network.advance(observation, state, False)
    assert torch.equal(after, network.after(observation, state))
    best = network.head.mode(network.heads(observation, state))
    wanted, leaves = (leaves_of(ACTIONS["mixed"], tree) for tree in (best, action))
    assert all(torch.equal(expected, leaf) for expected, leaf in zip(wanted, leaves, strict=True))


def test_single_policy_has_a_state():
    policy = Policy(Spaces(VECTOR, ACTIONS["discrete"]), hidden=(8,), core="gru", core_size=H)
    observation, state = draw(VECTOR, 2), torch.randn(2, H)
    assert policy.state_size == H
    assert torch.equal(policy.advance(observation, state)[1], policy.after(observation, state))


def test_network_without_core_is_stateless():
    network = network_of(None)
    assert network.state_size == 0
    assert network.initial_state(2).shape == (2, 0)
    with pytest.raises(RequestError, match="needs the state"):
        network_of("gru").act(draw(VECTOR, 2))
