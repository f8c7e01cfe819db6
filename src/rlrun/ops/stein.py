"""Particles that follow a density exp(-U): kernels, drifts and scores (Liu and Wang 2016, arXiv 1608.04471).

    k(x, y) = exp(-|x - y|² / h)        h = median |x_j - y_i|² / ln n

Particles move against a drift. `gradient` is always that of U; E is the weight of the entropy.
"""

import math

import torch
from torch import Tensor


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return |x_i - y_j|² of rows: [N, D], [M, D] -> [N, M]."""
    return (left.unsqueeze(1) - right.unsqueeze(0)).square().sum(-1)


def kernel_width(distances: Tensor) -> Tensor:
    """Return h of squared distances [N, …], a scalar; 1 where their median, the lower one, is 0."""
    width = distances.detach().median() / math.log(max(len(distances), 2))
    return torch.where(width > 0, width, torch.ones_like(width))


def rbf(distances: Tensor, width: Tensor) -> Tensor:
    """Return the kernel of squared distances."""
    return (-distances / width).exp()


def svgd_drift(
    targets: Tensor, sources: Tensor, gradient: Tensor, width: Tensor, entropy_weight: float | Tensor
) -> Tensor:
    """Return the drift of Stein variational gradient descent at each target (1608.04471, eq. 8): [N, D].

        g_i = 1/M Σ_j k(x_j, y_i) ∇U(x_j) - E/M Σ_j ∂k(x_j, y_i)/∂x_j

    Args:
        targets: y, [N, D].
        sources: x, [M, D]; with the targets themselves it is the drift of particles.
        gradient: ∇U(x), [M, D].
        width: h.
        entropy_weight: E.
    """
    kernel = rbf(squared_distances(targets, sources), width)  # [N, M]
    repulsion = 2.0 / width * (targets * kernel.sum(1, keepdim=True) - kernel @ sources)
    return (kernel @ gradient - entropy_weight * repulsion) / len(sources)


def paired_svgd_drift(
    targets: Tensor, sources: Tensor, gradient: Tensor, width: Tensor, entropy_weight: float | Tensor
) -> Tensor:
    """Return the drift of `svgd_drift` with one source for each target: x_i for y_i, all [N, D]."""
    difference = targets - sources
    kernel = rbf(difference.square().sum(-1, keepdim=True), width)
    return kernel * (gradient - entropy_weight * 2.0 / width * difference)


def kernel_score(particles: Tensor, width: Tensor, ridge: float) -> Tensor:
    """Return Stein's estimate of ∇ log q at particles of a density q (Li and Turner 2018, arXiv 1705.07107): [N, D].

        -(K + αI)⁻¹ Σ_j ∂k(x_i, x_j)/∂x_j

    Args:
        particles: x, [N, D].
        width: h.
        ridge: α.
    """
    kernel = rbf(squared_distances(particles, particles), width)
    total = 2.0 / width * (particles * kernel.sum(1, keepdim=True) - kernel @ particles)
    solution: Tensor = torch.linalg.solve(kernel + ridge * torch.eye(len(kernel)).to(kernel), total)
    return -solution


def gfsf_drift(
    particles: Tensor, gradient: Tensor, width: Tensor, entropy_weight: float | Tensor, *, ridge: float = 1e-4
) -> Tensor:
    """Return ∇U + E ∇ log q by `kernel_score` (Liu et al. 2019, arXiv 1807.01750): [N, D]."""
    return gradient + entropy_weight * kernel_score(particles, width, ridge)


def stein_critic_loss(
    output: Tensor, gradient: Tensor, trace: Tensor, entropy_weight: float | Tensor, *, l2: float = 10.0
) -> Tensor:
    """Return the loss of a critic f of each particle (Hu et al. 2018, arXiv 1810.03545, with |f|² as in ALF): [N].

        f · ∇U - E tr ∂f/∂x + λ |f|²

    Its minimum is f = -(∇U + E ∇ log q) / 2λ, so particles drift by -f.

    Args:
        output: f(x), [N, D].
        gradient: ∇U(x), [N, D].
        trace: of ∂f/∂x, [N].
        entropy_weight: E.
        l2: λ.
    """
    return (output * gradient).sum(-1) - entropy_weight * trace + l2 * output.square().sum(-1)


def gpvi_drift(kernel: Tensor, gradient: Tensor, product: Tensor, entropy_weight: float | Tensor) -> Tensor:
    """Return the drift of generated particles, with a kernel of their noise (Ratzlaff et al. 2021, arXiv 2103.01291).

        g_i = 1/M Σ_j [k(z_j, w_i) ∇U(f(z_j)) - E J_j⁻ᵀ ∂k(z_j, w_i)/∂z_j]        J = ∂f/∂z

    Args:
        kernel: k(z_j, w_i) of sources and targets, [M, N].
        gradient: ∇U of the generated sources, [M, D].
        product: J_j⁻ᵀ ∂k/∂z_j, [M, N, D].
        entropy_weight: E.
    """
    return kernel.T @ gradient / len(kernel) - entropy_weight * product.mean(0)


def kernel_slope(sources: Tensor, targets: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return k(z_j, w_i) and its gradient by z_j: [M, D], [N, D] -> [M, N], [M, N, D]."""
    difference = sources.unsqueeze(1) - targets.unsqueeze(0)
    kernel = rbf(difference.square().sum(-1), width)
    return kernel, -2.0 / width * difference * kernel.unsqueeze(-1)
