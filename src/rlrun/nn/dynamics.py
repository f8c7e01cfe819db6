"""Networks that predict what an environment does: the next observation, the reward, and whether the episode ends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlrun.core.errors import ConfigError, SpaceError, require_at_least
from rlrun.core.spaces import Box, Discrete, Leaf, MultiDiscrete, Space, Spaces, describe, leaves, tree_of, without_mask
from rlrun.core.typing import Tree
from rlrun.nn.encoders import Recipe, flatten, from_recipe
from rlrun.nn.ensemble import Ensemble
from rlrun.nn.mlp import MLP, Activation, outputs_of
from rlrun.nn.recurrent import Core, Plain
from rlrun.ops.distributions import one_hot

Function = Callable[..., Tensor]
# (inputs [E, N, I], recurrent state before them [E, N, S]) -> (outputs, state after them); states are None without a
# core
Members = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


class Outputs(NamedTuple):
    """Predictions of each member for a step, in normalized numbers."""

    mean: Tensor  # [M, B, K]: changes of the observation, then the reward
    log_variance: Tensor | None  # [M, B, K]; None of deterministic members
    end: Tensor | None  # [M, B]: logit of a termination


class Imagined(NamedTuple):
    """A step as a model predicts it."""

    state: Tensor  # [..., D]: the next observation as numbers, followed by the model's recurrent state
    reward: Tensor  # [...]; of several rewards [..., R]
    ended: Tensor | None  # [...]: probability of a termination; None = episodes never terminate


class Dynamics(nn.Module):
    """An ensemble that predicts s' - s, the reward and terminations from s and a (Chua et al. 2018, arXiv 1805.12114).

    Each member is a Gaussian of independent numbers, or deterministic. Inputs and targets are normalized by statistics
    of the training batches. s is the observation as one row of numbers, [..., D]; a is the policy's action likewise,
    choices one-hot.

    Args:
        spaces: of the environment.
        hidden: widths of the layers of each member.
        members: M.
        elites: members with the least error on held-out rows, which alone predict; None = all.
        deterministic: members predict no variance, and learn by squared errors.
        learned_bounds: the bounds of log-variances are parameters, which a small loss pulls together.
        log_variance: the initial bounds, in normalized numbers.
        rewards: the reward is predicted, too.
        ends: terminations are predicted, too.
        absolute: indices of observation numbers whose next value is predicted, in place of its change.
        features: a function from s [..., D] to the members' input [..., F]; None = s.
        activation: of the layers.
        rate: least share of the newest batch in the statistics.
        network: a recipe of one member of your own, [B, inputs] -> [B, outputs]; it gets `inputs` and `outputs`, if it
            takes these.
        several: each of several rewards of a step is predicted, in place of their sum.
        weights: by which planners sum several rewards, each of which is predicted then: a number for each, or a
            function that returns them as a tensor [R].
        core: gru or lstm: each member has such a layer over the steps of an episode, and reads its features beside the
            newest step. A state then is s followed by the member's recurrent state, [..., D + S].
        core_size: width of these layers.

    Raises:
        SpaceError: a part of the observation is an image, or a Box of whole numbers.
        ConfigError: a number is out of range.
    """

    shift: Tensor  # [I], like scale: members read (x - shift) * scale
    scale: Tensor
    target_shift: Tensor  # [K]
    target_scale: Tensor  # [K]: deviation of the targets
    held_out: Tensor  # [M]: running error on held-out rows, as a share of the members' mean
    seen: Tensor  # batches in the statistics
    ending: Tensor  # 1 once the data had a termination; predicted probabilities are 0 until then
    bounds: Tensor  # [2, K]: lowest and highest log-variance
    changes: Tensor  # [D]: 0 where the next value is predicted, 1 where its change is

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (200, 200, 200, 200),
        members: int = 5,
        elites: int | None = None,
        deterministic: bool = False,
        learned_bounds: bool = True,
        log_variance: tuple[float, float] = (-10.0, 0.5),
        rewards: bool = True,
        ends: bool = True,
        absolute: Sequence[int] = (),
        features: Callable[[Tensor], Tensor] | None = None,
        activation: Activation = "silu",
        rate: float = 0.01,
        network: Recipe | None = None,
        several: bool = False,
        weights: Sequence[float] | Callable[[], Tensor] | None = None,
        core: Plain | None = None,
        core_size: int = 64,
    ) -> None:
        super().__init__()
        require_at_least("members", members, 1)
        if not 0.0 < rate <= 1.0:
            raise ConfigError(f"rate: wanted a share above 0, at most 1, got {rate}")
        require_at_least("core_size", core_size, 1)
        seen = without_mask(spaces.observation)
        for path, leaf in leaves(seen):
            if isinstance(leaf, Box) and (leaf.image or not leaf.dtype.startswith("float")):
                part = f"'{path}' of the observation" if path else "the observation"
                raise SpaceError(f"a model predicts floats and choices; {part} is {describe(leaf)}")
        if elites is not None and not 1 <= elites <= members:
            raise ConfigError(f"elites: wanted a number from 1 to members={members}, got {elites}")
        if not log_variance[0] < log_variance[1]:
            raise ConfigError(f"log_variance: wanted a lower bound and a higher one, got {[*log_variance]}")
        self.coded, self.observations, self.size = Coded(spaces.action), Coded(seen), seen.size
        self.members, self.elites = members, elites or members
        self.deterministic, self.ends, self.rate = deterministic, ends, rate
        if weights is not None and not (spaces.rewards and rewards):
            there = "the reward of a step is one number" if rewards else "no reward is predicted"
            raise ConfigError(f"weights: {there}, so there is nothing to weigh")
        if weights is not None and not callable(weights):
            listed = isinstance(weights, Sequence) and not isinstance(weights, str)
            if not listed or not all(isinstance(number, int | float) and isfinite(number) for number in weights):
                raise ConfigError(f"weights: wanted a number for each reward, such as [1.0,0.5], got {weights!r}")
        self.several = rewards and bool(spaces.rewards) and (several or weights is not None)
        self.rewards = spaces.rewards if self.several else int(rewards)
        self._borrowed = (weights,)  # in a tuple: parameters of weights are not the model's
        self.features = features
        if wrong := [index for index in absolute if not 0 <= index < self.size]:
            raise ConfigError(f"absolute: the observation has numbers 0 to {self.size - 1}, not {wrong[0]}")
        width = self.size if features is None else _width(features, self.size)
        read, count = width + spaces.action.size, self.size + self.rewards
        self.cores: Any = nn.ModuleList([] if core is None else [Core(core, read, core_size) for _ in range(members)])
        inputs = read + (core_size if core else 0)
        outputs = count * (1 if deterministic else 2) + ends
        options: dict[str, Any] = {"hidden": hidden, "activation": activation}
        if network is None and members > 1:
            self.network: nn.Module = Ensemble(inputs, outputs, members=members, **options)
        else:
            recipe = network or MLP  # for one member, plain products take half the time of batched ones
            own = (from_recipe(recipe, inputs=inputs, outputs=outputs, **options) for _ in range(members))
            self.network = nn.ModuleList(own)
            for member in self.network:
                if (width := outputs_of(member, torch.zeros(2, inputs))) != outputs:
                    raise ConfigError(f"network: wanted {outputs} numbers of {inputs}, got {width}")
        bounds = torch.tensor(log_variance).unsqueeze(-1).expand(2, count).clone()  # lowest and highest [K]
        if learned_bounds and not deterministic:
            self.bounds = nn.Parameter(bounds)
        else:
            self.register_buffer("bounds", bounds)
        changes = torch.ones(self.size)
        changes[list(absolute)] = 0.0
        self.register_buffer("changes", changes, persistent=False)
        zeros = {"shift": (read,), "target_shift": (count,), "held_out": (members,), "seen": (), "ending": ()}
        for name, shape in zeros.items():
            self.register_buffer(name, torch.zeros(shape))
        for name, width in {"scale": read, "target_scale": count}.items():
            self.register_buffer(name, torch.ones(width))

    def numbers(self, observation: Tree) -> Tensor:
        """Return observations [..., …] as numbers [..., D]."""
        return self.observations.numbers(observation)

    def observation(self, state: Tensor) -> Tree:
        """Return states [..., D], or [..., D + S] with a recurrent state, as observations."""
        return self.observations.tree(state[..., : self.size] if self.cores else state)

    @property
    def state_size(self) -> int:
        """Size of the recurrent state of all members; 0 without a core."""
        return sum(core.state_size for core in self.cores)

    def begin(self, state: Tensor, past: Tensor) -> Tensor:
        """Return the elite's initial imagined states [E, B, D + S].

        state: [B, D]; past: recurrent states of all members, [B, M · S].
        """
        own = past.reshape(*past.shape[:-1], self.members, -1).transpose(0, 1)
        own = own if self.elites == self.members else own[self.elite()]
        return torch.cat((state.expand(self.elites, -1, -1), own), -1)

    def remember(self, state: Tensor, action: Tensor, past: Tensor) -> Tensor:
        """Return the recurrent state [B, M · S] after real states [B, D] and actions [B, A]."""
        inputs = self.normalized(state, action)
        pairs = zip(self.cores, past.chunk(self.members, -1), strict=True)
        return torch.cat([core.step(inputs, own)[1] for core, own in pairs], -1)

    def inputs(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the members' inputs at states [..., D] and actions as numbers [..., A], before normalization."""
        return torch.cat((state if self.features is None else self.features(state), action), -1)

    def normalized(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the members' normalized inputs [..., I] at states and actions."""
        return (self.inputs(state, action) - self.shift) * self.scale

    def targets(self, state: Tensor, after: Tensor, reward: Tensor | None) -> Tensor:
        """Return the targets of steps, before normalization: [..., K]."""
        change = after - self.changes * state
        if reward is None or not self.rewards:
            return change
        return torch.cat((change, reward if self.several else reward.unsqueeze(-1)), -1)

    def weights(self) -> Tensor:
        """Return the weights [R] of several rewards.

        Raises:
            ConfigError: their number differs from that of the rewards.
        """
        given = self._borrowed[0]
        weights = given() if callable(given) else self.shift.new_tensor([] if given is None else [*given])
        if weights.numel() != self.rewards:
            raise ConfigError(
                f"weights: a step has {self.rewards} rewards, and a plan wants one weight for each, such as "
                "algorithm.plan.weights=[1.0,0.5]"
            )
        return weights

    def forward(self, inputs: Tensor, past: Tensor | None = None) -> Outputs:
        """Return each member's predictions for its own normalized inputs [M, B, I].

        past: with a core, the recurrent state before windows of inputs [M, B, T, I]: [B, M · S], or [B, 0].
        """
        if past is None:
            return self._outputs(self._all(inputs))
        if not past.shape[-1]:  # nothing was stored
            past = past.new_zeros(len(past), self.state_size)
        members = zip(self.cores, inputs, past.chunk(self.members, -1), strict=True)
        read = torch.cat((inputs, torch.stack([core(rows, own) for core, rows, own in members])), -1)
        return self._outputs(self._all(read.flatten(1, 2)).reshape(*read.shape[:-1], -1))

    def _all(self, inputs: Tensor) -> Tensor:
        """Return the raw outputs of all members, each for its own inputs [M, B, inputs]."""
        outputs: Tensor
        if not isinstance(self.network, nn.ModuleList):
            outputs = self.network(inputs, shared=False)
        elif self.members == 1:
            outputs = self.network[0](inputs.squeeze(0)).unsqueeze(0)
        else:
            outputs = torch.stack([member(rows) for member, rows in zip(self.network, inputs, strict=True)])
        return outputs

    def _outputs(self, raw: Tensor) -> Outputs:
        count = self.size + self.rewards
        end = raw[..., -1] if self.ends else None
        if self.deterministic:
            return Outputs(raw[..., :count], None, end)
        low, high = self.bounds.unbind()
        log_variance = high - nn.functional.softplus(high - raw[..., count : 2 * count])
        return Outputs(raw[..., :count], low + nn.functional.softplus(log_variance - low), end)

    def elite(self) -> Tensor:
        """Return the indices [E] of the members that predict: those with the least error on held-out rows."""
        return self.held_out.argsort()[: self.elites].sort().values

    def predictor(self) -> Members:
        """Return the current elite as a function of inputs, for `step`."""
        chosen = None if self.elites == self.members else self.elite()  # a tensor, so an exported file can hold it
        members = self._all if chosen is None else self._chosen(chosen)
        if not self.cores:
            return lambda inputs, past: (members(inputs), None)
        weights = [core.weights() for core in self.cores]
        if chosen is not None:
            stacked = [torch.stack(parts)[chosen] for parts in zip(*weights, strict=True)]
            weights = [[part[i] for part in stacked] for i in range(self.elites)]
        step = self.cores[0].step

        def predict(inputs: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
            steps = [step(*member) for member in zip(inputs, cast(Tensor, past), weights, strict=True)]
            features, after = (torch.stack(parts) for parts in zip(*steps, strict=True))
            return members(torch.cat((inputs, features), -1)), after

        return predict

    def _chosen(self, chosen: Tensor) -> Callable[[Tensor], Tensor]:
        """Return some members [E] as a function of inputs [E, N, inputs]."""
        if not isinstance(self.network, nn.ModuleList):
            weights = {name: weight[chosen] for name, weight in self.network.named_parameters()}
            return lambda inputs: functional_call(self.network, weights, (inputs,), {"shared": False})
        states = [dict(chain(member.named_parameters(), member.named_buffers())) for member in self.network]
        stacked = {name: torch.stack([state[name] for state in states])[chosen] for name in states[0]}
        first, own = self.network[0], [{name: part[i] for name, part in stacked.items()} for i in range(self.elites)]
        return lambda inputs: torch.stack([functional_call(first, *pair) for pair in zip(own, inputs, strict=True)])

    def step(self, state: Tensor, action: Tensor, predictor: Members, noise: Tensor | None = None) -> Imagined:
        """Return the predicted next states and rewards; member i reads block i of the leading axis.

        Args:
            state, action: states [E, …, D], with a core [E, …, D + S] as `begin` gives them, and actions [E, …, A].
            predictor: a result of `predictor()`.
            noise: standard normal [E, …, K], by which Gaussian members draw; None = they give their mean.
        """
        past = None
        if self.cores:
            state, past = state[..., : self.size], state[..., self.size :].flatten(1, -2)
        inputs = self.normalized(state, action)
        lead = inputs.shape[:-1]
        raw, past = predictor(inputs.flatten(1, -2), past)
        outputs = self._outputs(raw.reshape(*lead, -1))
        numbers = outputs.mean
        if noise is not None and outputs.log_variance is not None:
            numbers = torch.addcmul(numbers, (0.5 * outputs.log_variance).exp(), noise)
        numbers = torch.addcmul(self.target_shift, numbers, self.target_scale)
        after = self.observations.nearest(torch.addcmul(numbers[..., : self.size], self.changes, state))
        if past is not None:
            after = torch.cat((after, past.reshape(*lead, -1)), -1)
        if self.several:
            reward = numbers[..., self.size :]
        else:
            reward = numbers[..., -1] if self.rewards else torch.zeros_like(numbers[..., 0])
        return Imagined(after, reward, None if outputs.end is None else outputs.end.sigmoid() * self.ending)


def _width(features: Callable[[Tensor], Tensor], size: int) -> int:
    """Return the number of features that a function makes of an observation's numbers."""
    read = features(torch.zeros(2, 3, size))
    if not isinstance(read, Tensor) or read.dim() != 3 or read.shape[:2] != (2, 3):
        shape = [*read.shape] if isinstance(read, Tensor) else read
        raise ConfigError(f"features: of numbers {[2, 3, size]} wanted numbers [2, 3, F], got {shape}")
    return read.shape[-1]


class WorldModel:
    """A learned model, with rewards and terminations from functions of one's own where they are known.

    Args:
        dynamics: predicts the rest.
        reward: a function of (observation, action, next observation), trees of tensors [..., …], that gives rewards
            [...], or [..., R] where the dynamics predict several; or a `RewardModel`. None = those of the dynamics.
            One with a `state_size` has a state [..., state_size], zeros where an episode begins: it gets that as a
            fourth argument, and its `after(observation, action, state)` returns the next one.
        ended: such a function that gives terminations [...], as bools or probabilities; None = those of the dynamics.

    Raises:
        ConfigError: neither predicts the reward.
    """

    def __init__(self, dynamics: Dynamics, *, reward: Function | None = None, ended: Function | None = None) -> None:
        if reward is None and not dynamics.rewards:
            raise ConfigError("reward: the dynamics predict none, so a function or a model of it is wanted")
        self.dynamics, self.reward, self.ended = dynamics, reward, ended
        self.actions = dynamics.coded
        self.reward_size: int = getattr(reward, "state_size", 0)
        for name, function in {"reward": reward, "ended": ended}.items():
            if function is not None:
                self._check(name, function)

    def _check(self, name: str, function: Function) -> None:
        """Refuse a function whose result has another shape than the rewards, as it would be broadcast."""
        size = (2, 3)
        state, action = (self.dynamics.shift.new_zeros(*size, part.size) for part in (self.dynamics, self.actions))
        observation = self.dynamics.observation(state)
        own = (state.new_zeros(*size, self.reward_size),) if name == "reward" and self.reward_size else ()
        with torch.no_grad():
            given = function(observation, self.actions.tree(action), observation, *own)
        shape = [*given.shape] if isinstance(given, Tensor) else given
        count = self.dynamics.rewards if name == "reward" and self.dynamics.several else 1
        wanted = [*size] if count == 1 else [*size, count]
        if shape != wanted:
            numbers = "one number" if count == 1 else f"{count} numbers"
            raise ConfigError(f"{name}: of steps {[*size]} wanted {numbers} each, {wanted}; got {shape}")

    @property
    def remembers(self) -> bool:
        """Whether predictions depend on earlier steps of the episode."""
        return bool(self.dynamics.state_size or self.reward_size)

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Return the recurrent states of episodes that begin.

        These are `recurrent` [count, M · S] of dynamics with a core, and `reward` of a reward with a state.
        """
        if not self.remembers:
            return {}
        sizes = {"recurrent": self.dynamics.state_size, "reward": self.reward_size}
        return {name: self.dynamics.shift.new_zeros(count, size) for name, size in sizes.items() if size}

    def after(self, observation: Tree, state: Mapping[str, Tensor], action: Tree) -> dict[str, Tensor]:
        """Return the recurrent states after real observations and actions, from those before them."""
        after = {}
        if self.dynamics.state_size:
            numbers = self.dynamics.numbers(observation), self.actions.numbers(action)
            after["recurrent"] = self.dynamics.remember(*numbers, state["recurrent"])
        if self.reward_size:
            reward: Any = self.reward
            after["reward"] = reward.after(observation, action, state["reward"])
        return after

    def begin(self, observation: Tree, state: Mapping[str, Tensor]) -> Tensor:
        """Return initial imagined states: [B, D]; of dynamics with a core [E, B, D + S].

        The state of a reward follows them.
        """
        numbers = self.dynamics.numbers(observation)
        if self.dynamics.state_size:
            numbers = self.dynamics.begin(numbers, state["recurrent"])
        if self.reward_size:
            numbers = torch.cat((numbers, state["reward"].expand(*numbers.shape[:-1], -1)), -1)
        return numbers

    def step(self, state: Tensor, action: Tensor, predictor: Members, noise: Tensor | None = None) -> Imagined:
        """Return the predicted next states, rewards and terminations; see `Dynamics.step`."""
        own: tuple[Tensor, ...] = ()
        if self.reward_size:
            state, own = state[..., : -self.reward_size], (state[..., -self.reward_size :],)
        step = self.dynamics.step(state, action, predictor, noise)
        if self.reward is None and self.ended is None:
            return step
        trees = self.dynamics.observation(state), self.actions.tree(action), self.dynamics.observation(step.state)
        reward = step.reward if self.reward is None else self.reward(*trees, *own)
        after = step.state
        if own:
            moves: Any = self.reward
            after = torch.cat((after, moves.after(*trees[:2], *own)), -1)
        return Imagined(after, reward, step.ended if self.ended is None else self.ended(*trees).to(reward))


class Beyond:
    """A function `ended` of `WorldModel`: episodes terminate where a number of the next observation exceeds its limit.

    Args:
        limits: index of a number of the observation [..., D] -> limit of its absolute value.
    """

    def __init__(self, limits: Mapping[int, float]) -> None:
        self.limits = {int(index): limit for index, limit in limits.items()}

    def __call__(self, observation: Tree, action: Tree, next_observation: Tree) -> Tensor:
        over = [next_observation[..., index].abs() > limit for index, limit in self.limits.items()]
        return torch.stack(over).any(0)


class Coded:
    """Convert values of a space to rows of numbers [..., A] and back: Box leaves and one-hot choices side by side.

    Args:
        space: of actions, or of observations without an action mask.
    """

    def __init__(self, space: Space) -> None:
        self.space, self.size = space, space.size
        self.leaves = [leaf for _, leaf in leaves(space)]
        self.plain = len(self.leaves) == 1 and isinstance(self.leaves[0], Box)

    def numbers(self, value: Tree) -> Tensor:
        """Return values as numbers."""
        return flatten(self.space, value)

    def nearest(self, numbers: Tensor) -> Tensor:
        """Return predicted numbers as those of a valid value: each decision becomes one-hot at its largest number."""
        if self.plain:
            return numbers
        parts = []
        for leaf, part in self._split(numbers):
            if isinstance(leaf, Box):
                parts.append(part)
            else:
                parts.append(one_hot(_largest(leaf, part), leaf.choices))
        return torch.cat(parts, -1)

    def tree(self, numbers: Tensor) -> Tree:
        """Return predicted numbers as a value; each decision takes its largest number."""
        if self.plain and len(self.leaves[0].shape) == 1:
            return numbers
        values = []
        for leaf, part in self._split(numbers):
            if not isinstance(leaf, Box):
                part = _largest(leaf, part)
            values.append(part.reshape(*part.shape[:-1], *leaf.shape))
        return tree_of(self.space, values)

    def _split(self, numbers: Tensor) -> Iterator[tuple[Leaf, Tensor]]:
        return zip(self.leaves, torch.split(numbers, [leaf.size for leaf in self.leaves], -1), strict=True)


def _largest(leaf: Discrete | MultiDiscrete, scores: Tensor) -> Tensor:
    """Return the choice of each decision [..., decisions] with the largest of its scores [..., choices of all]."""
    return torch.stack([part.argmax(-1) for part in torch.split(scores, [*leaf.choices], -1)], -1)
