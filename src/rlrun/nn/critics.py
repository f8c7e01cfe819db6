"""Networks of action values and of state values."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlrun import ops
from rlrun.compile.calls import part_of
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces, require_continuous
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.encoders import Encoded, Recipe, require_alone
from rlrun.nn.ensemble import Dueling, Ensemble
from rlrun.nn.mlp import MLP, Activation, Initializer, activation_module, outputs_of, probing, zeros
from rlrun.nn.own import Layers, OwnMembers, require_outputs
from rlrun.nn.precision import products
from rlrun.nn.recurrent import Kind, present
from rlrun.nn.value_heads import Numbers, Quantiles, RewardQuantiles, Rewards, ValueHead


class Critics(Encoded):
    """M action-value networks Q(s, a), one ensemble behind one encoder.

    Choices are outputs, numbers are inputs: without decisions in the action space a call returns [M, B], with them [M,
    B, width], the values of every choice of every branch (`codec`). With `members=1` on a discrete space this is the
    Q-network of DQN. `Rewards` adds an axis of rewards after members.

    Args:
        spaces: of the environment.
        members: M.
        hidden, activation, layer_norm, dropout, init: of the layers, as `Ensemble` takes them.
        joint_limit: of `ActionCodec`.
        value_head: how outputs encode the return; None = its mean.
        quantiles: short for a `value_head` of this many quantiles.
        dueling: separate layers for the value of the observation and the advantages of choices, see `Dueling`.
        encoder: of observations, as `Encoded` takes it.
        core, core_size: of a recurrent layer before the last of `hidden`, which members share; see `Encoded`.
        layers: a recipe of a module of your own in place of encoder and layers, called for each member; or the module
            of a single member. It maps (observation), with a Box action (observation, c), to rows [B, outputs].

    Raises:
        SpaceError: the value head does not fit the action space, or `dueling` has no choices.
        ConfigError: `value_head` is not a value head, or both `value_head` and `quantiles` are given.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (256, 256),
        members: int = 2,
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str | Initializer = "default",
        joint_limit: int = 64,
        value_head: ValueHead | None = None,
        quantiles: int | None = None,
        dueling: bool = False,
        encoder: nn.Module | Recipe | None = None,
        core: Kind | None = None,
        core_size: int = 64,
        layers: Layers | None = None,
    ) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces, joint_limit=joint_limit)
        self.members = members
        self.value_head = _chosen(value_head, quantiles)
        self.value_head.fit(self.codec)
        self.own = layers is not None
        self.layers: Any
        if layers is not None:
            self._use_own(layers, spaces, encoder=encoder, core=core, dueling=dueling)
            return
        shape: dict[str, Any] = {"activation": activation, "init": init, "layer_norm": layer_norm}
        core_options: dict[str, Any] = {"core": core, "core_size": core_size, "behind": True}
        features, hidden = self.use_layers(encoder, spaces, hidden, **core_options, **shape)
        inputs = features + self.codec.continuous
        options: dict[str, Any] = {"members": members, "hidden": hidden, "dropout": dropout, **shape}
        if dueling:
            self.layers = Dueling(inputs, self.codec, size=self.value_head.size, **options)
        else:
            self.layers = Ensemble(inputs, (self.codec.width or 1) * self.value_head.size, **options)

    def _use_own(self, layers: Layers, spaces: Spaces, *, encoder: Any, core: Kind | None, dueling: bool) -> None:
        require_alone(encoder, core)
        if dueling:
            raise ConfigError("a network of your own has no dueling layers; remove algorithm.dueling")
        self.read(spaces)
        self.encoder, self.layers = nn.Identity(), OwnMembers(layers, self.members)
        rows, _ = self._rows(zeros(spaces.observation))
        inputs = (rows, torch.zeros(2, self.codec.continuous)) if self.codec.continuous else (rows,)
        width, size = self.codec.width or 1, self.value_head.size
        count = width * size + 1  # rows and outputs differ in number, so that swapping them is noticed
        meaning = f"{'choices' if self.codec.discrete else 'value'}{f' × {size} numbers each' if size > 1 else ''}"
        for member in self.layers:
            require_outputs(outputs_of(member, *inputs, place="layers"), {width * size: meaning}, layers)
        with probing(self):
            self._of_own(zeros(spaces.observation, count), torch.zeros(count, self.codec.continuous))

    def forward(self, observation: Tree, c: Tensor | None = None) -> Tensor:
        """Return the values of an observation and the continuous part c [B, A] of an action."""
        return self.value_head.mean(self.raw_output(observation, c))

    def raw_output(self, observation: Tree, c: Tensor | None = None) -> Tensor:
        """Return the raw outputs; `value_head` decodes them."""
        output = self._of_own(observation, c) if self.own else part_of(self, "layers")(self._inputs(observation, c))
        return self.value_head.laid_out(output, self.codec)

    def doubled(self, observation: Tree, c: Tensor | None = None) -> Tensor:
        """Return the values computed in double precision, for comparing close ones."""
        if self.own:
            own: Tensor = self(observation, c)
            return own.double()
        weights = {name: value.double() for name, value in self.layers.named_parameters()}
        output = functional_call(self.layers, weights, self._inputs(observation, c).double())
        return self.value_head.mean(self.value_head.laid_out(output, self.codec))

    def _inputs(self, observation: Tree, c: Tensor | None) -> Tensor:
        value = self.encode(observation)
        return value if c is None else torch.cat((value, c), -1)

    def _of_own(self, observation: Tree, c: Tensor | None) -> Tensor:
        rows, lead = self._rows(present(observation))
        inputs = (rows,) if c is None or not self.codec.continuous else (rows, c.reshape(-1, c.shape[-1]))
        output = self.layers(*inputs)
        return output.reshape(self.members, *lead, -1)  # type: ignore[no-any-return]


def _chosen(value_head: ValueHead | None, quantiles: int | None) -> ValueHead:
    if value_head is not None and not isinstance(value_head, ValueHead):
        raise ConfigError(
            f"algorithm.value_head: wanted null or a _target_ such as rlrun.nn.Quantiles, got {value_head!r}"
        )
    if quantiles is None:
        return Numbers() if value_head is None else value_head
    if type(value_head) is Rewards:
        return RewardQuantiles(value_head.weights, Quantiles(quantiles))
    if value_head is not None:
        raise ConfigError(
            f"critics learn {quantiles} quantiles of a return or {type(value_head).__name__.lower()}, not both: "
            "remove algorithm.quantiles or algorithm.value_head (+with=hlgauss)"
        )
    return Quantiles(quantiles)


class Value(Encoded):
    """The value V(s) of an observation: [B], or [B, R] with a `Rewards` value head of R rewards."""

    def __init__(
        self,
        spaces: Spaces,
        *,
        value_head: ValueHead | None = None,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        init: str | Initializer = "orthogonal",
        output_gain: float | None = 1.0,
        encoder: nn.Module | Recipe | None = None,
        core: Kind | None = None,
        core_size: int = 64,
        layers: Layers | None = None,
    ) -> None:
        super().__init__()
        self.rewards = value_head if isinstance(value_head, Rewards) else None
        size = 1 if self.rewards is None else self.rewards.size
        self.layers: nn.Module
        if layers is not None:
            self.use_own(layers, spaces, {size: "value"}, encoder=encoder, core=core)
            self.layers = nn.Identity()
            return
        features, hidden = self.use_layers(
            encoder, spaces, hidden, core=core, core_size=core_size, layer_norm=layer_norm, init=init
        )
        options: dict[str, Any] = {"hidden": hidden, "activation": activation, "layer_norm": layer_norm}
        self.layers = MLP(features, size, init=init, output_gain=output_gain, **options)

    def forward(self, observation: Tree) -> Tensor:
        value: Tensor = part_of(self, "layers")(self.encode(observation))
        return value.squeeze(-1) if self.rewards is None else value


class ImplicitCritics(Encoded):
    """M implicit quantile networks of the return of continuous actions (Dabney et al. 2018, arXiv 1806.06923).

        φ_i(τ)    = sigmoid(Σ_k w_ki cos(π k τ) + b_i),  k = 1 … cosines
        Z(s, c; τ) = head(f(s, c) · φ(τ)),  a layer with a norm, and one that gives a number

    Args:
        spaces: of the environment.
        hidden: widths of the layers of f; the last one is the head's width, too.
        members: M.
        count: number of equally spaced quantiles that a mean averages.
        cosines: features of a fraction.
        activation, layer_norm, dropout, init: of the layers, as `Ensemble` takes them.
        value_head: `Rewards`, for quantiles of each of R rewards' returns; None = one reward.
        encoder: of observations, as `Encoded` takes it.
        core, core_size: of a recurrent layer before the last of `hidden`, as `Critics` have it.

    Raises:
        SpaceError: the action has discrete parts.
        ConfigError: another value head is given, or no hidden layer.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (256, 256),
        members: int = 2,
        count: int = 32,
        cosines: int = 64,
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str | Initializer = "default",
        value_head: ValueHead | None = None,
        encoder: nn.Module | Recipe | None = None,
        core: Kind | None = None,
        core_size: int = 64,
    ) -> None:
        require_continuous(spaces.action, type(self).__name__)
        if value_head is not None and type(value_head) is not Rewards:
            raise ConfigError(f"{type(self).__name__} has quantiles; remove algorithm.value_head (+with=hlgauss)")
        if not hidden:
            raise ConfigError("hidden: wanted at least one layer before the quantiles")
        super().__init__()
        self.codec = ActionCodec(spaces)
        self.value_head = Numbers() if value_head is None else value_head
        self.count, self.cosines, self.members = count, cosines, members
        options: dict[str, Any] = {"activation": activation, "init": init, "layer_norm": layer_norm}
        options |= {"core": core, "core_size": core_size, "behind": True}
        inputs, hidden = self.use_layers(encoder, spaces, hidden, **options)
        inputs += self.codec.continuous
        *below, width = hidden
        layers: dict[str, Any] = {"members": members, "activation": activation, "dropout": dropout, "init": init}
        self.features = Ensemble(inputs, width, hidden=below, layer_norm=layer_norm, **layers)
        self.fractions = Ensemble(cosines, width, members=members, hidden=(), init=init)
        self.head = Ensemble(width, self.value_head.size, hidden=(width,), layer_norm=True, **layers)
        self.activation = activation_module(activation)

    def forward(self, observation: Tree, c: Tensor) -> Tensor:
        """Return the means [M, B] over equally spaced quantiles; [M, R, B] of several rewards."""
        points = ops.fixed_fractions(self.count, like=c).points
        return self.raw_output(observation, c, points.expand(*c.shape[:-1], self.count)).mean(-1)

    def raw_output(self, observation: Tree, c: Tensor, points: Tensor) -> Tensor:
        """Return the quantiles [M, B, N] of fractions [B, N] between 0 and 1; [M, R, B, N] of several rewards."""
        seen = torch.cat((self.encode(observation), c), -1)
        turns = math.pi * torch.arange(1, self.cosines + 1, device=c.device, dtype=c.dtype)
        with products(seen, self.head.work):  # these are hidden layers here, so their last ones may run in bfloat16
            features = self.activation(self.features(seen))  # [M, B, width]
            weights = self.fractions((points.unsqueeze(-1) * turns).cos()).sigmoid()  # [M, B, N, width]
            both = features.unsqueeze(-2) * weights
        result: Tensor = self.head(both.to(c.dtype), shared=False)
        return result.movedim(-1, 1) if isinstance(self.value_head, Rewards) else result.squeeze(-1)
