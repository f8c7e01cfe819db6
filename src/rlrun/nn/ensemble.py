"""Several networks of one shape, trained side by side, and two of them as value and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.errors import SpaceError
from rlrun.core.spaces import describe
from rlrun.nn import products
from rlrun.nn.actions import ActionCodec
from rlrun.nn.init import Initializer
from rlrun.nn.mlp import MLP, Activation, activation_module
from rlrun.nn.precision import products as computed
from rlrun.nn.precision import widest
from rlrun.nn.stacks import CachedStacks, Form
from rlrun.nn.tandem import affine, kind_of, plain_input

# Multiplications in one hidden layer of one member from which separate products take less time than a batched
# one on a CPU. Forward and backward, two members, one thread, separate / batched: 0.9-1.0 at 256 wide and batch 256
# (16.8 M), 0.97 or 1.06 at 4.2 M (128 wide, or batch 64), 1.2 at 2.1 M, 1.4 at 0.3 M.
LARGE = 4_000_000
_OWN = {"weight", "bias"}  # what a layer has itself, unless it is parametrized


class StackedLinear(nn.Module):
    """One dense layer of M members: weight [M, in, out], bias [M, 1, out], with a norm after it if wanted."""

    def __init__(self, linears: Sequence[nn.Linear], norms: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([linear.weight.detach().T for linear in linears]).contiguous())
        self.bias = nn.Parameter(torch.stack([linear.bias.detach() for linear in linears]).unsqueeze(1))
        self.normed = bool(norms)
        if norms:
            self.norm_weight = nn.Parameter(torch.stack([norm.weight.detach() for norm in norms]).unsqueeze(1))
            self.norm_bias = nn.Parameter(torch.stack([norm.bias.detach() for norm in norms]).unsqueeze(1))

    def together(self, value: Tensor, dropout: float, training: bool) -> Tensor:
        """Evaluate all members by one batched product: [M, B, in] -> [M, B, out]."""
        value = torch.baddbmm(self.bias, value, self.weight)
        if dropout:
            value = F.dropout(value, dropout, training)
        if self.normed:
            value = torch.addcmul(self.norm_bias, F.layer_norm(value, value.shape[-1:]), self.norm_weight)
        return value

    def apart(self, values: Sequence[Tensor], dropout: float, training: bool) -> list[Tensor]:
        """Evaluate the members one after the other: M times [B, in] -> M times [B, out]."""
        parts = zip(values, self.weight.unbind(0), self.bias.unbind(0), strict=True)
        results = [affine(value, weight.t(), bias[0]) for value, weight, bias in parts]
        if dropout:
            results = [F.dropout(result, dropout, training) for result in results]
        if self.normed:
            norms = zip(results, self.norm_weight.unbind(0), self.norm_bias.unbind(0), strict=True)
            results = [F.layer_norm(result, result.shape[-1:], weight[0], bias[0]) for result, weight, bias in norms]
        return results


class Ensemble(nn.Module):
    """M networks like `MLP`, independently initialized: [B, inputs] -> [M, B, outputs].

    Hidden units are left out by `dropout` while gradients are taken, and neither in acting nor in targets; those of a
    target network too, where `drops_always` is set.
    The parameters are stacked, so an optimizer sees few tensors. On a CPU wide layers are evaluated
    member by member, narrow ones and everything on other devices by one batched product.
    """

    momentary = ("_cached",)

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
        kind = None if layer_norm else kind_of([self.activation])
        depth = len(self.layers)
        self._form = None if kind is None else Form((kind,) * members, (depth,) * members, open=True, members=members)
        self._cached: CachedStacks | None = None
        self.drops_always = False

    def forward(self, value: Tensor, *, shared: bool = True) -> Tensor:
        """Evaluate every member.

        value: [..., inputs], the same for all members, or with `shared` false [M, ..., inputs].
        Returns [M, ..., outputs].
        """
        lead = value.shape[:-1] if shared else value.shape[1:-1]
        if len(lead) != 1:
            value = value.reshape(*(() if shared else (self.members,)), -1, value.shape[-1])
        separate = self._separate(value)
        # a batched product of one costs less than the views that undo the stacking, unless these lie there already
        result = self._in_one_step(value) if separate or self.members == 1 else None
        if result is None:
            separate &= self.members > 1
            result = self._apart(value, shared) if separate else self._together(value, shared)
        return result if len(lead) == 1 else result.reshape(self.members, *lead, self.outputs)

    @property
    def _learns(self) -> bool:
        """Whether hidden units are left out."""
        return self.training and (self.drops_always or torch.is_grad_enabled())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}  # a copy has places of its own

    def _separate(self, value: Tensor) -> bool:
        # what is exported has a batch of any size, and what is compiled decides for itself how products are made
        if torch.compiler.is_exporting() or torch.compiler.is_compiling():
            return False
        large = value.shape[-2] * self.work >= LARGE or products.in_use() == "numpy"
        return value.device.type == "cpu" and large

    def _together(self, value: Tensor, shared: bool) -> Tensor:
        *hidden, last = self.layers
        below = value.expand(self.members, *value.shape) if shared else value
        with computed(value, self.work):
            for layer in hidden:
                below = self.activation(layer.together(below, self.dropout, self._learns))
        return last.together(below.to(value.dtype), 0.0, False)

    def _in_one_step(self, value: Tensor) -> Tensor | None:
        """Return what `rlrun.nn.stacks` makes of all members, where these are layers that it takes."""
        if self._form is None or not plain_input(value) or (self.dropout and self._learns):
            return None
        if value.dim() == 3 and len(value) != self.members:  # which the other ways refuse
            return None
        cached, owners = self._cached, [layer._parameters for layer in self.layers]
        if cached is None or not cached.is_of(owners) or not cached.in_place():
            if self.layers[0].weight.dtype != value.dtype or not all(owner.keys() >= _OWN for owner in owners):
                return None
            cached = self._cached = CachedStacks(self._form, owners, self.work)
        results = cached(value)
        return results[0].unsqueeze(0) if self.members == 1 else torch.stack(results)

    def _apart(self, value: Tensor, shared: bool) -> Tensor:
        *hidden, last = self.layers
        values: Sequence[Tensor] = [value] * self.members if shared else value.unbind(0)
        with computed(value, self.work):
            for layer in hidden:
                values = [self.activation(part) for part in layer.apart(values, self.dropout, self._learns)]
        return torch.stack(last.apart([part.to(value.dtype) for part in values], 0.0, False))


class Dueling(nn.Module):
    """The value of an observation and, by layers of their own, advantages of choices: [B, inputs] -> [M, B, width · N].

        Q = V + A - mean_k A        (Wang et al. 2016, arXiv 1511.06581, eq. 9)

    Where values add up over branches of choices, each branch has its own mean and an equal part of V.

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
