"""The benchmarks run, and compare equal work."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest


@pytest.fixture
def load(monkeypatch):
    """Import a module of the benchmarks, which lie outside the package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


SMALL = ("algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=20")


@pytest.mark.parametrize("name", ["sac-pendulum", "dqn-cartpole", "dqn-cartpole-tuned"])
def test_both_sides_do_the_same_work(load, name):
    side = load("side")
    case = side.CASES[name]
    case = case._replace(words=(*case.words, *SMALL))
    bare, ours = (measure(case, first=30, last=80) for measure in (side.measure_bare, side.measure_rlrun))
    assert bare["env_steps"] == ours["env_steps"] == 50
    assert bare["parameters"] == ours["parameters"]
    assert bare["steps_of_optimisers"] == ours["steps_of_optimisers"] > 0


def test_rewards_are_summed_until_the_episode_ends(load):
    bare = load("bare")
    ring = bare.Ring(10, observation=1, action=(), dtype="int64")
    ahead = bare.Ahead(ring, steps=2, discount=0.5)
    for step in range(3):
        ahead.add([step], 0, 1.0, [step + 1], terminated=step == 2, ended=step == 2)
    assert ring.reward[:4].tolist() == [1.5, 1.5, 1.0, 0.0]
    assert ring.carry[:3].tolist() == [0.25, 0.0, 0.0]
    assert ring.next_observation[:3, 0].tolist() == [2.0, 3.0, 3.0]


def test_unequal_work_is_refused(load, monkeypatch):
    speed, process = load("speed"), load("process")
    found = iter([{"parameters": 1, "steps_of_optimisers": 5}, {"parameters": 1, "steps_of_optimisers": 6}])
    monkeypatch.setattr(speed, "run_for_json", lambda words, folder: next(found))
    with pytest.raises(process.Failed, match="steps_of_optimisers"):
        speed.one_round("x", load("side").CASES["sac-pendulum"])


def test_first_step_ends_the_run(load, tmp_path):
    assert 0.5 < load("startup").first_step(tmp_path) < 60


@pytest.mark.parametrize("name", ["dqn-chain-truncated", "sac-hitthemiddle"])
def test_claim_about_a_toy_is_measured(load, name):
    learning = load("learning")
    found = learning.measure([name], seeds=[0], words=[*SMALL, "stop.updates=20"])[name]
    assert "error" not in found["runs"][0]
    assert not found["passed"]  # nothing is learned in 20 updates


def test_claim_about_a_return_is_measured(load):
    words = [*SMALL, "stop.env_steps=60", "evaluation.every=30", "evaluation.episodes=1"]
    found = load("learning").measure(["sac-mixedaction"], seeds=[0], words=words)["sac-mixedaction"]
    assert 0.0 <= found["runs"][0]["value"] <= 10.0


@pytest.mark.parametrize(("missed", "passed"), [(0, True), (1, True), (2, False)])
def test_claim_may_miss_as_many_seeds_as_it_says(load, missed, passed):
    learning = load("learning")
    runs = [{"holds": seed >= missed} for seed in range(5)]
    assert learning.summary(learning.CLAIMS["sac-cartpole"], runs, extra=[])["passed"] is passed


def test_page_is_made_from_results(load, tmp_path):
    page = load("page")
    page.save("dispatch", {"callbacks": 9, "microseconds": 5.25, "bar": 10.0, "passed": True}, folder=tmp_path)
    page.write(folder=tmp_path)
    assert "| 9 callbacks with empty hooks, an update | 5.2 | < 10: met |" in (tmp_path / "README.md").read_text()
    assert (
        json.loads((tmp_path / "dispatch.json").read_text())["machine"]["date"] in (tmp_path / "README.md").read_text()
    )


def test_partial_measurement_keeps_the_other_parts(load, tmp_path):
    page = load("page")
    page.save("learning", {"a": {"passed": True}, "b": {"passed": True}}, folder=tmp_path)
    page.save("learning", {"a": {"passed": False}}, folder=tmp_path)
    found = json.loads((tmp_path / "learning.json").read_text())["found"]
    assert (found["a"]["passed"], found["b"]["passed"]) == (False, True)


def test_seeds_are_read_as_ranges_and_lists(load):
    seeds_of = load("__main__").seeds_of
    assert (seeds_of("0-4"), seeds_of("3"), seeds_of("0,2-3")) == ([0, 1, 2, 3, 4], [3], [0, 2, 3])
