"""What a run plays in a small game, over all lines against an opponent that makes no mistake.

    python -m benchmarks.games RUN          lines of tic-tac-toe
    python -m benchmarks.games RUN points   games of connect four against a search of random playouts

A line is a game from the first position. The run plays one move in each position, its opponent each of its best ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rlrun
from benchmarks.process import run, run_for_json
from rlrun.algorithms.search import SearchPlayer
from rlrun.collect.agents import alone
from rlrun.commands.opponents import RunPlayer
from rlrun.core.spaces import put_rows, take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env import Matches, Simulator
from rlrun.env.simulator import packed, solve
from rlrun.env.toys import ConnectFour, TicTacToe

Moves = Callable[[Tree], Array]  # from positions [n, …] to moves [n]
BESIDE = "beside.json"  # what a measurement found besides its number


def lines(rules: Simulator, moves: Moves) -> dict[str, int]:
    """Return how many lines there are, as first and as second, and how many of them are lost and drawn."""
    counts = dict.fromkeys(("lines", "lost", "drawn", "lost_as_first", "lost_as_second"), 0)
    for player, side in enumerate(("first", "second")):
        state, count = rules.initial(np.zeros(1, np.uint64)), np.ones(1, np.int64)
        while len(count):
            mine = rules.turn(state) == player
            rows, actions = _choices(rules, state, moves, mine)
            after, reward = rules.step(take_rows(state, rows), actions)
            gain, over = np.where(mine[rows], reward, -reward), rules.turn(after) < 0
            ended = count[rows]
            lost = int(ended[over & (gain < 0)].sum())
            counts["lines"] += int(ended[over].sum())
            counts["lost"] += lost
            counts[f"lost_as_{side}"] += lost
            counts["drawn"] += int(ended[over & (gain == 0)].sum())
            state, count = _merged(take_rows(after, ~over), ended[~over])
    return counts


def _choices(rules: Simulator, state: Tree, moves: Moves, mine: Array) -> tuple[Array, Array]:
    """Return rows and moves [k]: the run's own one, and each best one of its opponent."""
    chosen = np.zeros((len(mine), rules.actions), np.bool_)
    own, other = np.flatnonzero(mine), np.flatnonzero(~mine)
    if len(own):
        chosen[own, moves(take_rows(state, own))] = True
    if len(other):
        scores = solve(rules).scores(take_rows(state, other))
        chosen[other] = scores == scores.max(1, keepdims=True)
    rows, actions = np.nonzero(chosen)
    return rows, actions


def _merged(state: Tree, count: Array) -> tuple[Tree, Array]:
    """Return each position once, with the number of lines that lead there."""
    if not len(count):
        return state, count
    _, first, where = np.unique(packed(state), axis=0, return_index=True, return_inverse=True)
    return take_rows(state, first), np.bincount(where.ravel(), count).astype(np.int64)


def played(run_dir: Path | str, rules: Simulator) -> dict[str, dict[str, int]]:
    """Return the lines of a run's newest policy as it plays, and of its network alone."""
    results = {}
    for name in ("run", "alone"):
        policy = rlrun.load(run_dir)
        if name == "alone":
            policy.agent = alone(policy.agent)
        player = RunPlayer(str(run_dir), policy)
        player.begin(rules, 1)
        results[name] = lines(rules, lambda state, player=player: player(rules, state, np.zeros(1), None).action)
    return results


def points(run_dir: Path | str, rules: Simulator, openings: int = 50, games: int = 200) -> float:
    """Return the mean of 1 for a game won and 0.5 for a draw, against PUCT with one random playout a position.

    Each opening has four random moves, and as many games as first as as second.
    """
    begin = Matches(rules, openings, opponent=None, opening=4)
    begin.reset(seed=range(0, 2 * openings, 2))
    state = take_rows(begin.open_state()["state"], np.arange(games) % openings)
    side, total, rng = np.arange(games) // openings % 2, np.full(games, 0.5), np.random.default_rng(0)
    player, opponent = RunPlayer(str(run_dir), rlrun.load(run_dir)), SearchPlayer(200, playouts=1)
    player.begin(rules, 1)
    while (rules.turn(state) >= 0).any():
        for mover, mine in ((player, True), (opponent, False)):
            turn = rules.turn(state)
            rows = np.flatnonzero((turn >= 0) & ((turn == side) == mine))
            if len(rows):
                here = take_rows(state, rows)
                after, reward = rules.step(here, mover(rules, here, rng.random(len(rows)), None).action)
                put_rows(state, rows, after)
                total[rows] += 0.5 * (reward if mine else -reward)
    return float(total.mean())


def lines_lost(overrides: list[str], folder: Path) -> float:
    """Train on tic-tac-toe; return how many lines the run loses, and note those of its network alone."""
    return float(_lines(overrides, folder)["lost"])


def share_of_lines_lost(overrides: list[str], folder: Path) -> float:
    """Train on tic-tac-toe; return the share of lines that the run loses, and note those of its network alone."""
    result = _lines(overrides, folder)
    return result["lost"] / result["lines"]


def _lines(overrides: list[str], folder: Path) -> dict[str, int]:
    result: dict[str, Any] = _trained(overrides, folder, "lines")
    (folder / BESIDE).write_text(json.dumps(result))
    lines_of_run: dict[str, int] = result["run"]
    return lines_of_run


def beaten(overrides: list[str], folder: Path) -> float:
    """Train on connect four; return the points of the run against a search of playouts."""
    return float(_trained(overrides, folder, "points")["points"])


def _trained(overrides: list[str], folder: Path, measure: str) -> dict[str, Any]:
    """Train, then measure in another process."""
    run_dir = folder / "run"
    run(["-m", "rlrun", "train", *overrides, "logger=[]", "--run-dir", str(run_dir)], folder=folder)
    return run_for_json(["-m", "benchmarks.games", str(run_dir), measure], folder=folder)


if __name__ == "__main__":
    if sys.argv[2:] == ["points"]:
        print(json.dumps({"points": points(sys.argv[1], ConnectFour.rules)}))
    else:
        print(json.dumps(played(sys.argv[1], TicTacToe.rules)))
