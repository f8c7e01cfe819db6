"""Vector-quantized autoencoder (van den Oord et al. 2017, arXiv 1711.00937): each observation becomes one of K codes.

    e = the code nearest to x, x = encoder(observation)
    z = x + sg[e - x]                                          straight-through: the gradient of z is that of x
    L = mean (e - sg[x])² + w mean (sg[e] - x)² + mean (decoder(z) - observation)²

sg stops gradients, w weighs the commitment of the encoder; all means are over the entries of a row (eq. 3).

Two options are not in ALF. With `ema` codes are running means of the rows that chose them, in place of the first term
(appendix A.1): N ← γ N + (1 - γ) n, m ← γ m + (1 - γ) Σ x, e = m / N. With `revive` in addition, a code whose share of
rows falls below `revive` / K moves to an encoded row of the batch.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError, require_at_least, require_number
from rlrun.core.spaces import Space
from rlrun.core.typing import Tree
from rlrun.nn import Autoencoder, flatten
from rlrun.nn.normalizer import Nonnegative
from rlrun.training.metrics import Metric

DEAD = 0.1  # a code with a smaller share of rows than this times 1 / K counts as dead
USAGE = 0.99  # decay of the running shares of rows, per update
LEAST = 1e-5  # lower bound of a code's count, so that its mean is finite


class VQVAE(Nonnegative, Autoencoder):
    """An encoder, a codebook [K, D], and a decoder of codes.

    Args:
        spaces: of columns, by name.
        codes: K.
        latent: D, numbers of a code.
        ema: γ of the running means that codes are; None = the optimizer trains them.
        options: of `rlrun.nn.Autoencoder`.

    Raises:
        ConfigError: a number is out of range.
    """

    usage: Tensor  # running share of rows that chose each code, [K]
    counts: Tensor  # running mean of the number of rows that chose each code, [K]
    sums: Tensor  # running mean of the sum of these rows, [K, D]
    nonnegative: tuple[str, ...] = ("usage",)

    def __init__(
        self,
        spaces: Mapping[str, Space],
        *,
        codes: int = 64,
        latent: int = 16,
        ema: float | None = None,
        **options: Any,
    ) -> None:
        require_at_least("codes", codes, 2)
        require_at_least("latent", latent, 1)
        if ema is not None and not 0.0 < ema < 1.0:
            raise ConfigError(f"ema: wanted a number between 0 and 1, got {ema}")
        super().__init__(spaces, latent=latent, likelihood="gaussian", deviation=1.0, **options)
        self.codes, self.ema = codes, ema
        self.one_rank = "" if ema is None else "codes are means of the rows of its own batches; algorithm.ema=null"
        first = torch.empty(codes, latent).uniform_(-1.0 / codes, 1.0 / codes)
        self.register_buffer("usage", torch.full((codes,), 1.0 / codes))
        if ema is None:
            self.codebook: Tensor = nn.Parameter(first)
            return
        self.register_buffer("codebook", first)
        self.nonnegative = ("usage", "counts")
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", first.clone())

    def index(self, encoded: Tensor) -> Tensor:
        """Return the nearest code [B] of each encoded row [B, D]."""
        distance = self.codebook.square().sum(-1) - 2.0 * encoded @ self.codebook.T  # without the square of the row
        return distance.argmin(-1)

    def forward(self, inputs: Tree) -> Tensor:
        """Return observations decoded from their codes, [B, N]."""
        decoded: Tensor = self.decoder(self.codebook[self.index(self.encoder(inputs))])
        return decoded


class VQVAELoss(LossCallback):
    """Distances of codes to encoded rows, of encoded rows to codes, and of decoded to true observations.

    Args:
        network: encoder, codebook and decoder.
        optimizer: of their parameters.
        commitment: w.
        revive: a code whose share of rows is below `revive` / K moves to a row of the batch; 0 = never.
        options: of `LossCallback`.

    Raises:
        ConfigError: `revive` is negative, or the optimizer trains the codes.
    """

    network: VQVAE

    def __init__(
        self,
        network: VQVAE,
        optimizer: Optimizer | None,
        *,
        commitment: float = 1.0,
        revive: float = 0.0,
        **options: Any,
    ) -> None:
        if revive < 0.0 or (revive and network.ema is None):
            raise ConfigError(f"revive: wanted 0, or a number above 0 together with ema, got {revive}")
        require_number("commitment", commitment, 0)
        super().__init__(network, optimizer, **options)
        self.commitment, self.revive = commitment, revive

    def loss(self, observation: Tree) -> LossResult:
        network = self.network
        encoded = network.encoder(observation)
        index = network.index(encoded)
        chosen = ops.one_hot(index.unsqueeze(-1), (network.codes,))  # [B, K]
        code = network.codebook[index]
        decoded = network.decoder(encoded + (code - encoded).detach())
        reconstruction = (decoded - flatten(network.space, observation)).square().mean(-1)
        commitment = (code.detach() - encoded).square().mean(-1)
        loss = reconstruction + self.commitment * commitment
        if network.ema is None:
            loss = loss + (code - encoded.detach()).square().mean(-1)
        metrics: dict[str, Any] = {
            "vq_vae/reconstruction": reconstruction,
            "vq_vae/commitment": commitment,
            "vq_vae/perplexity": Metric((chosen,), perplexity),
            "vq_vae/dead_codes": (network.usage < DEAD / network.codes).float().mean(),
        }
        return loss, {"updates": self._updates(encoded.detach(), chosen)}, metrics

    def _updates(self, encoded: Tensor, chosen: Tensor) -> dict[str, Tensor]:
        """Return the new values of buffers, after rows [B, D] chose codes [B, K]."""
        network = self.network
        usage = USAGE * network.usage + (1.0 - USAGE) * chosen.mean(0)
        if network.ema is None:
            return {"network.usage": usage}
        counts = network.ema * network.counts + (1.0 - network.ema) * chosen.sum(0)
        sums = network.ema * network.sums + (1.0 - network.ema) * chosen.T @ encoded
        if self.revive:
            dead = usage < self.revive / network.codes  # [K]
            draw = ops.gumbel_like(encoded.new_empty(network.codes, len(encoded))).argmax(-1)  # a row for each code
            counts = torch.where(dead, torch.ones_like(counts), counts)
            sums = torch.where(dead.unsqueeze(-1), encoded[draw], sums)
            usage = torch.where(dead, 1.0 / network.codes, usage)
        codebook = sums / counts.clamp(min=LEAST).unsqueeze(-1)
        buffers = {"usage": usage, "counts": counts, "sums": sums, "codebook": codebook}
        return {f"network.{name}": value for name, value in buffers.items()}


def perplexity(chosen: Tensor) -> Tensor:
    """Return exp of the entropy of chosen codes, one-hot [B, K]: the number of equally used codes with that entropy."""
    share = chosen.mean(0)
    entropy: Tensor = torch.special.entr(share).sum()
    return entropy.exp()


class Perplexity:
    """The perplexity of the codes of all held-out rows."""

    def __init__(self, network: VQVAE) -> None:
        self.network = network

    def __call__(self, observation: Tree) -> Tensor:
        """Return the code of each row, one-hot [B, K]."""
        index = self.network.index(self.network.encoder(observation))
        return ops.one_hot(index.unsqueeze(-1), (self.network.codes,))

    def reduce(self, values: Tensor) -> Tensor:
        """Return the perplexity of one-hot codes of all rows, [N, K]."""
        return perplexity(values)
