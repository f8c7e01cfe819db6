"""AlphaZero's targets, loss and model, and what its runs can do."""

from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tests.algorithms.fixed import sgd
from tests.short import SMALL, shrink

import rlrun
from rlrun.algorithms.search.alphazero import AlphaZeroLoss, JudgedGame, Outcome, PolicyValue
from rlrun.algorithms.search.picture import Pictured
from rlrun.commands.expect import check
from rlrun.commands.play import play
from rlrun.config import compose
from rlrun.core import spaces as ours
from rlrun.env import Simulator
from rlrun.env import make as make_env
from rlrun.env.simulator import Positions, packed
from rlrun.env.toys import TicTacToe
from rlrun.export.opening import frozen_in
from rlrun.memory import Table

RULES = TicTacToe.rules
SPACES = make_env(target="rlrun.env.toys.TicTacToe", kwargs={"rules_state": True}).spaces


class Turns(Simulator):
    """A position says who moves."""

    observation_space, actions = Box(0.0, 1.0, (1,)), 2

    def initial(self, seeds):
        return np.zeros(len(seeds), np.int8)

    def turn(self, state):
        return state

    legal = step = observe = None


def batch(episodes, discount):
    """Return what is served of all rows of some episodes.

    episodes: (players, rewards, how it ended).
    """
    observed = ours.Composite({"rules_state": ours.Box((1,), np.zeros(1, np.uint8), np.ones(1, np.uint8), "uint8")})
    adaptors = [Outcome(Turns(), discount=discount)]
    table = Table(spaces=ours.Spaces(observed, ours.Discrete(2)), length=40, adaptors=adaptors)
    for players, rewards, ending in episodes:
        for number, (player, reward) in enumerate(zip(players, rewards, strict=True)):
            over = number == len(players) - 1
            row = {
                "observation": {"rules_state": np.array([[player]], np.uint8)},
                "action": np.zeros(1, np.int64),
                "reward": np.array([reward], np.float32),
                "terminated": np.array([over and ending == "terminated"]),
                "truncated": np.array([over and ending == "truncated"]),
            }
            table.add(None, row)
        if ending != "open":
            table.close(None, {"rules_state": np.array([[255]], np.uint8)})
    return table.look_up(table.sampler.rows(np.flatnonzero(table.index.complete[:-1]), 1))


def test_outcome_is_that_of_who_moves():
    players, rewards = [0, 0, 1, 0, 1], [0.0, 0.5, 0.0, 0.0, 1.0]
    served = batch([(players, rewards, "terminated"), ([1, 1], [-1.0, 2.0], "terminated")], 0.5)
    assert served["outcome"].tolist() == [0.1875, 0.375, 0.25, -0.5, 1.0, 0.0, 2.0]
    assert served["decided"].all()
    plain = batch([([0, 1, 0, 1], [0.0, 0.0, 0.0, 1.0], "terminated")], 1.0)
    assert plain["outcome"].tolist() == [-1.0, 1.0, -1.0, 1.0]


def test_games_that_are_open_or_cut_short_are_not_decided():
    games = [([0, 1], [0.0, 1.0], "truncated"), ([0], [0.0], "interrupted"), ([0, 1, 0], [0.0, 0.0, 0.0], "open")]
    assert batch(games, 1.0)["decided"].tolist() == [False] * 5  # the newest row has no successor yet


class Judge(torch.nn.Module):
    """Has the same logits and value for every position."""

    def __init__(self):
        super().__init__()
        self.logits, self.number = torch.nn.Parameter(torch.tensor([0.0, 1.0])), torch.nn.Parameter(torch.tensor(0.5))

    def judge(self, observation):
        rows = len(observation)
        return self.logits.log_softmax(-1).expand(rows, 2), self.number.expand(rows)


def test_loss_is_that_of_the_paper():
    callback = AlphaZeroLoss(Judge(), sgd, value_weight=2.0, decay=0.1)
    policy, outcome = torch.tensor([[0.25, 0.75], [1.0, 0.0]]), torch.tensor([1.0, -1.0])
    loss, _, metrics = callback.loss(torch.zeros(2, 1), policy, outcome, torch.tensor([True, False]))
    log_probs = torch.tensor([0.0, 1.0]).log_softmax(0)
    first = 2.0 * 0.25 - 0.25 * log_probs[0] - 0.75 * log_probs[1]
    decay = 0.1 * (1.0 + 0.25)
    torch.testing.assert_close(loss, torch.stack([first, -log_probs[0]]) + decay)
    assert metrics["alphazero/value_error"].tolist() == [0.25, 0.0]
    assert len(AlphaZeroLoss(Judge(), sgd, decay=0.0).loss(torch.zeros(2, 1), policy, outcome, outcome > 0)[0]) == 2


def test_network_judges_allowed_moves_and_values_of_a_game():
    torch.manual_seed(0)
    network = PolicyValue(SPACES, hidden=[8])
    torch.nn.init.constant_(network.value_head.bias, 9.0)
    positions, state = Positions(RULES), RULES.initial(np.zeros(3, np.uint64))
    state, _ = RULES.step(state, np.array([0, 4, 8]))
    observation = {name: torch.from_numpy(leaf) for name, leaf in positions.observe(state, RULES.turn(state)).items()}
    log_probs, value = network.judge(observation)
    assert (log_probs.exp()[range(3), [0, 4, 8]] == 0).all()
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3))
    assert ((value > 0.999) & (value <= 1.0)).all()
    torch.testing.assert_close(network.value(observation), value)
    assert (network.act(observation, False) == log_probs.argmax(-1)).all()


def test_model_follows_the_rules_from_the_position_that_is_observed():
    network = PolicyValue(SPACES, hidden=[8])
    model = JudgedGame(RULES, network)
    model.preprocess = (lambda observation: {**observation, "observation": 0.0 * observation["observation"]},)
    state, _ = RULES.step(RULES.initial(np.zeros(2, np.uint64)), np.array([2, 7]))
    root = model.root({"rules_state": packed(state)})
    assert (root.state["position"]["stones"] == state["stones"]).all()
    assert (np.isinf(root.logits).argmax(1) == [2, 7]).all()
    blank = {"observation": torch.zeros(2, 2, 3, 3), "action_mask": torch.from_numpy(np.isfinite(root.logits))}
    np.testing.assert_allclose(root.value, network.value(blank).detach(), rtol=1e-6)
    after = model(root.state, np.array([0, 0]))
    assert after.discount.tolist() == [-1.0, -1.0]
    assert after.state["position"]["stones"][:, 1].tolist() == [1, 1]


def trained(folder, *overrides):
    composed = compose(["algorithm=alphazero", "env=tictactoe", "preset=null", "num_envs=4", *overrides])
    numbers = {**SMALL, "evaluation.episodes": 4, "evaluation.max_steps": None, "algorithm.search.simulations": 4}
    return rlrun.train(shrink(composed, numbers), run_dir=folder).run_dir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "run")


def test_a_run_that_searches_is_an_opponent(run):
    report = rlrun.evaluate(run, episodes=4, opponents={"itself": str(run), "random": "random"})
    assert report.opponents == ["itself"] * 4 + ["random"] * 4
    assert report.returns[:4] == [report.returns[0], report.returns[1]] * 2  # nobody draws a move
    assert report.returns[0] == -report.returns[1]
    plain = make_env(target="rlrun.env.toys.TicTacToe", vectorization="native")  # of an agent without a search
    plain.face(rlrun.commands.opponents.opponents_of({"it": run})["it"])
    plain.reset(1)


def test_promise_is_kept_in_games_against_the_opponents_of_the_run(run):
    ((kept, line),) = check(run, {"return": {"at_least": -1.0}})
    assert kept
    assert float(line.split()[2].rstrip(",")) == pytest.approx(rlrun.evaluate(run, episodes=20).mean_return)


def test_evaluations_may_search_longer(run):
    with frozen_in(run, ["algorithm.search.simulations=9", "env.kwargs.opening=2"], act="eval") as policy:
        assert (policy.agent.search.simulations, policy.env.vector.opening) == (9, 2)
    for override, message in (
        ("algorithm.search.simulation=9", r"no such key \(did you mean 'algorithm.search.simulations'\?\)"),
        ("algorithm.search.sims=9", r"no such key; there are simulations, "),
        ("algorithm.search.simulations=abc", r"algorithm\.search\.simulations: wanted a whole number, got 'abc'"),
        ("algorithm.lr=1", r"and algorithm\.search\.KEY=VALUE of one that searches"),
    ):
        with pytest.raises(rlrun.core.errors.RequestError, match=message):
            rlrun.evaluate(run, overrides=[override])


def test_a_picture_shows_the_first_search(run, tmp_path):
    opening = ["env.kwargs.opening=3", "algorithm.search.simulations=30"]
    play(run, episodes=1, text=True, fps=1e9, tree=tmp_path / "tree.svg", overrides=opening, say=lambda text: None)
    parts = [*ElementTree.parse(tmp_path / "tree.svg").getroot()]
    boxes = [[float(part.get(name)) for name in ("x", "y", "width", "height")] for part in parts if "rect" in part.tag]
    texts = [part.text for part in parts if part.tag.endswith("text") and part.get("class") != "edge"]
    assert len(boxes) == 16
    assert sum("line" in part.tag for part in parts) == 15
    assert all(abs(a[0] - b[0]) > a[2] or abs(a[1] - b[1]) > a[3] for a, b in combinations(boxes, 2))
    visits = [int(text.split()[0]) for text in texts if text.endswith("visits")]
    assert max(visits) == visits[0] == 31
    board = " ".join(texts[:3]).split()
    assert (board.count("x"), board.count("o"), len(board)) == (2, 1, 9)
    with pytest.raises(rlrun.core.errors.RequestError, match=r"wanted a file that ends in \.svg"):
        play(run, tree=tmp_path / "tree.png", text=True)
    with pytest.raises(rlrun.core.errors.RequestError, match="--tree: this policy does not search"):
        Pictured(rlrun.load(run).agent.exported, tmp_path / "tree.svg")


def test_games_one_by_one_have_the_same_evaluations(run):
    alone = [rlrun.evaluate(run, episodes=1, seed=seed).returns[0] for seed in range(4)]
    assert alone == rlrun.evaluate(run, episodes=4, seed=0).returns


def test_the_policy_alone_is_exported_without_the_position(run):
    pytest.importorskip("onnx")
    about = rlrun.export_onnx(run).about
    assert [port["name"] for port in about["inputs"]] == ["observation.action_mask", "observation.observation"]
    assert about["parity"]["largest"] == 0.0
    alone = rlrun.load(run).agent.exported
    env = make_env(target="rlrun.env.toys.TicTacToe", kwargs={"opponent": None})  # its observations have no position
    observation = env.reset(0)
    assert (
        alone(observation, explore=False)["action"][0]
        == rlrun.load(run / "exports/policy.onnx").predict({name: leaf[0] for name, leaf in observation.items()})[0]
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env=cartpole"], "env.kwargs.rules_state: .* a search by rules wants a game"),
        (["env=minigrid"], "could not be made: .* a search by rules wants a game"),
        (["env=tictactoe", "env.kwargs.rules_state=abc"], "env.kwargs.rules_state: wanted true or false, got 'abc'"),
        (["env=tictactoe", "env.kwargs.rules_state=false"], "^env.kwargs.rules_state: wanted true"),
        (["env=tictactoe", "evaluation.opponents=null"], "who plays both sides always wins"),
        (["env=tictactoe", "algorithm.search.simulations=0"], "simulations"),
        (["env=tictactoe", "algorithm.temperature=-1"], "algorithm.temperature: wanted a number from 0"),
        (["env=tictactoe", "algorithm.weight_decay=-1"], "algorithm.weight_decay"),
    ],
)
def test_wrong_settings_are_refused_before_a_run(overrides, message, tmp_path):
    with pytest.raises(rlrun.core.errors.RequestError, match=message):
        rlrun.train(["algorithm=alphazero", *overrides], run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
