"""A search: what is searched, who chooses, what jobs come to, and the answer."""

import json
import math
import random
import re
import signal
import statistics
from pathlib import Path

import pytest
import yaml

from rlrun.config.expansion import expand
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.runs.directory import RunDir
from rlrun.runs.progress import values_of
from rlrun.sweep import scheduler
from rlrun.sweep.directory import SweepDir
from rlrun.sweep.scheduler import Limits
from rlrun.sweep.search import Optuna, SearchPlan, search, study
from rlrun.sweep.search.space import Dimension, divide
from rlrun.sweep.search.study import Study
from rlrun.sweep.sweeping import SweepSettings, sweep

from . import seeking
from .conftest import job
from .seeking import LOG, Cheap, Sought
from .test_sweeps import TINY, kill_jobs, statuses

QUAD = (LOG, "n=int(interval(1,200))", "y=interval(-1,1)")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Let nobody wait for jobs that take no time."""
    for name in ("PAUSE", "REST", "WATCH"):
        monkeypatch.setattr(scheduler, name, 0.0)
    monkeypatch.setattr(search, "LOOK", 0.0)


def as_x(values):
    """Return what a run comes to: its x."""
    return [values["x"]]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a.b=interval(1,5)", Dimension("a.b", low=1.0, high=5.0)),
        ("a=int(interval(1,5))", Dimension("a", low=1, high=5)),
        ("+a=tag(log,interval(1e-5,1e-2))", Dimension("+a", low=1e-5, high=1e-2, log=True)),
        ("a=range(2,9,3)", Dimension("a", low=2, high=8, step=3)),
        ("a=range(9,2,-3)", Dimension("a", low=3, high=9, step=3)),
        ("a=range(0,1,0.25)", Dimension("a", low=0.0, high=0.75, step=0.25)),
        ("a=range(0.1,0.4,0.1)", Dimension("a", low=0.1, high=0.3, step=0.1)),
        ("a=tag(log,range(1,9))", Dimension("a", low=1, high=8, step=1, log=True)),
        ("a=tag(log,int(interval(1,5)))", Dimension("a", low=1, high=5, log=True)),
        ("a=relu,tanh", Dimension("a", choices=("relu", "tanh"))),
        ("a=choice([64,64],[8])", Dimension("a", choices=("[64,64]", "[8]"))),
        ("memory=glob(re*)", Dimension("memory", choices=("recent", "replay"))),
    ],
)
def test_a_word_with_several_values_is_a_dimension(override, expected):
    assert divide(["algorithm=dqn", override], {}) == (["algorithm=dqn"], [expected])


def test_dimensions_may_stand_in_a_file(tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text(
        "defaults: [/rlrun/sweep/optuna]\ntrials: 7\nparams:\n  algorithm.lr: tag(log, interval(1e-5, 1e-2))\n"
        "  algorithm: {batch_size: [32, 64], hidden: '[8],[16,16]'}\n  num_envs: 3\n"
    )
    settings = SweepSettings(["+sweep=mine", "sweep.seeds=2"], tmp_path).search()
    assert (settings.trials, settings.seeds) == (7, 2)
    fixed, dimensions = divide(["env=cartpole", "algorithm.batch_size=range(8,10)"], settings.params)
    assert fixed == ["num_envs=3", "env=cartpole"]
    assert dimensions == [
        Dimension("algorithm.lr", low=1e-5, high=1e-2, log=True),
        Dimension("algorithm.hidden", choices=("[8]", "[16,16]")),
        Dimension("algorithm.batch_size", low=8, high=9, step=1),
    ]


@pytest.mark.parametrize(
    ("overrides", "settings", "message"),
    [
        (["seed=0,1"], {}, r"every trial has those of sweep.seeds=\[0,1,2\]"),
        (["stop.env_steps=interval(1,9)"], {}, "stop.env_steps may differ within one run"),
        (["algorithm.lr=0.1"], {}, "a search needs an override with several values"),
        (["a=interval(5,1)"], {}, "two numbers in order"),
        (["a=tag(log,interval(0,1))"], {}, "begin above 0"),
        (["a=tag(log,range(0,9))"], {}, "the logarithm of 0 cannot be spread"),
        (["a=tag(log,range(1,9,2))"], {}, "with steps of 1"),
        (["a=tag(log,choice(1,2))"], {}, "not with a list"),
        (["a=tag(lgo,interval(1,2))"], {}, "there is no tag 'lgo'"),
        (["algorithm.batch_size=interval(16,64)"], {}, r"whole number .*int\(interval\(16,64\)\) has whole"),
        (["algorithm.batch_size=tag(log,interval(16,64))"], {}, "whole number"),
        (["num_envs=interval(1,3)"], {}, "num_envs: wanted a whole number"),
        (
            ["algorithm=ppo", "algorithm.horizon=interval(64,256)"],
            {},
            "horizon: wanted a whole number, got .*; algorithm.horizon=int",
        ),
        (["memory.frame_stack=interval(1,4)", "memory.min_length=range(1,3,0.5)"], {}, "whole number"),
        (["algorithm.lr=1e-3,1e-4"], {"objective": "nope"}, "sweep.objective: no run has a metric 'nope'"),
        (["algorithm.lr=1e-3,1e-4"], {"objective": "loss/q_lose"}, r"'loss/q_lose' \(did you mean 'loss/q_loss'"),
        (
            ["algorithm.lr=1e-3,1e-4"],
            {"objective": ["seconds", "mean_return"]},
            "did you mean 'evaluation/mean_return'",
        ),
        (["a=interval(0,1)"], {"sampler": "grid"}, "a has no end of values"),
        (["a=1,2"], {"sampler": "tp"}, r"one of tpe, grid, random, nsga2, got 'tp' \(did you mean 'tpe'"),
        (["a=1,2"], {"objective": ["x", "y"], "pruner": "median"}, "of several objectives none says which"),
        (["a=1,2"], {"objective": ["x", "y"], "direction": ["minimize"]}, "2 objectives have one direction each"),
        (["a=1,2"], {"sampler": "nsga2"}, "it is for several objectives"),
        (["a=1,2"], {"seeds": [1, 1]}, "a list of different seeds"),
        (["a=1,2"], {"trials": 0}, "sweep.trials: wanted a whole number from 1, got 0"),
        (["algorithm.lrr=interval(0,1)"], {}, "algorithm.lrr: no such key"),
        (["algorithm.lr=interval(-1,1)"], {}, "algorithm.lr: wanted a number above 0"),
        (["algorithm.lr=1,2", "evaluation.every=0"], {}, "evaluation.every=0 leaves no evaluation/mean_return"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_starts(overrides, settings, message):
    with pytest.raises(ConfigError, match=message):
        SearchPlan(["algorithm=dqn", "env=cartpole", *overrides], Optuna(**settings)).check()


def test_objectives_and_numbers_that_may_be_are_left_alone():
    for objective in ("evaluation/return_of_mine", "episode/length", "seconds", "loss/q_loss"):
        SearchPlan(["algorithm=dqn", "env=cartpole", "algorithm.lr=1,2"], Optuna(objective=objective)).check()
    overrides = ["algorithm.discount=interval(0,1)", "algorithm.updates_per_step=interval(1,2)"]
    overrides += ["algorithm.batch_size=tag(log,int(interval(16,64)))", "algorithm.tau=range(0.1,0.9,0.1)"]
    SearchPlan(["algorithm=sac", "env=pendulum", *overrides], Optuna()).check()
    own = "+callbacks.mine={_target_: my.Own}"
    SearchPlan(["algorithm=dqn", "env=cartpole", "algorithm.lr=1,2", own], Optuna(objective="nope")).check()


def test_the_first_trial_has_the_configs_own_values():
    overrides = ["algorithm=dqn", "env=cartpole", "preset=null", "algorithm.lr=interval(1e-5,1e-2)", "memory=glob(re*)"]
    overrides += ["algorithm.n_step=1,2", "algorithm.double=true,false", "algorithm.discount=interval(0,0.5)"]
    plan = SearchPlan(overrides, Optuna())
    expected = {"algorithm.lr": 5e-4, "algorithm.n_step": "1", "algorithm.double": "True", "memory": "replay"}
    assert plan.start == expected  # a discount of 0.99 is none to choose from


def test_jobs_of_a_trial_are_those_of_its_words():
    plan = SearchPlan(
        ["algorithm=dqn", "env=cartpole", "seed=5", "algorithm.lr=interval(1e-5,1e-2)"], Optuna(seeds=2, fresh_seeds=1)
    )
    jobs = plan.jobs({"algorithm.lr": 0.00123456}, plan.seeds)
    assert [job.label for job in jobs] == ["algorithm.lr=0.001235 seed=5", "algorithm.lr=0.001235 seed=6"]
    assert [job.key for job in jobs] == [expand(job.overrides)[0].key for job in jobs]
    assert plan.fresh == [7]


def rising(values):
    """Return four evaluations that end at a run's value."""
    return [values["x"] * share for share in (0.4, 0.6, 0.8, 1.0)]


def test_hopeless_trials_are_left_and_the_others_go_on(tmp_path):
    settings = {"sampler": "random", "pruner": "median", "warmup": 1, "compare": 3, "seeds": 2, "score": "last"}
    sought = Sought(tmp_path, ["x=interval(0,1)"], rising, workers=2, trials=12, top=1, **settings).run()
    assert sought.code == 0
    pruned = [trial.number for trial in sought.trials if trial.state == "pruned"]
    whole = [trial for trial in sought.trials if trial.state == "complete"]
    assert pruned
    assert len(pruned) + len(whole) == 12
    assert not set(pruned) & {0, 1, 2}  # nobody to compare with
    states = {job.key: state for job, state, *_ in sought.sweep.statuses()}
    for trial in sought.trials:
        outcomes = {states[job.key] for job in sought.plan.jobs(trial.values, sought.plan.seeds)}
        assert outcomes == {"completed"} if trial.state == "complete" else outcomes <= {"pruned", "completed"}
    best = max(whole, key=lambda trial: trial.values["x"])
    assert sought.answer["best"]["trial"] == best.number
    evaluations = [len((tmp_path / "jobs" / key / "metrics.jsonl").read_text().splitlines()) for key in states]
    assert min(evaluations) < 4


def test_evaluations_between_two_looks_count_and_the_last_one_leaves_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "LOOK", 1_000.0)  # only where a job has ended
    settings = {"sampler": "random", "warmup": 0, "compare": 1, "top": 0, "trials": 6}
    sought = Sought(tmp_path, ["x=interval(0,1)"], rising, **settings)
    sought.run()
    assert sought.states == ["complete"] * 6
    for trial, known in zip(sought.trials, sought.search._study._frozen(), strict=True):
        values = rising({"x": float(sought.plan.overrides_of(trial.values)[0].split("=")[1])})
        means = [statistics.fmean(values[: step + 1]) for step in range(4)]
        assert list(known.intermediate_values) == [1, 2, 3, 4]
        assert list(known.intermediate_values.values()) == pytest.approx(means)


@pytest.mark.parametrize(("evaluations", "second"), [(4, "pruned"), (2, "complete")])
def test_a_trial_with_nothing_before_it_is_not_left(evaluations, second, tmp_path, monkeypatch):
    monkeypatch.setattr(seeking.Cheap, "evaluations", evaluations)
    settings = {"sampler": "grid", "warmup": 2, "compare": 1, "top": 0}
    sought = Sought(tmp_path, ["x=0.9,0.1"], lambda values: as_x(values) * evaluations, **settings)
    assert sought.run().states == ["complete", second]


@pytest.mark.parametrize("pruner", ["successive_halving", "hyperband"])
def test_other_pruners_leave_trials_too(pruner, tmp_path):
    settings = {"sampler": "random", "pruner": pruner, "warmup": 1, "top": 0, "trials": 20}
    sought = Sought(tmp_path, ["x=interval(0,1)"], rising, workers=2, **settings).run()
    assert {"pruned", "complete"} == set(sought.states)
    assert sought.answer["fresh_seeds"] == []


def test_a_trial_that_is_no_number_or_fails_ends_no_search(tmp_path):
    def come_to(values):
        if values["x"] < 0.3:
            return [math.nan] * 2
        return {"evaluations": [0.1], "fails": True} if values["x"] > 0.8 and values["seed"] == 1 else [values["x"]]

    overrides = ["x=0.1,0.5,0.6,0.9"]
    sought = Sought(
        tmp_path, overrides, come_to, sampler="grid", seeds=2, fresh_seeds=2, top=1, limits=Limits(retries=1)
    ).run()
    assert sought.states == ["failed", "complete", "complete", "failed"]
    assert sought.answer["best"]["overrides"] == ["x=0.6"]
    assert sought.code == 1  # jobs failed
    failed = next(status for status in sought.sweep.statuses() if status.state == "failed")
    assert (failed.attempts, failed.error) == (2, "the arm broke")
    assert "trial 3 x=0.9: failed: the arm broke" in sought.describe_error


def test_an_objective_that_no_run_has_is_told_at_the_first(tmp_path):
    sought = Sought(tmp_path, ["x=1,2"], as_x, objective="evaluation/mean_returns")
    with pytest.raises(
        ConfigError, match=r"no metric 'evaluation/mean_returns' \(did you mean 'evaluation/mean_return'"
    ):
        sought.run()
    assert len(sought.launcher.started) == 1


def test_failed_trials_are_tried_again_on_request(tmp_path):
    broken = [True]

    def come_to(values):
        return {"evaluations": [], "fails": True} if broken[0] and values["x"] == 2 else [values["x"]]

    assert Sought(tmp_path, ["x=1,2,3"], come_to, sampler="grid", top=1).run().states == [
        "complete",
        "failed",
        "complete",
    ]
    broken[0] = False
    again = Sought(tmp_path, ["x=1,2,3"], come_to, sampler="grid", top=1)
    again.sweep.reopen([job.key for job in again.sweep.jobs()], "failed")
    assert again.run().states == ["complete", "failed", "complete", "complete"]
    assert again.trials[3].values == {"x": "2"}
    assert Sought(tmp_path, ["x=1,2,3"], come_to, sampler="grid", top=1).run().launcher.started == []


def test_a_grid_comes_to_its_end_in_order(tmp_path):
    sought = Sought(tmp_path, ["x=3,1", "y=range(2)"], as_x, sampler="grid", top=0).run()
    assert [sought.plan.overrides_of(trial.values) for trial in sought.trials] == [
        ["x=3", "y=0"],
        ["x=3", "y=1"],
        ["x=1", "y=0"],
        ["x=1", "y=1"],
    ]


def test_values_that_come_again_are_not_run_again(tmp_path):
    sought = Sought(tmp_path, ["x=1,2"], as_x, sampler="random", trials=10, top=0).run()
    assert sought.states == ["complete"] * 10
    assert len(sought.launcher.started) == 2


def test_several_objectives_have_no_single_best(tmp_path):
    def come_to(values):
        return {"evaluations": [values["x"]], "seconds": values["x"] ** 2 + values["y"]}

    settings = {"objective": ["evaluation/mean_return", "seconds"], "direction": ["maximize", "minimize"]}
    overrides = ["x=interval(0,1)", "y=interval(0,1)"]
    sought = Sought(tmp_path, overrides, come_to, sampler="nsga2", trials=40, top=4, fresh_seeds=2, **settings).run()
    points = [candidate["mean"] for candidate in sought.answer["candidates"]]
    assert len(points) == 4
    for point in points:
        assert not any(rival[0] > point[0] and rival[1] < point[1] for rival in points)
    assert points == sorted(points, reverse=True)


def test_the_answer_says_where_the_search_was_flattered(tmp_path):
    def come_to(values):
        return [10.0 if values["x"] == 1 and values["seed"] == 0 else values["x"]]

    sought = Sought(tmp_path, ["x=1,2,3"], come_to, sampler="grid", top=2, fresh_seeds=3).run()
    assert sought.answer["best"]["mean"] == [3.0]
    assert sought.answer["fresh_seeds"] == [1, 2, 3]
    assert "the search itself had trial 0 first, at 10" in sought.search.result
    assert sought.search.result.splitlines()[-1] == "rlrun train x=3"


def test_a_study_goes_on_as_if_it_had_not_been_left(tmp_path, monkeypatch):
    """A process that dies between any two writings of its own loses no trial and counts none twice."""

    def noisy(values):
        return [values["x"] - values["y"] ** 2 + random.Random(str(values)).gauss(0, 0.05)]

    whole = Sought(tmp_path / "whole", QUAD, noisy, trials=14, startup=4, top=1).run()
    writings, deaths = [0], set(range(3, 140, 6))

    class Died(BaseException):
        pass

    def dying(method):
        def write(*args, **named):
            writings[0] += 1
            if writings[0] in deaths:
                raise Died
            return method(*args, **named)

        return write

    from optuna.storages.journal import JournalFileBackend

    monkeypatch.setattr(JournalFileBackend, "append_logs", dying(JournalFileBackend.append_logs))
    for name in ("add", "prune"):
        monkeypatch.setattr(SweepDir, name, dying(getattr(SweepDir, name)))
    monkeypatch.setattr(RunDir, "write_status", dying(RunDir.write_status))
    died = 0
    while True:
        try:
            resumed = Sought(tmp_path / "left", QUAD, noisy, trials=14, startup=4, top=1)
            resumed.run()
            break
        except Died:
            died += 1
    assert died > 5
    assert [trial.values for trial in resumed.trials] == [trial.values for trial in whole.trials]
    assert [trial.results for trial in resumed.trials] == [trial.results for trial in whole.trials]
    assert resumed.answer == whole.answer


def test_of_two_schedulers_one_asks(tmp_path):
    first, second = (Sought(tmp_path, ["x=interval(0,1)"], as_x, trials=5) for _ in range(2))
    assert first.search.offer()
    assert not second.search.offer()
    assert not second.search.over()
    second.search.look(news=True)
    with first.search:  # and ends
        pass
    second.search._tried = -math.inf
    assert second.search.offer()
    assert [trial.number for trial in second.search._study.trials] == [0, 1]
    assert second.run().states == ["complete"] * 5


def test_more_trials_are_added_by_the_same_overrides_and_other_searches_refused(tmp_path):
    Sought(tmp_path, [LOG], as_x, trials=3, top=1).run()
    more = Sought(tmp_path, [LOG], as_x, trials=5, top=1).run()
    assert more.states == ["complete"] * 5
    assert len(more.launcher.started) in (2, 2 + 5)  # and fresh seeds, where another one is the best
    with pytest.raises(RunDirError, match="holds a search with other overrides"):
        Sought(tmp_path, ["x=1,2"], as_x)
    with pytest.raises(RunDirError, match="holds a search with other score"):
        Sought(tmp_path, [LOG], as_x, score="best")


def test_a_sweep_is_no_search(tmp_path):
    SweepDir(tmp_path).add([job("a")])
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(RunDirError, match="holds a sweep that is not a search"):
        sweep(plan=Cheap([LOG], Optuna()), folder=tmp_path, trust=True)
    assert not (tmp_path / "search.json").exists()


def test_a_torn_line_is_mended_and_damage_is_told(tmp_path):
    plan = Sought(tmp_path, [LOG], as_x, trials=3).run().plan
    journal = tmp_path / "study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "wor')
    assert len(Study(journal, plan).trials) == 3
    assert journal.read_bytes() == whole
    for damage in (b"nonsense\n", b'{"op_code": 99}\n', b"[]\n"):
        journal.write_bytes(whole + damage + damage)
        with pytest.raises(RunDirError, match=r"study\.journal is damaged"):
            Study(journal, plan)
    altered = whole.replace(b'"FloatDistribution\\"', b'"IntDistribution\\"')
    assert altered != whole
    journal.write_bytes(altered)
    with pytest.raises(RunDirError, match=r"study\.journal is damaged"):
        Study(journal, plan).ask()
    journal.write_bytes(whole)
    with pytest.raises(RunDirError, match="trial 0 has values that the search has not"):
        Study(journal, seeking.Cheap(["y=1,2"], plan.settings)).trials  # noqa: B018


def test_runs_are_scored_by_all_their_evaluations(tmp_path):
    run = RunDir(tmp_path)
    run.metrics.write_text("".join(json.dumps({"evaluation/mean_return": value}) + "\n" for value in (1.0, 9.0, 2.0)))
    run.summary.write_text('{"seconds": 3.5, "evaluation": {"mean_return": 2.0}}')
    by_score = {score: study.of_run(run, Optuna(score=score), 0) for score in ("mean", "last", "best")}
    assert by_score == {"mean": 4.0, "last": 2.0, "best": 9.0}
    assert study.of_run(run, Optuna(score="best", direction="minimize"), 0) == 1.0
    assert study.of_run(run, Optuna(objective="seconds", direction="minimize"), 0) == 3.5
    assert math.isnan(study.of_run(run, Optuna(objective="nothing"), 0))


@pytest.mark.parametrize(
    ("values", "settings", "expected"),
    [
        ([4.0, 100.0, 2.0, 3.0], {"over_seeds": "mean"}, 27.25),
        ([4.0, 100.0, 2.0, 3.0], {"over_seeds": "iqm"}, 3.5),
        ([1.0, 2.0, 3.0], {"over_seeds": "iqm"}, 2.0),
        ([4.0, 100.0, 2.0], {"over_seeds": "worst", "direction": "maximize"}, 2.0),
        ([4.0, 100.0, 2.0], {"over_seeds": "worst", "direction": "minimize"}, 100.0),
    ],
)
def test_trial_is_scored_over_its_seeds(values, settings, expected):
    assert study.over_seeds(values, Optuna(**settings), 0) == pytest.approx(expected)


def test_metrics_are_read_as_far_as_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert values_of(path, "m") == []
    path.write_text('{"m": 1.0, "seconds": 1}\n{"other": 2}\n{"m": null}\n{"m": 5.0, "seconds": 2}\n{"m": 3')
    first, second, third = values_of(path, "m")
    assert (first, third) == (1.0, 5.0)
    assert math.isnan(second)


SEARCH = (
    *TINY,
    "evaluation.every=100",
    "evaluation.episodes=2",
    "+sweep=optuna",
    "algorithm.lr=tag(log,interval(1e-4,1e-1))",
)


def test_a_dry_run_tells_the_space_and_the_jobs(project, rlrun):
    outcome = rlrun("train", "-m", *SEARCH, "sweep.seeds=2", "--dry-run")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "algorithm.lr: a number from 0.0001 to 0.1, by its logarithm",
        "30 trials by tpe, 2 seeds each: 60 jobs",
        "the best 3 again with 5 fresh seeds: 15 jobs",
    ]
    assert list(project.iterdir()) == []


def test_killed_and_resumed_a_search_is_continued(project, rlrun, forked):
    settings = ["sweep.trials=3", "sweep.startup=1", "sweep.top=1", "sweep.fresh_seeds=1"]
    overrides = [*SEARCH, *settings]
    process = forked(["train", "-m", *overrides, "--sweep-dir", "s", "--workers", "1"])
    process.until(lambda: list(Path("s/jobs").glob("*/summary.json")))
    process.until(lambda: any(status.state == "running" for status in statuses("s")))
    process.send_signal(signal.SIGKILL)
    kill_jobs("s")
    outcome = rlrun("resume", "s", "--workers", "1")
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[0] == "4 jobs: 4 completed"
    assert outcome.out.splitlines()[2].startswith("3 trials; evaluation/mean_return over the fresh seeds 1 to 1:")
    trials = Study(Path("s/study.journal"), SearchPlan.load(Path("s"))).trials
    assert [(trial.number, trial.state) for trial in trials] == [(number, "complete") for number in range(3)]
    assert trials[0].values == {"algorithm.lr": 5e-4}
    answer = json.loads(Path("s/best.json").read_text())["best"]
    assert outcome.out.splitlines()[-1] == answer["command"]
    assert rlrun(*answer["command"].split()[1:][:1], *TINY, *answer["overrides"], "--dry-run").code == 0


@pytest.fixture
def empty(project):
    """A sweep without jobs, which was made here."""
    sweep([], folder=Path("s"))


@pytest.mark.usefixtures("empty")
def test_damaged_settings_of_a_search_are_named(rlrun):
    for settings in ({"trials": "\x1b"}, {"_target_": "os.system"}, {"top": -1}):
        overrides = [*TINY, "evaluation.every=100", "algorithm.lr=0.1,0.2"]
        Path("s/search.json").write_text(json.dumps({"overrides": overrides, "sweep": {"trials": 1, **settings}}))
        outcome = rlrun("resume", "s", "--trust")
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "search.json is damaged" in outcome.err
        assert "\x1b" not in outcome.err


@pytest.mark.usefixtures("empty")
def test_settings_of_a_search_are_not_given_again_to_resume(rlrun):
    outcome = rlrun("resume", "s", "+sweep=optuna")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "more trials: rlrun train -m … sweep.trials=… --sweep-dir s" in outcome.err


def test_without_the_extra_a_search_names_it(project, rlrun, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    outcome = rlrun("train", "-m", *SEARCH)
    assert outcome.code == 2
    assert "[optuna]'" in outcome.err
    assert list(project.iterdir()) == []


PAGE = Path(__file__).parents[2] / "docs" / "wandb-sweeps.md"


def test_the_recipe_of_wandb_sweeps_runs_as_their_agent_does(project, forked):
    from wandb.sdk.launch.sweeps import utils

    text = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    recipe = yaml.safe_load(text)
    drawn = {"algorithm.lr": 3.2e-05, "algorithm.n_step": 3, "seed": 2}
    assert set(recipe["parameters"]) == set(drawn)
    filled = {**utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in drawn.items()}})}
    overrides = [
        part
        for override in utils.create_sweep_command(recipe["command"])
        for part in filled.get(override[2:-1], [override])
    ]
    small = ["algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=50", "stop.env_steps=60"]
    assert overrides[0] == "rlrun"
    process = forked([*overrides[1:], *small, "evaluation.every=30", "evaluation.episodes=1", "--run-dir", "r"])
    assert process.wait(120) == 0, process.communicate()
    assert list(Path("r/wandb/wandb").glob("offline-run-*/*.wandb")) or list(Path("r/wandb").glob("**/*.wandb"))
    records = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert any(recipe["metric"]["name"] in record for record in records)
    config = Path("r/config.yaml").read_text()
    assert "lr: 3.2e-05" in config
    assert "seed: 2" in config


@pytest.mark.parametrize(("variables", "mode"), [({}, "offline"), ({"WANDB_SWEEP_ID": "x"}, "online")])
def test_wandb_is_online_below_an_agent_of_theirs(variables, mode, monkeypatch):
    from rlrun.callbacks.logging.sinks import Wandb

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Wandb()._mode == mode
