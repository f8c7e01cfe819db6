"""PettingZoo's classic games, by their moves; connect four against rlrun's own."""

import numpy as np
import pytest

from rlrun.core.errors import RequestError
from rlrun.env.toys import ConnectFour

pytest.importorskip("pettingzoo")

from rlrun.env.pettingzoo import PettingZoo, PettingZooRules


def test_connect_four_has_the_moves_ends_and_rewards_of_our_own():
    games, own = 6, ConnectFour.rules
    rules, rng = PettingZooRules("connect_four_v3"), np.random.default_rng(0)
    state, wanted = rules.initial(np.zeros(games, np.uint64)), own.initial(np.zeros(games, np.uint64))
    lost: list[float] = []
    for _ in range(42):
        assert np.array_equal(rules.legal(state), own.legal(wanted))
        assert np.array_equal(rules.turn(state), own.turn(wanted))
        player = np.maximum(rules.turn(state), 0)
        planes = rules.observe(state, player)["observation"].transpose(0, 3, 1, 2)
        assert np.array_equal(planes, own.observe(wanted, player)["observation"])
        on = np.flatnonzero(rules.turn(state) >= 0)
        if not len(on):
            break
        state, wanted = ({name: leaf[on] for name, leaf in part.items()} for part in (state, wanted))
        action = np.array([rng.choice(np.flatnonzero(row)) for row in rules.legal(state)])
        before = state["moves"].copy()
        (after, reward), (wanted, wanted_reward) = rules.step(state, action), own.step(wanted, action)
        assert np.array_equal(reward, wanted_reward)
        assert np.array_equal(state["moves"], before)
        lost += reward[reward > 0].tolist()
        state = after
    assert lost  # somebody won
    rules._kept.clear()  # positions are played from the first one again
    assert np.array_equal(rules.turn(state), own.turn(wanted))


def test_open_games_go_on_in_another_process():
    for game in ("connect_four_v3", "tictactoe_v3"):
        here, there = (PettingZoo.vector_entry_point(4, game=game) for _ in range(2))
        there.rules = PettingZooRules(game)
        here.reset(seed=1), there.reset(seed=7)
        here.step(np.array([0, 1, 2, 3]))
        seen = there.load_open_state(here.open_state())
        assert all(np.array_equal(seen[name], leaf) for name, leaf in here._observed().items())
        mine, theirs = (games.step(np.array([4, 5, 6, 5])) for games in (here, there))
        assert all(np.array_equal(a, b) for a, b in zip(mine[1:3], theirs[1:3], strict=True))
        assert np.array_equal(mine[0]["observation"], theirs[0]["observation"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"game": "tictactoe_v2"}, "env.kwargs.game: PettingZoo has no classic game 'tictactoe_v2' .*'tictactoe_v3'"),
        ({"opponent": "perfect"}, "env.kwargs.opponent: perfect moves come from a table"),
        ({"opponent": 5}, "env.kwargs.opponent: it looks ahead at most 4 moves"),
        ({"game": "rps_v2", "rules_state": True}, "env.kwargs.rules_state: wanted false: .* hides"),
        ({"game": "rps_v2", "opponent": 1}, "env.kwargs.opponent: .* would see what is hidden"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    with pytest.raises(RequestError, match=said):
        PettingZoo.vector_entry_point(1, **arguments)
