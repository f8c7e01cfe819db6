"""Evaluation in a process of its own: the same results, later, and training does not notice."""

import json
import os
from types import SimpleNamespace

import pytest
from tests.resume.reach import differences, walk
from tests.resume.twins import signal_at
from tests.short import AT, RESUMED, copy_as_killed, shrink

import rlrun
from rlrun import checkpointing
from rlrun.callbacks import Evaluator
from rlrun.callbacks import evaluator as evaluate
from rlrun.collect import async_evaluation
from rlrun.commands.check import check
from rlrun.config import compose
from rlrun.core import distributed, worker
from rlrun.core.errors import RequestError, RlrunError
from rlrun.core.worker import Failed
from rlrun.runs.directory import RunDir

OFTEN = {**RESUMED, "evaluation.every": 6, "evaluation.episodes": 3, "evaluation.max_steps": None}


def small(aside=True, **numbers):
    overrides = ["algorithm=dqn", "env=cartpole", "preset=null", "num_envs=3", f"evaluation.async={aside}"]
    return shrink(compose(overrides), {**OFTEN, **{key.replace("_", ".", 1): n for key, n in numbers.items()}})


def evaluations(run):
    """Return step, update and results of each evaluation, in the order in which they were written."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    keys = ("env_steps", "updates", "evaluation/mean_return", "evaluation/std_return", "evaluation/mean_length")
    return [tuple(map(record.get, keys)) for record in records if keys[2] in record]


def learned(trainer):
    """Return all that a run reaches, but for the parts that evaluate, count records and save."""
    owners = ("evaluation", "logger", "checkpoint", "budget")
    return {path: leaf for path, leaf in walk(trainer).items() if not any(name in path for name in owners)}


class Late:
    """A worker that answers only those who wait, by its loop in this process."""

    closed, failure = False, ""

    def __init__(self, target, recipe):
        self.target, self.recipe, self.jobs, self.messages = target, recipe, [], self

    def send(self, job):
        self.jobs.append(job)

    def receive(self, seconds):
        if self.failure:
            return Failed(self.failure, "")
        if not seconds:
            return None
        jobs, results = iter([self.jobs.pop(0), None]), []
        self.target(self.recipe, SimpleNamespace(receive=lambda: next(jobs)), results.append)
        return results[0]

    def close(self, grace):
        assert grace == 0.0


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(async_evaluation, "Worker", Late)
    monkeypatch.setattr(os, "nice", lambda more: more)
    return Late


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_results_and_training_are_those_without(epsilon, children, monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "start", children.worker)
    numbers = {"evaluation_epsilon": epsilon, "checkpoint_keep_last": 1}
    between = rlrun.train(small(aside=False, **numbers), run_dir=tmp_path / "between")
    aside = rlrun.train(small(**numbers), run_dir=tmp_path / "aside")
    expected = evaluations(tmp_path / "between")
    assert evaluations(tmp_path / "aside") == expected
    assert len(expected) == 6
    assert not differences(learned(between.trainer), learned(aside.trainer))
    best = [(run / "checkpoints" / "best").read_text() for run in (tmp_path / "between", tmp_path / "aside")]
    assert best[0] == best[1]
    episodes = {"episodes": 3, "checkpoint": "best"}
    assert rlrun.evaluate(aside, **episodes).returns == rlrun.evaluate(between, **episodes).returns


def test_evaluations_under_way_are_made_again(late, tmp_path):
    whole = rlrun.train(small(), run_dir=tmp_path / "whole")
    copy_as_killed(tmp_path / "whole", tmp_path / "resumed", at=AT)
    resumed = rlrun.resume(tmp_path / "resumed")
    assert evaluations(tmp_path / "resumed") == evaluations(tmp_path / "whole")
    assert [step for step, *_ in evaluations(tmp_path / "whole")] == [15, 18, 24, 30, 36, 36]
    assert not differences(walk(whole.trainer), walk(resumed.trainer))


def test_the_last_checkpoint_owes_no_evaluation(late, tmp_path):
    result = rlrun.train(small(stop_updates=None, stop_env_steps=36), run_dir=tmp_path / "run")
    state = checkpointing.load(RunDir(result.run_dir).checkpoint())["callbacks.evaluation"]
    assert (state["evaluated"], state.get("waiting")) == ((36, 22), None)


@pytest.mark.parametrize("waiting", [[["6", 6]], [[6, None]], [[None, 6.0]], [[6, 6]] * 100])
def test_a_forged_queue_is_refused(waiting):
    callback = Evaluator(None, None, every=6)
    with pytest.raises(RlrunError, match="waiting: wanted at most 9 pairs"):
        callback.load_state_dict(callback.state_dict() | {"waiting": waiting})


def test_training_waits_where_too_many_copies_wait(late, monkeypatch, tmp_path):
    rlrun.train(small(), run_dir=tmp_path / "whole")
    monkeypatch.setattr(evaluate, "QUEUE", 1)
    longest, send = [0], Evaluator._send

    def counted(self, *job):
        send(self, *job)
        longest.append(len(self._waiting))

    monkeypatch.setattr(Evaluator, "_send", counted)
    rlrun.train(small(), run_dir=tmp_path / "run")
    assert max(longest) == 1
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")


def test_signal_leaves_what_waits_to_the_resume(late, monkeypatch, tmp_path):
    rlrun.train(small(), run_dir=tmp_path / "whole")
    composed = small(checkpoint_keep_last=1)
    with monkeypatch.context() as patch:
        signal_at(patch, Evaluator, "end_cycle", 10)
        assert rlrun.train(composed, run_dir=tmp_path / "run").summary["status"] == "stopped"
    assert evaluations(tmp_path / "run") == []
    rlrun.resume(tmp_path / "run", ["evaluation.async=false"])
    assert sorted(evaluations(tmp_path / "run")) == evaluations(tmp_path / "whole")


def test_failed_worker_is_a_warning(late, monkeypatch, tmp_path, caplog):
    rlrun.train(small(aside=False), run_dir=tmp_path / "between")
    monkeypatch.setattr(late, "failure", "no memory")
    rlrun.train(small(), run_dir=tmp_path / "aside")
    assert evaluations(tmp_path / "aside") == evaluations(tmp_path / "between")
    line = "evaluation: its process failed: no memory; evaluations take place in this process"
    assert caplog.messages.count(line) == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluation.video=true", "evaluation.video films in this process"),
        ("stop.mean_return=5", "stop.mean_return: evaluation.async=true has results at no fixed update"),
        ("ranks", "callbacks.evaluation .Evaluator. wants one rank: evaluation.async=true"),
        ("+with=lagrangian_evaluated", "lagrangian: weights follow evaluations at their updates"),
    ],
)
def test_what_needs_results_at_once_is_refused(override, message, monkeypatch):
    if override == "ranks":
        monkeypatch.setattr(distributed, "_world_size", 2)
        override = "seed=0"
    env = ["env=constrainedbandit", "lagrangian.thresholds=[null,-0.25]"] if "with" in override else ["env=pendulum"]
    with pytest.raises(RequestError, match=message):
        check(["algorithm=sac", *env, "num_envs=2", "evaluation.async=true", override])
