"""Training ends in order, by a budget or a signal."""

import contextlib
import os
import signal
import threading

import pytest
from tests.callbacks.batches import Batches

from rlrun import train
from rlrun.callbacks import Budget, Evaluator, Interrupt, Interrupted
from rlrun.core import processes
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


class Sender(Callback):
    """Sends signals to its process during the second update."""

    def __init__(self, *signals):
        self.signals, self.episode_end = signals, []

    def begin_batch(self, update):
        for number in self.signals if update == 2 else ():
            os.kill(os.getpid(), number)

    def end_batch(self, update):
        self.episode_end.append(update)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signal_lets_the_update_finish(number, count):
    sender = Sender(*[number] * count)
    state = Trainer({"interrupt": Interrupt(), "sender": sender}, Batches(times=5)).train()
    assert sender.episode_end == [1, 2]
    assert isinstance(state["stopped_by"], Interrupted)
    assert str(state["stopped_by"]) == signal.Signals(number).name


@pytest.mark.parametrize("sent", [(), (signal.SIGTERM,)])
def test_signal_handlers_are_restored(sent):
    before = [signal.getsignal(number) for number in processes.STOPS]
    Trainer({"interrupt": Interrupt(), "sender": Sender(*sent)}, Batches(times=5)).train()
    assert [signal.getsignal(number) for number in processes.STOPS] == before


def test_other_threads_train_without_handlers():
    states = []
    thread = threading.Thread(target=lambda: states.append(Trainer({"i": Interrupt()}, Batches(times=5)).train()))
    thread.start()
    thread.join()
    assert states[0]["update"] == 5


def test_second_signal_kills_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "TWICE", 0.0)
    child = os.fork()
    if child == 0:
        interrupt = Interrupt()
        interrupt.restore_state()
        interrupt.begin_training()
        for name in ("first", "second"):
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / name).touch()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert os.listdir(tmp_path) == ["first"]


def test_a_hangup_is_ignored_below_nohup_and_insists_on_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        sender = Sender(signal.SIGHUP)
        assert Trainer({"interrupt": Interrupt(), "sender": sender}, Batches(times=5)).train()["stopped_by"] is None
    finally:
        signal.signal(signal.SIGHUP, before)
    sender = Sender(signal.SIGTERM, signal.SIGHUP, signal.SIGHUP)  # as systemd sends them
    state = Trainer({"interrupt": Interrupt(), "sender": sender}, Batches(times=5)).train()
    assert str(state["stopped_by"]) == "SIGTERM"


def test_repeated_signal_counts_once(monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)}
    processes.listen()
    try:
        Trainer({"interrupt": Interrupt(), "sender": Sender(signal.SIGTERM)}, Batches(times=5)).train()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)  # while the last checkpoint is written, say
        assert processes.received == []
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGUSR1)  # another one
        monkeypatch.setattr(processes, "TWICE", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)  # a later one
    finally:
        processes.received.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


WARMING = ["algorithm=sac", "env=pendulum", "algorithm.hidden=[8]", "algorithm.warmup_steps=100", "evaluation.every=0"]


@pytest.mark.parametrize(
    ("budget", "steps"), [("env_steps=0", 0), ("updates=0", 0), ("env_steps=30", 32), ("seconds=0", 0)]
)
def test_budget_holds_before_first_update(budget, steps, tmp_path):
    summary = train([*WARMING, "num_envs=4", f"stop.{budget}"], run_dir=tmp_path / "run").summary
    assert (summary["status"], summary["env_steps"], summary["updates"]) == ("completed", steps, 0)
