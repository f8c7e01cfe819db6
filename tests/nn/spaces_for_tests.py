"""Spaces and random trees for the tests of the networks."""

import numpy as np
import torch

from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, leaves, leaves_of, tree_of


def box(*shape, low=-2.0, high=2.0, dtype="float32"):
    return Box(shape, np.full(shape, low), np.full(shape, high), dtype)


def image(*shape):
    return box(*shape, low=0, high=255, dtype="uint8")


def multi(*choices, start=0):
    return MultiDiscrete(np.array(choices), np.full(len(choices), start))


VECTOR = box(3)
MIXED = Composite({"move": box(2), "mode": Discrete(3), "parts": Composite({"0": multi(2, 4), "1": box(2, 2)})})

OBSERVATIONS = {
    "vector": (VECTOR, 3),
    "scalar": (box(), 1),
    "matrix": (box(2, 3), 6),
    "double": (box(3, dtype="float64"), 3),
    "discrete": (Discrete(5, start=2), 5),
    "multi": (multi(2, 3, start=1), 5),
    "binary": (multi(2, 2, 2), 6),
    "bytes": (image(7), 7),
    "dict": (Composite({"a": VECTOR, "b": Composite({"0": Discrete(4), "1": box()})}), 8),
    "pixels": (image(40, 36), 512),
    "pixels last": (image(40, 36, 3), 512),
    "pixels first": (image(4, 40, 36), 512),
    "small pixels": (image(10, 10, 4), 128),
    "camera and speed": (Composite({"camera": image(10, 10, 4), "speed": VECTOR}), 131),
}

ACTIONS = {
    "vector": box(2),
    "matrix": box(2, 2),
    "discrete": Discrete(3, start=5),
    "multi": multi(2, 3),
    "many": multi(*[3] * 6),
    "uneven": multi(5, 6, 7),
    "binary": multi(2, 2, 2),
    "mixed": MIXED,
    "pair": Composite({"0": Discrete(2), "1": Discrete(2)}),
}


def draw(space, *lead):
    """Draw a tree of tensors [*lead, …]: observations or policy actions; choices count from 0."""
    return tree_of(space, [draw_leaf(leaf, lead) for _, leaf in leaves(space)])


def draw_leaf(leaf, lead):
    if isinstance(leaf, Box):
        if leaf.dtype == "uint8":
            return torch.randint(0, 256, (*lead, *leaf.shape), dtype=torch.uint8)
        return torch.rand((*lead, *leaf.shape), dtype=getattr(torch, leaf.dtype)) * 2 - 1
    counts = torch.tensor(leaf.choices).reshape(leaf.shape)
    return (torch.rand((*lead, *leaf.shape)) * counts).long()


def same(space, left, right):
    """True where two trees hold equal tensors of equal type."""
    pairs = zip(leaves_of(space, left), leaves_of(space, right), strict=True)
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
