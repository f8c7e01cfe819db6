"""Tree search with a given or learned model, and algorithms that learn from it."""

from rlrun.algorithms.search.agent import SearchAgent, SearchModel, search_of
from rlrun.algorithms.search.candidates import (
    Candidates,
    chosen_candidates,
    drawn_candidates,
    likeliest_candidates,
)
from rlrun.algorithms.search.gumbel import Gumbel
from rlrun.algorithms.search.learned import LearnedModel
from rlrun.algorithms.search.player import Playouts, SearchPlayer, SimulatorModel, unknown
from rlrun.algorithms.search.puct import Puct
from rlrun.algorithms.search.samplers import ActionSampler, BestOrDraw, Draw, PersistentDraw
from rlrun.algorithms.search.tree import Model, Node, Search, SearchTrees, pick

__all__ = [
    "ActionSampler",
    "BestOrDraw",
    "Candidates",
    "Draw",
    "Gumbel",
    "LearnedModel",
    "Model",
    "Node",
    "PersistentDraw",
    "Playouts",
    "Puct",
    "Search",
    "SearchAgent",
    "SearchModel",
    "SearchPlayer",
    "SearchTrees",
    "SimulatorModel",
    "chosen_candidates",
    "drawn_candidates",
    "likeliest_candidates",
    "pick",
    "search_of",
    "unknown",
]
