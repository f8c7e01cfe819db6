"""Layouts of observations, as wrappers define them: axes of images and of stacked frames."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation

from rlrun.core import spaces as ours
from rlrun.core.errors import SpaceError
from rlrun.core.images import SIDE
from rlrun.core.spaces import FIRST
from rlrun.env.spaces import from_gymnasium
from rlrun.env.wrappers import FrameStack

AnyEnv = gymnasium.Env[Any, Any]
_LARGE = 4096  # bytes; below this, rebuilding stacks costs more than the memory saved


def observed(env: AnyEnv, place: str) -> ours.Space:
    """Return the observation space of an environment, with the layouts that its wrappers define.

    Raises:
        SpaceError: a part is of an unsupported kind; the message names `place`.
    """
    space, known = from_gymnasium(env.observation_space, place), _boxes(env)
    return ours.with_leaves(space, iter([known.get(path, leaf) for path, leaf in ours.leaves(space)]))


def _boxes(env: AnyEnv) -> dict[str, ours.Leaf]:
    """Return the Box parts by path; empty if the space is unsupported, so that a wrapper must change it first."""
    try:
        space = from_gymnasium(env.observation_space, "the observation space")
    except SpaceError:
        return {}
    boxes = {path: leaf for path, leaf in ours.leaves(space) if isinstance(leaf, ours.Box)}
    if not isinstance(env, gymnasium.Wrapper):
        return dict(boxes)
    frames = _boxes(env.env)
    return {path: _known(env, path, leaf, frames.get(path)) for path, leaf in boxes.items()}


def _known(env: AnyEnv, path: str, leaf: ours.Box, frame: ours.Leaf | None) -> ours.Box:
    """Return a part of a wrapper's observation with its layout, given the same part inside the wrapper."""
    frame = frame if isinstance(frame, ours.Box) else None
    axis: int | None = None
    if isinstance(env, FrameStack):
        count, axis = env.frames.maxlen or 1, env.joined.get(path)
    elif isinstance(env, FrameStackObservation):
        count, axis = int(env.stack_size), FIRST
    if axis == FIRST and len(leaf.shape) > 1 and leaf.shape == (count, *(frame.shape if frame else leaf.shape[1:])):
        return replace(leaf, layout=_stacked(leaf, frame), frame_axis=FIRST)
    if axis is not None and frame is not None:
        shape = [*frame.shape]
        shape[axis] *= count
        if leaf.shape == tuple(shape):
            return replace(leaf, layout=frame.settled_layout, frame_axis=axis)
    if frame is not None and frame.shape == leaf.shape:  # the wrapper keeps the axes
        return replace(leaf, layout=frame.layout)
    return leaf


def _stacked(stack: ours.Box, frame: ours.Box | None) -> str:
    """Return the layout of frames stacked along a new first axis; stacked vectors are a signal over time."""
    if frame is not None and frame.picture is not None:
        return "channels_first" if frame.picture.name == "gray" else frame.picture.name
    unknown = frame is not None and frame.layout == "auto"
    if unknown and stack.image and len(stack.shape) == 3 and min(stack.shape[1:]) >= SIDE:
        return "channels_first"  # of numbers of several bytes, only arrays of three axes are recognized as images
    return "channels_last" if len(stack.shape) == 2 else "vector"


def frames_of(env: AnyEnv) -> int:
    """Return the number of frames that an environment's outermost wrapper stacks in a large observation; else 1.

    A memory can store each of these frames once: a stack is the newest frames of the episode, the first one repeated
    before its beginning. Subclasses of the wrappers may do more than stack, so they count as 1.
    """
    if type(env) is FrameStack and env.keys is None and env.joined_along is None:
        count = env.frames.maxlen or 1
    elif type(env) is FrameStackObservation and env.padding_type == "reset":
        count = env.stack_size
    else:
        return 1
    space = env.observation_space
    size = int(np.prod(space.shape or ())) * np.dtype(space.dtype).itemsize if isinstance(space, Box) else 0
    return int(count) if size > _LARGE else 1
