"""One data set in two parts: no row in both, shares of classes, whole episodes."""

import sys
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from rlrun.core.errors import ConfigError, MissingExtra
from rlrun.core.spaces import Box, Discrete
from rlrun.memory import Lazy, Split, Table, classes, digits
from rlrun.memory.formats import table_file
from rlrun.memory.loaders.dataset import DatasetLoader
from rlrun.memory.loaders.held_out import drawn, sprites

from .tables import episode

DATA = {"number": np.arange(100), "label": np.repeat([0, 1, 2], [60, 30, 10])}


def numbers(part, name="number"):
    return [value for batch in DatasetLoader(part, batch=7).once() for value in batch[name].tolist()]


@pytest.mark.parametrize("stratify", [None, "label"])
def test_every_row_is_in_one_part(stratify):
    split = Split(DATA, fraction=0.2, stratify=stratify)
    assert sorted(numbers(split.train) + numbers(split.held_out)) == [*range(100)]
    assert len(split.held_out) == 20


def test_strata_keep_their_shares():
    split = Split(DATA, fraction=0.2, stratify="label")
    assert Counter(numbers(split.held_out, "label")) == {0: 12, 1: 6, 2: 2}


def test_remainders_fill_the_total():
    kinds = np.repeat([0, 1, 2], [7, 6, 4])  # quotas 2.1, 1.8, 1.2: 5 in all, so the second gets one more
    assert Counter(kinds[drawn(kinds, 0.3, 0)].tolist()) == {0: 2, 1: 2, 2: 1}


def test_the_seed_alone_decides():
    held_out = [numbers(Split(DATA, fraction=0.2, seed=seed).held_out) for seed in (0, 0, 1)]
    torch.manual_seed(5)
    assert held_out[0] == held_out[1] == numbers(Split(DATA, fraction=0.2).held_out) != held_out[2]
    assert held_out[0] != [*range(20)]


def test_rows_of_an_episode_stay_together(tmp_path):
    table = Table(length=400, columns={"observation": {}, "reward": {}})
    for number in range(20):
        episode(table, 5, first=10 * number)
    table_file.store(table, tmp_path / "memory.zip")
    split = Split(str(tmp_path / "memory.zip"), fraction=0.25)
    train, held_out = (
        Counter(number // 10 for number in numbers(part, "observation")) for part in (split.train, split.held_out)
    )
    assert (set(train.values()), set(held_out.values()), len(held_out)) == ({5}, {5}, 5)
    assert not train.keys() & held_out.keys()


@pytest.mark.parametrize("around", [lambda data: data, Lazy])
def test_torch_data_sets_are_split(around):
    data = TensorDataset(torch.arange(100), torch.from_numpy(DATA["label"]))
    split = Split(around(data), fraction=0.2, columns=["number", "label"], stratify="label")
    assert sorted(numbers(split.train) + numbers(split.held_out)) == [*range(100)]
    assert Counter(numbers(split.held_out, "label")) == {0: 12, 1: 6, 2: 2}


def test_spaces_follow_from_the_columns(tmp_path):
    arrays = {"image": np.zeros((9, 8, 8), np.uint8), "label": np.array([0] * 8 + [4]), "state.x": np.zeros((9, 3))}
    np.savez(tmp_path / "data.npz", **arrays)
    spaces = Split(str(tmp_path / "data.npz"), fraction=0.3).spaces
    assert spaces["label"] == Discrete(5)  # the only row with the largest label counts in either part
    assert isinstance(spaces["image"], Box)
    assert spaces["image"].image
    assert spaces["state"].parts["x"].shape == (3,)


def test_digits_are_images_with_labels():
    data = digits()
    assert (data["observation"].shape, data["observation"].dtype, data["observation"].max()) == (
        (1797, 8, 8),
        "u1",
        255,
    )
    assert len(np.unique(data["observation"])) == 17
    assert np.bincount(data["label"]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_missing_scikit_learn_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"data=digits needs the package 'scikit-learn'.*\[digits\]"):
        digits()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"fraction": value}, "data.fraction: wanted a number between 0 and 1") for value in (0.0, 1.0, -1, 2)),
        ({"fraction": 0.001}, "0.001 of 100 rows leaves one of the parts empty"),
        ({"stratify": "lable"}, r"there is no column 'lable'; there are number, label \(did you mean 'label'"),
        ({"dataset": {"x": np.zeros((9, 2))}, "stratify": "x"}, "'x' is no column of whole numbers"),
        ({"dataset": {"x": np.zeros(9)}, "stratify": "x"}, "'x' is no column of whole numbers"),
        ({"dataset": {"x": {"y": np.zeros(9, int)}}, "stratify": "x"}, "'x' is no column of whole numbers"),
        ({"dataset": Split(DATA, fraction=0.5).train}, "it is a part of another split"),
        ({"dataset": {"x": np.array([0.0, np.nan, 1.0])}}, "column x: nan or inf in 1 row"),
        (
            {"dataset": {"x": {"y": np.array([[np.inf, np.nan], [1, 2], [-np.inf, 0]])}}},
            "x.y: nan or inf in 2 rows",
        ),
    ],
)
def test_wrong_splits_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Split(**{"dataset": DATA, "fraction": 0.2, **settings})


@pytest.mark.parametrize(
    ("labels", "column", "message"),
    [
        (np.arange(-1, 8), "label", "label: choices count from 0, the smallest is -1"),
        (np.zeros(9), "label", r"label: a classifier wants one integer a row, such as int64, and not Box\[\] float32"),
        (np.zeros((9, 1), int), "label", "label: a classifier wants one integer a row"),
        (np.zeros(9, int), "kind", "there is no column 'kind'; there are label"),
    ],
)
def test_wrong_labels_are_refused(labels, column, message):
    with pytest.raises(ConfigError, match=message):
        classes(Split({"label": labels}, fraction=0.3), column)


def test_countless_sprites_are_refused_at_once():
    """10**18 pictures fit nowhere: that is an error before the first is drawn."""
    with pytest.raises((ValueError, MemoryError)):
        sprites(rows=10**18)


def test_pictures_of_sprites_depend_on_the_seed():
    data = sprites(rows=30, seed=1)
    assert {name: (column.shape, column.dtype.name) for name, column in data.items()} == {
        "observation": ((30, 32, 32, 3), "uint8"),
        "segmentation": ((30, 32, 32), "uint8"),
    }
    for image, segmentation in zip(*data.values(), strict=True):
        colors = [np.unique(image[segmentation == part], axis=0) for part in range(3) if (segmentation == part).any()]
        assert [len(color) for color in colors] == [1] * len(colors)
        assert len(np.unique(np.concatenate(colors), axis=0)) == len(colors)  # sprites differ from each other
    np.testing.assert_array_equal(sprites(rows=10, seed=1)["observation"], data["observation"][:10])
    assert not np.array_equal(sprites(rows=30, seed=2)["segmentation"], data["segmentation"])
