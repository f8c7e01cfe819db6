"""The table against a list that does the same slowly."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.memory import Table

COLUMNS = {"observation": {"dtype": "int64"}, "reward": {"dtype": "int64"}}


class Slow:
    """One env: every slot ever written as (episode, observation, is a row), the newest ones kept."""

    def __init__(self, slots: int) -> None:
        self.slots, self.entries, self.episode = slots, [], 0

    def write(self, observation: int, row: bool) -> None:
        self.entries = [*self.entries, (self.episode, observation, row)][-self.slots :]
        self.episode += not row

    def windows(self, length: int) -> set[tuple[int, ...]]:
        parts = [self.entries[i : i + length + 1] for i in range(len(self.entries) - length)]
        return {
            tuple(part[1] for part in window)
            for window in parts
            if len({part[0] for part in window}) == 1 and all(part[2] for part in window[:-1])
        }


def play(seed: int, *, num_envs: int, length: int, steps: int, end: float) -> tuple[Table, list[Slow]]:
    """Write random episodes to a table and to lists; each observation is a number of its own."""
    rng = np.random.default_rng(seed)
    table = Table(length=length, num_envs=num_envs, columns=COLUMNS)
    envs = [Slow(length // num_envs + 1) for _ in range(num_envs)]
    for step in range(steps):
        numbers = np.arange(num_envs) + 2 * num_envs * step
        table.add(None, {"observation": numbers, "reward": numbers})
        episode_end = rng.random(num_envs) < end
        if episode_end.any():
            table.close(episode_end, numbers[episode_end] + num_envs)
        for env, number, is_end in zip(envs, numbers.tolist(), episode_end, strict=True):
            env.write(number, row=True)
            if is_end:
                env.write(number + num_envs, row=False)
    return table, envs


def stored(table: Table, length: int) -> list[tuple[int, ...]]:
    """Return every window of the table by its observations, next one included."""
    slots = np.arange(len(table.index.stamp))
    starts = slots[table.index.unbroken(slots, table.index.after(slots, length), length)]
    return [tuple(row) for row in table.storage.arrays["observation"][table.index.run(starts, length + 1)].tolist()]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_envs=st.sampled_from([1, 5]),
    share=st.integers(6, 40),
    steps=st.integers(0, 300),
    end=st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]),
    length=st.sampled_from([1, 2, 5]),
)
def test_windows_are_those_of_the_list(
    seed: int, num_envs: int, share: int, steps: int, end: float, length: int
) -> None:
    table, envs = play(seed, num_envs=num_envs, length=share * num_envs, steps=steps, end=end)
    wanted = set().union(*(env.windows(length) for env in envs))
    actual = stored(table, length)
    assert sorted(actual) == sorted(wanted)
    assert table.windows(length) == len(wanted)
    if wanted:
        batch = table.sample(64, length)
        windows = torch.stack([batch["observation"], batch["next_observation"]], 1).reshape(64, 2, length)
        assert {(*now, after[-1]) for now, after in windows.tolist()} <= wanted
        assert torch.equal(windows[:, 0, 1:], windows[:, 1, :-1])


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(("num_envs", "end"), [(1, 0.1), (5, 0.02), (1, 0.25), (5, 0.25)])
def test_every_window_is_equally_likely(num_envs: int, end: float, length: int) -> None:
    table, envs = play(3, num_envs=num_envs, length=60, steps=400, end=end)
    windows = sum(len(env.windows(length)) for env in envs)
    draws = 400 * windows
    first = table.sample(draws, length)["observation"].reshape(draws, -1)[:, 0]
    counts = torch.unique(first, return_counts=True)[1].double()
    assert len(counts) == windows
    statistic = ((counts - 400) ** 2 / 400).sum()  # chi-square, windows - 1 degrees of freedom
    assert statistic < windows - 1 + 4 * (2 * (windows - 1)) ** 0.5 + 8


def test_counting_windows_is_even_too() -> None:
    table, envs = play(5, num_envs=2, length=40, steps=300, end=0.2)
    windows = sum(len(env.windows(2)) for env in envs)
    starts = table.sampler._enumerate(500 * windows, 0, 2)
    counts = np.unique(starts, return_counts=True)[1]
    assert len(counts) == windows
    assert ((counts - 500.0) ** 2 / 500).sum() < windows - 1 + 4 * (2 * (windows - 1)) ** 0.5 + 8


def test_mostly_empty_ring_is_even_over_uneven_lanes() -> None:
    table = Table(length=1000, num_envs=2, columns=COLUMNS)
    for number in range(31):
        table.add(1, {"observation": [number], "reward": [number]})
    table.add(0, {"observation": [100], "reward": [100]})
    table.close(0, [101])
    counts = torch.unique(table.sample(31 * 500)["observation"], return_counts=True)[1]
    assert len(table) == len(counts) == 31
    assert ((counts - 500.0) ** 2 / 500).sum() < 30 + 4 * 60**0.5 + 8


def test_last_observation_follows_the_last_row() -> None:
    table = Table(length=10, columns=COLUMNS)
    for number in (1, 2):
        table.add(None, {"observation": [number], "reward": [0]})
    assert len(table) == 1  # the observation after the second is not known yet
    table.close(None, [3])
    table.add(None, {"observation": [7], "reward": [0]})
    batch = table.sample(200)
    assert set(zip(batch["observation"].tolist(), batch["next_observation"].tolist(), strict=True)) == {(1, 2), (2, 3)}


def test_partly_overwritten_episode_keeps_its_tail() -> None:
    table = Table(length=5, columns=COLUMNS)  # 6 slots
    for number in range(4):
        table.add(0, {"observation": [number], "reward": [number]})
    table.close(0, [4])
    for number in (10, 11, 12):
        table.add(0, {"observation": [number], "reward": [number]})
    assert set(table.sample(200)["observation"].tolist()) == {2, 3, 10, 11}
    assert len(table) == 4
    assert table.full()


def test_episode_longer_than_the_table_keeps_its_newest_rows() -> None:
    table, _ = play(0, num_envs=1, length=8, steps=100, end=0.0)
    assert set(table.sample(400)["reward"].tolist()) == {2 * step for step in range(91, 99)}
    assert len(table) == 8


def test_episode_numbers_are_used_again() -> None:
    table, _ = play(0, num_envs=5, length=50, steps=3000, end=0.5)
    assert len(table.index.lane) <= 160


def test_lanes_are_written_by_number() -> None:
    table = Table(length=40, num_envs=4, columns=COLUMNS)
    table.add(np.array([3, 1]), {"observation": [30, 10], "reward": [3, 1]})
    table.close(np.array([1, 3]), [11, 31])
    batch = table.sample(50)
    pairs = set(zip(batch["reward"].tolist(), batch["next_observation"].tolist(), strict=True))
    assert pairs == {(1, 11), (3, 31)}


def test_dropped_episode_is_never_sampled() -> None:
    table = Table(length=20, columns=COLUMNS)
    for episode in (0, 1):
        table.add(0, {"observation": [episode], "reward": [episode]})
        table.close(0, [9])
    table.index.drop(table.index.episode(np.array([0])))
    assert set(table.sample(50)["reward"].tolist()) == {1}
    assert len(table) == 1


def box(*shape: int, dtype: str) -> Box:
    return Box(shape, np.full(shape, 0), np.full(shape, 1), dtype)


def test_columns_keep_shape_and_dtype() -> None:
    observation = Composite({"image": box(8, 8, dtype="uint8"), "inner": Composite({"speed": box(3, dtype="float64")})})
    table = Table(length=10, spaces=Spaces(observation, Discrete(3)), columns={"log_prob": {}, "state": {"shape": 2}})
    seen = {"image": np.full((1, 8, 8), 7, np.uint8), "inner": {"speed": np.ones((1, 3))}}
    row = {"observation": seen, "action": [2], "reward": [0.5], "terminated": [True], "truncated": [False]}
    table.add(None, row | {"log_prob": [-1.5], "state": [[1.0, 2.0]]})
    table.close(None, seen)
    batch = table.sample(4)
    assert batch["observation"]["image"].dtype == torch.uint8
    assert batch["next_observation"]["inner"]["speed"].dtype == torch.float32
    assert batch["action"].dtype == torch.int64
    assert batch["terminated"].tolist() == [True] * 4
    assert batch["state"].shape == (4, 2)
    assert set(batch) == set(table.names())


def test_continuous_actions_are_stored_as_floats() -> None:
    spaces = Spaces(box(2, dtype="float32"), box(2, dtype="uint8"))
    assert Table(length=4, spaces=spaces).storage.arrays["action"].dtype == np.float32


def test_windows_have_a_time_axis() -> None:
    table, _ = play(0, num_envs=1, length=30, steps=40, end=0.05)
    batch = table.sample(6, 3)
    assert batch["observation"].shape == batch["next_observation"].shape == (6, 3)


def test_samples_own_their_memory() -> None:
    table, _ = play(0, num_envs=1, length=30, steps=40, end=0.1)
    first = table.sample(8)
    snapshot = copy.deepcopy(first)
    table.sample(8)["observation"].zero_()
    table.storage.arrays["observation"][:] = -5
    assert all(torch.equal(first[name], snapshot[name]) for name in snapshot)


def test_too_long_window_is_refused() -> None:
    table, _ = play(0, num_envs=1, length=50, steps=2, end=0.0)
    with pytest.raises(
        RlrunError, match=r"sample of 4 windows needs one of 3 transitions; the table holds 1 transitions"
    ):
        table.sample(4, 3)
    with pytest.raises(RlrunError, match="holds 0 transitions"):
        Table(length=5, columns=COLUMNS).sample(1)


def test_missing_column_is_named() -> None:
    with pytest.raises(RlrunError, match="a row lacks 'reward'"):
        Table(length=5, columns=COLUMNS).add(None, {"observation": [1]})


def test_misspelt_column_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"columns.state: no setting 'shap' \(did you mean 'shape'\?\)"):
        Table(length=5, columns={"state": {"shap": [2]}})


@pytest.mark.parametrize("num_envs", [1, 3])
def test_saved_table_goes_on_bit_for_bit(num_envs: int) -> None:
    table, _ = play(4, num_envs=num_envs, length=30, steps=100, end=0.2)
    table.sample(9)
    restored = Table(length=30, num_envs=num_envs, columns=COLUMNS, seed=99)
    restored.load_state_dict(copy.deepcopy(table.state_dict()))
    for step in range(50):
        numbers = np.arange(num_envs) + 10_000 + step
        for memory in (table, restored):
            memory.add(None, {"observation": numbers, "reward": numbers})
            if step % 7 == 0:
                memory.close(None, -numbers)
        assert torch.equal(table.sample(5, 2)["observation"], restored.sample(5, 2)["observation"])
    assert np.array_equal(table.index.stamp, restored.index.stamp)


def test_saved_table_of_another_size_is_refused() -> None:
    state = Table(length=5, columns=COLUMNS).state_dict()
    with pytest.raises(RlrunError, match="has 1 envs and room for 5 transitions; this one has 1 and room for 6"):
        Table(length=6, columns=COLUMNS).load_state_dict(state)


def test_saved_table_with_other_columns_is_refused() -> None:
    table = Table(length=5, columns=COLUMNS)
    with pytest.raises(RlrunError, match="the saved table has columns"):
        table.load_state_dict(Table(length=5, columns=COLUMNS | {"action": {}}).state_dict())


def test_seed_decides_the_sample() -> None:
    tables = [Table(length=50, columns=COLUMNS, seed=seed) for seed in (1, 1, 2)]
    for table in tables:
        for number in range(40):
            table.add(None, {"observation": [number], "reward": [number]})
    same, again, different = (table.sample(20)["reward"].tolist() for table in tables)
    assert same == again != different


@pytest.mark.parametrize(
    ("shape", "frame_stack", "memory", "length"),
    [
        ((4,), 1, 1 << 34, 1_000_000),
        ((96, 96, 3), 1, 1 << 34, (1 << 32) // (96 * 96 * 3 + 14)),  # action 8, reward 4, two flags
        ((4, 84, 84), 4, 1 << 34, (1 << 32) // (84 * 84 + 14)),  # each frame is stored once
        ((4, 84, 84), 4, 1 << 60, 1_000_000),
    ],
)
def test_a_length_that_nobody_set_fits_a_quarter_of_main_memory(shape, frame_stack, memory, length, monkeypatch):
    monkeypatch.setattr("rlrun.memory.columns.main_memory", lambda: memory)
    dtype = "float32" if len(shape) == 1 else "uint8"
    box = Box(shape, low=np.zeros(shape, dtype), high=np.full(shape, 255, dtype), dtype=dtype)
    spaces = Spaces(observation=box, action=Discrete(2))
    table = Table(length=None, spaces=spaces, frame_stack=frame_stack)
    assert table.length == length
    assert table.nbytes <= memory / 4 * 1.001
