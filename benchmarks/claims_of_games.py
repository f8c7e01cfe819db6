"""Claims about games that are learned by self-play: lines that are lost against best play, by the last networks."""

from __future__ import annotations

from benchmarks.claims import Claim
from benchmarks.games import lines_lost

CLAIMS = {
    "alphazero-tictactoe": Claim(
        ("algorithm=alphazero", "env=tictactoe"),
        0.0,
        unit="lines lost, of all those against moves that keep their minimax value, as first and as second",
        measured=lines_lost,
        at_most=True,
    ),
}
