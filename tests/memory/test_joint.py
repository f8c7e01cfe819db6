"""Several loaders at once, and several tables in one batch."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.loading.assembly import stateful
from rlrun.memory import ReplayLoader, Table
from rlrun.memory.loaders.dataset import DatasetLoader
from rlrun.memory.loaders.joint import JointLoader
from rlrun.memory.table.mix import Mix


def data(start: int, count: int = 6, **settings: Any) -> DatasetLoader:
    return DatasetLoader({"x": np.arange(start, start + count)}, batch=2, shuffle=False, **settings)


def table(start: float = 0, count: int = 40, **settings: Any) -> Table:
    """One episode that observes start, start + 1, …"""
    memory = Table(length=50, columns={"observation": {}, "reward": {}}, **settings)
    if count:
        steps = start + np.arange(float(count))
        memory.add_episode({"observation": steps, "reward": steps}, start + count)
    return memory


def test_each_loader_has_its_data_group():
    loader = JointLoader(real=data(0), imagined=data(100, data_group="dreams"))
    assert loader.names() == {"real": ("x",), "dreams": ("x",)}
    groups = next(iter(loader))
    assert {name: batch["x"].tolist() for name, batch in groups.items()} == {"real": [0, 1], "dreams": [100, 101]}


def test_loaders_can_share_one_group():
    loader = JointLoader(nested="default", real=data(0), imagined=data(100))
    assert loader.names() == {"default": ("real", "imagined")}
    batches = [groups["default"]["imagined"]["x"].tolist() for groups in itertools.islice(loader, 4)]
    assert batches == [[100, 101], [102, 103], [104, 105], [100, 101]]


def test_joint_loaders_can_be_joined():
    loader = JointLoader(outer=JointLoader(a=data(0), b=data(10)), c=data(20))
    groups = next(iter(loader))
    assert {name: batch["x"][0].item() for name, batch in groups.items()} == {"a": 0, "b": 10, "c": 20}


class Walker:
    """A collector of one environment step at a time, which writes no rows."""

    def __init__(self):
        self.steps = 0

    def collect(self, steps, random=False):
        self.steps += steps
        return steps


def rated(a, b, held=40, **settings):
    """Two loaders with these rates; `a` makes `settings` of the steps of a collector."""
    walker = Walker()
    first = ReplayLoader(table=table(count=held), collector=walker, batch=1, **{"warm_up": 0, **settings})
    return JointLoader(a={"loader": first, **a}, b={"loader": data(0), **b})


def growing(**rate):
    """A loader that makes steps of a collector, and a further one with this rate that serves the same table."""
    walker, memory = Walker(), table(count=0)
    walker.table = memory

    def collect(steps, random=False):
        memory.add(None, {"observation": [walker.steps], "reward": [0.0]})
        walker.steps += 1
        return 1

    walker.collect = collect
    first = ReplayLoader(table=memory, collector=walker, batch=1, warm_up=2)
    return JointLoader(a=first, b={"loader": DatasetLoader(memory, batch=4, hold_out=0.3, held_out=True), **rate})


def test_growing_tables_are_served_in_epochs():
    """Held-out rows come to be more than a batch."""
    counts = [
        len(groups["b"]["reward"]) for groups in itertools.islice(growing(every_steps=5, epochs=1), 70) if "b" in groups
    ]
    assert max(counts) == 4
    assert sum(counts[-4:]) > 4


def served(loader, updates):
    """Return which groups each of the next updates has, and the numbers of `b`."""
    batches = list(itertools.islice(loader, updates))
    numbers = [number for groups in batches for number in groups.get("b", {"x": torch.empty(0)})["x"].tolist()]
    return " ".join("".join(groups) for groups in batches), numbers


@pytest.mark.parametrize(
    ("a", "b", "settings", "expected"),
    [
        ({}, {}, {}, "ab ab ab"),
        ({}, {"times": 3}, {}, "ab b b ab b b ab"),
        ({}, {"every": 3}, {}, "a a ab a a ab a"),
        ({"times": 3}, {}, {}, "ab a a ab a a ab"),
        ({"times": 3}, {"times": 2}, {}, "ab ab a ab ab a"),
        ({}, {"every": 2, "times": 3}, {}, "a ab b b a ab b b a"),
        ({"every": 2}, {"times": 2}, {}, "b b ab b b b"),
        ({}, {"every": 2, "epochs": 2}, {}, "a ab b b b b b a ab b b b b b a"),
        ({}, {"every": 2, "epochs": 1, "min_batches": 4}, {}, "a ab b b b b b a ab b b"),
        ({}, {"every": 2, "epochs": 1, "min_batches": 3}, {}, "a ab b b a ab b"),
        ({}, {"every_steps": 3}, {}, "ab a a ab a a ab"),
        ({}, {"warm_up": 3}, {}, "a a ab ab"),
        ({}, {"every_steps": 3, "warm_up": 2, "times": 2}, {}, "a ab b a a ab b a"),
        ({}, {"every_steps": 10, "epochs": 1}, {"steps_per_update": 4}, "ab b b a a ab b b a a ab b b"),
        ({"times": 4}, {"every_steps": 2, "times": 2}, {"updates_per_step": 4}, "ab ab a a a a a a ab ab a a"),
    ],
)
def test_rates_decide_the_groups(a, b, settings, expected):
    count = len(expected.split())
    groups, numbers = served(rated(a, b, **settings), count)
    assert groups == expected
    assert numbers == [number % 6 for number in range(2 * expected.count("b"))]  # nothing is left out
    for left in range(count):  # left after any update, also between the updates of a part
        before, after = rated(a, b, **settings), rated(a, b, **settings)
        first, drawn = served(before, left)
        after.load_state_dict(before.state_dict())
        after.parts["a"].collector.steps = before.parts["a"].collector.steps
        second, further = served(after, count - left)
        assert (f"{first} {second}".strip(), drawn + further) == (expected, numbers)


def test_a_part_waits_for_the_rows_of_its_table(caplog):
    memory, walker = table(count=0), Walker()
    first = ReplayLoader(table=table(), collector=walker, batch=1, warm_up=0)
    loader = JointLoader(a=first, b={"loader": ReplayLoader(table=memory, collector=None, batch=1), "every_steps": 2})
    running = iter(loader)
    assert [sorted(next(running)) for _ in range(3)] == [["a"]] * 3
    assert [entry.getMessage() for entry in caplog.records] == [
        "loader.b: its table has no rows yet, so it gives no batches until then"
    ]
    memory.add_episode({"observation": np.arange(2.0), "reward": np.arange(2.0)}, 2.0)
    assert [sorted(next(running)) for _ in range(4)] == [["a", "b"], ["a"], ["a", "b"], ["a"]]


def test_epochs_serve_a_growing_table():
    memory = table(count=0)
    loader = DatasetLoader(memory, batch=4)
    with pytest.raises(ConfigError, match="there are no rows to serve"):
        next(iter(loader))
    batches, rows = iter(loader), []
    for start, count in ((0, 5), (100, 10)):
        rows += [start + step for step in range(count)]
        steps = start + np.arange(float(count))
        memory.add_episode({"observation": steps, "reward": steps}, start + count)
        epoch, seen = loader.epoch, []
        while loader.epoch == epoch:
            seen += next(batches)["default"]["observation"].tolist()
        assert sorted(seen) == rows


def test_held_out_rows_are_never_learned_from():
    memory = table(count=0)
    parts = [DatasetLoader(memory, batch=50, hold_out=0.3, held_out=held_out, seed=3) for held_out in (False, True)]
    known, before = set(), set()
    for start in (0, 100, 200):  # rows of the first episode are overwritten in the end
        memory.add_episode({name: start + np.arange(20.0) for name in ("observation", "reward")}, start + 20)
        learned, held = (set(next(iter(part))["default"]["observation"].tolist()) for part in parts)
        assert not learned & held
        assert len(learned | held) == len(memory)
        assert before & (learned | held) == held & known  # a row stays where it is
        known, before = learned | held, held
    assert 0.0 not in known
    assert len(before) == pytest.approx(0.3 * len(known), abs=2)


def test_first_end_ends_all():
    assert len(list(JointLoader(a=data(0, epochs=2), b=data(0, count=4, epochs=1)))) == 2


def test_loaders_in_a_config_are_saved():
    part = {"_target_": "rlrun.memory.DatasetLoader", "dataset": {"x": [0, 1, 2]}, "batch": 1}
    config = {"loader": {"_target_": "rlrun.memory.JointLoader", "real": part, "imagined": {**part, "batch": 2}}}
    builder = Builder(config)
    loader = builder.get("loader")
    assert loader.names() == {"real": ("x",), "imagined": ("x",)}
    next(iter(loader))
    states = {path: part.state_dict() for path, part in stateful(builder.built).items()}
    assert states["loader"]["parts"] == {name: states[f"loader.{name}"] for name in ("real", "imagined")}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JointLoader(), "needs loaders by name"),
        (lambda: JointLoader(a=3), "a: wanted a loader, got 3"),
        (lambda: JointLoader(a=data(0, data_group="g"), b=data(0, data_group="g")),
         "b: it gives the data group 'g', as a does"),
        (lambda: JointLoader(nested="n", a=JointLoader(b=data(0), c=data(0))), "one data group can be nested, not"),
        (lambda: JointLoader(nested="n", a={"loader": data(0), "times": 2}), "of the one data group 'n' have no rates"),
        (lambda: JointLoader(a={"loader": data(0), "evry": 2}), r"a: no setting 'evry' \(did you mean 'every'"),
        (lambda: JointLoader(a={"loader": data(0), "times": 0}), "a.times must be at least 1, not 0"),
        (lambda: JointLoader(a={"loader": data(0), "every": 1.5}), "a.every: wanted a whole number, got 1.5"),
        (lambda: JointLoader(a={"loader": data(0), "every": "3"}), "a.every: wanted a whole number, got '3'"),
        (lambda: JointLoader(a={"times": 2}), "a: wanted a loader, got None"),
        (lambda: JointLoader(a={"loader": data(0), "times": 2, "epochs": 2}), "times and epochs exclude each other"),
        (lambda: JointLoader(a={"loader": data(0), "min_batches": 2}), "a.min_batches: it adds epochs; give"),
        (lambda: JointLoader(a={"loader": data(0), "times": True}), "a.times: wanted a whole number, got True"),
        (lambda: rated({}, {"every": 2, "every_steps": 2}), "b: every and every_steps exclude each other"),
        (lambda: rated({"epochs": 2}, {}), "a.epochs: a ReplayLoader has no epochs; a DatasetLoader has"),
        (lambda: JointLoader(a=data(0), b={"loader": data(0), "every_steps": 2}), "b.every_steps: no loader here coll"),
        (lambda: JointLoader(a=data(0), b={"loader": data(0), "warm_up": 2}), "b.warm_up: no loader here collects; 0"),
        (lambda: rated({}, {"warm_up": -1}), "b.warm_up must be at least 0, not -1"),
        (lambda: growing(times=2, every_steps=5), "b: its table grows between rounds; give epochs"),
        (lambda: growing(every=2), "b: its table grows between rounds; give epochs"),
        (lambda: rated({"every": 2}, {"every": 3}), "one part must give batches in every round"),
        (lambda: data(0, held_out=True), "hold_out: wanted a share from 0 to 1, above 0 if held_out, got 0.0"),
        (lambda: data(0, hold_out=1.5), "hold_out: wanted a share"),
    ],
)  # fmt: skip
def test_impossible_joints_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def counts(mix: Mix, count: int, times: int, *bounds: float) -> list[list[int]]:
    """Return how many rows of each sample are below the first bound, between the next, …"""
    edges = [-np.inf, *bounds, np.inf]
    return [np.histogram(mix.sample(count)["observation"].numpy(), edges)[0].tolist() for _ in range(times)]


def test_shares_are_exact_over_time():
    exact = Mix([{"table": table(0), "share": 0.25}, {"table": table(100), "share": 0.75}])
    assert counts(exact, 8, 3, 99) == [[2, 6]] * 3
    mix = Mix({"real": {"table": table(0), "share": 0.05}, "imagined": {"table": table(100), "share": 0.95}})
    table_counts = np.array(counts(mix, 8, 50, 99))
    assert table_counts.sum(0).tolist() == [20, 380]
    assert table_counts.sum(1).tolist() == [8] * 50
    assert np.abs(table_counts[:, 0].cumsum() - 0.4 * np.arange(1, 51)).max() < 1


@pytest.mark.parametrize("shares", [(1, 1, 1), (0.34, 0.33, 0.32, 0.0033, 0.0034, 0.0033), (5, 0.1, 0.1, 0.1)])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_counts_follow_any_shares(shares, count):
    mix = Mix([{"table": table(1000 * number), "share": share} for number, share in enumerate(shares)])
    table_counts = np.array(counts(mix, count, 400, *(1000 * number - 1 for number in range(1, len(shares)))))
    assert (table_counts.sum(1) == count).all()
    wanted = np.outer(count * np.arange(1, 401), np.array(shares) / sum(shares))
    assert np.abs(table_counts.cumsum(0) - wanted).max() < 2


def test_parts_have_turns_of_their_own():
    parts = [(0, 1, 2), (100, 1, 1), (200, 2, 3)]  # start, share, every
    mix = Mix([{"table": table(start), "share": share, "every": every} for start, share, every in parts])
    table_counts = np.array(counts(mix, 7, 60, 99, 199))
    assert table_counts[::6].tolist() == table_counts[4::6].tolist() == [[0, 7, 0]] * 10
    assert table_counts[1::2][:2].sum(0).tolist() == [7, 7, 0]  # 3.5 each at a time
    assert table_counts[2::6].sum(0) == pytest.approx([0, 70 / 3, 140 / 3], abs=1)
    assert table_counts[5::6].sum(0) == pytest.approx([17.5, 17.5, 35], abs=1)
    late = Mix([{"table": table(), "share": 1, "every": 2}, {"table": table(count=0), "share": 1}])
    assert [len(late.sample(4)["reward"]) for _ in range(2)] == [4, 4]  # nobody else has a window


def test_empty_tables_leave_their_share():
    late = table(200, count=0)
    parts = [(table(0), 0.25), (late, 0.5), (table(100), 0.25)]
    mix = Mix([{"table": part, "share": share} for part, share in parts])
    assert counts(mix, 8, 2, 99, 199) == [[4, 4, 0]] * 2
    late.add_episode({"observation": [200.0], "reward": [0.0]}, 201.0)
    assert counts(mix, 8, 2, 99, 199) == [[2, 2, 4]] * 2
    late.clear()
    assert counts(mix, 8, 2, 99, 199) == [[4, 4, 0]] * 2


def test_tables_without_windows_count_as_empty():
    mix = Mix([{"table": table(0), "share": 1}, {"table": table(100, count=2), "share": 1}])
    assert mix.sample(6, 3)["observation"].max() < 99
    assert (mix.sample(6, 2)["observation"] > 99).any(1).sum() == 3
    with pytest.raises(RlrunError, match="the table holds 0 transitions"):
        Mix([{"table": table(count=0), "share": 1}] * 2).sample(4)


class Weighing(Table):
    """Gives each row its reward as a weight."""

    def names(self, length: int = 1) -> tuple[str, ...]:
        return (*super().names(length), "weight")

    def sample(self, count: int, length: int = 1) -> Any:
        batch = super().sample(count, length)
        return batch | {"weight": batch["reward"] + 0.5}


def test_priorities_reach_their_tables():
    first, second = Weighing(length=9, columns={"observation": {}, "reward": {}}), table(100)
    first.add_episode({"observation": [0.0], "reward": [0.0]}, 1.0)
    mix = Mix([{"table": second, "share": 1}, {"table": first, "share": 2}])
    received: dict[Table, list[float]] = {}
    for part in (first, second):
        part.sampler.feedback = lambda rows, priority, part=part: received.update({part: priority.tolist()})
    batch = mix.sample(6)
    assert batch["weight"].tolist() == [1, 1, 0.5, 0.5, 0.5, 0.5]
    batch.feedback(torch.arange(6.0))
    assert received == {second: [0, 1], first: [2, 3, 4, 5]}
    with pytest.raises(RlrunError, match=r"\[5\] priorities for a sample of 6 windows"):
        batch.feedback(torch.arange(5.0))


def test_names_are_those_of_the_batch():
    for length in (1, 3):
        mix = Mix([{"table": table(), "share": 1}] * 2)
        loader = ReplayLoader(table=mix, collector=None, batch=4, length=length, data_group="model")
        groups = next(iter(loader))
        assert {name: set(batch) for name, batch in groups.items()} == {"model": set(loader.names()["model"])}
        assert groups["model"]["reward"].shape == ((4,) if length == 1 else (4, 3))


def test_restored_loaders_continue():
    def parts():
        mix = Mix([{"table": table(0), "share": 0.3, "every": 2}, {"table": table(100), "share": 0.7}])
        mixed = ReplayLoader(table=mix, collector=None, batch=4)
        return JointLoader(a=data(0), b=data(100, count=4), mix=mixed), mix, *mix.tables

    original, restored = parts(), parts()
    list(itertools.islice(original[0], 3))
    for part, copy in zip(original, restored, strict=True):
        copy.load_state_dict(part.state_dict())
    for batches in itertools.islice(zip(original[0], restored[0], strict=True), 6):
        assert str(batches[0]) == str(batches[1])


@pytest.mark.parametrize("owed", [{"0": -(10**15), "1": 10**15}, {"2": 0}])
def test_forged_rounding_errors_are_refused(owed):
    mix = Mix([{"table": table(), "share": 1}, {"table": table(), "share": 1}])
    with pytest.raises(RlrunError, match="what rounding has kept"):
        mix.load_state_dict(mix.state_dict() | {"owed": {"0 1": owed}})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "there are no tables to mix"),
        ([{"table": 3, "share": 1}], "parts.0.table: wanted a table that is sampled, got a int"),
        ([{"share": 1}], "parts.0: wanted a table and its share, given share"),
        ({"old": {"table": table(), "share": 0}}, "parts.old.share must be a number above 0"),
        ([{"table": table(), "share": 1, "every": 0}], "parts.0.every must be at least 1, not 0"),
        ([{"table": table(), "shares": 1}], r"parts.0: no setting 'shares' \(did you mean 'share'\?\)"),
        ([{"table": table(), "share": 1}, {"table": Table(length=9, columns={"observation": {}}), "share": 1}],
         "loader.parts.1 and loader.parts.0 differ in what they hold: reward"),
    ],
)  # fmt: skip
def test_impossible_mixtures_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        Mix(parts)


def test_columns_of_other_shapes_are_refused():
    wide = Table(length=9, columns={"observation": {"shape": 2}, "reward": {}})
    wide.add_episode({"observation": np.zeros((1, 2)), "reward": [0.0]}, np.zeros(2))
    mix = Mix([{"table": table(), "share": 1}, {"table": wide, "share": 1}])
    with pytest.raises(RlrunError, match="column 'observation' differs between tables"):
        mix.sample(4)


@pytest.mark.parametrize(
    "forged",
    [
        *({"left": left} for left in ({"zzz": 1}, {"b": 4}, {"a": -1}, {"b": "x"}, {"b": 1.5})),
        *({"round": value} for value in (-1, "x")),
        {"last": {"b": "x"}},
    ],
    ids=str,
)
def test_forged_rounds_are_refused(forged):
    loader = rated({}, {"times": 3})
    served(loader, 2)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RlrunError, match=r"wanted a whole number from 0|left for it"):
        loader.load_state_dict(loader.state_dict() | forged)
