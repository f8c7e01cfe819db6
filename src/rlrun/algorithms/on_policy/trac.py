"""Trust-region actor-critic: limit how far each update of any algorithm changes a policy (as ALF's `TracAlgorithm`).

After each update the policy's action distribution is compared with the one before, on the same batch. While the change
is above the limit, the policy's parameters move part of the way back. Values and critics keep their update.

    change² = mean over the batch of  Σ_k (log π(k | s) - log π_before(k | s))²          choices
                                      Σ KL(π_before ‖ π) + KL(π ‖ π_before)              normals
    ratio   = change / √(per_dim · size)
    θ       ← θ + (1 - 0.9 / ratio) (θ_before - θ)  while ratio > 1
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlrun.core import distributed
from rlrun.core.errors import ConfigError, RlrunError, require_number
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn import ActionCodec, ActionHead, Heads, SquashedGaussian
from rlrun.nn.actions import forbidden
from rlrun.nn.recurrent import has_state
from rlrun.ops.distributions import GAUSSIANS, gaussian_distance
from rlrun.training.callback import Callback

Distance = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
TRIES = 100
MARGIN = 0.9  # share of the limit that a step back aims at


class Actor(Protocol):
    """A network with a distribution over actions."""

    def heads(self, observation: Tree, *before: Tensor | None) -> Heads:
        """Return its parameters at each observation; recurrent networks also read state and `episode_end`."""

    def parameters(self) -> Any: ...


class TrustRegion(Callback):
    """Move the policy back after an update that changed it by more than a limit.

    The change of a leaf of the action is the root of a mean over the batch: of the squared differences of
    log-probabilities for choices, of KL in both directions for normals, of the squared differences of actions for
    deterministic policies. Its limit is the root of `per_dim` times the number of its choices or dimensions. (A
    divergence hardly sees changes of rare choices, so log-probabilities are compared.)

    The first batch determines the policy's parameters: those that its distribution depends on.

    Args:
        network: the policy.
        spaces: of the environment.
        per_dim: limit of the squared change of a choice or dimension.
        data_group: of the updates.

    Raises:
        ConfigError: the network has no distribution over actions, or no parameters that learn.
    """

    data_group: str | None = "default"

    def __init__(self, network: Actor, *, spaces: Spaces, per_dim: float = 0.01, data_group: str = "default") -> None:
        if not hasattr(network, "heads") or not any(parameter.requires_grad for parameter in network.parameters()):
            raise ConfigError(
                f"network: a {type(network).__name__} has no policy with parameters of its own, "
                "so there is nothing to keep in a trust region"
            )
        require_number("per_dim", per_dim, above=0)
        self.network = network
        modules = network.modules() if isinstance(network, nn.Module) else ()
        parts = [module for module in modules if isinstance(module, SquashedGaussian | ActionHead)]
        self.distance = (*(part.distribution for part in parts), GAUSSIANS["squashed"])[0].distance
        self.codec = (*(part.codec for part in parts), ActionCodec(spaces))[0]
        self.data_group = data_group
        self.per_dim = per_dim
        self.ratio, self.updates, self.shrunk = 0.0, 0, 0  # newest change relative to its limit; counts
        self._actor: list[Tensor] = []
        self._before: list[Tensor] = []
        self._seen: tuple[Tree, ...] = ()  # of this batch: the arguments of `heads`
        self._heads: Heads | None = None

    def begin_batch(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> None:
        alone = has_state(observation) or (state is None and episode_end is None)
        self._seen = (observation,) if alone else (observation, state, episode_end)
        if not self._actor:
            self._actor = [parameter.data for parameter in self._trained()]
            self._before = [torch.empty_like(parameter) for parameter in self._actor]
        torch._foreach_copy_(self._before, self._actor)
        self._heads = self._look()

    @torch.no_grad()
    def end_batch(self, valid: Tensor | None = None) -> None:
        self.ratio = ratio = self._ratio(valid)
        self.updates += 1
        self.shrunk += not ratio <= 1.0
        for _ in range(TRIES):
            if ratio <= 1.0:
                return
            back = 1.0 - MARGIN / ratio if math.isfinite(ratio) else MARGIN  # an infinite ratio gives no step size
            torch._foreach_lerp_(self._actor, self._before, back)
            ratio = self._ratio(valid)
        raise RlrunError(
            f"callbacks.{self.name}: the policy is not finite after this update; a smaller learning rate, or a smaller "
            "max_grad_norm, keeps it so"
        )

    def _trained(self) -> list[nn.Parameter]:
        """Return the parameters that the policy depends on."""
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            numbers = [part.sum() for part in self.network.heads(*self._seen) if part is not None]
            gradients = torch.autograd.grad(torch.stack(numbers).sum(), trained, allow_unused=True)
        return [parameter for parameter, gradient in zip(trained, gradients, strict=True) if gradient is not None]

    @torch.no_grad()
    def _look(self) -> Heads:
        return self.network.heads(*self._seen)

    def _ratio(self, valid: Tensor | None) -> float:
        """Return the largest change of a leaf since the update began, relative to its limit."""
        assert self._heads is not None
        change = changes(self._heads, self._look(), self.distance)  # [..., A + width]
        flat = change.flatten(0, -2) if valid is None else change[valid]
        sizes = [*self.codec.sizes] if self._heads.mean is not None else []
        sizes += [*self.codec.branches] if self._heads.choices is not None else []
        total = flat.sum(0)
        leaves = torch.split(total / distributed.pooled_(total, len(flat)), sizes)
        counts: list[Any] = [*sizes]
        if self._heads.choices is not None and self.codec.masked:  # mean number of allowed choices
            choices = self._heads.choices if valid is None else self._heads.choices[valid]
            allowed = torch.split((~forbidden(choices)).float().flatten(0, -2).mean(0), [*self.codec.branches])
            counts[-len(allowed) :] = [branch.sum() for branch in allowed]
        squares = torch.stack([leaf.sum() / (self.per_dim * size) for leaf, size in zip(leaves, counts, strict=True)])
        return float(squares.max().sqrt())

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {"trust_region/change": self.ratio, "trust_region/shrunk": self.shrunk / max(self.updates, 1)}

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"takes {path_of(self.network)} back where its policy moved too far"

    def state_dict(self) -> dict[str, Any]:
        return {"ratio": self.ratio, "updates": self.updates, "shrunk": self.shrunk}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ratio, self.updates, self.shrunk = state["ratio"], state["updates"], state["shrunk"]


def changes(before: Heads, now: Heads, distance: Distance = gaussian_distance) -> Tensor:
    """Return the squared change of each dimension and each choice of a distribution, [..., A + width]."""
    squares = []
    if before.mean is not None and now.mean is not None:
        if before.log_std is None or now.log_std is None:
            squares.append((now.mean - before.mean).square())
        else:
            squares.append(distance(before.mean, before.log_std, now.mean, now.log_std))
    if before.choices is not None and now.choices is not None:
        moved = (now.choices - before.choices).square()
        squares.append(moved.masked_fill(forbidden(now.choices), 0.0))
    return squares[0] if len(squares) == 1 else torch.cat(squares, -1)
