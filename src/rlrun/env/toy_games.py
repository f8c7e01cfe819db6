"""Toys for planning: two games, and a choice between branches; import them from `rlrun.env.toys`."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.core.typing import Array
from rlrun.env.games import ConnectFourRules, TicTacToeRules
from rlrun.env.match import Match
from rlrun.env.toy_spaces import Toy


class TicTacToe(Match):
    """Put three stones in a row on 3 × 3 cells, against an opponent that moves within the step.

    observation: {"observation": [2, 3, 3], the agent's stones and those of the other; "action_mask": [9]}; action: the
    cell, row by row. reward at the end: 1 won, -1 lost, 0 drawn; a forbidden move loses. `opponent` is random, perfect,
    a number of moves that it looks ahead, or null: each step is a move of the player to move.

    Answer: between perfect players every game is drawn. Perfect play against random moves never loses: the best return
    is 0.995 as first and 0.925 as second. Random moves against random moves win 58.5 % as first, lose 28.8 %, and draw
    12.7 %.
    """

    rules = TicTacToeRules()


class ConnectFour(Match):
    """Drop stones into 7 columns of 6 cells, four in a row win, against an opponent that moves within the step.

    observation: {"observation": [2, 6, 7], the agent's stones and those of the other, the upper row first;
    "action_mask": [7]}; action: the column. Rewards and opponents are those of `TicTacToe`, without the perfect one.

    Answer: the first player wins by perfect play (Allis 1988), with the middle column as its first move. Random moves
    against random moves win 55.6 % as first, lose 44.2 % and draw 0.2 %.
    """

    rules = ConnectFourRules()


class RiskyBranch(Toy):
    """Choose a safe branch, or a risky one that leads to either of two states, each with a right action of its own.

    observation: the state, one-hot [4]; action: 0 or 1. From state 0 action 0 leads to state 1 or state 3, each with
    probability 1/2, and action 1 to state 2. Rewards: 2 for action 0 in state 1, 1.8 for action 0 in state 2, 1 for
    action 1 in state 3, else 0. The second step terminates.

    Answer: action 1, then 0: return 1.8. The risky branch has 1.5 at best. A model without chance takes it, as it
    imagines state 1 with its 2 for one of the actions. Random actions have 0.825.
    """

    rewards = ((0.0, 0.0), (2.0, 0.0), (1.8, 0.0), (0.0, 1.0))

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(2)

    def begin(self) -> None:
        self.state = 0

    def act(self, action: Any) -> tuple[float, bool]:
        reward, over = self.rewards[self.state][int(action)], self.state > 0
        if not over:
            self.state = 2 if int(action) else int(self.np_random.choice((1, 3)))
        return reward, over

    def observe(self) -> Array:
        observation = np.zeros(4, np.float32)
        observation[self.state] = 1.0
        return observation
