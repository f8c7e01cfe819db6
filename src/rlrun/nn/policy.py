"""Networks that act, and the temperatures of soft actor-critic."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from rlrun.compile.calls import part_of
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Box, Space, Spaces, describe, leaves, leaves_of, tree_of
from rlrun.core.typing import Tree
from rlrun.nn.actions import LOG_STD, ActionCodec, ActionHead, Heads, Spread, gaussian_of
from rlrun.nn.critics import Critics
from rlrun.nn.encoders import EncodedMLP, Recipe, Trunk, require_alone
from rlrun.nn.mlp import Activation, Initializer, probing, zeros
from rlrun.nn.own import Layers, OwnLayers, require_outputs
from rlrun.nn.recurrent import Kind
from rlrun.nn.remembering import Remembering
from rlrun.nn.value_heads import value_head_of
from rlrun.ops.distributions import normal_like


class SquashedGaussian(EncodedMLP):
    """The policy of soft actor-critic over all Box leaves of the action space (arXiv:1801.01290).

    A call draws an action part c [B, A] in [-1, 1] and returns its log_prob [B], too, with gradients through the draw.

    Args:
        spaces: of the environment.
        log_std: bounds of log_std.
        distribution: squashed by tanh, or truncated to [-1, 1]; see `rlrun.ops.distributions`.
        options: of `EncodedMLP`.

    Raises:
        SpaceError: the action space has no Box leaf, or one without bounds.
    """

    meaning, is_pair = "mean and log_std before the tanh", True

    def __init__(
        self,
        spaces: Spaces,
        *,
        log_std: tuple[float, float] = LOG_STD,
        distribution: str = "squashed",
        **options: Any,
    ) -> None:
        require_bounded(spaces.action, "SquashedGaussian")
        codec = ActionCodec(spaces)
        if not codec.continuous:
            raise SpaceError(f"SquashedGaussian needs a Box in the action space; there is {describe(spaces.action)}")
        super().__init__(spaces, 2 * codec.continuous, **options)
        self.codec = codec
        self.lowest, self.highest = log_std
        self.distribution = gaussian_of(distribution)

    def forward(self, observation: Tree, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw c [B, A] and its log_prob [B]; `noise` [B, A] is standard normal, drawn unless given."""
        mean, log_std = self.normal(observation)
        return self.distribution.sample(mean, log_std, normal_like(mean) if noise is None else noise)

    def draw(self, observation: Tree) -> Tensor:
        """Draw c [B, A] as a call does, without its log_prob."""
        mean, log_std = self.normal(observation)
        return self.distribution.action(mean, log_std, normal_like(mean))

    def normal(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Return mean and log_std [B, A] of the normal, before the tanh."""
        mean, log_std = part_of(self, "layers")(self.encode(observation)).chunk(2, -1)
        return mean, log_std.clamp(self.lowest, self.highest)

    def heads(self, observation: Tree) -> Heads:
        """Return the parameters of the distribution at each observation."""
        return Heads(*self.normal(observation), None)

    def log_prob(self, observation: Tree, c: Tensor) -> Tensor:
        """Return the log-density [B] of the action part c [B, A]."""
        return self.distribution.log_prob(*self.normal(observation), c)

    def mode(self, observation: Tree) -> Tensor:
        """Return the action part c [B, A] without noise: tanh of the mean."""
        return self.normal(observation)[0].tanh()


class DeterministicPolicy(EncodedMLP, Remembering):
    """The policy μ(s) over all Box leaves of the action space (arXiv 1509.02971): a call returns c [B, A] in [-1, 1].

    Args:
        spaces: of the environment.
        layers: a module of your own, which returns c itself; None = dense layers and tanh.
        options: of `EncodedMLP`.

    Raises:
        SpaceError: part of the action is a choice, or has no bounds.
        ConfigError: a module of your own gives numbers outside of [-1, 1].
    """

    meaning = "actions in [-1, 1], of any bounds"

    def __init__(self, spaces: Spaces, *, layers: Layers | None = None, **options: Any) -> None:
        codec = ActionCodec(spaces)
        if codec.discrete:
            raise SpaceError(f"DeterministicPolicy is for actions that are numbers; here {describe(spaces.action)}")
        require_bounded(spaces.action, "DeterministicPolicy")
        super().__init__(spaces, codec.continuous, layers=layers, **options)
        self.codec = codec
        self.squashes = layers is None
        if not self.squashes:
            _require_unit_range(self, spaces)

    def forward(self, observation: Tree) -> Tensor:
        c: Tensor = part_of(self, "layers")(self.encode(observation))
        return c.tanh() if self.squashes else c

    def heads(self, observation: Tree) -> Heads:
        """Return the action as the mean of a distribution without a deviation."""
        return Heads(self(observation), None, None)

    def act(self, observation: Tree, explore: bool = False) -> Tree:
        """Return the action; `explore` changes nothing."""
        return self.codec.join(self(observation), None)


class Policy(Remembering):
    """A stochastic policy for any action space: a Gaussian within the bounds of Box leaves, categorical for choices.

    The parts of an action are drawn independently given the observation. Initial actions are near the center of the
    space, and initial choices nearly uniform (`output_gain`).

    With a `core` it is recurrent: `heads` takes the state before single steps or windows, and `advance` replaces `act`.

    Args:
        spaces: of the environment.
        hidden: widths of the layers.
        core: a recurrent layer behind them: gru or lstm; None = none.
        core_size: its width.
        output_gain: initial gain of the last layer.
        spread: of the continuous part: by "observation" or "free", see `ActionHead`.
        log_std: initial log_std.
        distribution: of the continuous part, see `ActionHead`.
        activation, layer_norm, init: of the layers, as `MLP` takes them.
        joint_limit: of `ActionCodec`.
        encoder: of observations, as `rlrun.nn.Encoded` takes it.
        layers: a module of your own in place of all layers, or a recipe of it: it returns means of the Box leaves,
            optionally log_std, then logits of choices, then the outputs that a subclass adds.

    Raises:
        SpaceError: the action space has a Box without bounds.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        layers: Layers | None = None,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        init: str | Initializer = "orthogonal",
        output_gain: float = 0.01,
        spread: Spread = "observation",
        log_std: float = 0.0,
        distribution: str = "squashed",
        joint_limit: int = 64,
        core: Kind | None = None,
        core_size: int = 64,
        encoder: nn.Module | Recipe | None = None,
    ) -> None:
        super().__init__()
        require_bounded(spaces.action, type(self).__name__)
        self.own = layers is not None
        self.outputs = ""  # describes the outputs of a module of one's own
        if layers is not None:
            require_alone(encoder, core)
            hidden, encoder = (), OwnLayers(layers, behind=self.further)
        self.trunk = Trunk(
            spaces,
            hidden=hidden,
            activation=activation,
            layer_norm=layer_norm,
            init=init,
            core=core,
            core_size=core_size,
            encoder=encoder,
        )
        options: dict[str, Any] = {"log_std": log_std, "distribution": distribution, "joint_limit": joint_limit}
        if layers is not None:
            self.head = self._head_of_own(spaces, layers, options)
        else:
            self.head = ActionHead(spaces, self.trunk.size, gain=output_gain, spread=spread, **options)
        self.codec = self.head.codec

    @property
    def further(self) -> int:
        """Number of outputs that a module of one's own adds after the policy's."""
        return 0

    def _head_of_own(self, spaces: Spaces, layers: Layers, options: dict[str, Any]) -> ActionHead:
        """Return the head that reads the outputs of a module of one's own, with or without log_std among them."""
        codec, value = ActionCodec(spaces, joint_limit=options["joint_limit"]), self.further
        behind = f", then {value} of value" if value else ""
        count = codec.continuous + codec.width + value
        wanted = {count: f"{codec.continuous} means and {codec.width} logits{behind}"}
        if codec.continuous:
            means = f"{codec.continuous} means, {codec.continuous} log_std and {codec.width} logits"
            wanted[count + codec.continuous] = f"{means}{behind}"
        require_outputs(self.trunk.size, wanted, layers)
        with probing(self):  # rows and outputs differ in number, so that swapping them is noticed
            rows = self.trunk(zeros(spaces.observation, self.trunk.size + 1))
        logits = rows[:, self.trunk.size - value - codec.width : self.trunk.size - value]
        if any(is_distribution(part) for part in logits.split(codec.branches, -1)):
            raise ConfigError("layers: the module gives probabilities, wanted logits: leave the softmax out")
        spread: Spread = "free" if self.trunk.size == count else "observation"
        free = f"; {codec.continuous} log_std of its own" if codec.continuous and spread == "free" else ""
        self.outputs = f"outputs [B, {self.trunk.size}] are {wanted[self.trunk.size]}{free}"
        return ActionHead(spaces, None, spread=spread, **options)

    def encoders(self) -> list[Trunk]:
        return [self.trunk]

    def heads(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> Heads:
        """Return the parameters of the distribution at each observation; see `Core` for state and episode_end."""
        features = part_of(self, "trunk")(observation, state, episode_end)
        heads: Heads = part_of(self, "head")(features, observation)
        return heads

    def act(self, observation: Tree, explore: bool = True) -> Tree:
        """Return an action: drawn, or the most likely one."""
        heads = self.heads(observation)
        return self.head.draw(heads) if explore else self.head.mode(heads)

    def sample(self, observation: Tree, noise: Tensor | None = None) -> tuple[Tree, Tensor]:
        """Draw an action tree and its log_prob [B]."""
        return self.head.sample(self.heads(observation), noise)

    forward = sample

    def log_prob(self, observation: Tree, action: Tree) -> Tensor:
        """Return the log-probability [B] of an action tree."""
        return self.head.log_prob(self.heads(observation), action)

    def mode(self, observation: Tree) -> Tree:
        """Return the action tree without noise: tanh of the mean, the most likely choices."""
        return self.head.mode(self.heads(observation))


def is_distribution(rows: Tensor) -> bool:
    """Return True if each row [B, K] of several choices looks like probabilities: nonnegative, with sum 1."""
    return rows.shape[-1] > 1 and bool((rows >= 0).all() and ((rows.sum(-1) - 1).abs() < 1e-4).all())


class Temperature(nn.Module):
    """The temperatures α of the continuous part and of the discrete choices, learned on a log scale.

    Args:
        spaces: of the environment.
        initial: initial α.
        largest: upper bound on α; None = unbounded.
        epistemic: α of an action is this number times the deviation of its values over critics, and is not learned.

    Raises:
        ConfigError: `epistemic` is not a number above 0.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        initial: float = 1.0,
        largest: float | None = None,
        epistemic: float | None = None,
    ) -> None:
        super().__init__()
        if epistemic is not None and (isinstance(epistemic, bool) or not epistemic > 0.0):
            raise ConfigError(f"algorithm.temperature.epistemic: wanted a number above 0, got {epistemic}")
        self.parts = ActionCodec(spaces).kinds
        self.largest = None if largest is None else math.log(largest)
        self.epistemic = epistemic
        first = math.log(initial if largest is None else min(initial, largest))
        # [parts]; also kept where nothing is learned, so that runs of either kind can begin from the other's networks
        self.log = nn.Parameter(torch.full((len(self.parts),), first), requires_grad=epistemic is None)

    def of(self, part: str) -> Tensor:
        """Return α of a part ("continuous" or "discrete"), without gradient.

        Raises:
            ConfigError: α depends on the action.
        """
        if self.epistemic is not None:
            raise ConfigError("algorithm.temperature.epistemic is for algorithm=dsac and doac; remove it here")
        return self.log.detach()[self.parts.index(part)].exp()

    def of_each(self, values: Tensor) -> Tensor:
        """Return the epistemic α [B] of actions from their values [M, B], without gradient."""
        assert self.epistemic is not None
        alpha = self.epistemic * values.detach().std(0)
        return alpha if self.largest is None else alpha.clamp(max=math.exp(self.largest))


class SoftPolicy(Remembering):
    """The policy π(c, k | s) of soft actor-critic: a Gaussian over c, a softmax of the critics over k.

    Args:
        spaces: of the environment.
        critics: their minimum defines the discrete choices.
        temperature: α.
        hidden: widths of the Gaussian's layers.
        gaussian: a network of your own in its place; a call returns c [B, A] and log_prob [B].
        layers: a module of your own in place of the Gaussian's layers, or a recipe of it: mean and log_std [B, 2 A].
        prior: a distribution whose log-probability is subtracted from the policy's
            (`rlrun.algorithms.actor_critic.prior`); its parameters do not belong to this network.
        options: of `SquashedGaussian`, such as `init` or `layer_norm`.

    Raises:
        ConfigError: the prior's branches of choices differ from the critics'.
    """

    def __init__(
        self,
        spaces: Spaces,
        critics: Critics,
        temperature: Temperature,
        *,
        hidden: Sequence[int] = (256, 256),
        gaussian: SquashedGaussian | None = None,
        layers: Layers | None = None,
        prior: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.codec = critics.codec
        if (branches := getattr(prior, "branches", ())) not in ((), self.codec.branches):
            raise ConfigError(
                f"prior: it has choices {branches}, critics {self.codec.branches}: set joint_limit in both"
            )
        if layers is not None and not self.codec.continuous:
            raise ConfigError("the policy over choices has no layers: it is a softmax of the critics, networks.critics")
        if gaussian is None and self.codec.continuous:
            gaussian = SquashedGaussian(spaces, hidden=hidden, layers=layers, **options)
        self.gaussian = gaussian if self.codec.continuous else None
        _, self.value_head = value_head_of(critics)
        self._borrowed = (critics, temperature, prior)  # in a tuple, so that their parameters are not this network's

    @property
    def prior(self) -> Any:
        return self._borrowed[2]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the critics, too, as they take part in acting."""
        self._borrowed[0].train(mode)
        return super().train(mode)

    def parts(self) -> tuple[Any, ...]:
        return (self.gaussian, self._borrowed[0])

    def continuous(self, observation: Tree, previous: Tree | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Draw c [B, A]; return it and its log-probability [B] less the prior's. None without a continuous part.

        previous: the action before, for a prior that reads it.
        """
        if self.gaussian is None:
            return None, None
        c, log_prob = self.gaussian(observation)
        return c, log_prob if self.prior is None else log_prob - self.prior(c, previous, observation)

    def heads(self, observation: Tree) -> Heads:
        """Return the distribution of c, empty without a continuous part; that of k comes from the critics."""
        return Heads(None, None, None) if self.gaussian is None else self.gaussian.heads(observation)

    def choices(self, values: Tensor, observation: Tree) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the discrete choices [B, K], and the same less the prior's.

        values: of critics, [M, B, K] or [M, R, B, K].
        """
        logits = self.value_head.guiding(values) / self._borrowed[1].of("discrete")
        prior = None if self.prior is None else self.prior.choices(observation)
        logits = logits if prior is None else logits + prior
        choices = self.codec.log_softmax(self.codec.restrict(logits, observation))
        return choices, choices if prior is None else choices - prior

    def act(self, observation: Tree, explore: bool = True) -> Tree:
        """Return an action: sampled, or the most likely one."""
        if self.gaussian is None:
            c = None
        else:
            c = self._drawn(self.gaussian, observation) if explore else self.gaussian.mode(observation)
        if not self.codec.discrete:
            return self.codec.join(c, None)
        values = self._borrowed[0](observation, c)
        if explore:
            return self.codec.join(c, self.codec.sample(self.choices(values, observation)[0]))
        values = self.value_head.guiding(values)
        if self.prior is not None:
            values = values + self._borrowed[1].of("discrete") * self.prior.choices(observation)
        return self.codec.join(c, self.codec.best(self.codec.restrict(values, observation)))

    def _drawn(self, gaussian: SquashedGaussian, observation: Tree) -> Tensor:
        if type(gaussian).forward is SquashedGaussian.forward:
            return gaussian.draw(observation)
        c: Tensor = gaussian(observation)[0]  # a user's network needs no method but a call
        return c


def _require_unit_range(policy: DeterministicPolicy, spaces: Spaces) -> None:
    """Refuse a module of one's own that leaves [-1, 1] at observations far from 0.

    Raises:
        ConfigError: it does.
    """
    generator = torch.Generator().manual_seed(0)
    space = spaces.observation
    values = [
        torch.randn(value.shape, generator=generator).mul(1e3).to(value.dtype) if value.is_floating_point() else value
        for value in leaves_of(space, zeros(space, 64))
    ]
    with probing(policy):
        largest = float(policy(tree_of(space, values)).abs().max())
    if largest > 1.0 + 1e-6:
        raise ConfigError(
            f"a policy of your own gives actions up to {largest:.3g}, wanted [-1, 1] for any bounds: end it with tanh"
        )


def require_bounded(space: Space, place: str) -> None:
    """Refuse Box actions without bounds; the message begins with `place`.

    Raises:
        SpaceError: some Box leaf has an infinite bound.
    """
    for path, leaf in leaves(space):
        if isinstance(leaf, Box) and not leaf.bounded:
            where = f"action part '{path}'" if path else "the action space"
            raise SpaceError(
                f"{place} needs bounded actions; {where} is {describe(leaf)} without bounds "
                "(bound it with a wrapper in env.wrappers, such as gymnasium.wrappers.TransformAction)"
            )
