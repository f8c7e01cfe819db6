from __future__ import annotations

import torch

from rlrun.core.spaces import Composite, Discrete, leaves, leaves_of, tree_of

SPACE = Composite({"b": Discrete(2), "a": Composite({"0": Discrete(3), "1": Discrete(4)})})
TREE = {"b": torch.tensor(1), "a": {"0": torch.tensor(2), "1": torch.tensor(3)}}


def test_tensors_come_in_the_order_of_the_leaves():
    assert [path for path, _ in leaves(SPACE)] == ["b", "a.0", "a.1"]
    assert [int(leaf) for leaf in leaves_of(SPACE, TREE)] == [1, 2, 3]


def test_tree_comes_back():
    assert tree_of(SPACE, leaves_of(SPACE, TREE)) == TREE
