"""Claims, sweeps, searches, diagnoses and defaults are held to their bars."""

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from benchmarks import claims_of_pixels, defaults, halfcheetah, learning, page, search, surface, sweeps, why
from benchmarks.tests.small import SMALL

from rlrun.analysis.why import RULES
from rlrun.commands import train as experiment
from rlrun.sweep.search import SearchPlan
from rlrun.sweep.sweeping import SweepSettings, split_overrides


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", ["dqn-chain-truncated", "sac-hitthemiddle", "sac-pointmass-diayn"])
def test_claim_about_a_toy_is_measured(name):
    case = learning.measure([name], seeds=[0], overrides=[*SMALL, "stop.updates=20"])[name]
    assert "error" not in case["runs"][0]
    assert not case["passed"]  # nothing is learned in 20 updates


@pytest.mark.usefixtures("warm")
def test_claim_about_a_return_is_measured(page_of):
    overrides = [*SMALL, "stop.env_steps=60", "evaluation.every=30", "evaluation.episodes=1"]
    case = learning.measure(["sac-mixedaction"], seeds=[0], overrides=overrides)["sac-mixedaction"]
    (run,) = case["runs"]
    assert 0.0 <= run["value"] <= 10.0
    assert 0.0 <= run["evaluations"]["last"] <= run["evaluations"]["best"] <= 10.0
    text = page_of("learning", {"sac-mixedaction": case})
    assert f"{run['value']:.4g} (last evaluation {run['evaluations']['last']:.4g})" in text


def test_runs_of_other_seeds_are_kept(monkeypatch):
    monkeypatch.setattr(learning, "one_run", lambda name, seed, overrides: {"seed": seed, "value": 0.0, "holds": True})
    earlier = learning.measure(["ppo-cartpole"], seeds=[0, 2])
    kept = learning.measure(["ppo-cartpole"], seeds=[1], earlier=earlier)["ppo-cartpole"]
    assert [run["seed"] for run in kept["runs"]] == [0, 1, 2]
    other = learning.measure(["ppo-cartpole"], seeds=[1], earlier=earlier, overrides=["seed=1"])["ppo-cartpole"]
    assert [run["seed"] for run in other["runs"]] == [1]


@pytest.mark.parametrize(
    ("plain", "helped", "met"), [(0.5, 0.66, True), (0.5, 0.64, False), (0.8, 0.91, True), (0.7, 0.84, False)]
)
def test_pixels_are_scored(plain, helped, met, monkeypatch, page_of):
    monkeypatch.setattr(claims_of_pixels, "random_return", lambda: -40.0)
    names = (claims_of_pixels.STATE, claims_of_pixels.PLAIN, *claims_of_pixels.HELPED)
    results = {
        name: learning.summary(learning.CLAIMS[name], [{"seed": 0, "value": value, "holds": True}], extra=[])
        for name, value in zip(names, (0.0, 40 * plain - 40, 40 * helped - 40, 40 * helped - 40), strict=True)
    }
    for result in results.values():
        result["runs"][0]["wall_seconds"], result["machine"] = 1.0, {"date": "today"}
    score = claims_of_pixels.scores(results)
    assert score[names[2]] == pytest.approx(helped)
    assert claims_of_pixels.met(score, names[2]) is met
    assert ("missed" in page_of("learning", results).split("Pictures:")[1]) is not met


@pytest.mark.parametrize(("missed", "passed"), [(0, True), (1, True), (2, False)])
def test_claims_may_miss_some_seeds(missed, passed):
    runs = [{"holds": seed >= missed} for seed in range(5)]
    assert learning.summary(learning.CLAIMS["sac-cartpole"], runs, extra=[])["passed"] is passed


@pytest.mark.parametrize(
    ("checkpoint", "minute", "over"),
    [
        (None, 2, True),
        ("0000000150-0000000010", 2, True),
        ("0000000300-0000000020", 2, False),
        (None, 0, False),  # before the kill
    ],
)
def test_jobs_that_start_over_are_counted(tmp_path, checkpoint, minute, over):
    resumed = {"checkpoint": checkpoint, "created": f"2026-01-01T00:0{minute}:00+00:00"}
    (tmp_path / "manifest.json").write_text(json.dumps({"resumed": [resumed]}))
    at = datetime.fromisoformat("2026-01-01T00:01:00+00:00")
    kills = [{"checkpoints": {}, "at": at}, {"checkpoints": {tmp_path.name: "0000000300-0000000020"}, "at": at}]
    assert sweeps._started_over(tmp_path, kills) is over
    assert not sweeps._started_over(tmp_path, kills[:1])


def test_sweeps_are_judged_by_every_job(page_of):
    case = {"words": ["seed=0"], "kills": [{"victim": "job"}, {"victim": "all"}], "jobs": 24, "passed": False}
    case |= {"completed": 24, "finished_once": 24, "started_over": 1, "wall_seconds": 5.0}
    case |= {"identical": dict.fromkeys(sweeps.GROUPS, 24)}
    failed = {"words": [], "kills": [], "error": "it came to nothing", "passed": False, "wall_seconds": 1.0}
    text = page_of("sweeps", {"local": case, "ray": failed})
    assert "| local | 1 job, 1 all | 24 | 24 | 1 | 24 of 24 |" in text
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


def test_runs_are_drawn_from_near_points():
    returns = surface.Surface(valley(luck=10.0))
    assert returns.best == 150.0
    assert returns.expected(1e-3, 100).tolist() == pytest.approx([150.0] * 5)
    assert returns.expected(1e-4, 10).tolist() == pytest.approx([50.0 + 25.0] * 5)  # half the way on both axes
    assert returns.expected(1e-9, 1e9).tolist() == pytest.approx([0.0] * 5)  # the grid ends there
    draw = np.random.default_rng(0)
    runs = np.array([returns.drawn(1e-4, 10, draw)[0] for _ in range(600)])
    assert set(np.round(runs - 75.0, 3)) == {round(offset, 3) for offset in (-10 * 1.5**0.5, 0.0, 10 * 1.5**0.5)}
    assert runs.std() == pytest.approx(10.0, rel=0.05)  # as that of the three, which are few


def test_grids_are_read_from_a_sweep(tmp_path):
    for seed, rate, returns in ((1, 0.001, (9.0, 300.126)), (0, 0.001, (8.0, 20.0)), (0, 0.01, (7.0, 7.5))):
        job = tmp_path / "jobs" / f"{seed}{rate}"
        job.mkdir(parents=True)
        (job / "config.yaml").write_text(f"seed: {seed}\nalgorithm: {{lr: {rate}, target_every: 9}}\n")
        records = [{"updates": 1}, *({"evaluation/mean_return": mean} for mean in returns)]
        (job / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert surface.read(tmp_path) == {"0.001 9": [[8.0, 20.0], [9.0, 300.13]], "0.01 9": [[7.0, 7.5]]}


def test_search_is_held_to_random_trials(monkeypatch, page_of):
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
    assert all(study["search"]["mean"] < 0.5 for study in parts["quadratic"]["studies"])
    assert list(search.measure([0], parts=["quadratic"])) == ["quadratic"]
    text = page_of("search", parts)
    assert "ahead in 0 of 2 studies: missed" in text
    assert "9 points, 3 runs at each" in text
    assert "| 1 | random | 300.0 [1.0, 2.0] | 9.0 | 20 complete, 10 pruned | 60 | 3 | `a=1` |" in text


def test_both_sides_search_by_the_command(monkeypatch):
    commands = []

    def run(overrides, *, folder):
        commands.append(overrides)
        (folder / "sweep" / "jobs").mkdir(parents=True)
        best = {"mean": [1.0], "interval": [[0.5, 1.5]], "scores": [[1.0]], "searched": [2.0], "words": ["x=1"]}
        (folder / "sweep" / "best.json").write_text(json.dumps({"best": best, "trials": {"complete": 30}}))

    monkeypatch.setattr(search, "run", run)
    search.cartpole([4], workers=2)
    for overrides, sampler in zip(commands, ("tpe", "random"), strict=True):
        jobs, own = split_overrides(overrides[4 : overrides.index("--sweep-dir")])
        settings = SweepSettings(own).search()
        assert (settings.sampler, settings.trials, settings.seed, settings.top) == (sampler, 30, 4, 3)
        assert [dim.key for dim in SearchPlan(jobs, settings).dimensions] == ["algorithm.lr", "algorithm.target_every"]


@pytest.mark.parametrize(("wrong", "passed"), [(2, True), (3, False)])
def test_diagnoses_are_held_to_planted_causes(monkeypatch, page_of, wrong, passed):
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
    text = page_of("why", result)
    assert f"named first in {12 - wrong} of 12, bar ≥ 10: {'met' if passed else 'missed'}." in text
    assert "| rate x 100 | 0 | dead units, scale | wrong | 9 | 0 |" in text


def test_diagnosed_runs_can_be_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for case in (why.SABOTAGED["bounds too narrow"], why.SABOTAGED["no time limit"], why.HEALTHY["ppo-pendulum"]):
        assert experiment.explain([*why.overrides_of(case.overrides), *why.ALWAYS])
    causes = {case.cause for case in why.SABOTAGED.values()}
    assert causes <= {rule.name for rule in RULES}


def test_returns_of_earlier_seeds_stay(tmp_path, monkeypatch):
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


def test_defaults_are_compared_by_shares():
    comparison = defaults.compared([4.0, 6.0], [6.0, 8.0], random=3.0)
    assert comparison == {"gain": -2.0, "error": pytest.approx(2**0.5), "share": -0.5}  # variances of 2, by 2 runs each


@pytest.mark.parametrize(("enough", "passed"), [(None, True), (4, True), (5, False)])
def test_defaults_are_judged_by_their_mean(enough, passed):
    task = defaults.Task("ppo", "CartPole-v1", 1_000, bar=2.0, enough=enough, alone=True)
    runs = [{"best": [value], "last": [value], "curve": []} for value in (1.0, 3.0, 3.0, 3.0, 3.0)]
    result = defaults.summary(task, {"rlrun": runs})
    assert (result["reached"], result["bar_met"], result["passed"]) == (4, passed, passed)
    runs[1]["best"] = [-5.0]
    assert not defaults.summary(task, {"rlrun": runs})["passed"]


def test_defaults_run_missing_seeds_alone(monkeypatch, tmp_path):
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
