"""How the weights of a network begin.

An initializer is a function of one layer; it leaves alone what it does not know. In config it is
a name, `default`, `orthogonal`, `xavier` or `normal`, or such a function.
"""

import math
from collections.abc import Callable

from torch import nn

from rlrun.core.errors import require_one_of

DENSE = (nn.Linear, nn.Conv1d, nn.Conv2d)
Initializer = Callable[[nn.Module], None]


def orthogonal_(layer: nn.Module, gain: float = math.sqrt(2.0)) -> None:
    """Orthogonal weights, zero bias."""
    if isinstance(layer, DENSE):
        nn.init.orthogonal_(layer.weight, gain)
        _zero_bias(layer)


def xavier_uniform_(layer: nn.Module, gain: float = 1.0) -> None:
    """Uniform weights whose spread keeps the variance of values and gradients, zero bias."""
    if isinstance(layer, DENSE):
        nn.init.xavier_uniform_(layer.weight, gain)
        _zero_bias(layer)


def normal_(layer: nn.Module, std: float = 0.01) -> None:
    """Normal weights, zero bias."""
    if isinstance(layer, DENSE):
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
