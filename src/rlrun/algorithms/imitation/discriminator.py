"""Discriminators: networks that separate rows of an expert from rows of the policy, and rewards for deceiving them.

D is the score of a network, + are rows of the expert, - those of the policy, M is the mean over rows.

    least squares   L = M (D(+) - 1)² + M (D(-) + 1)² + w M |∂D(+)/∂x|²        Peng et al. 2021, arXiv 2104.02180, eq. 8
                    r = 1 - ¼ (D - 1)²                                           eq. 7, where it is at least 0
    cross entropy   L = M softplus(-D(+)) + M softplus(D(-)) + w M |∂D(+)/∂x|²   Ho & Ermon 2016, arXiv 1606.03476

The paper's w_gp is twice w. Cross entropy is that of the probability sigmoid(D) that a row is the expert's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError, SpaceError, require_number
from rlrun.core.spaces import Box, Space, Spaces, leaves, map_tree
from rlrun.core.typing import Batch, Tree
from rlrun.memory import Bonus
from rlrun.nn import MLP, Normalizer, flatten
from rlrun.nn.mlp import Activation, Initializer, outputs_of, zeros

StateMap = Callable[[Tree], Tensor] | Sequence[int] | None
OBSERVATIONS = ("observation", "next_observation")
CLIP = 10.0  # of normalized inputs: a feature that the policy never changed has deviation 0


def least_squares(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared distance of scores [...] to 1 of positive rows, and to -1 of negative ones."""
    return (positive - 1.0).square(), (negative + 1.0).square()


def cross_entropy(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Return minus the log-probability of the right class, of the scores [...] of positive and of negative rows."""
    return F.softplus(-positive), F.softplus(negative)


def gradient_penalty(score: Tensor, inputs: Tensor) -> Tensor:
    """Return the squared norm of each row's gradient: scores [B] of inputs [B, F], which require gradients -> [B]."""
    gradient: Tensor = torch.autograd.grad(score.sum(), inputs, create_graph=True)[0]
    return gradient.square().sum(-1)


def style_reward(score: Tensor, *, floor: bool = True) -> Tensor:
    """Return 1 - ¼ (D - 1)² of scores [...], at least 0 with `floor` (eq. 7): 1 where a row looks like the expert's."""
    reward = 1.0 - 0.25 * (score - 1.0).square()
    return reward.clamp(min=0.0) if floor else reward


class Inputs(nn.Module):
    """Columns of an expert's or the policy's rows, concatenated to numbers [..., F].

    A map computes features of observations. They are normalized by the mean and the deviation of the policy's so far.
    If the expert's observations have another layout, they have their own map, to as many features.

    Args:
        spaces: of the policy's rows.
        columns: some of observation, action, next_observation and terminated.
        reference: spaces of the expert's rows; None = `spaces`.
        policy_state_map: indices of the numbers of an observation; or a function or module from observations to
            features [..., S]; None = all numbers.
        imitation_state_map: the same for the expert's observations; None = `policy_state_map`.
        normalize: normalize features.

    Raises:
        SpaceError: an observation is an image, and there is no map.
        ConfigError: a map does not return features [..., S], the two differ in their number, or actions differ.

    Attributes:
        sizes: number of features of each column.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        columns: Sequence[str] = ("observation", "next_observation"),
        reference: Spaces | None = None,
        policy_state_map: StateMap = None,
        imitation_state_map: StateMap = None,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.action_space = spaces.action
        theirs = spaces if reference is None else reference
        named = {"policy_state_map": policy_state_map, "imitation_state_map": imitation_state_map}
        place = "policy_state_map" if imitation_state_map is None else "imitation_state_map"
        self.own_map = _mapped("policy_state_map", policy_state_map, spaces.observation)
        self.reference_map = _mapped(place, named[place], theirs.observation)
        size = _features("policy_state_map", self.own_map, spaces.observation)
        other = _features(place, self.reference_map, theirs.observation)
        if size != other:
            raise ConfigError(f"{place}: it makes {other} features of the expert's observations, and {size} of its own")
        if "action" in self.columns and theirs.action.size != spaces.action.size:
            raise ConfigError("dataset: its actions are of another space than the environment's")
        widths = {"action": spaces.action.size, "terminated": 1}
        self.sizes = [widths.get(name, size) for name in self.columns]
        self.normalizer = Normalizer((size,), speed=1, clip=CLIP) if normalize else None

    def inputs(self, step: Mapping[str, Tree], *, reference: bool = False) -> Tensor:
        """Return the numbers of rows [..., F] before normalization; reference: rows are the expert's."""
        features = self.reference_map if reference else self.own_map
        parts: list[Tensor] = []
        for name in self.columns:
            if name == "action":
                parts.append(flatten(self.action_space, step[name]))
            else:
                parts.append(step[name].unsqueeze(-1) if name == "terminated" else features(step[name]))
        return torch.cat([part.float() for part in parts], -1)

    def learn(self, inputs: Tensor, valid: Tensor | None = None) -> None:
        """Update the statistics by the policy's inputs [..., F]; valid [...]: rows to use."""
        if self.normalizer is not None:
            last = max(place for place, name in enumerate(self.columns) if name in OBSERVATIONS)
            self.normalizer.update(torch.split(inputs, self.sizes, -1)[last], valid)

    def seen(self, inputs: Tensor) -> Tensor:
        """Return inputs [..., F] with normalized features."""
        if self.normalizer is None:
            return inputs
        parts = zip(self.columns, torch.split(inputs, self.sizes, -1), strict=True)
        return torch.cat([self.normalizer(part) if name in OBSERVATIONS else part for name, part in parts], -1)


class Discriminator(Inputs):
    """A score of rows: [..., F] -> [...].

    Args:
        spaces: of the policy's rows.
        hidden: widths of the layers.
        activation, init: of the layers, as `MLP` takes them.
        layers: any module from inputs [..., F] to scores [..., 1], in place of the layers.
        options: of `Inputs`.

    Raises:
        ConfigError: the layers do not return one score.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        init: str | Initializer = "orthogonal",
        layers: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(spaces, **options)
        self.layers = layers or MLP(sum(self.sizes), 1, hidden=hidden, activation=activation, init=init)
        if (outputs := outputs_of(self.layers, torch.zeros(2, sum(self.sizes)), place="layers")) != 1:
            raise ConfigError(f"layers: wanted one score a row, got {outputs}")

    def forward(self, seen: Tensor) -> Tensor:
        """Return the scores [...] of inputs [..., F] that `seen` has normalized."""
        score: Tensor = self.layers(seen)
        return score.squeeze(-1)


def _mapped(name: str, choice: StateMap, space: Space) -> Callable[[Tree], Tensor]:
    """Return a map as a function from observations to features [..., S]."""
    if callable(choice):
        return choice
    if pictures := [path for path, leaf in leaves(space) if isinstance(leaf, Box) and leaf.picture is not None]:
        raise SpaceError(
            f"{name}: observation{'.' if pictures[0] else ''}{pictures[0]} is an image, which a discriminator cannot "
            "read; give a function from observations to features [..., S]"
        )
    if choice is None:
        return lambda tree: flatten(space, tree)
    indices = [*choice] if isinstance(choice, Sequence) and not isinstance(choice, str) else []
    if not indices or not all(type(i) is int and 0 <= i < space.size for i in indices):
        raise ConfigError(f"{name}: wanted indices from 0 to {space.size - 1}, or a function, got {choice!r}")
    return lambda tree: flatten(space, tree)[..., indices]


def _features(name: str, function: Callable[[Tree], Tensor], space: Space) -> int:
    """Return the number of features of a map, by calling it on two observations."""
    try:
        with torch.no_grad():
            features = function(zeros(space))
        fits = features.dim() == 2 and len(features) == 2
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(f"{name}: {type(error).__name__}: {error}") from error
    if not fits:
        raise ConfigError(f"{name}: wanted features [2, S] of two observations, got {[*features.shape]}")
    return int(features.shape[-1])


class AdversarialReward(Bonus):
    """A reward for rows that a discriminator takes for the expert's; a subclass computes it from scores.

    Args:
        network: the discriminator.
        options: of `Bonus`.
    """

    network: Any

    def __init__(self, network: Inputs, **options: Any) -> None:
        super().__init__(network, **options)
        self.requires = network.columns

    def learn(self, step: Batch, valid: Tensor | None, *, update: bool = True) -> tuple[Tensor, Batch]:
        if update:
            self.network.learn(self.network.inputs(step), valid)
        return super().learn(step, valid, update=update)

    def view(self, step: Batch) -> Batch:
        return {"inputs": self.network.inputs(step)}

    def score(self, view: Batch) -> Tensor:
        """Return the network's outputs [...] for rows."""
        score: Tensor = self.network(self.network.seen(view["inputs"]))
        return score


class DiscriminatorLoss(LossCallback):
    """Train a discriminator on rows of the expert and of the policy; a subclass chooses the loss.

    The policy's rows are those that `AdversarialReward` saw. The expert's rows are a data group of their own. A window
    in it is one row: its first observation and action, and the observation after its last step. So an expert that was
    recorded at n times the environment's rate is sampled in windows of n steps.

    Args:
        network: the discriminator.
        optimizer: of its parameters.
        grad_loss_weight: w of the gradient penalty.
        reference: data group of the expert's rows; it needs batches only in updates that `every` allows.
        options: of `LossCallback`.
    """

    provides: tuple[str, ...] = ("reference",)
    network: Any
    divergence: "ClassVar[staticmethod[[Tensor, Tensor], tuple[Tensor, Tensor]]]"  # least_squares or cross_entropy

    def __init__(
        self,
        network: Inputs,
        optimizer: Optimizer | None,
        *,
        grad_loss_weight: float = 0.0,
        reference: str = "reference",
        **options: Any,
    ) -> None:
        require_number("grad_loss_weight", grad_loss_weight, 0.0)
        super().__init__(network, optimizer, **options)
        self.grad_loss_weight, self.reference = grad_loss_weight, reference

    def begin_batch(self, batches: Mapping[str, Batch]) -> dict[str, Any] | None:
        """Return the expert's rows, [B, …]; None in an update without a batch of them."""
        if self.reference not in batches:
            return None
        rows = batches[self.reference]
        windows = rows["terminated"].dim() > 1
        places = {"observation": 0, "action": 0, "next_observation": -1, "terminated": -1}
        chosen = {
            name: map_tree(lambda value, at=place: value[:, at], rows[name]) if windows else rows[name]
            for name, place in places.items()
        }
        return {"reference": chosen}

    def offset(self, rows: Batch) -> Tensor | float:
        """Return the offset [...] of rows, without gradients: scores are the network's outputs minus it."""
        return 0.0

    def loss(
        self, own: Batch, reference: Batch, weight: Tensor | None = None, valid: Tensor | None = None
    ) -> LossResult:
        with torch.enable_grad():  # also where the loss is only evaluated
            inputs = self.network.seen(self.network.inputs(reference, reference=True)).detach().requires_grad_()
            positive = self.network(inputs)
            penalty = gradient_penalty(positive, inputs) if self.grad_loss_weight else torch.zeros_like(positive)
        positive = positive - self.offset(reference)
        negative = self.network(self.network.seen(own["inputs"])) - self.offset(own)
        return self.summed(positive, negative, penalty, own["bonus"], valid if weight is None else weight)

    def summed(
        self, positive: Tensor, negative: Tensor, penalty: Tensor, reward: Tensor, weight: Tensor | None
    ) -> LossResult:
        """Return the loss, a scalar, and metrics.

        positive, penalty: of the expert's rows [B]. negative, reward, weight: of the policy's rows [...].
        """
        losses = self.divergence(positive, negative)
        loss = losses[0].mean() + _mean(losses[1], weight) + self.grad_loss_weight * penalty.mean()
        metrics = {
            "discriminator/accuracy_reference": (positive.detach() > 0.0).float(),
            "discriminator/accuracy_own": _mean((negative.detach() < 0.0).float(), weight),
            "discriminator/gradient_penalty": penalty.detach(),
            "discriminator/reward": _mean(reward, weight),
        }
        return loss, {}, metrics


def _mean(value: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean over rows, by weights or over the rows where a mask is True."""
    if weight is None:
        return value.mean()
    weight = weight.to(value.dtype)
    weight = weight.reshape(weight.shape + (1,) * (value.dim() - weight.dim())).expand_as(value)
    return (value * weight).sum() / weight.sum().clamp(min=1e-8)
