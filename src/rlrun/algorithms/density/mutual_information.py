"""Mutual information of two columns, learned from their samples by a network.

Pairs (x, y) are from the joint distribution, pairs (x', y') from the product of its marginals. T is the network, M the
mean over a batch, and A the running mean over updates of M e^T(x', y').

    dv   I ≥ M T(x, y) - log M e^T(x', y')                       Belghazi et al. 2018, arXiv 1801.04062, eq. 10
         L = e^T(x', y') / A - T(x, y)                           its section 3.2: a gradient without the batch's bias
    kld  I ≥ M T(x, y) - M e^T(x', y') + 1                       Nowozin et al. 2016, arXiv 1606.00709
    jsd  log 4 - M softplus(-T(x, y)) - M softplus(T(x', y'))    Hjelm et al. 2019, arXiv 1808.06670, eq. 4
    ml   M log q(y | x) - log p(y) for normal q and p            Barber and Agakov 2003

The loss of kld, jsd and ml is minus their estimate. jsd bounds twice the Jensen-Shannon divergence, not information.
T of jsd and kld approaches log p(x, y) / p(x) p(y), the pointwise information; for dv T - log A does. ml is a bound if
p(y) is exact; if y is not normal, it may exceed the information.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from rlrun.callbacks.losses.loss import LossCallback, LossResult
from rlrun.core import distributed
from rlrun.core import spaces as trees
from rlrun.core.errors import ConfigError, SpaceError, did_you_mean, require_at_least, require_one_of
from rlrun.core.spaces import Box, Composite, Space, leaves_of, map_tree, row_count
from rlrun.core.typing import Batch, Tree
from rlrun.memory import Bonus
from rlrun.nn import EncodedMLP
from rlrun.nn.encoders import Encoded, Recipe
from rlrun.nn.mlp import Activation, Initializer, zeros
from rlrun.nn.normalizer import Nonnegative

Estimator = Literal["dv", "kld", "jsd", "ml"]
Sampler = Literal["buffer", "double_buffer", "shuffle", "shift"]
BUFFERED = {"buffer": "y", "double_buffer": "xy"}
OBSERVATIONS = ("observation", "next_observation")
LARGEST = 20.0  # exponent of a ratio of densities
UNIT = math.log(math.e - 1.0)  # softplus of it is 1
Buffers = dict[str, Tensor]  # new values by path


def bound(estimator: Estimator, joint: Tensor, product: Tensor) -> Tensor:
    """Return the estimate in nats, a scalar; joint, product: T of pairs of the joint distribution and of the product.

    ml: `joint` is the pointwise information.
    """
    if estimator == "ml":
        return joint.mean()
    if estimator == "jsd":
        return math.log(4.0) - F.softplus(-joint).mean() - F.softplus(product).mean()
    ratio = product.clamp(max=LARGEST).exp().mean()
    return joint.mean() - (ratio.log() if estimator == "dv" else ratio - 1.0)


class RunningMean(Nonnegative):
    """A running mean of tensors, one an update.

    Args:
        start: its value before the first update.
        speed: update k, from 0, has the share speed / (speed + k); 1 = the plain mean.
        rate: of an exponential mean, corrected for its start; None = use `speed`.
    """

    value: Tensor
    updates: Tensor
    nonnegative = ("updates",)

    def __init__(self, start: Tensor, *, speed: float = 10.0, rate: float | None = None) -> None:
        super().__init__()
        if not speed > 0.0 or not (rate is None or 0.0 < rate <= 1.0):
            raise ConfigError(f"mutual_information: wanted speed > 0 and 0 < rate <= 1, got {speed} and {rate}")
        self.speed, self.rate = speed, rate
        self.register_buffer("value", start)
        self.register_buffer("updates", torch.zeros((), dtype=torch.float64))

    def after(self, rows: Tensor) -> Buffers:
        """Return copies of the buffers, updated with the mean of rows [B, …] of all ranks."""
        newest = rows.detach().sum(0)
        count = distributed.pooled_(newest, len(rows))
        if count == 0:
            return {}
        if self.rate is None:
            share = self.speed / (self.speed + self.updates)
        else:
            share = self.rate / (1.0 - (1.0 - self.rate) ** (self.updates + 1.0))
        return {"value": self.value.lerp(newest / count, share.to(newest.dtype)), "updates": self.updates + 1.0}


class Ring(Nonnegative):
    """The newest rows of a column.

    Args:
        space: of a row.
        size: number of rows.
    """

    count: Tensor  # rows that were written so far
    nonnegative = ("count",)

    def __init__(self, space: Space, size: int) -> None:
        super().__init__()
        self.space, self.size = space, size
        for number, leaf in enumerate(leaves_of(space, zeros(space, size))):
            self.register_buffer(f"leaf_{number}", leaf)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def exchange(self, tree: Tree) -> tuple[Tree, Buffers]:
        """Return B rows drawn from earlier ones, and the buffers with the B rows of this tree [B, …] added.

        While there are fewer than B earlier rows, the new ones are drawn, too.
        """
        rows = leaves_of(self.space, tree)
        batch, device = len(rows[0]), self.count.device
        kept = min(batch, self.size)
        places = (self.count + torch.arange(kept, device=device)) % self.size
        before, after = self.count.clamp(max=self.size), (self.count + kept).clamp(max=self.size)
        enough = before >= batch
        uniform = torch.rand(batch, dtype=torch.float64, device=device)
        drawn = (uniform * torch.where(enough, before, after)).long()
        buffers: Buffers = {"count": self.count + kept}
        drawn_rows = []
        for number, value in enumerate(rows):
            old = self.get_buffer(f"leaf_{number}")
            new = buffers[f"leaf_{number}"] = old.index_copy(0, places, value.detach()[-kept:].to(old.dtype))
            drawn_rows.append(torch.where(enough, old[drawn], new[drawn]))
        return trees.tree_of(self.space, drawn_rows), buffers


class MutualInformation(EncodedMLP):
    """Estimates the mutual information of x and y, and the pointwise information of pairs.

    Args:
        spaces: of columns, by name.
        x, y: names of columns, `observation.goal` for a part of one.
        estimator: dv, kld, jsd or ml.
        sampler: of pairs from the product. buffer: x with earlier y; double_buffer: earlier x with earlier y;
            shuffle, shift: x with the batch's y in a random order, or of the previous row. The last two need
            independent rows. The first two give y (and x) no gradient.
        buffer_rows: rows of each buffer.
        speed, rate: of running means, as `RunningMean` takes them: A of dv, or the moments of y of ml.
        distribution: p(y), of torch.distributions, if it is known; it replaces the sampler, or the moments.
        features: a network whose encoder reads x and y; a `JointLoss` of its loss and this one trains it by both.
        hidden, activation, init: of the layers, as `MLP` takes them.
        encoder: as `Encoded` takes it, of {x, y}; with ml of x.

    Raises:
        ConfigError: a setting is invalid.
        SpaceError: there is no such column; or y has to be an array of numbers, and is not.
    """

    def __init__(
        self,
        spaces: Mapping[str, Space],
        *,
        x: str = "x",
        y: str = "y",
        estimator: Estimator = "dv",
        sampler: Sampler = "buffer",
        buffer_rows: int = 65_536,
        speed: float = 10.0,
        rate: float | None = None,
        distribution: Distribution | None = None,
        features: Encoded | None = None,
        hidden: Sequence[int] = (256,),
        activation: Activation = "relu",
        init: str | Initializer = "default",
        encoder: nn.Module | Recipe | None = None,
    ) -> None:
        require_one_of("estimator", estimator, get_args(Estimator))
        require_one_of("sampler", sampler, get_args(Sampler))
        require_at_least("buffer_rows", buffer_rows, 1)
        columns = {"x": _space_of(spaces, x), "y": _space_of(spaces, y)}
        if features is not None:
            wide = np.full(features.encoded, np.inf, np.float32)
            columns = dict.fromkeys(columns, Box(wide.shape, -wide, wide))
        space: Any = columns["y"]
        numbers = isinstance(space, Box) and space.dtype.startswith("float")
        if not numbers and (estimator == "ml" or distribution is not None):
            raise SpaceError(
                f"ml, and a known distribution, need one array of numbers; '{y}' is {trees.describe(space)}"
            )
        layers: dict[str, Any] = {"hidden": hidden, "activation": activation, "init": init, "encoder": encoder}
        if estimator == "ml":
            super().__init__(columns["x"], 2 * space.size, output_gain=0.0, **layers)
            start = torch.stack([torch.zeros(space.shape), torch.ones(space.shape)])
        else:
            super().__init__(Composite(columns), 1, **layers)
            start = torch.ones(())
        self.x, self.y = x, y
        self.estimator: Estimator = estimator
        self.sampler: Sampler = sampler
        self.distribution = distribution
        self._columns = columns
        self._borrowed = (features,)  # in a tuple: its parameters are not those of this network
        self.average = RunningMean(start, speed=speed, rate=rate)
        kept = "" if estimator == "ml" or distribution is not None else BUFFERED.get(sampler, "")
        self.rings = nn.ModuleDict({name: Ring(columns[name], buffer_rows) for name in kept})

    def pointwise(self, x: Tree, y: Tree) -> Tensor:
        """Return the current estimate of the pointwise information [...] of pairs [...], in nats."""
        x, y, lead = self.rows_of(x, y)
        if self.estimator == "ml":
            return self._log_ratio(x, y, self.average.value).reshape(lead)
        scores = self.scores(x, y).reshape(lead)
        return scores - self.average.value.log() if self.estimator == "dv" else scores

    def learn(self, x: Tree, y: Tree, valid: Tensor | None = None) -> tuple[Tensor, Tensor, Buffers]:
        """Return the loss of pairs [...], the batch's estimate in nats, and new values of buffers by their paths.

        valid [...]: pairs to learn from; the others have the loss 0.
        """
        x, y, lead = self.rows_of(x, y)
        if valid is None:
            loss, estimate, buffers = self._learn(x, y)
            return loss.reshape(lead), estimate, buffers
        rows = valid.reshape(-1).nonzero().squeeze(-1)
        loss, estimate, buffers = self._learn(*(map_tree(lambda part: part[rows], column) for column in (x, y)))
        loss = loss.new_zeros(lead.numel()).index_copy(0, rows, loss)
        return loss.reshape(lead), estimate.nan_to_num(), buffers  # no row at all has no estimate

    def _learn(self, x: Tree, y: Tree) -> tuple[Tensor, Tensor, Buffers]:
        if self.estimator == "ml":
            average = self.average.after(torch.stack([y, y.square()], 1))
            information = self._log_ratio(x, y, average.get("value", self.average.value))
            return -information, information.detach().mean(), _below("average", average)
        other_x, other_y, buffers = self._of_product(x, y)
        pairs = [map_tree(lambda *parts: torch.cat(parts), *both) for both in ((x, other_x), (y, other_y))]
        joint, product = self.scores(*pairs).chunk(2)
        estimate = bound(self.estimator, joint.detach(), product.detach())
        if self.estimator == "jsd":
            return F.softplus(-joint) + F.softplus(product) - math.log(4.0), estimate, buffers
        ratio = product.clamp(max=LARGEST).exp()
        if self.estimator == "kld":
            return ratio - 1.0 - joint, estimate, buffers
        average = self.average.after(ratio)
        return ratio / average.get("value", self.average.value) - joint, estimate, buffers | _below("average", average)

    def scores(self, x: Tree, y: Tree) -> Tensor:
        """Return T of rows [B, …]: [B]."""
        scores: Tensor = self({"x": x, "y": y})
        return scores.squeeze(-1)

    def _of_product(self, x: Tree, y: Tree) -> tuple[Tree, Tree, Buffers]:
        """Return as many pairs of the product as there are rows [B, …], and new values of the rings' buffers."""
        if self.distribution is not None:
            return x, self._known(y).sample((row_count(y),)).to(y), {}
        if self.sampler == "shift":
            return x, map_tree(lambda part: part.roll(1, 0), y), {}
        if self.sampler == "shuffle":
            order = torch.rand(row_count(y), device=self.average.value.device).argsort()
            return x, map_tree(lambda part: part[order], y), {}
        if distributed.world_size() > 1:
            raise ConfigError(f"sampler {self.sampler}: its rows would differ between ranks; shuffle and shift fit")
        pairs, buffers = {"x": x, "y": y}, dict[str, Tensor]()
        for name in self.rings:
            if any(part.requires_grad for part in leaves_of(self._columns[name], pairs[name])):
                raise ConfigError(f"sampler {self.sampler} gives {name} no gradient; shuffle and shift do")
            ring: Any = self.rings[name]
            pairs[name], own = ring.exchange(pairs[name])
            buffers |= _below(f"rings.{name}", own)
        return pairs["x"], pairs["y"], buffers

    def _known(self, y: Tensor) -> Any:
        """Return the known distribution of a row of y [B, …]."""
        distribution: Any = self.distribution
        return distribution.expand(y.shape[1 : y.dim() - len(distribution.event_shape)])

    def _log_ratio(self, x: Tree, y: Tensor, moments: Tensor) -> Tensor:
        """Return log q(y | x) - log p(y) of rows [B, …]: [B]; moments [2, …]: means of y and of its square."""
        mean, square = moments
        deviation = (square - mean.square()).clamp(min=1e-12).sqrt()
        marginal: Any = Normal(mean, deviation, False) if self.distribution is None else self._known(y)
        shift, scale = (part.reshape(y.shape) for part in self.layers(self.encode(x)).chunk(2, -1))
        conditional: Any = Normal(
            marginal.mean.to(y) + shift, marginal.stddev.to(y) * F.softplus(scale + UNIT), validate_args=False
        )
        of_y, given_x = (known.log_prob(y).reshape(len(y), -1).sum(-1) for known in (marginal, conditional))
        return given_x - of_y  # type: ignore[no-any-return]

    def rows_of(self, x: Tree, y: Tree) -> tuple[Tree, Tree, torch.Size]:
        """Return columns [...] as rows [B, …], encoded if there are `features`, and their leading sizes."""
        encoded, lead = self._borrowed[0], torch.Size()
        columns = {"x": x, "y": y} if encoded is None else {"x": encoded.encode(x), "y": encoded.encode(y)}
        for name, space in self._columns.items():
            parts, shapes = leaves_of(space, columns[name]), [leaf.shape for _, leaf in trees.leaves(space)]
            lead = parts[0].shape[: parts[0].dim() - len(shapes[0])]
            rows = [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
            columns[name] = trees.tree_of(space, rows)
        return columns["x"], columns["y"], lead


def information_of(
    weight: float, *, noise: int, outputs: int, estimator: Estimator = "jsd", **options: Any
) -> MutualInformation | None:
    """Return an estimator of the information between noise [N, K] and outputs [N, D]; None if the weight is 0.

    Pairs of the product are noise with the outputs of the previous row.
    """
    wide = (np.full(size, np.inf, np.float32) for size in (noise, outputs))
    spaces = {name: Box(limit.shape, -limit, limit) for name, limit in zip("xy", wide, strict=True)}
    return MutualInformation(spaces, estimator=estimator, sampler="shift", **options) if weight else None


def _space_of(spaces: Mapping[str, Space], path: str) -> Space:
    """Return the space of a column, or of a part of one, without an action mask."""
    space: Space = Composite(dict(spaces))
    for name in path.split("."):
        parts = space.parts if isinstance(space, Composite) else {}
        if name not in parts:
            there = f"there are {', '.join(parts) or 'no parts'}{did_you_mean(name, parts)}"
            raise SpaceError(f"mutual_information: there is no column '{path}'; {there}")
        space = trees.without_mask(parts[name])
    return space


def _part(columns: Tree, path: str) -> Tree:
    for name in path.split("."):
        columns = columns[name]
    return columns


def _below(prefix: str, buffers: Buffers) -> Buffers:
    return {f"{prefix}.{path}": value for path, value in buffers.items()}


class InformationLoss(LossCallback):
    """Minus the information estimate. In a `JointLoss` its gradient also makes x and y share information."""

    network: MutualInformation

    def loss(self, x: Tree, y: Tree, valid: Tensor | None = None) -> LossResult:
        loss, estimate, buffers = self.network.learn(x, y, valid)
        return loss, {"updates": _below("network", buffers)}, {f"information/{self.name}": estimate}


class InformationBonus(Bonus):
    """The pointwise information of two columns of a transition."""

    network: MutualInformation

    def __init__(self, network: MutualInformation, **options: Any) -> None:
        super().__init__(network, **options)
        columns = [path.partition(".")[0] for path in (network.x, network.y)]
        self.requires = tuple(dict.fromkeys(["next_observation", *columns]))

    def view(self, step: Batch) -> Batch:
        seen = {name: self.seen(step[name]) if name in OBSERVATIONS else step[name] for name in self.requires}
        return {"x": _part(seen, self.network.x), "y": _part(seen, self.network.y)}

    def measure(self, view: Batch) -> Tensor:
        return self.network.pointwise(view["x"], view["y"])


class InformationBonusLoss(LossCallback):
    """Train the network of an `InformationBonus`, on the pairs that the bonus reads."""

    network: MutualInformation

    def loss(self, mutual_information: Batch, valid: Tensor | None = None) -> LossResult:
        loss, estimate, buffers = self.network.learn(mutual_information["x"], mutual_information["y"], valid)
        metrics = {f"intrinsic/{self.name}_bonus": mutual_information["bonus"], f"information/{self.name}": estimate}
        return loss, {"updates": _below("network", buffers)}, metrics


class InformationBound:
    """A metric of held-out data: the information estimate over all rows, with pairs of the product within batches.

    Args:
        network: of the estimate.
        shifts: number of other rows whose y each x is paired with.
    """

    def __init__(self, network: MutualInformation, *, shifts: int = 16) -> None:
        require_at_least("shifts", shifts, 1)
        self.network, self.shifts = network, shifts

    def __call__(self, x: Tree, y: Tree) -> Tensor:
        """Return T of each row's pair, and of its x with y of earlier rows, [B, 1 + shifts]; NaN if there is none.

        ml: the pointwise information, [B, 1].
        """
        x, y, lead = self.network.rows_of(x, y)
        if self.network.estimator == "ml":
            return self.network._log_ratio(x, y, self.network.average.value).unsqueeze(-1)
        rolled = [map_tree(lambda part, by=by: part.roll(by, 0), y) for by in range(1 + self.shifts)]
        scores = torch.stack([self.network.scores(x, rows) for rows in rolled], -1)
        scores[:, lead.numel() :: lead.numel()] = math.nan  # a row with itself
        return scores

    def reduce(self, values: Tensor) -> Tensor:
        """Return the estimate in nats."""
        product = values[:, 1:]
        return bound(self.network.estimator, values[:, 0], product[~product.isnan()])
