"""Multi-dimensional Q-learning (as in ALF), for continuous actions: soft Q-learning over bins, one entry after another.

Each of the d entries of an action takes one of K values, equally spaced from -1 to 1. Critics value whole continuous
actions. The policy of soft Q-learning (Haarnoja et al. 2017, arXiv 1702.08165) over all K^d actions,
π(a | s) ∝ exp(Q(s, a) / α), is distilled from them into a product over entries, by one network F_k each (as Metz et al.
2017, arXiv 1705.05035, do with values):

    log π_k(· | s, a_<k) = F_k(s, a_<k) / α - logsumexp(F_k(s, a_<k) / α)
    Q_π(s, a) = F_0(s)[a_0] + Σ_{k>0} α log π_k(a_k | s, a_<k) + α d log K
    KL        = Σ_k log π_k(a'_k | s', a'_<k) + d log K,  a' ~ π(· | s')
    y         = r + γ (1 - terminated) (min_i Q̄_i(s', a') - α KL)
    L_Q       = Σ_i (Q_i(s, a) - y)²
    L_π       = (Q_π(s, ã) - min_i Q̄_i(s, ã))²,  ã = clip(a + N(0, σ), -1, 1),  a ~ π(· | s)

KL is the divergence from uniform bins, estimated at a'. The temperature α is that of soft actor-critic. Entropy is
the differential entropy of the density that is constant over each bin, -log π + d log(2 / K). So entropy targets
mean the same as in soft actor-critic.

Differences from ALF: one policy for all critics; its networks read the entries before theirs, without padding.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.errors import ConfigError, require_number
from rlrun.core.spaces import Spaces, require_continuous
from rlrun.core.typing import Tree
from rlrun.nn import MLP, ActionCodec, Critics
from rlrun.nn.encoders import Encoded, Recipe
from rlrun.nn.mlp import Activation, Initializer
from rlrun.nn.policy import require_bounded
from rlrun.nn.recurrent import Kind
from rlrun.nn.remembering import Remembering
from rlrun.ops import gumbel_argmax

FEWEST = 6  # bins; with 5, an entry's entropy is at least log(2 / 5) = -0.92 nats, above its usual target of -1


class BinPolicy(Encoded, Remembering):
    """The autoregressive policy π(a | s) over bins, one entry after another.

    Args:
        spaces: of the environment.
        temperature: its `of("continuous")` is α.
        bins: K, at least 6.
        hidden: widths of the layers before each entry's values.
        activation, layer_norm, init: of the layers, as `MLP` takes them.
        encoder: of observations, as `rlrun.nn.Encoded` takes it.
        core, core_size: of a recurrent layer before the last of `hidden`, which entries share.

    Raises:
        SpaceError: part of the action is a choice, or has no bounds.
        ConfigError: there are too few bins.
    """

    def __init__(
        self,
        spaces: Spaces,
        temperature: nn.Module,
        *,
        bins: int = 21,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        init: str | Initializer = "default",
        encoder: nn.Module | Recipe | None = None,
        core: Kind | None = None,
        core_size: int = 64,
    ) -> None:
        super().__init__()
        require_continuous(spaces.action, "BinPolicy")
        self.codec = ActionCodec(spaces)
        require_bounded(spaces.action, "BinPolicy")
        if bins < FEWEST:
            raise ConfigError(f"bins: wanted at least {FEWEST} values of each entry of an action, got {bins}")
        self.bins = bins
        self.size = self.codec.continuous
        layer: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm, "init": init}
        features, hidden = self.use_layers(encoder, spaces, hidden, core=core, core_size=core_size, **layer)
        inputs = [features + before for before in range(self.size)]
        self.layers = nn.ModuleList(MLP(count, bins, hidden=hidden, **layer) for count in inputs)
        self._borrowed = (temperature,)  # in a tuple: its parameter is not this network's

    @property
    def alpha(self) -> Tensor:
        """The temperature α, without gradient."""
        alpha: Tensor = self._borrowed[0].of("continuous")  # type: ignore[operator]
        return alpha

    @property
    def even(self) -> float:
        """The log-probability of any action under uniform bins."""
        return -self.size * math.log(self.bins)

    def choose(self, observation: Tree, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return c [B, A] with its log-probability [B]; pick: from F_k / α [B, K] to the indices of bins [B]."""
        features = self.encode(observation)
        chosen: list[Tensor] = []
        log_probs: list[Tensor] = []
        for layers in self.layers:
            scaled = layers(torch.cat((features, *chosen), -1)) / self.alpha
            index = pick(scaled).unsqueeze(-1)  # [B, 1]
            chosen.append(self.level(index).to(features.dtype))
            log_probs.append(scaled.log_softmax(-1).gather(-1, index))
        return torch.cat(chosen, -1), torch.cat(log_probs, -1).sum(-1)

    def sample(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Draw c [B, A] with its log-probability [B]."""
        return self.choose(observation, gumbel_argmax)

    def act(self, observation: Tree, explore: bool = True) -> Tree:
        """Return a drawn action, or the most likely value of each entry given those before it."""
        pick = gumbel_argmax if explore else lambda scaled: scaled.argmax(-1)
        return self.codec.join(self.choose(observation, pick)[0], None)

    def forward(self, observation: Tree, c: Tensor) -> Tensor:
        """Return Q_π [B] of actions c [B, A], each entry rounded to the nearest bin."""
        features, index = self.encode(observation), self.nearest(c)
        value = torch.zeros_like(c[..., 0]) - self.alpha * self.even
        for k, layers in enumerate(self.layers):
            logits = layers(torch.cat((features, c[..., :k]), -1))
            if k:  # F_0 is not normalized: it has the value of the observation
                logits = self.alpha * (logits / self.alpha).log_softmax(-1)
            value = value + logits.gather(-1, index[..., k : k + 1]).squeeze(-1)
        return value

    def level(self, index: Tensor) -> Tensor:
        """Return the values in [-1, 1] of indices of bins."""
        return index * (2.0 / (self.bins - 1)) - 1.0

    def nearest(self, c: Tensor) -> Tensor:
        """Return the indices of the bins nearest to values in [-1, 1]."""
        return ((c + 1.0) * (0.5 * (self.bins - 1))).round().long()


class BinTarget(TargetCallback):
    """Soft Bellman target from the policy's own next action and target critics."""

    def __init__(self, critics: Critics, policy: BinPolicy, **options: Any) -> None:
        super().__init__(critics, **options)
        self.draw_from(critics, None)
        self.policy = policy

    def target(
        self, next_observation: Tree, reward: Tensor, terminated: Tensor, discount: Tensor | None = None
    ) -> TargetResult:
        c, log_prob = self.policy.sample(next_observation)  # [B, A], [B]
        value = self.smallest(self.target_network(next_observation, c))  # [B], or [R, B] of several rewards
        value = value - self.policy.alpha * (log_prob - self.policy.even)
        return self.bootstrap(reward, terminated, value, discount)

    def evaluated(self, observation: Tree, c: Tensor) -> Tensor:
        """Return the target critics' smallest value [B] of actions c [B, A]; several rewards are summed."""
        return self.value_head.guiding(self.target_network(observation, c))


class BinPolicyLoss(LossCallback):
    """Squared distance of Q_π to the target critics' smallest value, at the policy's own actions plus noise.

    Args:
        slow: has the target critics.
        noise: deviation of the noise around actions, σ.
    """

    provides = ("policy_entropy",)

    def __init__(
        self, network: BinPolicy, optimizer: Optimizer | None, *, slow: BinTarget, noise: float = 0.01, **options: Any
    ) -> None:
        require_number("noise", noise, 0)
        super().__init__(network, optimizer, **options)
        self.policy = network
        self.slow = slow
        self.noise = noise

    def loss(self, observation: Tree) -> LossResult:
        with torch.no_grad():
            c, log_prob = self.policy.sample(observation)  # [B, A], [B]
            c = (c + self.noise * torch.randn_like(c)).clamp(-1.0, 1.0)
            value = self.slow.evaluated(observation, c)
        entropy = -log_prob + self.policy.even + self.policy.size * math.log(2.0)  # differential entropy
        loss = (self.policy(observation, c) - value).square()  # [B]
        return loss, {"policy_entropy": entropy.unsqueeze(-1)}, {}  # [B, 1]
