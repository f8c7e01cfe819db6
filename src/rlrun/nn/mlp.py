"""Dense layers one after the other, and initializers of a network's weights.

An initializer is a function of one layer; it skips layers of unknown types. In config it is a name, `default`,
`orthogonal`, `xavier` or `normal`, or such a function.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.compile.calls import forwards
from rlrun.core.errors import ConfigError, require_one_of, shown
from rlrun.core.spaces import Space, leaves, tree_of
from rlrun.core.typing import Tree
from rlrun.nn import precision

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    # in place is safe: no layer of ours needs its own output for its gradient
    "relu": lambda: nn.ReLU(inplace=True),
    "leaky_relu": lambda: nn.LeakyReLU(inplace=True),
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
Activation = str | Callable[[], nn.Module]
Initializer = Callable[[nn.Module], None]
_DENSE = (nn.Linear, nn.Conv1d, nn.Conv2d)


def activation_module(activation: Activation) -> nn.Module:
    """Return a new activation module, from its name or its class (or partial).

    Raises:
        ConfigError: there is no activation of that name.
    """
    if callable(activation):
        return activation()
    require_one_of("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]()


def orthogonal_(layer: nn.Module, gain: float = math.sqrt(2.0)) -> None:
    """Initialize a layer with orthogonal weights and zero bias."""
    if isinstance(layer, _DENSE):
        nn.init.orthogonal_(layer.weight, gain)
        _zero_bias(layer)


def xavier_uniform_(layer: nn.Module, gain: float = 1.0) -> None:
    """Initialize a layer with uniform weights that keep the variance of values and gradients, and zero bias."""
    if isinstance(layer, _DENSE):
        nn.init.xavier_uniform_(layer.weight, gain)
        _zero_bias(layer)


def normal_(layer: nn.Module, std: float = 0.01) -> None:
    """Initialize a layer with normal weights and zero bias."""
    if isinstance(layer, _DENSE):
        nn.init.normal_(layer.weight, 0.0, std)
        _zero_bias(layer)


INITIALIZERS: dict[str, Initializer] = {
    "default": lambda layer: None,  # torch's own weights stay
    "orthogonal": orthogonal_,
    "xavier": xavier_uniform_,
    "normal": normal_,
}


def initializer(init: str | Initializer) -> Initializer:
    """Return the initializer of that name, or the function itself.

    Raises:
        ConfigError: there is no initializer of that name.
    """
    if callable(init):
        return init
    require_one_of("init", init, INITIALIZERS)
    return INITIALIZERS[init]


def _zero_bias(layer: nn.Linear | nn.Conv1d | nn.Conv2d) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Dense(nn.Sequential):
    """Layers one after the other; with bf16, all but a last dense layer compute in bfloat16."""

    def forward(self, value: Tensor) -> Tensor:
        if not precision.is_mixed():
            for layer in forwards(self._modules.values()):
                value = layer(value)
            return value
        layers: list[Any] = [*self]
        last = layers.pop() if layers and isinstance(layers[-1], nn.Linear) else None
        below = value
        with precision.products(value, _widest(layers)):
            for layer in layers:
                below = layer(below)
        below = below.to(value.dtype)
        return below if last is None else precision.at_last(lambda values: [last(values[0])], [below])[0]


def _widest(layers: Sequence[nn.Module]) -> int:
    """Return the multiplications a row in the widest dense layer."""
    return max([0, *(layer.weight.numel() for layer in layers if isinstance(layer, nn.Linear))])


class MLP(Dense):
    """Dense layers with an activation after each but the last: [..., inputs] -> [..., outputs].

    With an `output_gain` the last layer begins orthogonal with that gain and zero bias, in place of `init`. `bias`,
    `layer_norm` and `batch_norm` (over the rows of a batch) are of hidden layers; `output_bias`, `output_norm` and
    `output_activation` of the last layer.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str | Initializer = "default",
        output_gain: float | None = None,
        bias: bool = True,
        batch_norm: bool = False,
        output_bias: bool = True,
        output_norm: bool = False,
        output_activation: Activation | None = None,
    ) -> None:
        require_widths("hidden", hidden)
        below = [*_layers((inputs, *hidden), activation, layer_norm, dropout, bias, batch_norm)]
        last = nn.Linear((inputs, *hidden)[-1], outputs, bias=output_bias)
        norm = [nn.LayerNorm(outputs)] if output_norm else []
        behind = [] if output_activation is None else [activation_module(output_activation)]
        super().__init__(*below, last, *norm, *behind)
        self.init, self.output_gain = init, output_gain
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Apply `init` and `output_gain`; to draw all weights again, call `reset_parameters` of the layers first."""
        self.apply(initializer(self.init))
        if self.output_gain is not None:
            *_, last = (layer for layer in self if isinstance(layer, nn.Linear))
            orthogonal_(last, self.output_gain)


def require_widths(place: str, hidden: Any) -> None:
    """Raise a ConfigError unless `hidden` is a list of widths of layers, which may be empty."""
    entries = hidden if isinstance(hidden, Sequence) and not isinstance(hidden, str) else [None]
    if not all(isinstance(width, int) and not isinstance(width, bool) and width >= 1 for width in entries):
        raise ConfigError(f"{place}: wanted a list of whole numbers from 1, got {shown(hidden)}")


def require_no_batch_norm(network: nn.Module, place: str) -> None:
    """Raise a ConfigError for batch norms: the derivative of one row would depend on the others."""
    if any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for module in network.modules()):
        raise ConfigError(f"{place}: wanted derivatives row by row, and batch_norm mixes rows; layer_norm does not")


def dense(
    inputs: int, hidden: Sequence[int], *, activation: Activation, layer_norm: bool = False, dropout: float = 0.0
) -> Dense:
    """Return dense layer, dropout, norm, activation for each hidden width; this order is DroQ's (arXiv:2110.02034)."""
    require_widths("hidden", hidden)
    return Dense(*_layers((inputs, *hidden), activation, layer_norm, dropout))


def _layers(
    widths: Sequence[int],
    activation: Activation,
    layer_norm: bool,
    dropout: float,
    bias: bool = True,
    batch_norm: bool = False,
) -> Iterator[nn.Module]:
    for inputs, outputs in pairwise(widths):
        yield nn.Linear(inputs, outputs, bias=bias)
        if dropout > 0.0:
            yield nn.Dropout(dropout)
        if layer_norm:
            yield nn.LayerNorm(outputs)
        if batch_norm:
            yield nn.BatchNorm1d(outputs)
        yield activation_module(activation)


_OF_TYPES = re.compile(r"dtype|scalar type|\btype \(|\b(Byte|Char|Short|Int|Long|Bool|Double)\b|not implemented for")


def as_numbers(reason: str, shapes: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Return the end of a message: the module's inputs, and a conversion to floats if their types are the cause.

    reason: why it failed; shapes: type and shape of each input, without the number of rows.
    """
    entries = [(dtype, ", ".join(("B", *map(str, shape)))) for dtype, shape in shapes]
    gets = "; it gets " + " and ".join(f"{dtype} [{sizes}]" for dtype, sizes in entries)
    kinds = {dtype for dtype, _ in entries} if _OF_TYPES.search(reason) else {}
    if "uint8" in kinds:
        return f"{gets}: x.float() / 255 in its forward makes numbers of images"
    return gets + ": x.float() in its forward makes numbers of these" * bool({*kinds} - {"float32"})


@contextmanager
def probing(module: nn.Module) -> Iterator[None]:
    """Call a module for the sizes of its outputs: without gradients, in evaluation mode, which keeps its statistics."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def outputs_of(module: nn.Module, *inputs: Tree, place: str = "network") -> int:
    """Return the number of outputs of a module for each of two rows; lazy layers take their sizes from the inputs.

    place: of the module, for messages.

    Raises:
        ConfigError: it is not a module, refuses these inputs, or does not return floating numbers [2, …].
    """
    if not isinstance(module, nn.Module):
        example = "{_target_: torch.nn.LazyLinear, out_features: 32}"
        raise ConfigError(f"{place}: wanted a module of torch, such as {example}, got {module!r}")
    name = type(getattr(module, "module", module)).__name__
    try:
        with probing(module):
            outputs = module(*inputs)
    except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        if any(isinstance(tree, dict) for tree in inputs):
            reason = f"it gets a dict of tensors, which encoder=auto or flat makes one row ({reason})"
        tensors = [tensor for tensor in inputs if isinstance(tensor, Tensor)]
        hint = as_numbers(reason, [(str(x.dtype).removeprefix("torch."), x.shape[1:]) for x in tensors]) * bool(tensors)
        if any(tensor.dim() == 1 for tensor in tensors):
            hint = "; a state of a Discrete space comes as its number, int64 [B], for torch.nn.Embedding or one_hot"
        raise ConfigError(f"{place}: {name} does not fit: {reason}{hint}") from error
    got = f"a {type(outputs).__name__}"
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point() and outputs.dim() > 1 and len(outputs) == 2:
            return outputs.flatten(1).shape[1]
        got = f"{outputs.dtype} {[*outputs.shape]}".removeprefix("torch.")
    raise ConfigError(f"{place}: {name} makes {got} of 2 rows, wanted floating numbers [2, F]")


def zeros(space: Space, *lead: int) -> Tree:
    """Return zeros of a space, tensors [*lead, …]; by default two rows."""
    rows = [torch.zeros(*(lead or (2,)), *leaf.shape, dtype=getattr(torch, leaf.dtype)) for _, leaf in leaves(space)]
    return tree_of(space, rows)
