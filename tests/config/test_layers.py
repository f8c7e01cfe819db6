"""Trees of files are merged as OmegaConf merges them, or by it."""

import pytest
from omegaconf import OmegaConf

from rlrun.config.layers import merged_trees


@pytest.mark.parametrize(
    "trees",
    [
        ({"a": {"b": 1, "c": 2}, "d": 3}, {"e": 4, "a": {"c": "???", "b": [1]}}, {"d": {"f": {}}, "a": {}}),
        ({"a": {"b": 1}, "c": None, "d": "${a}"}, {"a": None, "c": {"e": 1}, "d": 2}, {"a": {"g": 1}, "c": "${a}"}),
        ({"a": [1, {"b": 2}]}, {"a": [3]}, {"a": "???", "b": "???"}),
    ],
)
def test_trees_are_merged_as_omegaconf_does(trees):
    together = OmegaConf.to_container(OmegaConf.merge(*trees))
    assert merged_trees([*trees]) == together
    assert [*merged_trees([*trees])] == [*together]  # in the same order


def test_a_layer_stays_as_it_is():
    first = {"a": {"b": 1}}
    merged_trees([first, {"a": {"b": 2}}])
    assert first == {"a": {"b": 1}}


@pytest.mark.parametrize("trees", [({"a": "${b}"}, {"a": {"c": 1}}), ({"a": [1]}, {"a": {"c": 1}}), ([1],)])
def test_what_omegaconf_decides_is_left_to_it(trees):
    assert merged_trees([*trees]) is None
