"""Small environments with known answers, in numpy alone: `env.target=rlrun.env.toys.HitTheMiddle`.

Each docstring states the answer that a correct algorithm finds.
"""

from rlrun.env.toys.control import CartPoleContinuous, HitTheMiddle, Oars, PointMass, Road, Thrusters
from rlrun.env.toys.games import ConnectFour, TicTacToe
from rlrun.env.toys.pixels import CartPolePixels, Reacher, ReacherPixels, Sprites
from rlrun.env.toys.recall import Recall, TMaze
from rlrun.env.toys.spaces import (
    DictObservation,
    DiscreteStart,
    ImageObservation,
    MaskedChain,
    MixedAction,
    MultiDiscreteAction,
    TupleSpaces,
)
from rlrun.env.toys.tabular import Bandit, Chain, ConstrainedBandit, Corridor, RiskyBranch
from rlrun.env.toys.toy import Toy as Toy

__all__ = [
    "Bandit",
    "CartPoleContinuous",
    "CartPolePixels",
    "Chain",
    "ConnectFour",
    "ConstrainedBandit",
    "Corridor",
    "DictObservation",
    "DiscreteStart",
    "HitTheMiddle",
    "ImageObservation",
    "MaskedChain",
    "MixedAction",
    "MultiDiscreteAction",
    "Oars",
    "PointMass",
    "Reacher",
    "ReacherPixels",
    "Recall",
    "RiskyBranch",
    "Road",
    "Sprites",
    "TMaze",
    "Thrusters",
    "TicTacToe",
    "TupleSpaces",
]
