"""MERLIN: a predictor with an external memory, and an actor that reads it (Wayne et al. 2018, arXiv 1803.10760).

The predictor learns latents z of observations, given its memory, and stores them:

    h_t, m_t    = LSTM([z_{t-1}, a_{t-1}, m_{t-1}]), read(M_{t-1}, keys(h_t))
    M_t         = write(M_{t-1}, z_{t-1})                                                without gradient
    p(z_t)      = N(μ_p, σ_p²)      of [h_t, m_t]
    q(z_t | o_t) = N(μ_p + μ, σ_p² σ²)      of [encoder(o_t), h_t, m_t, μ_p, log σ_p²]
    L_predictor = Σ_decoders w distance(decoder(z_t), o_t) + w_KL KL(q ‖ p) + w_Q (Q(z_t, a_t) - R_t)²

The actor's layers take z without its gradient, the value with it:

    g_t, n_t    = LSTM(z_t), read(M_t, keys(g_t)),   π(a | z_t, g_t, n_t),   V(z_t)
    L           = w_P L_predictor + w_A L_actor             L_actor of `rlrun.algorithms.on_policy.a2c`, say

As in ALF, actions are not decoded, and V does not read the policy. The retroactive writes and Q of the paper, which ALF
lacks, are options.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, require_distance
from rlrun.core.errors import ConfigError, require_number, require_whole
from rlrun.core.spaces import ACTION_MASK, Spaces, map_tree, with_parts, without_mask
from rlrun.core.spaces import leaves as leaves_of
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec, ActionHead, Heads
from rlrun.nn.actor_critic import Evaluated
from rlrun.nn.decoders import Decoder
from rlrun.nn.encoders import Encoded, Recipe, flatten
from rlrun.nn.external_memory import ExternalMemory, Reader, focus
from rlrun.nn.mlp import MLP, Activation
from rlrun.nn.policy import require_bounded
from rlrun.nn.recurrent import Stack
from rlrun.training.metrics import Metric

State = dict[str, Any]
LOG_VARIANCE = 8.0  # log-variances are within ± this


class Predicted(NamedTuple):
    """The predictor's outputs for a step [B, …] or windows [B, T, …]."""

    latent: Tensor  # [..., Z], is stored in memory and read by the actor
    drawn: Tensor  # [..., Z], a draw of the posterior, which is decoded
    divergence: Tensor  # [...], KL(q ‖ p) in nats
    memory: State  # after the write, [..., slots, row] and the like
    weights: Tensor  # [..., K, slots], of the keys' reads


class LatentDecoder(nn.Module):
    """Predict observations, or parts of them, from latents.

    Args:
        spaces: of the environment.
        latent: size of a latent.
        leaves: parts of observations, by their paths; None = all but an action mask.
        hidden, activation: of the dense layers.
        network: recipe of a module in their place, as `rlrun.nn.Decoder` takes it, such as `rlrun.nn.ResNetDecoder`.
        distance: a function of prediction and target, entry by entry; None = their squared difference.
        weight: of this decoder's loss.

    Raises:
        ConfigError: an option is invalid, or the network has the wrong number of outputs.
        SpaceError: there is no such part.
    """

    def __init__(
        self,
        spaces: Spaces,
        latent: int,
        *,
        leaves: Sequence[str] | None = None,
        hidden: Sequence[int] = (200,),
        activation: Activation = "relu",
        network: Recipe | None = None,
        distance: ops.Distance | None = None,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        require_distance(distance, None)
        require_number("weight", weight, 0.0)
        self.space, self.weight = without_mask(spaces.observation), weight
        if leaves is not None:
            self.space = with_parts(self.space, leaves, place="leaves")
        self.distance = distance or ops.distance
        only = [leaf for _, leaf in leaves_of(self.space)]
        target = only[0] if len(only) == 1 else self.space
        self.decoder = Decoder(target, latent, hidden=hidden, activation=activation, network=network)

    def forward(self, latent: Tensor, observation: Tree) -> Tensor:
        """Return the distances [...] of decoded latents [..., Z] to observations, summed over their numbers."""
        return self.distance(self.decoder(latent), flatten(self.space, observation)).sum(-1)


class Predictor(Encoded):
    """The memory-based predictor: latents of observations, given its memory.

    Args:
        spaces: of the environment.
        latent: size of z.
        lstm_size: widths of the layers of its LSTM.
        slots: number of slots of the memory.
        keys: number of reads in each step.
        hidden: widths of the layers of prior, posterior and Q.
        decoders: recipes of decoders from latents to observations, by name; None = omit this one.
        encoder: of observations, as `rlrun.nn.Encoded` takes it.
        drawn: latents are draws of the posterior, new in each pass, not its mean.
        decay, retroactive: of the memory, see `rlrun.nn.ExternalMemory`.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        latent: int = 32,
        lstm_size: Sequence[int] = (64,),
        slots: int = 64,
        keys: int = 3,
        hidden: Sequence[int] = (64,),
        decoders: Mapping[str, Callable[..., nn.Module] | None],
        encoder: nn.Module | Recipe | None = None,
        drawn: bool = False,
        decay: float | None = None,
        retroactive: float | None = None,
    ) -> None:
        super().__init__()
        require_whole("latent", latent, 1)
        self.codec = ActionCodec(spaces)
        self.latent, self.drawn = latent, drawn
        features = self.use_encoder(encoder, spaces)
        if getattr(self.encoder, "state_size", 0):
            raise ConfigError("encoder: MERLIN remembers by itself; remove encoder=recurrent")
        self.memory = ExternalMemory(slots, latent, decay=decay, retroactive=retroactive)
        self.actions = self.codec.continuous + self.codec.width
        read = keys * self.memory.row
        self.lstm = Stack(latent + self.actions + read, lstm_size)
        self.reader = Reader(self.memory, self.lstm.size, keys)
        known = self.lstm.size + read
        self.prior = MLP(known, 2 * latent, hidden=hidden, activation="tanh", output_gain=0.1)
        self.posterior = MLP(features + known + 2 * latent, 2 * latent, hidden=hidden, activation="tanh")
        self.q = MLP(latent + self.actions, 1, hidden=hidden)
        built = {name: decoder(spaces, latent) for name, decoder in decoders.items() if decoder is not None}
        self.decoders = nn.ModuleDict(built)

    @property
    def shapes(self) -> dict[str, Any]:
        """Shapes of the state of one environment: the step before it, the LSTM and the memory."""
        sizes = {"latent": self.latent, "action": self.actions, "read": self.reader.size, "lstm": self.lstm.state_size}
        return {name: [size] for name, size in sizes.items()} | {"memory": self.memory.shapes}

    def step(self, features: Tensor, state: State, draw: bool = True) -> tuple[Predicted, State]:
        """Return the prediction for a step, and the next state.

        `action` of that state is not updated yet: the caller sets it to the action that is taken.

        features: of observations, [B, F]; draw: False takes means in place of draws.
        """
        hidden, lstm = self.lstm.step(torch.cat((state["latent"], state["action"], state["read"]), -1), state["lstm"])
        found, weights, memory = self.reader(hidden, state["memory"])
        memory = self.memory.write(memory, state["latent"].detach())
        known = torch.cat((hidden, found), -1)
        prior = self.prior(known)
        posterior = self.posterior(torch.cat((features, known, prior), -1))
        mean, log_variance = posterior.chunk(2, -1)
        prior_mean, prior_log_variance = prior.chunk(2, -1)
        log_variance, prior_log_variance = (
            part.clamp(-LOG_VARIANCE, LOG_VARIANCE) for part in (log_variance, prior_log_variance)
        )
        divergence = 0.5 * (mean.square() * (-prior_log_variance).exp() + log_variance.exp() - log_variance - 1.0)
        mean = mean + prior_mean
        drawn = mean
        if draw:
            drawn = mean + (0.5 * (log_variance + prior_log_variance)).exp() * ops.normal_like(mean)
        latent = drawn if self.drawn else mean
        after = {"latent": latent, "action": state["action"], "read": found, "lstm": lstm, "memory": memory}
        return Predicted(latent, drawn, divergence.sum(-1), dict(memory), weights), after

    def forward(self, observation: Tree, action: Tree, state: State, episode_end: Tensor | None = None) -> Predicted:
        """Return the predictions of single steps [B, …], or of windows [B, T, …].

        action: taken there; state: before them; episode_end: [B, T], the next row begins with a state of zeros.
        """
        features = self.encode(observation)
        if features.dim() < 3:
            return self.step(features, state)[0]
        coded, steps = self.codec.coded(action), []
        for at, row in enumerate(features.unbind(1)):
            predicted, state = self.step(row, state)
            state = begun({**state, "action": coded[:, at]}, episode_end, at)
            steps.append(predicted)
        latent, drawn, divergence, weights = (
            torch.stack([getattr(step, name) for step in steps], 1)
            for name in ("latent", "drawn", "divergence", "weights")
        )
        memory = {name: torch.stack([step.memory[name] for step in steps], 1) for name in steps[0].memory}
        return Predicted(latent, drawn, divergence, memory, weights)


def begun(state: Tree, episode_end: Tensor | None, at: int) -> Any:
    """Return a state [B, …], reset to zeros where the episode ends with row `at` by episode_end [B, T]."""
    if episode_end is None:
        return state
    over = episode_end[:, at]
    return map_tree(lambda part: part.masked_fill(over.reshape(-1, *[1] * (part.dim() - 1)), 0.0), state)


class MemoryActor(nn.Module):
    """The memory-based actor: π and V of latents, with an LSTM and keys of its own.

    Its observations are trees of `latent` and `memory`, and of `action_mask` where the environment has one.

    Args:
        spaces: of the environment.
        predictor: whose memory it reads.
        lstm_size: widths of the layers of its LSTM.
        keys: number of reads in each step.
        hidden, value_hidden: widths of the layers of policy and value; None = the same.
        options: of `rlrun.nn.ActionHead`.

    Raises:
        SpaceError: the action space has a Box without bounds.
        ConfigError: an option is invalid.
    """

    def __init__(
        self,
        spaces: Spaces,
        predictor: Predictor,
        *,
        lstm_size: Sequence[int] = (64,),
        keys: int = 1,
        hidden: Sequence[int] = (200,),
        value_hidden: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        require_bounded(spaces.action, type(self).__name__)
        latent, below = predictor.latent, [*hidden]
        self.lstm = Stack(latent, lstm_size)
        self.reader = Reader(predictor.memory, self.lstm.size, keys)
        known = latent + self.lstm.size + self.reader.size
        width = below[-1] if below else known
        self.trunk: nn.Module = nn.Identity()
        if below:
            self.trunk = MLP(known, width, hidden=below[:-1], activation="tanh", output_activation="tanh")
        self.head = ActionHead(spaces, width, **options)
        self.critic = MLP(latent, 1, hidden=below if value_hidden is None else value_hidden, activation="tanh")
        self.codec = self.head.codec
        self.state_size = self.lstm.state_size

    def heads(self, observation: Tree, state: State, episode_end: Tensor | None = None) -> Heads:
        """Return the distribution at each observation; see `Predictor.forward` for state and episode_end."""
        return self.advanced(observation, state["actor"], episode_end)[0]

    def advanced(
        self, observation: Tree, state: Tensor, episode_end: Tensor | None = None
    ) -> tuple[Heads, Tensor, Tensor]:
        """Return the distribution at each observation, the LSTM's state [B, S] after the last one, and the weights.

        The weights of the memory reads are [..., K, slots].
        """
        latent = observation["latent"].detach()
        if latent.dim() < 3:
            hidden, state = self.lstm.step(latent, state)
        else:
            steps = []
            for at, row in enumerate(latent.unbind(1)):
                output, state = self.lstm.step(row, state)
                state = begun(state, episode_end, at)
                steps.append(output)
            hidden = torch.stack(steps, 1)
        found, weights, _ = self.reader(hidden, observation["memory"])
        features = self.trunk(torch.cat((latent, hidden, found), -1))
        return self.head(features, observation), state, weights

    def value(self, observation: Tree, *_: Any) -> Tensor:
        """Return V(z) [...]."""
        value: Tensor = self.critic(observation["latent"])
        return value.squeeze(-1)

    def evaluate_actions(
        self, observation: Tree, action: Tree, state: State, episode_end: Tensor | None = None
    ) -> Evaluated:
        """Evaluate observations and the actions taken there; see `Predictor.forward` for state and episode_end."""
        heads, _, weights = self.advanced(observation, state["actor"], episode_end)
        head, shown = self.head, {"memory/focus": focus(weights)}
        return Evaluated(head.log_prob(heads, action), self.value(observation), heads, head, head.noise(heads), shown)


class Merlin(nn.Module):
    """Predictor and actor as one recurrent network, with the interface of those in `rlrun.nn`.

    Its state is a tree: that of the predictor (`latent`, `action` and `read` of the step before, `lstm`, `memory`), and
    that of the `actor`.

    Args:
        spaces: of the environment.
        predictor, actor: recipes of both; they get `spaces`, and the actor the predictor.

    Attributes:
        mbp, mba: the memory-based predictor and actor.
    """

    follows_actions = True

    def __init__(
        self, spaces: Spaces, *, predictor: Callable[..., Predictor], actor: Callable[..., MemoryActor]
    ) -> None:
        super().__init__()
        self.mbp = predictor(spaces=spaces)
        self.mba = actor(spaces=spaces, predictor=self.mbp)
        self.head, self.codec = self.mba.head, self.mba.codec

    @property
    def state_size(self) -> dict[str, Any]:
        """Shapes of the state of one environment, as a tree."""
        return {**self.mbp.shapes, "actor": [self.mba.state_size]}

    def initial_state(self, count: int) -> Any:
        """Return the state of new episodes: zeros."""
        like = next(self.parameters())
        return _zeros(self.state_size, count, like)

    def _step(self, observation: Tree, state: State, explore: bool = True) -> tuple[Predicted, State]:
        return self.mbp.step(self.mbp.encode(observation), state, explore and self.mbp.drawn)

    def advance(self, observation: Tree, state: State, explore: bool = True) -> tuple[Tree, State]:
        """Return actions [B, …], drawn or the most likely ones, and the state after them."""
        predicted, after = self._step(observation, state, explore)
        heads, actor, _ = self.mba.advanced(seen(predicted, observation), state["actor"])
        action = self.head.draw(heads) if explore else self.head.mode(heads)
        return action, {**after, "action": self.codec.coded(action), "actor": actor}

    def after(self, observation: Tree, state: State, action: Tree) -> State:
        """Return the state after observations [B, …] and the actions that were taken."""
        predicted, after = self._step(observation, state)
        _, actor, _ = self.mba.advanced(seen(predicted, observation), state["actor"])
        return {**after, "action": self.codec.coded(action), "actor": actor}

    def value(self, observation: Tree, state: State) -> Tensor:
        """Return the values [B] of single observations."""
        return self.mba.value(seen(self._step(observation, state)[0], observation))

    def heads(self, observation: Tree, state: State) -> Heads:
        """Return the distribution of actions at single observations [B, …]."""
        predicted, _ = self._step(observation, state)
        return self.mba.heads(seen(predicted, observation), state)

    def evaluate_actions(
        self, observation: Tree, action: Tree, state: State, episode_end: Tensor | None = None
    ) -> Evaluated:
        """Evaluate observations and the actions taken there; see `Predictor.forward` for state and episode_end."""
        predicted = self.mbp(observation, action, state, episode_end)
        return self.mba.evaluate_actions(seen(predicted, observation), action, state, episode_end)


def seen(predicted: Predicted, observation: Tree) -> dict[str, Any]:
    """Return the actor's observation of a prediction."""
    flags = {ACTION_MASK: observation[ACTION_MASK]} if _masked(observation) else {}
    return {"latent": predicted.latent, "memory": predicted.memory, **flags}


def _masked(observation: Tree) -> bool:
    return isinstance(observation, dict) and ACTION_MASK in observation


def _zeros(shapes: Any, count: int, like: Tensor) -> Any:
    if isinstance(shapes, dict):
        return {name: _zeros(shape, count, like) for name, shape in shapes.items()}
    return like.new_zeros(count, *shapes)


class PredictorLoss(LossCallback):
    """The distance of decoded observations, and the divergence of the posterior from the prior.

    It provides `predicted`, which the actor's loss reads in place of observations.

    Args:
        network: the predictor.
        divergence_weight: of KL(q ‖ p).
        q_weight: of the distance of Q(z, a) to the return; 0 = Q does not learn.
        options: of `LossCallback`.
    """

    provides = ("predicted",)

    def __init__(
        self,
        network: Predictor,
        optimizer: Any,
        *,
        divergence_weight: float = 1.0,
        q_weight: float = 0.0,
        **options: Any,
    ) -> None:
        require_number("divergence_weight", divergence_weight, 0.0)
        require_number("q_weight", q_weight, 0.0)
        super().__init__(network, optimizer, **options)
        self.predictor = network
        self.divergence_weight, self.q_weight = divergence_weight, q_weight

    def loss(
        self,
        observation: Tree,
        action: Tree,
        return_: Tensor,
        state: Any,
        episode_end: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> LossResult:
        predictor = self.predictor
        predicted = predictor(observation, action, state, episode_end)
        distances = {name: decoder(predicted.drawn, observation) for name, decoder in predictor.decoders.items()}
        loss = self.divergence_weight * predicted.divergence
        for name, distance in distances.items():
            loss = loss + predictor.decoders[name].weight * distance
        metrics = {f"decoder/{name}": Metric((distance,), valid=valid) for name, distance in distances.items()}
        if self.q_weight:
            q = predictor.q(torch.cat((predicted.latent, predictor.codec.coded(action)), -1)).squeeze(-1)
            loss = loss + self.q_weight * ops.distance(q, return_)
            metrics["q/explained_variance"] = Metric((q, return_), "explained_variance", valid)
        metrics["predictor/divergence"] = Metric((predicted.divergence,), valid=valid)
        metrics["predictor/focus"] = Metric((focus(predicted.weights),), valid=valid)
        loss = loss if valid is None else ops.over_valid(loss, valid)
        return loss, {"predicted": seen(predicted, observation)}, metrics
