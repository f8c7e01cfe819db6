"""Planning: at each step, search the sequence of actions with the largest return under a model.

    J(a_0 … a_H-1) = mean over particles of Σ_t γ^t r(s_t, a_t),  s_t+1 by the model, no reward after a termination

Random shooting takes the best of many random sequences. The cross-entropy method (Chua et al. 2018, arXiv 1805.12114,
section 5) repeatedly fits a normal to the best ones. MPPI (Williams et al. 2017, arXiv 1707.02342) averages all of
them, weighted by exp(J / λ). The last two start from the plan of the step before, shifted by one action.

A planner is a policy whose recurrent state is its plan and its model's state. So both are stored with each row, as the
states of policies are. Real observations and actions update the model's state, from which plans are searched.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError, require_at_least, require_one_of
from rlrun.core.spaces import Box, Spaces, leaves
from rlrun.core.typing import Tree
from rlrun.nn.actions import ILLEGAL, ActionCodec
from rlrun.nn.dynamics import WorldModel
from rlrun.nn.policy import require_bounded
from rlrun.ops.distributions import ROOT_HALF, normal_like

PROPAGATIONS = ("ts_inf", "ts1", "mean")
Bound = float | Sequence[float]
State = dict[str, Tensor]
NEAR = 0.9  # share of the way from the middle to a bound, beyond which an action is at the bound
DIVERGED = 1e15  # size of returns at which a model has diverged; such a sequence counts as the worst of the others
TIED = 1e-5  # relative difference up to which two returns count as equal


class Planner(nn.Module):
    """Act by planning with a model, over actions as bounded numbers; the largest number of a choice is taken.

    Exploration draws new candidates and particles at each step. Evaluation has fixed ones, so plans are functions of
    observation and state. Candidates share the noise of their particles, so that they differ by their actions
    alone. Its mean over several particles is 0, so that plans do not exploit it.

    Args:
        spaces: of the environment.
        model: to plan with.
        horizon: H, number of actions of a plan.
        population: number of sequences compared in each iteration.
        iterations: of the search.
        particles: number of imagined futures of each sequence and member.
        propagation: ts_inf: a particle stays with its member; ts1: at each step all particles change members, at
            random (arXiv 1805.12114, section 5); mean: like ts_inf, by the means of Gaussian members.
        low, high: bounds of actions, one number or one for each of the action's numbers.
        discount: γ.
        cost: replaces rewards: a function of states [..., H + 1, D] and actions [..., H, A] that returns the costs of
            sequences, [...].
        random: probability of a random action while exploring.
        seed: of the fixed candidates and particles.

    Raises:
        SpaceError: the action space has a Box without bounds.
        ConfigError: a number is out of range, or a recurrent model has propagation ts1.
    """

    low: Tensor  # [A]
    high: Tensor
    candidates: Tensor  # standard normal [iterations, population, H, A]
    futures: Tensor  # standard normal [H, E, 1, particles, K]
    order: Tensor  # [H, E]: the member whose particles each member gets
    is_number: Tensor  # [A]: False for the numbers of choices

    def __init__(
        self,
        spaces: Spaces,
        model: WorldModel,
        *,
        horizon: int = 25,
        population: int = 500,
        iterations: int = 1,
        particles: int = 1,
        propagation: str = "ts_inf",
        low: Bound = -1.0,
        high: Bound = 1.0,
        discount: float = 1.0,
        cost: Callable[[Tensor, Tensor], Tensor] | None = None,
        random: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_bounded(spaces.action, type(self).__name__)
        require_one_of("propagation", propagation, PROPAGATIONS)
        counts = {"horizon": horizon, "population": population, "iterations": iterations, "particles": particles}
        for name, number in counts.items():
            require_at_least(name, number, 1)
        if propagation == "ts1" and model.dynamics.state_size:
            raise ConfigError(
                "propagation: particles of a recurrent model keep to the memory of one member: ts_inf or mean"
            )
        self.model, self.horizon, self.population, self.iterations = model, horizon, population, iterations
        self.particles, self.propagation, self.discount, self.cost = particles, propagation, discount, cost
        _require_shares(random=random, discount=discount)
        self.random = random
        self.decisions = ActionCodec(spaces, joint_limit=0)
        boxes = [torch.full((leaf.size,), isinstance(leaf, Box)) for _, leaf in leaves(spaces.action)]
        self.register_buffer("is_number", torch.cat(boxes), persistent=False)
        self._borrowed = (model.dynamics,)  # in a tuple: its parameters are not the planner's
        self.several = model.dynamics.several
        if self.several:
            model.dynamics.weights()  # raises early if their number is wrong
        self.newest: Tensor | None = None  # plans [B, H, A] of the newest step
        size = spaces.action.size
        for name, bound in {"low": low, "high": high}.items():
            numbers: Tensor = torch.as_tensor(bound, dtype=torch.float32)
            if numbers.dim() and len(numbers) != size:
                raise ConfigError(f"{name}: wanted one number, or {size}, those of an action; got {len(numbers)}")
            self.register_buffer(name, numbers + torch.zeros(size), persistent=False)
        if not bool((self.low < self.high).all()):
            raise ConfigError(f"low: wanted bounds below high, got {low} and {high}")
        self.size = size
        draw = torch.Generator().manual_seed(seed)
        members, count = model.dynamics.elites, model.dynamics.size + model.dynamics.rewards
        drawn = {
            "candidates": torch.randn(iterations, population, horizon, size, generator=draw),
            "futures": _balanced(torch.randn(horizon, members, 1, particles, count, generator=draw)),
            "order": torch.stack([torch.randperm(members, generator=draw) for _ in range(horizon)]),
        }
        for name, tensor in drawn.items():
            self.register_buffer(name, tensor, persistent=False)

    @property
    def state_size(self) -> int:
        """The size of a plan."""
        return self.horizon * self.size

    @property
    def follows_actions(self) -> bool:
        """Whether its state depends on the actions taken."""
        return self.model.remembers

    def initial_state(self, count: int) -> State:
        """Return the state of new episodes: `plan` [count, H · A], in the middle of bounds, and the model's state."""
        plan = (0.5 * (self.low + self.high)).repeat(self.horizon).expand(count, -1).clone()
        return {"plan": plan, **self.model.initial_state(count)}

    def after(self, observation: Tree, state: State, action: Tree = None) -> State:
        """Return plans shifted by one action, with their mean as the last one, and the model's state."""
        plan = self._plan(state["plan"])
        moved = torch.cat((plan[:, 1:], plan.mean(1, keepdim=True)), 1).flatten(1)
        return {"plan": moved, **self.model.after(observation, state, action)}

    @torch.no_grad()
    def advance(self, observation: Tree, state: State, explore: bool = True) -> tuple[Tree, State]:
        """Return the first action of the best plan, and the state for the next step."""
        forbidden = self._forbidden(observation)
        plan = self.search(self.model.begin(observation, state), self._plan(state["plan"]), explore, forbidden)
        action = plan[:, 0]
        if explore:
            self.newest = plan
        if explore and self.random:
            chance, uniform = _even(normal_like(action[:, :1])), _even(normal_like(action))
            action = torch.where(chance < self.random, torch.lerp(self.low, self.high, uniform), action)
        action = self.model.dynamics.coded.tree(action if forbidden is None else action.masked_fill(forbidden, ILLEGAL))
        return action, self.after(observation, {**state, "plan": plan.flatten(1)}, action)

    def _forbidden(self, observation: Tree) -> Tensor | None:
        """Return which numbers of the first action an action mask forbids, [B, A]; None without a mask."""
        if not self.decisions.masked:
            return None
        allowed = self.decisions.allowed(observation)
        forbidden = allowed.new_zeros(allowed.shape[0], self.size)
        forbidden[:, ~self.is_number] = ~allowed
        return forbidden

    @property
    def metrics(self) -> dict[str, Tensor]:
        """The share of planned numbers that lie within a tenth of a bound, in the newest step."""
        if self.newest is None:
            return {}
        middle, half = 0.5 * (self.high + self.low), 0.5 * (self.high - self.low)
        return {"plan/at_bounds": (((self.newest - middle) / half).abs() > NEAR).float().mean()}

    @abstractmethod
    def search(self, state: Tensor, plan: Tensor, explore: bool, forbidden: Tensor | None = None) -> Tensor:
        """Return the best plans [B, H, A] found from states [B, D], starting from plans [B, H, A].

        state: with a recurrent model [E, B, D + S], for each member of the elite.
        forbidden: numbers of choices [B, A] that the first action may not take.
        """

    def evaluator(self, state: Tensor, explore: bool) -> Callable[[Tensor], Tensor]:
        """Return a function from sequences [B, P, H, A] to their mean returns from states, [B, P]."""
        model, predictor = self.model, self.model.dynamics.predictor()
        members, particles = self.futures.shape[1], self.particles
        futures = _balanced(normal_like(self.futures)) if explore else self.futures
        switches = self.propagation == "ts1" and members > 1
        weights = model.dynamics.weights() if self.several else None
        order = _shuffled(self.order) if explore and switches else self.order

        def evaluate(sequences: Tensor) -> Tensor:
            rows = sequences.shape[0] * sequences.shape[1]
            actions = sequences.flatten(0, 1).unsqueeze(-2)  # [rows, H, 1, A]
            lead = (members, rows, particles)
            at = state.repeat_interleave(sequences.shape[1], -2).unsqueeze(-2).expand(*lead, -1)
            total, weight, visited = torch.zeros(lead, device=state.device), torch.ones(lead, device=state.device), [at]
            for time in range(self.horizon):
                noise = None if self.propagation == "mean" else futures[time]
                step = model.step(at, actions[:, time].expand(*lead, -1), predictor, noise)
                total = torch.addcmul(total, weight, step.reward if weights is None else step.reward @ weights)
                if step.ended is not None:
                    weight = torch.addcmul(weight, weight, step.ended, value=-1.0)
                if self.discount != 1.0:
                    weight = self.discount * weight
                at = step.state
                if switches:
                    at, weight = at[order[time]], weight[order[time]]
                    visited = [states[order[time]] for states in visited]  # a cost reads the path of each particle
                visited.append(at)
            if self.cost is not None:
                path = torch.stack(visited, -2)
                path = path[..., : model.dynamics.size] if model.remembers else path
                total = -self.cost(path, actions.transpose(1, 2).expand(*lead, -1, -1))
            brought = total.mean((0, 2)).reshape(sequences.shape[0], sequences.shape[1])
            sound = brought.abs() < DIVERGED  # False for NaN, too
            worst = torch.where(sound, brought, DIVERGED).amin(1, keepdim=True)
            return torch.where(sound, brought, worst)

        return evaluate

    def within(self, sequences: Tensor, forbidden: Tensor | None = None) -> Tensor:
        """Return sequences [B, P, H, A] as actions within bounds; the first avoids forbidden choices [B, A]."""
        sequences = torch.clamp(sequences, self.low, self.high)
        if forbidden is not None:
            first = sequences[:, :, :1].masked_fill(forbidden[:, None, None], ILLEGAL)
            sequences = torch.cat((first, sequences[:, :, 1:]), 2)
        return self.model.dynamics.coded.nearest(sequences)

    def _plan(self, state: Tensor) -> Tensor:
        return state.reshape(-1, self.horizon, self.size)

    def _normals(self, explore: bool) -> Tensor:
        return normal_like(self.candidates) if explore else self.candidates


class RandomShooting(Planner):
    """Take the first action of the best of many sequences, drawn uniformly within the bounds."""

    def search(self, state: Tensor, plan: Tensor, explore: bool, forbidden: Tensor | None = None) -> Tensor:
        share = _even(self._normals(explore).flatten(0, 1))
        drawn = torch.lerp(self.low, self.high, share).expand(plan.shape[0], -1, -1, -1)
        sequences = self.within(drawn, forbidden)
        best = self.evaluator(state, explore)(sequences).argmax(1)
        return sequences.gather(1, best[:, None, None, None].expand(-1, -1, *sequences.shape[2:])).squeeze(1)


class CEM(Planner):
    """Fit a normal to the best sequences, `iterations` times, and take the first action of its mean.

    Args:
        spaces, model: as of `Planner`.
        elite: number of best sequences that it is fitted to.
        tau: share of the new mean and variance.
        epsilon: the search of a plan stops once the variance of each number is at most this share of its first one.
        variance: initial variance; None = the square of half the distance between the bounds.
        options: of `Planner`.
    """

    def __init__(
        self,
        spaces: Spaces,
        model: WorldModel,
        *,
        elite: int = 50,
        tau: float = 0.9,
        epsilon: float = 0.001,
        variance: float | None = None,
        iterations: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(spaces, model, iterations=iterations, **options)
        if not 2 <= elite <= self.population:
            raise ConfigError(f"elite: wanted a number from 2 to population={self.population}, got {elite}")
        _require_shares(tau=tau, epsilon=epsilon)
        if variance is not None:
            _require_positive(variance=variance)
        self.elite, self.tau, self.epsilon, self.variance = elite, tau, epsilon, variance

    def search(self, state: Tensor, plan: Tensor, explore: bool, forbidden: Tensor | None = None) -> Tensor:
        evaluate, mean = self.evaluator(state, explore), plan
        half = 0.5 * (self.high - self.low)
        first = half.square() if self.variance is None else torch.full_like(half, self.variance)
        variance = first.expand_as(plan)
        for normals in self._normals(explore):
            noise = variance.sqrt().unsqueeze(1) * normals
            sequences = self.within(mean.unsqueeze(1) + noise, forbidden)  # [B, P, H, A]
            value = evaluate(sequences)
            least = value.topk(self.elite, 1).values[:, -1:]
            least = least - TIED * least.abs().clamp(min=1.0)  # include all that differ by rounding errors only
            among = (value >= least).to(value)[:, :, None, None]
            count = among.sum(1)
            fitted = (among * sequences).sum(1) / count
            spread = (among * (sequences - fitted.unsqueeze(1)).square()).sum(1) / (count - 1.0)
            searched = ((variance / first).flatten(1).amax(1) > self.epsilon)[:, None, None]
            mean = torch.where(searched, mean.lerp(fitted, self.tau), mean)
            variance = torch.where(searched, variance.lerp(spread, self.tau), variance)
        return mean


class MPPI(Planner):
    """Average noisy plans, weighted by exp(J / λ).

    Args:
        spaces, model: as of `Planner`.
        temperature: λ, relative to the deviation of J among the sequences.
        deviation: of the noise, relative to half the distance between the bounds.
        smoothing: correlation of an action's noise with that of the action before.
        options: of `Planner`.
    """

    def __init__(
        self,
        spaces: Spaces,
        model: WorldModel,
        *,
        temperature: float = 0.3,
        deviation: float = 0.5,
        smoothing: float = 0.0,
        iterations: int = 3,
        **options: Any,
    ) -> None:
        super().__init__(spaces, model, iterations=iterations, **options)
        require_at_least("population", self.population, 2)
        _require_positive(temperature=temperature, deviation=deviation)
        _require_shares(smoothing=smoothing)
        self.temperature, self.deviation, self.smoothing = temperature, deviation, smoothing

    def search(self, state: Tensor, plan: Tensor, explore: bool, forbidden: Tensor | None = None) -> Tensor:
        evaluate = self.evaluator(state, explore)
        half = 0.5 * self.deviation * (self.high - self.low)
        for normals in self._normals(explore):
            noise = [normals[:, 0]]
            for time in range(1, self.horizon):
                kept = self.smoothing
                noise.append(kept * noise[-1] + (1.0 - kept**2) ** 0.5 * normals[:, time])
            sequences = self.within(plan.unsqueeze(1) + half * torch.stack(noise, 1), forbidden)
            value = evaluate(sequences)
            value = (value - value.mean(1, keepdim=True)) / value.std(1, keepdim=True).clamp(min=1e-8)
            weight = (value / self.temperature).softmax(1)
            plan = torch.einsum("bp,bpha->bha", weight, sequences)
        return plan


def _require_shares(**settings: float) -> None:
    for name, number in settings.items():
        if not 0.0 <= number <= 1.0:
            raise ConfigError(f"{name}: wanted a number from 0 to 1, got {number}")


def _require_positive(**settings: float) -> None:
    for name, number in settings.items():
        if not number > 0.0:
            raise ConfigError(f"{name}: wanted a number above 0, got {number}")


def _even(normal: Tensor) -> Tensor:
    """Return uniform numbers in [0, 1] from standard normal ones."""
    return 0.5 * (1.0 + torch.erf(normal * ROOT_HALF))


def _balanced(noise: Tensor) -> Tensor:
    """Return noise [H, E, 1, particles, K] with mean 0 over members and particles, and unchanged variance."""
    count = noise.shape[1] * noise.shape[3]
    return noise if count == 1 else (noise - noise.mean((1, 3), keepdim=True)) * (count / (count - 1.0)) ** 0.5


def _shuffled(order: Tensor) -> Tensor:
    """Return random permutations of the same shape [H, E]."""
    return normal_like(order.float()).argsort(-1)
