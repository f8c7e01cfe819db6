"""Networks as particles: a likelihood of weights, and predictions by many networks.

    U(w) = 1/n Σ -log p(label | network_w(observation)) + |w|² / 2 n s²        n rows of data, s the prior's deviation

The weights are particles themselves, or outputs of a generator: a hypernetwork (1901.11058). As functions, particles
are the networks' outputs at the observations of a batch and at further ones near them (1902.09754).
"""

import math
from collections.abc import Callable, Sized
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rlrun import ops
from rlrun.core.errors import ConfigError, require_at_least, require_number, require_one_of
from rlrun.core.spaces import Box, Space, leaves, leaves_of, map_tree, row_count, tree_of
from rlrun.core.typing import Tree
from rlrun.nn.encoders import numbers

Loss = Literal["classification", "regression"]
Voting = Literal["soft", "hard"]
LOSSES = ("classification", "regression")
Metric = Callable[..., Tensor]
FEW = 1e-3
NO_CLASSES = "algorithm.loss: labels are numbers, not classes; use regression"


class Likelihood(nn.Module):
    """The energy of weights [N, P] of a network, from labels.

    Args:
        network: its weights are particles; its own values are not used. Functions get pixels as numbers from 0 to 1.
        data: for training; its length is n.
        loss: cross-entropy, or the squared distance of normal labels.
        deviation: of labels around the network's outputs.
        prior: s; None = all weights are equally likely.
        extra: share of further observations for functions, relative to those of a batch.
        extra_noise: noise that makes them, `uniform` or `normal`.
        extra_deviation: of that noise.

    Raises:
        ConfigError: the loss or noise is unknown, a number is out of range, or the network has statistics or parameters
            without `reset_parameters`.
    """

    def __init__(
        self,
        network: nn.Module,
        data: Sized,
        *,
        loss: Loss = "classification",
        deviation: float = 1.0,
        prior: float | None = None,
        extra: float = 0.1,
        extra_noise: Literal["uniform", "normal"] = "uniform",
        extra_deviation: float = 1.0,
    ) -> None:
        require_one_of("algorithm.loss", loss, LOSSES)
        require_one_of("algorithm.extra.noise", extra_noise, ("uniform", "normal"))
        if [*network.buffers()]:
            raise ConfigError("energy.network: all particles would share its statistics; layer_norm has none")
        owners = [module for module in network.modules() if [*module.parameters(recurse=False)]]
        if bare := [type(module).__name__ for module in owners if not hasattr(module, "reset_parameters")]:
            raise ConfigError(f"energy.network: a {bare[0]} has parameters, but no reset_parameters(): all start alike")
        if not deviation > 0.0 or not (prior is None or prior > 0.0) or not 0.0 <= extra <= 1.0:
            wanted = "wanted algorithm.deviation and algorithm.prior above 0, and algorithm.extra.share from 0 to 1"
            raise ConfigError(f"energy: {wanted}; got {deviation}, {prior} and {extra}")
        require_number("algorithm.extra.deviation", extra_deviation, 0)
        super().__init__()
        self.network = network.requires_grad_(False)
        self.rows = float(len(data))
        self.kind, self.deviation, self.prior = loss, deviation, prior
        self.extra, self.extra_noise, self.extra_deviation = extra, extra_noise, extra_deviation
        self.shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]

    @property
    def size(self) -> int:
        """P."""
        return sum(self.sizes)

    def initial(self, count: int) -> Tensor:
        """Return the weights of new networks, [N, P]."""
        rows = []
        for _ in range(count):
            for layer in reversed([*self.network.modules()]):  # a network's own reset comes after those of its layers
                getattr(layer, "reset_parameters", lambda: None)()
            rows.append(torch.cat([parameter.detach().flatten() for parameter in self.network.parameters()]))
        return torch.stack(rows)

    def functions(self, particles: Tensor, observation: Tree) -> Tensor:
        """Return the outputs of each network at each observation, [N, B, K]."""
        outputs: Tensor = vmap(self._function, in_dims=(0, None))(particles, observation)
        return outputs

    def _function(self, weights: Tensor, observation: Tree) -> Tensor:
        parts = zip(self.shapes.items(), torch.split(weights, self.sizes), strict=True)
        named = {name: part.view(shape) for (name, shape), part in parts}
        outputs: Tensor = functional_call(self.network, named, (observation,))
        return outputs

    def forward(self, particles: Tensor, observation: Tree, label: Tensor) -> Tensor:
        energy = self._error(self.functions(particles, observation), label)
        if self.prior is None:
            return energy
        return energy + particles.square().sum(-1) / (2.0 * self.rows * self.prior**2)

    def fit(self, values: Tensor, label: Tensor) -> Tensor:
        """Return U [N] of functions [N, F], whose first places have the labels; without the prior."""
        places = self._places_of(len(label))
        outputs = values.reshape(len(values), places, -1)
        return self._error(outputs[:, : len(label)], label)

    def _places_of(self, rows: int) -> int:
        return rows + -int(-self.extra * rows // 1)

    def places(self, observation: Tree) -> Tree:
        """Return the observations of a batch, and further ones near the first of them."""
        extra = self._places_of(row_count(observation)) - row_count(observation)

        def further(value: Tensor) -> Tensor:
            near = value[:extra]
            uniform = self.extra_noise == "uniform"
            noise = (torch.rand_like(near) - 0.5) * 12.0**0.5 if uniform else torch.randn_like(near)
            return torch.cat((value, near + self.extra_deviation * noise))

        return map_tree(further, read(self.network, observation))

    def _error(self, outputs: Tensor, label: Tensor) -> Tensor:
        """Return the mean error of outputs [N, B, K] over the labels: [N].

        Raises:
            ConfigError: labels are not classes, or do not have as many numbers as outputs.
        """
        if self.kind == "classification" and (label.is_floating_point() or label.dim() > 1):
            raise ConfigError(NO_CLASSES)
        if self.kind == "regression" and label[0].numel() != outputs.shape[-1]:
            sizes = f"{outputs.shape[-1]} outputs and {label[0].numel()} numbers a label"
            raise ConfigError(f"energy.network.outputs: a regression needs one for each number of a label; got {sizes}")
        if self.kind == "classification":
            wanted = label.long().expand(outputs.shape[:2])
            return F.cross_entropy(outputs.flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted).mean(1)
        difference = outputs - label.reshape(len(label), -1).float()
        return 0.5 * (difference / self.deviation).square().sum(-1).mean(1)


def outputs_for(label: Space, loss: Loss) -> int:
    """Return the number of outputs of a network that predicts labels: one per class, or per number in a regression.

    Raises:
        ConfigError: the loss is unknown, or labels are numbers and the loss needs classes.
    """
    require_one_of("algorithm.loss", loss, LOSSES)
    if loss == "regression":
        return sum(math.prod(leaf.shape) for _, leaf in leaves(label))
    if isinstance(label, Box):
        raise ConfigError(NO_CLASSES)
    return label.size


class Votes(nn.Module):
    """Predictions by many networks: log-probabilities [B, K] of classes, or mean and variance of numbers [B, 2, K].

    Args:
        source: of weights; a generator's noise is drawn once.
        likelihood: of the weights.
        count: number of networks from a generator.
        voting: `soft` is the mean of probabilities; `hard` the share of networks whose best class it is, with ties
            broken by the mean of probabilities.

    Raises:
        ConfigError: the voting is unknown.
    """

    noise: Tensor | None

    def __init__(self, source: Any, likelihood: Likelihood, *, count: int, voting: Voting = "soft") -> None:
        require_one_of("algorithm.voting", voting, ("soft", "hard"))
        require_at_least("algorithm.members", count, 1)
        super().__init__()
        self._borrowed = (source, likelihood)  # in a tuple: their parameters are theirs
        self.voting = voting
        self.register_buffer("noise", source.noise(count))

    def train(self, mode: bool = True) -> "Votes":
        """Set the mode of the source, too."""
        self._borrowed[0].train(mode)
        return super().train(mode)

    def members(self, observation: Tree) -> Tensor:
        """Return the outputs of each network, [N, B, K]."""
        source, likelihood = self._borrowed
        outputs: Tensor = likelihood.functions(source.predict(self.noise), observation)
        return outputs

    def forward(self, observation: Tree) -> Tensor:
        outputs, likelihood = self.members(observation), self._borrowed[1]
        if likelihood.kind == "regression":
            variance = outputs.var(0, correction=0) + likelihood.deviation**2
            return torch.stack((outputs.mean(0), variance), 1)
        log_mean = outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))
        if self.voting == "hard":
            shares = F.one_hot(outputs.argmax(-1), outputs.shape[-1]).float().mean(0)
            # a weight so small that the means only break ties
            log_mean = torch.logaddexp((shares * (1.0 - FEW)).log(), log_mean + math.log(FEW))
        return log_mean

    def uncertainty(self, observation: Tree, measure: str) -> Tensor:
        """Return the entropy of the mean probabilities, or the variance between networks summed over outputs: [B]."""
        outputs = self.members(observation)
        if self._borrowed[1].kind == "classification":
            outputs = outputs.softmax(-1)
        if measure == "variance":
            return outputs.var(0, correction=0).sum(-1)
        mean = outputs.mean(0)
        return -(mean * mean.clamp(min=1e-30).log()).sum(-1)


def read(network: nn.Module, observation: Tree) -> Tree:
    """Return observations as the floating-point numbers that a network reads, choices included."""
    space = getattr(network, "observed", None)
    if space is None:
        return map_tree(Tensor.float, observation)  # a user's network scales its inputs
    parts = zip(leaves(space), leaves_of(space, observation), strict=True)
    return tree_of(
        space, [numbers(leaf, value) if isinstance(leaf, Box) else value.float() for (_, leaf), value in parts]
    )


class Outliers:
    """The area under the ROC curve of detecting outliers among held-out data by the networks' uncertainty.

    Outliers are the column `outlier` of the held-out data; or else its observations, `inverted` or replaced by `noise`.

    Args:
        network: of the uncertainty.
        change: `inverted` or `noise`.
        measure: `entropy` of classes, or `variance` between networks.

    Raises:
        ConfigError: the change or measure is unknown.
    """

    def __init__(self, network: Votes, *, change: str = "inverted", measure: str = "entropy") -> None:
        require_one_of("validation.metrics.outliers.change", change, ("inverted", "noise"))
        require_one_of("validation.metrics.outliers.measure", measure, ("entropy", "variance"))
        if measure == "entropy" and network._borrowed[1].kind == "regression":
            measure = "variance"
        self.network, self.change, self.measure = network, change, measure

    def __call__(self, observation: Tree, outlier: Tree | None = None) -> Tensor:
        """Return the uncertainty of each observation, and of an outlier, [B, 2]."""
        strange = map_tree(self._changed, observation) if outlier is None else outlier
        values = [self.network.uncertainty(tree, self.measure) for tree in (observation, strange)]
        return torch.stack(values, -1)

    def _changed(self, value: Tensor) -> Tensor:
        if value.is_floating_point():
            return -value if self.change == "inverted" else torch.randn_like(value)
        whole = value.long()
        least, largest = int(whole.min()), int(whole.max())
        if value.dtype == torch.uint8 and largest > 1:  # pixels
            least, largest = 0, 255
        changed = (
            least + largest - whole if self.change == "inverted" else torch.randint_like(whole, least, largest + 1)
        )
        return changed.to(value.dtype)

    def reduce(self, values: Tensor) -> Tensor:
        """Return the area of all rows [n, 2]."""
        known, strange = values.unbind(-1)
        labels = torch.cat((torch.zeros_like(known), torch.ones_like(strange)))
        return ops.auroc(torch.cat((known, strange)), labels)


def metric_of(name: str, loss: Loss) -> Metric | None:
    """Return a metric by name (accuracy, error or likelihood); None if the loss does not have it."""
    metrics: dict[Loss, dict[str, Metric]] = {
        "classification": {"accuracy": ops.accuracy, "likelihood": ops.log_likelihood},
        "regression": {"error": squared_error, "likelihood": normal_likelihood},
    }
    require_one_of("algorithm.loss", loss, LOSSES)
    return metrics[loss].get(name)


def squared_error(output: Tensor, label: Tensor) -> Tensor:
    """Return the squared distance of means from labels, summed: [B, 2, K], [B, …] -> [B]."""
    return (output[:, 0] - label.reshape(len(label), -1)).square().sum(-1)


def normal_likelihood(output: Tensor, label: Tensor) -> Tensor:
    """Return the log-density of labels by means and variances, [B, 2, K] -> [B]."""
    mean, variance = output.unbind(1)
    return -F.gaussian_nll_loss(mean, label.reshape(len(label), -1), variance, full=True, reduction="none").sum(-1)
