"""Two policies, one of which edits the other's proposals, worked by hand on networks of one layer."""

import math

import pytest
import torch

from rlrun.algorithms.actor_critic.seditor import (
    CostLoss,
    EditedPolicy,
    EditedTarget,
    Editor,
    EditorLoss,
    Temperatures,
    TemperaturesLoss,
    UtilityLoss,
    edited,
)
from rlrun.nn import SquashedGaussian

from .fixed import CONTINUOUS, column, critics_of, evaluate_loss, fill, sgd, write

pytestmark = pytest.mark.usefixtures("no_noise")

UTILITY = (([[1.0], [2.0]], [0.0]), ([[1.0], [2.0]], [1.0]))  # s + 2 a, the smaller
COST = (([[0.0], [-1.0]], [0.0]), ([[0.0], [-1.0]], [0.5]))  # - a
PLAIN = 1.0 - 0.5 * math.log(2 * math.pi)  # log density of a normal of deviation 1/e, at its mean


def policy_of(proposal, edit):
    """Return a policy that proposes and edits the same whatever it sees."""
    utility, editor = SquashedGaussian(CONTINUOUS, hidden=()), Editor(CONTINUOUS, hidden=())
    fill(utility.layers[-1], math.atanh(proposal), -1.0)
    fill(editor.gaussian.layers[-1], math.atanh(edit), -1.0)
    return EditedPolicy(utility, editor)


def temperatures():
    alphas = Temperatures()
    with torch.no_grad():
        alphas.log.copy_(torch.tensor([0.2, 0.5]).log())
    return alphas


def log_prob(level):
    return PLAIN - math.log(1 - level**2)


def test_edits_reach_every_action():
    actions = edited(torch.tensor([-1.0, -1.0, 0.5, 0.9]), torch.tensor([1.0, 0.5, -0.25, 0.2]))
    assert actions.tolist() == pytest.approx([1.0, 0.0, 0.0, 1.0])


def test_policy_acts_by_edited_proposals():
    for explore in (True, False):
        assert policy_of(0.5, -0.4).act(column(0, 1), explore=explore).flatten().tolist() == pytest.approx([-0.3] * 2)


@pytest.mark.parametrize("discount", [0.9, [0.9, 0.5]])
def test_targets_are_at_the_edited_action(discount):
    utility, cost = critics_of(CONTINUOUS, *UTILITY), critics_of(CONTINUOUS, *COST)
    target = EditedTarget(utility, cost, policy_of(0.5, -0.4), discount=discount)
    for critics in (utility, cost):
        write(critics, *[([[0.0], [0.0]], [100.0])] * 2)
    rewards = torch.tensor([[1.0, -0.5]] * 2)
    batch = target.begin_batch(column(1, 1), rewards, torch.tensor([False, True]))
    assert batch["q_target"].tolist() == pytest.approx([1 + 0.9 * (1 - 0.6), 1.0])
    assert batch["cost_target"].tolist() == pytest.approx([-0.5 + (0.9 if discount == 0.9 else 0.5) * 0.3, -0.5])


def test_cost_critics_learn_their_target():
    loss = CostLoss(critics_of(CONTINUOUS, *COST), sgd)
    losses, _, metrics = evaluate_loss(loss, column(0), column(0.5), torch.tensor([0.5]))
    assert losses.tolist() == pytest.approx([1.0**2 + 0.5**2])  # -0.5 and 0
    assert metrics == {"value/cost": pytest.approx(-0.25)}


def test_proposals_follow_the_edited_utility():
    policy = policy_of(0.5, -0.4)
    utility, editor = policy.utility, policy.editor
    critics = critics_of(CONTINUOUS, *UTILITY)
    loss = UtilityLoss(utility, sgd, editor=editor, critics=critics, temperature=temperatures())
    value, outputs, _ = loss.loss(column(1))
    assert value.tolist() == pytest.approx([0.2 * log_prob(0.5) - (1 - 0.6)], abs=1e-6)
    assert outputs["proposal_entropy"].tolist() == pytest.approx([-log_prob(0.5)], abs=1e-6)
    loss.backward(column(1))
    # dQ/du = 2 (1 - 0.5²), and the density's slope 2 · 0.5 at temperature 0.2
    assert utility.layers[-1].bias[0].item() - math.atanh(0.5) == pytest.approx(2 * 0.75 - 0.2, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "edit", "taken", "slope"),
    [
        ("utility", -0.4, 1.6, -4.0),  # 2 · 0.8, by - 2 · 2 dΔ
        ("utility", 0.2, 0.0, 0.0),  # nothing is taken from the utility
        ("distance", -0.4, 0.64, -3.2),  # 0.8², by 2 · (-0.8) · 2 dΔ
    ],
)
def test_edits_weigh_utility_and_cost(change, edit, taken, slope):
    policy = policy_of(0.5, edit)
    utility, editor = policy.utility, policy.editor
    critics = {"utility_critics": critics_of(CONTINUOUS, *UTILITY), "cost_critics": critics_of(CONTINUOUS, *COST)}
    options = {**critics, "weights": lambda: torch.tensor([0.25, 0.75]), "temperature": temperatures()}
    loss = EditorLoss(editor, sgd, utility=utility, change=change, **options)
    value, outputs, _ = loss.loss(column(1))
    saved = -(0.5 + 2 * edit)
    assert value.tolist() == pytest.approx([0.25 * taken - 0.75 * saved + 0.5 * log_prob(edit)], abs=1e-5)
    assert outputs["edit_entropy"].tolist() == pytest.approx([-log_prob(edit)], abs=1e-5)
    loss.backward(column(1))
    gradient = (0.25 * slope + 0.75 * 2.0) * (1 - edit**2) + 0.5 * 2 * edit
    assert editor.gaussian.layers[-1].bias[0].item() - math.atanh(edit) == pytest.approx(-gradient, abs=1e-4)
    assert loss.metrics["edit/size"] == pytest.approx(abs(2 * edit))


def test_each_policy_has_its_temperature():
    loss = TemperaturesLoss(temperatures(), sgd, spaces=CONTINUOUS)
    target = math.log(2 * 0.184)
    losses, *_ = loss.loss(torch.tensor([1.0]), torch.tensor([target]))
    assert losses.tolist() == pytest.approx([math.log(0.2) * (1.0 - target)])
    loss.backward(torch.tensor([1.0]), torch.tensor([target]))
    assert loss.temperatures.of("proposal").item() == pytest.approx(0.2 * math.exp(target - 1.0))
    assert loss.temperatures.of("edit").item() == pytest.approx(0.5)
