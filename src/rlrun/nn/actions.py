"""Action trees, their continuous and discrete parts, and the last layer of a stochastic policy."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.compile.calls import part_of
from rlrun.core.errors import SpaceError, require_number, require_one_of, require_whole
from rlrun.core.spaces import ACTION_MASK, Box, Discrete, Space, Spaces, describe, leaves, leaves_of, tree_of
from rlrun.core.typing import Tree
from rlrun.nn.mlp import orthogonal_
from rlrun.nn.own import Columns
from rlrun.nn.recurrent import present
from rlrun.ops.distributions import GAUSSIANS, Gaussian, choice_divergence, gumbel_argmax, normal_like, one_hot

# The authors' limits. The lower one only keeps exp(-log_std) finite; a tighter one, such as -5, would
# forbid a policy to become as good as deterministic.
LOG_STD = (-20.0, 2.0)
Spread = Literal["observation", "free"]
SPREADS = ("observation", "free")
ILLEGAL = -1e9  # value or logit of a forbidden choice: its probability is 0, and finite, so 0 times it is 0


class ActionCodec:
    """Split action trees into c [B, A] and k [B, D], join them again, and work on values of choices.

    c holds the entries of all Box leaves in their order. Each Discrete leaf and each entry of a
    MultiDiscrete one is a decision. Where all decisions together have at most `joint_limit`
    combinations they form one branch (D = 1). Its choices are the combinations; the last decision
    counts fastest. Otherwise every decision is a branch of its own and the value of an action is
    the sum over branches, as in VDN (arXiv:1706.05296).

    An observation's part `action_mask` has a flag for each choice of each decision, in their order. A combination
    is allowed if all its choices are.

    `continuous`: A. `sizes`: size of each Box leaf. `branches`: number of choices of each branch, empty without
    decisions. `width`: their sum, the length of a row of `values` below: values of branch 0, then of branch 1, …
    `masked`: whether observations have an action mask.

    Raises:
        SpaceError: the mask is nested in another part, or its number of flags differs from that of the choices.
    """

    def __init__(self, spaces: Spaces | Space, *, joint_limit: int = 64) -> None:
        require_whole("joint_limit", joint_limit, 0)
        self.space = spaces.action if isinstance(spaces, Spaces) else spaces
        self.named = [*leaves(self.space)]
        self.parts = [leaf for _, leaf in self.named]
        self.sizes = tuple(leaf.size for leaf in self.parts if isinstance(leaf, Box))
        self.continuous = sum(self.sizes)
        self.decisions = tuple(n for leaf in self.parts if not isinstance(leaf, Box) for n in leaf.choices)
        combinations = math.prod(self.decisions)
        self.joint = len(self.decisions) > 1 and combinations <= joint_limit
        self.branches = (combinations,) if self.joint else self.decisions
        self.width = sum(self.branches)
        self.single = self.parts[0] if len(self.parts) == 1 else None  # a lone leaf needs no cutting and no joining
        self.masked, self._mask_dims = False, 1
        if isinstance(spaces, Spaces):
            self._require_mask(spaces.observation)

    def _require_mask(self, observation: Space) -> None:
        paths = [path for path, _ in leaves(observation) if ACTION_MASK in path.split(".")]
        if not paths:
            return
        part = f"the observation's part '{paths[0]}'"
        if paths != [ACTION_MASK]:
            raise SpaceError(f"{part}: an action mask is one array at the top of the observation, as '{ACTION_MASK}'")
        shape, count = dict(leaves(observation))[ACTION_MASK].shape, sum(self.decisions)
        if not shape or math.prod(shape) != count:
            about = f"{count} choices, and wants a flag for each" if count else "no choices to forbid: leave it out"
            raise SpaceError(f"{part} has {math.prod(shape)} flags; {describe(self.space)} has {about}")
        self.masked, self._mask_dims = True, len(shape)

    @property
    def discrete(self) -> bool:
        """True where there is at least one decision."""
        return bool(self.branches)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The action's parts: "continuous", "discrete", or both in this order."""
        return ("continuous",) * bool(self.continuous) + ("discrete",) * self.discrete

    def names(self, *, leaves: bool) -> tuple[str, ...]:
        """Return `kinds`; with `leaves` the paths of leaves, Boxes first. A space of one leaf always has its kind."""
        if not leaves or self.single is not None:
            return self.kinds
        return tuple(path for path, leaf in sorted(self.named, key=lambda pair: not isinstance(pair[1], Box)))

    def split(self, action: Tree) -> tuple[Tensor | None, Tensor | None]:
        """Return the parts c [..., A] and k [..., D] of an action; None for a part that the space lacks."""
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

    def rows(self, action: Tree) -> Tensor:
        """Return an action as float32 rows [..., A + D]: its numbers, then its choices; `from_rows` is the inverse."""
        c, k = self.split(action)
        return torch.cat([part.float() for part in (c, k) if part is not None], -1)

    def from_rows(self, rows: Tensor) -> Tree:
        """Return the action tree of rows [..., A + D]."""
        c, k = rows[..., : self.continuous], rows[..., self.continuous :]
        return self.join(c if self.continuous else None, k.long() if self.discrete else None)

    def coded(self, action: Tree) -> Tensor:
        """Return an action as a network reads it [..., A + width]: its numbers, then its choices as zeros and ones."""
        c, k = self.split(action)
        choices = None if k is None else one_hot(k, self.branches)
        return torch.cat([part for part in (c, choices) if part is not None], -1)

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

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Return log-probabilities, branch by branch: [..., width]."""
        if len(self.branches) == 1:
            return logits.log_softmax(-1)
        return self._per_branch([part.log_softmax(-1).flatten(-2) for part in self._grouped(logits)])

    def restrict(self, values: Tensor, observation: Tree) -> Tensor:
        """Return values or logits [..., width] with `ILLEGAL` for choices that the observations [...] do not allow.

        A mask without any allowed choice of a decision allows them all: an episode may have ended there. Without an
        observation all choices are allowed.
        """
        if not self.masked or observation is None:
            return values
        return values.masked_fill(~self.allowed(observation), ILLEGAL)

    def allowed(self, observation: Tree) -> Tensor:
        """Return flags [..., width] of the choices that the action masks of observations [...] allow."""
        flags = present(observation)[ACTION_MASK].ne(0).flatten(-self._mask_dims).split(self.decisions, -1)
        first, *rest = (part | ~part.any(-1, True) for part in flags)
        if not self.joint:
            return torch.cat((first, *rest), -1)
        combined: Tensor = first
        for part in rest:
            combined = (combined.unsqueeze(-1) & part.unsqueeze(-2)).flatten(-2)
        return combined

    def without_forbidden(self, log_prob: Tensor, choices: Tensor | None, action: Tree) -> Tensor:
        """Return log_prob [...] of actions, 0 where a mask forbids them.

        choices: log-probabilities of all choices, [..., width].
        """
        if not self.masked or choices is None:
            return log_prob
        return log_prob.masked_fill(forbidden(self.select(choices, self.choices(action))), 0.0)

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

    def leaf_entropies(self, log_probabilities: Tensor) -> list[Tensor]:
        """Return the marginal entropy [...] of the choices of each leaf, from log-probabilities [..., width]."""
        choices = [leaf.choices for leaf in self.parts if not isinstance(leaf, Box)]
        if not self.joint or len(choices) == 1:
            widths = [self.width] if len(choices) == 1 else [sum(counts) for counts in choices]
            return [self.entropy(part) for part in torch.split(log_probabilities, widths, -1)]
        table = log_probabilities.reshape(*log_probabilities.shape[:-1], *map(math.prod, choices))
        axes = range(-len(choices), 0)
        return [self.entropy(table.logsumexp([rest for rest in axes if rest != axis])) for axis in axes]

    def _grouped(self, values: Tensor) -> list[Tensor]:
        """Split [..., width] into groups [..., branches, choices]: one group if all branches have equally many."""
        if len(set(self.branches)) == 1:
            return [values.reshape(*values.shape[:-1], len(self.branches), self.branches[0])]
        return [part.unsqueeze(-2) for part in torch.split(values, list(self.branches), -1)]

    def _cut(self, k: Tensor) -> list[Tensor]:
        """Split [..., D] along the groups of `_grouped`."""
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


class Heads(NamedTuple):
    """The parameters of a distribution over actions; None for a part that the space lacks."""

    mean: Tensor | None  # [..., A], before the tanh
    log_std: Tensor | None  # [..., A]
    choices: Tensor | None  # log-probabilities [..., width]


class ActionHead(nn.Module):
    """The last layer of a policy: from features [..., F] to a distribution over actions of any space.

    Box leaves: a diagonal normal, squashed to [-1, 1] by tanh or cut to it. Choices: categorical. The parts of an
    action are independent given the features.

    Args:
        spaces: of the environment.
        features: F; None = there is no layer: the first features are the parameters, from a module of one's own.
        gain: of the initial weights: small, so that actions begin near the center and choices near uniform.
        spread: log_std depends on the "observation", or is "free": one parameter a dimension.
        log_std: its initial value.
        distribution: of Box leaves: squashed or truncated, see `rlrun.ops.distributions`.
        joint_limit: of `ActionCodec`.

    Raises:
        ConfigError: there is no such spread or distribution, or log_std is no number.
    """

    def __init__(
        self,
        spaces: Spaces,
        features: int | None,
        *,
        gain: float = 0.01,
        spread: Spread = "observation",
        log_std: float = 0.0,
        distribution: str = "squashed",
        joint_limit: int = 64,
    ) -> None:
        super().__init__()
        require_one_of("spread", spread, SPREADS)
        require_number("log_std", log_std)
        self.distribution = gaussian_of(distribution)
        self.codec = ActionCodec(spaces, joint_limit=joint_limit)
        count = self.codec.continuous
        free = spread == "free" and count > 0
        self.widths = (count, 0 if free else count, self.codec.width)
        self.parts, self.first_log_std = self.codec.kinds, float(log_std)
        self.layer: nn.Module
        if features is None:
            self.layer = Columns(0, sum(self.widths))
        else:
            self.layer = nn.Linear(features, sum(self.widths))
            orthogonal_(self.layer, gain)
            with torch.no_grad():
                self.layer.bias[count : count + self.widths[1]] = log_std
        self.log_std = nn.Parameter(torch.full((count,), float(log_std))) if free else None

    def first_outputs(self) -> Tensor:
        """Return initial outputs for a head without a layer: equal to those of a head with its own layer."""
        count, spread, choices = self.widths
        return torch.cat((torch.zeros(count), torch.full((spread,), self.first_log_std), torch.zeros(choices)))

    def forward(self, features: Tensor, observation: Tree = None) -> Heads:
        """Return the distribution; only the action mask of `observation` [...] is read, if it is given."""
        raw = part_of(self, "layer")(features)
        if not self.codec.continuous:
            return Heads(None, None, self.codec.log_softmax(self.codec.restrict(raw, observation)))
        mean, log_std, logits = torch.split(raw, list(self.widths), -1)
        if self.log_std is not None:
            log_std = self.log_std.expand_as(mean)
        choices = self.codec.log_softmax(self.codec.restrict(logits, observation)) if self.codec.discrete else None
        return Heads(mean, log_std.clamp(*LOG_STD), choices)

    def draw(self, heads: Heads, noise: Tensor | None = None) -> Tree:
        """Draw an action tree; `noise` [..., A] is standard normal, drawn unless given."""
        mean, log_std, choices = heads
        c = None if mean is None or log_std is None else self.distribution.action(mean, log_std, _noise(mean, noise))
        return self.codec.join(c, None if choices is None else self.codec.sample(choices))

    def sample(self, heads: Heads, noise: Tensor | None = None) -> tuple[Tree, Tensor]:
        """Draw an action tree; return it and its log_prob [...] with gradients."""
        mean, log_std, choices = heads
        c = k = None
        terms = []
        if mean is not None and log_std is not None:
            c, log_prob = self.distribution.sample(mean, log_std, _noise(mean, noise))
            terms.append(log_prob)
        if choices is not None:
            k = self.codec.sample(choices)
            terms.append(self.codec.select(choices, k))
        return self.codec.join(c, k), _sum(terms)

    def mode(self, heads: Heads) -> Tree:
        """Return the action tree without noise: tanh of the mean, the most likely choices."""
        c = None if heads.mean is None else heads.mean.tanh()
        return self.codec.join(c, None if heads.choices is None else self.codec.best(heads.choices))

    def log_prob(self, heads: Heads, action: Tree, *, edge: float = 0.0) -> Tensor:
        """Return the log-probability [...] of an action tree.

        edge: numbers are clamped to this distance from their bounds. Recorded actions may lie on bounds, where the
            normal below the tanh would be far out and very sensitive.
        """
        mean, log_std, choices = heads
        c, k = self.codec.split(action)
        if c is not None and edge:
            c = c.clamp(edge - 1.0, 1.0 - edge)
        terms = [] if c is None or mean is None or log_std is None else [self.distribution.log_prob(mean, log_std, c)]
        terms += [] if k is None or choices is None else [self.codec.select(choices, k)]
        return _sum(terms)

    def noise(self, heads: Heads) -> Tensor | None:
        """Return the noise of one draw of the continuous part, standard normal [..., A]; None without such a part."""
        return None if heads.mean is None else normal_like(heads.mean)

    def entropy(self, heads: Heads, noise: Tensor | None = None) -> Tensor:
        """Return the entropy [..., parts] of each part, with gradients; estimated by one draw for the continuous part.

        noise: [..., A] of that draw, standard normal, drawn unless given.
        """
        mean, log_std, choices = heads
        terms = []
        if mean is not None and log_std is not None:
            terms.append(self.distribution.entropy(mean, log_std, _noise(mean, noise)))
        if choices is not None:
            terms.append(self.codec.entropy(choices))
        return torch.stack(terms, -1) if len(terms) > 1 else terms[0].unsqueeze(-1)

    def leaf_entropy(self, heads: Heads, noise: Tensor | None = None) -> Tensor:
        """Return the entropy [..., leaves] of each leaf, in the order of the codec's names; see `entropy`."""
        mean, log_std, choices = heads
        terms = []
        if mean is not None and log_std is not None:
            parts = (torch.split(tensor, list(self.codec.sizes), -1) for tensor in (mean, log_std, _noise(mean, noise)))
            terms += [self.distribution.entropy(*part) for part in zip(*parts, strict=True)]
        return torch.stack(terms + ([] if choices is None else self.codec.leaf_entropies(choices)), -1)

    def divergence(self, heads: Heads, reference: Heads) -> Tensor:
        """Return KL(heads ‖ reference) [...] in nats, exactly."""
        mean, log_std, choices = heads
        terms = []
        if mean is not None and log_std is not None and reference.mean is not None and reference.log_std is not None:
            terms.append(self.distribution.divergence(mean, log_std, reference.mean, reference.log_std))
        if choices is not None and reference.choices is not None:
            terms.append(choice_divergence(choices, reference.choices))
        return _sum(terms)


def gaussian_of(name: str) -> Gaussian:
    """Return the distribution of this name.

    Raises:
        ConfigError: the name is unknown.
    """
    require_one_of("distribution", name, GAUSSIANS)
    return GAUSSIANS[name]


def forbidden(log_prob: Tensor) -> Tensor:
    """Return flags [...] of log-probabilities that belong to choices forbidden by a mask."""
    return log_prob < 0.5 * ILLEGAL


def _noise(mean: Tensor, noise: Tensor | None) -> Tensor:
    return normal_like(mean) if noise is None else noise


def _sum(terms: list[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]
