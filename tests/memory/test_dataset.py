"""Data sets: each row once an epoch, from wherever it comes."""

import copy
import itertools
import os
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from rlrun import train
from rlrun.checkpointing import digest
from rlrun.core.errors import ConfigError, RequestError, RlrunError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.memory import (
    Bonus,
    Fifo,
    Hindsight,
    Intrinsic,
    Lazy,
    NStep,
    ObservationNormalize,
    Prioritized,
    RandomShift,
    RewardNormalize,
    Scale,
    Split,
    Table,
)
from rlrun.memory.formats import minari, table_file
from rlrun.memory.loaders import dataset
from rlrun.memory.loaders.dataset import DatasetLoader
from rlrun.memory.table.episodes import Episode
from rlrun.memory.table.samplers import Rows
from rlrun.nn.normalizer import Normalizer

from .tables import STEP, add_steps

DATA = {"x": np.arange(10), "y": np.arange(10) * 0.5}
STEPS = {"observation": {}, **STEP}


def make(dataset: Any = None, **settings: Any) -> DatasetLoader:
    return DatasetLoader(DATA if dataset is None else dataset, **{"batch": 4, **settings})


def served(loader: DatasetLoader, count: int, column: str = "x") -> list[Any]:
    return [groups["default"][column].tolist() for groups in itertools.islice(loader, count)]


def joined(batches: list[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(batches))


def test_epochs_serve_every_row_shuffled():
    loader = make()
    epochs = [joined(served(loader, 3)) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [[*range(10)]] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != joined(served(make(seed=1), 3))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        ({"adaptors": {"scale": Scale("x", factor=10)}}, [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90]]),
    ],
)
def test_epochs_end_in_order(settings, wanted):
    assert served(make(epochs=2, shuffle=False, **settings), 9) == wanted * 2


@pytest.mark.parametrize("seen", range(7))
def test_resumed_loader_serves_the_next_batch(seen):
    loader = make(epochs=2, seed=5)
    served(loader, seen)
    state = loader.state_dict()
    restored = make(epochs=2, seed=5)
    restored.load_state_dict(state)
    rest = served(loader, 9)
    assert served(restored, 9) == rest
    assert len(rest) == 6 - seen


def test_batches_own_their_memory():
    data = copy.deepcopy(DATA)
    batch = next(iter(make(data)))["default"]
    assert (batch["x"].dtype, batch["y"].dtype) == (torch.int64, torch.float32)
    assert torch.equal(batch["y"], batch["x"] * 0.5)
    batch["x"].zero_()
    assert data["x"].tolist() == [*range(10)]


def test_trees_and_chosen_columns():
    tree = {"observation": {"camera": np.zeros((6, 2, 2), np.uint8), "goal": torch.arange(6)}, "label": [1] * 6}
    loader = make(tree, columns=["observation"], shuffle=False)
    batch = next(iter(loader))["default"]
    assert loader.names() == {"default": ("observation",)}
    assert (batch["observation"]["camera"].shape, batch["observation"]["camera"].dtype) == ((4, 2, 2), torch.uint8)
    assert batch["observation"]["goal"].tolist() == [0, 1, 2, 3]


class Pairs:
    """A Dataset of tuples that counts how often it is asked."""

    def __init__(self, item=lambda row: (row, [row, -row])):
        self.item, self.asked = item, 0

    def __len__(self):
        return 6

    def __getitem__(self, row):
        self.asked += 1
        return self.item(row)


def test_items_are_read_once_or_late():
    pairs, late = Pairs(), Pairs()
    loaders = [make(data, columns=["label", "input"], epochs=3, batch=3, shuffle=False) for data in (pairs, Lazy(late))]
    read = pairs.asked
    batches = [served(loader, 6, "input") for loader in loaders]
    assert batches[0] == batches[1] == [[[row, -row] for row in rows] for rows in ([0, 1, 2], [3, 4, 5])] * 3
    assert pairs.asked == read <= 8
    assert 18 <= late.asked <= 19


@pytest.mark.parametrize("lazy", [Lazy, lambda dataset: dataset])
def test_items_can_be_dicts(lazy):
    loader = make(lazy(Pairs(lambda row: {"x": row, "rest": {"z": float(row)}})), columns=["rest"], shuffle=False)
    batch = next(iter(loader))["default"]
    assert list(batch) == ["rest"]
    assert batch["rest"]["z"].dtype == torch.float32
    assert batch["rest"]["z"].tolist() == [0, 1, 2, 3]


def test_tensor_datasets_are_read():
    tensors = torch.arange(6), torch.randn(6, 3)
    loader = make(TensorDataset(*tensors), columns=["x", "y"], shuffle=False, batch=6)
    batch = next(iter(loader))["default"]
    assert torch.equal(batch["x"], tensors[0])
    assert torch.equal(batch["y"], tensors[1])


def test_npz_is_read_without_pickle(tmp_path):
    np.savez(tmp_path / "data.npz", **{"x": np.arange(500), "observation.goal": np.ones((500, 2))})
    loader = make(str(tmp_path / "data.npz"), shuffle=False)
    assert loader.names() == {"default": ("x", "observation")}
    assert next(iter(loader))["default"]["observation"]["goal"].shape == (4, 2)
    np.savez(tmp_path / "evil.npz", x=np.array([print], dtype=object))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:1000])
    for name, message in (("evil", "damaged or holds"), ("cut", "damaged"), ("none", "cannot be read")):
        with pytest.raises(ConfigError, match=rf"loader.dataset: .*{name}.npz (is )?{message}"):
            make(tmp_path / f"{name}.npz")


def test_npz_is_a_plain_file_of_arrays(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    np.save(tmp_path / "bare.npy", np.arange(3))
    (tmp_path / "bare.npy").rename(tmp_path / "bare.npz")
    for name, message in (("pipe", "it is not a plain file"), ("bare", "is damaged or holds something else")):
        with pytest.raises(ConfigError, match=f"{name}.npz .*{message}|{name}.npz {message}"):
            make(tmp_path / f"{name}.npz")


@pytest.mark.parametrize(("name", "value"), [("epoch", -1), ("epoch", "x"), ("served", -3), ("served", 0.5)])
def test_forged_positions_are_refused(name, value):
    with pytest.raises(RlrunError, match=f"'{name}' is"):
        make().load_state_dict(make().state_dict() | {name: value})


def test_position_behind_the_rows_is_refused():
    loader = make()
    loader.load_state_dict(make().state_dict() | {"served": 999})
    with pytest.raises(RlrunError, match="999 of 10 rows were served"):
        next(iter(loader))


def filled(**settings: Any) -> Table:
    """A table with episodes of 3, 1 and 2 steps and an open one of 2, observing 10 × episode + step."""
    table = Table(length=30, columns=STEPS, **settings)
    for first, length, last in ((0, 3, [3]), (10, 1, [11]), (20, 2, [22]), (30, 2, None)):
        row = [{"observation": [first + step], "reward": [1]} for step in range(length)]
        add_steps(table, length, row.__getitem__, end="terminated" if last else None, last=last)
    return table


def test_complete_rows_are_served_once():
    table = filled()
    before = table.state_dict()["sampler"]
    loader = make(table, epochs=1)
    successors = {}
    for groups in loader:
        batch = groups["default"]
        successors |= dict(zip(batch["observation"].tolist(), batch["next_observation"].tolist(), strict=True))
    assert successors == {0: 1, 1: 2, 2: 3, 10: 11, 20: 21, 21: 22, 30: 31}
    assert table.state_dict()["sampler"] == before


def test_tables_apply_their_adaptors():
    loader = make(filled(adaptors=[NStep(steps=2, discount=0.5)]), epochs=1, batch=7)
    batch = next(iter(loader))["default"]
    assert set(batch) == set(loader.names()["default"])
    reward = dict(zip(batch["observation"].tolist(), batch["reward"].tolist(), strict=True))
    assert reward == {0: 1.5, 1: 1.5, 2: 1, 10: 1, 20: 1.5, 21: 1, 30: 1}


class Noting(Fifo):
    """Keeps the rows of samples."""

    def on_sample(self, rows: Rows) -> None:
        self.noted = [*getattr(self, "noted", []), rows]


def test_feedback_is_about_samples_alone():
    """A model may learn from the memory between the sample of an update and the priorities that it returns."""
    table = filled(sampler=Prioritized(), ejector=Noting())
    sampled = table.sample(3)
    assert len(next(iter(make(table, batch=7)))["default"]["observation"]) == 7
    fed = []
    table.sampler.feedback = lambda rows, priority: fed.append(rows)
    sampled.feedback(torch.ones(3))
    sampled.rewrite({"reward": 5.0 + torch.arange(3.0)})
    assert fed == table.ejector.noted
    assert table.storage.gather("observation", fed[0].index).tolist() == sampled["observation"].tolist()
    assert set(table.storage.gather("reward", fed[0].index).tolist()) <= {5.0, 6.0, 7.0}


class Surprise(Bonus):
    """Pays 2 for each row, and has statistics of it."""

    def view(self, step: Any) -> Any:
        return {"seen": self.seen(step["next_observation"])}

    def measure(self, view: Any) -> Any:
        return torch.full((len(view["seen"]["desired_goal"]),), 2.0)


HELD_OUT = {
    "validation": lambda table: make(table, batch=5).once(),
    "a share": lambda table: (groups["default"] for groups in make(table, hold_out=0.5, held_out=True, epochs=1)),
    "a part": lambda table: (g["default"] for g in make(Split(table, fraction=0.5).held_out, epochs=1)),
}


@pytest.mark.parametrize("kind", HELD_OUT)
def test_held_out_rows_change_no_adaptor(kind):
    """Statistics and generators stay; rows are normalized, and have their own goals and images."""
    line = Box((1,), np.full(1, -np.inf), np.full(1, np.inf))
    image = Box((8, 8), np.zeros((8, 8)), np.full((8, 8), 255.0), "uint8")
    goals = Spaces(Composite({"achieved_goal": line, "desired_goal": line, "image": image}), Discrete(2))
    norm, seen, paid = Normalizer(goals, leaves=["achieved_goal"]), Normalizer(goals), Normalizer([])
    rms = Normalizer([], form="rms")
    adaptors = {
        "hindsight": Hindsight(reward=lambda achieved, desired: np.zeros(achieved.shape[:-1], np.float32), share=1.0),
        "bonus": Intrinsic({"surprise": Surprise(torch.nn.Identity(), observation=seen, reward=paid)}),
        "rms": RewardNormalize(rms),
        "shift": RandomShift(goals),
        "norm": ObservationNormalize(norm),
    }
    table = Table(spaces=goals, length=90, adaptors=adaptors)
    pixels = np.random.default_rng(0).integers(0, 255, (1, 8, 8)).astype(np.uint8)
    observation = {"achieved_goal": [[9.0]], "desired_goal": [[-4.0]], "image": pixels}
    row = {"observation": observation, "action": [0], "reward": [0.0]}
    for _ in range(4):
        add_steps(table, 5, lambda step: row, end="truncated", last=observation)
    table.sample(8)
    parts = [adaptors["hindsight"], adaptors["shift"], norm, rms, seen, paid]
    before = [digest(part.state_dict()) for part in parts]
    batches = list(HELD_OUT[kind](table))
    assert batches
    for batch in batches:
        assert (batch["observation"]["image"] == torch.from_numpy(pixels)).all()
        assert (batch["observation"]["desired_goal"] == -4.0).all()
        assert (batch["observation"]["achieved_goal"].abs() < 1.0).all()
        assert (batch["surprise"]["bonus"] != 2.0).all()
    assert [digest(part.state_dict()) for part in parts] == before


def test_tables_changed_within_epochs_are_refused():
    table = filled()
    batches = iter(make(table))
    next(batches)
    add_steps(table, 1, lambda step: {"observation": [32], "reward": [1]})
    with pytest.raises(RlrunError, match="the table changed within an epoch"):
        next(batches)


def test_stored_memory_is_a_dataset(tmp_path):
    table_file.store(filled(), tmp_path / "memory.zip")
    observations = joined(served(make(str(tmp_path / "memory.zip"), epochs=1), 9, "observation"))
    assert sorted(observations) == [0, 1, 2, 10, 20, 21, 30]
    with pytest.raises(RequestError, match=r"other\.zip cannot be read"):
        make(str(tmp_path / "other.zip"))


def test_other_formats_are_a_dataset(monkeypatch):
    row = {"observation": {"place": np.arange(3.0)}, "reward": np.ones(3, np.float32)}
    episodes = {"walks": [Episode(row, {"place": np.float64(3)})] * 2, "nothing": []}
    monkeypatch.setattr(minari, "read", episodes.__getitem__)
    batch = next(iter(make("minari:walks", batch=6)))["default"]
    assert sorted(batch["observation"]["place"].tolist()) == [0, 0, 1, 1, 2, 2]
    assert torch.equal(batch["next_observation"]["place"], batch["observation"]["place"] + 1)
    assert batch["observation"]["place"].dtype == torch.float32
    with pytest.raises(ConfigError, match="there are no rows in it"):
        make("minari:nothing")


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


@pytest.mark.parametrize(
    ("dataset", "settings", "message"),
    [
        ({"x": [1, 2], "y": [1, 2, 3]}, {}, "columns differ in length: x has 2, y has 3"),
        ({"x": ["a", "b"]}, {}, "'x' holds <U1, wanted numbers"),
        ({"a": {"b": ["c"]}}, {}, "'a.b' holds <U1"),
        *((nothing, {}, "there are no rows in it") for nothing in ({"x": []}, {"x": 3}, {})),
        (DATA, {"columns": ["x", "yy"]}, r"^columns: there is no 'yy'; there are x, y"),
        (DATA, {"columns": ["x", "x"]}, "'x' is given twice"),
        (DATA, {"batch": 0}, "^batch must be at least 1"),
        (DATA, {"epochs": 0}, "^epochs must be at least 1"),
        (Pairs(), {}, "every item of the data set has 2 parts, one name each; given: none"),
        (Pairs(), {"columns": ["a"]}, "has 2 parts, one name each; given: a"),
        (Pairs(lambda row: ([0] * (row + 1),)), {"columns": ["a"]}, r"'a' of item 1 is int64 \[2\]; that of item 0"),
        (Pairs(lambda row: (row + 0.5 if row > 2 else row,)), {"columns": ["a"]}, "'a' of item 3 is float32"),
        (Endless(), {"columns": ["a"]}, "a Endless has no length or no items"),
        ([], {"columns": ["a"]}, "there are no rows in it"),
    ],
)
def test_wrong_data_sets_are_refused(dataset, settings, message):
    with pytest.raises(ConfigError, match=message):
        make(dataset, **settings)


def test_wrong_runs_are_refused(project):
    with pytest.raises(RlrunError, match="had 10 rows, and has 3 now"):
        make({"x": [1, 2, 3]}).load_state_dict(make().state_dict())
    with pytest.raises(ConfigError, match="there is no environment whose spaces"):
        train(["algorithm=sac", "env=none"])
    with pytest.raises(ConfigError, match="dataset: a value is needed"):
        train(["algorithm=dqn", "env=bandit", "+with=offline"])


def test_items_larger_than_memory_are_refused(monkeypatch):
    monkeypatch.setattr(dataset, "main_memory", lambda: 6 * 24 * 2)
    assert len(make(Pairs(), columns=["label", "input"]).source) == 6
    monkeypatch.setattr(dataset, "main_memory", lambda: 6 * 24 * 2 - 1)
    with pytest.raises(ConfigError, match=r"its 6 items take .* GB of memory.*rlrun.memory.Lazy"):
        make(Pairs(), columns=["label", "input"])


ALGORITHM = """# @package _global_
# Fit a line
algorithm: {lr: 0.03, batch_size: 16}
networks:
  line: {_target_: torch.nn.Linear, in_features: 2, out_features: 1}
loader:
  _target_: rlrun.memory.DatasetLoader
  dataset: {_target_: my_line.points, seed: "${seed}"}
  batch: ${algorithm.batch_size}
  epochs: 20
  seed: ${seeds.memory}
callbacks:
  fit: {_target_: my_line.Fit, network: "${networks.line}", optimizer: "${optimizer}"}
"""
CODE = """
import numpy as np
from rlrun.callbacks import LossCallback

def points(seed):
    input = np.random.default_rng(seed).normal(size=(200, 2))
    return {"input": input, "output": input @ [2.0, -1.0] + 0.5}

class Fit(LossCallback):
    def loss(self, input, output):
        return (self.network(input)[:, 0] - output).square()
"""


def test_learning_needs_no_environment(project, write):
    write("conf/algorithm/line.yaml", ALGORITHM)
    write("my_line.py", CODE)
    sys.path.insert(0, str(project))
    result = train(["algorithm=line", "env=none", "checkpoint.every=100", "logger=[]"])
    network = result.trainer.callbacks["fit"].network
    torch.testing.assert_close(network.weight.detach(), torch.tensor([[2.0, -1.0]]), atol=0.01, rtol=0)
    assert (result.summary["env_steps"], result.summary["updates"], result.summary["evaluation"]) == (0, 260, None)
    assert result.run_dir.parent.name == "line-none"
    names = sorted(path.name for path in (result.run_dir / "checkpoints").glob("0*"))
    assert names == [f"{update:010d}-{update:010d}" for update in (100, 200, 260)]
