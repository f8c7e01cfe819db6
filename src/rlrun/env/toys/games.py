"""Tic-tac-toe and connect four, with their rules: stones on a board, as bits."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary

from rlrun.core.typing import Array, Tree
from rlrun.env.match import Match
from rlrun.env.simulator import Simulator

ONE = np.uint64(1)


class Stones(Simulator):
    """Two players put stones on a board in turn; who completes a line wins: reward 1.

    State: {"stones": [N, 2] uint64, a bit for each stone of each player; "turn": [N] int8}. Observation:
    {"observation": [2, rows, columns], the stones of who looks and those of the other; "action_mask": [A]}.

    Args:
        cells: bit of each cell [rows, columns], the upper row first.
        actions: number of moves.
    """

    marks = ("x", "o")  # of the players, for a person

    def __init__(self, cells: Array, actions: int) -> None:
        self.cells, self.actions = cells.astype(np.uint64), actions
        self.full = np.bitwise_or.reduce(ONE << self.cells.reshape(-1))
        board = Box(0.0, 1.0, (2, *cells.shape), np.float32)
        self.observation_space = Dict({"observation": board, "action_mask": MultiBinary(actions)})

    @abstractmethod
    def placed(self, occupied: Array, action: Array) -> Array:
        """Return the bit [N] of the stone that a move puts down."""

    @abstractmethod
    def wins(self, stones: Array) -> Array:
        """Return whether stones [N] have a line."""

    @abstractmethod
    def free(self, occupied: Array) -> Array:
        """Return which moves have a free cell: [N, A]."""

    def initial(self, seeds: Array) -> Tree:
        return {"stones": np.zeros((len(seeds), 2), np.uint64), "turn": np.zeros(len(seeds), np.int8)}

    def turn(self, state: Tree) -> Array:
        turn: Array = state["turn"]
        return turn

    def legal(self, state: Tree) -> Array:
        stones: Array = state["stones"]
        allowed: Array = self.free(stones[:, 0] | stones[:, 1]) & (state["turn"] >= 0)[:, None]
        return allowed

    def step(self, state: Tree, action: Array) -> tuple[Tree, Array]:
        stones, turn = state["stones"].copy(), state["turn"]
        every, occupied = np.arange(len(stones)), stones[:, 0] | stones[:, 1]
        bit = self.placed(occupied, np.asarray(action).astype(np.uint64))
        stones[every, turn] |= bit
        won = self.wins(stones[every, turn])
        over = won | (occupied | bit == self.full)
        return {"stones": stones, "turn": np.where(over, -1, 1 - turn).astype(np.int8)}, won.astype(np.float32)

    def observe(self, state: Tree, player: Array) -> Tree:
        stones = state["stones"]
        seen = stones[np.arange(len(stones))[:, None], np.stack((player, 1 - player), 1)]  # [N, 2]
        board = (seen[:, :, None, None] >> self.cells) & ONE
        return {"observation": board.astype(np.float32), "action_mask": self.legal(state).astype(np.int8)}

    def text(self, state: Tree, row: int) -> str:
        """Return the board of one position: x of player 0, o of player 1, and moves where they put a stone."""
        stones = state["stones"][row]
        moves = np.flatnonzero(self.legal(state)[row]).astype(np.uint64)
        bits = [*stones, *self.placed(np.full(len(moves), stones[0] | stones[1]), moves)]
        board = np.full(self.cells.shape, ".")
        for bit, mark in zip(bits, (*self.marks, *map(str, moves)), strict=True):
            board[(bit >> self.cells) & ONE == ONE] = mark
        return "\n".join(" ".join(line) for line in board)


class TicTacToeRules(Stones):
    """Three in a row on 3 × 3 cells; move k is cell k, row by row."""

    def __init__(self) -> None:
        super().__init__(np.arange(9).reshape(3, 3), 9)
        board = np.arange(9).reshape(3, 3)
        lines: Sequence[Array] = [*board, *board.T, board.diagonal(), board[::-1].diagonal()]
        self.lines = np.array([sum(1 << int(cell) for cell in line) for line in lines], np.uint64)

    def placed(self, occupied: Array, action: Array) -> Array:
        bit: Array = ONE << action
        return bit

    def wins(self, stones: Array) -> Array:
        won: Array = (stones[:, None] & self.lines == self.lines).any(1)
        return won

    def free(self, occupied: Array) -> Array:
        empty: Array = (occupied[:, None] >> np.arange(9, dtype=np.uint64)) & ONE == 0
        return empty


class ConnectFourRules(Stones):
    """Four in a row on 6 × 7 cells; move k drops a stone into column k.

    A column has seven bits from below. The seventh stays empty, so that no line goes on in the next column.
    """

    def __init__(self) -> None:
        self.bottoms = ONE << np.arange(0, 49, 7, dtype=np.uint64)
        super().__init__(np.arange(7) * 7 + np.arange(6)[::-1, None], 7)

    def placed(self, occupied: Array, action: Array) -> Array:
        column = np.uint64(63) << (np.uint64(7) * action)
        bit: Array = (occupied + self.bottoms[action]) & column
        return bit

    def wins(self, stones: Array) -> Array:
        won = np.zeros(len(stones), np.bool_)
        for step in (1, 7, 6, 8):  # up, to the right, and both diagonals
            pairs = stones & (stones >> np.uint64(step))
            won |= pairs & (pairs >> np.uint64(2 * step)) != 0
        return won

    def free(self, occupied: Array) -> Array:
        empty: Array = occupied[:, None] & (self.bottoms << np.uint64(5)) == 0
        return empty


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
