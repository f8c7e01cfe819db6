"""Ensembles: several networks of one shape, trained side by side; and dueling networks."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.compile.calls import forwards
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import describe
from rlrun.nn.actions import ActionCodec
from rlrun.nn.mlp import MLP, Activation, Initializer, activation_module
from rlrun.nn.precision import at_last, products, widest

# Multiplications in a member's widest layer from which, on a CPU, one product a member is faster than a batched one. At
# 16.8 M (2 members of 2 × 256, batch 256) it saves 4 % of a whole run of SAC or TD3 on a Zen 4 core. At 4.2 M it takes
# the same time, below more.
LARGE = 8_000_000


class StackedLinear(nn.Module):
    """One dense layer of M members: weight [M, in, out], bias [M, 1, out], with an optional norm."""

    def __init__(self, linears: Sequence[nn.Linear], norms: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([linear.weight.detach().T for linear in linears]).contiguous())
        self.bias = nn.Parameter(torch.stack([linear.bias.detach() for linear in linears]).unsqueeze(1))
        self.normed = bool(norms)
        if norms:
            self.norm_weight = nn.Parameter(torch.stack([norm.weight.detach() for norm in norms]).unsqueeze(1))
            self.norm_bias = nn.Parameter(torch.stack([norm.bias.detach() for norm in norms]).unsqueeze(1))

    def extra_repr(self) -> str:
        members, inputs, outputs = self.weight.shape
        return f"{inputs}, {outputs}, members={members}, norm={self.normed}"

    def forward(self, values: Sequence[Tensor], dropout: float, learns: bool) -> list[Tensor]:
        """Evaluate members together, [M, B, in] -> [M, B, out] as the only value, or apart, M times [B, in]."""
        apart = values[0].dim() == 2
        own: Any = self._parameters  # looking up an attribute of a module is slow
        if "weight" in own and "bias" in own:
            stacked, biases = own["weight"], own["bias"]
        else:  # a parametrization computes them
            stacked, biases = self.weight, self.bias
        if apart:
            # an index of a member's bias would cost a tensor of zeros in the backward pass
            layers = zip(values, _members(stacked), _members(biases.squeeze(1)), strict=True)
            results = [torch.addmm(bias, value, weight) for value, weight, bias in layers]
        else:
            results = [torch.baddbmm(biases, values[0], stacked)]
        if dropout:
            results = [F.dropout(result, dropout, learns) for result in results]
        if self.normed:
            weights, biases = (_members(part) if apart else [part] for part in (self.norm_weight, self.norm_bias))
            results = [
                torch.addcmul(bias, F.layer_norm(result, result.shape[-1:]), weight)
                for result, weight, bias in zip(results, weights, biases, strict=True)
            ]
        return results


class Ensemble(nn.Module):
    """M networks like `MLP`, independently initialized: [B, inputs] -> [M, B, outputs].

    `dropout` acts only while gradients are taken, so neither in acting nor in targets; with `drops_always` also in a
    target network. The parameters are stacked, so an optimizer sees few tensors. Members are evaluated by one batched
    product, and one by one where products are large.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        members: int = 2,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str | Initializer = "default",
    ) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise ConfigError(f"dropout: wanted a number from 0 to below 1, got {dropout}")
        self.members, self.outputs, self.dropout = members, outputs, dropout
        self.work = widest(inputs, tuple(hidden)) or inputs * outputs
        plain = [
            MLP(inputs, outputs, hidden=hidden, activation=activation, layer_norm=layer_norm, init=init)
            for _ in range(members)
        ]
        linears = [[layer for layer in member if isinstance(layer, nn.Linear)] for member in plain]
        norms = [[layer for layer in member if isinstance(layer, nn.LayerNorm)] for member in plain]
        self.layers: Sequence[StackedLinear] = nn.ModuleList(  # type: ignore[assignment]
            StackedLinear([member[i] for member in linears], [member[i] for member in norms if i < len(member)])
            for i in range(len(hidden) + 1)
        )
        self.activation = activation_module(activation)
        self.drops_always = False

    def forward(self, value: Tensor, *, shared: bool = True) -> Tensor:
        """Evaluate every member.

        value: [..., inputs], the same for all members, or with `shared` false [M, ..., inputs].
        Returns [M, ..., outputs].
        """
        lead = value.shape[:-1] if shared else value.shape[1:-1]
        if len(lead) != 1:
            value = value.reshape(*(() if shared else (self.members,)), -1, value.shape[-1])
        members, kind = self.members, value.dtype
        modules: Any = self._modules  # looking up an attribute of a module is slow
        if members > 1 and is_large(value, self.work):
            below = [value] * members if shared else _members(value)
        elif members == 1 and shared:
            below = [value.unsqueeze(0)]  # a quarter of the time of `expand`
        else:
            below = [value.expand(members, *value.shape) if shared else value]
        activation, *hidden, last = forwards((modules["activation"], *modules["layers"]._modules.values()))
        drops = self.training and (self.drops_always or torch.is_grad_enabled())
        with products(value, self.work):
            for layer in hidden:
                below = [activation(part) for part in layer(below, self.dropout, drops)]
        below = below if below[0].dtype == kind else [part.to(kind) for part in below]
        results = at_last(lambda values: last(values, 0.0, False), below)
        result = results[0] if results[0].dim() == 3 else torch.stack([*results])
        return result if len(lead) == 1 else result.reshape(self.members, *lead, self.outputs)


def is_large(x: Tensor, work: int) -> bool:
    """Return True if the product of x [..., B, in] with a matrix of `work` numbers is large; False inside graphs."""
    in_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    plain = x.device.type == "cpu" and x.dtype == torch.float32
    return plain and not in_graph and x.shape[-2] * work >= LARGE


def _members(stacked: Tensor) -> list[Tensor]:
    """Return the tensor of each member; the gradient of a single one needs no copy."""
    return [*stacked.unbind()] if len(stacked) > 1 else [stacked.squeeze(0)]


class Dueling(nn.Module):
    """Dueling networks: separate layers for values and advantages of choices, [B, inputs] -> [M, B, width · N].

        Q = V + A - mean_k A        (Wang et al. 2016, arXiv 1511.06581, eq. 9)

    With several branches of choices, each has a mean of its own and an equal part of V.

    Args:
        inputs: features.
        codec: of the actions.
        size: numbers a value, N.
        options: of `Ensemble`.

    Raises:
        SpaceError: actions have no choices.
    """

    def __init__(self, inputs: int, codec: ActionCodec, *, size: int, **options: Any) -> None:
        if not codec.discrete:
            raise SpaceError(f"dueling is for values of choices; the action space is {describe(codec.space)}")
        super().__init__()
        self.codec = codec
        self.size = size
        self.value = Ensemble(inputs, size, **options)
        self.advantage = Ensemble(inputs, codec.width * size, **options)

    def forward(self, features: Tensor) -> Tensor:
        value = self.value(features).unsqueeze(-1) / len(self.codec.branches)  # [M, B, N, 1]
        advantage = self.advantage(features)
        advantage = advantage.reshape(*advantage.shape[:-1], self.codec.width, self.size).transpose(-1, -2)
        both: Tensor = value + self.codec.centered(advantage)  # [M, B, N, width]
        return torch.flatten(both.transpose(-1, -2), -2)
