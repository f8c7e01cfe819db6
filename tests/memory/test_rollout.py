"""Rollouts: what is stored, what is served, and that nothing is served twice or lost."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.memory import ReplayLoader, Table
from rlrun.memory.adaptors.transforms import ReturnNormalize
from rlrun.memory.loaders.rollout import Epochs, PhasicLoader, RolloutLoader
from rlrun.memory.table.rollout_table import Rollout
from rlrun.nn import ReturnNormalizer

from .tables import STEP

COLUMNS = {"observation": {}, **STEP}


class Script:
    """Env n observes 100 n + its number of steps, counted through; a last observation has .5 added.

    `ends` maps (round, env) to "terminated" or "truncated"; `asleep` holds those (round, env) that make no step.
    """

    def __init__(self, table: Rollout, ends: dict[Any, str] | None = None, asleep: Any = ()) -> None:
        self.table, self.ends, self.asleep = table, ends or {}, set(asleep)
        self.steps, self.rounds = 0, 0
        self.observation = 100.0 * np.arange(table.num_envs)

    def collect(self, steps: int, random: bool = False) -> int:
        before = self.steps
        while self.steps - before < steps:
            self._round()
        return self.steps - before

    def _round(self) -> None:
        envs = [env_index for env_index in range(self.table.num_envs) if (self.rounds, env_index) not in self.asleep]
        ending = {env_index: self.ends.get((self.rounds, env_index)) for env_index in envs}
        row = {"observation": self.observation[envs], "reward": self.observation[envs] % 100}
        row |= {kind: [ending[env_index] == kind for env_index in envs] for kind in ("terminated", "truncated")}
        everybody = len(envs) == self.table.num_envs
        self.table.add(None if everybody else np.array(envs), row)
        self.rounds, self.steps = self.rounds + 1, self.steps + len(envs)
        self.observation = self.observation + 1  # an environment may reuse its array; the rollout must not
        if episode_end := [env_index for env_index in envs if ending[env_index]]:
            self.table.close(np.array(episode_end), self.observation[episode_end] + 0.5)


def make(*, num_envs: int = 2, ends: Any = None, asleep: Any = (), **settings: Any) -> tuple[RolloutLoader, Script]:
    table = Rollout(columns=COLUMNS, num_envs=num_envs)
    script = Script(table, ends, asleep)
    settings = {"horizon": 4, "minibatch": 2, **settings}
    return RolloutLoader(table=table, collector=script, **settings), script


def served(loader: RolloutLoader, count: int, column: str = "observation") -> list[list[float]]:
    return [groups["default"][column].tolist() for groups in itertools.islice(loader, count)]


def rows(batches: list[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(batches))


def by_observation(loader: RolloutLoader, count: int) -> dict[float, tuple[float, bool, bool]]:
    """Return next_observation, terminated, truncated of every row that the first batches hold."""
    batches = [groups["default"] for groups in itertools.islice(loader, count)]
    names = ("next_observation", "terminated", "truncated")
    return {
        key: values
        for batch in batches
        for key, *values in zip(*(batch[name].tolist() for name in ("observation", *names)), strict=True)
    }


@pytest.mark.parametrize(
    ("ends", "asleep", "wanted"),
    [
        ({(1, 0): "terminated", (2, 1): "truncated"}, [], {1: 2.5, 102: 103.5}),
        ({(3, 0): "truncated"}, [], {3: 4.5}),  # the episode ends with the rollout
        ({(1, 0): "terminated"}, [(2, 0)], {1: 2.5, 2: None}),  # env 0 makes no third step
    ],
)
def test_every_row_has_its_successor(ends, asleep, wanted):
    loader, _ = make(ends=ends, asleep=asleep)
    transitions = by_observation(loader, 4 - bool(asleep))
    successors = {start + step: start + step + 1 for start in (0, 100) for step in range(4)} | wanted
    assert {key: value[0] for key, value in transitions.items()} == {
        key: value for key, value in successors.items() if value is not None
    }
    for at, kind in enumerate(("terminated", "truncated"), 1):
        flagged = {key for key, value in transitions.items() if value[at]}
        assert flagged == {step + 100 * env_index for (step, env_index), end in ends.items() if end == kind}


def test_epochs_serve_every_row_shuffled():
    loader, script = make(epochs=3, ends={(1, 0): "terminated"})
    for first in (0, 4, 8):  # rollouts follow one another
        epochs = [rows(served(loader, 4)) for _ in range(3)]
        assert [sorted(epoch) for epoch in epochs] == [[*range(first, first + 4), *range(100 + first, 104 + first)]] * 3
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert script.rounds == 12


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"num_envs": 8, "horizon": 33, "minibatch": 32}, [33] * 8),
        ({"num_envs": 1, "horizon": 11, "minibatch": 3}, [3, 4, 4]),
        ({"minibatch": 100}, [8]),
    ],
)
def test_minibatches_have_equal_sizes(settings, sizes):
    loader, _ = make(**settings)
    assert sorted(len(batch) for batch in served(loader, len(sizes))) == sizes


def test_envs_are_served_as_sequences():
    loader, _ = make(length=4, minibatch=4, ends={(1, 0): "terminated"})
    assert sorted(served(loader, 2)) == [[[0, 1, 2, 3]], [[100, 101, 102, 103]]]
    loader, _ = make(length=2, minibatch=4, num_envs=3)
    assert sorted(rows(served(loader, 3))) == [[a + b, a + b + 1] for a in (0, 100, 200) for b in (0, 2)]
    loader, _ = make(length=4, minibatch=8, asleep=[(2, 0)])
    batch = next(iter(loader))["default"]
    assert batch["terminated"].shape == (2, 4)
    envs = {row[0]: valid for row, valid in zip(batch["observation"].tolist(), batch["valid"].tolist(), strict=True)}
    assert envs == {0: [True, True, False, True], 100: [True] * 4}


def test_empty_rounds_leave_no_row():
    loader, script = make(num_envs=1, horizon=2, minibatch=2, asleep=[(1, 0)])
    assert sorted(served(loader, 1)[0]) == [0, 2]
    assert (script.rounds, script.steps) == (3, 2)


class Sum:
    """Adds the reward summed over the env, and takes the rewards out."""

    provides, removes, replaces = ("total",), ("reward",), ()

    def __init__(self) -> None:
        self.shapes: list[Any] = []

    def __call__(self, batch: Any, rows: Any) -> Any:
        self.shapes.append((*batch["reward"].shape, rows))
        total = batch["reward"].cumsum(1)
        return {name: value for name, value in batch.items() if name != "reward"} | {"total": total}


def test_adaptors_see_whole_rollouts_once():
    adaptor = Sum()
    loader, _ = make(adaptors={"sum": adaptor}, epochs=2, columns=["observation", "total"])
    batches = [groups["default"] for groups in itertools.islice(loader, 8)]
    assert adaptor.shapes == [(2, 4, None)]
    assert loader.names() == {"default": ("observation", "total")}
    assert {name for batch in batches for name in batch} == {"observation", "total"}
    pair_of = ("observation", "total")
    pairs = [pair for batch in batches for pair in zip(*(batch[name].tolist() for name in pair_of), strict=True)]
    assert dict(pairs) == {0: 0, 1: 1, 2: 3, 3: 6, 100: 0, 101: 1, 102: 3, 103: 6}


class Watch(Sum):
    def rollout(self, batch: Any) -> Any:
        self.seen = batch["observation"][batch["valid"]].tolist()
        return self(batch, None)


def test_rollout_hooks_see_whole_rollouts():
    watch = Watch()
    for settings in ({}, {"length": 2}, {"adaptors": [watch], "asleep": [(1, 1)]}):
        loader, _ = make(**settings)
        assert set(next(iter(loader))["default"]) == set(loader.names()["default"])
    assert watch.seen == [0, 1, 2, 3, 100, 102, 103]

    class Flatten(Sum):
        def __call__(self, batch: Any, rows: Any) -> Any:
            return batch | {"total": batch["reward"].flatten()}

    loader, _ = make(adaptors=[Flatten()])
    with pytest.raises(RlrunError, match=r"'total' came back as \[8\], wanted \[2, 4"):
        next(iter(loader))


def test_renewing_drops_the_remaining_batches():
    loader, script = make(epochs=5)
    batches = iter(loader)
    next(batches)
    loader.renew()
    assert min(next(batches)["default"]["reward"].tolist()) >= 4
    assert script.rounds == 8


def test_batches_own_contiguous_memory():
    loader, _ = make(minibatch=4)
    first, second = itertools.islice(loader, 2)
    for tensor in first["default"].values():
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    snapshot = first["default"]["observation"].clone()
    second["default"]["observation"].zero_()
    next(iter(loader))
    assert torch.equal(first["default"]["observation"], snapshot)


def test_trees_are_served_as_trees():
    columns = {"observation.camera": {"shape": [2], "dtype": "uint8"}, "observation.goal": {}, "action.move": {}}
    table = Rollout(columns=columns, num_envs=2)
    table.reserve(1)
    camera = np.array([[1, 2], [3, 4]])
    table.add(None, {"observation": {"camera": camera, "goal": [5, 6]}, "action": {"move": [7, 8]}})
    table.close([1], {"camera": camera[1:] + 10, "goal": [16]})
    steps, _ = table.steps({"camera": camera + 100, "goal": [105, 106]})
    assert steps["next_observation"]["camera"].tolist() == [[[101, 102], [13, 14]]]
    assert steps["next_observation"]["goal"].tolist() == [[105, 16]]
    assert steps["action"]["move"].tolist() == [[7, 8]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: RolloutLoader(table=Table(columns=COLUMNS, length=9), collector=None, horizon=4),
            "Rollout, got a Tab",
        ),
        (lambda: ReplayLoader(table=Rollout(columns=COLUMNS), collector=None, batch=2), "wanted a table .* got a Roll"),
        (lambda: Rollout(columns={**COLUMNS, "x": {"tag": True}}), r"memory\.columns\.x: a rollout holds one value a"),
        (lambda: Rollout(columns={**COLUMNS, "x": lambda rows: rows}), r"memory\.columns\.x: a rollout holds one"),
        (lambda: make(horizon=0), "horizon must be at least 1"),
        (lambda: make(minibatch=0), "minibatch must be at least 1"),
        (lambda: make(epochs=0), "epochs must be at least 1"),
        (lambda: make(length=3), "length: 3 does not divide the horizon of 4"),
        (lambda: make(columns=["observation", "rewards"]), r"there is no 'rewards'.*\(did you mean 'reward'\?\)"),
        (lambda: make(columns=["reward", "reward"]), "'reward' is given twice"),
        (lambda: make_phasic(phase_columns=["observation", "return_"]), "there is no 'return_'"),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_other_rows_are_refused():
    with pytest.raises(RlrunError, match="rollout of 4 steps is full"):
        make()[1].collect(9)
    with pytest.raises(RlrunError, match="lacks 'reward'"):
        make()[0].table.add(None, {"observation": [0, 1]})


PHASE = {"interval": 2, "phase_epochs": 3, "phase_minibatch": 4, "phase_columns": ["observation"]}


def make_phasic(**settings: Any) -> tuple[PhasicLoader, Script]:
    table = Rollout(columns=COLUMNS, num_envs=2)
    script = Script(table, None, settings.pop("asleep", ()))
    return PhasicLoader(table=table, collector=script, **{"horizon": 4, "minibatch": 2, **PHASE, **settings}), script


def groups(loader, count):
    """Return the data group and the observations of the next batches."""
    batches = [next(iter(batch.items())) for batch in itertools.islice(loader, count)]
    return [(group, batch["observation"].tolist()) for group, batch in batches]


def test_phases_serve_all_rollouts_since():
    loader, script = make_phasic()
    batches = groups(loader, 2 * (8 + 12))
    assert [group for group, _ in batches] == 2 * (8 * ["default"] + 12 * ["auxiliary"])
    for phase in (0, 1):
        wanted = [env_index + step for env_index in (0, 100) for step in range(8 * phase, 8 * phase + 8)]
        for epoch in range(3):
            first = phase * 20 + 8 + epoch * 4
            assert sorted(rows([served for _, served in batches[first : first + 4]])) == wanted
    assert script.rounds == 16


def test_windows_stay_in_their_rollout():
    loader, _ = make_phasic(length=2, phase_columns=["observation", "valid"])
    windows = [served for group, served in groups(loader, 8 + 12) if group == "auxiliary"]
    assert all(second == first + 1 for batch in windows for first, second in batch)


def test_phases_leave_out_void_rows():
    loader, _ = make_phasic(asleep=[(1, 0), (5, 1)])
    numbers = rows([served for group, served in groups(loader, 40) if group == "auxiliary"])[:42]
    assert sorted(numbers[:14]) == sorted(numbers[14:28]) == sorted(numbers[28:])
    assert len(set(numbers)) == 14
    assert loader.phase.over


def test_renewed_rollouts_count_for_phases():
    loader, _ = make_phasic()
    served = iter(loader)
    names = []
    for _ in range(6):
        (group,) = next(served)
        names.append(group)
        if group == "default":
            loader.renew()
    assert names == ["default", "default", *4 * ["auxiliary"]]
    without, plain = make_phasic(interval=0)[0], make()[0]
    assert groups(without, 20) == groups(plain, 20)
    assert without._rollouts == []


def test_phases_use_the_newest_return_scale():
    """Rewards 0 to 3, then 4 to 7 are divided by the deviation of all so far: √1.25, then √5.25."""
    adaptor = ReturnNormalize(ReturnNormalizer(discount=0.0, num_envs=2, clip=None))
    loader, _ = make_phasic(phase_columns=["observation", "reward"], adaptors=[adaptor])
    phase = [batch["auxiliary"] for batch in itertools.islice(loader, 20) if "auxiliary" in batch]
    assert len(phase) == 12
    for batch in phase:
        torch.testing.assert_close(batch["reward"], (batch["observation"] % 100 / 5.25**0.5).float())


def test_whole_rollouts_are_taken_once():
    loader, _ = make(minibatch=8, epochs=3)
    first, second, third, fresh = (groups["default"] for groups in itertools.islice(loader, 4))
    assert first["observation"] is second["observation"] is third["observation"]
    assert first is not second  # whoever adds a name does so for one update
    assert sorted(first["observation"].tolist()) == [0, 1, 2, 3, 100, 101, 102, 103]
    assert sorted(fresh["observation"].tolist()) == [4, 5, 6, 7, 104, 105, 106, 107]


def test_minibatches_hold_at_least_one_window():
    epochs = Epochs(minibatch=2, epochs=1, length=4, generator=np.random.default_rng(0))
    epochs.begin({"reward": torch.arange(8.0)}, np.array([0, 4]))
    batches = [epochs.next()["reward"].tolist() for _ in range(2)]
    assert sorted(batches) == [[[0.0, 1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0, 7.0]]]
    assert epochs.over
