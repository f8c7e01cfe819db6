"""Speed and its bars: both sides do equal work."""

import re
import time
from pathlib import Path

import pytest
from benchmarks import asynchronous, bare, checkpoints, kept, process, sections_of_cost, speed, startup
from benchmarks.rivals import case
from benchmarks.side import CASES, SIDES
from benchmarks.tests.small import SMALL


@pytest.mark.parametrize(  # of the other cases `speed.one_round` refuses unequal work
    ("name", "reference"),
    [
        ("sac-pendulum", "bare"),
        ("taac-pendulum", "bare"),
        ("dqn-cartpole", "bare"),
        ("sac-pendulum", "plain"),
        ("dqn-cartpole", "plain"),
        ("ppo-cartpole", "plain"),
    ],
)
def test_both_sides_do_the_same_work(name, reference):
    more = (*SMALL, "algorithm.n_step=1") if name.startswith("dqn") else SMALL
    if name == "ppo-cartpole":
        more = ("algorithm.hidden=[8]", "algorithm.horizon=5", "num_envs=2", "algorithm.batch_size=5")
    case = CASES[name]._replace(overrides=(*CASES[name].overrides, *more))
    theirs, ours = (SIDES[side](case, first=30, last=80) for side in (reference, "rlrun"))
    assert theirs["env_steps"] == ours["env_steps"] == 50
    assert theirs["parameters"] == ours["parameters"]
    assert theirs["steps_of_optimizers"] == ours["steps_of_optimizers"] > 0


def test_plain_loop_uses_nothing_of_ours():
    text = (Path(__file__).parents[1] / "plain.py").read_text()
    assert re.findall(r"^\s*(?:from|import) (?:rlrun|benchmarks(?!\.clock\b))\S*", text, re.MULTILINE) == []


def test_rewards_are_summed_within_episodes():
    ring = bare.Ring(10, observation=1, action=(), dtype="int64")
    ahead = bare.Ahead(ring, steps=2, discount=0.5)
    for step in range(3):
        ahead.add([step], 0, 1.0, [step + 1], terminated=step == 2, episode_end=step == 2)
    assert ring.reward[:4].tolist() == [1.5, 1.5, 1.0, 0.0]
    assert ring.carry[:3].tolist() == [0.25, 0.0, 0.0]
    assert ring.next_observation[:3, 0].tolist() == [2.0, 3.0, 3.0]


def test_unequal_work_is_refused(monkeypatch):
    counts = iter([{"parameters": 1, "steps_of_optimizers": 5}, {"parameters": 1, "steps_of_optimizers": 6}])
    monkeypatch.setattr(speed, "run_for_json", lambda overrides, folder: next(counts))
    with pytest.raises(process.Failed, match="steps_of_optimizers"):
        speed.one_round("x", CASES["sac-pendulum"])


def one_turn(seconds, *, updates=10.0):
    return {"env_steps": 100, "updates": updates, "parameters": 5, "processor_seconds": seconds}


def test_kept_speed_is_a_ratio(monkeypatch):
    seconds = {"a2c-cartpole": {"before": [2.0, 2.0, 4.0], "after": [2.0, 1.0, 1.0]}}  # ratios 1, 2, 4
    seconds["ppo-cartpole"] = {"before": [0.9, 0.9, 0.9], "after": [1.0, 1.0, 1.0]}
    order = []

    def turns(name, trees):
        assert trees["after"] == kept.ROOT != trees["before"]
        order.extend(trees)
        return {side: one_turn(seconds[name][side].pop(0)) for side in trees}

    monkeypatch.setattr(kept, "turns", turns)
    result = kept.measure(list(seconds), against="HEAD", rounds=3)
    assert [case["ratio"]["median"] for case in result["cases"].values()] == [2.0, 0.9]
    assert [case["passed"] for case in result["cases"].values()] == [True, False]
    assert result["geometric_mean"] == pytest.approx(1.8**0.5)
    assert not result["passed"]  # one case below its bar is enough
    assert order[:4] == ["after", "before", "before", "after"]
    assert "met" in "\n".join(sections_of_cost.kept(result))


def test_kept_speed_needs_equal_work(monkeypatch):
    updates = {"before": 11.0, "after": 10.0}
    monkeypatch.setattr(
        kept, "turns", lambda name, trees: {side: one_turn(1.0, updates=updates[side]) for side in trees}
    )
    before = kept._git("worktree", "list")
    with pytest.raises(process.Failed, match=r"updates differ: 11\.0 and 10\.0"):
        kept.measure(["a2c-cartpole"], against="HEAD", rounds=1)
    assert kept._git("worktree", "list") == before


def test_kept_speed_takes_turns(tmp_path, monkeypatch):
    """While one process of a pair runs, the other one stands still; the error of a failed one holds its last words."""
    monkeypatch.setattr(kept, "SLICE", 0.05)
    spin = "import time; begun = time.process_time()\nwhile time.process_time() < begun + 0.3: pass\n"
    monkeypatch.setattr(kept, "TURN", spin + "print('{\"seconds\": %f}' % time.time())")
    begun = time.time()
    ends = [result["seconds"] - begun for result in kept.turns("x", {"before": tmp_path, "after": tmp_path}).values()]
    assert min(ends) > 0.45  # the first to end had half of the time
    monkeypatch.setattr(kept, "TURN", "raise SystemExit('no such case')")
    with pytest.raises(process.Failed, match="x, before: no such case"):
        kept.turns("x", {"before": tmp_path, "after": tmp_path})


def test_missing_commit_is_named():
    with pytest.raises(process.Failed, match="no-such-commit"):
        kept.measure(["a2c-cartpole"], against="no-such-commit", rounds=1)


@pytest.mark.usefixtures("warm")
def test_first_step_ends_the_run(tmp_path):
    assert 0.0 < startup.first_step(tmp_path) < 60


def test_checkpoints_are_measured(tmp_path, monkeypatch):
    small = case.Case("sample", capacity=4_000)
    monkeypatch.setattr(checkpoints, "NEW_ROWS", 400)
    monkeypatch.setattr(checkpoints, "SAVES", 2)
    assert 1.0 < checkpoints.growing(str(tmp_path / "growing"), small)["disk"] < 3.0
    saved = checkpoints.full(str(tmp_path / "full"), small)
    assert len(saved["stalls"]) == len(saved["writes"]) == 3
    assert all(0 < stall <= write for stall, write in zip(saved["stalls"], saved["writes"], strict=True))
    assert checkpoints.load(str(tmp_path / "full"), small)["rows"] > 0.9 * small.capacity
    checkpoints.multiply(checkpoints.RunDir.open(tmp_path / "full"), tmp_path / "many", count=7)
    assert [report.damage for report in checkpoints.checkpoints(tmp_path / "many", verify=True)] == [()] * 7


@pytest.mark.parametrize(("stall", "passed"), [(0.15, True), (0.16, False)])
def test_a_stall_is_held_to_its_bar(monkeypatch, page_of, stall, passed):
    monkeypatch.setattr(
        checkpoints, "one_round", lambda folder: {**dict.fromkeys(checkpoints.WHAT, 0.1), "later_stall": stall}
    )
    result = checkpoints.measure(rounds=3)
    assert result["passed"] is passed
    assert f"≤ 0.15: {'met' if passed else 'missed'} |" in page_of("checkpoints", result)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("side", ["sync", "thread"])
def test_time_of_stepping_is_measured(monkeypatch, side):
    monkeypatch.setattr(asynchronous, "OVERRIDES", (*asynchronous.OVERRIDES, *SMALL, "stop.env_steps=60"))
    assert 0.009 < asynchronous.one(side, "1", first=25, last=55) < 1.0


@pytest.mark.parametrize(("seconds", "passed"), [(0.011, True), (0.013, False)])
def test_asynchronous_steps_are_held_to_their_bar(monkeypatch, page_of, seconds, passed):
    sync = {"1": 0.012, "2": 0.014, "4": 0.02, "8": 0.04}
    monkeypatch.setattr(asynchronous, "one", lambda side, updates: sync[updates] if side == "sync" else seconds)
    cases = asynchronous.measure(rounds=2)
    assert {name: case["passed"] for name, case in cases.items() if "passed" in case} == {"4-process": passed}
    row = f"| 4 | process | {1000 * seconds:.1f} ({1000 * seconds:.1f}–{1000 * seconds:.1f}) | 20.0 (20.0–20.0) |"
    assert row in page_of("async", cases)
