"""Latents from which later rewards, observations and other columns are decoded, given the actions between.

    z_0 = encoder(o_t),   h_0 = z_0 or a linear map of it
    z_k, h_k = dynamics(a_{t+k-1}, h_{k-1})                              k = 1 … R
    L = Σ_decoders w / (R + 1) Σ_k valid_k mean_i distance(decoder(z_k)_i, y_{t+k,i})

The dynamics are recurrent over actions and read no later observation. y is any column; positions after the end of the
episode are not valid. With R = 0 the encoder and its decoders are an autoencoder. An algorithm reads latents instead of
observations, or a planner acts by the rewards decoded from imagined latents.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, require_distance
from rlrun.core.errors import ConfigError, did_you_mean, require_at_least, require_number
from rlrun.core.spaces import Composite, Space, Spaces, without_mask
from rlrun.core.typing import Batch, Tree
from rlrun.nn.dynamics import Coded, Imagined
from rlrun.nn.encoders import EncodedMLP, Recipe, flatten, from_recipe
from rlrun.nn.latent import SharedFeatures
from rlrun.nn.mlp import MLP, Activation, outputs_of
from rlrun.nn.own import Layers
from rlrun.nn.recurrent import Core
from rlrun.training.metrics import Metric

FLAGS = ("terminated", "truncated")
RATE = 0.001  # least share of the newest batch in the statistics of targets
STILL = 1e-10  # targets up to this variance count as constant


class FieldDecoder(nn.Module):
    """Predict a column from latents.

    Args:
        spaces: of the environment.
        inputs: size of a latent.
        field: the column, or a leaf of it, such as `observation.position`.
        size: numbers of a column that is not the environment's; None = it is the environment's.
        hidden, activation: of its layers, as `MLP` takes them.
        network: a recipe of a module of your own, [..., inputs] -> [..., outputs]; it gets `inputs` and `outputs`, if
            it takes these.
        distance: a function of prediction and target, entry by entry; None = smooth L1.
        weight: w of its loss.
        normalize: targets and predictions are normalized within the loss, by running statistics of the targets.
        each: metrics show each number of the column, too.

    Raises:
        ConfigError: there is no such column, or an option is invalid.
    """

    shift: Tensor  # [outputs], like deviation: running statistics of the targets
    deviation: Tensor
    seen: Tensor  # batches in these statistics

    def __init__(
        self,
        spaces: Spaces,
        inputs: int,
        *,
        field: str,
        size: int | None = None,
        hidden: Sequence[int] = (64,),
        activation: Activation = "relu",
        network: Recipe | None = None,
        distance: ops.Distance | None = None,
        weight: float = 1.0,
        normalize: bool = False,
        each: bool = False,
    ) -> None:
        super().__init__()
        require_distance(distance, None)
        require_number("weight", weight)
        self.field, self.weight, self.normalize, self.each = field, weight, normalize, each
        self.distance = distance or partial(F.smooth_l1_loss, reduction="none")
        self.space = _space(spaces, field)
        if self.space is not None:
            size = self.space.size
        elif field == "reward":
            size = spaces.rewards or 1
        elif field in FLAGS:
            size = 1
        if size is None:
            raise ConfigError(f"field: '{field}' is no column of the environment; a column of your own wants a size")
        options: dict[str, Any] = {"hidden": hidden, "activation": activation}
        self.network = from_recipe(network or MLP, inputs=inputs, outputs=size, **options)
        if (made := outputs_of(self.network, torch.zeros(2, inputs))) != size:
            raise ConfigError(f"network: it makes {made} numbers, but '{field}' has {size}")
        for name, value in {"shift": torch.zeros(size), "deviation": torch.ones(size), "seen": torch.zeros(())}.items():
            self.register_buffer(name, value)

    def forward(self, latent: Tensor) -> Tensor:
        """Return predictions [..., outputs] of latents [..., Z]."""
        predicted: Tensor = self.network(latent)
        return predicted

    def numbers(self, target: Tree, lead: Sequence[int]) -> Tensor:
        """Return targets [*lead, …] as numbers [*lead, outputs]; choices are one-hot."""
        if self.space is not None:
            return flatten(self.space, target)
        return target.reshape(*lead, -1).float()  # type: ignore[no-any-return]

    def statistics(self, target: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return the statistics, updated by the valid targets [..., outputs], by name."""
        share = (1.0 / (self.seen + 1.0)).clamp(min=RATE)
        counted = valid.unsqueeze(-1) / valid.sum().clamp(min=1.0)
        outer = tuple(range(valid.dim()))
        mean = (counted * target).sum(outer)
        variance = (counted * (target - mean).square()).sum(outer)
        mean, variance = ops.moved_moments(self.shift, self.deviation.square(), mean, variance, share)
        return {"shift": mean, "deviation": variance.sqrt(), "seen": self.seen + 1.0}


class Predictive(nn.Module):
    """An encoder of observations to latents, dynamics of latents over actions, and decoders of columns.

    Planners use it as they use `rlrun.nn.Dynamics`, by `rlrun.nn.WorldModel`. Their states are the recurrent states of
    the dynamics; of several rewards the first is planned for.

    Args:
        spaces: of the environment.
        decoders: recipes of decoders by name, as of `FieldDecoder`; they get `spaces` and `inputs`.
        steps: R, number of predicted steps.
        latent: size of a latent, Z.
        hidden, activation, output_activation: of the encoder's layers, as `MLP` takes them.
        encoder: of observations below them, as `Encoded` takes it.
        network: a module of your own in place of encoder and layers, or a recipe of it; or `SharedFeatures`, the
            encoder of critics, whose size is that of latents.
        dynamics: a recipe of a recurrent network over actions, such as `rlrun.nn.recurrent.Core`, with `size` Z,
            `state_size`, `step` and a call for windows; it gets `inputs` and `size`, if it takes these. None = a GRU.
        postprocessor: a function or module from latents to the features that algorithms read; no gradient reaches it.
            None = features are latents.

    Raises:
        ConfigError: there is no decoder, or a part has the wrong size.

    Attributes:
        fields: the column of each decoder, by its name.
        size: number of features.
    """

    elites, state_size, several = 1, 0, False  # no state is kept between real steps

    def __init__(
        self,
        spaces: Spaces,
        decoders: Mapping[str, Callable[..., FieldDecoder] | None],
        *,
        steps: int = 5,
        latent: int = 64,
        hidden: Sequence[int] = (64,),
        activation: Activation = "relu",
        output_activation: Activation | None = "tanh",
        encoder: nn.Module | Recipe | None = None,
        network: Layers | None = None,
        dynamics: Recipe | None = None,
        postprocessor: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        require_at_least("steps", steps, 0)
        require_at_least("latent", latent, 1)
        self.steps, self.latent, self.coded = steps, latent, Coded(spaces.action)
        options: dict[str, Any] = {"hidden": hidden, "activation": activation, "output_activation": output_activation}
        if isinstance(network, SharedFeatures):
            self.encoder: nn.Module = network
            self.latent = latent = network.size
        else:
            self.encoder = EncodedMLP(spaces, latent, encoder=encoder, layers=network, **options)
        recipes = {name: recipe for name, recipe in (decoders or {}).items() if recipe is not None}
        if not recipes:
            raise ConfigError("decoders: without a decoder nothing is learned")
        for name, recipe in recipes.items():
            if not callable(recipe):
                example = f"{{_target_: {__name__}.FieldDecoder, _partial_: true, field: reward}}"
                raise ConfigError(f"decoders.{name}: wanted a recipe, such as {example}, got {recipe!r}")
        built = {name: recipe(spaces=spaces, inputs=latent) for name, recipe in recipes.items()}
        self.decoders: Any = nn.ModuleDict(built)
        self.fields = {name: decoder.field for name, decoder in built.items()}
        by_field = {field: name for name, field in self.fields.items()}
        self.reward, self.end = by_field.get("reward"), by_field.get("terminated")
        self.dynamics: Any = None
        if steps:
            self.dynamics = from_recipe(dynamics or partial(Core, "gru"), inputs=self.coded.size, size=latent)
            for name in ("size", "state_size", "step"):
                if not hasattr(self.dynamics, name):
                    kind = type(self.dynamics).__name__
                    raise ConfigError(f"dynamics: a {kind} has no '{name}'; rlrun.nn.Core has what is wanted")
            if self.dynamics.size != latent:
                raise ConfigError(f"dynamics: wanted a size of {latent}, that of a latent; got {self.dynamics.size}")
            fits = self.dynamics.state_size == latent
            self.begin = nn.Identity() if fits else nn.Linear(latent, self.dynamics.state_size)
        self.postprocessor = postprocessor
        self.size = latent
        if isinstance(postprocessor, nn.Module):
            self.size = outputs_of(postprocessor, torch.zeros(2, latent), place="postprocessor")
        elif postprocessor is not None:
            self.size = postprocessor(torch.zeros(2, latent)).shape[-1]

    @property
    def rewards(self) -> bool:
        """Whether it predicts rewards of later steps, as planners need."""
        return self.reward is not None and self.dynamics is not None

    def features(self, observation: Tree) -> Tensor:
        """Return the features of observations [..., …]: latents, or the postprocessor's outputs."""
        latent: Tensor = self.encoder(observation)
        return latent if self.postprocessor is None else self.postprocessor(latent)

    def unroll(self, observation: Tree, action: Tree) -> Tensor:
        """Return the latents [..., R + 1, Z] of observations [..., …], and after each of the actions [..., R, …]."""
        first: Tensor = self.encoder(observation)
        if not self.steps:
            return first.unsqueeze(-2)
        rows = first.reshape(-1, self.latent)
        numbers = self.coded.numbers(action).reshape(len(rows), self.steps, -1)
        later = self.dynamics(numbers, self.begin(rows))
        return torch.cat((rows.unsqueeze(1), later), 1).reshape(*first.shape[:-1], self.steps + 1, self.latent)

    def numbers(self, observation: Tree) -> Tensor:
        """Return the initial states [..., S] of the dynamics at observations [..., …]."""
        state: Tensor = self.begin(self.encoder(observation))
        return state

    def predictor(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the function by which `step` predicts."""
        step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = self.dynamics.step
        return step

    def step(
        self,
        state: Tensor,
        action: Tensor,
        predictor: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        noise: Tensor | None = None,
    ) -> Imagined:
        """Return the next states, rewards and terminations of states [..., S] and actions as numbers [..., A].

        noise: unused, as predictions are deterministic.
        """
        lead = state.shape[:-1]
        latent, after = predictor(action.reshape(-1, action.shape[-1]), state.reshape(-1, state.shape[-1]))
        reward = self.decoders[self.reward](latent)[..., 0].reshape(lead)
        ended = None if self.end is None else self.decoders[self.end](latent).clamp(0.0, 1.0).reshape(lead)
        return Imagined(after.reshape(*lead, -1), reward, ended)


class PredictiveLoss(LossCallback):
    """The distance of decoded columns from those of later steps, which `rlrun.memory.Unrolled` provides."""

    network: Predictive

    @property
    def one_rank(self) -> str:
        """Why ranks cannot share its work; "" if they can."""
        normalized = any(decoder.normalize for decoder in self.network.decoders.values())
        return "statistics of targets are of the rows of its own batches (normalize)" if normalized else ""

    def loss(self, unrolled: Batch, seen: Tree | None = None) -> LossResult:
        """Return the loss; seen: the first observations as a shared encoder reads them, None = as they are stored."""
        valid = unrolled["valid"].float()  # [..., R + 1]
        first = unrolled["observation"] if seen is None else seen
        latents = self.network.unroll(first, unrolled["action"])
        total: Any = 0.0
        updates: dict[str, Tensor] = {}
        metrics: dict[str, Any] = {}
        for name, decoder in self.network.decoders.items():
            target = decoder.numbers(unrolled["target"][name], valid.shape)
            predicted = decoder(latents)
            metrics |= _explained(name, decoder, predicted, target, unrolled["valid"])
            if decoder.normalize:
                new = decoder.statistics(target, valid)
                updates |= {f"network.decoders.{name}.{key}": value for key, value in new.items()}
                deviation = new["deviation"].clamp(min=1e-5)
                target, predicted = ((value - new["shift"]) / deviation for value in (target, predicted))
            loss = (decoder.distance(predicted, target).mean(-1) * valid).mean(-1)
            metrics[f"predictive/loss_{name}"] = loss
            total = total + decoder.weight * loss
        return total, {"updates": updates}, metrics


def _explained(name: str, decoder: FieldDecoder, predicted: Tensor, target: Tensor, valid: Tensor) -> dict[str, Metric]:
    """Return explained variances by name of metric, of later steps; with R = 0 of the first position."""
    later = slice(min(1, valid.shape[-1] - 1), None)
    predicted, target, valid = predicted[..., later, :], target[..., later, :], valid[..., later]
    place = f"predictive/explained_{name}"
    metrics = {place: Metric((predicted, target), _explained_variance, valid)}
    for index in range(target.shape[-1]) if decoder.each else ():
        number = slice(index, index + 1)
        metrics[f"{place}/{index}"] = Metric((predicted[..., number], target[..., number]), _explained_variance, valid)
    return metrics


def _explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return 1 - Var(target - predicted) / Var(target), variances summed over numbers [B, N]; 0 for constants."""
    error, spread = (value.var(0).sum() for value in (target - predicted, target))
    return torch.where(spread > STILL, 1.0 - error / spread.clamp(min=STILL), 0.0)


def _space(spaces: Spaces, field: str) -> Space | None:
    """Return the space of observations or actions, or of a part of them; None for other columns.

    Raises:
        ConfigError: the environment's column has no such part.
    """
    root, *path = field.split(".")
    if root not in ("observation", "action"):
        return None
    space: Any = without_mask(spaces.observation) if root == "observation" else spaces.action
    for name in path:
        parts = space.parts if isinstance(space, Composite) else {}
        if name not in parts:
            raise ConfigError(f"field: the {root} has no part '{'.'.join(path)}'{did_you_mean(name, parts)}")
        space = parts[name]
    return space  # type: ignore[no-any-return]
