"""Lines of small games against best play."""

from benchmarks.games import lines

from rlrun.core.spaces import take_rows
from rlrun.env.simulator import solve
from rlrun.env.toys import TicTacToe

RULES = TicTacToe.rules
WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def by_hand(player):
    """Return the results of all lines for who takes the first free cell, as player 1 or -1."""
    known = {}

    def value(cells, sign):
        if any(all(cells[i] == -sign for i in line) for line in WINS):
            return -1
        if all(cells):
            return 0
        if (cells, sign) not in known:
            known[cells, sign] = max(-value(after, -sign) for after in moves(cells, sign))
        return known[cells, sign]

    def moves(cells, sign):
        return [(*cells[:i], sign, *cells[i + 1 :]) for i in range(9) if not cells[i]]

    def results(cells, sign):
        lost = any(all(cells[i] == -sign for i in line) for line in WINS)
        if lost or all(cells):
            return [(-sign if lost else 0) * player]
        after = moves(cells, sign)
        best = max(-value(board, -sign) for board in after)
        chosen = after[:1] if sign == player else [board for board in after if -value(board, -sign) == best]
        return [result for board in chosen for result in results(board, -sign)]

    return results((0,) * 9, 1)


def test_lines_are_those_of_a_walk_by_hand():
    first, second = by_hand(1), by_hand(-1)
    assert min(first) == min(second) == -1
    assert lines(RULES, lambda state: RULES.legal(state).argmax(1)) == {
        "lines": len(first) + len(second),
        "lost": first.count(-1) + second.count(-1),
        "drawn": first.count(0) + second.count(0),
        "lost_as_first": first.count(-1),
        "lost_as_second": second.count(-1),
    }


def test_best_play_loses_no_line():
    counts = lines(RULES, lambda state: solve(RULES).scores(take_rows(state, slice(None))).argmax(1))
    assert counts["lost"] == 0
    assert counts["drawn"] == counts["lines"] > 50
