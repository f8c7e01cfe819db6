"""Which runs there are."""

import json

import pytest

import rlrun as package
from rlrun.core.errors import RequestError
from rlrun.core.files import write_json
from rlrun.runs.directory import RunDir

NUMBERS = ("algorithm.lr=1e-3", "stop.env_steps=10_000")
ABOUT = {"created": "2026-11-22T09:00:00+00:00"}


def make(path, *, overrides=(), status="completed", summary=None, metrics=()):
    run = RunDir.claim(path)
    run.start(config="seed: 0\n", overrides=overrides, manifest=ABOUT)
    run.write_status(status)
    if summary is not None:
        write_json(run.summary, summary)
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in metrics))
    return run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figures = {"env_steps": 5_000, "updates": 100, "seconds": 2.0, "objective": 12.5, "best": {"mean_return": 13.0}}
    make("runs/dqn-cartpole/a", overrides=["algorithm=dqn", "seed=1"], summary=figures)
    better = {**figures, "objective": 99.0, "env_steps": 4_000}
    make("sweeps/now/jobs/b", overrides=["algorithm=sac", "seed=1", *NUMBERS], summary=better, status="failed")
    records = [{"env_steps": 10, "updates": 1, "seconds": 0.5}, {"env_steps": 20, "updates": 2, "seconds": 1.0}]
    make("runs/dqn-cartpole/c", overrides=["algorithm=dqn"], status="stopped", metrics=records)
    return tmp_path


def names(paths):
    return [path.rsplit("/", 1)[1] for path in paths]


def test_it_finds_runs_wherever_they_lie_and_what_came_of_them(runs):
    first, third, second = package.ls()
    assert (first.path, first.status, first.objective) == (str(runs / "runs/dqn-cartpole/a"), "completed", 12.5)
    assert first.to_json()["best"] == {"mean_return": 13.0}
    assert first.overrides == ["algorithm=dqn", "seed=1"]
    assert second.status == "failed"
    assert (third.status, third.env_steps, third.objective) == ("stopped", 20, None)  # from its metrics
    assert names(run.path for run in package.ls("sweeps/now")) == ["b"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sort": "return"}, ["b", "a", "c"]),
        ({"sort": "steps"}, ["a", "b", "c"]),
        ({"sort": "status"}, ["a", "b", "c"]),
        ({"status": "failed"}, ["b"]),
        ({"match": ["seed=1"]}, ["a", "b"]),
        ({"match": ["seed=1", "dqn"]}, ["a"]),
        ({"match": ["nothing"]}, []),
        ({"match": ["lr=0.001"]}, ["b"]),
        ({"match": ["lr=1E-3", "steps=1e4"]}, ["b"]),
        ({"match": ["lr=1e-2"]}, []),
    ],
)
def test_filters_and_orders(options, expected, runs):
    assert names(run.path for run in package.ls(**options)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": "fialed"}, r"--status fialed: wanted one of .*did you mean 'failed'"),
        ({"sort": "retrun"}, r"--sort retrun: wanted one of .*did you mean 'return'"),
        ({"folder": "nowhere"}, "nowhere does not exist"),
    ],
)
def test_what_is_not_there_is_named(options, message, runs):
    with pytest.raises(RequestError, match=message):
        package.ls(**options)


def test_the_command_prints_a_line_for_each_run_and_json(runs, rlrun):
    outcome = rlrun("ls", "--sort", "return")
    assert (outcome.code, outcome.err) == (0, "3 runs\n")
    assert outcome.out.splitlines() == [
        "run                  status     steps  return  overrides",
        f"sweeps/now/jobs/b    failed     4,000   99.00  algorithm=sac seed=1 {' '.join(NUMBERS)}",
        "runs/dqn-cartpole/a  completed  5,000   12.50  algorithm=dqn seed=1",
        "runs/dqn-cartpole/c  stopped       20          algorithm=dqn",
    ]
    assert names(run["path"] for run in json.loads(rlrun("ls", "runs", "--json").out)) == ["a", "c"]


def test_a_folder_without_runs_is_an_empty_list(rlrun):
    assert json.loads(rlrun("ls", "--json").out) == []
    assert rlrun("ls") == (0, "", "0 runs\n")


def test_damaged_and_hostile_files_leave_values_out(runs, rlrun):
    run = RunDir(runs / "runs/dqn-cartpole/a")
    run.summary.write_text('{"objective": "much", "env_steps": [1]}')
    run.overrides.write_text("algorithm=\x1b[31mdqn\n")
    (runs / "runs/dqn-cartpole/c/status.json").write_text("{")
    assert rlrun("ls", "runs").out.splitlines() == [
        "run                  status       steps  return  overrides",
        "runs/dqn-cartpole/a  completed                   algorithm=?[31mdqn",
        "runs/dqn-cartpole/c  interrupted     20          algorithm=dqn",
    ]
