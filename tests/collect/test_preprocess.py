"""What is done to observations before an agent acts, and the runs that it makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rlrun
from rlrun import storage
from rlrun.collect import EpsilonGreedy, PolicyAgent
from rlrun.nn.normaliser import Normaliser
from rlrun.spaces import Box, Discrete, Spaces

SPACES = Spaces(Box((2,), np.zeros(2), np.ones(2)), Discrete(4))
TINY = (
    "algorithm.hidden=[8,8]",
    "algorithm.batch_size=4",
    "algorithm.warmup_steps=20",
    "stop.env_steps=60",
    "evaluation.every=60",
    "evaluation.episodes=2",
    "evaluation.max_steps=30",
    "logger=[]",
)


class Echo:
    """Acts by what it sees."""

    def act(self, observation, explore):
        return observation


def agents(preprocess):
    greedy = EpsilonGreedy(Echo(), epsilon=0.0, spaces=SPACES, seed=0, preprocess=preprocess)
    return [PolicyAgent(Echo(), preprocess=preprocess), greedy]


@pytest.mark.parametrize("explore", [True, False])
def test_functions_are_applied_in_turn(explore):
    for agent in agents({"add": lambda x: x + 1, "left out": None, "double": lambda x: x * 2}):
        assert agent(np.ones((3, 2), np.float32), explore=explore)["action"].tolist() == [[4.0, 4.0]] * 3


def test_one_function_needs_no_name():
    for agent in agents(torch.neg):
        assert agent(np.ones((1, 2), np.float32))["action"].tolist() == [[-1.0, -1.0]]


def test_nothing_stands_between_where_nothing_is_asked_for():
    policy = Echo()
    assert PolicyAgent(policy)._act == policy.act


def test_acting_reads_statistics_and_never_moves_them():
    normaliser = Normaliser(SPACES)
    normaliser.update(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    seen = np.array([[3.0, 10.0]], np.float32)
    for agent in agents({"norm": normaliser}):
        assert agent(seen)["action"].tolist() == [pytest.approx([1.0, -1.0])]
        assert seen.tolist() == [[3.0, 10.0]]
    assert normaliser.updates == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    words = ["algorithm=sac", "env=pendulum", "with=[observation_norm,reward_norm]", *TINY]
    return rlrun.train(words, run_dir=tmp_path_factory.mktemp("norm") / "run")


def test_samples_and_agent_share_one_normaliser(run):
    table = run.trainer.callbacks["collector"].table
    (adaptor,) = (candidate for candidate in table.adaptors if candidate.provides[0] == "observation")
    assert run.trainer.callbacks["collector"].agent.preprocess == (adaptor.normaliser,)
    assert adaptor.normaliser.updates == run.summary["updates"]


def test_evaluation_of_the_run_is_that_of_the_live_agent(run):
    live = run.trainer.callbacks["evaluation"]
    report = rlrun.evaluate(run.run_dir, episodes=2, seed=live.seed)
    assert report.mean_return == live.last["mean_return"]


def test_evaluation_depends_on_the_statistics(run):
    agent = run.trainer.callbacks["collector"].agent
    look = np.random.default_rng(0).uniform(-5, 5, (20, 3)).astype(np.float32)
    plain = PolicyAgent(agent.policy)(look, explore=False)["action"]
    assert not np.allclose(agent(look, explore=False)["action"], plain, atol=1e-3)


def test_a_checkpoint_holds_the_statistics_once(run):
    where = run.run_dir / "checkpoints"
    folder = where / (where / "latest").read_text().strip()
    names = [path for path in storage.read_manifest(folder)["parts"] if "norm" in path]
    assert sorted(names) == ["normalisers.observation", "normalisers.reward"]
