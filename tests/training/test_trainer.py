"""Eight events, in order, whatever happens."""

from functools import partial

import pytest
from tests.training.batches import Served

from rlrun.training.callback import EVENTS, Callback, SkipBatch, Stop
from rlrun.training.trainer import Trainer


def batches(count):
    return Served(*({"default": {"x": number}} for number in range(count)))


class Spy(Callback):
    def __init__(self, cycle=0):
        self.cycle = cycle
        self.calls = []

    def end_training(self, error):
        self.calls.append("end_training")
        self.error = error


def _recorder(event):
    def hook(self):
        self.calls.append(event)

    return hook


for name in EVENTS[:-1]:
    setattr(Spy, name, _recorder(name))


def test_events_come_in_order():
    spy = Spy(cycle=1)
    state = Trainer({"spy": spy}, batches(2)).train()
    assert spy.calls == [*EVENTS[:-1], *EVENTS[2:]]  # until the loader is exhausted
    assert (spy.error, state["update"]) == (None, 2)


@pytest.mark.parametrize(("cycle", "begins", "ends"), [(0, 0, 0), (1, 3, 3), (2, 2, 1)])
def test_cycles_begin_and_end_by_their_length(cycle, begins, ends):
    spy = Spy(cycle=cycle)
    Trainer({"spy": spy}, batches(3)).train()
    assert (spy.calls.count("begin_cycle"), spy.calls.count("end_cycle")) == (begins, ends)


def test_stop_ends_training_quietly():
    class Stopper(Callback):
        def end_batch(self, update):
            if update == 2:
                raise Stop("enough")

    spy = Spy()
    state = Trainer({"stopper": Stopper(), "spy": spy}, batches(9)).train()
    assert state["update"] == 2
    assert str(state["stopped_by"]) == "enough"
    assert isinstance(spy.error, Stop)


def test_errors_pass_after_everybody_cleaned_up():
    class Broken(Callback):
        def backward(self):
            raise ZeroDivisionError("inside")

        def end_training(self, error):
            raise RuntimeError("cleaning failed, too")

    spy = Spy()
    with pytest.raises(ZeroDivisionError):
        Trainer({"broken": Broken(), "spy": spy}, batches(1)).train()
    assert isinstance(spy.error, ZeroDivisionError)


@pytest.mark.parametrize("event", EVENTS)
def test_the_hook_of_an_error_is_noted(event):
    class Broken(Spy):
        pass

    def hook(self, *_):
        return 1 / 0

    setattr(Broken, event, hook)
    hook.__code__ = hook.__code__.replace(co_name=event)
    with pytest.raises(ZeroDivisionError) as caught:
        Trainer({"spy": Spy(), "mine": Broken(cycle=1)}, batches(1)).train()
    assert caught.value.__notes__ == [f"in callbacks.mine.{event}"]


def test_skip_batch_leaves_out_the_rest_of_the_update():
    class Skipper(Callback):
        def begin_batch(self, update):
            if update == 2:
                raise SkipBatch

    spy = Spy()
    state = Trainer({"skipper": Skipper(), "spy": spy}, batches(3)).train()
    assert spy.calls.count("backward") == 2
    assert state["update"] == 3


def test_begin_and_end_of_training_add_names_to_the_state():
    class Adds(Callback):
        provides = ("speed",)

        def begin_training(self):
            return {"speed": 3}

        def end_training(self, error):
            return {"speed": 7}

    class Reads(Callback):
        data_group = "default"

        def backward(self, x, speed):
            self.seen = (x, speed)

        def end_training(self, error, speed):
            self.seen += (speed,)

    first, last = Reads(), Reads()
    Trainer({"first": first, "adds": Adds(), "last": last}, batches(1)).train()
    assert (first.seen, last.seen) == ((0, 3, 3), (0, 3, 7))


class Hooked(Callback):
    """Notes the updates at whose end it is called; stops or saves the trainer's state once."""

    cycle = 1

    def __init__(self, act=None):
        self.seen, self.act = [], act

    def end_cycle(self, update):
        self.seen.append(update)
        if update == 2 and self.act is not None:
            self.act()


def chain(act=None):
    """A trainer with three callbacks, of which the second does something after the second update."""
    return Trainer({"first": Hooked(), "second": Hooked(act), "third": Hooked()}, batches(3))


def seen(trainer):
    return [callback.seen for callback in trainer.callbacks.values()]


def stop():
    raise Stop("enough")


def finished(act=None):
    """Return the calls of a run, whole or until a stop within `end_cycle`, and the state at its end."""
    trainer = chain(act)
    trainer.train()
    return seen(trainer), trainer.state_dict()


def saved():
    """Return the calls of a whole run, and a state that was saved within `end_cycle`."""
    states = []
    trainer = chain(lambda: states.append(trainer.state_dict()))
    trainer.train()
    return seen(trainer), states[0]


@pytest.mark.parametrize(
    ("state", "before", "after"),
    [
        (partial(finished, stop), [[1, 2], [1, 2], [1]], [[3], [2, 3], [2, 3]]),
        (saved, [[1, 2, 3]] * 3, [[3], [2, 3], [2, 3]]),
        (finished, [[1, 2, 3]] * 3, [[4], [4], [4]]),
    ],
)
def test_interrupted_update_is_finished_on_resume(state, before, after):
    calls, content = state()
    resumed = chain()
    resumed.load_state_dict(content)
    resumed.loader = batches(1)
    resumed.train()
    assert (calls, seen(resumed)) == (before, after)


def test_a_hook_that_asks_for_the_batch_is_left_out_when_an_update_is_finished():
    class Reader(Hooked):
        data_group = "default"

        def end_cycle(self, update, x):
            self.seen.append((update, x))

    stopped, resumed = (Trainer({"second": Hooked(act), "third": Reader()}, batches(3)) for act in (stop, None))
    stopped.train()
    resumed.load_state_dict(stopped.state_dict())
    resumed.loader = batches(1)
    resumed.train()
    assert seen(resumed) == [[2, 3], [(3, 0)]]


class Around:
    def __init__(self, spy):
        self.spy = spy

    def __enter__(self):
        self.spy.calls.append("enter")

    def __exit__(self, *error):
        self.spy.calls.append("exit")


def test_what_is_around_updates_holds_the_hooks_of_a_batch_alone():
    spy = Spy(cycle=1)
    Trainer({"spy": spy}, batches(1), around=Around(spy)).train()
    inside = ["enter", "begin_batch", "backward", "end_batch", "exit"]
    assert spy.calls == ["restore_state", "begin_training", "begin_cycle", *inside, "end_cycle", "end_training"]


def test_the_base_class_has_hooks_names_a_group_and_state_alone():
    own = {name for name in vars(Callback) if not name.startswith("_")}
    names = {
        "data_group",
        "inputs",
        "provides",
        "cycle",
        "name",
        "config_keys",
        "require_peers",
        "hook",
        "hook_of",
        "note",
    }
    assert own == names | {*EVENTS} | {"store", "metrics", "state_dict", "load_state_dict"}
