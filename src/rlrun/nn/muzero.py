"""The networks of MuZero: representation, dynamics and prediction of latents."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.compile.calls import part_of
from rlrun.core.errors import ConfigError, require_number, require_whole
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionHead, Spread
from rlrun.nn.encoders import EncodedMLP, Recipe, from_recipe
from rlrun.nn.mlp import MLP, Activation, outputs_of, require_widths
from rlrun.nn.own import Layers
from rlrun.nn.policy import require_bounded
from rlrun.nn.value_heads import TwoHot, ValueHead


class Predictions(NamedTuple):
    """Predictions from latents; None for a part that the network lacks.

    value: outputs of the value head [..., N].
    policy: parameters of the distribution over actions [..., P], which the network's `head` reads; logits where actions
        are a single choice.
    reward: outputs of the reward head [..., N'], of the action that led to the latent.
    ended: logit of the episode's end there [...].
    """

    value: Tensor
    policy: Tensor
    reward: Tensor | None
    ended: Tensor | None


class MuZeroNetwork(nn.Module):
    """Representation h, dynamics g and prediction f (Schrittwieser et al. 2020, arXiv 1911.08265).

        latent_0 = h(observation),   latent_k = g(latent_k-1, action),   predictions_k = f(latent_k)

    Latents are rows of numbers, scaled to [0, 1] by the minimum and maximum of each row. At first the policy's outputs
    are 0 and values are around 0.

    Args:
        spaces: of the environment.
        latent: numbers of a latent, Z.
        hidden: widths of the layers of h behind the encoder.
        representation: a module of your own from observations to Z numbers in place of both, or a recipe of it.
        dynamics: widths of the layers of g; or a recipe of a module of your own. It gets `inputs`, the size of a latent
            and an action with one-hot choices, and `outputs`, Z.
        prediction: widths of the layers of f, below one layer for all predictions; or likewise a recipe.
        value_head, reward_head: how returns and rewards are encoded; None = `TwoHot`.
        spread, log_std, distribution, joint_limit: of the policy, see `ActionHead`.
        rewards: rewards are predicted.
        ends: ends of episodes are predicted.
        end_bias: initial bias of the logit of an end.
        entropy_weight: initial weight of the policy's entropy in the loss.
        projection: width of the layers by which predicted latents are compared with those of observations (SimSiam,
            arXiv 2011.10566), or a recipe of such a module, which gets `inputs`; None = no comparison.
        activation, layer_norm: of all layers, as `MLP` takes them.
        encoder: of observations, as `Encoded` takes it.

    Raises:
        SpaceError: the action space has numbers without bounds.
        ConfigError: a number is out of range.
    """

    entropy_weight: Tensor

    def __init__(
        self,
        spaces: Spaces,
        *,
        latent: int = 128,
        hidden: Sequence[int] = (128,),
        representation: Layers | None = None,
        dynamics: Sequence[int] | Recipe = (128,),
        prediction: Sequence[int] | Recipe = (128,),
        value_head: ValueHead | None = None,
        reward_head: ValueHead | None = None,
        spread: Spread = "observation",
        log_std: float = 0.0,
        distribution: str = "squashed",
        joint_limit: int = 64,
        rewards: bool = True,
        ends: bool = True,
        end_bias: float = 0.0,
        entropy_weight: float = 0.0,
        projection: int | Recipe | None = None,
        activation: Activation = "relu",
        layer_norm: bool = False,
        encoder: nn.Module | Recipe | None = None,
    ) -> None:
        super().__init__()
        require_whole("latent", latent, 1)
        require_number("entropy_weight", entropy_weight, 0)
        require_number("end_bias", end_bias)
        require_bounded(spaces.action, type(self).__name__)
        normal: dict[str, Any] = {"spread": spread, "log_std": log_std, "distribution": distribution}
        self.head = ActionHead(spaces, None, **normal, joint_limit=joint_limit)
        self.codec, self.latent = self.head.codec, latent
        inputs, policy = latent + self.codec.continuous + self.codec.width, sum(self.head.widths)
        self.value_head: ValueHead = TwoHot() if value_head is None else value_head
        self.reward_head: ValueHead = TwoHot() if reward_head is None else reward_head
        for name, head in {"value_head": self.value_head, "reward_head": self.reward_head}.items():
            if not isinstance(head, ValueHead):
                raise ConfigError(f"{name}: wanted a value head, such as {{_target_: rlrun.nn.TwoHot}}, got {head!r}")
        layers: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm}
        own: dict[str, Any] = {"hidden": hidden, "encoder": encoder, "layers": representation, **layers}
        self.representation = EncodedMLP(spaces, latent, **own)
        self.dynamics = _layers("dynamics", dynamics, inputs, latent, **layers)
        self.widths = (self.value_head.size, policy, rewards * self.reward_head.size, int(ends))
        self.prediction = _layers("prediction", prediction, latent, sum(self.widths), widths=self.widths, **layers)
        first = (self.value_head.first_outputs(), self.head.first_outputs(), self.reward_head.first_outputs())
        outputs = torch.cat([part[:width] for part, width in zip(first, self.widths, strict=False)])
        outputs = torch.cat((outputs, torch.full((int(ends),), end_bias)))
        begin = 0
        for layer in self.last_layers():
            end = begin + layer.out_features
            nn.init.zeros_(layer.weight)
            with torch.no_grad():
                layer.bias.copy_(outputs[begin:end])
            begin = end
        self.register_buffer("entropy_weight", torch.tensor(float(entropy_weight)))
        self.projection: nn.Module | None = None
        self.predictor: nn.Module | None = None
        if projection is not None:
            if not callable(projection):
                require_whole("projection", projection, 1)
                self.projection = MLP(latent, projection, hidden=[projection], **layers)
            else:
                self.projection = from_recipe(projection, inputs=latent)
            size = outputs_of(self.projection, torch.zeros(2, latent), place="projection")
            self.predictor = MLP(size, size, hidden=[max(size // 2, 1)], **layers)

    def last_layers(self) -> list[nn.Linear]:
        """Return the last layers of the predictions, in their order; empty for modules of one's own."""
        last: Any = self.prediction[-1] if isinstance(self.prediction, MLP) else None
        return [] if last is None else [last]

    def represent(self, observation: Tree) -> Tensor:
        """Return the latents [..., Z] of observations [...]."""
        return scaled(part_of(self, "representation")(observation))

    def step(self, latent: Tensor, action: Tensor) -> Tensor:
        """Return the latents [..., Z] after latents [..., Z] and actions as `codec.coded` returns them."""
        return scaled(part_of(self, "dynamics")(torch.cat((latent, action), -1)))

    def predict(self, latent: Tensor) -> Predictions:
        """Return the predictions from latents [..., Z]."""
        value, policy, reward, ended = torch.split(part_of(self, "prediction")(latent), list(self.widths), -1)
        has_reward, has_end = self.widths[2:]
        return Predictions(value, policy, reward if has_reward else None, ended.squeeze(-1) if has_end else None)

    def decoded(self, latent: Tensor) -> Predictions:
        """Return the predictions from latents [..., Z], with values and rewards as numbers [...]."""
        predicted = self.predict(latent)
        reward = None if predicted.reward is None else mean_of(self.reward_head, predicted.reward)
        return predicted._replace(value=mean_of(self.value_head, predicted.value), reward=reward)

    def value(self, observation: Tree) -> Tensor:
        """Return the values [...] of observations [...]."""
        return mean_of(self.value_head, self.predict(self.represent(observation)).value)

    def unroll(self, observation: Tree, action: Tree, gradient: float = 0.5) -> Tensor:
        """Return the latents [B, R + 1, Z] of observations [B, …], and after the actions [B, R, …] that follow.

        gradient: factor of the gradient of each latent that g returns.
        """
        latent = self.represent(observation)
        latents = [latent]
        for taken in self.codec.coded(action).unbind(1):
            latent = self.step(latent, taken)
            latent = torch.lerp(latent.detach(), latent, gradient)
            latents.append(latent)
        return torch.stack(latents, 1)

    def similarity(self, latent: Tensor, seen: Tensor) -> Tensor:
        """Return the cosine [...] of predicted latents and those of observations, both [..., Z].

        The latter have no gradient.

        Raises:
            ConfigError: there is no projection.
        """
        if self.projection is None or self.predictor is None:
            raise ConfigError("projection: cosines are of projected latents; it wants a width")
        with torch.no_grad():
            wanted = self.projection(seen)
        return torch.cosine_similarity(self.predictor(self.projection(latent)), wanted, dim=-1)

    def act(self, observation: Tree, explore: bool) -> Tree:
        """Return actions [B, …] of the policy alone, without a search: drawn, or without noise."""
        heads = self.head(self.predict(self.represent(observation)).policy, observation)
        return self.head.draw(heads) if explore else self.head.mode(heads)

    @property
    def predicts_rewards(self) -> bool:
        """Whether rewards are predicted."""
        return self.widths[2] > 0


def _layers(
    name: str, spec: Sequence[int] | Recipe, inputs: int, outputs: int, widths: Sequence[int] = (), **options: Any
) -> nn.Module:
    """Return an MLP of these hidden widths, or the module of a recipe, which also gets `widths`, those of its outputs.

    Raises:
        ConfigError: the module gives another number of outputs.
    """
    if not callable(spec):
        require_widths(name, spec)
        return MLP(inputs, outputs, hidden=spec, **options)
    module = from_recipe(spec, inputs=inputs, outputs=outputs, widths=widths)
    if (made := outputs_of(module, torch.zeros(2, inputs), place=name)) != outputs:
        raise ConfigError(f"{name}: it makes {made} numbers of {inputs}, wanted {outputs}")
    return module


def mean_of(head: ValueHead, output: Tensor) -> Tensor:
    """Return the numbers [...] that outputs [..., N] of a value head encode."""
    return head.mean(output.squeeze(-1) if head.size == 1 else output)


def distance_of(head: ValueHead, output: Tensor, target: Tensor) -> Tensor:
    """Return the loss [...] of outputs [..., N] of a value head against target numbers [...]."""
    rows = output.reshape(1, -1, head.size)
    rows = rows.squeeze(-1) if head.size == 1 else rows
    return head.distance(rows, target.reshape(-1), huber=None).reshape(target.shape)


def scaled(latent: Tensor) -> Tensor:
    """Return latents [..., Z] scaled to [0, 1] by the minimum and maximum of each row (appendix G)."""
    low, high = latent.aminmax(dim=-1, keepdim=True)
    return (latent - low) / (high - low).clamp(min=1e-5)
