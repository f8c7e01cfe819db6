"""What a sweep is made with: every file of `launcher` and `sweep`, and overrides that are wrong."""

import pytest

from rlrun.config import choices, compose
from rlrun.core.errors import RlrunError
from rlrun.sweep.search import Optuna
from rlrun.sweep.sweeping import SweepSettings, split_overrides


def test_words_of_the_sweep_itself_are_no_words_of_jobs():
    ours = ["launcher=local", "+sweep.trials=3", "~launcher.x"]
    of_jobs = ["algorithm=sac", "+with=rnd", "env.kwargs.launcher=1"]
    assert split_overrides([of_jobs[0], *ours, *of_jobs[1:]]) == (of_jobs, ours)


@pytest.mark.parametrize("name", choices("launcher"))
def test_every_launcher_composes(name):
    means = SweepSettings([f"launcher={name}"])
    assert callable(means.launcher())
    assert means.choices["launcher"] == name


@pytest.mark.parametrize("name", choices("sweep"))
def test_every_sweep_composes_and_there_is_none_by_itself(name):
    assert SweepSettings().search() is None
    assert SweepSettings([f"sweep={name}"]).search() == SweepSettings([f"+sweep={name}"]).search() == Optuna()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("launcher=locl", "did you mean 'local'"),
        ("launcher.speed=3", "launcher.speed: no such key"),
        ("+launcher.speed=3", "takes no argument 'speed'"),
        ("sweeps=optuna", "no such key or group"),
        ("sweep=optna", "did you mean 'optuna'"),
    ],
)
def test_a_wrong_word_is_named(override, message):
    with pytest.raises(RlrunError, match=message):
        SweepSettings([override]).launcher()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("launcher", "_target_: len\nobj: [1]\n"),
        ("launcher", "null\n"),
        ("launcher", "ranks: 1\n"),
        ("sweep", "_target_: builtins.dict\n"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(name, text, write, rlrun):
    write(f"conf/{name}/mine.yaml", text)
    outcome = rlrun("train", "-m", "algorithm=dqn", "env=cartpole", f"{name}=mine", "--sweep-dir", "s")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f"{name}: wanted _target_" in outcome.err


def test_a_single_run_refuses_them():
    with pytest.raises(RlrunError, match="launcher=local: this is for a sweep: rlrun train -m"):
        compose(["algorithm=dqn", "env=cartpole", "launcher=local"])
