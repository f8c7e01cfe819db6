"""A recurrent model remembers what single observations do not show, in training, in acting and in plans."""

import numpy as np
import pytest
import torch
from tests.algorithms.fixed import adam

from rlrun.algorithms.model_based.dynamics import DynamicsLoss
from rlrun.algorithms.model_based.planning import CEM
from rlrun.collect import PolicyAgent
from rlrun.collect.agents import state_after
from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import Spaces
from rlrun.env import ModelEnv
from rlrun.memory import DatasetLoader, Past, Table
from rlrun.nn import Dynamics, WorldModel
from rlrun.nn.recurrent import with_state

from .test_planning import box

SPACES = Spaces(box(1, 10.0), box(1))
COLUMNS = ("observation", "action", "reward", "terminated", "next_observation")
STEP = 0.3  # seconds


def oscillate(position, speed, force):
    """Return position and speed of a unit mass on a spring, pushed by a force; only its position is seen."""
    speed = speed + STEP * (2.0 * force - position)
    return position + STEP * speed, speed


def recorded(network, *, episodes=64, steps=40):
    """Return a table of random episodes of the oscillator, for a network."""
    draw = np.random.default_rng(0)
    table = Table(
        length=episodes * (steps + 1),
        num_envs=episodes,
        spaces=SPACES,
        adaptors={"past": Past(network, length=16, burn_in=4, stored=False)},
    )
    position, speed = 1.5 * draw.normal(size=(episodes, 1)).astype(np.float32), np.zeros((episodes, 1), np.float32)
    for step in range(steps):
        action = draw.uniform(-1.0, 1.0, (episodes, 1)).astype(np.float32)
        after, speed = oscillate(position, speed, action)
        row = {"observation": position, "action": action, "reward": -(after[:, 0] ** 2)}
        ends = np.full(episodes, step == steps - 1)
        table.add(None, {**row, "terminated": np.zeros(episodes, np.bool_), "truncated": ends})
        position = after
    table.close(np.arange(episodes), position)
    return table


def learned(core):
    """Return a model of the oscillator, and the root of its mean squared error a step on held-out rows."""
    torch.manual_seed(0)
    network = Dynamics(SPACES, core=core, core_size=16, hidden=[32], members=1, deterministic=True, ends=False)
    loss = DynamicsLoss(network, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    held, table = DynamicsLoss(network, None), recorded(network)
    served = {"batch": 16 if core else 128, "columns": COLUMNS + (("valid", "weight") if core else ()), "hold_out": 0.1}
    for groups in DatasetLoader(table, epochs=30, **served):
        weight = groups["default"].pop("weight", None)
        loss.step(*loss.loss(**groups["default"]), weight=weight)
    errors = []
    for batch in DatasetLoader(table, held_out=True, **served).once():
        batch.pop("weight", None)
        errors.append(held.loss(**batch)[2][f"model/error_{held.name}"].detach())
    return network, torch.stack(errors).mean().item()


def cost_of(network):
    """Return the mean squared position over 40 steps of oscillators that are planned to rest."""
    planner = CEM(SPACES, WorldModel(network), horizon=8, population=60, elite=10, iterations=3)
    agent, draw = PolicyAgent(planner), np.random.default_rng(1)
    position, speed = 1.5 * draw.normal(size=(8, 1)).astype(np.float32), np.zeros((8, 1), np.float32)
    state, paid = agent.initial_state(8), []
    for _ in range(40):
        response = agent(position, state, explore=False)
        state = response["state"]
        position, speed = oscillate(position, speed, response["action"])
        paid.append((position**2).mean())
    return float(np.mean(paid))


def test_a_speed_that_is_not_seen_is_learned_and_planned_with():
    blind, blind_error = learned(None)
    network, error = learned("gru")
    assert blind_error > 0.5
    assert error < 0.3 * blind_error
    assert cost_of(network) < 0.3 * cost_of(blind)


def windows(network, count=3, steps=7):
    """Return a batch of windows as `Past` serves them, from episodes that begin."""
    draw = torch.Generator().manual_seed(1)
    seen = torch.randn(count, steps + 1, 1, generator=draw)
    at = torch.arange(steps).expand(count, -1)
    state = torch.zeros(count, network.state_size)
    return {
        "observation": with_state(seen, state, at),
        "action": torch.rand(count, steps, 1, generator=draw) * 2 - 1,
        "reward": torch.randn(count, steps, generator=draw),
        "terminated": torch.arange(steps).expand(count, -1) == steps - 1,
        "next_observation": with_state(seen, state, at + 1),
        "valid": torch.ones(count, steps, dtype=torch.bool),
    }


def put(network, updates):
    for name, value in updates.items():
        network.get_buffer(name.removeprefix("network.")).copy_(value)


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("elites", [None, 2])
def test_acting_remembers_what_windows_do(core, elites):
    """Real steps, one by one, lead to the predictions that the loss sees in a window; imagined ones go on alike."""
    network = Dynamics(SPACES, core=core, core_size=5, hidden=[8], members=3, elites=elites)
    network.held_out.copy_(torch.tensor([0.2, 0.3, 0.1]))
    chosen = [0, 2] if elites else [0, 1, 2]
    model, batch = WorldModel(network), windows(network)
    put(network, DynamicsLoss(network, adam).loss(**batch)[1]["updates"])
    seen, action = batch["observation"]["observation"], batch["action"]
    inputs = network.normalized(seen[:, :-1], action)
    whole = network(inputs.expand(3, -1, -1, -1), torch.zeros(3, network.state_size))
    state = model.initial_state(3)
    assert state["recurrent"].shape == (3, 3 * (5 if core == "gru" else 10))
    for time in range(action.shape[1]):
        at = model.begin(seen[:, time], state)
        step = model.step(at, action[:, time].expand(len(chosen), -1, -1), network.predictor())
        expected = torch.addcmul(network.target_shift, whole.mean[chosen, :, time], network.target_scale)
        torch.testing.assert_close(step.state[..., :1], seen[:, time] + expected[..., :1])
        torch.testing.assert_close(step.reward, expected[..., 1])
        torch.testing.assert_close(step.ended, whole.end[chosen, :, time].sigmoid())
        state = model.after(seen[:, time], state, action[:, time])
        imagined = model.step(step.state, action[:, 0].expand(len(chosen), -1, -1), network.predictor())
        real = model.begin(seen[:, time + 1], state)
        torch.testing.assert_close(step.state[..., 1:], real[..., 1:])  # the memory of a step is that of a real one
        assert not torch.equal(imagined.state[..., 1:], step.state[..., 1:])


def test_a_planner_remembers_true_observations_and_actions():
    network = Dynamics(SPACES, core="gru", core_size=5, hidden=[8], members=2)
    planner = CEM(SPACES, WorldModel(network), horizon=2, population=20, elite=5)
    agent = PolicyAgent(planner)
    seen, initial = np.array([[0.3], [-0.7]], np.float32), agent.initial_state(2)
    response = agent(seen, initial, explore=False)
    expected = network.remember(torch.from_numpy(seen), torch.from_numpy(response["action"]), torch.zeros(2, 10))
    torch.testing.assert_close(torch.from_numpy(response["state"]["recurrent"]), expected)
    taken = np.array([[0.5], [-0.5]], np.float32)  # at random, as in warm-up
    after = state_after(agent, seen, initial, {"action": taken})
    expected = network.remember(torch.from_numpy(seen), torch.from_numpy(taken), torch.zeros(2, 10))
    torch.testing.assert_close(torch.from_numpy(after["recurrent"]), expected)
    assert np.array_equal(after["plan"], initial["plan"])
    returns = []
    for past in (initial, after):
        at = planner.model.begin(torch.from_numpy(seen), {"recurrent": torch.from_numpy(past["recurrent"])})
        returns.append(planner.evaluator(at, False)(torch.zeros(2, 3, 2, 1)))
    assert (returns[0] - returns[1]).abs().min() > 1e-6  # the same observations and actions, after another past


def test_windows_are_learned_from_where_they_are_valid():
    network = Dynamics(SPACES, core="gru", core_size=5, hidden=[8], members=2)
    loss, batch = DynamicsLoss(network, adam), windows(network)
    batch["valid"][1, 4:] = False  # an episode that ends there; what follows repeats its last row
    elements, outputs, metrics = loss.loss(**batch)
    other = {name: map_windows(value) for name, value in batch.items()}
    again, others, likewise = loss.loss(**other)
    torch.testing.assert_close(again[batch["valid"]], elements[batch["valid"]])
    assert not torch.allclose(again[1, 4:], elements[1, 4:])
    assert metrics == likewise
    for name, value in outputs["updates"].items():
        torch.testing.assert_close(others["updates"][name], value)
    change = batch["next_observation"]["observation"].diff(dim=1)[batch["valid"]]
    torch.testing.assert_close(outputs["updates"]["network.target_shift"][0], change.mean())
    gradient = torch.autograd.grad(elements[0, -1], [*network.parameters()], allow_unused=True)
    assert all(part.abs().sum() > 0 for part in gradient[:-1] if part is not None)  # the last row of an episode counts


def map_windows(value):
    """Return a batch's value with other numbers in the rows 4 to the end of window 1."""
    if isinstance(value, dict):
        return {**value, "observation": map_windows(value["observation"])}
    value = value.clone()
    if value.dtype == torch.float32 and value.dim() > 1 and value.shape[1] > 6:
        value[1, 5 if value.shape[1] == 8 else 4 :] += 1.0
    return value


def test_each_window_is_served_once_and_all_its_rows_count_alike():
    network = Dynamics(SPACES, core="gru", core_size=5, hidden=[8], members=1)
    table = recorded(network, episodes=3, steps=30)  # windows of steps 0-15, 12-27 and 24-29, learned from 0, 16, 28
    loader = DatasetLoader(table, batch=9, epochs=1)
    (groups,) = loader
    batch = groups["default"]
    assert len(loader) == 9
    assert sorted(batch["valid"].sum(1).tolist()) == [2] * 3 + [12] * 3 + [16] * 3
    torch.testing.assert_close(batch["weight"], batch["valid"] * (9 * 16 / 90.0))


@pytest.mark.parametrize(("length", "burn_in"), [(32, 8), (64, 9)])
def test_windows_of_long_episodes_are_held_out_evenly(length, burn_in):
    """Every 24th or 55th row lies at few places of the golden ratio's multiples, of which all or none are held out."""
    network = Dynamics(SPACES, core="gru", core_size=3, hidden=[4], members=1)
    adaptors = {"past": Past(network, length=length, burn_in=burn_in, stored=False)}
    table, zeros = Table(length=2000, num_envs=1, spaces=SPACES, adaptors=adaptors), np.zeros((1, 1), np.float32)
    for _ in range(1000):
        row = {"observation": zeros, "action": zeros, "reward": np.zeros(1)}
        table.add(None, {**row, "terminated": np.zeros(1, np.bool_), "truncated": np.zeros(1, np.bool_)})
    for seed in range(10):
        held = DatasetLoader(table, batch=1000, hold_out=0.2, held_out=True, epochs=1, seed=seed)
        (groups,) = held
        assert abs(len(groups["default"]["reward"]) / len(held) - 0.2) < 0.1


def test_a_single_window_is_too_few_to_hold_one_out():
    network = Dynamics(SPACES, core="gru", core_size=3, hidden=[4], members=1)
    table = recorded(network, episodes=1, steps=10)
    assert len(next(iter(DatasetLoader(table, batch=4, hold_out=0.1, held_out=True)))["default"]["reward"]) == 1
    with pytest.raises(ConfigError, match=r"of the 1 rows, or windows .* hold_out=0.1 leaves none to serve; two are"):
        next(iter(DatasetLoader(table, batch=4, hold_out=0.1)))


def test_what_no_memory_fits_is_refused():
    network = Dynamics(SPACES, core="gru", hidden=[8], members=2)
    model = WorldModel(network)
    with pytest.raises(ConfigError, match="particles of a recurrent model keep to the memory of one member"):
        CEM(SPACES, model, propagation="ts1")
    with pytest.raises(ConfigError, match="cannot begin within an episode"):
        ModelEnv(model, SPACES, 4)
    rows = windows(network)
    with pytest.raises(RequestError, match="needs the state before a step"):
        DynamicsLoss(network, adam).loss(
            **{**rows, "observation": torch.zeros(3, 1), "next_observation": torch.zeros(3, 1)}
        )
