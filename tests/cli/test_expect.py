"""`rlrun train --expect`: a run is held to what its config promises."""

import json

import pytest

from rlrun.commands.expect import check, promises
from rlrun.config import compose
from rlrun.core.errors import ConfigError, RequestError

from .conftest import TINY

IMPORT = "from gymnasium.envs.classic_control import PendulumEnv"
SHORT = ("stop.env_steps=40", "evaluation.every=20", "evaluation.episodes=1", "evaluation.max_steps=5")
RUN = (*TINY, "algorithm=sac", "env=pendulum", "preset=null", "algorithm.warmup_steps=10", *SHORT)


@pytest.mark.parametrize(("least", "code"), [(-1e9, 0), (0, 1)])
def test_return_of_the_best_checkpoint_is_checked(rlrun, least, code):
    outcome = rlrun("train", *RUN, f"+expect.return={least}", "--expect", "--run-dir", "run")
    assert outcome.code == code
    line = outcome.out.splitlines()[-1]
    assert line.startswith("broken: return -" if code else "kept: return -")
    assert line.endswith(f", promised at least {least:g} (mean of 20 episodes of the best checkpoint)")


def test_what_the_user_may_train_is_built_in_the_check(project, write, rlrun, monkeypatch):
    write("elsewhere/installed_one.py", f"{IMPORT}\n\nclass Pendulum(PendulumEnv):\n    pass\n")
    write("conf/env/mine.yaml", "defaults: [pendulum]\nid: null\ntarget: installed_one.Pendulum")
    monkeypatch.syspath_prepend(project / "elsewhere")
    expects = ("+expect.return=-1e9", "--expect")
    named = ("env.id=null", "env.target=installed_one.Pendulum")
    outcomes = [
        rlrun("train", *RUN, *named, *expects, "--run-dir", "typed"),
        rlrun("train", *RUN, "env=mine", *expects, "--run-dir", "file"),
        rlrun("train", "--from", "typed", "stop.env_steps=80", "--expect"),
    ]
    assert [(outcome.code, "kept: return" in outcome.out) for outcome in outcomes] == [(0, True)] * 3, outcomes


def test_metrics_are_means_of_the_last_tenth(tmp_path):
    values = [9.0] * 18 + [1.0, 3.0]
    records = [{"step": step, "loss/q_loss": value} for step, value in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    bounds = {"loss/q_loss": {"at_most": 2.0, "at_least": 2.0}}
    line = "kept: loss/q_loss 2, promised at most 2 and at least 2 (mean of the last 2 of 20 records)"
    assert check(tmp_path, bounds) == [(True, line)]
    assert [kept for kept, _ in check(tmp_path, {"loss/q_loss": {"at_most": 1.9}})] == [False]
    with pytest.raises(RequestError, match="never logged it"):
        check(tmp_path, {"loss/p_loss": {"at_most": 1.0}})
    (tmp_path / "metrics.jsonl").write_text('{"loss/q_loss": null}\n')
    assert [kept for kept, _ in check(tmp_path, {"loss/q_loss": {"at_least": -9.0}})] == [False]


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        (None, "promises nothing"),
        ({"env_steps": 3, "seeds": [0]}, "promises nothing"),
        ({"retrun": 3}, r"expect.retrun: no such key \(did you mean 'expect.return'"),
        ({"return": "high"}, "expect.return: wanted a number, got 'high'"),
        (5, "expect: wanted keys with values, got 5"),
        ("abc", "expect: wanted keys with values, got 'abc'"),
        ({"metrics": 5}, "expect.metrics: wanted keys with values, got 5"),
        ({"metrics": {"loss/q_loss": {"at_least": 2, "at_most": 1}}}, "at_least 2 is above at_most 1"),
        ({"metrics": {"loss/q_loss": 3}}, "expect.metrics.loss/q_loss: wanted"),
        ({"metrics": {"loss/q_loss": {"most": 3}}}, "no such bound"),
        ({"metrics": {"loss/q_loss": {"at_most": float("nan")}}}, "wanted a number"),
    ],
)
def test_wrong_promises_are_refused(expect, message):
    with pytest.raises(ConfigError, match=message):
        promises({"expect": expect})


def test_a_return_is_any_number():
    config = compose(["algorithm=dqn", "env=cartpole", "expect.return=9.5"]).config  # the preset's number is whole
    assert promises(config) == {"return": {"at_least": 9.5}}


def test_promises_are_read_before_training(rlrun):
    outcome = rlrun("train", *RUN, "--expect", "--run-dir", "run")
    assert outcome.code == 2
    assert "promises nothing" in outcome.err
