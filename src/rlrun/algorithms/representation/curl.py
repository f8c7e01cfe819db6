"""Contrastive representations (CURL, Srinivas et al. 2020, arXiv 2004.04136), trained along with critics.

Two views of each image differ by random changes. The latent of one view identifies that of the other within the batch:

    l_ij = z(anchor_i) · W z̄(positive_j) / temperature
    L_i  = log Σ_j exp(l_ij) - l_ii
    z̄    ← z̄ + tau (z - z̄), of encoder and projection

W is learned. It is the identity at first, so that scores are inner products. With latents of length 1 that is the
normalized cross entropy of SimCLR (arXiv 2002.05709). The largest l_ij of a row is subtracted before exp, by torch's
cross entropy. Critics read unchanged images, unless an adaptor changes them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.core.errors import ConfigError
from rlrun.core.typing import Tree
from rlrun.nn import Latent


class Contrast(nn.Module):
    """Scores l of pairs of anchors and positives, from their latents.

    Args:
        latent: encoder and projection of anchors.
        temperature: divides scores.
        normalize: scale latents to length 1.

    Raises:
        ConfigError: the temperature is not above 0.
    """

    def __init__(self, latent: Latent, *, temperature: float = 1.0, normalize: bool = False) -> None:
        super().__init__()
        if not temperature > 0.0:
            raise ConfigError(f"curl.temperature: wanted a number above 0, got {temperature}")
        self.latent = latent
        self.weight = nn.Parameter(torch.eye(latent.size))  # W
        self.temperature, self.normalize = temperature, normalize

    def forward(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Return scores [B, B] of latents [B, Z]."""
        if self.normalize:
            anchor, positive = F.normalize(anchor, dim=-1), F.normalize(positive, dim=-1)
        return (anchor @ self.weight) @ positive.T / self.temperature


class PositiveLatent(TargetCallback):
    """Provide the latents of positives, by a target network of encoder and projection."""

    provides = ("positive_latent",)

    def target(self, positive: Tree) -> TargetResult:
        return {"positive_latent": self.target_network(positive)}, {}


class ContrastLoss(LossCallback):
    """Cross entropy of identifying each anchor's positive in the batch; all rows of windows are one batch."""

    network: Contrast

    def __init__(self, network: Contrast, optimizer: Optimizer | None, **options: Any) -> None:
        super().__init__(network, optimizer, **options)
        self.contrast = network

    def loss(self, anchor: Tree, positive_latent: Tensor, valid: Tensor | None = None) -> LossResult:
        latent = self.contrast.latent(anchor)
        scores = self.contrast(latent.flatten(0, -2), positive_latent.flatten(0, -2))  # [B, B], or [B T, B T]
        own = torch.arange(len(scores), device=scores.device)
        if valid is not None:  # padding is never a negative
            scores = scores.masked_fill(~valid.flatten() & (own != own.unsqueeze(1)), -torch.inf)
        loss = F.cross_entropy(scores, own, reduction="none").reshape(latent.shape[:-1])
        return loss, {}, {"representation/contrast_accuracy": (scores.argmax(-1) == own).float()}
