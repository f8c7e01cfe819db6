"""One network that acts and judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from rlrun.nn.heads import Heads
from rlrun.nn.init import orthogonal_
from rlrun.nn.policy import Policy
from rlrun.nn.trunk import Trunk
from rlrun.spaces import Spaces
from rlrun.typing import Tree


class Judged(NamedTuple):
    """What a network says of observations, and of the actions taken there."""

    log_prob: Tensor  # [...]
    entropy: Tensor  # [..., parts], of the policy there: of the continuous part, of the choices
    value: Tensor  # [...]
    heads: Heads


class ActorCritic(Policy):
    """π(a | s) and V(s), for any observation and action space.

    Args:
        spaces: of the environment.
        hidden: widths of the layers below the policy.
        value_hidden: of those below the value; None = the same.
        shared: policy and value stand on the same layers; `value_hidden` is of no account then.
        options: of `Policy`.

    Raises:
        SpaceError: the action space has a Box without bounds.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (64, 64),
        value_hidden: Sequence[int] | None = None,
        shared: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(spaces, hidden=hidden, **options)
        layers = {name: options[name] for name in ("activation", "layer_norm", "init") if name in options}
        below = hidden if value_hidden is None else value_hidden
        self.value_trunk = None if shared else Trunk(spaces, hidden=below, **layers)
        self.value_head = nn.Linear((self.value_trunk or self.trunk).size, 1)
        orthogonal_(self.value_head, 1.0)

    def value(self, observation: Tree) -> Tensor:
        """Return V(s) [...]."""
        value: Tensor = self.value_head((self.value_trunk or self.trunk)(observation))
        return value.squeeze(-1)

    def judge(self, observation: Tree, action: Tree) -> Judged:
        """Judge observations and the actions taken there, by one pass through the network."""
        features = self.trunk(observation)
        heads = self.head(features)
        value = self.value_head(features if self.value_trunk is None else self.value_trunk(observation)).squeeze(-1)
        return Judged(self.head.log_prob(heads, action), self.head.entropy(heads), value, heads)
