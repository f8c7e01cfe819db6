"""Claims about games that are learned by self-play: lines that are lost against best play, by the last networks."""

from __future__ import annotations

from benchmarks.claims import Claim
from benchmarks.games import beaten, lines_lost, share_of_lines_lost

LOST = "of all lines against moves that keep their minimax value, as first and as second"
CLAIMS = {
    "alphazero-tictactoe": Claim(
        ("algorithm=alphazero", "env=tictactoe"),
        0.0,
        unit=f"lines lost, {LOST}",
        measured=lines_lost,
        at_most=True,
    ),
    "muzero-tictactoe": Claim(
        (
            *("algorithm=muzero", "env=tictactoe", "env.kwargs.opponent=null", "algorithm.search.simulations=50"),
            *("algorithm.discount=1.0", "algorithm.search.bounds=[-1.0,1.0]", "algorithm.td_steps=-1"),
            *("evaluation.every=0", "num_envs=32", "stop.env_steps=200_000"),
        ),
        0.02,
        unit=f"share lost {LOST}",
        measured=share_of_lines_lost,
        enough=4,
        at_most=True,
    ),
    "alphazero-connectfour": Claim(
        ("algorithm=alphazero", "env=connectfour", "stop.env_steps=500_000", "evaluation.every=0"),
        0.9,
        unit="mean of 1 for a game won and 0.5 for a draw, of 200 from 50 openings, against a search of playouts",
        measured=beaten,
        enough=4,
    ),
}
