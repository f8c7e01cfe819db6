"""Training ends in order, by a budget or a signal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from rlrun import checkpointing as storage
from rlrun import resume, train
from rlrun.callbacks import Budget, Evaluator, Interrupt, Interrupted
from rlrun.devtools.conformance.reach import walk
from rlrun.runs import signals
from rlrun.runs.directory import RunDir
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer


def ends(budget, update, step):
    """Return why a budget ends training here; an empty text if it does not."""
    try:
        budget.end_cycle(update, step)
    except Stop as stop:
        return str(stop) if type(stop) is Stop else "interrupted"
    return ""


@pytest.mark.parametrize(
    ("limits", "update", "step", "reason"),
    [
        ({"env_steps": 100}, 1, 99, ""),
        ({"env_steps": 100}, 1, 100, "100 of 100 environment steps"),
        ({"env_steps": 100}, 1, 128, "128 of 100 environment steps"),
        ({"updates": 3}, 2, 900, ""),
        ({"updates": 3}, 3, 900, "3 of 3 updates"),
        ({}, 10**12, 10**12, ""),
    ],
)
def test_counters_end_training(limits, update, step, reason):
    assert ends(Budget(**limits), update, step) == reason


@pytest.mark.parametrize("before", [0, 40])
def test_seconds_end_training(before, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("rlrun.callbacks.budget.time.monotonic", lambda: now[0])
    first, budget = Budget(seconds=60), Budget(seconds=60)
    now[0] += before
    budget.load_state_dict(first.state_dict())
    now[0] = 900.0  # building took long; the clock starts with training
    budget.begin_training()
    now[0] += 59.0 - before
    assert ends(budget, 1, 1) == ""
    now[0] += 1.0
    assert ends(budget, 2, 2) == "60 seconds"


def test_mean_return_ends_training():
    evaluator = Evaluator(None, None, every=1)
    budget = Budget(mean_return=195.0, evaluator=evaluator)
    assert ends(budget, 1, 1) == ""
    evaluator.last = {"mean_return": 194.9}
    assert ends(budget, 1, 1) == ""
    evaluator.last = {"mean_return": 195.0}
    assert ends(budget, 1, 1) == "evaluation reached a mean return of 195.0"


def test_explanation_names_the_limits():
    note = Budget(env_steps=100_000, mean_return=5).note(str)
    assert note == "stops at 100,000 environment steps, 5 mean return"


class Batches:
    """Yields five batches."""

    def names(self):
        return {"default": ()}

    def __iter__(self):
        for _ in range(5):
            yield {"default": {}}


class Sender(Callback):
    """Sends signals to its process during the second update."""

    def __init__(self, *signals):
        self.signals, self.episode_end = signals, []

    def begin_batch(self, update):
        for number in self.signals if update == 2 else ():
            os.kill(os.getpid(), number)

    def end_batch(self, update):
        self.episode_end.append(update)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_lets_the_update_finish(number):
    sender = Sender(number)
    state = Trainer({"interrupt": Interrupt(), "sender": sender}, Batches()).train()
    assert sender.episode_end == [1, 2]
    assert isinstance(state["stopped_by"], Interrupted)
    assert str(state["stopped_by"]) == signal.Signals(number).name


class Slow(Callback):
    """Gets a signal during `begin_training`."""

    def begin_training(self):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")


def test_signal_before_first_step_stops():
    state = Trainer({"slow": Slow(), "interrupt": Interrupt()}, Batches()).train()
    assert isinstance(state["stopped_by"], Interrupted)
    assert state["update"] == 0


def test_signal_stops_collection():
    interrupt, steps = Interrupt(), []
    interrupt.check()

    class Collecting(Batches):
        def __iter__(self):
            for step in range(5):
                interrupt.check()
                steps.append(step)
                if step == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                    steps.append("the step is finished")
            yield from super().__iter__()

    state = Trainer({"interrupt": interrupt}, Collecting()).train()
    assert isinstance(state["stopped_by"], Interrupted)
    assert (steps, state["update"]) == ([0, 1, 2, "the step is finished"], 0)


@pytest.mark.parametrize("sent", [(), (signal.SIGTERM,)])
def test_signal_handlers_are_restored(sent):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    Trainer({"interrupt": Interrupt(), "sender": Sender(*sent)}, Batches()).train()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


def test_other_threads_train_without_handlers():
    states = []
    thread = threading.Thread(target=lambda: states.append(Trainer({"i": Interrupt()}, Batches()).train()))
    thread.start()
    thread.join()
    assert states[0]["update"] == 5


def test_signal_stops_last_evaluation(monkeypatch):
    def play(env, agent, *, abandon, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        abandon()

    class Stage:
        envs = ("one",)

        def copy(self, num_envs):
            return self

        def close(self):
            self.closed = True

    monkeypatch.setattr("rlrun.callbacks.evaluate.evaluate", play)
    evaluator = Evaluator(Stage(), None, every=100)
    state = Trainer({"evaluation": evaluator, "interrupt": Interrupt()}, Batches()).train()
    assert isinstance(state["stopped_by"], Interrupted)
    assert evaluator.last is None
    assert evaluator.env.closed


TWICE = """
import os, signal
from rlrun.runs import signals
signals.TWICE = 0.0
from rlrun.callbacks import Interrupt
interrupt = Interrupt()
interrupt.restore_state()
interrupt.begin_training()
os.kill(os.getpid(), signal.SIGTERM)
print("first", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("second", flush=True)
"""


def test_second_signal_kills_the_process():
    process = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert process.stdout.split() == ["first"]


def test_repeated_signal_counts_once(monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    signals.listen()
    try:
        Trainer({"interrupt": Interrupt(), "sender": Sender(signal.SIGTERM)}, Batches()).train()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)  # while the last checkpoint is written, say
        assert signals.received == []
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGUSR1)  # another one
        monkeypatch.setattr(signals, "TWICE", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)  # a later one
    finally:
        signals.received.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


DOOMED = """
import os, signal
from gymnasium.envs.classic_control import CartPoleEnv

class Doomed(CartPoleEnv):
    count = 0

    def __init__(self, at, times=1, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.at, self.times = at, times

    def step(self, action):
        self.count += 1
        if self.count == self.at:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)
"""


@pytest.fixture
def stopped_at(forked, tmp_path, monkeypatch):
    """Return a function that runs a training that gets SIGTERM at a step, so many times; the first 100 are warm-up."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doomed.py").write_text(DOOMED)

    def train(step, times=1):
        overrides = ["algorithm=dqn", "env.target=doomed.Doomed", f"env.kwargs.at={step}", "algorithm.hidden=[8]"]
        overrides += [f"env.kwargs.times={times}"]
        overrides += ["algorithm.warmup_steps=100", "evaluation.every=0", "logger=[]", "--run-dir", "run"]
        process = forked(["train", *overrides])
        _, err = process.communicate(timeout=120)
        assert process.returncode == 75, err
        assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "stopped"
        return RunDir.open(tmp_path / "run")

    return train


@pytest.mark.parametrize("times", [1, 2])
def test_terminated_run_saves_a_checkpoint(times, stopped_at):
    run = stopped_at(150, times)
    assert run.checkpoint("latest").name == "0000000150-0000000050"
    assert {"networks.q", "callbacks.q_loss", "collector"} <= set(storage.load(run.checkpoint("latest")))
    assert json.loads((run.path / "summary.json").read_text())["stopped_by"] == "SIGTERM"


def test_warm_up_is_saved_when_terminated(stopped_at):
    assert [path.name for path in stopped_at(50).checkpoint_dirs()] == ["0000000050-0000000000"]


WARMING = ["algorithm=sac", "env=pendulum", "algorithm.hidden=[8]", "algorithm.warmup_steps=100", "evaluation.every=0"]


@pytest.mark.parametrize(
    ("budget", "steps"), [("env_steps=0", 0), ("updates=0", 0), ("env_steps=30", 32), ("seconds=0", 0)]
)
def test_budget_holds_before_first_update(budget, steps, tmp_path):
    summary = train([*WARMING, "num_envs=4", f"stop.{budget}"], run_dir=tmp_path / "run").summary
    assert (summary["status"], summary["env_steps"], summary["updates"]) == ("completed", steps, 0)


def test_run_ended_in_warmup_extends(tmp_path):
    def reached(result):  # but how checkpoints are cut into segments, and when the terminal was written to
        leaves = walk(result.trainer).items()
        return {path: leaf for path, leaf in leaves if "._chain" not in path and "._printed" not in path}

    whole = reached(train([*WARMING, "stop.env_steps=110"], run_dir=tmp_path / "whole"))
    train([*WARMING, "stop.env_steps=30"], run_dir=tmp_path / "cut")
    assert reached(resume(tmp_path / "cut", ["stop.env_steps=110"])) == whole
