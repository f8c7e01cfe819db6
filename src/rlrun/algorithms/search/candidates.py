"""Candidate actions: a search over K actions that the policy proposes, of many or infinitely many.

    a₁ … a_K ~ β = π^(1/τ),      prior of the search: π β̂ / β,      β̂(a) = share of a among the K

(Sampled MuZero, Hubert et al. 2021, arXiv 2104.06303, section 5.) With τ = 1 that prior is β̂. A search over candidates
has K actions in each node. The model's states contain them, and its nodes have their logits. The policy learns the
search's probabilities of the root's candidates: -Σ_k p_k log π(a_k).

An action is a row of its numbers and choices, as `ActionCodec.rows` returns it. Draws are a function of the node's
seed, so trees do not depend on each other. Evaluations use the same quantiles of every root's policy, in a Latin
hypercube: K of each dimension, symmetric around its median.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from rlrun.collect.agents import to_arrays
from rlrun.core.errors import ConfigError, require_number, require_whole
from rlrun.core.typing import Array
from rlrun.env.simulator import mixed, uniform
from rlrun.nn.actions import ActionCodec, ActionHead, Heads, forbidden

COUNT = 16  # default for actions of more than one choice; as many as Gumbel's first round considers


class Candidates:
    """The actions of each node of a search: all of a single choice, or candidates that the policy proposes.

    Args:
        codec: of actions.
        count: K, the number of candidates; None = all actions of a single choice, otherwise 16.
        likeliest: of a single choice, the K likeliest actions in place of draws.
        temperature: τ of draws; above 1 they spread further than the policy.

    Attributes:
        drawn: whether a node has candidates; otherwise it has all actions of a single choice.
        actions: number of a node's actions, A: K, or all.
        width: numbers of a row, W.
        shape: of a node's candidates as rows, [K, W]; 0 if it has none.

    Raises:
        ConfigError: a number is out of range, or an option has no effect here.
    """

    def __init__(
        self, codec: ActionCodec, count: int | None = None, *, likeliest: bool = False, temperature: float = 1.0
    ) -> None:
        single = is_single(codec)
        if count is not None:
            require_whole("count", count, 2)
        require_number("temperature", temperature, above=0.0)
        self.codec, self.likeliest, self.temperature = codec, likeliest, temperature
        self.drawn = not single or count is not None
        if likeliest and not single:
            raise ConfigError("likeliest: wanted false, as actions are more than one choice, got true")
        if likeliest and not self.drawn:
            raise ConfigError(
                "likeliest: wanted false where all actions are searched, as no number of candidates is given"
            )
        if temperature != 1.0 and (likeliest or not self.drawn):
            which = "the likeliest" if likeliest else "all"
            where = f"where {which} actions are searched, got {temperature}"
            raise ConfigError(f"temperature: wanted 1 {where}")
        if not self.drawn:
            self.actions = codec.width
        else:
            self.actions = min(count or COUNT, codec.width) if likeliest else count or COUNT
        self.width = codec.continuous + len(codec.branches)
        self.shape: list[int] | int = [self.actions, self.width] if self.drawn else 0

    def __call__(self, head: ActionHead, heads: Heads, seeds: Array | None) -> tuple[Array, Array]:
        """Return the candidates of n policies as rows [n, K, W], and the logits of their prior [n, K].

        heads: of the policies, tensors [n, …].
        seeds: of draws [n] uint64; None = quantiles in place of draws.
        """
        if self.likeliest:
            rows, logits = likeliest_candidates(head, heads, self.actions)
        else:
            rows, logits = drawn_candidates(head, heads, self.actions, seeds, self.temperature)
        return to_arrays(rows), to_arrays(logits)


def is_single(codec: ActionCodec) -> bool:
    """Return True if actions are a single choice."""
    return not codec.continuous and len(codec.branches) == 1


@torch.no_grad()
def drawn_candidates(
    head: ActionHead, heads: Heads, count: int, seeds: Array | None = None, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Draw K actions of any space for each of n policies.

    heads: of the policies, tensors [n, …].
    count: K.
    seeds: [n] uint64; the draws of a policy are a function of its seed. None = the same quantiles of all policies.
    temperature: τ of the proposals; above 1 they spread further than the policy.

    Returns:
        The actions as rows [n, K, W], and the logits of their prior [n, K]. A discrete action drawn twice is one
        candidate with twice the share, and the logit of its second copy is -inf.
    """
    policy = repeated(heads, count)
    proposal = policy if temperature == 1.0 else repeated(_flattened(head, heads, temperature), count)
    shares = _quantiles if seeds is None else partial(_uniform, seeds)
    mean, log_std, choices = proposal
    parts = []
    if mean is not None and log_std is not None:
        noise = torch.special.ndtri(shares(0, mean)).to(mean)
        parts.append(head.distribution.action(mean, log_std, noise))
    if choices is not None:
        gumbel = -(-shares(1, choices).log()).log()
        parts.append(head.codec.best(choices + gumbel.to(choices)).float())
    rows = torch.cat(parts, -1)
    logits = rows.new_zeros(rows.shape[:-1])
    if temperature != 1.0:
        actions = head.codec.from_rows(rows)
        logits = head.log_prob(policy, actions) - head.log_prob(proposal, actions)
    if mean is not None:
        return rows, logits
    same = (rows.unsqueeze(-2) == rows.unsqueeze(-3)).all(-1)
    return rows, (logits + same.sum(-1).log()).masked_fill(same.tril(-1).any(-1), -torch.inf)


@torch.no_grad()
def likeliest_candidates(head: ActionHead, heads: Heads, count: int) -> tuple[Tensor, Tensor]:
    """Return the K likeliest actions of each of n policies over a single choice.

    heads: of the policies, tensors [n, …].
    count: K, at most the number of actions.

    Returns:
        The actions as rows [n, K, 1], and the logits of their prior [n, K], -inf for forbidden ones.
    """
    assert heads.choices is not None
    logits, best = heads.choices.topk(count)
    return best.unsqueeze(-1).float(), logits.masked_fill(forbidden(logits), -torch.inf)


def chosen_candidates(candidates: Array, action: Array) -> Array:
    """Return the rows [n, W] of candidates [n, K, W] at indices [n]."""
    rows: Array = candidates[np.arange(len(action)), action]
    return rows


def repeated(heads: Heads, count: int) -> Heads:
    """Return policies [...] as policies [..., K] of K actions each."""
    parts = (
        None if part is None else part.unsqueeze(-2).expand(*part.shape[:-1], count, part.shape[-1]) for part in heads
    )
    return Heads(*parts)


def _quantiles(part: int, like: Tensor) -> Tensor:
    """Return K equally spaced numbers from 0 to 1, in a random order for each dimension, like a tensor [n, K, W]."""
    rng = np.random.default_rng(part)
    orders = np.stack([rng.permutation(like.shape[-2]) for _ in range(like.shape[-1])], 1)
    return torch.from_numpy((orders + 0.5) / len(orders)).expand(like.shape)


def _uniform(seeds: Array, part: int, like: Tensor) -> Tensor:
    """Return random numbers between 0 and 1 in the shape of a tensor [n, …], by seeds [n] and the part of actions."""
    draws = uniform(mixed(seeds, part)[:, None], np.arange(like[0].numel()))
    return torch.from_numpy(np.maximum(draws, 2.0**-54)).reshape(like.shape)


def _flattened(head: ActionHead, heads: Heads, temperature: float) -> Heads:
    """Return the policy to the power of 1 / τ: of choices, and of the normals before squashing."""
    choices = None if heads.choices is None else head.codec.log_softmax(heads.choices / temperature)
    log_std = None if heads.log_std is None else heads.log_std + 0.5 * torch.tensor(temperature).log()
    return Heads(heads.mean, log_std, choices)
