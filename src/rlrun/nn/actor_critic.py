"""One network for policy and value."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from rlrun.compile.calls import part_of
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionHead, Heads
from rlrun.nn.encoders import Trunk
from rlrun.nn.mlp import orthogonal_
from rlrun.nn.own import Columns
from rlrun.nn.policy import Policy
from rlrun.nn.value_heads import Rewards


class Evaluated(NamedTuple):
    """Outputs of a policy and value network at observations, and at the actions taken there."""

    log_prob: Tensor  # [...]
    value: Tensor  # [...], or [..., R] of several rewards
    heads: Heads
    head: ActionHead
    noise: Tensor | None  # [..., A], drawn for the entropy
    shown: Mapping[str, Tensor] = {}  # name of a metric -> tensor [...], of which it is the mean

    @property
    def entropy(self) -> Tensor:
        """Entropy of the policy [..., parts]: of the continuous part, of the choices; computed when it is read."""
        return self.head.entropy(self.heads, self.noise)

    @property
    def leaf_entropy(self) -> Tensor:
        """Entropy of each leaf of the action [..., leaves]."""
        return self.head.leaf_entropy(self.heads, self.noise)


class ActorCritic(Policy):
    """π(a | s) and V(s), for any observation and action space.

    With a `core`, separate layers of the value have a core of their own, too; its state follows the policy's.

    Args:
        spaces: of the environment.
        hidden: widths of the layers below the policy.
        value_hidden: widths of the layers below the value; None = the same.
        shared: policy and value share their layers; `value_hidden` is unused then.
        rewards: weights of several rewards, each with a value; None = one value.
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
        rewards: Rewards | None = None,
        **options: Any,
    ) -> None:
        self.rewards = rewards
        super().__init__(spaces, hidden=hidden, **options)
        self.value_head: nn.Linear | Columns
        if self.own:  # its last columns are the value
            self.value_trunk, self.value_head = None, Columns(-self.further, None)
            return
        of_trunk = ("activation", "layer_norm", "init", "core", "core_size", "encoder")
        layers = {name: options[name] for name in of_trunk if name in options}
        below = hidden if value_hidden is None else value_hidden
        self.value_trunk = None if shared else Trunk(spaces, hidden=below, **layers)
        self.value_head = nn.Linear((self.value_trunk or self.trunk).size, self.further)
        orthogonal_(self.value_head, 1.0)

    @property
    def further(self) -> int:
        return 1 if self.rewards is None else self.rewards.size

    def encoders(self) -> list[Trunk]:
        return [self.trunk] if self.value_trunk is None else [self.trunk, self.value_trunk]

    def heads(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> Heads:
        """Return the parameters of the distribution at each observation; see `Core` for state and episode_end."""
        return super().heads(observation, self._parts(state)[0], episode_end)

    def value(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> Tensor:
        """Return V(s) [...], or [..., R] of several rewards; see `Core` for state and episode_end."""
        trunk = "trunk" if self.value_trunk is None else "value_trunk"
        below = part_of(self, trunk)(observation, self._parts(state)[1], episode_end)
        return self._laid_out(part_of(self, "value_head")(below))

    def evaluate_actions(
        self, observation: Tree, action: Tree, state: Tensor | None = None, episode_end: Tensor | None = None
    ) -> Evaluated:
        """Evaluate observations and the actions taken there, by one pass through the network.

        state: [B, S] before single steps or windows, of a network with a core.
        episode_end: [B, T] where episodes are over within windows.
        """
        own, valued = self._parts(state)
        below = features = part_of(self, "trunk")(observation, own, episode_end)
        if self.value_trunk is not None:
            below = part_of(self, "value_trunk")(observation, valued, episode_end)
        heads = part_of(self, "head")(features, observation)
        return self._evaluated(heads, action, self._laid_out(part_of(self, "value_head")(below)))

    def _laid_out(self, output: Tensor) -> Tensor:
        return output.squeeze(-1) if self.rewards is None else output

    def _evaluated(self, heads: Heads, action: Tree, value: Tensor) -> Evaluated:
        head = self.head
        return Evaluated(head.log_prob(heads, action), value, heads, head, head.noise(heads))

    def _parts(self, state: Any) -> tuple[Any, Any]:
        """Return the policy's and the value's part of a state [B, S]; the whole twice if they share layers."""
        if state is None or self.value_trunk is None:
            return state, state
        return tuple(state.split((self.trunk.state_size, self.value_trunk.state_size), -1))  # type: ignore[return-value]
