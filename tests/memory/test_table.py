"""What a table keeps besides rows, and what it samples; `test_model.py` plays random scripts to it."""

import copy
import functools
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.env import make
from rlrun.env.wrappers import FrameStack
from rlrun.memory import Past, Table
from rlrun.memory.table.ejectors import Fifo

from .tables import COLUMNS, add_steps, assert_as_expected, episode, fill

KINDS = pytest.mark.parametrize("whole", [False, True])


def play(seed: int, *, num_envs: int, length: int, steps: int, end: float) -> Table:
    """Write random episodes to a table; each observation is a number of its own."""
    rng = np.random.default_rng(seed)
    table = Table(length=length, num_envs=num_envs, columns=COLUMNS)
    for step in range(steps):
        numbers = np.arange(num_envs) + 2 * num_envs * step
        table.add(None, {"observation": numbers, "reward": numbers})
        episode_end = rng.random(num_envs) < end
        if episode_end.any():
            table.close(episode_end, numbers[episode_end] + num_envs)
    return table


def assert_even(drawn: Any, windows: int) -> None:
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(counts) == windows
    assert_as_expected(counts, np.ones(windows))


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(("num_envs", "end"), [(1, 0.1), (5, 0.02), (1, 0.25), (5, 0.25)])
def test_every_window_is_equally_likely(num_envs: int, end: float, length: int) -> None:
    table = play(3, num_envs=num_envs, length=60, steps=400, end=end)
    draws = 400 * table.windows(length)
    first = table.sample(draws, length)["observation"].reshape(draws, -1)[:, 0]
    assert_even(first, table.windows(length))
    starts = table.sampler._enumerate(draws, 0, length)  # as it does where few slots begin a window
    assert_even(starts, table.windows(length))


def test_mostly_empty_ring_is_even() -> None:
    table = Table(length=1000, num_envs=2, columns=COLUMNS)
    episode(table, 31, 0, env_index=1, over=False)
    episode(table, 1, 100)
    assert len(table) == 31
    assert_even(table.sample(31 * 500)["observation"], 31)
    assert len(play(0, num_envs=5, length=50, steps=3000, end=0.5).index.lane) <= 160  # numbers are used again


def box(*shape: int, dtype: str = "float32") -> Box:
    return Box(shape, np.full(shape, 0), np.full(shape, 1), dtype)


def other(**settings: Any) -> Table:
    return Table(**{"length": 10, "num_envs": 2, "columns": COLUMNS, **settings})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: other(columns={"state": {"shap": [2]}}), r"columns.state: no setting 'shap' \(did you mean"),
        (lambda: other(columns={"x": 5}), "memory.columns.x"),
        (lambda: other(columns={"x": {"shape": "a"}}), "memory.columns.x"),
        (lambda: other(columns={**COLUMNS, "next_observation": {}}), "next_observation: a batch has another value"),
        (lambda: other(spaces=Spaces(box(1), Discrete(2)), columns={"reward": {}}), "reward: the memory has that col"),
        (lambda: other(min_length=0), "^min_length must be from 1 to the 5 transitions"),
        (lambda: other(min_length=6), "^min_length must be from 1 to the 5 transitions"),
        (lambda: other(storage="dsik"), "^storage: wanted one of .*did you mean"),
        (lambda: other(short="padd"), "^short: wanted one of .*did you mean"),
        (lambda: other(sampler=Fifo()), r"^sampler: wanted a rlrun.memory.Sampler .*, not a Fifo"),
        (lambda: other(frame_stack=4), r"memory.frame_stack: observation \[\] is no stack of 4 frames"),
        (lambda: other().resize(6), r"memory\.length can only grow: it is 10, and 6 is less"),
        (lambda: other(columns={"x": {"shape": [10**10]}}, storage="disk"), r"memory.directory: .* GB do not fit in"),
        (lambda: other(storage="disk", directory="nowhere"), r"nowhere cannot be written: No such file"),
    ],
)
def test_impossible_settings_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: other().add(None, {"observation": [1, 2]}), "a row lacks 'reward'"),
        (lambda: fill(other(columns={**COLUMNS, "q": {"tag": True}}), [1]), "an episode ended without its tag 'q'"),
        (lambda: other(length=12).load_state_dict(other().state_dict()), "room for 10 transitions; .* room for 12"),
        (lambda: other().load_state_dict(other(columns={"x": {}}).state_dict()), "the saved table has columns"),
        (
            lambda: other().load_state_dict(other(ejector=Fifo(whole=True)).state_dict()),
            "the saved table is of another kind",
        ),
    ],
)
def test_other_rows_and_states_are_refused(call: Any, message: str) -> None:
    with pytest.raises(RlrunError, match=message):
        call()


def test_columns_keep_shape_and_dtype() -> None:
    observation = Composite({"image": box(8, 8, dtype="uint8"), "inner": Composite({"speed": box(3, dtype="float64")})})
    table = Table(length=10, spaces=Spaces(observation, Discrete(3)), columns={"log_prob": {}, "state": {"shape": 2}})
    seen = {"image": np.full((1, 8, 8), 7, np.uint8), "inner": {"speed": np.ones((1, 3))}}
    row = {"observation": seen, "action": [2], "reward": [0.5], "log_prob": [-1.5], "state": [[1.0, 2.0]]}
    add_steps(table, 1, lambda step: row, end="terminated", last=seen)
    batch = table.sample(4)
    assert batch["observation"]["image"].dtype == torch.uint8
    assert batch["next_observation"]["inner"]["speed"].dtype == torch.float32
    assert batch["action"].dtype == torch.int64
    assert batch["terminated"].tolist() == [True] * 4
    assert batch["state"].shape == (4, 2)
    assert set(batch) == set(table.names())
    whole_numbers = Spaces(box(2), box(2, dtype="uint8"))  # continuous actions are stored as floats
    assert Table(length=4, spaces=whole_numbers).storage.arrays["action"].dtype == np.float32


def test_samples_own_their_memory() -> None:
    large = {"observation": {"shape": [40, 40], "dtype": "uint8"}, "packed": {"shape": [999]}}  # no packed rows
    images = Table(length=10, columns=large)
    for step in range(3):
        images.add(0, {"observation": np.full((1, 40, 40), step), "packed": np.full((1, 999), step)})
    batch = images.sample(20)
    assert torch.equal(batch["next_observation"][:, 0, 0].float(), batch["packed"][:, 0] + 1)
    table = play(0, num_envs=1, length=30, steps=40, end=0.1)
    first = table.sample(8)
    snapshot = copy.deepcopy(first)
    table.sample(8)["observation"].zero_()
    table.storage.arrays["observation"][:] = -5
    assert all(torch.equal(first[name], snapshot[name]) for name in snapshot)


@pytest.mark.parametrize(
    ("shape", "frame_stack", "memory", "length"),
    [
        ((4,), 1, 1 << 34, 1_000_000),
        ((96, 96, 3), 1, 1 << 34, (1 << 32) // (96 * 96 * 3 + 14)),  # action 8, reward 4, two flags
        ((4, 84, 84), 4, 1 << 34, (1 << 32) // (84 * 84 + 14)),  # each frame is stored once
        ((4, 84, 84), 4, 1 << 60, 1_000_000),
    ],
)
def test_default_length_fits_main_memory(shape, frame_stack, memory, length, monkeypatch):
    monkeypatch.setattr("rlrun.memory.table.columns.main_memory", lambda: memory)
    dtype = "float32" if len(shape) == 1 else "uint8"
    box = Box(shape, low=np.zeros(shape, dtype), high=np.full(shape, 255, dtype), dtype=dtype)
    spaces = Spaces(observation=box, action=Discrete(2))
    table = Table(length=None, spaces=spaces, frame_stack=frame_stack)
    assert table.length == length
    assert table.nbytes <= memory / 4 * 1.001


@KINDS
@pytest.mark.parametrize("join", [np.stack, lambda frames: np.concatenate(frames, -1)], ids=["stacked", "joined"])
def test_frames_are_stored_once(whole: bool, join: Any) -> None:
    frames = [np.full((9, 8, 2), step, np.uint8) for step in range(7)]
    stacks = [join([frames[max(step - back, 0)] for back in (2, 1, 0)]) for step in range(7)]
    box = Box(stacks[0].shape, np.zeros(stacks[0].shape), np.full(stacks[0].shape, 255), "uint8")
    table = Table(length=20, spaces=Spaces(box, Discrete(2)), frame_stack=3, ejector=Fifo(whole=whole))
    rows = [{"observation": stack[None], "action": [0], "reward": [step]} for step, stack in enumerate(stacks)]
    add_steps(table, 6, rows.__getitem__, last=stacks[6][None])
    assert table.storage.arrays["observation"].shape[1:] == (9, 8, 2)
    batch = table.sample(40, 2)
    for name, after in (("observation", 0), ("next_observation", 1)):
        wanted = [[stacks[int(step) + after] for step in window] for window in batch["reward"]]
        assert np.array_equal(batch[name], wanted)


class Shown(gymnasium.Env):
    """Shows the step's number in an image of its own bounds."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 99, shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._seen(), 0.0, self.count == 9, False, {}

    def _seen(self) -> Any:
        place = np.arange(int(np.prod(self.observation_space.shape)))
        return (place * 7 + self.count).reshape(self.observation_space.shape).astype(np.uint8) % 99


@pytest.mark.parametrize(
    ("shape", "count"), [((24, 24, 30), 4), ((30, 24, 24), 4), ((20, 20, 2), 20), ((12, 12, 30), 6), ((6, 8, 96), 4)]
)
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("wrapper", [FrameStack, gymnasium.wrappers.FrameStackObservation])
def test_frames_of_any_layout_come_back(shape: tuple[int, ...], count: int, wrapper: Any, kind: str) -> None:
    stack = functools.partial(wrapper, **{"count" if wrapper is FrameStack else "stack_size": count})
    env = make(target=f"{__name__}.Shown", kwargs={"shape": shape}, wrappers=[stack], vectorization=kind)
    if kind == "sync":
        assert env.frame_stack == count
    table = Table(length=40, spaces=env.spaces, frame_stack=count)
    stored = [env.reset(0).copy()]
    for number in range(8):
        action = np.zeros(1, np.int64)
        step = env.step(action)
        row = {"observation": stored[-1], "action": action, "reward": np.float32([number])}
        table.add(None, {**row, "terminated": step.terminated, "truncated": step.truncated})
        stored.append(step.observation.copy())
    table.close(None, stored[-1])
    env.close()
    batch = table.sample(16)
    assert np.array_equal(batch["observation"], [stored[int(step)][0] for step in batch["reward"]])


@KINDS
@pytest.mark.parametrize("length", [2, 4, 16])
@pytest.mark.parametrize("burn_in", [None, 1])
def test_weights_undo_the_bias_of_windows(whole: bool, length: int, burn_in: int | None) -> None:
    network = SimpleNamespace(state_size=3)
    adaptors = [] if burn_in is None else [Past(network, length=length, burn_in=burn_in, stored=False)]
    columns = {"observation": {}, "last": {"dtype": "bool"}}
    table = Table(length=900, columns=columns, short="pad", ejector=Fifo(whole=whole), adaptors=adaptors)
    ends = np.random.default_rng(3).random(1500) < 0.1
    for end in ends.tolist():  # more rows than the table keeps
        table.add(None, {"observation": [0.0], "last": [end]})
        if end:
            table.close(None, [0.0])
    batch = table.sample(40_000, length)
    share = float((batch["weight"] * batch["last"]).sum() / batch["weight"].sum())
    stored = table.index.complete[:-1]
    real = float(table.storage.gather("last", np.flatnonzero(stored)).float().mean())
    assert share == pytest.approx(real, rel=0.03)
    assert float(batch["weight"].mean()) == pytest.approx(1.0, rel=0.03)


@KINDS
@pytest.mark.parametrize("num_envs", [1, 3])
def test_stamps_widen_for_many_episodes(whole: bool, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(table: Table, ends: range) -> list[list[int]]:
        drawn = []
        for step in range(160):
            numbers = np.arange(num_envs) * 1000 + step
            table.add(None, {"observation": numbers, "reward": numbers})
            if step in ends:
                table.close(None, numbers + 500)
            if step % 7 == 6:
                drawn.append(table.sample(9, 2)["next_observation"].flatten().tolist())
        return drawn

    for ends, bits in ((range(50, 60, 3), 5), (range(0, 160, 2), 27)):  # 51 rows in 5 bits; 80 episodes in 4 bits
        tables = [Table(length=90, num_envs=num_envs, columns=COLUMNS, ejector=Fifo(whole=whole)) for _ in range(2)]
        wide = play(tables[0], ends)
        monkeypatch.setattr("rlrun.memory.table.index.NARROW", bits)
        tables[1] = Table(length=90, num_envs=num_envs, columns=COLUMNS, ejector=Fifo(whole=whole))
        assert play(tables[1], ends) == wide
        assert (tables[0].index.stamp.itemsize, tables[1].index.stamp.itemsize) == (4, 8)
        monkeypatch.undo()


@KINDS
@pytest.mark.parametrize("length", [65534, 65535, 65536])
def test_windows_stay_within_long_episodes(whole: bool, length: int) -> None:
    table = Table(length=70_000, columns=COLUMNS, ejector=Fifo(whole=whole))
    for rows in (np.arange(length), 100_000 + np.arange(6)):
        table.add_episode({"observation": rows, "reward": rows}, rows[-1] + 1)
    slots = np.arange(table.index.size)
    begins = table.index.unbroken(slots, table.index.after(slots, 3), 3)
    assert np.count_nonzero(begins) == table.windows(3) == length - 2 + 4


def test_many_envs_have_distinct_stamps() -> None:
    table = Table(length=80_000, num_envs=40_000, columns=COLUMNS)
    numbers = np.arange(40_000)
    table.add(None, {"observation": numbers, "reward": numbers})
    table.close(None, numbers + 1)
    batch = table.sample(500)
    assert torch.equal(batch["next_observation"], batch["observation"] + 1)


@KINDS
def test_no_envs_change_nothing(whole: bool) -> None:
    table = fill(Table(length=10, columns=COLUMNS, ejector=Fifo(whole=whole)), [4])
    nobody = np.empty(0, np.int64)
    table.add(nobody, {"observation": nobody, "reward": nobody})
    table.close(np.zeros(1, np.bool_), nobody)
    assert len(table) == 4
    assert set(table.sample(50)["reward"].tolist()) == {0, 1, 2, 3}


class Halved(Table):
    """Stores half of each reward."""

    def add(self, env_index, row):
        super().add(env_index, {**row, "reward": 0.5 * row["reward"]})


def test_subclasses_change_what_is_stored():
    config = compose(["algorithm=dqn", "env=cartpole", "preset=null", "memory.length=200", "device=cpu"]).config
    config.memory["_target_"] = f"{__name__}.Halved"
    builder = Builder(config)
    table, collector = builder.get("memory"), builder.get("loader").collector
    collector.begin_training()
    collector.collect(50)
    assert table.sample(64)["reward"].unique().tolist() == [0.5]
