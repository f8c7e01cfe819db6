"""Learning from a stored memory, without a collector."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import rlrun
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import RequestError
from rlrun.core.spaces import Box, Discrete, Spaces, describe, leaves
from rlrun.memory import Prioritized, Sample, Table, Uniform, spaces_in
from rlrun.memory.formats import table_file
from rlrun.memory.formats.sources import import_rows

from .tables import store_random

LEARNERS = {"sac": "pendulum", "td3": "pendulum", "ddpg": "pendulum", "dqn": "cartpole", "iql": "cartpole"}
TINY = ["algorithm.hidden=[8,8]", "algorithm.batch_size=8", "logger=[]", "device=cpu"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return a stored memory of each environment."""
    folder = tmp_path_factory.mktemp("shown")
    for name, known in {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}.items():
        store_random(folder / f"{name}.zip", id=known)
    return folder


@pytest.mark.parametrize(("algorithm", "alone"), list(zip(LEARNERS, itertools.cycle([False, True]), strict=False)))
def test_every_learner_needs_no_collector(algorithm, alone, shown):
    name = LEARNERS[algorithm]
    where = ["+with=offline_alone"] if alone else [f"env={name}", "+with=offline"]
    overrides = [f"algorithm={algorithm}", *where, f"dataset={shown / name}.zip", *TINY]
    trainer = Builder(compose(overrides).config).get("trainer")
    assert trainer.loader.collector is None
    assert "collector" not in trainer.callbacks
    assert ("evaluation" in trainer.callbacks) is not alone
    trainer.callbacks["memory_import"].restore_state()
    batches = list(itertools.islice(trainer.loader, 2))
    assert batches[1]["default"]["reward"].shape == (8,)


def test_runs_without_an_environment_resume(shown, tmp_path):
    overrides = ["algorithm=sac", "+with=offline_alone", f"dataset={shown}/pendulum.zip", *TINY]
    first = rlrun.train([*overrides, "stop.updates=3"], run_dir=tmp_path / "run").summary
    assert (first["env_steps"], first["updates"]) == (0, 3)
    assert rlrun.resume(tmp_path / "run", ["stop.updates=5"]).summary["updates"] == 5


def test_batches_are_shared_equally(shown, tmp_path):
    overrides = ["algorithm=sac", "env=pendulum", "+with=offline_share", f"dataset={shown}/pendulum.zip", *TINY]
    overrides += ["algorithm.warmup_steps=10", "stop.env_steps=30", "evaluation.every=0"]
    loader = rlrun.train(overrides, run_dir=tmp_path / "run").trainer.loader
    own, old = (part.table for part in loader.table.parts)
    assert (len(own), len(old)) == (29, 59)  # what was done last has no outcome
    lots = []
    for part, table in zip("ab", (own, old), strict=True):
        sample = table.sample
        table.sample = lambda count, length, part=part, sample=sample: (
            lots.append((part, count)) or sample(count, length)
        )
    loader.table.sample(8)
    assert lots == [("a", 4), ("b", 4)]


def test_statistics_may_be_of_stored_data_alone(shown, tmp_path):
    overrides = ["algorithm=sac", "env=pendulum", "+with=[observation_norm,offline_share]", *TINY]
    overrides += [
        f"dataset={shown}/pendulum.zip",
        "offline.updates=3",
        "memory.adaptors.observation_norm.limit=${offline.updates}",
    ]
    overrides += ["algorithm.warmup_steps=10", "stop.env_steps=21", "evaluation.every=0"]
    trainer = rlrun.train(overrides, run_dir=tmp_path / "run").trainer
    assert trainer.loader.table.tables[0].adaptors[-1].normalizer.updates == 3  # of 3 + 20 updates


@pytest.mark.parametrize("parts", [["offline_share", "prioritized"], ["prioritized", "offline_share"]])
def test_priorities_are_the_online_table_s(parts, shown, tmp_path, monkeypatch):
    """A batch has 4 rows of the run's own table, then 4 stored ones, which have no priorities."""
    batches, written = [], []
    for kind, calls in ((Sample, batches), (Prioritized, written)):
        feedback = kind.feedback
        monkeypatch.setattr(kind, "feedback", lambda *a, to=calls, then=feedback: (to.append(a), then(*a)))
    overrides = ["algorithm=sac", "env=pendulum", f"+with=[{','.join(parts)}]", f"dataset={shown}/pendulum.zip", *TINY]
    overrides += ["algorithm.warmup_steps=10", "stop.env_steps=16", "evaluation.every=0"]
    own, stored = rlrun.train(overrides, run_dir=tmp_path / "run").trainer.loader.table.tables
    assert len(written) > 3
    for (_, priority), (sampler, rows, own_priority) in zip(batches, written, strict=True):
        assert sampler is own.sampler
        assert len(rows.start) == 4
        assert own_priority.tolist() == priority[:4].tolist()
    assert isinstance(stored.sampler, Uniform)


def test_spaces_follow_from_rows(tmp_path):
    expected = store_random(tmp_path / "mixed.zip", target="rlrun.env.toys.MixedAction")
    spaces = spaces_in(str(tmp_path / "mixed.zip"))
    assert [path for path, _ in leaves(spaces.action)] == [path for path, _ in leaves(expected.action)]
    for (_, leaf), (_, expected_leaf) in zip(leaves(spaces.action), leaves(expected.action), strict=True):
        assert (type(leaf), leaf.shape) == (type(expected_leaf), expected_leaf.shape)
        if isinstance(leaf, Discrete):
            assert leaf.n == expected_leaf.n
        else:
            assert (leaf.low.min(), leaf.high.max()) == (-1.0, 1.0)
    assert isinstance(spaces.observation, Box)
    assert spaces.observation.shape == expected.observation.shape
    assert not spaces.observation.bounded
    assert spaces.rewards == 0


def rows(path, action, *, size=2, rewards=(), dtype="int64"):
    """Store rows with these actions; return the path."""
    shape = list(np.shape(action[0]))
    columns = {"observation": {"shape": [size]}, "action": {"shape": shape, "dtype": dtype}}
    table = Table(length=20, columns={**columns, "reward": {"shape": list(rewards)}})
    for value in action:
        table.add(0, {"observation": np.zeros((1, size)), "action": [value], "reward": np.zeros((1, *rewards))})
    table_file.store(table, path)
    return str(path)


def test_largest_choice_of_any_source_counts(tmp_path):
    few, many = rows(tmp_path / "few.zip", [0, 1, 1]), rows(tmp_path / "many.zip", [3, 0, 0])
    assert [spaces_in(sources).action.n for sources in ([few, many], [many, few])] == [4, 4]
    few, many = rows(tmp_path / "a.zip", [[0, 2], [1, 0], [0, 0]]), rows(tmp_path / "b.zip", [[3, 0], [0, 1], [0, 0]])
    assert spaces_in([few, many]).action.choices == (4, 3)
    several = spaces_in([rows(tmp_path / "several.zip", [[0, 2], [1, 0], [1, 1]], rewards=(3,))])
    assert (several.action.choices, several.rewards) == ((2, 3), 3)


@pytest.mark.parametrize(("flags", "taken", "choices"), [(4, 1, 4), (2, 3, 4)])
def test_masks_count_choices_never_taken(flags, taken, choices, tmp_path):
    seen = {"observation.action_mask": {"shape": [flags], "dtype": "int8"}, "observation.x": {}}
    table = Table(length=20, columns={**seen, "action": {"dtype": "int64"}, "reward": {}})
    for action in (0, taken, 0):
        observation = {"action_mask": np.ones((1, flags)), "x": [0.0]}
        table.add(0, {"observation": observation, "action": [action], "reward": [0.0]})
    table_file.store(table, tmp_path / "rows.zip")
    assert spaces_in(str(tmp_path / "rows.zip")).action.n == choices


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"action": [0, 1, 1], "size": 3}, r"its observations are .*3.*, and those of .*first\.zip are "),
        ({"action": [0.0, 0.5, 0.0], "dtype": "float32"}, r"its actions are .*, and those of .*first\.zip are "),
        ({"action": [[0, 1], [1, 0], [0, 0]]}, r"its actions are "),
        ({"action": [0, 1, 1], "rewards": (2,)}, r"it has 2 rewards a step, and .*first\.zip has one"),
    ],
)
def test_other_spaces_are_refused(others, message, tmp_path):
    first = rows(tmp_path / "first.zip", [0, 1, 1])
    second = rows(tmp_path / "other.zip", **others)
    with pytest.raises(RequestError, match=rf"other\.zip: {message}"):
        spaces_in([first, first, second])


def test_memories_without_actions_are_refused(tmp_path):
    table = Table(length=10, columns={"observation": {}, "reward": {}})
    for number in range(3):
        table.add(0, {"observation": [number], "reward": [0.0]})
    table_file.store(table, Path(tmp_path / "seen.zip"))
    with pytest.raises(RequestError, match=r"seen\.zip: it holds observation; wanted observations and actions"):
        spaces_in(str(tmp_path / "seen.zip"))


@pytest.mark.parametrize(("dtype", "low", "high"), [("bool", 0, 1), ("int16", -100, 300), ("int64", -5, 5)])
def test_whole_numbers_are_those_of_the_recorded_space(dtype, low, high, tmp_path, caplog):
    box = Box((2,), np.full(2, low, dtype), np.full(2, high, dtype), dtype)
    spaces, table = Spaces(box, Discrete(2)), Table(length=9, spaces=Spaces(box, Discrete(2)))
    for number in (low, high, low):
        row = {"observation": np.full((1, 2), number, dtype), "action": [0], "reward": [0.0]}
        table.add(None, {**row, "terminated": [False], "truncated": [False]})
    table_file.store(table, tmp_path / "recorded.zip", spaces=spaces)
    found = spaces_in(str(tmp_path / "recorded.zip")).observation
    assert (found.dtype, found.unit_range) == (dtype, box.unit_range)
    assert not caplog.records
    table_file.store(table, tmp_path / "guessed.zip")
    found = spaces_in(str(tmp_path / "guessed.zip")).observation
    if low < 0:
        assert (found.dtype, found.unit_range) == (dtype, (0, 1.0))
        assert f"is taken for Box[2] {dtype} without bounds" in caplog.text
        import_rows(Table(length=9, spaces=Spaces(found, Discrete(2))), str(tmp_path / "guessed.zip"))
    else:
        assert describe(found) == "MultiDiscrete([2, 2])"


def test_guesses_about_bytes_and_whole_numbers_are_named(tmp_path, caplog):
    rows = {"observation": np.ones((1, 3), np.uint8), "action": [0], "reward": [0.0]}
    spaces = Spaces(Box((3,), np.zeros(3, np.uint8), np.ones(3, np.uint8), "uint8"), Discrete(2))
    for name, recorded in (("guessed", None), ("recorded", spaces)):
        table = Table(length=9, spaces=spaces)
        for _ in range(3):
            table.add(None, {**rows, "terminated": [False], "truncated": [False]})
        table_file.store(table, tmp_path / f"{name}.zip", spaces=recorded)
    assert spaces_in(str(tmp_path / "recorded.zip")).observation.high.max() == 1
    assert not caplog.records
    assert spaces_in(str(tmp_path / "guessed.zip")).observation.high.max() == 255
    assert "records no spaces: its observation is taken for bytes from 0 to 255" in caplog.text
