"""Candidate actions: a search over K of many actions, or of infinitely many, that the policy has proposed.

    a₁ … a_K ~ β = π^(1/τ),      prior of the search: π β̂ / β,      β̂(a) = share of a among the K

(Hubert et al. 2021, arXiv 2104.06303, section 5.) With τ = 1 that prior is β̂. A search over candidates is one with
K actions. The state of a model carries them, and its nodes have their logits. The policy learns the search's
probabilities of the root's candidates: -Σ_k p_k log π(a_k).
"""

import torch
from torch import Tensor

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Array, Tree
from rlrun.nn.actions import ActionHead, Heads, forbidden


@torch.no_grad()
def drawn_candidates(head: ActionHead, heads: Heads, count: int, temperature: float = 1.0) -> tuple[Tree, Tensor]:
    """Draw K actions of any space for each of n policies.

    heads: of the policies, tensors [n, …].
    count: K.
    temperature: τ of the proposals; above 1 they spread further than the policy.

    Returns:
        The actions, a tree of tensors [n, K, …], and the logits of their prior [n, K]. Where all actions are choices,
        the same action twice is one candidate of twice the share, and the second one is not allowed: -inf.
    """
    policy = _repeated(heads, count)
    proposal = policy if temperature == 1.0 else _repeated(_flattened(head, heads, temperature), count)
    actions = head.draw(proposal)
    some = next(part for part in policy if part is not None)
    logits = some.new_zeros(some.shape[:-1])
    if temperature != 1.0:
        logits = head.log_prob(policy, actions) - head.log_prob(proposal, actions)
    if head.codec.continuous:
        return actions, logits
    choices = head.codec.choices(actions)
    same = (choices.unsqueeze(-2) == choices.unsqueeze(-3)).all(-1)
    logits = logits + same.sum(-1).log()
    return actions, logits.masked_fill(same.tril(-1).any(-1), -torch.inf)


@torch.no_grad()
def likeliest_candidates(head: ActionHead, heads: Heads, count: int) -> tuple[Tree, Tensor]:
    """Return the K likeliest actions of each of n policies over one choice, or all of them if they are fewer.

    heads: of the policies, tensors [n, …].
    count: K.

    Returns:
        The actions, a tree of tensors [n, K, …], and the logits of their prior [n, K], -inf for forbidden ones.

    Raises:
        ConfigError: the actions have numbers, or several choices of more than 64 combinations.
    """
    if head.codec.continuous or len(head.codec.branches) != 1 or heads.choices is None:
        raise ConfigError("the likeliest candidates are those of one choice; draw them where actions have more parts")
    logits, best = heads.choices.topk(min(count, head.codec.width))
    return head.codec.join(None, best.unsqueeze(-1)), logits.masked_fill(forbidden(logits), -torch.inf)


def chosen_candidates(candidates: Tree, action: Array | Tensor) -> Tree:
    """Return the actions [n, …] of candidates [n, K, …] by their numbers [n]."""
    return map_tree(lambda leaf: leaf[range(len(action)), action], candidates)


def _repeated(heads: Heads, count: int) -> Heads:
    parts = (None if part is None else part.unsqueeze(-2).expand(-1, count, -1) for part in heads)
    return Heads(*parts)


def _flattened(head: ActionHead, heads: Heads, temperature: float) -> Heads:
    """Return the policy to the power of 1 / τ: choices, and the normal below a squashed number."""
    choices = None if heads.choices is None else head.codec.log_softmax(heads.choices / temperature)
    log_std = None if heads.log_std is None else heads.log_std + 0.5 * torch.tensor(temperature).log()
    return Heads(heads.mean, log_std, choices)
