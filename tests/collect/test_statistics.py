"""Statistics of collection."""

import numpy as np
import pytest
import torch

from rlrun.checkpointing.encoding import merge, split
from rlrun.collect.statistics import Tally, observed
from rlrun.core.spaces import Box, Composite, Discrete
from rlrun.nn import Normalizer
from rlrun.training.metrics import Histogram, Image, as_record

SPACE = Composite({"place": Box((2,), -np.ones(2), np.ones(2)), "sign": Discrete(3)})


def test_observation_size_counts_numbers():
    tree = {"place": np.array([[3.0, 4.0], [3.0, 4.0]], np.float32), "sign": np.array([1, 2])}
    assert observed(tree, SPACE) == {"observation/size": pytest.approx(12.5**0.5)}
    assert observed({"sign": np.array([1, 2])}, Composite({"sign": Discrete(3)})) == {}


def test_observation_size_is_normalized():
    normalizer = Normalizer([1])
    normalizer.update(torch.tensor([[0.0], [20.0]]))  # mean 10, deviation 10
    metrics = observed(np.array([[40.0]], np.float32), Box((1,), np.zeros(1), np.ones(1)), (normalizer,))
    assert metrics == {"observation/size": pytest.approx(3.0)}
    assert observed(np.array([[40.0]], np.float32), Box((1,), np.zeros(1), np.ones(1)), (normalizer, abs)) == {}


def test_share_of_truncated_episodes_is_restored():
    tally, restored = Tally(2, 0, window=3), Tally(2, 0, window=3)
    assert "episode/truncated" not in tally.metrics
    for truncated in (False, True, True, True):
        tally.end(np.array([0]), np.array([truncated]))
    tally.end(np.array([1]), np.array([False]))
    assert tally.metrics["episode/truncated"] == pytest.approx(2 / 3)
    restored.load_state_dict(tally.state_dict())
    assert restored.metrics == tally.metrics
    old = {name: value for name, value in tally.state_dict().items() if name != "truncated"}
    restored.load_state_dict(old)  # of a run before this was counted
    assert "episode/truncated" not in restored.metrics


def test_numbers_of_infos_are_means_of_the_newest_episodes():
    tally, restored = Tally(3, 0, window=2), Tally(3, 0, window=2)
    for success, score in ((True, 1), (False, 2.5), (True, np.float32(3.5))):
        tally.end(np.array([1]), infos={1: {"success": success, "score": score, "large": 2**70}, 2: {"success": False}})
    tally.end(np.array([0]), infos={0: {}})
    assert tally.metrics["episode/success"] == 0.5  # of the newest two that have it, in the env whose episode ended
    assert (tally.metrics["episode/score"], tally.metrics["episode/large"]) == (3.0, 2.0**70)
    restored.load_state_dict(tally.state_dict())
    for episodes in (tally, restored):
        episodes.end(np.array([2]), infos={2: {"score": np.array([5.5])}})
    assert restored.metrics == tally.metrics
    assert restored.metrics["episode/score"] == 4.5
    old = {name: value for name, value in tally.state_dict().items() if name != "infos"}
    restored.load_state_dict(old)  # of a run before infos were counted
    assert "episode/score" not in restored.metrics


def test_infos_cannot_replace_metrics_or_grow_without_limit():
    tally = Tally(1, 0, window=2)
    odd = {"return": 9.0, "length": 9, "text": "a", "list": [1], "nan": np.nan, "up\x1b[2J": 1.0, "a/b": 1.0, 3: 1.0}
    odd |= {"huge": 10**400, "lap": np.timedelta64(5, "s"), "at": np.datetime64("2026-01-01"), "complex": 1j}
    odd |= {"complex64": np.complex64(1j), "names": np.array(["a"])}
    tally.end(np.array([0]), infos={0: {**odd, "episode": {"r": 1.0}, "_private": 1.0, "x" * 65: 1.0}})
    assert tally.metrics == {
        "episode/count": 1,
        "episode/return": 0.0,
        "episode/length": 0.0,
        "distribution/return": Histogram([0.0]),
        "distribution/length": Histogram([0]),
    }
    tally.end(np.array([0]), infos={0: {f"n{number}": 1.0 for number in range(100)}})
    assert sum(name.startswith("episode/n") for name in tally.metrics) == 32


def test_infos_give_other_metrics_than_numbers():
    tally, restored = Tally(1, 0, window=2), Tally(1, 0, window=2)
    view = np.zeros((2, 2), np.uint8)  # one array for all episodes
    for count in (1, 2, 3):
        view[:] = count
        tally.end(np.array([0]), infos={0: {"view": Image(view), "gaps": Histogram([count]), "score": count}})
    view[:] = 0
    assert (tally.metrics["episode/view"].pixels == 3).all()
    assert tally.metrics["episode/gaps"] == Histogram([3])
    assert tally.metrics["distribution/score"] == Histogram([2.0, 3.0])
    restored.load_state_dict(merge(*split(tally.state_dict())))  # as a checkpoint holds it
    for name, value in as_record(tally.metrics)[0].items():
        assert repr(as_record(restored.metrics)[0][name]) == repr(value)
    old = {name: value for name, value in tally.state_dict().items() if name != "kinds"}
    restored.load_state_dict(old)  # of a run before there were other metrics
    assert "episode/view" not in restored.metrics


def test_infos_of_many_envs_are_read_for_a_window_only():
    read = []

    class Infos(dict):
        def get(self, env_index):
            read.append(env_index)
            return {"score": env_index}

    tally = Tally(1000, 0, window=20)
    tally.end(np.arange(1000), infos=Infos(some=1))
    assert read == list(range(980, 1000))
    assert tally.metrics["episode/score"] == np.mean(read)
