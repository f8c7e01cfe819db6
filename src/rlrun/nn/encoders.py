"""Encoders: from observation trees of any space to features, and the layers below the heads of a network."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from rlrun.compile.calls import part_of
from rlrun.core.errors import ConfigError, require_at_least
from rlrun.core.spaces import (
    Box,
    Discrete,
    Leaf,
    Space,
    Spaces,
    describe,
    laid_out,
    leaves,
    leaves_of,
    tree_of,
    with_parts,
    without_mask,
)
from rlrun.core.typing import Tree
from rlrun.nn.convolutions import Convolutions, ResNet
from rlrun.nn.mlp import MLP, Activation, Initializer, activation_module, dense, initializer, outputs_of, probing, zeros
from rlrun.nn.own import Layers, OwnLayers, require_outputs
from rlrun.nn.precision import LARGE, products
from rlrun.nn.recurrent import Kind, StatefulEncoder, core_of, encoded, has_state, present
from rlrun.ops.distributions import one_hot

Recipe = Callable[..., nn.Module]
NATURE: dict[str, Any] = {"channels": (32, 64, 64), "kernels": (8, 4, 3), "strides": (4, 2, 1)}  # from 36 pixels a side
SMALL: dict[str, Any] = {"channels": (32, 64), "kernels": (3, 3), "strides": (1, 2), "padding": 1}
KINDS = {"image": "an image (see encoder.layout)", "signal": "a signal (numbers in two dimensions)"}


def flatten(space: Space, tree: Tree) -> Tensor:
    """Return an observation tree as one row of numbers: [B, …] leaves -> [B, space.size].

    Choices become one-hot, whole numbers lie in [0, 1] by their bounds; several leading dimensions are kept.
    """
    parts = [vector(leaf, value) for (_, leaf), value in zip(leaves(space), leaves_of(space, tree), strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def vector(leaf: Leaf, value: Tensor) -> Tensor:
    """Return one leaf as a row of numbers; its choices count from 0, not from `start`: [..., *shape] -> [..., size]."""
    lead = value.shape[: value.dim() - len(leaf.shape)]
    if isinstance(leaf, Box):
        scaled = numbers(leaf, value)
        return scaled if len(leaf.shape) == 1 else scaled.reshape(*lead, leaf.size)
    if isinstance(leaf, Discrete):
        return one_hot(value.unsqueeze(-1), leaf.choices)
    return one_hot(value.reshape(*lead, len(leaf.choices)), leaf.choices)


def numbers(leaf: Box, value: Tensor) -> Tensor:
    """Return a Box as float32 network input [..., *shape]: whole numbers scaled to [0, 1] by their bounds, if useful.

    Floating numbers stay as they are, also those that an adaptor made of whole ones.
    """
    if value.is_floating_point():
        return value.float()
    first, factor = leaf.unit_range
    if isinstance(first, int):
        scaled = (value.long() - first if first else value).float()
        return scaled if factor == 1.0 else scaled.mul_(factor)
    first, factor = (torch.as_tensor(array, device=value.device) for array in (first, factor))
    return (value.long() - first).float() * factor


class Encoder(nn.Module):
    """The encoder of any space: observations to features [B, size] or [B, T, size].

    A plain vector passes unchanged, images go through a stack of convolutions, other leaves are flattened. Whole
    numbers are scaled to [0, 1] first. The results of all leaves are concatenated. `size` is the width of the result.

    Args:
        spaces: of the environment, or of observations.
        leaves: paths of the parts of observations that the network sees; None = all but an action mask.
        images: recipe of the layers over images [B, C, H, W] in [0, 1]; None = `NATURE` or `SMALL`, by their size.
        signals: recipe of layers over signals [B, C, L], non-image parts of two dimensions; None = flattened.
        features: width of the dense layer behind either; None = none, auto = 512 or 128, by the size of an image.
        norm: recipe of a layer behind the dense one, such as `torch.nn.BatchNorm1d`; it gets the width. None = none.
        output_activation: behind both; None = `activation`.
        layout: which axes of images have channels, as `rlrun.core.spaces.laid_out` takes it; auto = as the spaces say.
        activation, init: of the layers. A recipe gets `inputs`, channels, and `activation`, if it takes these.

    Raises:
        ConfigError: layers for images or signals have no such part, or it is too small for them.
        SpaceError: a name in `leaves` is unknown.
    """

    def __init__(
        self,
        spaces: Spaces | Space,
        *,
        leaves: Sequence[str] | None = None,
        images: Recipe | None = None,
        signals: Recipe | None = None,
        features: int | Literal["auto"] | None = "auto",
        norm: Recipe | None = None,
        output_activation: Activation | None = None,
        layout: str | Mapping[str, str] = "auto",
        activation: Activation = "relu",
        init: str | Initializer = "default",
    ) -> None:
        super().__init__()
        self.space, self.parts = _seen(spaces, leaves, layout)
        recipes = {"image": images, "signal": signals}
        kinds = [_kind(leaf) for leaf in self.parts]
        for kind, recipe in recipes.items():
            if recipe is not None and kind not in kinds:
                place = f"encoder.{kind}s: no part of the observation is"
                raise ConfigError(f"{place} {KINDS[kind]}: {describe(self.space)}; encoder=auto fits all")
        require_at_least("encoder.features", features if isinstance(features, int) else 1, 1)
        layers: dict[str, Any] = {"features": features, "norm": norm, "activation": activation, "init": init}
        layers["output_activation"] = output_activation
        self.images = nn.ModuleList(
            ImageEncoder(leaf, recipe=recipes[kind], **layers)
            if isinstance(leaf, Box) and (kind == "image" or (kind == "signal" and signals is not None))
            else nn.Identity()
            for leaf, kind in zip(self.parts, kinds, strict=True)
        )
        sizes = [part.size for part in self.parts]
        self.size = sum(
            image.size if isinstance(image, ImageEncoder) else size
            for image, size in zip(self.images, sizes, strict=True)
        )
        # True if the observation already is the row of numbers
        self.plain = isinstance(self.space, Box) and len(self.space.shape) == 1 and self.space.dtype == "float32"

    def forward(self, observation: Tree) -> Tensor:
        observation = present(observation)
        if self.plain:
            return observation  # type: ignore[no-any-return]
        parts = [
            image(value) if isinstance(image, ImageEncoder) else vector(leaf, value)
            for leaf, image, value in zip(self.parts, self.images, leaves_of(self.space, observation), strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _seen(
    spaces: Spaces | Space, names: Sequence[str] | None, layout: str | Mapping[str, str]
) -> tuple[Space, list[Leaf]]:
    """Return the part of observations that a network sees, and its leaves."""
    space = laid_out(without_mask(spaces.observation if isinstance(spaces, Spaces) else spaces), layout)
    if names is not None:
        space = with_parts(space, names, place="encoder.leaves")
    return space, [leaf for _, leaf in leaves(space)]


def _kind(leaf: Leaf) -> str:
    if not isinstance(leaf, Box):
        return "choices"
    return "image" if leaf.image else "signal" if leaf.settled_layout != "vector" else "numbers"


def from_recipe(recipe: Recipe, **offered: Any) -> nn.Module:
    """Return the module of a recipe, called with those offered arguments that it accepts and that are not bound yet."""
    accepted = inspect.signature(recipe).parameters
    bound = getattr(recipe, "keywords", {})
    return recipe(**{name: value for name, value in offered.items() if name in accepted and name not in bound})


def wants(recipe: Recipe, name: str) -> bool:
    """Return whether a recipe has a required parameter of this name."""
    parameter = inspect.signature(recipe).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


class Encoded(nn.Module):
    """A network that reads observations through its `encoder`."""

    def use_encoder(
        self, encoder: nn.Module | Recipe | None, spaces: Spaces | Space, *, behind: bool = False, **options: Any
    ) -> int:
        """Set the encoder, and return its number of features.

        Args:
            encoder: None = an `Encoder`. A recipe makes one for this network; it gets `spaces` and the options, if it
                takes these. A module is used as it is. Either may be any module from observations to features [B, …],
                or one with a state, as `StatefulEncoder` takes it.
            spaces: of the environment, or of observations.
            behind: its part of an observation's state is the last one, in place of the first.
            options: `activation` and `init`.

        Raises:
            ConfigError: the encoder is neither a module nor a recipe, or does not fit the observations.
        """
        space = self.read(spaces)
        recipe = Encoder if encoder is None else encoder
        if not callable(recipe):
            raise ConfigError(f"encoder: wanted a module of torch or a recipe of one, got {encoder!r}")
        try:
            built: Any = recipe if isinstance(recipe, nn.Module) else from_recipe(recipe, spaces=spaces, **options)
        except TypeError as error:
            raise ConfigError(f"encoder: {error}") from error
        place = f"encoder of {describe(self.observed)}"
        known = Encoder | DetachedEncoder | Trunk | StatefulEncoder
        if getattr(built, "state_size", 0) and not isinstance(built, known):
            built = StatefulEncoder(built, space, place=place)
        if isinstance(built, Trunk | StatefulEncoder):
            built.behind = behind
        self.encoder: Any = built
        # True if it takes observations [B, …] only, as any module of a user does
        self.by_rows = not isinstance(built, known)
        self.plain = isinstance(built, Encoder) and built.plain
        if isinstance(built, DetachedEncoder):
            built.require(self.observed)
        self.encoded: int = outputs_of(built, self._rows(zeros(space))[0], place=place) if self.by_rows else built.size
        return self.encoded

    def read(self, spaces: Spaces | Space) -> Space:
        """Set the part of observations that the network reads, all but an action mask; return the whole space."""
        space = spaces.observation if isinstance(spaces, Spaces) else spaces
        self.observed = without_mask(space)
        self._alone = self.observed is not space and len([*leaves(self.observed)]) == 1
        return space

    def use_layers(
        self,
        encoder: nn.Module | Recipe | None,
        spaces: Spaces | Space,
        hidden: Sequence[int],
        *,
        core: Kind | None = None,
        core_size: int = 64,
        layer_norm: bool = False,
        behind: bool = False,
        **options: Any,
    ) -> tuple[int, Sequence[int]]:
        """Set the encoder as `use_encoder` does; return its number of features, and the widths of the layers behind it.

        core: None; or gru or lstm: all layers but the last and a recurrent one of this size are part of the encoder.
        """
        if core is not None:
            layers = {"layer_norm": layer_norm, "core": core, "core_size": core_size, **options}
            encoder, hidden = Trunk(spaces, hidden=hidden[:-1], encoder=encoder, **layers), hidden[-1:]
        return self.use_encoder(encoder, spaces, behind=behind, **options), hidden

    def use_own(
        self,
        layers: Layers,
        spaces: Spaces | Space,
        wanted: dict[int, str],
        *,
        behind: int | None = None,
        encoder: Any = None,
        core: Kind | None = None,
    ) -> int:
        """Use a module of one's own, from observations to outputs, as the encoder; return its number of outputs.

        Args:
            layers: the module or a recipe of it.
            spaces: of the environment, or of observations.
            wanted: accepted number of outputs -> its meaning, for messages.
            behind: as `OwnLayers` takes it.
            encoder, core: options that must be unset beside such a module.

        Raises:
            ConfigError: the module gives another number of outputs, or one of the options is set.
        """
        require_alone(encoder, core)
        outputs = self.use_encoder(OwnLayers(layers, behind=behind), spaces)
        with probing(self):  # rows and outputs differ in number, so that swapping them is noticed
            self.encode(zeros(self.read(spaces), outputs + 1))
        require_outputs(outputs, wanted, layers)
        return outputs

    def encode(self, observation: Tree) -> Tensor:
        """Return the features [..., F] of observations [...]."""
        if not self.by_rows:
            return present(observation) if self.plain else self.encoder(observation)  # type: ignore[no-any-return]
        rows, lead = self._rows(present(observation))
        features: Tensor = self.encoder(rows)
        return features.reshape(*lead, self.encoded)

    def _rows(self, observation: Tree) -> tuple[Tree, torch.Size]:
        """Return observations [..., *shape] as rows [B, *shape] without an action mask, and their leading sizes."""
        values = leaves_of(self.observed, observation)
        shapes = [leaf.shape for _, leaf in leaves(self.observed)]
        lead = values[0].shape[: values[0].dim() - len(shapes[0])]
        rows = [value.reshape(-1, *shape) for value, shape in zip(values, shapes, strict=True)]
        return rows[0] if self._alone else tree_of(self.observed, rows), lead


def require_alone(encoder: Any, core: Kind | None) -> None:
    """Refuse options beside a module of one's own, with a ConfigError."""
    if not (encoder is None or (isinstance(encoder, partial) and (encoder.func, encoder.keywords) == (Encoder, {}))):
        raise ConfigError("a network of your own reads observations by itself; remove encoder=…")
    if core is not None:
        raise ConfigError("a network of your own has no recurrent layer here; remove algorithm.recurrent")


class DetachedEncoder(nn.Module):
    """The encoder of another network, such as critics, without gradients: that network alone trains it.

    Args:
        network: owner of the encoder.

    Raises:
        ConfigError: the network has no encoder.
    """

    def __init__(self, network: Encoded) -> None:
        super().__init__()
        if not isinstance(network, Encoded) or isinstance(network.encoder, OwnLayers | nn.Identity):
            raise ConfigError(f"a {type(network).__name__} has no encoder to share")
        self._borrowed = (network,)  # in a tuple, so that its parameters do not count as this network's
        self.state_size: int = getattr(network.encoder, "state_size", 0)

    @property
    def size(self) -> int:
        """Number of features."""
        return self._borrowed[0].encoded

    def require(self, space: Space) -> None:
        """Refuse a network whose observations differ, with a ConfigError."""
        if describe(space) != describe(read := self._borrowed[0].observed):
            raise ConfigError(
                f"the shared encoder reads {describe(read)}, but this network {describe(space)}; it wants its own"
            )

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the encoder, too."""
        self._borrowed[0].encoder.train(mode)
        return super().train(mode)

    def forward(self, observation: Tree) -> Tensor:
        return self._borrowed[0].encode(observation).detach()


class EncodedMLP(Encoded):
    """Dense layers behind an encoder: from observations to [B, outputs].

    Args:
        spaces: of the environment.
        outputs: size of the result.
        encoder: as `Encoded` takes it.
        hidden, activation, layer_norm, init, output_gain, bias, output_bias, output_norm, output_activation: of the
            layers, as `MLP` takes them.
        core, core_size: of a recurrent layer before the last of them; see `Encoded.use_layers`.
        layers: a module of your own in place of encoder and layers, or a recipe of it.
    """

    meaning = "numbers"  # of the outputs, for messages
    is_pair = False  # a module of one's own may give both halves as a tuple

    def __init__(
        self,
        spaces: Spaces | Space,
        outputs: int = 1,
        *,
        layers: Layers | None = None,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        init: str | Initializer = "default",
        output_gain: float | None = None,
        bias: bool = True,
        output_bias: bool = True,
        output_norm: bool = False,
        output_activation: Activation | None = None,
        encoder: nn.Module | Recipe | None = None,
        core: Kind | None = None,
        core_size: int = 64,
    ) -> None:
        super().__init__()
        if layers is not None:
            behind = outputs // 2 if self.is_pair else None
            self.use_own(layers, spaces, {outputs: self.meaning}, behind=behind, encoder=encoder, core=core)
            self.layers: nn.Module = nn.Identity()
            return
        options: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm, "init": init}
        features, hidden = self.use_layers(encoder, spaces, hidden, core=core, core_size=core_size, **options)
        options |= {"output_bias": output_bias, "output_norm": output_norm, "output_activation": output_activation}
        self.layers = MLP(features, outputs, hidden=hidden, output_gain=output_gain, bias=bias, **options)

    def forward(self, observation: Tree) -> Any:
        return part_of(self, "layers")(self.encode(observation))


class ImageEncoder(nn.Module):
    """Convolutions and one dense layer over the pixels of an image, or over signals.

    Args:
        leaf: an image; or a signal, [..., L, C] or [..., C, L].
        recipe, features, norm, output_activation, activation, init: as `Encoder` takes them.

    Raises:
        ConfigError: the image or signal is too small for these layers.
    """

    def __init__(
        self,
        leaf: Box,
        *,
        recipe: Recipe | None = None,
        features: int | Literal["auto"] | None = "auto",
        norm: Recipe | None = None,
        output_activation: Activation | None = None,
        activation: Activation = "relu",
        init: str | Initializer = "default",
    ) -> None:
        super().__init__()
        self.leaf = leaf
        picture = self._picture(torch.zeros(2, *leaf.shape))
        large = min(picture.shape[2:]) >= 36
        if recipe is None:
            recipe = partial(Convolutions, **(NATURE if large else SMALL))
        self.convolutions: Any = from_recipe(recipe, inputs=picture.shape[1], activation=activation)
        wide = outputs_of(self.convolutions, picture, place=f"encoder of {describe(leaf)} (encoder=auto fits)")
        width = (512 if large else 128) if features == "auto" else features
        self.size = wide if width is None else width
        behind = activation_module(activation if output_activation is None else output_activation)
        normed = [] if norm is None or width is None else [norm(width)]
        self.dense = nn.Sequential(*([] if width is None else [nn.Linear(wide, width), *normed, behind]))
        if isinstance(self.convolutions, Convolutions | ResNet):  # a user's module initializes itself
            self.convolutions.apply(initializer(init))
        self.dense.apply(initializer(init))

    def _picture(self, pixels: Tensor) -> Tensor:
        """Return pixels as [B, C, H, W], a signal as [B, C, L]."""
        flat = numbers(self.leaf, pixels).reshape(-1, *self.leaf.shape)
        if self.leaf.picture is not None:
            return self.leaf.picture.channels_first(flat)  # type: ignore[no-any-return]
        return flat.movedim(-1, 1) if self.leaf.settled_layout == "channels_last" else flat

    def forward(self, pixels: Tensor) -> Tensor:
        picture = self._picture(pixels)
        lead = pixels.shape[: pixels.dim() - len(self.leaf.shape)]
        with products(picture, LARGE):  # counts as large, since a filter is applied at many places
            features = self.dense(self.convolutions(picture).flatten(1))
        return features.to(picture.dtype).reshape(*lead, self.size)  # type: ignore[no-any-return]


class Trunk(Encoded):
    """An encoder and dense layers: observation trees [B, …] or [B, T, …] to features [B, size] or [B, T, size].

    `leaves` are those of its encoder. With a `core` a recurrent layer follows. Its state is a row of `state_size`
    numbers, 0 without a core; see `rlrun.nn.recurrent.encoded`. It may be the encoder of networks without a state of
    their own.

    Raises:
        ConfigError: its encoder has a state already.
    """

    def __init__(
        self,
        spaces: Spaces | Space,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        init: str | Initializer = "orthogonal",
        core: Kind | None = None,
        core_size: int = 64,
        encoder: nn.Module | Recipe | None = None,
        leaves: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if leaves is not None:
            encoder = partial(Encoder if encoder is None else encoder, leaves=leaves)
        features = self.use_encoder(encoder, spaces, init=init)
        if getattr(self.encoder, "state_size", 0):
            keys = "algorithm.recurrent: give it null; PPO, A2C, PPG, TRAC, IQL and cloning remember by that alone"
            raise ConfigError(f"encoder: one with a state (encoder=recurrent) does not go with {keys}")
        self.layers = dense(features, hidden, activation=activation, layer_norm=layer_norm)
        self.layers.apply(initializer(init))
        self.size = hidden[-1] if hidden else features
        self.core = None if core is None else core_of(core, self.size, core_size)
        self.state_size, self.behind = 0, False
        if self.core is not None:
            self.size, self.state_size = self.core.size, self.core.state_size

    def forward(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> Tensor:
        """Return features; state [B, S] and episode_end [B, T] as `Core` takes them, ignored without a core."""
        if self.core is None:
            return self._features(present(observation))
        if has_state(observation):
            return encoded(self, observation)
        return self.core(self._features(observation), state, episode_end)  # type: ignore[no-any-return]

    def step(self, observation: Tree, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, size] of single steps and the state [B, S] after them."""
        features = self._features(observation)
        return (features, state) if self.core is None else self.core.step(features, state)

    def _features(self, observation: Tree) -> Tensor:
        features: Tensor = part_of(self, "layers")(self.encode(observation))
        return features
