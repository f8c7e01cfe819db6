"""Symmetric policies: their action for a mirrored observation is the mirrored action.

    π(M_o s) = M_a π(s)

The mirror loss adds the squared distance of both sides to the loss that trains the policy.

    L = L_policy + w ‖π(s) - M_a π(M_o s)‖²                     (Yu et al. 2018, arXiv 1801.08093, eq. 4)

π(s) is the action without noise. For choices the difference is that of probabilities, π(a | s) - π(M_a a | M_o s); if
critics choose, that of their values, Q(s, a) - Q(M_o s, M_a a).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult
from rlrun.core.errors import ConfigError, WiringError, require_number, require_whole
from rlrun.core.typing import Tree
from rlrun.memory.adaptors.mirrored import require_no_state
from rlrun.nn import ActionCodec, Mirror, SoftPolicy, value_head_of
from rlrun.ops.distributions import one_hot
from rlrun.training.callback import Callback
from rlrun.training.update import of_loss


class MirrorLoss(LossCallback):
    """Measure a policy's asymmetry, and add the mirror loss to the loss that trains it.

    Actions for the batch's observations and for `mirrored`, their images by `rlrun.memory.Mirrored`, are compared in
    every n-th update. `symmetry/asymmetry` is 0 for a symmetric policy, and 1 if its numbers lie at opposite ends of
    their ranges, and its choices are disjoint: the mean of |difference| / 2 of numbers, and of the total variation
    distance of choices.

    Args:
        network: acts.
        mirror: of the environment.
        weight: w of the mirror loss; 0 = the asymmetry is only measured.
        every: updates between two measurements.
        options: of `LossCallback`.

    Raises:
        ConfigError: the network is recurrent or has no policy to compare, or a number is out of range.
        WiringError: no loss trains the network.
    """

    def __init__(
        self, network: nn.Module, mirror: Mirror, *, weight: float = 0.0, every: int = 100, **options: Any
    ) -> None:
        require_no_state(network)
        require_number("symmetry.weight", weight, 0.0)
        require_whole("symmetry.every", every, 1)
        mirror.require_observation()
        codec = getattr(network, "codec", None)
        acts = hasattr(network, "heads") or type(network).forward is not nn.Module.forward
        if not isinstance(network, nn.Module) or not isinstance(codec, ActionCodec) or not acts:
            raise ConfigError(
                f"symmetry: a {type(network).__name__} has no policy whose mirror image could be compared"
            )
        super().__init__(network, None, every=every, **options)
        self.mirror, self.weight, self.codec = mirror, weight, codec
        self.heads: Any = getattr(network, "heads", None)
        self.critics: Any = network  # they choose, where heads do not
        if isinstance(network, SoftPolicy):
            self.heads, self.critics = self.heads if codec.continuous else None, network.parts()[1]
        if not codec.discrete or (self.heads is not None and not isinstance(network, SoftPolicy)):
            self.critics = None
        if self.critics is not None:
            _, self.value_head = value_head_of(self.critics)
        self.places = mirror.choices(codec) if codec.discrete else torch.empty(0)  # of mirrored choices

    def require_peers(self, callbacks: Mapping[str, Callback]) -> None:
        if not self.weight:
            return
        terms = [(self.network, self.policy_term)] * (self.heads is not None)
        terms += [(self.critics, self.value_term)] * (self.critics is not None)
        for network, term in terms:
            losses = [peer for peer in callbacks.values() if isinstance(peer, LossCallback) and peer.trained()]
            losses = [loss for loss in losses if loss.network is network and loss.data_group == self.data_group]
            if not losses:
                raise WiringError(
                    f"callbacks.{self.name}: no loss trains only a {type(network).__name__}, so there is none to add "
                    "the mirror loss to; +with=symmetry_data works with every loss"
                )
            for loss in losses:
                if "loss" not in vars(loss):  # the plan may be made twice
                    loss.loss = with_term(loss.loss, term)  # type: ignore[method-assign]

    def loss(self, observation: Tree, mirrored: Tree) -> LossResult:
        pairs = self.pairs(observation, mirrored)
        values = self.values(observation, mirrored)
        distance = sum(((own - image).square().sum(-1) for own, image in pairs), torch.zeros(()))
        if values is not None:
            own, image = values
            distance = distance + (own - image).square().mean(-1)
            best = [
                one_hot(self.codec.best(self.codec.restrict(value, observation)), self.codec.branches)
                for value in values
            ]
            pairs.append((best[0], best[1]))
        parts = self.codec.continuous + len(self.codec.branches)
        apart = sum(((own - image).abs().sum(-1) for own, image in pairs), torch.zeros(())) / (2.0 * parts)
        return distance, {}, {"symmetry/asymmetry": apart}

    def policy_term(self, observation: Tree, mirrored: Tree) -> Tensor:
        """Return w ‖π(s) - M_a π(M_o s)‖² [...]."""
        pairs = self.pairs(observation, mirrored)
        return self.weight * torch.stack([(own - image).square().sum(-1) for own, image in pairs]).sum(0)

    def value_term(self, observation: Tree, mirrored: Tree) -> Tensor:
        """Return w times the mean over choices of (Q(s, a) - Q(M_o s, M_a a))² [...]."""
        values = self.values(observation, mirrored)
        assert values is not None
        own, image = values
        return self.weight * (own - image).square().mean(-1)

    def pairs(self, observation: Tree, mirrored: Tree) -> list[tuple[Tensor, Tensor]]:
        """Return π(s) and M_a π(M_o s) [..., size]: of numbers, and of the probabilities of choices."""
        if self.heads is None:
            return []
        (c, choices), (c_image, choices_image) = (self.acts(seen) for seen in (observation, mirrored))
        pairs = [] if c is None or c_image is None else [(c, self.mirror.numbers(self.codec, c_image))]
        if choices is not None and choices_image is not None:
            pairs.append((choices, choices_image[..., self.places]))
        return pairs

    def acts(self, observation: Tree) -> tuple[Tensor | None, Tensor | None]:
        """Return numbers without noise [..., A] in [-1, 1], and probabilities of choices [..., width]."""
        mean, log_std, choices = self.heads(observation)
        return mean if mean is None or log_std is None else mean.tanh(), None if choices is None else choices.exp()

    def values(self, observation: Tree, mirrored: Tree) -> tuple[Tensor, Tensor] | None:
        """Return Q(s, a) and Q(M_o s, M_a a) of each choice [..., width]; None if no critics choose."""
        if self.critics is None:
            return None
        c = c_image = None
        if self.heads is not None:  # the numbers beside these choices
            with torch.no_grad():
                c = self.acts(observation)[0]
                c_image = None if c is None else self.mirror.numbers(self.codec, c)
        own, image = (
            self.value_head.guiding(self.critics(*at), "mean") for at in ((observation, c), (mirrored, c_image))
        )
        return own, image[..., self.places]

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"compares {path_of(self.network)} with its mirror image, in every {self.every} updates"


def with_term(loss: Callable[..., Any], term: Callable[..., Tensor]) -> Callable[..., LossResult]:
    """Return the sum of a loss and a term, by element; its arguments are those of both."""
    before, further = (inspect.signature(part).parameters for part in (loss, term))
    added = {name: entry.replace(kind=entry.KEYWORD_ONLY) for name, entry in further.items() if name not in before}
    required = [name for name, entry in (before | added).items() if entry.default is entry.empty]
    own, others = tuple(before), tuple(further)

    def total(*values: Any, **optional: Any) -> LossResult:
        given = dict(zip(required, values, strict=bool(values))) | optional
        elements, outputs, metrics = of_loss(loss(**{name: given[name] for name in own if name in given}))
        extra = term(**{name: given[name] for name in others})
        if (valid := given.get("valid")) is not None:
            extra = ops.over_valid(extra, valid)
        extra = extra.reshape(extra.shape + (1,) * (elements.dim() - extra.dim()))
        extra = extra if elements.dim() else extra.mean()
        return elements + extra, dict(outputs), dict(metrics)

    total.__signature__ = inspect.Signature([*before.values(), *added.values()])  # type: ignore[attr-defined]
    return total
