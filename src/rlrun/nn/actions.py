"""An action tree and its two parts: numbers in [-1, 1] and choices."""

import math

import torch
from torch import Tensor

from rlrun.core.spaces import Box, Discrete, Space, Spaces, leaves, leaves_of, tree_of
from rlrun.core.typing import Tree
from rlrun.ops.distributions import gumbel_argmax


class ActionCodec:
    """Split action trees into c [B, A] and k [B, D], join them again, and work on values of choices.

    c holds the entries of all Box leaves in their order. Each Discrete leaf and each entry of a
    MultiDiscrete one is a decision. Where all decisions together have at most `joint_limit`
    combinations they form one branch (D = 1). Its choices are the combinations; the last decision
    counts fastest. Otherwise every decision is a branch of its own and the value of an action is
    the sum over branches, as in VDN (arXiv:1706.05296).

    `continuous`: A. `sizes`: that of each Box leaf. `branches`: number of choices of each branch, empty without
    decisions. `width`: their sum, the length of a row of `values` below: values of branch 0, then of branch 1, …
    """

    def __init__(self, spaces: Spaces | Space, *, joint_limit: int = 64) -> None:
        self.space = spaces.action if isinstance(spaces, Spaces) else spaces
        self.parts = [leaf for _, leaf in leaves(self.space)]
        self.sizes = tuple(leaf.size for leaf in self.parts if isinstance(leaf, Box))
        self.continuous = sum(self.sizes)
        self.decisions = tuple(n for leaf in self.parts if not isinstance(leaf, Box) for n in leaf.choices)
        combinations = math.prod(self.decisions)
        self.joint = len(self.decisions) > 1 and combinations <= joint_limit
        self.branches = (combinations,) if self.joint else self.decisions
        self.width = sum(self.branches)
        # a lone leaf needs no cutting and no putting together
        self.single = self.parts[0] if len(self.parts) == 1 else None

    @property
    def discrete(self) -> bool:
        """True where there is at least one decision."""
        return bool(self.branches)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The parts that there are, of "continuous" and "discrete", in this order."""
        return ("continuous",) * bool(self.continuous) + ("discrete",) * self.discrete

    def split(self, action: Tree) -> tuple[Tensor | None, Tensor | None]:
        """Return the parts c [..., A] and k [..., D] of an action; None for a part the space has not."""
        if isinstance(self.single, Box) and len(self.single.shape) == 1:
            return action, None
        if isinstance(self.single, Discrete):
            return None, action.unsqueeze(-1)
        numbers: list[Tensor] = []
        choices: list[Tensor] = []
        for leaf, value in zip(self.parts, leaves_of(self.space, action), strict=True):
            lead = value.shape[: value.dim() - len(leaf.shape)]
            flat = value.reshape(*lead, math.prod(leaf.shape))
            (numbers if isinstance(leaf, Box) else choices).append(flat)
        c = torch.cat(numbers, -1) if numbers else None
        return c, self._to_branches(torch.cat(choices, -1)) if choices else None

    def choices(self, action: Tree) -> Tensor:
        """Return the choices k [..., D] of an action from a space that has some."""
        k = self.split(action)[1]
        assert k is not None
        return k

    def join(self, c: Tensor | None, k: Tensor | None) -> Tree:
        """Return the action tree of the parts c [..., A] and k [..., D]."""
        if isinstance(self.single, Box) and len(self.single.shape) == 1:
            return c
        if isinstance(self.single, Discrete) and k is not None:
            return k.squeeze(-1)
        decisions = None if k is None else self._to_decisions(k)
        values, number, choice = [], 0, 0
        for leaf in self.parts:
            count = math.prod(leaf.shape)
            if isinstance(leaf, Box):
                flat, number = c[..., number : number + count], number + count  # type: ignore[index]
            else:
                flat, choice = decisions[..., choice : choice + count], choice + count  # type: ignore[index]
            values.append(flat.reshape((*flat.shape[:-1], *leaf.shape)))
        return tree_of(self.space, values)

    def select(self, values: Tensor, k: Tensor) -> Tensor:
        """Return the sum over branches of the chosen: values [..., width], k [..., D] -> [...].

        k may lack leading dimensions of values: the same choice for all members of an ensemble.
        """
        if values.dim() > k.dim():
            k = k.expand(*values.shape[:-1], k.shape[-1])
        if len(self.branches) == 1:
            return values.gather(-1, k).squeeze(-1)
        chosen = []
        for part, choice in zip(self._grouped(values), self._cut(k), strict=True):
            chosen.append(part.gather(-1, choice.unsqueeze(-1)).squeeze(-1))  # [..., branches of this group]
        return (chosen[0] if len(chosen) == 1 else torch.cat(chosen, -1)).sum(-1)

    def best(self, values: Tensor) -> Tensor:
        """Return the best choice of each branch: [..., width] -> k [..., D]."""
        if len(self.branches) == 1:
            return values.argmax(-1, keepdim=True)
        return self._per_branch([part.argmax(-1) for part in self._grouped(values)])

    def sample(self, logits: Tensor) -> Tensor:
        """Draw a choice in each branch: [..., width] -> k [..., D]."""
        if len(self.branches) == 1:
            return gumbel_argmax(logits, keepdim=True)
        return self._per_branch([gumbel_argmax(part) for part in self._grouped(logits)])

    def log_softmax(self, values: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
        """Return the log-probabilities of the Boltzmann policy, branch by branch: [..., width]."""
        plain = isinstance(temperature, float) and temperature == 1.0
        scaled = values if plain else values / temperature
        if len(self.branches) == 1:
            return scaled.log_softmax(-1)
        return self._per_branch([part.log_softmax(-1).flatten(-2) for part in self._grouped(scaled)])

    def centered(self, values: Tensor) -> Tensor:
        """Return values less the mean of their branch: [..., width]."""
        if len(self.branches) == 1:
            return values - values.mean(-1, keepdim=True)
        return self._per_branch([(part - part.mean(-1, keepdim=True)).flatten(-2) for part in self._grouped(values)])

    def expect(self, probabilities: Tensor, values: Tensor) -> Tensor:
        """Return the expected value of an action, its branches drawn independently: [..., width] -> [...]."""
        return (probabilities * values).sum(-1)

    def entropy(self, log_probabilities: Tensor) -> Tensor:
        """Return the entropy of all branches together: [..., width] -> [...]."""
        return -(log_probabilities.exp() * log_probabilities).sum(-1)

    def _grouped(self, values: Tensor) -> list[Tensor]:
        """Cut [..., width] into groups [..., branches, choices]: one where all branches have equally many."""
        if len(set(self.branches)) == 1:
            return [values.reshape(*values.shape[:-1], len(self.branches), self.branches[0])]
        return [part.unsqueeze(-2) for part in torch.split(values, list(self.branches), -1)]

    def _cut(self, k: Tensor) -> list[Tensor]:
        """Cut [..., D] along the groups of `_grouped`."""
        return [k] if len(set(self.branches)) == 1 else list(torch.split(k, 1, -1))

    def _per_branch(self, parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _to_branches(self, decisions: Tensor) -> Tensor:
        if not self.joint:
            return decisions
        combined = decisions[..., 0]
        for d, n in enumerate(self.decisions[1:], 1):
            combined = combined * n + decisions[..., d]
        return combined.unsqueeze(-1)

    def _to_decisions(self, k: Tensor) -> Tensor:
        if not self.joint:
            return k
        rest, decisions = k.squeeze(-1), []
        for n in reversed(self.decisions):
            decisions.append(rest % n)
            rest = rest // n
        return torch.stack(decisions[::-1], -1)
