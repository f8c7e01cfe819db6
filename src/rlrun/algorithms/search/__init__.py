"""Tree search over a model, given or learned, and games that are played by it."""

from rlrun.algorithms.search.gumbel import Gumbel
from rlrun.algorithms.search.player import Playouts, SearchPlayer, SimulatorModel, unknown
from rlrun.algorithms.search.puct import Puct
from rlrun.algorithms.search.tree import Model, Node, Search, SearchTrees, pick

__all__ = [
    "Gumbel",
    "Model",
    "Node",
    "Playouts",
    "Puct",
    "Search",
    "SearchPlayer",
    "SearchTrees",
    "SimulatorModel",
    "pick",
    "unknown",
]
