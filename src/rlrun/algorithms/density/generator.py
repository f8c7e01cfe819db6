"""Generators whose outputs follow a density: amortized inference (Ratzlaff et al. 2019, arXiv 1901.11058).

    x = f(z)                  z standard normal [K]
    x = f(z_1…K) + λ z        z standard normal [D]: a density of full rank from K < D numbers

GPVI (Ratzlaff et al. 2021, arXiv 2103.01291) also needs y = J⁻ᵀ v, with J = ∂x/∂z. A network learns it from J's
products with vectors alone:

    L = |Jᵀ y(z, v) - v|²

With λ, J = [[A + λI, 0], [B, λI]] in blocks of K and D - K numbers. So the last D - K numbers of y are v_2 / λ, and the
first ones solve (A + λI)ᵀ y_1 = v_1 - Bᵀ v_2 / λ.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError, require_at_least
from rlrun.core.spaces import Space
from rlrun.core.typing import Tree
from rlrun.nn import MLP, flatten
from rlrun.nn.mlp import outputs_of, require_no_batch_norm
from rlrun.ops import stein


class Generator(nn.Module):
    """A network from noise [N, K], or [N, D] with λ, and inputs [N, …] to particles [N, D].

    Args:
        energy: has `size`, D.
        noise: K.
        count: N.
        inputs: space of the observations that are further inputs; None = there are none.
        network: any module from noise and inputs, flat, to outputs; None = an `MLP` of the options.
        scale: λ; None = the network's outputs alone.
        learn_scale: λ is learned, by its logarithm.
        average_rate: share of the network's running average that an update keeps; predictions use that average. None
            = no average.
        information: of noise and outputs, as `mutual_information.information_of` makes it; it is trained with the
            network.
        options: of `MLP`.

    Raises:
        ConfigError: K or λ does not fit.
    """

    def __init__(
        self,
        energy: Any,
        *,
        noise: int,
        count: int,
        inputs: Space | None = None,
        network: nn.Module | None = None,
        scale: float | None = None,
        learn_scale: bool = False,
        average_rate: float | None = None,
        information: Any = None,
        **options: Any,
    ) -> None:
        require_at_least("algorithm.noise", noise, 1)
        require_at_least("algorithm.particles", count, 2)
        if average_rate is not None and not 0.0 <= average_rate < 1.0:
            raise ConfigError(f"algorithm.average_rate: wanted a number from 0, below 1, or null; got {average_rate}")
        outputs: int = energy.size
        if scale is not None and (noise > outputs or scale <= 0.0 or inputs is not None):
            raise ConfigError(
                f"algorithm.scale: wanted a number above 0, at most {outputs} numbers of noise and no inputs; "
                f"got {scale} and {noise}"
            )
        super().__init__()
        self.outputs, self.size, self.count, self.inputs = outputs, noise, count, inputs
        width = noise + (0 if inputs is None else inputs.size)
        self.layers = MLP(width, outputs, **options) if network is None else network
        if network is not None and (width_out := outputs_of(network, torch.zeros(2, width))) != outputs:
            raise ConfigError(f"networks.particles.network: it makes {width_out} numbers of noise; wanted {outputs}")
        self.log_scale = None if scale is None else nn.Parameter(torch.tensor(scale).log(), requires_grad=learn_scale)
        self.information = information
        self.average_rate = average_rate
        self.slow = None if average_rate is None else copy.deepcopy(self.layers).requires_grad_(False)

    @property
    def conditional(self) -> bool:
        """True if there are inputs."""
        return self.inputs is not None

    @property
    def scale(self) -> Tensor | None:
        """λ."""
        return None if self.log_scale is None else self.log_scale.exp()

    def noise(self, count: int | None = None) -> Tensor:
        """Return new noise [N, K], or [N, D] with λ."""
        size = self.size if self.log_scale is None else self.outputs
        return torch.randn(self.count if count is None else count, size, device=next(self.layers.parameters()).device)

    def forward(self, noise: Tensor, observation: Tree | None = None) -> Tensor:
        return self._evaluated(self.layers, noise, observation)

    def predict(self, noise: Tensor, observation: Tree | None = None) -> Tensor:
        """Return particles from the running average of the network, if there is one."""
        return self._evaluated(self.layers if self.slow is None else self.slow, noise, observation)

    def _evaluated(self, layers: nn.Module, noise: Tensor, observation: Tree | None) -> Tensor:
        parts = [noise[..., : self.size]]
        if self.inputs is not None:
            parts.append(flatten(self.inputs, observation))
        outputs: Tensor = layers(torch.cat(parts, -1))
        scale = self.scale
        return outputs if scale is None else outputs + scale * noise

    def information_loss(self, noise: Tensor, outputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the information between outputs and the K numbers that the network reads.

        Returned are the loss of each row, [N], and new values of buffers, by their paths from a loss callback.
        """
        loss, _, buffers = self.information.learn(noise[..., : self.size], outputs)
        return loss, {f"network.information.{name}": value for name, value in buffers.items()}

    def averaged(self) -> dict[str, Tensor]:
        """Return the running average with the network before this update, by paths from a loss callback."""
        if self.slow is None or self.average_rate is None:
            return {}
        now = self.layers.state_dict()
        return {
            f"network.slow.{name}": value.lerp(now[name], 1.0 - self.average_rate)
            if value.is_floating_point()
            else now[name]
            for name, value in self.slow.state_dict().items()
        }


class Inverse(nn.Module):
    """y = J⁻ᵀ v of a generator's Jacobian, by a network or by a matrix inverse.

    Args:
        generator: has the Jacobian J, by D numbers of noise, or λ.
        exact: invert the matrix; with λ only its block [K, K].
        block: the network computes only the first K numbers of y; needs λ.
        hidden, activation: of the network.

    Raises:
        ConfigError: J is not square, or has no blocks.
    """

    def __init__(
        self, generator: Generator, *, exact: bool, block: bool, hidden: Sequence[int], activation: str = "relu"
    ) -> None:
        scaled = generator.log_scale is not None
        if generator.conditional or (not scaled and (block or generator.size != generator.outputs)):
            raise ConfigError(
                f"algorithm.method=gpvi: wanted {generator.outputs} numbers of noise, or algorithm.scale, which blocks "
                f"need; got {generator.size}"
            )
        require_no_batch_norm(generator, "algorithm.method=gpvi")
        super().__init__()
        self.exact, self.block = exact, block or (exact and scaled)
        self.size = generator.size if self.block else generator.outputs
        self.layers = None if exact else MLP(2 * self.size, self.size, hidden=hidden, activation=activation)

    def forward(self, generator: Generator, noise: Tensor, vector: Tensor) -> Tensor:
        """Return y of noise z [M, D] and vectors v [M, N, D]: [M, N, D]."""
        short, rest = self.reduced(generator, noise, vector)
        return torch.cat((self.solved(generator, noise, short), rest), -1)

    def reduced(self, generator: Generator, noise: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors [M, N, S] whose y is to be computed, and the numbers of y that are known already."""
        scale = generator.scale
        if not self.block or scale is None:
            return vector, vector[..., :0]
        first, second = vector[..., : self.size], vector[..., self.size :]
        rest = second / scale
        padded = torch.cat((torch.zeros_like(first), rest), -1)
        return first - product_of(generator, noise, padded, scaled=False)[..., : self.size], rest

    def solved(self, generator: Generator, noise: Tensor, short: Tensor) -> Tensor:
        """Return y [M, N, S] of these vectors."""
        if self.layers is None:
            solution: Tensor = torch.linalg.solve(block_of(generator, noise, self.size).mT, short.mT).mT
            return solution
        inputs = noise[:, : self.size].unsqueeze(1).expand_as(short)
        y: Tensor = self.layers(torch.cat((inputs, short), -1))
        return y

    def error(self, generator: Generator, noise: Tensor, vector: Tensor) -> Tensor:
        """Return |Jᵀ y - v|² [M, N], of the block if there are blocks."""
        with torch.no_grad():
            short, rest = self.reduced(generator, noise, vector)
        y = self.solved(generator, noise, short)
        padded = torch.cat((y, torch.zeros_like(rest)), -1)
        product = product_of(generator, noise, padded, scaled=True)[..., : self.size]
        return (product - short).square().sum(-1)


def product_of(generator: Generator, noise: Tensor, vector: Tensor, *, scaled: bool) -> Tensor:
    """Return Jᵀ v of noise [M, D] and vectors [M, N, D], with a gradient by v: [M, N, D]; without λ if not `scaled`."""
    with torch.enable_grad():
        rows = noise.detach().unsqueeze(1).expand(-1, vector.shape[1], -1).flatten(0, 1).requires_grad_()
        outputs = generator.layers(rows[:, : generator.size])
        (product,) = torch.autograd.grad(outputs, rows, vector.flatten(0, 1), create_graph=vector.requires_grad)
    product = product.reshape(*vector.shape[:2], -1)
    return product if generator.scale is None or not scaled else product + generator.scale.detach() * vector


def block_of(generator: Generator, noise: Tensor, size: int) -> Tensor:
    """Return the first rows and columns of J of noise [M, D], by a backward pass for each row: [M, S, S]."""
    with torch.enable_grad():
        rows = noise.detach().requires_grad_()
        outputs = generator(rows)[:, :size]
        parts = [torch.autograd.grad(part.sum(), rows, retain_graph=True)[0][:, :size] for part in outputs.unbind(-1)]
    return torch.stack(parts, 1)


def inverse_of(method: str, generator: Generator, **options: Any) -> Inverse | None:
    """Return an `Inverse` if the method needs one."""
    return Inverse(generator, **options) if method == "gpvi" else None


class InverseLoss(LossCallback):
    """Train the network of J⁻ᵀ v on the vectors that GPVI asks for.

    Args:
        network: of y.
        optimizer: of its parameters.
        generator: of J.
        kernel: has the width; `forward(distances)` returns it first.
        options: of `LossCallback`.
    """

    def __init__(
        self, network: Inverse, optimizer: Optimizer | None, *, generator: Generator, kernel: Any, **options: Any
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.inverse, self.generator, self.kernel = network, generator, kernel

    def loss(self) -> LossResult:
        sources, targets = self.generator.noise(), self.generator.noise()
        width, _ = self.kernel(stein.squared_distances(sources, targets))
        _, vectors = stein.kernel_slope(sources, targets, width)
        vector = vectors.diagonal(dim1=0, dim2=1).T.unsqueeze(1)  # of one target for each source
        error = self.inverse.error(self.generator, sources, vector).squeeze(1)
        return error, {}, {"particles/inverse": error.mean() / vector.square().sum(-1).mean()}


def inverse_loss(network: Inverse | None, **options: Any) -> InverseLoss | None:
    """Return the loss of an `Inverse` whose network is trained."""
    return None if network is None or network.exact else InverseLoss(network, **options)
