"""Planners find the best of a known cost, within their bounds, and keep plans row by row."""

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.algorithms.model_based.imagination import Imagination
from rlrun.algorithms.model_based.planning import CEM, MPPI, RandomShooting
from rlrun.collect import PolicyAgent
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Spaces
from rlrun.memory import Table
from rlrun.nn import DeterministicPolicy, Dynamics, WorldModel


def box(count, bound=1.0):
    limit = np.full(count, bound, np.float32)
    return Box((count,), -limit, limit)


SPACES = Spaces(box(2, 10.0), box(2))
GOAL = torch.tensor([[0.3, -0.2], [-0.5, 0.4]])  # by time


def model_of(spaces=SPACES, **options):
    options = {"hidden": [4], "members": 1, "elites": None, "deterministic": True, **options}
    return WorldModel(Dynamics(spaces, **options))


def quadratic(states, actions):
    """Cost of actions [..., H, A]: least at GOAL, in all states."""
    assert states.shape[-2:] == (len(GOAL) + 1, 2)
    return (actions - GOAL).square().sum((-1, -2))


class Line(nn.Module):
    """Members that move a point by their action, times a number of their own; the reward is minus its distance."""

    def __init__(self, inputs, outputs, slope=1.0):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))
        self.outputs = outputs

    def forward(self, rows):
        moved = self.slope * rows[:, 1:2]
        return torch.cat((moved, -(rows[:, :1] + moved).abs(), torch.full_like(moved, -20.0)), -1)


@pytest.mark.parametrize(("kind", "options", "distance"), [(CEM, {}, 0.02), (MPPI, {"iterations": 8}, 0.1)])
@pytest.mark.parametrize("explore", [False, True])
def test_the_least_cost_is_found(kind, options, distance, explore):
    torch.manual_seed(0)
    planner = kind(SPACES, model_of(), horizon=2, population=400, cost=quadratic, **options)
    plan = planner.search(torch.zeros(2, 2), planner.initial_state(2)["plan"].reshape(2, 2, 2), explore)
    assert (plan - GOAL).abs().max() < distance


def test_the_best_of_many_is_found():
    planner = RandomShooting(
        SPACES,
        model_of(),
        horizon=1,
        population=5_000,
        cost=lambda _, actions: (actions - GOAL[:1]).square().sum((-1, -2)),
    )
    plan = planner.search(torch.zeros(1, 2), planner.initial_state(1)["plan"].reshape(1, 1, 2), True)
    assert (plan - GOAL[:1]).abs().max() < 0.05


@pytest.mark.parametrize("kind", [CEM, MPPI, RandomShooting])
@pytest.mark.parametrize("diverged", [float("nan"), float("-inf"), -1e38])
def test_sequences_in_which_the_model_diverges_are_not_chosen(kind, diverged):
    def cost(_, actions):
        first = actions[..., 0, 0]
        return torch.where(first > 0.2, -diverged, (first - 0.1).square())

    planner = kind(SPACES, model_of(), horizon=2, population=400, cost=cost)
    torch.manual_seed(0)
    plan = planner.search(torch.zeros(2, 2), planner.initial_state(2)["plan"].reshape(2, 2, 2), True)
    assert (plan[:, 0, 0] - 0.1).abs().max() < 0.2
    plan = kind(SPACES, model_of(), horizon=2, population=400, cost=lambda _, actions: actions[..., 0, 0] - diverged)
    assert plan.search(torch.zeros(2, 2), torch.zeros(2, 2, 2), True).isfinite().all()


@pytest.mark.parametrize("kind", [CEM, MPPI, RandomShooting])
def test_each_number_keeps_its_bounds(kind):
    planner = kind(SPACES, model_of(), horizon=2, population=200, low=[-0.1, 0.2], high=[0.2, 0.3], cost=quadratic)
    for explore in (False, True):
        plan = planner.search(torch.zeros(1, 2), planner.initial_state(1)["plan"].reshape(1, 2, 2), explore)
        assert (plan >= planner.low - 1e-6).all()
        assert (plan <= planner.high + 1e-6).all()
    if kind is CEM:
        assert (plan - GOAL.clamp(planner.low, planner.high)).abs().max() < 0.03


def test_rewards_of_a_model_are_maximized_and_a_plan_moves_on():
    spaces = Spaces(box(1, 10.0), box(1))
    planner = CEM(spaces, model_of(spaces, network=Line), horizon=3, population=300, iterations=8, epsilon=0.0)
    observation = torch.tensor([[0.5], [-2.5]])
    action, after = planner.advance(observation, planner.initial_state(2), False)
    assert torch.allclose(action, torch.tensor([[-0.5], [1.0]]), atol=0.05)  # the first alone reaches 0 at once
    plan = planner.search(observation, planner.initial_state(2)["plan"].reshape(2, 3, 1), False)
    expected = torch.cat((plan[:, 1:], plan.mean(1, keepdim=True)), 1)
    assert torch.equal(after["plan"], expected.flatten(1))
    again, _ = planner.advance(observation, planner.initial_state(2), False)
    assert torch.equal(action, again)  # without exploring it is a function of observation and plan


def test_nothing_is_paid_behind_an_end():
    spaces = Spaces(box(1, 10.0), box(1))

    class Ends(Line):
        def forward(self, rows):
            paid = torch.ones(len(rows), 1)
            return torch.cat((rows[:, 1:2], paid, 40.0 * (rows[:, 1:2] - 0.5)), -1)

    model = model_of(spaces, network=Ends)
    model.dynamics.ending.fill_(1.0)
    planner = CEM(spaces, model, horizon=4, population=10, elite=2)
    evaluate = planner.evaluator(torch.zeros(1, 1), False)
    sequences = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]]).unsqueeze(-1)
    assert torch.allclose(evaluate(sequences), torch.tensor([[4.0, 2.0]]), atol=1e-4)


def test_particles_stay_with_their_member_or_change_it():
    """Two members move a point by ±1 an action: staying, it is 3 away after 3 steps; changing, at most sometimes."""
    spaces, slopes = Spaces(box(1, 10.0), box(1)), iter([1.0, -1.0] * 3)
    sequences = torch.ones(1, 1, 3, 1)
    returns = {}
    for propagation in ("ts_inf", "ts1"):
        model = model_of(
            spaces, members=2, network=lambda inputs, outputs: Line(inputs, outputs, next(slopes)), rewards=True
        )
        options = {"horizon": 3, "population": 2, "elite": 2, "particles": 1, "propagation": propagation}
        planner = CEM(spaces, model, **options)
        torch.manual_seed(0)
        evaluate = [planner.evaluator(torch.zeros(1, 1), True)(sequences).item() for _ in range(50)]
        returns[propagation] = np.mean(evaluate)
    assert returns["ts_inf"] == pytest.approx(-6.0)  # 1 + 2 + 3
    assert -6.0 < returns["ts1"] < -3.0


@pytest.mark.parametrize("kind", [CEM, MPPI])
@pytest.mark.parametrize("members", [1, 2])
def test_a_plan_does_not_count_on_the_noise_that_it_imagines(kind, members):
    """A point moves by its action and much noise, at a cost of its square: the best action is the one without noise."""

    class Noisy(Line):
        def forward(self, rows):
            return torch.cat((rows[:, 1:2], torch.zeros(len(rows), 1)), -1)

    spaces = Spaces(box(1, 10.0), box(1))
    dynamics = Dynamics(spaces, members=members, rewards=False, ends=False, network=Noisy)
    model = WorldModel(dynamics, reward=lambda observation, action, after: -after[..., 0].square())
    for seed in range(3):
        planner = kind(spaces, model, horizon=1, population=400, iterations=8, particles=4, seed=seed)
        for explore in (False, True):
            plan = planner.search(torch.tensor([[0.3]]), torch.zeros(1, 1, 1), explore)
            assert plan.item() == pytest.approx(-0.3, abs=0.05)
    many = kind(spaces, model, horizon=500, population=2, particles=2, **({"elite": 2} if kind is CEM else {}))
    assert many.futures.square().mean() == pytest.approx(1.0, abs=0.15)


def test_a_cost_reads_the_path_of_each_particle():
    """Each path begins at 0 and moves by 1 or -1 at a time, also where particles change members."""
    spaces, slopes, seen = Spaces(box(1, 10.0), box(1)), iter([1.0, -1.0]), []
    model = model_of(spaces, members=2, network=lambda inputs, outputs: Line(inputs, outputs, next(slopes)))

    def cost(states, actions):
        seen.append(states.diff(dim=-2).abs())
        return states.sum((-1, -2))

    planner = CEM(spaces, model, horizon=4, population=2, elite=2, propagation="ts1", cost=cost)
    torch.manual_seed(0)
    for _ in range(10):
        planner.evaluator(torch.zeros(1, 1), True)(torch.ones(1, 1, 4, 1))
    torch.testing.assert_close(torch.stack(seen), torch.ones(10, *seen[0].shape))


def test_choices_are_planned():
    spaces = Spaces(box(1, 10.0), Composite({"push": Discrete(3), "force": box(1)}))

    def cost(states, actions):
        return 1.0 - actions[..., 0, 2 + 1] + (actions[..., 0, 0] - 0.5).square()

    planner = CEM(spaces, model_of(spaces), horizon=2, population=200, cost=cost)
    action, _ = planner.advance(torch.zeros(1, 1), planner.initial_state(1), False)
    assert {name: part.shape for name, part in action.items()} == {"push": (1,), "force": (1, 1)}


@pytest.mark.parametrize("kind", [CEM, MPPI, RandomShooting])
def test_a_plan_begins_with_an_allowed_choice(kind):
    """The third choice costs least, then the second; where a mask forbids it, the second is taken."""
    action_mask = MultiDiscrete(np.full(3, 2), np.zeros(3, np.int64), dtype="int8")
    spaces = Spaces(Composite({"action_mask": action_mask, "line": box(1)}), Discrete(3))

    def cost(states, actions):
        return -(actions[..., 0, :] * torch.tensor([0.0, 1.0, 2.0])).sum(-1)

    options = {"elite": 10} if kind is CEM else {}
    planner = kind(spaces, model_of(spaces), horizon=2, population=100, cost=cost, random=0.5, **options)
    flags = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.int8)
    observation = {"action_mask": flags, "line": torch.zeros(3, 1)}
    best, _ = planner.advance(observation, planner.initial_state(3), False)
    assert best.tolist() == [2, 1, 0]
    for _ in range(20):
        taken, _ = planner.advance(observation, planner.initial_state(3), True)
        assert flags.gather(1, taken.unsqueeze(1)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"elite": 1}, "elite: wanted a number from 2 to population=500, got 1"),
        ({"low": [0.0, 0.0, 0.0]}, "low: wanted one number, or 2, those of an action; got 3"),
        ({"low": 1.0}, "low: wanted bounds below high"),
        ({"horizon": 0}, "horizon"),
        ({"propagation": "ts2"}, "propagation"),
        ({"random": 2}, "random: wanted a number from 0 to 1, got 2"),
        ({"discount": -1.0}, "discount: wanted a number from 0 to 1, got -1.0"),
        ({"tau": 9.0}, "tau: wanted a number from 0 to 1, got 9.0"),
        ({"variance": 0.0}, "variance: wanted a number above 0, got 0.0"),
    ],
)
def test_settings_without_meaning_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CEM(SPACES, model_of(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature: wanted a number above 0, got 0.0"),
        ({"deviation": -1.0}, "deviation: wanted a number above 0, got -1.0"),
        ({"smoothing": 2.0}, "smoothing: wanted a number from 0 to 1, got 2.0"),
        ({"population": 1}, "population must be at least 2, not 1"),
    ],
)
def test_settings_of_mppi_without_meaning_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        MPPI(SPACES, model_of(), **options)


class Normed(nn.Sequential):
    def __init__(self, inputs, outputs, more=0):
        super().__init__(nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs + more))


def test_a_network_of_ones_own_has_the_width_of_the_predictions():
    with pytest.raises(ConfigError, match="network: wanted 4 numbers of 4, got 5"):
        model_of(network=lambda inputs, outputs: Normed(inputs, outputs, 1))


def test_acting_leaves_batch_statistics_as_they_are():
    """Neither planning nor imagined steps move them, or depend on which rows are side by side."""
    model = model_of(network=Normed)
    before = {name: value.clone() for name, value in model.dynamics.state_dict().items()}
    agent = PolicyAgent(CEM(SPACES, model, horizon=2, population=20, elite=5))
    agent(np.ones((3, 2), np.float32), agent.initial_state(3), explore=False)
    table = Table(length=4, num_envs=4, spaces=SPACES)
    acting = PolicyAgent(DeterministicPolicy(SPACES, hidden=[4]))
    Imagination(model, acting, table, SPACES, length=2, after=0).begin_batch(torch.randn(4, 2), 0)
    assert all(torch.equal(value, before[name]) for name, value in model.dynamics.state_dict().items())
