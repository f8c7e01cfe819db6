"""A model learns by the likelihood of changes, and its best members on held-out rows predict."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.algorithms.fixed import adam
from torch import nn
from torch.distributions import Normal

from rlrun.algorithms.model_based.dynamics import DynamicsLoss
from rlrun.algorithms.model_based.rewards import RewardLoss, RewardModel
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.nn import MLP, Dynamics, WorldModel

from .test_planning import box

SPACES = Spaces(box(3, 10.0), box(2))


def batch(count=32, *, spaces=SPACES, seed=0):
    draw = torch.Generator().manual_seed(seed)
    state, action = torch.randn(count, 3, generator=draw), torch.rand(count, 2, generator=draw) * 2 - 1
    after = state + 0.1 * torch.cat((action, action.sum(1, keepdim=True)), 1)
    return {
        "observation": state,
        "action": action,
        "reward": -state[:, 0],
        "terminated": state[:, 1] > 1.0,
        "next_observation": after,
    }


def put(network, updates):
    for name, value in updates.items():
        network.get_buffer(name.removeprefix("network.")).copy_(value)


@pytest.mark.parametrize("members", [1, 3])
def test_the_loss_is_the_likelihood_of_normalized_changes(members):
    network = Dynamics(SPACES, hidden=[8], members=members, elites=None, ends=False)
    loss, rows = DynamicsLoss(network, adam), batch()
    elements, outputs, _ = loss.loss(**rows)
    change = torch.cat((rows["next_observation"] - rows["observation"], rows["reward"].unsqueeze(-1)), -1)
    inputs = torch.cat((rows["observation"], rows["action"]), -1)
    normal = (change - change.mean(0)) / change.std(0, unbiased=False)
    seen = (inputs - inputs.mean(0)) / inputs.std(0, unbiased=False)
    predicted = network(seen.expand(members, -1, -1))
    assert (predicted.log_variance < 0.5).all()
    assert (predicted.log_variance > -10.0).all()
    likelihood = Normal(predicted.mean, (0.5 * predicted.log_variance).exp()).log_prob(normal).mean(-1).sum(0)
    bounds = 0.01 * 10.5 * 4
    torch.testing.assert_close(elements, bounds - likelihood, rtol=1e-5, atol=1e-6)
    put(network, outputs["updates"])
    torch.testing.assert_close(network.target_scale, change.std(0, unbiased=False))
    torch.testing.assert_close(network.normalized(rows["observation"], rows["action"]), seen, rtol=1e-4, atol=1e-5)


def test_deterministic_members_learn_by_half_the_square():
    network = Dynamics(SPACES, hidden=[8], members=2, elites=None, ends=False, deterministic=True, rewards=False)
    rows = batch()
    elements, outputs, _ = DynamicsLoss(network, adam).loss(**rows)
    put(network, outputs["updates"])
    change = (rows["next_observation"] - rows["observation"] - network.target_shift) / network.target_scale
    predicted = network(network.normalized(rows["observation"], rows["action"]).expand(2, -1, -1)).mean
    expected = (0.5 * (change - predicted).square().mean(-1)).sum(0)
    torch.testing.assert_close(elements, expected)


def test_statistics_are_those_of_all_rows_and_what_never_moves_is_read_as_0():
    network = Dynamics(SPACES, hidden=[8], members=1, elites=None, rate=1e-6)
    loss, seen = DynamicsLoss(network, adam), []
    for seed in range(5):
        rows = batch(seed=seed)
        rows["observation"][:, 2] = 7.0
        seen.append(rows["observation"])
        put(network, loss.loss(**rows)[1]["updates"])
    every = torch.cat(seen)
    torch.testing.assert_close(network.shift[:3], every.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(1.0 / network.scale[:2], every[:, :2].std(0, unbiased=False), rtol=1e-3, atol=1e-4)
    assert network.scale[2] == 0.0
    assert network.normalized(torch.full((1, 3), 8.0), torch.zeros(1, 2))[0, 2] == 0.0


@pytest.mark.parametrize("own", [None, MLP])
def test_members_with_the_least_error_on_held_out_rows_predict(own):
    network = Dynamics(SPACES, hidden=[8], members=4, elites=2, network=own)
    network.ending.fill_(1.0)
    measured = DynamicsLoss(network, None)
    last = network.network.layers[-1].bias if own is None else [member[-1].bias for member in network.network]
    with torch.no_grad():
        last[1].add_(5.0)
        last[3].sub_(5.0)
    _, outputs, _ = measured.loss(**batch())
    assert [*outputs["updates"]] == ["network.held_out"]
    put(network, outputs["updates"])
    assert network.elite().tolist() == [0, 2]
    assert network.held_out.shape == (4,)
    state, action = torch.zeros(2, 5, 3), torch.zeros(2, 5, 2)
    step = network.step(state, action, network.predictor())
    whole = network(network.normalized(torch.zeros(4, 5, 3), torch.zeros(4, 5, 2)))
    torch.testing.assert_close(step.reward, whole.mean[[0, 2], :, -1])
    torch.testing.assert_close(step.ended, whole.end[[0, 2]].sigmoid())


def test_members_are_judged_by_what_they_have_become():
    network = Dynamics(SPACES, hidden=[8], members=4, elites=1, deterministic=True, rewards=False, ends=False)
    held, layers = DynamicsLoss(network, None), network.network.layers
    rows = batch()
    rows["next_observation"] = rows["observation"].clone()  # so that the best members predict zeros
    with torch.no_grad():
        for layer in layers:
            if hasattr(layer, "bias"):
                layer.weight.zero_()
                layer.bias.zero_()
        for biases, batches in (((1.0, 2.0, 3.0, 4.0), 2), ((0.04, 0.03, 0.02, 0.01), 8)):
            layers[-1].bias.copy_(torch.tensor(biases).view(-1, *[1] * (layers[-1].bias.dim() - 1)))
            for _ in range(batches):
                put(network, held.loss(**rows)[1]["updates"])
    assert network.elite().tolist() == [3]


def test_chosen_numbers_are_predicted_themselves_from_features_of_ones_own():
    class Constant(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            assert inputs == 1 + 2  # the sum of the observation, and the action
            self.row = nn.Parameter(torch.arange(float(outputs)))

        def forward(self, rows):
            return self.row.expand(len(rows), -1)

    network = Dynamics(
        SPACES,
        members=2,
        elites=None,
        deterministic=True,
        absolute=[1],
        features=lambda state: state.sum(-1, keepdim=True),
        network=Constant,
    )
    step = network.step(torch.full((2, 4, 3), 10.0), torch.zeros(2, 4, 2), network.predictor())
    assert step.state[0, 0].tolist() == [10.0, 1.0, 12.0]
    assert step.reward[0, 0] == 3.0


def test_own_functions_say_rewards_and_ends():
    network = Dynamics(SPACES, hidden=[8], members=1, elites=None, rewards=False, ends=False)
    with pytest.raises(ConfigError, match="reward: the dynamics predict none"):
        WorldModel(network)
    model = WorldModel(
        network,
        reward=lambda observation, action, after: -observation.square().sum(-1) - action[..., 0],
        ended=lambda observation, action, after: observation[..., 0] > 1.0,
    )
    state = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    step = model.step(state, torch.ones(1, 2, 2), network.predictor())
    assert step.reward.tolist() == [[-5.0, -2.0]]
    assert step.ended.tolist() == [[1.0, 0.0]]


def test_observations_and_actions_of_parts():
    space = Composite({"kind": Discrete(3), "place": Box((2, 2), np.zeros((2, 2)), np.ones((2, 2)))})
    network = Dynamics(Spaces(space, Discrete(2)), hidden=[8], members=1)
    observation = {"kind": torch.tensor([2, 0]), "place": torch.rand(2, 2, 2)}
    again = network.observation(network.numbers(observation))
    assert again["kind"].tolist() == [2, 0]
    assert torch.equal(again["place"], observation["place"])


def test_what_no_model_predicts_is_refused():
    image = Box((8, 8, 3), np.zeros((8, 8, 3)), np.full((8, 8, 3), 255), "uint8")
    with pytest.raises(SpaceError, match=r"a model predicts floats and choices; the observation is Box\[8, 8, 3\]"):
        Dynamics(Spaces(image, box(1)))
    with pytest.raises(ConfigError, match="elites: wanted a number from 1 to members=2, got 3"):
        Dynamics(SPACES, members=2, elites=3)
    with pytest.raises(ConfigError, match="absolute: the observation has numbers 0 to 2, not 3"):
        Dynamics(SPACES, absolute=[3])
    with pytest.raises(ConfigError, match="rate: wanted a share above 0, at most 1, got 7"):
        Dynamics(SPACES, rate=7)
    with pytest.raises(ConfigError, match=r"features: of numbers \[2, 3, 3\] wanted numbers \[2, 3, F\], got \[2, 3\]"):
        Dynamics(SPACES, features=lambda state: state.sum(-1))


def test_held_out_rows_move_no_batch_statistics():
    network = Dynamics(SPACES, network=partial(MLP, hidden=[8], batch_norm=True))
    moved = {}
    for name, optimizer in {"held": None, "model": adam}.items():
        kept = [buffer.clone() for buffer in network.network.buffers()]
        DynamicsLoss(network, optimizer).loss(**batch())
        pairs = zip(kept, network.network.buffers(), strict=True)
        moved[name] = any(not torch.equal(old, new) for old, new in pairs)
    assert moved == {"held": False, "model": True}


def test_a_known_noise_is_learned():
    """s' = s + a + noise of deviation 0.3: a Gaussian member finds the deviation, in its own units."""
    torch.manual_seed(0)
    spaces = Spaces(box(1, 10.0), box(1))
    network = Dynamics(spaces, hidden=[16], members=2, elites=None, rewards=False, ends=False)
    loss = DynamicsLoss(network, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    for _ in range(300):
        state, action = torch.randn(256, 1), torch.rand(256, 1) * 2 - 1
        after = state + action + 0.3 * torch.randn(256, 1)
        rows = {"observation": state, "action": action, "next_observation": after, "reward": torch.zeros(256)}
        elements, outputs, metrics = loss.loss(**rows, terminated=torch.zeros(256, dtype=torch.bool))
        loss.step(elements, outputs, metrics)
    state, action = torch.randn(2, 400, 1), torch.rand(2, 400, 1) * 2 - 1
    outputs = network(network.normalized(state, action))
    deviation = (0.5 * outputs.log_variance).exp() * network.target_scale
    assert deviation.mean().item() == pytest.approx(0.3, rel=0.1)
    error = (network.step(state, action, network.predictor()).state - state - action).square().mean().sqrt().item()
    assert error < 0.1 < math.inf


@pytest.mark.parametrize("name", ["reward", "ended"])
@pytest.mark.parametrize(
    ("function", "shape"), [(lambda o, a, n: o[..., :1], "[2, 3, 1]"), (lambda o, a, n: o, "[2, 3, 3]")]
)
def test_functions_of_a_task_give_one_number_a_step(name, function, shape):
    with pytest.raises(ConfigError) as raised:
        WorldModel(Dynamics(SPACES, hidden=[8], elites=None), **{name: function})
    assert str(raised.value) == f"{name}: of steps [2, 3] wanted one number each, [2, 3]; got {shape}"


@pytest.mark.parametrize("loss", [DynamicsLoss, RewardLoss])
def test_columns_that_another_part_wants_untransformed_do_not_replace_the_batch(loss):
    network = Dynamics(SPACES, hidden=[8], elites=None) if loss is DynamicsLoss else RewardModel(SPACES)
    rows = batch()
    given = {name: rows[name] for name in rows if name != "terminated" or loss is DynamicsLoss}
    elements = loss(network, adam).loss(**given, untransformed={"observation": rows["observation"] + 1.0})[0]
    assert torch.equal(elements, loss(network, adam).loss(**given)[0])


def test_a_predicted_choice_is_one_choice():
    """Members learned from choices one-hot, so the next step is predicted from such numbers, too."""
    spaces = Spaces(Composite({"place": Discrete(4), "speed": box(2)}), SPACES.action)
    network = Dynamics(spaces, hidden=[8], elites=None)
    state = network.numbers({"place": torch.arange(4), "speed": torch.randn(4, 2)}).expand(5, 4, -1)
    after = network.step(state, torch.zeros(5, 4, 2), network.predictor(), torch.randn(5, 4, network.size + 1)).state
    assert torch.equal(after, network.numbers(network.observation(after)))
