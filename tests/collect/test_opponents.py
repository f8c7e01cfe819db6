"""Evaluations against opponents, by side."""

import json
from functools import partial

import numpy as np
import pytest
from tests.short import SMALL, shrink

import rlrun
from rlrun.callbacks import Evaluator
from rlrun.collect import evaluate
from rlrun.collect.evaluate import stage
from rlrun.commands.opponents import opponents_of
from rlrun.config import compose
from rlrun.core.errors import ConfigError, RequestError
from rlrun.core.spaces import take_rows
from rlrun.env import make
from rlrun.env.simulator import Move, opponent_of
from rlrun.env.toys import TicTacToe

RULES = TicTacToe.rules
GAME = "rlrun.env.toys.TicTacToe"


class Player:
    """An agent that plays as a named opponent does."""

    outputs = ("action",)

    def __init__(self, name):
        self.player = opponent_of(name)
        self.player.begin(RULES, 1)

    def __call__(self, observation, state=None, *, explore=True):
        board, mask = observation["observation"].reshape(-1, 2, 9), observation["action_mask"]
        mine, other = (board @ (1 << np.arange(9))).astype(np.uint64).T
        second = (board.sum(-1) @ [-1, 1]).astype(np.int64)
        stones = np.where(second[:, None] == 0, np.stack((mine, other), 1), np.stack((other, mine), 1))
        position = {"stones": stones, "turn": np.where(mask.any(1), second, -1).astype(np.int8)}
        action, rows = np.zeros(len(mask), np.int64), np.flatnonzero(mask.any(1))
        action[rows] = self.player(RULES, take_rows(position, rows), np.full(len(rows), 0.5), None).action
        return {"action": action}


def tictactoe(num_envs=1, vectorization="native", **kwargs):
    return make(target=GAME, num_envs=num_envs, vectorization=vectorization, kwargs=kwargs)


def test_perfect_play_is_drawn_by_perfect_play_and_never_lost_to_random_moves():
    env = tictactoe(8)
    results = evaluate(
        stage(env, 40), Player("perfect"), episodes=40, seed=6, opponents={"any": "random", "best": "perfect"}
    )
    assert results.opponents == ["any"] * 40 + ["best"] * 40
    assert results.sides == ["first", "second"] * 40
    assert results.seeds == [*range(6, 46)] * 2
    scores = {(score.opponent, score.side): score for score in results.scores()}
    assert [*scores] == [(name, side) for name in ("any", "best") for side in ("", "first", "second")]
    assert {name: scores["best", ""].shares[name] for name in ("won", "drawn", "lost", "mean_return")} == {
        "won": 0.0,
        "drawn": 1.0,
        "lost": 0.0,
        "mean_return": 0.0,
    }
    won, drawn, lost = scores["any", "first"].counts
    assert (won + drawn, lost) == (20, 0)
    assert won > 15
    assert scores["any", ""].counts == [
        sum(counts) for counts in zip(*(scores["any", side].counts for side in ("first", "second")), strict=True)
    ]
    assert scores["any", "second"].returns == results.returns[1:40:2]


@pytest.mark.parametrize("vectorization", ["native", "sync"])
@pytest.mark.parametrize("num_envs", [1, 7])
def test_games_are_those_of_their_seeds_on_any_number_of_envs(num_envs, vectorization):
    kwargs = {"episodes": 30, "seed": 3}
    whole = evaluate(stage(tictactoe(), 30), Player(1), **kwargs)
    envs = stage(tictactoe(vectorization=vectorization), 30, num_envs)
    assert envs.num_envs == num_envs
    again = evaluate(envs, Player(1), **kwargs)
    assert again == evaluate(envs, Player(1), **kwargs)
    assert again == whole
    assert len({*whole.returns}) > 1
    assert evaluate(envs, Player(1), episodes=30, seed=4).returns != whole.returns


def test_environment_without_sides_has_no_scores():
    results = evaluate(make("CartPole-v1"), lambda *_, **__: {"action": np.zeros(1, np.int64)}, episodes=1, seed=0)
    assert (results.sides, results.scores()) == ([], [])
    with pytest.raises(ConfigError, match=r"^environment 'cartpole' has no method face\(opponent\)"):
        make("CartPole-v1").face("random")
    with pytest.raises(ConfigError, match=r"^opponent any: environment 'cartpole' has no method"):
        Evaluator(make("CartPole-v1"), lambda: None, every=5, opponents={"any": "random"})


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_who_plays_both_sides_is_evaluated_against_opponents_alone(vectorization):
    alone = partial(tictactoe, 2, vectorization, opponent=None)
    with pytest.raises(ConfigError, match=r"^env.kwargs.opponent=null: .* evaluation.opponents=\{any: random\}"):
        Evaluator(alone(), Player("random"), every=5)
    Evaluator(alone(), Player("random"), every=0)
    Evaluator(alone(), Player("random"), every=5, opponents={"any": "random"})
    faced = make(
        target=GAME,
        vectorization=vectorization,
        kwargs={"opponent": None},
        evaluation={"kwargs": {"opponent": "perfect"}},
    )
    Evaluator(faced, Player("random"), every=5)
    results = evaluate(stage(alone(), 8), Player("perfect"), episodes=8, seed=0, opponents={"any": "random"})
    assert min(results.returns) >= 0.0


def test_open_games_go_on_after_a_resume():
    env, other = (tictactoe(4, opening=1) for _ in range(2))
    observation = env.reset([1, 2, 3, 4])
    env.step(observation["action_mask"].argmax(1))
    state = json.loads(json.dumps({"none": None})) | env.state_dict()
    other.load_state_dict(state)
    resumed = other.resume_episodes()
    assert resumed.lost == {}
    action = resumed.observation["action_mask"].argmax(1)
    assert all(map(np.array_equal, *(list(flat(envs.step(action))) for envs in (env, other))))
    over = np.array([True, False, False, True])
    assert all(map(np.array_equal, *(list(flat(envs.restart(over, [8, 9]))) for envs in (env, other))))
    env.close()
    assert env.state_dict()["open"]["seeds"].tolist() == [8, 2, 3, 9]


def flat(step):
    parts = step.values() if isinstance(step, dict) else step[:4]
    return [leaf for part in parts for leaf in (part.values() if isinstance(part, dict) else [part])]


def trained(folder, *overrides):
    composed = compose(["algorithm=dqn", "env=tictactoe", "preset=null", *overrides])
    shrink(composed, {**SMALL, "evaluation.episodes": 4, "evaluation.max_steps": None})
    return rlrun.train(composed, run_dir=folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return trained(folder / "run", "evaluation.opponents={any: random, best: perfect}").run_dir


SEARCH = "{_target_: rlrun.algorithms.search.SearchPlayer, simulations: 9}"


def evaluated(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(record for record in reversed(records) if "evaluation/mean_return" in record)


def test_run_is_evaluated_against_its_opponents(run):
    record = evaluated(run)
    means = [record[f"evaluation/{name}/mean_return"] for name in ("any", "best")]
    assert record["evaluation/mean_return"] == np.mean(means)
    report = rlrun.evaluate(run, episodes=4, seed=rlrun.core.seeds.Seeds(0).evaluation)
    assert report.opponents == ["any"] * 4 + ["best"] * 4
    for score in report.scores():
        place = "/".join(filter(None, ("evaluation", score.opponent, score.side)))
        assert {name: record[f"{place}/{name}"] for name in score.shares} == score.shares
    assert json.loads((run / "summary.json").read_text())["evaluation"]["episodes"] == 8


def test_separate_process_has_the_same_results(run, tmp_path):
    opponents = f"evaluation.opponents={{any: random, best: perfect, other: {run}}}"
    records = [
        evaluated(trained(tmp_path / str(aside), opponents, f"evaluation.async={aside}").run_dir)
        for aside in (False, True)
    ]
    games = [{name: value for name, value in record.items() if name.startswith("evaluation/")} for record in records]
    assert games[0] == games[1]
    assert "evaluation/other/second/lost" in games[0]


def test_runs_play_against_each_other(run, tmp_path):
    recurrent = trained(tmp_path / "recurrent", "algorithm.recurrent=gru", "algorithm.core_size=8").run_dir
    play = partial(rlrun.evaluate, run, episodes=6, seed=2)
    report = play(opponents=[str(recurrent), f"{run}@latest", "2"])
    assert report.opponents == [name for name in (str(recurrent), f"{run}@latest", "2") for _ in range(6)]
    assert play(opponents={"it": recurrent}).returns == report.returns[:6]
    one_by_one = [play(opponents={"it": str(recurrent)}, episodes=1, seed=seed).returns[0] for seed in range(2, 8)]
    assert one_by_one == report.returns[:6]
    assert report.returns[:2] == report.returns[2:4] == report.returns[4:6]  # nobody draws a move
    text = report.describe()
    assert f"won, drawn, lost: first against {recurrent} " in text
    assert [score["side"] for score in report.to_json()["scores"]] == [None, "first", "second"] * 3


@pytest.mark.parametrize(
    ("opponents", "error", "message"),
    [
        (["nobody"], RequestError, "^opponent nobody: .*nobody does not exist.*perfect"),
        ({"it": 0.5}, RequestError, "^opponent it: wanted random, perfect, .* got 0.5"),
        (["0"], RequestError, "^opponent 0: it looks ahead at least 1 move"),
    ],
)
def test_wrong_opponents_are_one_line(opponents, error, message):
    with pytest.raises(error, match=message):
        opponents_of(opponents)


def test_run_of_somebody_else_is_trusted_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(RequestError, match=rf"^opponent it: this run .* say --trust in rlrun eval {run}$"):
        opponents_of({"it": str(run)})
    assert opponents_of({"it": f"{run}@latest"}, trust=True).keys() == opponents_of({"it": run}).keys()


def test_run_of_another_game_is_refused(run):
    four = make(target="rlrun.env.toys.ConnectFour", vectorization="native")
    with pytest.raises(ConfigError, match=r"^run@\d+-\d+ knows observations Dict.*, and those of the game are"):
        four.face(opponents_of([str(run)])[str(run)])
    assert opponents_of({"one": "random", "none": None}) == {"one": "random"}


def test_opponents_are_parts_by_name(tmp_path):
    words = ["algorithm=dqn", "env=tictactoe", f"evaluation.opponents.tree={SEARCH}", f"env.kwargs.opponent={SEARCH}"]
    config = compose(words).config
    assert config.evaluation.opponents.tree == config.env.kwargs.opponent
    with pytest.raises(ConfigError, match=r"^networks.search: no such key"):
        compose([*words, f"networks.search={SEARCH}"])
    run = trained(tmp_path / "run", f"evaluation.opponents.tree={SEARCH}").run_dir
    assert {*rlrun.evaluate(run, episodes=2).opponents} == {"tree"}


def test_a_person_types_moves(run):
    asked, said = [], []

    def ask(question):
        asked.append(question)
        moves = question.partition("(")[2].partition(")")[0].split()
        return "4 4" if len(asked) == 1 else f" {moves[-1]} "

    report = rlrun.play(run, person=True, episodes=2, ask=ask, say=said.append)
    assert asked[0] == asked[1]
    assert said.count("wanted one of " + asked[0].partition("(")[2][:-3]) == 1
    assert [question.split()[3] for question in asked if "0 1 2 3 4 5 6 7 8" in question] == ["first"]
    results = [line for line in said if line.startswith("seed ")]
    names = {1.0: "the policy wins", 0.0: "a draw", -1.0: "you win"}
    assert results == [f"seed {seed}: {names[gain]}" for seed, gain in enumerate(report.returns)]
    again = rlrun.evaluate(run, episodes=2, opponents={"last": Typist()})
    assert again.returns == report.returns


class Typist:
    """Plays the last move that is allowed."""

    def begin(self, rules, count):
        return None

    def __call__(self, rules, state, draws, memory):
        return Move(rules.actions - 1 - rules.legal(state)[:, ::-1].argmax(1))


def test_a_person_who_leaves_ends_the_game(run):
    def nobody(question):
        raise EOFError

    with pytest.raises(RequestError, match=r"^play: the game ends here, as no move was typed"):
        rlrun.play(run, person=True, ask=nobody, say=str)
