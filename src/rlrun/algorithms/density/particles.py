"""Particles that follow a density exp(-U): SVGD, GFSF, a Fisher-Stein critic, and GPVI (equations: `rlrun.ops.stein`).

    L = 1/N Σ_i g_i · x_i        g the drift, without gradient; x particles, or outputs of networks with these weights

Particles are parameters, or a generator's outputs. `entropy_weight` E weights the entropy of their density q: with
E = 1 they follow exp(-U), with 0 each goes to a minimum of U.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError, require_at_least, require_number, require_one_of
from rlrun.core.spaces import row_count
from rlrun.core.typing import Tree
from rlrun.nn.mlp import MLP, require_no_batch_norm
from rlrun.ops import stein

Method = Literal["svgd", "gfsf", "minmax", "gpvi"]
Sources = Literal["same", "halves", "apart", "pairs"]
METHODS = ("svgd", "gfsf", "minmax", "gpvi")
SOURCES = ("same", "halves", "apart", "pairs")


class Particles(nn.Module):
    """Particles [N, D] as parameters, standard normal at first.

    Args:
        energy: has `size`, D; its `initial(count)` [N, D], if it has one, returns the first values.
        count: N.
    """

    def __init__(self, energy: Any, *, count: int) -> None:
        require_at_least("algorithm.particles", count, 2)
        super().__init__()
        values = energy.initial(count) if hasattr(energy, "initial") else torch.randn(count, energy.size)
        self.values = nn.Parameter(values)

    def noise(self, count: int | None = None) -> None:
        """Return None: nothing is drawn."""

    def forward(self, noise: None = None, observation: Tree | None = None) -> Tensor:
        return self.values

    def predict(self, noise: None = None, observation: Tree | None = None) -> Tensor:
        """Return the particles."""
        return self.values


class GaussianEnergy(nn.Module):
    """The energy of a normal density, U(x) = ½ (x - m)ᵀ Σ⁻¹ (x - m); around `label` [N, D] where batches have labels.

    Args:
        mean: m, [D].
        covariance: Σ, [D, D].

    Raises:
        ConfigError: Σ is not a covariance of D numbers.
    """

    rows = 1.0  # number of data rows in the mean U
    mean: Tensor
    precision: Tensor

    def __init__(self, mean: Sequence[float], covariance: Sequence[Sequence[float]]) -> None:
        super().__init__()
        center, matrix = torch.tensor(mean, dtype=torch.float32), torch.tensor(covariance, dtype=torch.float32)
        if matrix.shape != (len(center),) * 2 or torch.linalg.cholesky_ex(matrix).info or (matrix != matrix.T).any():
            raise ConfigError(f"energy.covariance: wanted a covariance of {len(center)} numbers, got {covariance}")
        self.register_buffer("mean", center, persistent=False)
        self.register_buffer("precision", torch.linalg.inv(matrix), persistent=False)

    @property
    def size(self) -> int:
        """D."""
        return len(self.mean)

    def forward(self, particles: Tensor, observation: Tree | None = None, label: Tensor | None = None) -> Tensor:
        difference = particles - (self.mean if label is None else label)
        energy: Tensor = 0.5 * ((difference @ self.precision) * difference).sum(-1)
        return energy


class Kernel(nn.Module):
    """The width h of the kernel: the median rule, times a factor, optionally averaged over updates.

    Args:
        factor: above 1 corrects the too small variance of SVGD.
        rate: of the running average, corrected for its start at 0; None = each update has its own width.
    """

    moments: Tensor  # weighted sum of widths, and sum of weights

    def __init__(self, *, factor: float = 1.0, rate: float | None = None) -> None:
        super().__init__()
        if factor <= 0.0 or (rate is not None and not 0.0 < rate <= 1.0):
            raise ConfigError(f"kernel: wanted a factor above 0 and a rate from 0 to 1, got {factor} and {rate}")
        self.factor, self.rate = factor, rate
        self.register_buffer("moments", torch.zeros(2))

    def forward(self, distances: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return h of squared distances, and the new buffer, for `updates`."""
        width = self.factor * stein.kernel_width(distances)
        if self.rate is None:
            return width, {}
        newest = torch.stack((width, torch.ones_like(width)))
        moments = self.moments + self.rate * (newest - self.moments)
        return moments[0] / moments[1], {"kernel.moments": moments}


def critic_of(
    method: Method, size: int, *, network: nn.Module | None = None, hidden: Sequence[int], **options: Any
) -> nn.Module | None:
    """Return the critic [N, D] -> [N, D] of method minmax: the given network, or an `MLP`; None for other methods."""
    own = MLP(size, size, hidden=hidden, **options) if network is None else network
    return own if method == "minmax" else None


class Drawn(NamedTuple):
    """Particles, their noise, and the observations where functions are evaluated.

    noise: [N, K], None for parameters; values: [N, D], or [N, F] of functions at `places` [P, …].
    """

    noise: Tensor | None
    values: Tensor
    places: Tree | None


class ParticleDraws(LossCallback):
    """A loss of particles: it draws them and evaluates their energy.

    Args:
        network: is trained.
        optimizer: of its parameters.
        source: makes particles: `noise()`, and a call with the noise; None = the network.
        energy: U [N] of particles [N, D] and columns of the batch, a mean over its `rows` of data.
        entropy_weight: E. It is divided by the energy's `rows`.
        functional: particles are functions, evaluated by `energy.functions` at the batch's observations.
        options: of `LossCallback`.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        *,
        energy: Any,
        source: Any = None,
        entropy_weight: float = 1.0,
        functional: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        require_number("algorithm.entropy_weight", entropy_weight, 0)
        if functional and not hasattr(energy, "functions"):
            raise ConfigError("algorithm.functional: a density of numbers has no functions; a likelihood of data has")
        self.source: Any = network if source is None else source
        self.energy, self.functional = energy, functional
        self.conditional: bool = getattr(self.source, "conditional", False)
        self.entropy_weight = entropy_weight / energy.rows

    def draw(self, noise: Tensor | None, observation: Tree | None, places: Tree | None = None) -> Drawn:
        """Return particles of new noise, or of this noise."""
        if noise is None:
            noise = self.source.noise(row_count(observation) if self.conditional else None)
        particles = self.source(noise, observation)
        if not self.functional:
            return Drawn(noise, particles, None)
        places = self.energy.places(observation) if places is None else places
        return Drawn(noise, self.energy.functions(particles, places).flatten(1), places)

    def slope(self, drawn: Drawn, observation: Tree | None, label: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradient of U by the values, in their shape, and U [N], both detached."""
        leaf = drawn.values.detach().requires_grad_()
        with torch.enable_grad():
            energy = self.energy.fit(leaf, label) if self.functional else self.energy(leaf, observation, label)
            (gradient,) = torch.autograd.grad(energy.sum(), leaf)
        return gradient, energy.detach()


class SteinCriticLoss(ParticleDraws):
    """Train the Fisher-Stein critic.

    Args:
        network: f.
        l2: λ, the weight of |f|².
        exact: the trace is exact, by a backward pass a dimension; else an estimate by one random projection
            (Hutchinson 1990, doi 10.1080/03610919008812866).
        resample: the particles' loss draws its own noise; else it uses the noise of this loss.
        options: of `ParticleDraws`.
    """

    provides: tuple[str, ...] = ("noise",)

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        *,
        l2: float = 10.0,
        exact: bool = False,
        resample: bool = True,
        **options: Any,
    ) -> None:
        if exact:
            require_no_batch_norm(network, "algorithm.critic.exact=true")
        super().__init__(network, optimizer, **options)
        self.l2, self.exact = l2, exact
        self.provides = () if resample else ("noise",)

    def loss(self, observation: Tree | None = None, label: Tensor | None = None) -> LossResult:
        with torch.no_grad():
            drawn = self.draw(None, observation)
        gradient, _ = self.slope(drawn, observation, label)
        values = drawn.values.detach().requires_grad_()
        with torch.enable_grad():
            output = self.network(values)
            trace = trace_of(output, values, exact=self.exact)
        elements = stein.stein_critic_loss(output, gradient, trace, self.entropy_weight, l2=self.l2)
        return elements, dict.fromkeys(self.provides, drawn.noise), {}


def critic_loss(method: Method, network: nn.Module | None, **options: Any) -> SteinCriticLoss | None:
    """Return the loss of the critic, if there is one."""
    return None if network is None else SteinCriticLoss(network, **options)


def trace_of(output: Tensor, values: Tensor, *, exact: bool) -> Tensor:
    """Return the trace of the derivative of outputs [N, D] by the values [N, D], with a gradient: [N]."""
    if exact:
        parts = [torch.autograd.grad(part.sum(), values, create_graph=True)[0] for part in output.unbind(-1)]
        return torch.stack([part[:, index] for index, part in enumerate(parts)]).sum(0)
    probe = torch.randint(0, 2, values.shape).to(values) * 2.0 - 1.0
    (product,) = torch.autograd.grad(output, values, probe, create_graph=True)
    return (product * probe).sum(-1)


class ParticleLoss(ParticleDraws):
    """Move particles by their drift.

    Args:
        network: makes particles, and is trained.
        method: how the drift is estimated.
        sources: of SVGD's kernel: `same` particles; from a generator also the other half (`halves`), others (`apart`),
            or one other for each particle (`pairs`), the only way with inputs.
        kernel: its width.
        ridge: α of GFSF.
        critic: of minmax.
        inverse: of GPVI, `inverse(noise, vector)`.
        pace: updates of the critic, or the inverse, for each of the particles; by method.
        information_weight: of the network's loss of information between noise and outputs.
        options: of `ParticleDraws`.

    Raises:
        ConfigError: the method is unknown, or does not fit the particles.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        *,
        method: Method,
        kernel: Kernel,
        sources: Sources = "same",
        ridge: float = 1e-4,
        critic: nn.Module | None = None,
        inverse: Any = None,
        pace: Mapping[str, int] | None = None,
        information_weight: float = 0.0,
        **options: Any,
    ) -> None:
        require_one_of("algorithm.method", method, METHODS)
        require_one_of("algorithm.sources", sources, SOURCES)
        for name, weight in {"ridge": ridge, "information_weight": information_weight}.items():
            require_number(f"algorithm.{name}", weight, 0)
        every = (pace or {}).get(method, 1)
        require_at_least(f"callbacks.particles.pace.{method}", every, 1)
        super().__init__(network, optimizer, every=every, **options)
        drawn = self.source.noise(2) is not None
        if not drawn and (method == "gpvi" or sources != "same"):
            raise ConfigError(f"algorithm.method={method}, sources={sources}: a generator's; particles have no noise")
        if self.functional and method not in ("svgd", "gfsf"):
            raise ConfigError(f"algorithm.functional: wanted algorithm.method=svgd or gfsf, got {method}")
        if self.conditional and self.entropy_weight and (method, sources) != ("svgd", "pairs"):
            raise ConfigError("algorithm.sources: a generator with inputs learns by method=svgd and sources=pairs")
        self.method, self.sources, self.kernel, self.ridge = method, sources, kernel, ridge
        self.critic, self.inverse = critic, inverse
        if information_weight and (self.functional or getattr(self.source, "information", None) is None):
            raise ConfigError("algorithm.information_weight: wanted a generator of numbers, with an `information`")
        self.information_weight = information_weight

    def loss(
        self, observation: Tree | None = None, label: Tensor | None = None, noise: Tensor | None = None
    ) -> LossResult:
        drawn = self.draw(noise, observation)
        with torch.no_grad():
            drift, energy, updates = self._drift(drawn, observation, label)
        elements = (drift * drawn.values[: len(drift)]).sum(-1)
        if self.information_weight and drawn.noise is not None:
            moved = len(drift)  # with halves only the first half
            shared, buffers = self.source.information_loss(drawn.noise[:moved], drawn.values[:moved])
            elements, updates = elements + self.information_weight * shared, updates | buffers
        updates |= getattr(self.network, "averaged", dict)()
        values = drawn.values.detach()
        metrics = {"particles/energy": energy, "particles/spread": values.var(0).mean().sqrt()}
        return elements, {"updates": updates} if updates else {}, metrics

    def _drift(
        self, drawn: Drawn, observation: Tree | None, label: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the drift [N, D], or of its first half, U, and new values of buffers."""
        values = drawn.values
        if not self.entropy_weight:
            return *self.slope(drawn, observation, label), {}
        if self.method == "minmax" and self.critic is not None:
            _, energy = self.slope(drawn, observation, label)
            return -self.critic(values), energy, {}
        if self.method == "gfsf":
            gradient, energy = self.slope(drawn, observation, label)
            width, updates = self.kernel(stein.squared_distances(values, values))
            return stein.gfsf_drift(values, gradient, width, self.entropy_weight, ridge=self.ridge), energy, updates
        source = self._source(drawn, observation)
        gradient, energy = self.slope(source, observation, label)
        if self.method == "gpvi":
            return self._generated(drawn, source, gradient, energy)
        if self.sources == "pairs":
            width, updates = self.kernel((values - source.values).square().sum(-1))
            drift = stein.paired_svgd_drift(values, source.values, gradient, width, self.entropy_weight)
            return drift, energy, updates
        targets = values[: len(values) // 2] if self.sources == "halves" else values
        width, updates = self.kernel(stein.squared_distances(targets, source.values))
        return stein.svgd_drift(targets, source.values, gradient, width, self.entropy_weight), energy, updates

    def _source(self, drawn: Drawn, observation: Tree | None) -> Drawn:
        """Return the particles over which the kernel's mean is taken."""
        if self.method == "svgd" and self.sources == "same":
            return drawn
        if self.method == "svgd" and self.sources == "halves":
            return drawn._replace(values=drawn.values[len(drawn.values) // 2 :])
        return self.draw(None, observation, drawn.places)

    def _generated(
        self, drawn: Drawn, source: Drawn, gradient: Tensor, energy: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the drift of GPVI, U, and new values of buffers."""
        if source.noise is None or drawn.noise is None:
            raise TypeError("GPVI needs noise")
        width, updates = self.kernel(stein.squared_distances(source.noise, drawn.noise))
        kernel, vector = stein.kernel_slope(source.noise, drawn.noise, width)
        product = self.inverse(self.source, source.noise, vector)
        return stein.gpvi_drift(kernel, gradient, product, self.entropy_weight), energy, updates
