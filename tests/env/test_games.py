"""Rules of games, their opponents, and games as environments."""

from contextlib import closing
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiBinary
from gymnasium.wrappers import FilterObservation

from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import leaves, take_rows
from rlrun.env import Simulator, make, players_of, rules_of
from rlrun.env.match import Match, Matches
from rlrun.env.simulator import Move, Positions, drawn, lookahead, opponent_of, solve, uniform
from rlrun.env.toys import ConnectFour, RiskyBranch, TicTacToe
from rlrun.nn import Encoder, Normalizer

TICTACTOE, FOUR = TicTacToe.rules, ConnectFour.rules
WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def played(rules, moves):
    """Return the position after some moves, and the reward of the last one."""
    state, reward = rules.initial(np.zeros(1, np.uint64)), [0.0]
    for move in moves:
        assert rules.legal(state)[0, move]
        state, reward = rules.step(state, np.array([move]))
    return state, reward[0]


def board(rules, state):
    """Return 1 for stones of player 0, -1 for those of player 1, row by row."""
    first, second = rules.observe(state, np.zeros(len(state["turn"]), np.int64))["observation"].swapaxes(0, 1)
    return first - second


def games(rules, name, opponent, count, side):
    """Return the agent's results in games of two named players."""
    matches, player, total = Matches(rules, count, opponent=opponent, side=side), opponent_of(name), np.zeros(count)
    matches.reset(seed=0)
    over = np.zeros(count, np.bool_)
    for number in range(50):
        at, action = np.flatnonzero(~over), np.zeros(count, np.int64)
        draws = np.random.default_rng(number).random(len(at))
        action[at] = player(rules, take_rows(matches._state, at), draws, None).action
        _, reward, over, _, _ = matches.step(action)
        total += reward
        if over.all():
            return total
    raise AssertionError


def test_tictactoe_has_as_many_positions_and_values_as_by_hand():
    values = {}

    def value(cells, sign):
        """Return the value for who moves."""
        if (cells, sign) not in values:
            lost = any(all(cells[i] == -sign for i in line) for line in WINS)
            moves = [] if lost else [i for i in range(9) if not cells[i]]
            after = [-value((*cells[:i], sign, *cells[i + 1 :]), -sign) for i in moves]
            values[cells, sign] = -1 if lost else max(after, default=0)
        return values[cells, sign]

    value((0,) * 9, 1)
    assert len(values) == len(solve(TICTACTOE).keys) == 5478
    for cells, sign in [*values][::27]:
        stones = [sum(1 << i for i in range(9) if cells[i] == owner) for owner in (1, -1)]
        lost = any(all(cells[i] == -sign for i in line) for line in WINS)
        turn = -1 if lost or all(cells) else (1 - sign) // 2
        state = {"stones": np.array([stones], np.uint64), "turn": np.array([turn], np.int8)}
        scores = solve(TICTACTOE).scores(state)[0]
        free = [not lost and not cell for cell in cells]
        assert (scores > -np.inf).tolist() == TICTACTOE.legal(state)[0].tolist() == free
        if any(free):
            assert scores.max() == values[cells, sign]
            assert cells.count(0) > 6 or lookahead(TICTACTOE, state, 9).tolist() == [scores.tolist()]


@pytest.mark.parametrize(
    ("rules", "name", "opponent", "side", "won", "lost"),
    [
        (TICTACTOE, "random", "random", "first", 0.585, 0.288),
        (TICTACTOE, "random", "random", "second", 0.288, 0.585),
        (TICTACTOE, "perfect", "perfect", "first", 0.0, 0.0),
        (TICTACTOE, "perfect", "random", "first", 0.97, 0.0),
        (TICTACTOE, "random", "perfect", "first", 0.0, 0.775),
        (FOUR, "random", "random", "first", 0.556, 0.442),
    ],
)
def test_known_players_win_as_often_as_they_do(rules, name, opponent, side, won, lost):
    results = games(rules, name, opponent, 4_000, side)
    assert [(results > 0).mean(), (results < 0).mean()] == pytest.approx([won, lost], abs=0.025)
    if "perfect" in (name, opponent):
        assert not (results < 0).any() or name == "random"
        assert not (results > 0).any() or opponent == "random"


def test_looking_two_moves_ahead_wins_and_prevents_a_line():
    state, _ = played(FOUR, [0, 1, 0, 1, 0])  # three stones in column 0
    scores = lookahead(FOUR, state, 2)[0]
    assert np.flatnonzero(scores == scores.max()).tolist() == [0]
    state, _ = played(FOUR, [0, 1, 0, 1, 0, 6])
    assert lookahead(FOUR, state, 1)[0].tolist() == [1.0, 0, 0, 0, 0, 0, 0]


def test_connect_four_sees_each_line_as_a_search_of_all_cells_does():
    def lines(cells):
        won = {1: False, -1: False}
        for row in range(6):
            for column in range(7):
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    ends = row + 3 * down, column + 3 * right
                    if 0 <= ends[0] < 6 and 0 <= ends[1] < 7:
                        total = sum(cells[row + k * down, column + k * right] for k in range(4))
                        won[1] |= total == 4
                        won[-1] |= total == -4
        return won

    rng, over = np.random.default_rng(0), 0
    state = FOUR.initial(np.zeros(60, np.uint64))
    while len(state["turn"]):
        before, turn = board(FOUR, state), FOUR.turn(state)
        legal = FOUR.legal(state)
        assert (legal == (before[:, 0] == 0)).all()
        move = drawn(legal, rng.random(len(turn)))
        state, reward = FOUR.step(state, move)
        for cells, earlier, player, column, gain, now in zip(
            board(FOUR, state), before, turn, move, reward, FOUR.turn(state), strict=True
        ):
            (changed,) = np.argwhere(cells != earlier)
            assert changed[1] == column
            assert cells[tuple(changed)] == 1 - 2 * player
            assert not (earlier[changed[0] + 1 :, column] == 0).any()  # it lies on the others
            won = lines(cells)[1 - 2 * player]
            assert gain == won
            assert now == (-1 if won or (cells != 0).all() else 1 - player)
            over += now == -1
        state = take_rows(state, FOUR.turn(state) >= 0)
    assert over == 60


@pytest.mark.parametrize("moves", [[0, 0, 1, 1, 2, 2, 3], [3, 0, 3, 0, 3, 0, 3]], ids=["row", "column"])
def test_line_wins(moves):
    state, reward = played(FOUR, moves)
    assert (reward, FOUR.turn(state)[0]) == (1.0, -1)
    assert not FOUR.legal(state).any()


def test_observation_is_that_of_the_player():
    state, _ = played(TICTACTOE, [4, 0, 8])
    mine, other = TICTACTOE.observe(state, np.array([1]))["observation"][0]
    assert (np.flatnonzero(mine).tolist(), np.flatnonzero(other).tolist()) == ([0], [4, 8])
    assert TICTACTOE.text(state, 0).splitlines() == ["o 1 2", "3 x 5", "6 7 x"]
    assert FOUR.text(played(FOUR, [3, 3])[0], 0).splitlines()[3:] == [". . . 3 . . .", ". . . o . . .", "0 1 2 x 4 5 6"]


class Nim(Simulator):
    """Take one or two of seven stones; who takes the last one loses, and moves twice after having taken one."""

    observation_space = Dict({"observation": Box(0.0, 7.0, (1,)), "action_mask": MultiBinary(2)})
    actions = 2

    def initial(self, seeds):
        return np.stack((np.full(len(seeds), 7), np.zeros(len(seeds), np.int64)), 1)

    def turn(self, state):
        return np.where(state[:, 0] > 0, state[:, 1] // 2, -1)

    def legal(self, state):
        return state[:, :1] > np.arange(2)

    def step(self, state, action):
        left, player = state[:, 0] - 1 - action, state[:, 1] // 2
        again = (action == 0) & (state[:, 1] % 2 == 0)
        return np.stack((left, np.where(again, 2 * player + 1, 2 - 2 * player)), 1), np.where(left == 0, -1.0, 0.0)

    def observe(self, state, player):
        return {"observation": state[:, :1].astype(np.float32), "action_mask": self.legal(state).astype(np.int8)}


class NimMatch(Match):
    rules = Nim()


def test_own_game_is_solved_and_played():
    def value(left, again):
        scores = []
        for take in range(1, min(left, 2) + 1):
            repeats = take == 1 and not again
            after = -1 if left == take else value(left - take, again=repeats) * (1 if repeats else -1)
            scores.append(after)
        return max(scores)

    scores = solve(NimMatch.rules).scores(NimMatch.rules.initial(np.zeros(1, np.uint64)))[0]
    assert scores.max() == value(7, False)
    assert lookahead(NimMatch.rules, NimMatch.rules.initial(np.zeros(1, np.uint64)), 9)[0].tolist() == scores.tolist()
    results = games(NimMatch.rules, "perfect", "random", 200, "first")
    assert (results.min() == 1.0) == (value(7, False) == 1)
    assert set(games(NimMatch.rules, "random", "perfect", 200, "second")) <= {-1.0, 1.0}


def test_draws_are_uniform_and_independent_of_other_games():
    seeds = np.arange(20_000, dtype=np.uint64)
    numbers = np.stack([uniform(seeds, number) for number in range(4)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert np.histogram(numbers, 10, (0, 1))[0] / numbers.size == pytest.approx(0.1, abs=0.004)
    assert np.abs(np.corrcoef(numbers) - np.eye(4)).max() < 0.03
    assert np.abs(np.corrcoef(numbers[0][:-1], numbers[0][1:])[0, 1]) < 0.03
    assert uniform(seeds[7:8], np.array([2]))[0] == numbers[2, 7]


@pytest.mark.parametrize("opening", [0, 3])
def test_games_at_once_are_those_one_by_one(opening):
    options = {"opening": opening, "opponent": "random"}
    many = Matches(TICTACTOE, 5, **options)
    observation, _ = many.reset(seed=[3, 8, 9, 12, 13])
    seeds, rng = [3, 8, 9, 12, 13], np.random.default_rng(0)
    singles = [TicTacToe(**options) for _ in seeds]
    first = [single.reset(seed=seed)[0] for single, seed in zip(singles, seeds, strict=True)]
    for _ in range(12):
        for row, alone in enumerate(first):
            assert np.array_equal(take_rows(observation, row)["observation"], alone["observation"])
            assert np.array_equal(take_rows(observation, row)["action_mask"], alone["action_mask"])
        action = drawn(observation["action_mask"] > 0, rng.random(5))
        observation, reward, over, _, info = many.step(action)
        for row, single in enumerate(singles):
            first[row], gain, ended, _, said = single.step(action[row])
            assert (gain, ended, said["side"]) == (reward[row], over[row], info["side"][row])
            if ended:
                seeds[row] += 100
                first[row], _ = single.reset(seed=seeds[row])
        if over.any():
            some = [seed if ended else None for seed, ended in zip(seeds, over, strict=True)]
            observation, _ = many.reset(seed=some, options={"reset_mask": over})


def test_seeds_2k_and_2k_1_are_an_opening_from_both_sides():
    matches = Matches(FOUR, 2, opponent=None, opening=6)
    for seed in (4, 10):
        matches.reset(seed=[seed, seed + 1])
        assert (matches._state["stones"][0] == matches._state["stones"][1]).all()
    faced = Matches(FOUR, 2, opponent="random", opening=6)
    _, info = faced.reset(seed=[10, 11])
    assert info["side"].tolist() == ["first", "second"]
    assert faced._state["stones"][0].tolist() == matches._state["stones"][0].tolist()
    assert board(FOUR, faced._state)[1].astype(bool).sum() == 7  # the opponent has answered


def test_opening_does_not_end_a_game():
    matches = Matches(TICTACTOE, 200, opponent=None, opening=9)
    matches.reset(seed=0)
    assert (TICTACTOE.turn(matches._state) >= 0).all()


@pytest.mark.parametrize(
    ("opponent", "players", "answer"),
    [
        (None, None, 2),
        ("random", None, 1),
        (None, 2, 2),
        ("random", 1, 1),
        (None, 1, "wanted 2 or null, got 1: the agent plays both sides"),
        ("random", 2, "wanted 1 or null, got 2: .* env.kwargs.opponent=null"),
        (None, "abc", "wanted 1, 2 or null, got 'abc'"),
        (None, True, "wanted 1, 2 or null, got true"),
    ],
)
def test_players_are_those_that_the_environment_has(opponent, players, answer):
    env = make(target="rlrun.env.toys.TicTacToe", kwargs={"opponent": opponent}, vectorization="native")
    if isinstance(answer, int):
        assert players_of(env, players) == answer
    else:
        with pytest.raises(ConfigError, match=f"algorithm.players: {answer}"):
            players_of(env, players)


def test_forbidden_move_loses_at_once():
    env = TicTacToe(side="first")
    env.reset(seed=0)
    env.step(4)
    _, reward, terminated, truncated, _ = env.step(4)
    assert (reward, terminated, truncated) == (-1.0, True, False)

    class Stubborn:
        def begin(self, rules, count):
            return np.zeros((count, 1))

        def __call__(self, rules, state, draws, memory):
            return Move(np.full(len(draws), 4), memory + 1)

    matches = Matches(TICTACTOE, 2, opponent=Stubborn(), side="first")
    matches.reset(seed=0)
    _, reward, over, _, _ = matches.step(np.array([4, 0]))
    assert (reward.tolist(), over.tolist()) == ([1.0, 0.0], [True, False])
    matches.reset(options={"reset_mask": np.array([False, True])})
    assert matches._memory.tolist() == [[1.0], [0.0]]  # a fresh game is remembered from its begin


def test_open_games_go_on_with_what_the_opponent_remembers():
    class Alternating:
        def begin(self, rules, count):
            return {"moves": np.zeros(count, np.int64)}

        def __call__(self, rules, state, draws, memory):
            legal = rules.legal(state)
            last = legal.shape[1] - 1 - legal[:, ::-1].argmax(1)
            return Move(np.where(memory["moves"] % 2, last, legal.argmax(1)), {"moves": memory["moves"] + 1})

    whole, resumed = (Matches(TICTACTOE, 2, opponent=Alternating(), side="first") for _ in range(2))
    whole.reset(seed=0)
    whole.step(np.array([4, 4]))
    resumed.load_open_state(whole.open_state())
    for matches in (whole, resumed):
        matches.step(np.array([3, 5]))
    assert board(TICTACTOE, whole._state).tolist() == board(TICTACTOE, resumed._state).tolist()


def test_both_sides_are_played_without_an_opponent():
    env, total = TicTacToe(opponent=None), []
    observation, info = env.reset(seed=0)
    for move in (0, 3, 1, 4, 2):
        assert observation["observation"][1].sum() - observation["observation"][0].sum() == len(total) % 2
        observation, reward, terminated, _, info = env.step(move)
        total.append(reward)
    assert (total, terminated, info) == ([0, 0, 0, 0, 1], True, {})


@pytest.mark.parametrize("rules", [FOUR, NimMatch.rules], ids=["stones", "array"])
def test_a_search_goes_on_from_the_position_in_observations(rules):
    matches, positions = Matches(rules, 6, opponent=None, rules_state=True), Positions(rules)
    observation, _ = matches.reset(seed=0)
    for _ in range(3):
        assert matches.single_observation_space.contains(take_rows(observation, 0))
        state = positions.of(observation)
        assert all(map(np.array_equal, *(list(flat(tree)) for tree in (state, matches._state))))
        seen = rules.observe(state, rules.turn(state))
        assert {name: observation[name].tolist() for name in seen} == {name: seen[name].tolist() for name in seen}
        observation, *_ = matches.step(drawn(rules.legal(state), np.linspace(0.0, 0.9, 6)))


def flat(tree):
    return tree.values() if isinstance(tree, dict) else [tree]


def test_networks_do_not_see_the_position():
    spaces = make(target="rlrun.env.toys.TicTacToe", kwargs={"rules_state": True}).spaces
    assert [path for path, _ in leaves(spaces.observation)] == ["action_mask", "observation", "rules_state"]
    assert Encoder(spaces).size == 18
    assert Normalizer(spaces).leaves == ("observation",)


@pytest.mark.parametrize("vectorization", ["native", "sync", "async"])
def test_rules_are_those_of_the_game(vectorization):
    env = make(target="rlrun.env.toys.TicTacToe", vectorization=vectorization, kwargs={"rules_state": True})
    with closing(env):
        assert rules_of(env).lines.tolist() == TICTACTOE.lines.tolist()
        env.end()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "CartPole-v1"}, "^env: 'cartpole' has no rules to search by; wanted a game, as env=tictactoe"),
        ({"id": "CartPole-v1", "kwargs": {"rules_state": True}}, "^env.kwargs.rules_state: .* search by rules wants a"),
        ({"target": "rlrun.env.toys.TicTacToe"}, "^env.kwargs.rules_state: wanted true"),
        (
            {
                "target": "rlrun.env.toys.TicTacToe",
                "kwargs": {"rules_state": True},
                "wrappers": [partial(FilterObservation, filter_keys=["rules_state"])],
            },
            "^env.wrappers: a search reads {.*observation: Box.*; leave out wrappers that change observations",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        rules_of(make(**options))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"opponent": "perfekt"}, "env.kwargs.opponent: wanted random, perfect, or a number of moves"),
        ({"opponent": 0}, "env.kwargs.opponent: it looks ahead at least 1 move, got 0"),
        ({"opponent": 999}, "env.kwargs.opponent: it looks ahead at most 7 moves in ConnectFourRules, got 999"),
        (
            {"opponent": "perfect"},
            "env.kwargs.opponent: perfect moves come from a table, and ConnectFourRules has more",
        ),
        ({"side": "left"}, "env.kwargs.side"),
        ({"opening": -1}, "env.kwargs.opening: wanted a whole number from 0, got -1"),
    ],
)
@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_wrong_players_are_one_line(kwargs, message, vectorization):
    with pytest.raises(ConfigError) as caught:
        make(target="rlrun.env.toys.ConnectFour", kwargs=kwargs, vectorization=vectorization)
    assert str(caught.value).startswith(message)


def test_riskybranch_pays_less_on_the_risky_one():
    env, risky = RiskyBranch(), []
    for seed in range(400):
        observation, _ = env.reset(seed=seed)
        observation, *_ = env.step(0)
        best = {1: 0, 3: 1}[int(observation.argmax())]
        _, reward, terminated, _, _ = env.step(best)
        risky.append(reward)
        assert terminated
    assert np.mean(risky) == pytest.approx(1.5, abs=0.06)
    env.reset(seed=0)
    assert env.step(1)[0].tolist() == [0, 0, 1, 0]
    assert env.step(0)[1:3] == (1.8, True)
