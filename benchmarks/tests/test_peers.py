"""Training next to other libraries is measured alike on all sides, and held to its bars."""

import importlib
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from benchmarks import peers, plain, process, solving
from benchmarks.rivals.training import meter, work
from benchmarks.tests.small import SMALL
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.envs.registration import load_env_creator


def turned(speed, *, steps=30, parameters=7):
    """Return the report of a side."""
    record = {"env_steps": 20, "seconds": 20 / speed, "steps_of_optimizers": 2 * steps, "parameters": parameters}
    record["updates"] = steps
    return {**record, "first_step": 1.5, "megabytes": 300.0, "versions": {"it": "1.2.3", "torch": "2"}}


def test_peers_are_held_to_equal_work(monkeypatch, page_of):
    requests = {}

    def run(overrides, *, folder, python):
        module, work = overrides[2], json.loads(overrides[3])
        requests[module] = work
        if module == "cleanrl":
            raise process.Failed("it broke")
        native = "env.vectorization=native" in work["overrides"]
        speeds = {"rlrun": 500.0 if native else 200.0, "own_loop": 210.0, "stable_baselines3": 100.0, "other": 50.0}
        return turned(speeds[module], steps=31 if module == "other" else 30)

    monkeypatch.setattr(peers, "run_for_json", run)
    monkeypatch.setattr(peers, "interpreter", lambda name: Path("python"))
    monkeypatch.setattr(peers, "PEERS", (peers.OWN_LOOP, peers.SB3, "cleanrl", "other", "poor", "unasked"))
    monkeypatch.setattr(peers, "LACKS", {"poor": {"ppo": "no PPO"}})
    names = [peer for peer in peers.PEERS if peer != "unasked"]
    parts = peers.measure(["ppo-cartpole"], peers=names, rounds=2)
    part = parts["ppo-cartpole"]
    assert part["ratio"]["rlrun"]["stable-baselines3"]["median"] == pytest.approx(2.0)
    ours, rival = (
        ("rlrun", "rlrun, native envs", "rlrun, compiled", "rlrun, native envs, compiled"),
        "stable-baselines3",
    )
    assert list(part["sides"]) == [*ours, peers.OWN_LOOP, "stable-baselines3"]
    verdicts = {(bar["side"], bar["peer"]): bar["passed"] for bar in part["bars"]}
    assert verdicts.pop((ours[2], "sbx")) is False  # which was not measured
    assert verdicts == {(ours[0], rival): False, (ours[3], rival): True, **{(ours[0], p): False for p in names[2:4]}}
    assert part["absent"]["other"] == "1.55 updates an environment step, not 1.5"
    assert part["absent"]["poor"] == "no PPO"
    assert requests["stable_baselines3"]["numbers"] == requests["rlrun"]["numbers"]
    assert (requests["own_loop"]["env"], requests["own_loop"]["numbers"]["horizon"]) == ("CartPole-v1", 32)
    text = page_of("peers", parts)
    assert (
        "| loop of rlrun's parts | 1.2.3 | 210 (210–210) | 0.95 (0.95–0.95) | 1.5 (1.5–1.5) | 300 (300–300) | 60 | 7 |"
        in text
    )
    assert "* rlrun ≥ 2.5 × stable-baselines3: 2.00 (2.00–2.00), missed" in text
    assert "* rlrun ≥ 1 × cleanrl: not measured, missed" in text
    assert "* without cleanrl: it broke" in text
    assert "* rlrun is slower than: loop of rlrun's parts\n" in text


def test_who_did_nothing_in_the_window_did_other_work():
    turns = {"rlrun": turned(9.0), "idle": turned(9.0, steps=0), "uncounted": turned(9.0, steps=0, parameters=0)}
    assert peers.other_work(turns) == {"idle": "0 updates an environment step, not 1.5"}


def test_a_meter_looks_at_any_loop_through_its_environment(monkeypatch):
    for kind in (CartPoleEnv, CartPoleVectorEnv):
        monkeypatch.setattr(kind, "step", kind.step)  # put back at the end
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    reports = []
    weight, bias, idle = (torch.nn.Parameter(torch.zeros(3)) for _ in range(3))
    meter.Meter(first=10, last=30, begun=0.0, report=reports.append).watch("CartPole-v1")
    optimizer, rare, _ = (torch.optim.Adam([parameter]) for parameter in (weight, bias, idle))  # the last never steps
    env = gymnasium.make("CartPole-v1")
    envs = gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    envs.reset(seed=0)
    weight.grad = bias.grad = torch.ones(3)
    rare.step()
    for _ in range(5):  # 1 + 5 steps each, and an update
        env.step(0)
        envs.step(np.zeros(5, int))
        optimizer.step()
    assert reports == []
    env.step(0)
    assert [reports[0][key] for key in ("env_steps", "parameters", "steps_of_optimizers", "updates")] == [18, 6, 3, 1.5]
    assert reports[0]["first_step"] > 0
    assert 10 < reports[0]["megabytes"] < 10_000


@pytest.mark.parametrize(("seconds", "reached", "passed"), [(4.0, True, True), (6.0, True, False), (4.0, False, False)])
def test_solving_is_held_to_the_time_of_a_rival(monkeypatch, page_of, seconds, reached, passed):
    now, calls = [0.0], []

    def run(overrides, *, folder):
        calls.append(overrides)
        now[0] += seconds
        (folder / "run").mkdir()
        summary = {"env_steps": 9_000, "evaluation": {"mean_return": 500.0 if reached else 474.9}}
        (folder / "run" / "summary.json").write_text(json.dumps(summary))

    def rival(overrides, *, folder, python):
        calls.append(json.loads(overrides[2]))
        now[0] += 10.0
        return {"env_steps": 20_000, "reached": True}

    monkeypatch.setattr(solving, "run", run)
    monkeypatch.setattr(solving, "run_for_json", rival)
    monkeypatch.setattr(solving, "interpreter", lambda name: Path("python"))
    monkeypatch.setattr(solving.time, "perf_counter", lambda: now[0])
    parts = peers.measure(["solve-dqn-cartpole"], rounds=3)
    part = parts["solve-dqn-cartpole"]
    assert (part["ratio"], part["passed"]) == (pytest.approx(seconds / 10), passed)
    assert {"algorithm=dqn", "seed=2", "stop.env_steps=50000", "stop.mean_return=475"} <= set(calls[4])
    assert (calls[5]["seed"], calls[5]["budget"], calls[5]["every"]) == (2, 50_000, 2_560)
    text = page_of("peers", parts)
    assert f"| 1 | {seconds:.1f} s, {'9,000 steps' if reached else 'not reached'} | 10.0 s, 20,000 steps |" in text
    assert f"* rlrun ≤ 0.5 of the time: {seconds / 10:.2f}, {'met' if passed else 'missed'}" in text


def test_the_first_step_is_held_to_the_time_of_a_rival(monkeypatch, page_of):
    seconds = iter([5.0, 10.0, 7.0, 10.0, 6.0, 9.0])
    monkeypatch.setattr(solving, "interpreter", lambda name: Path("python"))
    monkeypatch.setattr(solving, "run_for_json", lambda overrides, **_: {"seconds": next(seconds)})
    parts = peers.measure(["begin"], rounds=3)
    assert (parts["begin"]["ratio"]["median"], parts["begin"]["passed"]) == (pytest.approx(2 / 3), False)
    text = page_of("peers", parts)
    assert "| `rlrun train algorithm=sac env=pendulum` | 6.00 (5.00–7.00) |" in text
    assert "* rlrun ≤ 0.6 of the time: 0.67 (0.50–0.70), missed" in text


@pytest.mark.usefixtures("warm")
def test_a_command_ends_at_the_first_step_of_its_environment():
    assert 0.0 < solving.first_step(["rlrun", "train", "algorithm=sac", "env=pendulum"]) < 60


class Over(BaseException):
    """A window was; nobody on the way may explain it as an error."""


ROLLOUT = ("algorithm.horizon=8",)
LOOPS = {  # overrides, and environment steps of the window
    "sac-pendulum": (SMALL, 30, 50),
    "td3-pendulum": (SMALL, 30, 50),
    "dqn-cartpole": ((*SMALL, "algorithm.collect_steps=10"), 30, 50),
    "ppo-cartpole": ((*ROLLOUT, "algorithm.batch_size=32", "algorithm.epochs=2"), 64, 192),
    "ppo-pendulum": ((*ROLLOUT, "algorithm.batch_size=32", "algorithm.epochs=2"), 64, 192),
    "a2c-cartpole": (ROLLOUT, 64, 192),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_our_own_do_the_work_of_a_run(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    overrides, first, last = LOOPS[name]
    case = peers.CASES[name]
    case = case._replace(overrides=(*case.overrides, *overrides), first=first, last=last)
    reports = {}
    sides = (peers.RLRUN, peers.OWN_LOOP, peers.CLEANRL, *((peers.BARE,) if case.algorithm in plain.LOOPS else ()))
    for side in sides:
        task = work.Work(**case.work(side))
        spec = gymnasium.spec(task.env)

        def over(report, side=side):
            reports[side] = report
            raise Over

        with monkeypatch.context() as patch:
            for entry in filter(None, (spec.entry_point, spec.vector_entry_point)):
                kind = load_env_creator(entry)
                patch.setattr(kind, "step", kind.step)
            patch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
            meter.Meter(first=first, last=last, begun=task.begun, report=over).watch(task.env)
            with pytest.raises(Over):
                importlib.import_module(f"benchmarks.rivals.training.{peers.OURS[side]}").train(task)
    assert peers.other_work(reports) == {}
    assert {report["env_steps"] for report in reports.values()} == {last - first}
    assert len({report["parameters"] for report in reports.values()}) == 1
    assert reports[peers.RLRUN]["updates"] >= 2
