"""The plan: who asks for what, who provides it, in which order."""

from __future__ import annotations

import pytest

from rlrun.callbacks import Schedule
from rlrun.core.errors import RlrunError, WiringError
from rlrun.runs import learners
from rlrun.training.callback import Callback, Stop
from rlrun.training.trainer import Trainer
from rlrun.training.wiring import explain, plan

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


class OneBatch:
    def __init__(self, batch, count=1):
        self.batch, self.count = batch, count

    def names(self):
        return {"default": tuple(self.batch)}

    def __iter__(self):
        for _ in range(self.count):
            yield {"default": dict(self.batch)}


def begin_batch_order(callbacks):
    return [step.callback.name for step in plan(callbacks, NAMES, ("update",)).steps["begin_batch"]]


def test_rewriters_run_before_readers_whatever_the_order():
    assert begin_batch_order({"target": Target(), "shaping": Shaping(1)}) == ["shaping", "target"]


def test_two_rewriters_keep_the_config_order():
    order = begin_batch_order({"target": Target(), "b": Shaping(1), "a": Shaping(2)})
    assert order == ["b", "a", "target"]


def test_values_flow_from_loader_through_rewriters_to_losses():
    loss = Loss()
    Trainer({"target": Target(), "shaping": Shaping(1), "loss": loss}, OneBatch({"reward": 2})).train()
    assert loss.seen == [30]


def test_loss_output_reaches_later_losses():
    alpha = Alpha()
    Trainer({"target": Target(), "loss": Loss(), "alpha": alpha}, OneBatch({"reward": 2})).train()
    assert alpha.seen == 7


def test_reading_before_the_providing_loss_is_refused():
    with pytest.raises(WiringError, match=r"callbacks.alpha.backward asks for 'log_prob'.*'loss' first"):
        plan({"alpha": Alpha(), "target": Target(), "loss": Loss()}, NAMES, ())


def test_unknown_name_is_refused_with_the_nearest():
    class Wrong(Grouped):
        def backward(self, next_observations):
            pass

    with pytest.raises(WiringError, match=r"callbacks.wrong.backward asks for 'next_observations'.*'next_observation'"):
        plan({"wrong": Wrong()}, NAMES, ())


def test_a_batchs_name_without_a_data_group_says_to_set_one():
    class Wrong(Callback):
        def end_batch(self, reward):
            pass

    with pytest.raises(WiringError, match=r"callbacks.wrong.end_batch asks for 'reward'.*: set data_group = 'default'"):
        plan({"wrong": Wrong()}, NAMES, ("update",))


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

    trainer = Trainer({"mine": Bonus(), "reads": Reads()}, OneBatch({"reward": 1}, count=3))
    with pytest.raises(RlrunError, match=r"^callbacks.mine provides 'bonus' and has not returned it by update [12]$"):
        trainer.train()
    assert trainer.state["update"] == (2 if group else 1)


def test_unknown_group_is_refused_with_the_nearest():
    class Wrong(Callback):
        data_group = "defualt"

    with pytest.raises(WiringError, match=r"'defualt' does not exist.*'default'"):
        plan({"wrong": Wrong()}, NAMES, ())


def test_hooks_that_wait_for_each_other_are_named():
    class A(Grouped):
        provides = ("a",)

        def begin_batch(self, b):
            return {"a": b}

    class B(Grouped):
        provides = ("b",)

        def begin_batch(self, a):
            return {"b": a}

    with pytest.raises(WiringError, match=r"wait for each other: .*callbacks.a"):
        plan({"a": A(), "b": B()}, NAMES, ())


def test_rewriting_what_nobody_provides_is_refused():
    class Rewriter(Grouped):
        provides = ("bonus",)

        def begin_batch(self, bonus):
            return {"bonus": bonus}

    with pytest.raises(WiringError, match=r"rewrites 'bonus', but nobody provides it first"):
        plan({"rewriter": Rewriter()}, NAMES, ())


def test_optional_arguments_are_left_out_where_nobody_provides_them():
    class Optional(Grouped):
        def backward(self, reward, weight=5):
            self.seen = (reward, weight)

    plain, weighted = Optional(), Optional()
    Trainer({"a": plain}, OneBatch({"reward": 1})).train()
    Trainer({"a": weighted}, OneBatch({"reward": 1, "weight": 2})).train()
    assert (plain.seen, weighted.seen) == ((1, 5), (1, 2))


def test_group_names_fall_back_to_the_state():
    class Reads(Grouped):
        def backward(self, reward, update):
            self.seen = (reward, update)

    reads = Reads()
    Trainer({"a": reads}, OneBatch({"reward": 4}, count=3)).train()
    assert reads.seen == (4, 3)


def test_a_loader_that_breaks_its_promise_is_named():
    class Liar(OneBatch):
        def names(self):
            return {"default": ("reward", "weight")}

    with pytest.raises(WiringError, match=r"promised weight in data group 'default'"):
        Trainer({}, Liar({"reward": 1})).train()


def test_explain_shows_who_reads_and_who_provides():
    text = explain(plan({"target": Target(), "loss": Loss()}, NAMES, ()))
    target = next(line for line in text.splitlines() if "begin_batch" in line)
    assert target.split() == ["begin_batch", "target", "reward", "->", "q_target"]


def test_what_is_no_callback_is_refused_by_name():
    with pytest.raises(WiringError, match=r"callbacks.x is of type int"):
        Trainer({"x": 3}, OneBatch({"reward": 1}))


def test_names_count_from_the_event_that_provides_them():
    class Early(Grouped):
        cycle = 1

        def begin_cycle(self, q_target):
            pass

    with pytest.raises(WiringError, match=r"callbacks.early.begin_cycle asks for 'q_target'"):
        plan({"target": Target(), "early": Early()}, NAMES, ())


def test_what_end_batch_provides_is_too_late_for_begin_batch():
    class Late(Callback):
        provides = ("late",)

        def end_batch(self):
            return {"late": 1}

    class Reads(Grouped):
        def begin_batch(self, late):
            pass

    with pytest.raises(WiringError, match=r"callbacks.reads.begin_batch asks for 'late'"):
        plan({"late": Late(), "reads": Reads()}, NAMES, ())


def test_callbacks_have_a_turn_where_their_group_is():
    class Turns:
        def names(self):
            return {"default": ("x",), "other": ("y",)}

        def __iter__(self):
            return iter([{"default": {"x": 1}}, {"other": {"y": 2}}, {"default": {"x": 3}}])

    class Reads(Callback):
        def __init__(self, group):
            self.data_group, self.seen = group, []

        def begin_batch(self):
            self.seen.append("bare")

    class One(Reads):
        def backward(self, x):
            self.seen.append(x)

    class Other(Reads):
        def end_batch(self, y, missing=None, update=0):
            self.seen.append((y, update))

    first, second = One("default"), Other("other")
    Trainer({"one": first, "other": second}, Turns()).train()
    assert first.seen == ["bare", 1, "bare", 3]
    assert second.seen == ["bare", (2, 2)]


@pytest.mark.parametrize("groups", [{}, {"another": {"reward": 1}}])
def test_a_loader_that_delivers_no_group_that_it_promised_is_named(groups):
    class Liar(OneBatch):
        def __iter__(self):
            return iter([groups])

    with pytest.raises(WiringError, match="loader promised the data groups default and delivered"):
        Trainer({}, Liar({"reward": 1})).train()


class Counting(Callback):
    """Counts the cycles that end."""

    def __init__(self):
        self.count = 0

    def end_cycle(self):
        self.count += 1


@pytest.mark.parametrize("event", ["begin_cycle", "end_cycle"])
def test_a_cycle_hook_without_a_cycle_is_refused(event):
    mine = type("Mine", (Callback,), {event: lambda self: None})
    with pytest.raises(WiringError, match=rf"callbacks.mine.{event} would never .* Mine sets no cycle; cycle = 1 .*"):
        plan({"mine": mine()}, NAMES, ())


def test_a_cycle_hook_that_is_switched_off_is_no_part_of_the_plan():
    counting = Counting()
    counting.cycle = 0
    trainer = Trainer({"counting": counting}, OneBatch({"reward": 1}))
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
    Trainer({"limit": Limit(), "counting": counting}, OneBatch({"reward": 1}, count=5)).train()
    assert counting.count == 3


def test_providers_know_what_of_theirs_is_asked_for():
    target, loss, alpha = Target(), Loss(), Alpha()
    assert loss.asked_for("log_prob")  # without a plan anything may be
    begin_batch_order({"target": target, "loss": loss})
    assert target.asked_for("q_target")
    assert not loss.asked_for("log_prob")
    begin_batch_order({"target": target, "loss": loss, "alpha": alpha})
    assert loss.asked_for("log_prob")


@pytest.mark.parametrize("rank", [0, 1])
def test_all_learners_compute_what_one_that_looks_on_asks_for(rank, monkeypatch):
    monkeypatch.setattr(learners, "_rank", rank)
    loss, watch = Loss(), Watch()
    schedule = plan({"target": Target(), "loss": loss, "watch": watch}, NAMES, ())
    assert loss.asked_for("log_prob")
    assert [step.callback for step in schedule.steps["end_batch"]] == [watch][rank:]


class Trains(Grouped):
    def __init__(self, *parameters, by_turns=False):
        self.parameters, self.by_turns = parameters, by_turns

    def trained(self):
        return self.parameters


def test_two_optimizers_on_one_parameter_are_refused():
    first, second = object(), object()
    with pytest.raises(WiringError, match=r"callbacks\.q and callbacks\.policy train the same parameters"):
        plan({"q": Trains(first), "policy": Trains(second, first)}, NAMES, ())
    plan({"q": Trains(first), "policy": Trains(second)}, NAMES, ())
    plan({"q": Trains(first, by_turns=True), "policy": Trains(first, by_turns=True)}, NAMES, ())


def test_a_schedule_that_nobody_reads_is_refused():
    with pytest.raises(WiringError, match=r"callbacks\.rate: nobody asks for 'rewards' \(did you mean 'reward'\?\)"):
        plan({"target": Target(), "rate": Schedule("rewards", 0.5)}, NAMES, ("update",))
