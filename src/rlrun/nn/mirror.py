"""Mirror images of observations and actions, which exchange left and right.

M_o(M_o(s)) = s,  M_a(M_a(a)) = a
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError, did_you_mean, shown
from rlrun.core.spaces import (
    ACTION_MASK,
    UNSEEN,
    Box,
    Composite,
    Discrete,
    Leaf,
    Space,
    Spaces,
    describe,
    leaves,
    leaves_of,
    tree_of,
)
from rlrun.core.typing import Array, Tree
from rlrun.nn.actions import ActionCodec

FORMS = "{order: […], sign: […]}, flip, same, or a function {_target_: …, _partial_: true}"


class Mirror(nn.Module):
    """The mirror maps of observations and of actions, checked to be their own inverses.

    A leaf is mirrored by one of these:

        {order, sign}  entry i of the image is sign[i] times entry order[i], along the last axis; order of a `Discrete`
                       leaf has the image of each choice. Without order or sign entries keep their place, or sign.
        flip           an image, right and left exchanged
        same           no change
        a function     of tensors [..., *shape], or of a whole part of a dict

    A dict space has one for each part, by its name. The flags of an action mask follow their actions.

    Args:
        spaces: of the environment; Box actions lie in [-1, 1].
        observation: how observations are mirrored; None = unknown.
        action: how actions are mirrored.
        place: of both in the config.

    Raises:
        ConfigError: a map does not fit its space, or is not its own inverse; naming the key and the entry.
    """

    def __init__(self, spaces: Spaces, *, observation: Any, action: Any, place: str = "symmetry") -> None:
        super().__init__()
        self.place = place
        self._action = _part(f"{place}.action", spaces.action, action)
        _require_inverse(f"{place}.action", spaces.action, self._action)
        self.space = spaces.action
        space, self._observation = spaces.observation, None
        if observation is None:
            return
        self._observation = _part(f"{place}.observation", space, observation, unseen=UNSEEN)
        if isinstance(space, Composite) and ACTION_MASK in space.parts:
            codec = ActionCodec(spaces, joint_limit=0)
            self._observation.change(ACTION_MASK, _Order(self.choices(codec), None))
        _require_inverse(f"{place}.observation", space, self._observation)

    def observation(self, tree: Tree) -> Tree:
        """Return the mirror image M_o of observations [...]."""
        assert self._observation is not None
        return self._observation(tree)

    def require_observation(self) -> None:
        """Raise a ConfigError if M_o is unknown."""
        if self._observation is None:
            raise ConfigError(f"{self.place}.observation: wanted how observations are mirrored: {FORMS}")

    def action(self, tree: Tree) -> Tree:
        """Return the mirror image M_a of actions [...]."""
        return self._action(tree)

    def numbers(self, codec: ActionCodec, c: Tensor) -> Tensor:
        """Return the mirror image of the numbers c [..., A] of actions."""
        k = c.new_zeros((*c.shape[:-1], len(codec.branches)), dtype=torch.int64) if codec.discrete else None
        mirrored = codec.split(self._action(codec.join(c, k)))[0]
        assert mirrored is not None
        return mirrored

    @torch.no_grad()
    def choices(self, codec: ActionCodec) -> Tensor:
        """Return a permutation [width] of choices: `values[..., permutation]` are the values of the mirrored choices.

        Raises:
            ConfigError: the image of a decision depends on several decisions.
        """
        offsets = np.cumsum([0, *codec.branches[:-1]])
        permutation = torch.full((codec.width,), -1)
        for branch, count in enumerate(codec.branches):
            k = torch.zeros(count, len(codec.branches), dtype=torch.int64)
            k[:, branch] = torch.arange(count)
            c = torch.zeros(count, codec.continuous) if codec.continuous else None
            image = codec.choices(self._action(codec.join(c, k)))
            varies = (image != image[:1]).any(0).nonzero().flatten().tolist() or [branch]
            to = slice(offsets[varies[0]], offsets[varies[0]] + count)
            if len(varies) > 1 or codec.branches[varies[0]] != count or bool((permutation[to] >= 0).any()):
                raise ConfigError(f"{self.place}.action: the image of decision {branch} is not that of one decision")
            permutation[to.start + image[:, varies[0]]] = torch.arange(count) + int(offsets[branch])
        return permutation


class _Order(nn.Module):
    """Entry i of the last axis becomes sign[i] times entry order[i]."""

    order: Tensor
    sign: Tensor | None

    def __init__(self, order: Tensor, sign: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("sign", sign, persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        image = value.index_select(-1, self.order)
        return image if self.sign is None else image * self.sign


class _Choices(_Order):
    """A choice becomes order[choice]."""

    def forward(self, value: Tensor) -> Tensor:
        return self.order[value.long()].to(value.dtype)


class _Flip(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, value: Tensor) -> Tensor:
        return value.flip(self.axis)


class _Own(nn.Module):
    def __init__(self, function: Callable[[Tree], Tree]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tree: Tree) -> Tree:
        return self.function(tree)


class _Parts(nn.Module):
    """A map of a dict, with a map for each part."""

    def __init__(self, maps: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names = [*maps]
        self.maps = nn.ModuleList(maps.values())

    def change(self, name: str, new: nn.Module) -> None:
        self.maps[self.names.index(name)] = new

    def forward(self, tree: Tree) -> Tree:
        return dict(tree) | {name: part(tree[name]) for name, part in zip(self.names, self.maps, strict=True)}


def _part(place: str, space: Space, given: Any, unseen: Sequence[str] = ()) -> Any:
    """Return the map of a space as a module; parts that are `unseen` stay as they are."""
    if callable(given):
        return _Own(given)
    if not isinstance(space, Composite):
        return _leaf(place, space, given)
    known = [name for name in space.parts if name not in unseen]
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place}: wanted a map for each of {', '.join(known)}, or a function; got {shown(given)}")
    for name in given:
        if name not in known:
            raise ConfigError(f"{place}.{name}: there is {', '.join(known)}{did_you_mean(str(name), known)}")
    for name in known:
        if name not in given:
            raise ConfigError(f"{place}.{name}: wanted how this part is mirrored; same keeps it")
    maps = {name: _part(f"{place}.{name}", space.parts[name], given[name]) for name in known}
    return _Parts(maps | {name: nn.Identity() for name in space.parts if name in unseen})


def _leaf(place: str, leaf: Leaf, given: Any) -> nn.Module:
    if given == "same":
        return nn.Identity()
    if given == "flip":
        if not isinstance(leaf, Box) or leaf.picture is None:
            raise ConfigError(f"{place}: flip is for images, and this is {describe(leaf)}")
        return _Flip(leaf.picture.rows + 1 - len(leaf.shape))
    if not isinstance(given, Mapping) or not given or given.keys() - {"order", "sign"}:
        raise ConfigError(f"{place}: wanted {FORMS}; got {shown(given)}")
    size = leaf.size if isinstance(leaf, Discrete) else leaf.shape[-1] if leaf.shape else 0
    if not size:
        raise ConfigError(f"{place}: {describe(leaf)} has no axis of entries; a function mirrors it")
    order = _entries(f"{place}.order", given.get("order", [*range(size)]), size, leaf)
    sign = _entries(f"{place}.sign", given.get("sign", [1] * size), size, leaf)
    for i, partner in enumerate(order):
        if not 0 <= partner < size or partner in order[:i]:
            raise ConfigError(f"{place}.order[{i}]: wanted each of 0 to {size - 1} once, got {partner}")
    for i, partner in enumerate(order):
        if order[partner] != i:
            back = f"{i} becomes {partner}, and {partner} becomes {order[partner]}, not {i}"
            raise ConfigError(f"{place}.order[{i}]: {back}; a mirror is its own inverse")
        if sign[i] not in (1, -1):
            raise ConfigError(f"{place}.sign[{i}]: wanted 1 or -1, got {sign[i]}")
        if sign[i] != sign[partner]:
            raise ConfigError(f"{place}.sign[{i}]: {sign[i]}, but {partner} has {sign[partner]}; wanted equal ones")
        if sign[i] < 0 and not (isinstance(leaf, Box) and np.dtype(leaf.dtype).kind in "fi"):
            raise ConfigError(f"{place}.sign[{i}]: {describe(leaf)} has no negative numbers; a function mirrors it")
    indices = torch.tensor(order)
    if isinstance(leaf, Discrete):
        return _Choices(indices, None)
    signs = torch.tensor(sign, dtype=getattr(torch, leaf.dtype)) if min(sign) < 0 else None
    return _Order(indices, signs)


def _entries(place: str, given: Any, size: int, leaf: Leaf) -> list[int]:
    """Return a list of whole numbers, one for each entry of a leaf."""
    whole = isinstance(given, Sequence) and all(type(entry) is int for entry in given)
    if not whole or len(given) != size:
        got = f"{len(given)} of them" if whole else shown(given)
        raise ConfigError(f"{place}: wanted {size} whole numbers, one for each entry of {describe(leaf)}; got {got}")
    return [*given]


def _require_inverse(place: str, space: Space, function: Callable[[Tree], Tree]) -> None:
    """Refuse a map that is not its own inverse on random values of the space."""
    generator = np.random.default_rng(0)
    named = [*leaves(space)]
    values = tree_of(space, [torch.as_tensor(_random(generator, leaf)) for _, leaf in named])
    try:
        with torch.no_grad():
            once = leaves_of(space, function(values))
            again = leaves_of(space, function(tree_of(space, once)))
    except Exception as error:  # a function of one's own may raise anything
        raise ConfigError(f"{place}: {type(error).__name__}: {error}") from error
    for (path, leaf), value, image, twice in zip(named, leaves_of(space, values), once, again, strict=True):
        where = f"{place}.{path}" if path else place
        if not isinstance(image, Tensor) or (image.shape, image.dtype) != (value.shape, value.dtype):
            got = f"{[*image.shape]} {image.dtype}" if isinstance(image, Tensor) else type(image).__name__
            raise ConfigError(f"{where}: the image of {describe(leaf)} [{len(value)} rows] is {got}")
        count = leaf.size if isinstance(leaf, Discrete) else None
        if count is not None and bool(((image < 0) | (image >= count)).any()):
            raise ConfigError(
                f"{where}: a choice becomes {int(image.min())} to {int(image.max())}; wanted 0 to {count - 1}"
            )
        before, after = (part.reshape(len(value), -1).double() for part in (value, twice))
        wrong = ((after - before).abs() > 1e-4).nonzero().tolist()
        if wrong:
            came = f"{float(before[*wrong[0]]):.3g} came back as {float(after[*wrong[0]]):.3g}"
            raise ConfigError(f"{where}: entry {wrong[0][1]} mirrored twice, {came}; a mirror is its own inverse")


def _random(generator: np.random.Generator, leaf: Leaf) -> Array:
    """Return random values [8, *shape] of a leaf; numbers lie in [-1, 1]."""
    shape = (8, *leaf.shape)
    if not isinstance(leaf, Box):
        choices = np.array(leaf.choices).reshape(leaf.shape)
        return generator.integers(0, choices, shape).astype(leaf.dtype)
    if np.dtype(leaf.dtype).kind == "f":
        return generator.uniform(-1.0, 1.0, shape).astype(leaf.dtype)
    return generator.integers(0, 2, shape).astype(leaf.dtype)
