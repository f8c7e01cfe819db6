"""A person as an opponent in games, by typed moves."""

from collections.abc import Callable

import numpy as np

from rlrun.collect.evaluate import Moment
from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.match import SIDES
from rlrun.env.simulator import Move, Simulator

RESULTS = {1: "the policy wins", 0: "a draw", -1: "you win"}


class Person:
    """An opponent whose moves a person types, after each position is printed.

    Args:
        ask: shows a question and returns the answer.
        say: called with each text to print.
    """

    def __init__(self, ask: Callable[[str], str], say: Callable[[str], None]) -> None:
        self.ask, self.say = ask, say

    def begin(self, rules: Simulator, count: int) -> Tree:
        if not hasattr(rules, "text"):
            raise ConfigError(f"{type(rules).__name__} has no text(state, row) that shows a position to a person")
        return None

    def __call__(self, rules: Simulator, state: Tree, draws: Array, memory: Tree) -> Move:
        return Move(np.array([self._move(rules, take_rows(state, [row])) for row in range(len(draws))]))

    def _move(self, rules: Simulator, state: Tree) -> int:
        """Return a move in one position; ask until it is legal.

        Raises:
            RequestError: there are no more answers.
        """
        self.say(rules.text(state, 0))  # type: ignore[attr-defined]
        moves = [str(move) for move in np.flatnonzero(rules.legal(state)[0])]
        turn = int(rules.turn(state)[0])
        side = " ".join([SIDES[turn], *getattr(rules, "marks", ("", ""))[turn : turn + 1]]).strip()
        question = f"your move as {side} ({' '.join(moves)})"
        while True:
            try:
                answer = self.ask(f"{question}: ").strip()
            except EOFError as error:
                raise RequestError("play: the game ends here, as no move was typed") from error
            if answer in moves:
                return int(answer)
            self.say(f"wanted one of {' '.join(moves)}")

    def watch(self, show: Callable[[], list[str]]) -> Callable[[Moment], None]:
        """Return a watcher that prints the result of each game; show: returns the lines of the position."""

        def watch(moment: Moment) -> None:
            if moment.ending is not None:
                for line in [*show(), f"seed {moment.seed}: {RESULTS[int(np.sign(moment.total))]}"]:
                    self.say(line)

        return watch
