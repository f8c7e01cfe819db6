"""MuZero (Schrittwieser et al. 2020, arXiv 1911.08265): tree search by a learned model, which learns from its results.

For a stored step t and its actions a_t … a_t+R-1, latents s_0 = h(o_t), s_k = g(s_k-1, a_t+k-1) predict at each k

    value    z_t+k = Σ_j≤n γ^(j-1) r_t+k+j + γ^n v_t+k+n     n rewards, then the value of a search
    policy   π_t+k of a search, over all actions or its candidates (`rlrun.algorithms.search.candidates`)
    reward   r_t+k of the action that led there
    end      whether the episode ended there

    L = Σ_k w_k Σ_i c_i l_i(k),   w_0 = 1, w_k = 1/R

The gradient of each latent returned by g is halved, also that of its predictions (appendix G halves it before g, so
here g has half the paper's gradient). With a consistency loss, latents predict those of later observations
(EfficientZero, Ye et al. 2021, arXiv 2111.00210). Reanalysis searches stored positions again, by a target network
(Schrittwieser et al. 2021, arXiv 2104.06294). A step that ended an episode has discount 0, and all rewards and values
after it are 0.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun import ops
from rlrun.algorithms.search import LearnedModel, Search
from rlrun.algorithms.search.candidates import Candidates, repeated
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.errors import ConfigError, require_number, require_one_of, require_whole
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Batch, Tree
from rlrun.nn.actions import Heads
from rlrun.nn.muzero import MuZeroNetwork, Predictions, distance_of, mean_of

TERMS = ("value", "policy", "reward", "end", "consistency")
CONSISTENCIES = ("cosine", "squares")


class Targets(NamedTuple):
    """The targets of predictions at R + 1 positions.

    value, reward: [..., R + 1].
    policy: [..., R + 1, A]; zeros where there was no search.
    candidates: the actions of these probabilities, as rows [..., R + 1, A, W]; None = all actions.
    ended: whether the episode ended at or before a position [..., R + 1].
    beyond: whether a position is after the last known one [..., R + 1].
    partial: whether the episode continues after the last known one of these positions [...].
    """

    value: Tensor
    reward: Tensor
    policy: Tensor
    ended: Tensor
    beyond: Tensor
    partial: Tensor
    candidates: Tensor | None = None


def targets(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    policy: Tensor,
    end: Tensor,
    *,
    td_steps: int | Tensor,
    rewards: bool = True,
    turns: bool = False,
    candidates: Tensor | None = None,
) -> Targets:
    """Return the targets of R + 1 positions from L ≥ R + 1 stored ones.

    reward: [..., L] of the step that led to each position, for the player who took it.
    discount: [..., L] of a position's value for the player who took that step; 0 where it ended the episode.
    value: [..., L] of searches.
    policy: [..., R + 1, A] of searches.
    end: [...] the last known position; entries after it repeat its own.
    td_steps: number of rewards of a return, for all or for each row [...]; -1 = all up to `end`. The value at an `end`
        where the episode continues is then the value of its search, discounted once.
    rewards: rewards are predicted; otherwise the value at the end of an episode is the last reward.
    turns: two players take turns, so this reward is the other one's.
    candidates: [..., R + 1, A, W] of searches.
    """
    steps, last = policy.shape[-2], end.unsqueeze(-1)
    length = torch.as_tensor(td_steps, device=end.device).reshape(-1, *[1] * (end.dim() > 0))
    whole = length < 0
    number = torch.arange(steps, device=end.device)
    position, beyond = torch.minimum(number, last), number > last  # [..., R + 1]
    reach = last - position
    reach = torch.where(whole, reach, torch.minimum(reach, length))
    most = reward.shape[-1] - 1
    if isinstance(td_steps, int) and td_steps >= 0:
        most = min(td_steps, most)
    ahead = torch.arange(1, most + 1, device=end.device)
    at = torch.minimum(position.unsqueeze(-1) + ahead, last.unsqueeze(-1))  # [..., R + 1, n]
    counts = ahead <= reach.unsqueeze(-1)
    rows = at.flatten(-2)
    paid = reward.gather(-1, rows).reshape(at.shape) * counts
    factor = torch.where(counts, discount.gather(-1, rows).reshape(at.shape), 1.0).cumprod(-1)
    before = torch.cat((torch.ones_like(factor[..., :1]), factor[..., :-1]), -1)[..., :most]
    weight = factor[..., -1] if most else 1.0
    returns = (paid * before).sum(-1) + weight * value.gather(-1, position + reach)
    over = discount.gather(-1, last) == 0.0
    at_end, final = position == last, reward.gather(-1, last)
    returns = torch.where(whole & at_end, discount.gather(-1, last).abs() * returns, returns)
    returns = torch.where(at_end & over, 0.0 if rewards else -final if turns else final, returns)
    used = torch.minimum(last, torch.full_like(last, steps - 1))
    if candidates is not None:
        candidates = candidates.gather(-3, position[..., None, None].expand(candidates.shape))
    return Targets(
        value=returns,
        reward=reward[..., :steps].masked_fill(beyond, 0.0),
        policy=policy.gather(-2, position.unsqueeze(-1).expand(policy.shape)),
        ended=at_end & over,
        beyond=beyond,
        partial=(discount.gather(-1, used) != 0.0).squeeze(-1),
        candidates=candidates,
    )


def running_sums(reward: Tensor, period: int) -> Tensor:
    """Return the sums of rewards [..., R + 1] after the first position, reset after `period` steps; 0 = never."""
    reward = torch.cat((torch.zeros_like(reward[..., :1]), reward[..., 1:]), -1)
    parts = torch.split(reward, period or reward.shape[-1], -1)
    return torch.cat([part.cumsum(-1) for part in parts], -1)


def losses(
    network: MuZeroNetwork, predicted: Predictions, wanted: Targets, *, period: int | None = None
) -> dict[str, Tensor]:
    """Return the loss of each prediction [B, R + 1], by name, and the entropy of policies.

    period: rewards are predicted as running sums, reset after so many steps; 0 = never; None = one by one.
    """
    heads = network.head(predicted.policy)
    terms = {
        "value": distance_of(network.value_head, predicted.value, wanted.value),
        "policy": -(wanted.policy * _log_policy(network, heads, wanted.candidates)).sum(-1),
        "entropy": network.head.entropy(heads).sum(-1),
    }
    if predicted.reward is not None:
        reward = wanted.reward if period is None else running_sums(wanted.reward, period)
        terms["reward"] = distance_of(network.reward_head, predicted.reward, reward)
    if predicted.ended is not None:
        ended = wanted.ended.to(predicted.ended)
        terms["end"] = F.binary_cross_entropy_with_logits(predicted.ended, ended, reduction="none")
    return terms


def _log_policy(network: MuZeroNetwork, heads: Heads, candidates: Tensor | None) -> Tensor:
    """Return log π of candidates [..., A, W], or of all actions of one choice: [..., A]."""
    if candidates is None:
        assert heads.choices is not None
        return heads.choices
    return network.head.log_prob(repeated(heads, candidates.shape[-2]), network.codec.from_rows(candidates))


def masks(wanted: Targets, *, initial_reward: bool, partial: bool, beyond: bool) -> dict[str, Tensor]:
    """Return the positions where each loss counts [B, R + 1], by name.

    initial_reward: include the reward that led to the first position.
    partial: exclude positions after the last known one of an episode that continues.
    beyond: exclude all positions after the last known one from the consistency loss.
    """
    known = ~(wanted.beyond & wanted.partial.unsqueeze(-1)) if partial else torch.ones_like(wanted.beyond)
    first = torch.arange(wanted.value.shape[-1], device=wanted.value.device) == 0
    chosen = known & ~wanted.ended & (wanted.policy.sum(-1) > 0.0)
    return {
        "value": known,
        "policy": chosen,
        "entropy": chosen,
        "reward": known if initial_reward else known & ~first,
        "end": known,
        "consistency": ~first & (known & ~wanted.beyond if beyond else known),
    }


def scales(steps: int, initial: float, *, like: Tensor) -> Tensor:
    """Return w_k of the R + 1 positions: `initial`, then 1 / R."""
    later = torch.full((steps,), 1.0 / max(steps, 1), device=like.device)
    return torch.cat((torch.full((1,), initial, device=like.device), later))


class SearchTargets(TargetCallback):
    """Provide the targets of all predictions, from stored searches or from new ones by a target network.

    Args:
        network: has a target network.
        search: of new searches.
        td_steps: number of rewards of a return; -1 = all of an episode.
        fresh: returns bootstrap from the target network's values, in place of the stored ones.
        share: of a batch, whose positions are searched again.
        reanalyze_td_steps: number of rewards of their returns.
        oldest: age, as a share of all steps so far, from which returns have `least_td_steps` rewards; None = the number
            does not depend on age.
        least_td_steps: number of rewards of the oldest rows' returns; newer ones have linearly more.
        full: search positions after the unrolled ones, too, in place of the network's values there.
        positions: number of positions searched at once; None = all of a batch.
        noise: new searches explore at the root, as in acting.
        candidates, players, end_logit, period: see `LearnedModel`.
        device: of the networks.
        options: of `TargetCallback`.

    Raises:
        ConfigError: a number is out of range.
    """

    provides = ("wanted",)

    def __init__(
        self,
        network: MuZeroNetwork,
        search: Search,
        *,
        td_steps: int = 5,
        fresh: bool = False,
        share: float = 0.0,
        reanalyze_td_steps: int = 5,
        oldest: float | None = None,
        least_td_steps: int = 1,
        full: bool = False,
        positions: int | None = None,
        noise: bool = True,
        candidates: Candidates | None = None,
        players: int = 1,
        end_logit: float = 1.0,
        period: int | None = None,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        require_number("share", share, 0, 1)
        require_whole("reanalyze_td_steps", reanalyze_td_steps, 1)
        require_whole("least_td_steps", least_td_steps, 1)
        require_whole("positions", 1 if positions is None else positions, 1)
        require_number("oldest", 1 if oldest is None else oldest, above=0)
        super().__init__(network, **options)
        if not isinstance(self.discount, float | int):
            raise ConfigError(f"discount: wanted one number, got {self.discount}")
        self.copy = cast(MuZeroNetwork, self.target_network)
        self.search, self.td_steps, self.fresh, self.share = search, td_steps, fresh, share
        self.reanalyze_td_steps, self.oldest, self.least_td_steps = reanalyze_td_steps, oldest, least_td_steps
        self.positions = positions
        self.full, self.noise, self.rewards = full, noise, network.predicts_rewards
        rules: dict[str, Any] = {"players": players, "end_logit": end_logit, "period": period, "device": device}
        self.model = LearnedModel(self.copy, candidates=candidates, discount=self.discount, **rules)

    def target(self, trajectory: Batch, later: Tree) -> TargetResult:
        """Return `wanted`, a dict of the fields of `Targets`; for windows T is their second dimension."""
        if trajectory["end"].dim() > 1:
            made, measured = SearchTargets.target(self, _rows(trajectory), _rows(later))
            return _windows(made, trajectory["end"]), measured
        reward, end, closed = trajectory["reward"], trajectory["end"], trajectory["closed"]
        discount = torch.where(trajectory["terminated"], 0.0, self.model.factor)
        policy = trajectory["policy"]
        searched = torch.arange(policy.shape[-2], device=end.device) < end.unsqueeze(-1)
        policy = policy * (searched | ~closed.unsqueeze(-1)).unsqueeze(-1)
        candidates = trajectory.get("candidates")
        if candidates is None and self.model.candidates is not None:  # the memory has no searches
            candidates = policy.new_zeros((*policy.shape, self.model.candidates.width))
        count, steps = reward.shape[-1], policy.shape[-2]
        place, behind = torch.arange(count, device=end.device), (count if self.share else 0) + 1
        last = self.copy.value(map_tree(lambda seen: seen[:, -1], later)).unsqueeze(-1)
        value = torch.where((place == end.unsqueeze(-1)) & closed.unsqueeze(-1), last, trajectory["value"])
        if self.fresh and self.td_steps > 0:
            ahead = self.copy.value(map_tree(lambda seen: seen[:, -behind - steps : -behind], later))
            value = torch.cat((value[:, : self.td_steps], ahead, value[:, self.td_steps + steps :]), 1)
        if self.fresh:
            value = torch.where(place == end.unsqueeze(-1), last, value)
        td_steps: Any = self.td_steps
        metrics: dict[str, Any] = {}
        if self.share:
            td_steps = torch.full(end.shape, td_steps, device=end.device)
            rows = torch.randperm(len(end), device=end.device)[: round(self.share * len(end))]
            new_value, new_policy, new = self._reanalyzed(map_tree(lambda seen: seen[rows, -behind:-1], later), steps)
            metrics["reanalyze/value_change"] = (new_value - value[rows]).abs()
            value, policy = value.index_copy(0, rows, new_value), policy.index_copy(0, rows, new_policy)
            if candidates is not None and new is not None:
                candidates = candidates.index_copy(0, rows, new)
            td_steps = td_steps.index_copy(0, rows, self._lengths(trajectory["age"][rows]))
        rules: dict[str, Any] = {"rewards": self.rewards, "turns": self.model.factor < 0.0, "candidates": candidates}
        wanted = targets(reward, discount, value, policy, end, td_steps=td_steps, **rules)
        known = {name: part for name, part in wanted._asdict().items() if part is not None}
        return {"wanted": known}, {"muzero/target": wanted.value[:, 0], **metrics}

    def _lengths(self, age: Tensor) -> Tensor:
        """Return the number of rewards of returns, by the rows' ages [n] (arXiv 2111.00210, section 4.3)."""
        if self.oldest is None:
            return torch.full_like(age, self.reanalyze_td_steps, dtype=torch.int64)
        share = (1.0 - age / self.oldest).clamp(min=0.0)
        longer = self.reanalyze_td_steps - self.least_td_steps
        return (self.least_td_steps + longer * share).ceil().long()

    def _reanalyzed(self, later: Tree, steps: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Search observations [n, L, …] again.

        Returns: values [n, L], policies [n, steps, A], and candidates [n, steps, A, W] or None.
        """
        value = self.copy.value(later)
        count, searched = len(value), value.shape[1] if self.full else steps
        rows = map_tree(lambda seen: seen[:, :searched].flatten(0, 1), later)
        rng = np.random.default_rng(int(torch.randint(1 << 62, ()))) if self.noise else None
        values, policies, candidates = [], [], []
        size = self.positions or count * searched
        for first in range(0, count * searched, size):
            part = map_tree(lambda seen, first=first: seen[first : first + size], rows)
            trees = self.search.grow(self.model, self.model.node(part, rng), rng)
            values.append(torch.from_numpy(trees.root_value))
            policies.append(torch.from_numpy(self.search.policy(trees)))
            if self.model.candidates is not None:
                candidates.append(torch.from_numpy(trees.state["candidates"][trees.roots]))
        root_value = torch.cat(values).to(value).reshape(count, searched)
        policy = torch.cat(policies).to(value).reshape(count, searched, -1)[:, :steps]
        drawn = None
        if candidates:
            all_drawn = torch.cat(candidates).to(value)
            drawn = all_drawn.reshape(count, searched, *all_drawn.shape[1:])[:, :steps]
        return torch.cat((root_value, value[:, searched:]), 1), policy, drawn


def _rows(tree: Tree) -> Tree:
    """Return the rows [B · T, …] of windows [B, T, …]."""
    return map_tree(lambda value: value.flatten(0, 1), tree)


def _windows(tree: Tree, like: Tensor) -> Tree:
    """Return rows [B · T, …] as windows [B, T, …], like others [B, T]."""
    return map_tree(lambda value: value.reshape(*like.shape, *value.shape[1:]), tree)


def summed_roots(losses: Tensor) -> Tensor:
    """Return priorities [B] of value losses [B, R + 1]: the sum of their square roots, as in ALF."""
    return losses.clamp(min=0.0).sqrt().sum(-1)  # rounding errors may lie below 0


class MuZeroLoss(LossCallback):
    """The weighted sum of the losses of all predictions from unrolled latents.

    Args:
        network: is trained.
        optimizer: as of `LossCallback`.
        weights: c_i of value, policy, reward and end, by default 1, and of consistency, by default 0. The entropy of
            policies has the weight `network.entropy_weight`.
        initial_weight: w_0.
        gradient: factor of the gradient of each latent that g returns.
        consistency: cosine, of projected latents; or squares, of latents.
        entropy_target: wanted entropy of policies, to which the weight of the entropy adapts; None = a fixed weight.
        entropy_rate: change of the logarithm of that weight in each update.
        initial_reward: the reward that led to the first position is predicted, too.
        period: rewards are predicted as running sums, reset after so many steps; 0 = never; None = one by one.
        partial_mask, beyond_mask: as `masks` takes them.
        priority: a function of value losses [B, R + 1] that gives priorities [B]; None = the error of the first value.
        options: of `LossCallback`.

    Raises:
        ConfigError: a term or the consistency is unknown, or a number is out of range.
    """

    network: MuZeroNetwork

    def __init__(
        self,
        network: MuZeroNetwork,
        optimizer: Optimizer | None,
        *,
        weights: Mapping[str, float] | None = None,
        initial_weight: float = 1.0,
        gradient: float = 0.5,
        consistency: str = "cosine",
        entropy_target: float | None = None,
        entropy_rate: float = 0.001,
        initial_reward: bool = False,
        period: int | None = None,
        partial_mask: bool = True,
        beyond_mask: bool = True,
        priority: Callable[[Tensor], Tensor] | None = None,
        **options: Any,
    ) -> None:
        self.weights = {**dict.fromkeys(TERMS, 1.0), "consistency": 0.0, **(weights or {})}
        for name, weight in self.weights.items():
            require_one_of("weights", name, TERMS)
            require_number(f"weights.{name}", weight, 0)
        require_one_of("consistency", consistency, CONSISTENCIES)
        require_number("initial_weight", initial_weight, 0)
        require_number("gradient", gradient, 0)
        require_number("entropy_rate", entropy_rate, 0)
        if self.weights["consistency"] and consistency == "cosine" and network.projection is None:
            raise ConfigError(
                "consistency: a cosine is that of projected latents, and this model projects none (projection: null)"
            )
        if entropy_target is not None:
            least = -math.inf if network.codec.continuous else 0.0  # a density's entropy may be negative
            require_number("entropy_target", entropy_target, least)
            if not network.entropy_weight > 0.0:
                raise ConfigError("entropy_target: a weight that is to move begins above 0, as with 0.01")
        if initial_reward and period is not None:
            way_out = "without a period, or with initial_reward=false, it goes"
            raise ConfigError(f"initial_reward: sums of rewards begin at 0 with the first position; {way_out}")
        super().__init__(network, optimizer, **options)
        self.initial_weight, self.gradient, self.consistency = initial_weight, gradient, consistency
        self.entropy_target, self.entropy_rate = entropy_target, entropy_rate
        self.initial_reward, self.period = initial_reward, period
        self.partial_mask, self.beyond_mask, self.priority = partial_mask, beyond_mask, priority

    def loss(self, observation: Tree, trajectory: Batch, wanted: Batch, later: Tree) -> LossResult:
        if trajectory["end"].dim() > 1:  # windows are flattened to rows
            elements, made, measured = MuZeroLoss.loss(self, *map(_rows, (observation, trajectory, wanted, later)))
            error = _windows(made["value_error"], trajectory["end"])
            return _windows(elements, trajectory["end"]), {**made, "value_error": error}, measured
        network, targets = self.network, Targets(**wanted)
        latent = network.unroll(observation, trajectory["action"], self.gradient)
        predicted = network.predict(latent)
        terms = losses(network, predicted, targets, period=self.period)
        if self.weights["consistency"]:
            terms["consistency"] = self._consistency(latent, later)
        counted = masks(targets, initial_reward=self.initial_reward, partial=self.partial_mask, beyond=self.beyond_mask)
        scale = scales(latent.shape[1] - 1, self.initial_weight, like=latent)
        sums = {name: (term * counted[name] * scale).sum(-1) for name, term in terms.items()}
        entropy, weight = sums.pop("entropy"), network.entropy_weight
        total: Any = sum(self.weights[name] * loss for name, loss in sums.items()) - weight * entropy
        value = mean_of(network.value_head, predicted.value[:, 0])
        metrics = {f"muzero/loss_{name}": loss for name, loss in sums.items()}
        error = (value - targets.value[:, 0]).abs() if self.priority is None else self.priority(terms["value"])
        outputs: dict[str, Any] = {"value_error": error.detach()}
        if self.entropy_target is not None:
            now = ops.mean_of(terms["entropy"][:, 0], counted["entropy"][:, 0]).detach()
            step = self.entropy_rate * (self.entropy_target - now).sign()
            outputs["updates"] = {"network.entropy_weight": weight * step.exp()}
        metrics |= {"value/mean": value, "muzero/entropy": terms["entropy"][:, 0]}
        return total, outputs, metrics

    def _consistency(self, latent: Tensor, later: Tree) -> Tensor:
        """Return the distances of latents [B, R + 1, Z] from those of the observations there: [B, R + 1]."""
        steps = latent.shape[1] - 1
        with torch.no_grad():
            seen = self.network.represent(map_tree(lambda value: value[:, :steps], later))
        if self.consistency == "cosine":
            apart = 1.0 - self.network.similarity(latent[:, 1:], seen)
        else:
            apart = (latent[:, 1:] - seen).square().mean(-1)
        return torch.cat((torch.zeros_like(apart[:, :1]), apart), 1)

    def error(self, elements: Tensor, outputs: Mapping[str, Any]) -> Tensor:
        error: Tensor = outputs["value_error"]
        return error
