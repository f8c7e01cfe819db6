"""The plan: who asks for what, who provides it, in which order."""

import pytest
from tests.training.batches import Served

from rlrun.callbacks import Schedule
from rlrun.core import distributed
from rlrun.core.errors import RlrunError, WiringError
from rlrun.training.callback import Callback, Stop
from rlrun.training.plan import explain, plan
from rlrun.training.trainer import Trainer

NAMES = {"default": ("observation", "reward", "next_observation")}


class Grouped(Callback):
    data_group = "default"


class Target(Grouped):
    provides = ("q_target",)

    def begin_batch(self, reward):
        return {"q_target": reward * 10}


class Shaping(Grouped):
    provides = ("reward",)

    def __init__(self, add):
        self.add = add

    def begin_batch(self, reward):
        return {"reward": reward + self.add}


class Loss(Grouped):
    provides = ("log_prob",)

    def __init__(self):
        self.seen = []

    def backward(self, q_target):
        self.seen.append(q_target)
        return {"log_prob": 7}


class Alpha(Grouped):
    def backward(self, log_prob):
        self.seen = log_prob


class Watch(Grouped):
    leads = True

    def end_batch(self, log_prob):
        self.seen = log_prob


def one_batch(batch, count=1):
    return Served(*[{"default": batch}] * count)


def begin_batch_order(callbacks):
    return [step.callback.name for step in plan(callbacks, NAMES, ("update",)).steps["begin_batch"]]


def test_rewriters_run_before_readers():
    assert begin_batch_order({"target": Target(), "shaping": Shaping(1)}) == ["shaping", "target"]
    order = begin_batch_order({"target": Target(), "b": Shaping(1), "a": Shaping(2)})
    assert order == ["b", "a", "target"]


def test_values_flow_through_rewriters_to_losses():
    loss, alpha = Loss(), Alpha()
    callbacks = {"target": Target(), "shaping": Shaping(1), "loss": loss, "alpha": alpha}
    Trainer(callbacks, one_batch({"reward": 2})).train()
    assert (loss.seen, alpha.seen) == ([30], 7)


@pytest.mark.parametrize("group", ["default", None])
def test_a_promised_name_that_is_not_returned_names_callback_and_update(group):
    class Bonus(Callback):
        data_group, provides = group, ("bonus",)

        def begin_batch(self, update):
            return {"bonus": 1} if group and update < 2 else None

    class Reads(Callback):
        data_group = group

        def end_batch(self, bonus):
            pass

    trainer = Trainer({"mine": Bonus(), "reads": Reads()}, one_batch({"reward": 1}, count=3))
    with pytest.raises(RlrunError, match=r"^callbacks.mine provides 'bonus' and has not returned it by update [12]$"):
        trainer.train()
    assert trainer.state["update"] == (2 if group else 1)


def test_optional_arguments_and_those_of_the_state():
    class Reads(Grouped):
        def backward(self, reward, update, weight=5):
            self.seen = (reward, update, weight)

    plain, weighted = Reads(), Reads()
    Trainer({"a": plain}, one_batch({"reward": 4}, count=3)).train()
    Trainer({"a": weighted}, one_batch({"reward": 1, "weight": 2})).train()
    assert (plain.seen, weighted.seen) == ((4, 3, 5), (1, 1, 2))


def test_arguments_may_read_other_names():
    class Reads(Grouped):
        def backward(self, reward, weight=5, missing=3):
            self.seen = (reward, weight, missing)

    reads = Reads()
    reads.inputs = {"reward": "q_target", "weight": "update"}
    trainer = Trainer({"target": Target(), "a": reads}, one_batch({"reward": 4, "weight": 2}))
    trainer.train()
    assert reads.seen == (40, 1, 3)
    assert "a.backward(batch['q_target'], weight=batch['update'])" in trainer.update.source(("default",))
    for inputs, message in (
        ({"rewrad": "q_target"}, "no hook has an argument 'rewrad' .*'reward'"),
        ({"weight": "q_tarjet"}, "nobody provides 'q_tarjet' .*'q_target'"),
    ):
        reads.inputs = inputs
        with pytest.raises(WiringError, match=rf"callbacks.a._inputs_: {message}"):
            plan({"target": Target(), "a": reads}, NAMES, ())


def test_a_hook_may_see_all_groups():
    class Both(Grouped):
        def backward(self, reward, batches):
            self.seen = (reward, batches["expert"]["action"])

    both = Both()
    Trainer({"both": both}, Served({"default": {"reward": 4}, "expert": {"action": 7}})).train()
    assert both.seen == (4, 7)


def test_explain_shows_who_reads_and_who_provides():
    text = explain(plan({"target": Target(), "loss": Loss()}, NAMES, ()))
    target = next(line for line in text.splitlines() if "begin_batch" in line)
    assert target.split() == ["begin_batch", "target", "reward", "->", "q_target"]


def test_what_is_no_callback_is_refused_by_name():
    with pytest.raises(WiringError, match=r"callbacks.x is of type int"):
        Trainer({"x": 3}, one_batch({"reward": 1}))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([{}], "loader promised the data groups default and delivered"),
        ([{"another": {"reward": 1}}], "loader promised the data groups default and delivered"),
        ([{"default": {"reward": 1}}], r"promised weight in data group 'default'"),
    ],
)
def test_broken_promise_of_loader_is_named(batches, message):
    with pytest.raises(WiringError, match=message):
        Trainer({}, Served(*batches, names={"default": ("reward", "weight")})).train()


class Counting(Callback):
    """Counts the cycles that end."""

    def __init__(self):
        self.count = 0

    def end_cycle(self):
        self.count += 1


def test_a_cycle_hook_that_is_switched_off_is_no_part_of_the_plan():
    counting = Counting()
    counting.cycle = 0
    trainer = Trainer({"counting": counting}, one_batch({"reward": 1}))
    trainer.train()
    assert (counting.count, "counting" in explain(trainer.plan)) == (0, False)


def test_explain_lists_what_begins_a_cycle():
    class Begins(Callback):
        cycle = 2

        def begin_cycle(self, update):
            pass

        def note(self, path_of):
            return "every other update"

    (line,) = [line for line in explain(plan({"mine": Begins()}, NAMES, ("update",))).splitlines() if "mine" in line]
    assert line.split() == ["begin_cycle", "mine", "update", "every", "other", "update"]


def test_what_ends_training_is_called_after_all_others():
    class Limit(Callback):
        cycle = 1
        ends = True

        def end_cycle(self, update):
            if update == 3:
                raise Stop("enough")

    counting = Counting()
    counting.cycle = 1
    Trainer({"limit": Limit(), "counting": counting}, one_batch({"reward": 1}, count=5)).train()
    assert counting.count == 3


def test_providers_know_what_of_theirs_is_asked_for():
    target, loss, alpha = Target(), Loss(), Alpha()
    loss.requested_names = None
    begin_batch_order({"target": target, "loss": loss})
    assert loss.requested_names == set()
    assert not hasattr(target, "requested_names")  # it does not ask
    begin_batch_order({"target": target, "loss": loss, "alpha": alpha})
    assert loss.requested_names == {"log_prob"}


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_compute_what_one_that_looks_on_asks_for(rank, monkeypatch):
    monkeypatch.setattr(distributed, "_rank", rank)
    loss, watch = Loss(), Watch()
    loss.requested_names = None
    schedule = plan({"target": Target(), "loss": loss, "watch": watch}, NAMES, ())
    assert loss.requested_names == {"log_prob"}
    assert [step.callback for step in schedule.steps["end_batch"]] == [watch][rank:]


class Trains(Grouped):
    def __init__(self, *parameters, by_turns=False):
        self.parameters, self.by_turns = parameters, by_turns

    def trained(self):
        return self.parameters


def mine(group="default", **attributes):
    """Return a callback with these hooks and attributes."""
    return type("Mine", (Callback,), {"data_group": group, **attributes})()


REFUSED = {  # callbacks, and what the message holds
    "a reader before its provider": (
        lambda: {"alpha": Alpha(), "target": Target(), "loss": Loss()},
        r"callbacks.alpha.backward asks for 'log_prob'.*'loss' first",
    ),
    "a reader before the provider of an optional name": (
        lambda: {"early": mine(backward=lambda self, log_prob=None: None), "loss": Loss()},
        r"callbacks.early.backward asks for 'log_prob'.*'loss' first",
    ),
    "an unknown name": (
        lambda: {"wrong": mine(backward=lambda self, next_observations: None)},
        r"callbacks.wrong.backward asks for 'next_observations'.*'next_observation'",
    ),
    "no data group": (
        lambda: {"wrong": mine(None, end_batch=lambda self, reward: None)},
        r"callbacks.wrong.end_batch asks for 'reward'.*: set data_group = 'default'",
    ),
    "an unknown data group": (lambda: {"wrong": mine("defualt")}, r"'defualt' does not exist.*'default'"),
    "a circle": (
        lambda: {
            "a": mine(provides=("a",), begin_batch=lambda self, b: {"a": b}),
            "b": mine(provides=("b",), begin_batch=lambda self, a: {"b": a}),
        },
        r"wait for each other: .*callbacks.a",
    ),
    "a rewriter without a provider": (
        lambda: {"rewriter": mine(provides=("bonus",), begin_batch=lambda self, bonus: {"bonus": bonus})},
        r"rewrites 'bonus', but nobody provides it first",
    ),
    "an earlier event": (
        lambda: {"target": Target(), "early": mine(cycle=1, begin_cycle=lambda self, q_target: None)},
        r"callbacks.early.begin_cycle asks for 'q_target'",
    ),
    "a later event": (
        lambda: {
            "late": mine(None, provides=("late",), end_batch=lambda self: {"late": 1}),
            "reads": mine(begin_batch=lambda self, late: None),
        },
        r"callbacks.reads.begin_batch asks for 'late'",
    ),
    "a schedule without a reader": (
        lambda: {"target": Target(), "rate": Schedule("rewards", 0.5)},
        r"callbacks\.rate: nobody asks for 'rewards' \(did you mean 'reward'\?\)",
    ),
    "a name of the run's own": (
        lambda: {"target": Target(), "evil": Schedule("update", 0.5)},
        r"callbacks\.evil: 'update' is the run's own name",
    ),
    "an input of the run's own that is renamed": (
        lambda: {"target": Target(), "evil": mine(inputs={"update": "reward"}, backward=lambda self, update: None)},
        r"callbacks\.evil: 'update' is the run's own name",
    ),
    "two optimizers of one parameter": (
        lambda: {"q": Trains(1), "policy": Trains(2, 1)},
        r"callbacks\.q and callbacks\.policy train the same parameters",
    ),
    **{
        f"{event} without a cycle": (
            lambda event=event: {"mine": mine(None, **{event: lambda self: None})},
            rf"callbacks.mine.{event} would never .* Mine sets no cycle; cycle = 1 .*",
        )
        for event in ("begin_cycle", "end_cycle")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_wiring_is_refused(case):
    callbacks, message = REFUSED[case]
    with pytest.raises(WiringError, match=message):
        plan(callbacks(), NAMES, ("update",))


@pytest.mark.parametrize(("second", "by_turns"), [(2, False), (1, True)])
def test_optimizers_may_share_by_turns(second, by_turns):
    plan({"q": Trains(1, by_turns=by_turns), "policy": Trains(second, by_turns=by_turns)}, NAMES, ())
