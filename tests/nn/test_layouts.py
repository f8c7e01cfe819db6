"""What each space becomes: an image with channels, a signal or a row of numbers."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box as Outer
from gymnasium.wrappers import FrameStackObservation, TransformObservation

from rlrun.core.errors import ConfigError
from rlrun.core.images import Picture
from rlrun.core.spaces import Box, Composite, Discrete, describe_layouts, laid_out
from rlrun.env.stacks import observed
from rlrun.env.wrappers import FrameStack
from rlrun.nn import Encoder


class Seen(gymnasium.Env):
    """Has an observation space."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape, dtype, low, high):
        self.observation_space = Outer(low, high, shape, np.dtype(dtype).type)


def ours(env, count):
    return FrameStack(env, count)


def theirs(env, count):
    return FrameStackObservation(env, count)


PIXELS, BITS, FLOATS = ("uint8", 0, 255), ("bool", 0, 1), ("float32", 0.0, 1.0)
TABLE = [  # shape of a frame, its kind, wrapper and count; what the observation becomes: layout, channels, sides
    ((84, 84), PIXELS, None, 1, ("gray", 1, (84, 84))),
    ((84, 84), PIXELS, ours, 4, ("channels_first", 4, (84, 84))),
    ((84, 84), PIXELS, theirs, 4, ("channels_first", 4, (84, 84))),
    ((10, 10), PIXELS, theirs, 10, ("channels_first", 10, (10, 10))),
    ((84, 84, 3), PIXELS, None, 1, ("channels_last", 3, (84, 84))),
    ((3, 84, 84), PIXELS, None, 1, ("channels_first", 3, (84, 84))),
    ((40, 40, 3), PIXELS, ours, 4, ("channels_last", 12, (40, 40))),
    ((40, 40, 3), PIXELS, theirs, 4, ("channels_last", 12, (40, 40))),
    ((3, 40, 40), PIXELS, ours, 4, ("channels_first", 12, (40, 40))),
    ((3, 40, 40), PIXELS, theirs, 4, ("channels_first", 12, (40, 40))),
    ((4, 40, 40, 3), PIXELS, None, 1, ("channels_last", 12, (40, 40))),  # stacked by the environment itself
    ((40, 40, 3, 4), PIXELS, None, 1, ("stack_last", 12, (40, 40))),
    ((10, 10, 4), BITS, None, 1, ("channels_last", 4, (10, 10))),  # MinAtar
    ((10, 10, 4), BITS, ours, 4, ("channels_last", 16, (10, 10))),
    ((10, 10, 4), BITS, theirs, 4, ("channels_last", 16, (10, 10))),
    ((4, 10, 10), BITS, ours, 4, ("channels_first", 16, (10, 10))),
    ((10, 10, 16), BITS, None, 1, ("channels_last", 16, (10, 10))),
    ((16, 10, 10), BITS, None, 1, ("channels_first", 16, (10, 10))),
    ((10, 12, 4), BITS, ours, 4, ("channels_last", 16, (10, 12))),  # no square shows the sides
    ((10, 10, 6), ("int8", -1, 1), None, 1, ("channels_last", 6, (10, 10))),
    ((64, 64, 1), ("uint16", 0, 65535), None, 1, ("channels_last", 1, (64, 64))),
    ((8, 8, 3), ("int32", -(2**31), 2**31 - 1), None, 1, ("vector",)),
    ((64, 64, 3), FLOATS, None, 1, ("channels_last", 3, (64, 64))),
    ((3, 64, 64), ("float32", 0.0, 255.0), None, 1, ("channels_first", 3, (64, 64))),
    ((64, 64, 3), FLOATS, theirs, 4, ("channels_last", 12, (64, 64))),
    ((10, 10), FLOATS, theirs, 10, ("channels_first", 10, (10, 10))),
    ((10, 10), ("int16", 0, 300), theirs, 4, ("channels_first", 4, (10, 10))),
    ((10, 10), ("int64", -5, 5), ours, 4, ("channels_first", 4, (10, 10))),
    ((10, 10), ("int16", -(2**15), 2**15 - 1), theirs, 4, ("vector",)),
    ((8, 4), FLOATS, theirs, 8, ("vector",)),  # its sides would be 8 × 4
    ((64, 64), FLOATS, None, 1, ("channels_last",)),  # two axes of floats are a signal
    ((64, 64, 3), ("float32", -1.0, 1.0), None, 1, ("vector",)),
    ((64, 64, 3), ("float32", -np.inf, np.inf), None, 1, ("vector",)),
    ((4, 64, 64, 3), FLOATS, None, 1, ("vector",)),  # floats want three axes
    ((7, 7, 3), FLOATS, None, 1, ("vector",)),
    ((7, 7, 3), PIXELS, None, 1, ("vector",)),
    ((7, 7, 3), PIXELS, theirs, 8, ("vector",)),
    ((8, 4), PIXELS, theirs, 8, ("vector",)),  # a stack of arrays that are no images
    ((1, 1, 3), PIXELS, None, 1, ("vector",)),
    ((2, 4, 40, 40, 3), PIXELS, None, 1, ("vector",)),  # five axes
    ((4, 3, 40, 40), PIXELS, None, 1, ("channels_first", 12, (40, 40))),
    ((1, 84, 84), PIXELS, None, 1, ("channels_first", 1, (84, 84))),
    ((8, 200, 3), PIXELS, None, 1, ("channels_last", 3, (8, 200))),
    ((32, 32, 3), ("int8", -128, 127), None, 1, ("channels_last", 3, (32, 32))),
    ((64, 64, 3), ("float64", 0.0, 1.0), None, 1, ("channels_last", 3, (64, 64))),
    ((8, 8, 8), FLOATS, None, 1, ("channels_last", 8, (8, 8))),
    ((128,), PIXELS, None, 1, ("vector",)),
    ((128,), PIXELS, theirs, 8, ("channels_last",)),  # a signal over 8 steps
    ((128,), PIXELS, ours, 8, ("channels_last",)),
    ((4,), ("float32", -np.inf, np.inf), theirs, 32, ("channels_last",)),
]


@pytest.mark.parametrize(("shape", "kind", "wrapper", "count", "expected"), TABLE)
def test_what_spaces_become(shape, kind, wrapper, count, expected):
    env = Seen(shape, *kind)
    leaf = observed(env if wrapper is None else wrapper(env, count), "env")
    assert isinstance(leaf, Box)
    picture = leaf.picture
    assert (leaf.settled_layout, *((picture.channels, picture.sides) if picture else ())) == expected
    encoder = Encoder(leaf)
    if picture is not None:
        assert encoder.images[0].convolutions[0].in_channels == expected[1]
    else:
        assert encoder.size == leaf.size


def test_bounds_that_differ_mark_the_channels():
    high = np.broadcast_to(np.uint8([10, 20, 30, 40] * 3), (12, 12, 12))
    boxes = [Box((12, 12, 12), np.zeros_like(bound), bound, "uint8") for bound in (high, np.moveaxis(high, -1, 0))]
    assert [box.settled_layout for box in boxes] == ["channels_last", "channels_first"]


@pytest.mark.parametrize("stack", [ours, theirs])
def test_wrappers_around_a_stack_keep_its_layout_and_others_end_it(stack):
    stacked = stack(Seen((10, 12, 4), "bool", 0, 1), 10)
    space = stacked.observation_space
    known = observed(stacked, "env").settled_layout
    shape = [2, *space.shape] if len(space.shape) == 3 else [*space.shape, 1]
    cast = TransformObservation(stacked, lambda seen: seen, Outer(0, 1, space.shape, np.uint8))
    assert (known, observed(cast, "env").settled_layout) == ("channels_last", "channels_last")
    other = TransformObservation(stacked, lambda seen: seen, Outer(0, 1, shape, np.uint8))
    assert observed(other, "env").layout == "auto"


def test_chosen_parts_of_a_dict_are_stacked():
    env = Seen((10, 10, 4), "bool", 0, 1)
    env.observation_space = gymnasium.spaces.Dict({"board": env.observation_space, "speed": Outer(-1, 1, (3,))})
    space = observed(FrameStack(env, 4, keys=["board"]), "env")
    assert describe_layouts(space) == [
        "board of 10 × 10 × 16: an image of 10 × 10 with 16 channels (channels_last; encoder.layout changes it)"
    ]
    both = observed(FrameStackObservation(env, 4), "env")
    assert [line.split(":")[0] for line in describe_layouts(both)] == ["board of 4 × 10 × 10 × 4", "speed of 4 × 3"]


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((6, 5), 0), ((6, 5, 2), 0), ((2, 6, 5), 1), ((3, 6, 5, 2), 1), ((3, 2, 6, 5), 2), ((6, 5, 2, 3), 0)],
)
def test_pictures_are_restored(shape, rows):
    picture, array = Picture(shape, rows), torch.rand(4, *shape)
    images = picture.channels_first(array)
    assert images.shape == (4, picture.channels, 6, 5)
    assert torch.equal(picture.restored(images), array)
    if len(shape) == 4 and rows:  # stacks are in the order of frames joined along their channels
        frames = [Picture(shape[1:], rows - 1).channels_first(frame) for frame in array.unbind(1)]
        assert torch.equal(images, torch.cat(frames, 1))


CUBE = Box((10, 10, 10), np.zeros((10, 10, 10)), np.ones((10, 10, 10)), "bool")
CAMERA = Composite(
    {"camera": CUBE, "gray": Box((9, 9), np.zeros((9, 9)), np.ones((9, 9)), "bool"), "mode": Discrete(2)}
)


@pytest.mark.parametrize(
    ("space", "layout", "expected"),
    [
        (CUBE, "auto", "channels_last"),
        (CUBE, "channels_first", "channels_first"),
        (CUBE, "vector", "vector"),
        (CUBE, {"": "channels_first"}, "channels_first"),
        (CAMERA, "channels_first", "channels_first gray"),
        (CAMERA, "vector", "vector vector"),
        (CAMERA, "gray", "channels_last gray"),
        (CAMERA, {"gray": "channels_first"}, "channels_last channels_first"),
    ],
)
def test_a_layout_may_be_said(space, layout, expected):
    known = laid_out(space, layout)
    boxes = [known] if isinstance(known, Box) else [part for part in known.parts.values() if isinstance(part, Box)]
    assert " ".join(box.settled_layout for box in boxes) == expected
    Encoder(space, layout=layout)


@pytest.mark.parametrize(
    ("space", "layout", "message"),
    [
        (CUBE, "last", "encoder.layout: wanted one of auto, vector, gray, .*, got 'last'"),
        (CUBE, "gray", r"no part of the observation can be gray: Box\[10, 10, 10\] bool"),
        (CUBE, "stack_last", "no part of the observation can be stack_last"),
        (CAMERA, {"camra": "vector"}, r"no part 'camra' .*did you mean 'camera'\?"),
        (CAMERA, {"mode": "vector"}, "no part 'mode' with numbers"),
        (CAMERA, {"gray": "stack_last"}, r"gray Box\[9, 9\] bool cannot be stack_last"),
        (CAMERA, {"gray": 3}, "encoder.layout.gray: wanted one of"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(space, layout, message):
    with pytest.raises(ConfigError, match=message):
        laid_out(space, layout)
