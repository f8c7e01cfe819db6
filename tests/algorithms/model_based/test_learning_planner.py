"""A planner of one's own learns: that of the page about models, as it stands there."""

import torch
from tests.docs.pages import blocks, pages

from rlrun.core.spaces import Spaces

from .test_planning import Line, box, model_of

SPACES = Spaces(box(1, 10.0), box(1))


def code():
    """Return what the file of the page defines."""
    (text,) = (page.text for page in pages() if page.name == "docs/models.md")
    (block,) = (block for block in blocks(text) if block.name == "planner.py")
    names = {}
    exec(block.text, names)
    return names


def test_a_planner_learns_to_propose_what_it_found():
    """A point is moved to 0 by 1 a step at most: ten sequences near a plan find little, near a proposal the best."""
    torch.manual_seed(0)
    names, model = code(), model_of(SPACES, network=Line)
    options = {"horizon": 4, "population": 10, "elite": 4, "iterations": 1, "variance": 0.04}
    planner = names["Proposing"](SPACES, model, **options)
    assert {name.partition(".")[0] for name, _ in planner.named_parameters()} == {"proposal"}  # the model has its own
    state = torch.linspace(-2.0, 2.0, 64).unsqueeze(1)
    middle = planner.initial_state(64)["plan"].reshape(64, 4, 1)

    def value():
        plan = planner.search(state, middle, False)
        return planner.evaluator(state, False)(plan.unsqueeze(1)).mean().item()

    loss = names["Imitation"](planner, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    before = value()
    for _ in range(200):
        loss.step(loss.loss(state, -state.clamp(-1.0, 1.0)), {}, {})
    at = torch.maximum(state.abs() - torch.arange(1.0, 5.0), torch.zeros(()))
    best = -at.sum(1).mean().item()
    assert value() > before + 0.5 * (best - before)
