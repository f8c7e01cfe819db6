"""The benchmarks run, and compare equal work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch


@pytest.fixture
def warm(load, forked, monkeypatch):
    """Let what learns, and what is timed within its process, run in processes that cost little."""
    process = load("process")

    def run(overrides, *, folder, **_):
        option, module, *rest = overrides
        assert option == "-m"
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            started = forked(rest, module=module)
        out, err = started.communicate(timeout=120)
        assert started.returncode == 0, err
        return process.Finished(out, 0.0)

    for module in (process, load("learning"), load("asynchronous")):
        monkeypatch.setattr(module, "run", run)


SMALL = ("algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=20")


SWINGING = [
    "ddpg",
    "td3",
    "sarsa",
    "oac",
    "qrsac",
    "dsac",
    "doac",
    "mdq",
    "iql",
    "taac",
    "action-repeat",
    "sac",
    "sac-hlgauss",
]
BALANCING = ["dqn", "dqn-dueling", "dqn-quantile", "dqn-hlgauss"]
OFF_POLICY = (
    *(f"{name}-pendulum" for name in SWINGING),
    *(f"{name}-cartpole" for name in BALANCING),
    *("dqn-cartpole-tuned", "seditor-constrained"),
)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_both_sides_do_the_same_work(load, name):
    side = load("side")
    assert set(side.CASES) - set(OFF_POLICY) == {"ppo-cartpole"}  # whose steps come in hundreds
    case = side.CASES[name]
    case = case._replace(overrides=(*case.overrides, *SMALL))
    bare, ours = (measure(case, first=30, last=80) for measure in (side.measure_bare, side.measure_rlrun))
    assert bare["env_steps"] == ours["env_steps"] == 50
    assert bare["parameters"] == ours["parameters"]
    assert bare["steps_of_optimizers"] == ours["steps_of_optimizers"] > 0


def test_the_plain_loop_does_the_same_work_without_a_part_of_rlrun(load):
    side, text = load("side"), (Path(__file__).parents[1] / "plain_sac.py").read_text()
    assert re.findall(r"^\s*(?:from|import) (?:rlrun|benchmarks(?!\.clock\b))\S*", text, re.MULTILINE) == []
    case = side.CASES["sac-pendulum"]
    case = case._replace(overrides=(*case.overrides, *SMALL))
    plain, ours = (side.SIDES[name](case, first=30, last=80) for name in ("plain", "rlrun"))
    assert plain["env_steps"] == ours["env_steps"] == 50
    assert plain["parameters"] == ours["parameters"]
    assert plain["steps_of_optimizers"] == ours["steps_of_optimizers"] > 0


def test_rewards_are_summed_until_the_episode_ends(load):
    bare = load("bare")
    ring = bare.Ring(10, observation=1, action=(), dtype="int64")
    ahead = bare.Ahead(ring, steps=2, discount=0.5)
    for step in range(3):
        ahead.add([step], 0, 1.0, [step + 1], terminated=step == 2, episode_end=step == 2)
    assert ring.reward[:4].tolist() == [1.5, 1.5, 1.0, 0.0]
    assert ring.carry[:3].tolist() == [0.25, 0.0, 0.0]
    assert ring.next_observation[:3, 0].tolist() == [2.0, 3.0, 3.0]


def test_unequal_work_is_refused(load, monkeypatch):
    speed, process = load("speed"), load("process")
    counts = iter([{"parameters": 1, "steps_of_optimizers": 5}, {"parameters": 1, "steps_of_optimizers": 6}])
    monkeypatch.setattr(speed, "run_for_json", lambda overrides, folder: next(counts))
    with pytest.raises(process.Failed, match="steps_of_optimizers"):
        speed.one_round("x", load("side").CASES["sac-pendulum"])


def one_turn(seconds, *, updates=10.0):
    return {"env_steps": 100, "updates": updates, "parameters": 5, "processor_seconds": seconds}


def test_speed_kept_divides_the_processor_time_before_by_that_after(load, monkeypatch):
    kept = load("kept")
    seconds = {"a2c-cartpole": {"before": [2.0, 2.0, 4.0], "after": [2.0, 1.0, 1.0]}}  # ratios 1, 2, 4
    seconds["ppo-cartpole"] = {"before": [0.9, 0.9, 0.9], "after": [1.0, 1.0, 1.0]}
    order = []

    def turn(name, tree):
        side = "after" if tree == kept.ROOT else "before"
        order.append(side)
        return one_turn(seconds[name][side].pop(0))

    monkeypatch.setattr(kept, "turn", turn)
    result = kept.measure(list(seconds), against="HEAD", rounds=3)
    assert [case["ratio"]["median"] for case in result["cases"].values()] == [2.0, 0.9]
    assert [case["passed"] for case in result["cases"].values()] == [True, False]
    assert result["geometric_mean"] == pytest.approx(1.8**0.5)
    assert not result["passed"]  # one case below its bar is enough
    assert order[:4] == ["after", "before", "before", "after"]
    assert "met" in "\n".join(load("sections_of_cost").kept(result))


def test_speed_kept_refuses_unequal_work_and_leaves_no_tree(load, monkeypatch):
    kept = load("kept")
    monkeypatch.setattr(kept, "turn", lambda name, tree: one_turn(1.0, updates=10.0 if tree == kept.ROOT else 11.0))
    before = kept._git("worktree", "list")
    with pytest.raises(load("process").Failed, match=r"updates differ: 11\.0 and 10\.0"):
        kept.measure(["a2c-cartpole"], against="HEAD", rounds=1)
    assert kept._git("worktree", "list") == before


def test_speed_kept_names_a_commit_that_is_not_there(load):
    with pytest.raises(load("process").Failed, match="no-such-commit"):
        load("kept").measure(["a2c-cartpole"], against="no-such-commit", rounds=1)


def test_first_step_ends_the_run(load, tmp_path):
    assert 0.5 < load("startup").first_step(tmp_path) < 60


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", ["dqn-chain-truncated", "sac-hitthemiddle", "sac-pointmass-diayn"])
def test_claim_about_a_toy_is_measured(load, name):
    learning = load("learning")
    case = learning.measure([name], seeds=[0], overrides=[*SMALL, "stop.updates=20"])[name]
    assert "error" not in case["runs"][0]
    assert not case["passed"]  # nothing is learned in 20 updates


@pytest.mark.usefixtures("warm")
def test_claim_about_a_return_is_measured(load, tmp_path):
    overrides = [*SMALL, "stop.env_steps=60", "evaluation.every=30", "evaluation.episodes=1"]
    case = load("learning").measure(["sac-mixedaction"], seeds=[0], overrides=overrides)["sac-mixedaction"]
    (run,) = case["runs"]
    assert 0.0 <= run["value"] <= 10.0
    assert 0.0 <= run["evaluations"]["last"] <= run["evaluations"]["best"] <= 10.0
    load("page").save("learning", {"sac-mixedaction": case}, folder=tmp_path)
    load("page").write(folder=tmp_path)
    assert (
        f"{run['value']:.4g} (last evaluation {run['evaluations']['last']:.4g})" in (tmp_path / "README.md").read_text()
    )


@pytest.mark.parametrize(("missed", "passed"), [(0, True), (1, True), (2, False)])
def test_claim_may_miss_as_many_seeds_as_it_says(load, missed, passed):
    learning = load("learning")
    runs = [{"holds": seed >= missed} for seed in range(5)]
    assert learning.summary(learning.CLAIMS["sac-cartpole"], runs, extra=[])["passed"] is passed


@pytest.mark.parametrize(("estimated", "ratio", "passed"), [(8.0, 0.8, True), (7.0, 0.7, False), (13.0, 1.3, False)])
def test_estimates_are_held_to_measured_time(load, monkeypatch, tmp_path, estimated, ratio, passed):
    estimate, process, page = load("estimate"), load("process"), load("page")
    monkeypatch.setattr(estimate, "run", lambda overrides, folder: process.Finished("", 5.0))
    monkeypatch.setattr(estimate, "estimated", lambda case, folder, seconds: {"seconds": estimated, "bytes": 1})
    monkeypatch.setattr(estimate, "in_processor_time", lambda case, folder, seconds: 4.0)
    monkeypatch.setattr(estimate.time, "perf_counter", iter([100.0, 110.0]).__next__)
    cases = estimate.measure(["ppo-cartpole"])
    case = cases["ppo-cartpole"]
    assert (case["seconds"], case["ratio"], case["ratio_of_processor_time"]) == (10.0, ratio, 0.8)
    assert case["passed"] is passed
    page.save("estimate", cases, folder=tmp_path)
    page.write(folder=tmp_path)
    verdict = "met" if passed else "missed"
    assert f"| 10 | {ratio:.2f} | 0.80 | 1 ± 0.25: {verdict} |" in (tmp_path / "README.md").read_text()


def test_page_is_made_from_results(load, tmp_path):
    page = load("page")
    page.save("dispatch", {"callbacks": 9, "microseconds": 5.25, "bar": 10.0, "passed": True}, folder=tmp_path)
    page.write(folder=tmp_path)
    assert "| 9 callbacks with empty hooks, an update | 5.2 | < 10: met |" in (tmp_path / "README.md").read_text()
    assert (
        json.loads((tmp_path / "dispatch.json").read_text())["machine"]["date"] in (tmp_path / "README.md").read_text()
    )


@pytest.fixture
def small(load, monkeypatch, tmp_path):
    """The memory's benchmark, with a cache of its own and a case that takes a moment."""
    monkeypatch.setenv("RLRUN_BENCH_CACHE", str(tmp_path))
    memory = load("memory")
    return memory, {"sample256": memory.CASES["sample256"]._replace(capacity=1_000)}


def test_sides_of_the_memory_give_equal_batches(small):
    memory, cases = small
    case = memory.measure_cases(cases, rivals=[], rounds=2)["sample256"]
    assert set(case["thousands"]) == {"rlrun", "numpy by column", "numpy packed rows"}
    assert case["bytes"]["rlrun"] == case["bytes"]["numpy by column"] == 256 * (4 * (17 + 17 + 6 + 1) + 2)
    assert len(case["rounds"]) == 2
    assert case["passed"]  # the rivals were not asked for


def test_rival_that_cannot_be_installed_misses_its_bar(small, load, monkeypatch):
    def refuse(rival):
        raise load("process").Failed("no such package")

    monkeypatch.setattr(load("rivals.client"), "interpreter", refuse)
    memory, cases = small
    monkeypatch.setattr(memory, "LIMITS", {})
    case = memory.measure_cases(cases, rivals=["cpprb"], rounds=1)["sample256"]
    assert (case["absent"]["cpprb"], case["missed"]) == ("no such package", ["cpprb"])
    assert case["absent"]["tianshou"] == memory.NOT_ASKED


@pytest.mark.parametrize(
    ("name", "rlrun", "missed"), [("sample256", 16.0, []), ("sample256", 12.0, ["stable-baselines3"])]
)
def test_memory_is_held_to_its_ratios(load, name, rlrun, missed):
    memory = load("memory")
    rounds = [{"rlrun": rlrun * noise, "stable-baselines3": 3.0 * noise, "cpprb": 10.0} for noise in (1.0, 2.0, 3.0)]
    absent = dict.fromkeys(("torchrl", "tianshou", "sheeprl"), memory.NOT_ASKED)
    summary = memory.summary(name, rounds, absent)
    assert summary["ratio"]["stable-baselines3"]["most"] == pytest.approx(rlrun / 3)
    assert (summary["missed"], summary["passed"]) == (missed, not missed)


@pytest.mark.parametrize(("speed", "missed"), [(200.0, []), (160.0, ["rlrun"])])
def test_memory_is_held_to_the_time_of_an_insertion(load, speed, missed):
    summary = load("memory").summary("insert1", [{"rlrun": speed}], {})
    assert summary["microseconds"]["median"] == 1_000 / speed
    assert summary["missed"] == missed


COUNT = """
import json
from benchmarks import memory_bytes as sizes
sizes.CASES["peak"] = sizes.CASES["peak"]._replace(capacity=300_000)
print(json.dumps(sizes.growth("peak")))
"""


def test_memory_of_a_full_table_is_counted():
    # in a process of its own: the peak of this one may be of a test before
    done = subprocess.run(
        [sys.executable, "-c", COUNT], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    sizes = json.loads(done.stdout)
    assert sizes["stored"] == 300_000 * 98
    assert sizes["grown"] >= 0.9 * sizes["stored"]


def test_calls_of_a_case_are_counted_again(load, monkeypatch):
    module, case = load("rivals.worker"), load("rivals.case").CASES["sample256"]._replace(capacity=1_000)
    worker, timed = module.Worker("columns"), []
    monkeypatch.setattr(worker, "time", lambda: timed.append(worker.calls) or 0.01 * worker.calls)
    for _ in range(2):
        worker.prepare(case)
        assert worker.calls == round(module.SECONDS / 0.01)
    assert timed == [1, 2, 4, 8] * 2


def test_bytes_of_any_batch_are_counted(load):
    batch = {"observation": torch.zeros(3, 2), "next": ({"reward": torch.zeros(3)}, [torch.zeros(3, dtype=torch.bool)])}
    assert load("rivals.worker").nbytes(batch) == 24 + 12 + 3
    assert load("rivals.worker").nbytes(None) == 0


def test_transitions_follow_one_another_in_the_data(load):
    case = load("rivals.case")
    episode = case.episode(case.CASES["insert64"])
    flat = episode.flat()
    assert flat["observation"].shape == (200 * 64, 17)
    assert (flat["next_observation"][:-64] == flat["observation"][64:]).all()
    assert episode.truncated.sum() == episode.truncated[-1].sum() == 64


def test_memory_page_names_who_has_no_figure(load, tmp_path):
    page, memory = load("page"), load("memory")
    part = memory.summary("per256", [{"rlrun": 2.0, "cpprb": 1.0}], {"tianshou": "broken", "sheeprl": "no priorities"})
    about = {"transitions": 256, "what": "sample", "bytes": {"rlrun": 512, "cpprb": 512}, "load": [0.5]}
    about |= {"how": {"rlrun": "Table", "cpprb": "ReplayBuffer"}, "versions": {"rlrun": {}, "cpprb": {}}}
    size = {"what": "peak", "error": "out of memory", "bar": 1.1, "passed": False}
    page.save("memory", {"per256": {**part, **about}, "peak": size}, folder=tmp_path)
    page.write(folder=tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| per256 | cpprb | 1 (1–1) | 2.00 (2.00–2.00) | ≥ 1: met | 2 |" in text
    assert "| per256 | tianshou | none |  | ≥ 1: missed |  |" in text
    assert "without tianshou (broken); sheeprl (no priorities)" in text
    assert "| peak | out of memory | ≤ 1.1: missed |" in text


def test_partial_measurement_keeps_the_other_parts(load, tmp_path):
    page = load("page")
    page.save("learning", {"a": {"passed": True}, "b": {"passed": True}}, folder=tmp_path)
    page.save("learning", {"a": {"passed": False}}, folder=tmp_path)
    cases = json.loads((tmp_path / "learning.json").read_text())["found"]
    assert (cases["a"]["passed"], cases["b"]["passed"]) == (False, True)


def test_seeds_are_read_as_ranges_and_lists(load):
    seeds_of = load("__main__").seeds_of
    assert (seeds_of("0-4"), seeds_of("3"), seeds_of("0,2-3")) == ([0, 1, 2, 3, 4], [3], [0, 2, 3])


@pytest.mark.parametrize(
    ("overrides", "parts", "rivals"),
    [
        ("memory", [], None),
        ("memory seq8 peak --rivals", ["seq8", "peak"], []),
        ("memory --rivals cpprb", [], ["cpprb"]),
    ],
)
def test_parts_and_rivals_are_chosen(load, overrides, parts, rivals):
    args = load("__main__").parser().parse_args(overrides.split())
    assert (args.memory, args.rivals, args.rounds) == (parts, rivals, 5)


def test_checkpoints_of_a_memory_are_measured(load, tmp_path, monkeypatch):
    checkpoints, case = load("checkpoints"), load("rivals.case").Case("sample", capacity=4_000)
    monkeypatch.setattr(checkpoints, "NEW_ROWS", 400)
    monkeypatch.setattr(checkpoints, "SAVES", 2)
    assert 1.0 < checkpoints.growing(str(tmp_path / "growing"), case)["disk"] < 3.0
    saved = checkpoints.full(str(tmp_path / "full"), case)
    assert len(saved["stalls"]) == len(saved["writes"]) == 3
    assert all(0 < stall <= write for stall, write in zip(saved["stalls"], saved["writes"], strict=True))
    assert checkpoints.load(str(tmp_path / "full"), case)["rows"] > 0.9 * case.capacity
    checkpoints.multiply(checkpoints.RunDir.open(tmp_path / "full"), tmp_path / "many", count=7)
    assert [report.damage for report in checkpoints.checkpoints(tmp_path / "many", verify=True)] == [()] * 7


@pytest.mark.parametrize(("stall", "passed"), [(0.15, True), (0.16, False)])
def test_a_stall_is_held_to_its_bar(load, monkeypatch, tmp_path, stall, passed):
    checkpoints, page = load("checkpoints"), load("page")
    monkeypatch.setattr(
        checkpoints, "one_round", lambda folder: {**dict.fromkeys(checkpoints.WHAT, 0.1), "later_stall": stall}
    )
    result = checkpoints.measure(rounds=3)
    assert result["passed"] is passed
    page.save("checkpoints", result, folder=tmp_path)
    page.write(folder=tmp_path)
    assert f"≤ 0.15: {'met' if passed else 'missed'} |" in (tmp_path / "README.md").read_text()


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("side", ["sync", "thread"])
def test_time_of_stepping_is_measured(load, monkeypatch, side):
    asynchronous = load("asynchronous")
    monkeypatch.setattr(asynchronous, "OVERRIDES", (*asynchronous.OVERRIDES, *SMALL, "stop.env_steps=60"))
    assert 0.009 < asynchronous.one(side, "1", first=25, last=55) < 1.0


@pytest.mark.parametrize(("seconds", "passed"), [(0.011, True), (0.013, False)])
def test_asynchronous_steps_are_held_to_their_bar(load, monkeypatch, tmp_path, seconds, passed):
    asynchronous, page = load("asynchronous"), load("page")
    sync = {"1": 0.012, "2": 0.014, "4": 0.02, "8": 0.04}
    monkeypatch.setattr(asynchronous, "one", lambda side, updates: sync[updates] if side == "sync" else seconds)
    cases = asynchronous.measure(rounds=2)
    assert {name: case["passed"] for name, case in cases.items() if "passed" in case} == {"4-process": passed}
    page.save("async", cases, folder=tmp_path)
    page.write(folder=tmp_path)
    row = f"| 4 | process | {1000 * seconds:.1f} ({1000 * seconds:.1f}–{1000 * seconds:.1f}) | 20.0 (20.0–20.0) |"
    assert row in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("resumed", "over"),
    [([], True), ([None], True), (["0000000150-0000000010"], True), ([None, "0000000300-0000000020"], False)],
)
def test_a_job_of_a_sweep_that_left_its_checkpoint_was_started_over(load, tmp_path, resumed, over):
    sweeps = load("sweeps")
    about = {"resumed": [{"checkpoint": checkpoint} for checkpoint in resumed]} if resumed else {}
    (tmp_path / "manifest.json").write_text(json.dumps(about))
    kills = [{"checkpoints": {}}, {"checkpoints": {tmp_path.name: "0000000300-0000000020"}}]
    assert sweeps._started_over(tmp_path, kills) is over
    assert not sweeps._started_over(tmp_path, kills[:1])


def test_a_sweep_is_judged_by_every_job(load, tmp_path):
    page, sweeps = load("page"), load("sweeps")
    case = {"words": ["seed=0"], "kills": [{"states": {"completed": 3, "running": 4}}], "jobs": 24, "passed": False}
    case |= {"completed": 24, "finished_once": 24, "started_over": 1, "wall_seconds": 5.0}
    page.save("sweeps", {"local": case | {"identical": dict.fromkeys(sweeps.GROUPS, 24)}}, folder=tmp_path)
    failed = {"words": [], "kills": [], "error": "it came to nothing", "passed": False, "wall_seconds": 1.0}
    page.save("sweeps", {"ray": failed}, folder=tmp_path)
    page.write(folder=tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| local | 3 completed, 4 running | 24 | 24 | 1 | 24 of 24 |" in text
    assert "| ray | it came to nothing |" in text


RATES, PERIODS = (1e-5, 1e-3, 1e-1), (1, 100, 2000)


def valley(*, luck):
    """Return curves of five evaluations that are best in the middle, of three runs at each point."""
    height = {rate: [0.0, 100.0, 0.0][index] for index, rate in enumerate(RATES)}
    across = {period: [0.0, 50.0, 0.0][index] for index, period in enumerate(PERIODS)}
    offsets = (-luck, 0.0, luck)
    return {
        f"{rate:g} {period}": [[height[rate] + across[period] + offset] * 5 for offset in offsets]
        for rate in RATES
        for period in PERIODS
    }


def test_runs_are_drawn_from_the_points_around(load):
    surface = load("surface").Surface(valley(luck=10.0))
    assert surface.best == 150.0
    assert surface.expected(1e-3, 100).tolist() == pytest.approx([150.0] * 5)
    assert surface.expected(1e-4, 10).tolist() == pytest.approx([50.0 + 25.0] * 5)  # half the way on both axes
    assert surface.expected(1e-9, 1e9).tolist() == pytest.approx([0.0] * 5)  # the grid ends there
    draw = np.random.default_rng(0)
    runs = np.array([surface.drawn(1e-4, 10, draw)[0] for _ in range(600)])
    assert set(np.round(runs - 75.0, 3)) == {round(offset, 3) for offset in (-10 * 1.5**0.5, 0.0, 10 * 1.5**0.5)}
    assert runs.std() == pytest.approx(10.0, rel=0.05)  # as that of the three, which are few


def test_a_grid_is_read_off_a_sweep(load, tmp_path):
    for seed, rate, returns in ((1, 0.001, (9.0, 300.126)), (0, 0.001, (8.0, 20.0)), (0, 0.01, (7.0, 7.5))):
        job = tmp_path / "jobs" / f"{seed}{rate}"
        job.mkdir(parents=True)
        (job / "config.yaml").write_text(f"seed: {seed}\nalgorithm: {{lr: {rate}, target_every: 9}}\n")
        records = [{"updates": 1}, *({"evaluation/mean_return": mean} for mean in returns)]
        (job / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert load("surface").read(tmp_path) == {"0.001 9": [[8.0, 20.0], [9.0, 300.13]], "0.01 9": [[7.0, 7.5]]}


def test_a_search_is_held_to_trials_at_random(load, monkeypatch, tmp_path):
    search, page = load("search"), load("page")
    about = {"interval": [1.0, 2.0], "scores": [1.0], "searched": 9.0, "values": ["a=1"], "env_steps": 60}
    about |= {"seconds": 3.0, "trials": {"complete": 20, "pruned": 10}}
    means = {"search": 290.0, "random": 300.0}
    monkeypatch.setattr(search, "one", lambda side, seed, overrides, workers: {"mean": means[side], **about})
    monkeypatch.setattr(page, "load", lambda name, **options: {})
    monkeypatch.setattr(search.surface, "measure", lambda **options: valley(luck=10.0))
    for name, number in (("TRIALS", 12), ("STUDIES", 1), ("DRAWN", 8)):
        monkeypatch.setattr(search, name, number)
    parts = search.measure([0, 1])
    gained = parts["drawn"]["gain"] > 2 * parts["drawn"]["error"]
    assert [part["passed"] for part in parts.values()] == [gained, False, True]
    assert 50.0 < parts["drawn"]["means"]["random"] < parts["drawn"]["best"] == 150.0
    assert parts["drawn"]["evaluations"]["search"] < parts["drawn"]["evaluations"]["random"] == 12 * 5 * search.SEEDS
    assert all(study[side]["mean"] < 0.5 for study in parts["quadratic"]["studies"] for side in ("search", "cmaes"))
    assert list(search.measure([0], parts=["quadratic"])) == ["quadratic"]
    page.save("search", parts, folder=tmp_path)
    page.write(folder=tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "ahead in 0 of 2 studies: missed" in text
    assert "9 points, 3 runs at each" in text
    assert "| 1 | random | 300.0 [1.0, 2.0] | 9.0 | 20 complete, 10 pruned | 60 | 3 | `a=1` |" in text


def test_both_sides_of_a_search_are_the_command(load, monkeypatch):
    search, commands = load("search"), []

    def run(overrides, *, folder):
        commands.append(overrides)
        (folder / "sweep" / "jobs").mkdir(parents=True)
        best = {"mean": [1.0], "interval": [[0.5, 1.5]], "scores": [[1.0]], "searched": [2.0], "words": ["x=1"]}
        (folder / "sweep" / "best.json").write_text(json.dumps({"best": best, "trials": {"complete": 30}}))

    monkeypatch.setattr(search, "run", run)
    search.cartpole([4], workers=2)
    from rlrun.sweep.search import SearchPlan
    from rlrun.sweep.sweeping import Means, apart

    for overrides, sampler in zip(commands, ("tpe", "random"), strict=True):
        jobs, own = apart(overrides[4 : overrides.index("--sweep-dir")])
        settings = Means(own).search()
        assert (settings.sampler, settings.trials, settings.seed, settings.top) == (sampler, 30, 4, 3)
        assert [dim.key for dim in SearchPlan(jobs, settings).dimensions] == ["algorithm.lr", "algorithm.target_every"]


@pytest.mark.parametrize(("wrong", "passed"), [(2, True), (3, False)])
def test_a_diagnosis_is_held_to_what_was_planted(load, monkeypatch, tmp_path, wrong, passed):
    why, page = load("why"), load("page")
    planted = [case.cause for case in why.SABOTAGED.values()]
    causes = iter([*["dead units"] * wrong, *planted[wrong:], *[None] * len(why.HEALTHY)])
    monkeypatch.setattr(why, "run", lambda overrides, folder: None)

    def answer(overrides, folder):
        cause = next(causes)
        findings = [] if cause is None else [{"cause": cause, "reason": "so"}, {"cause": "scale", "reason": "so"}]
        return {"findings": findings, "checks": 9, "unmade": {}}

    monkeypatch.setattr(why, "run_for_json", answer)
    result = why.measure()
    assert (result["sabotaged"]["right"], result["sabotaged"]["passed"]) == (12 - wrong, passed)
    assert (result["healthy"]["right"], result["healthy"]["passed"]) == (12, True)
    page.save("why", result, folder=tmp_path)
    page.write(folder=tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert f"named first in {12 - wrong} of 12, bar ≥ 10: {'met' if passed else 'missed'}." in text
    assert "| rate x 100 | 0 | dead units, scale | wrong | 9 | 0 |" in text


def test_runs_to_be_diagnosed_can_be_made(load, tmp_path, monkeypatch):
    from rlrun.commands import train as experiment

    why = load("why")
    monkeypatch.chdir(tmp_path)
    for case in (why.SABOTAGED["bounds too narrow"], why.SABOTAGED["no time limit"], why.HEALTHY["ppo-pendulum"]):
        assert experiment.explain([*why.overrides_of(case.overrides), *why.ALWAYS])
    causes = {case.cause for case in why.SABOTAGED.values()}
    from rlrun.analysis.why import RULES

    assert causes <= {rule.name for rule in RULES}


def test_returns_of_earlier_seeds_stay(load, tmp_path, monkeypatch):
    halfcheetah, page = load("halfcheetah"), load("page")
    monkeypatch.setattr(halfcheetah, "interpreter", lambda name: Path("python"))
    monkeypatch.setattr(
        page, "load", lambda name, folder=tmp_path: json.loads((folder / f"{name}.json").read_text())["found"]
    )
    (tmp_path / "halfcheetah.json").write_text('{"found": {}}')
    numbers = {}

    def rival(overrides, *, folder, python=None):
        if overrides[1] == "rlrun":
            return {"returns": [50.0, 70.0]}
        numbers.update(json.loads(overrides[3]))
        return {"returns": [40.0 + float(overrides[4]), 60.0], "seconds": 9.0}

    monkeypatch.setattr(halfcheetah, "run", lambda overrides, folder: None)
    monkeypatch.setattr(halfcheetah, "run_for_json", rival)
    for seeds, mean, passed in (([0, 1], 50.25, True), ([60], 60.166, False)):
        parts = halfcheetah.measure(["td3-halfcheetah"], seeds=seeds)
        part = parts["td3-halfcheetah"]
        assert part["means"] == pytest.approx({"rlrun": 60.0, "rival": mean}, abs=1e-3)
        assert part["passed"] is passed
        page.save("halfcheetah", parts, folder=tmp_path)
    assert [run["seed"] for run in part["runs"]] == [0, 1, 60]
    assert (numbers["env"], numbers["budget"], numbers["policy_every"]) == ("HalfCheetah-v5", 50_000, 2)
    page.write(folder=tmp_path)
    assert "| td3-halfcheetah | 60 | 60 (0 s) | 80 (9 s) |" in (tmp_path / "README.md").read_text()


def test_defaults_are_compared_by_errors_and_shares(load):
    comparison = load("defaults").compared([4.0, 6.0], [6.0, 8.0], random=3.0)
    assert comparison == {"gain": -2.0, "error": pytest.approx(2**0.5), "share": -0.5}  # variances of 2, by 2 runs each


@pytest.mark.parametrize(("enough", "passed"), [(None, True), (4, True), (5, False)])
def test_defaults_without_a_count_are_judged_by_their_mean(load, enough, passed):
    defaults = load("defaults")
    task = defaults.Task("ppo", "CartPole-v1", 1_000, bar=2.0, enough=enough, alone=True)
    runs = [{"best": [value], "last": [value], "curve": []} for value in (1.0, 3.0, 3.0, 3.0, 3.0)]
    result = defaults.summary(task, {"rlrun": runs})
    assert (result["reached"], result["bar_met"], result["passed"]) == (4, passed, passed)
    runs[1]["best"] = [-5.0]
    assert not defaults.summary(task, {"rlrun": runs})["passed"]


def test_defaults_go_on_with_missing_runs_alone(load, monkeypatch, tmp_path):
    defaults, page = load("defaults"), load("page")
    jobs = []

    def answer(overrides, *, folder, python):
        job = json.loads(overrides[-1])
        jobs.append((job["algorithm"], job["seed"]))
        outcome = {"curve": [[job["every"], 1.0]], "best": [2.0], "last": [1.0]}
        return {"returns": [0.0]} if job["algorithm"] == "random" else outcome

    def ours(name, task, seeds, workers, folder):
        for seed in seeds:
            defaults._add(name, task, "rlrun", {"seed": seed, "curve": [], "best": [2.0], "last": [0.0]}, folder)

    monkeypatch.setattr(defaults, "run_for_json", answer)
    monkeypatch.setattr(defaults, "interpreter", lambda rival: "python")
    monkeypatch.setattr(defaults, "_ours", ours)
    tasks = {"x": defaults.Task("ppo", "CartPole-v1", 1_000, bar=2.0)}
    first = defaults.measure(seeds=[0], sides=[defaults.RIVAL], tasks=tasks, folder=tmp_path)
    assert not first["x"]["passed"]
    assert jobs == [("ppo", 0), ("random", 0)]
    result = defaults.measure(seeds=range(5), tasks=tasks, folder=tmp_path)["x"]
    assert jobs[2:] == [("ppo", seed) for seed in range(1, 5)]
    assert (result["reached"], result["compared"]["best"]["gain"]) == (5, 0.0)
    assert not result["passed"]  # the last policies are behind
    page.write(folder=tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "* mean share of 1 tasks, last policy: -1.00, bar ≥ -0.05: missed" in text
