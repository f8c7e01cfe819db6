"""MONet: a variational autoencoder with one latent for each object of an image (Burgess et al. 2019, arXiv 1901.11390).

Attention divides the pixels x among K slots by masks m. One encoder and one decoder serve all slots:

    m_k = s_k α(x, s_k),  s_k+1 = s_k (1 - α(x, s_k)),  s_0 = 1,  m_K-1 = s_K-1        slot by slot (recurrent)
    m   = softmax α(x)                                                                 all slots at once
    z_k ~ q(z | x, m_k) = N(μ_k, σ²_k),  (x̂_k, m̂_k) = decoder(z_k)
    L   = - Σ_pixels log Σ_k m_k N(x; x̂_k, d_k²) + β Σ_k KL(q(z | x, m_k) ‖ N(0, 1)) + γ Σ_pixels KL(m ‖ softmax m̂)

α is a network from images to images, such as a U-Net. The scope s_k is the share of each pixel that earlier slots leave
to slot k and later ones. The deviation d_0 of the first slot differs from the others', so it gets the background.

ALF uses exp(log σ²) as the deviation of latents; here it is σ. The two deviations of the paper replace ALF's d_k, which
fall from slot to slot. As in ALF, networks read s_k and m_k, not their logarithms.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rlrun import ops
from rlrun.callbacks import SquaredError
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError, require_at_least
from rlrun.core.spaces import Box, Space, describe
from rlrun.core.typing import Tree
from rlrun.nn import Decoder, EncodedMLP, SpatialBroadcast, UNet, flatten
from rlrun.nn.encoders import Recipe, from_recipe
from rlrun.nn.mlp import outputs_of
from rlrun.ops.distributions import HALF_LOG_TWO_PI
from rlrun.training.metrics import Metric

USED = 0.01  # share of a batch's pixels from which a slot counts as used


class SlotEncoder(EncodedMLP):
    """An encoder of images and a slot's mask, [B, C + 1, H, W] from 0 to 1, to means and log-variances of latents."""

    def noise(self, count: int) -> Tensor:
        """Draw inputs [count, C + 1, H, W] for `rlrun export-onnx`: data have no masks."""
        return torch.rand(count, *self.observed.shape)  # type: ignore[union-attr]


class WithoutLast(nn.Module):
    """A parametrization of a bias [C + 1] whose last number has no gradient.

    A common bias of all slots' logits changes no mask. Its gradient is rounding error, which Adam would follow.
    """

    def forward(self, bias: Tensor) -> Tensor:
        return torch.cat((bias[:-1], bias[-1:].detach()))


class MONet(nn.Module):
    """Attention that divides an image of bytes into slots, and an encoder and a decoder of each slot.

    Args:
        spaces: of columns, by name; `observation` is the image.
        slots: K.
        latent: numbers of a slot's latent.
        recurrent_attention: attention reads the scope, and assigns pixels to one slot after another.
        attention: recipe of a module from images [B, C, H, W], recurrent with the scope behind them, to logits: of the
            slot and of the rest, [B, 2, H, W]; or of all slots, [B, K, H, W]. It gets `inputs` and `outputs`, channels,
            and the `shape` of its input, if it takes these.
        encoder: of image and mask, as `Encoded` takes it.
        hidden: widths of the dense layers behind it.
        decoder: recipe of a module from latents to [B, C + 1, H, W], as `Decoder` takes it: pixels before a sigmoid,
            and the logit of the mask.
        deviation: of pixels in [0, 1] around decoded ones, in all slots but the first.
        background_deviation: the deviation in the first slot.

    Raises:
        ConfigError: the column `observation` is not an image, a number is out of range, or a module does not fit.
    """

    deviation: Tensor  # [K]

    def __init__(
        self,
        spaces: Mapping[str, Space],
        *,
        slots: int = 3,
        latent: int = 16,
        recurrent_attention: bool = True,
        attention: Recipe = UNet,
        encoder: nn.Module | Recipe | None = None,
        hidden: Sequence[int] = (128,),
        decoder: Recipe | None = SpatialBroadcast,
        deviation: float = 0.11,
        background_deviation: float = 0.09,
    ) -> None:
        super().__init__()
        require_at_least("slots", slots, 2)
        require_at_least("latent", latent, 1)
        for name, value in {"deviation": deviation, "background_deviation": background_deviation}.items():
            if not value > 0.0:
                raise ConfigError(f"{name}: wanted a number above 0, got {value}")
        space = spaces.get("observation")
        if not isinstance(space, Box) or space.picture is None:
            there = "there is none" if space is None else f"it is {describe(space)}"
            raise ConfigError(f"observation: MONet wants images, 8 pixels a side; {there}")
        self.space, self.slots, self.latent, self.recurrent = space, slots, latent, recurrent_attention
        self.picture = space.picture
        self.shape = (space.picture.channels, *space.picture.sides)
        channels, height, width = self.shape
        read = (channels + recurrent_attention, height, width)
        outputs = 2 if recurrent_attention else slots
        self.attention = from_recipe(attention, inputs=read[0], outputs=outputs, shape=read)
        logits = outputs_of(self.attention, torch.zeros(2, *read), place="attention")
        if logits != outputs * height * width:
            raise ConfigError(f"attention: {logits:,} logits of an image; wanted are {outputs} × {height} × {width}")
        with_mask = (channels + 1, height, width)
        seen = Box(with_mask, np.zeros(with_mask), np.ones(with_mask), layout="channels_first")
        self.encoder = SlotEncoder(seen, outputs=2 * latent, hidden=hidden, encoder=encoder)
        self.decoder = Decoder(seen, latent, hidden=[*reversed(hidden)], network=decoder)
        *_, last = (layer for layer in self.decoder.modules() if getattr(layer, "bias", None) is not None)
        if last.bias.shape == (channels + 1,):
            parametrize.register_parametrization(last, "bias", WithoutLast())
        deviations = torch.tensor([background_deviation, *[deviation] * (slots - 1)])
        self.register_buffer("deviation", deviations, persistent=False)

    def pixels(self, observation: Tree) -> Tensor:
        """Return images [B, C, H, W] from 0 to 1."""
        numbers = flatten(self.space, observation).reshape(-1, *self.space.shape)
        return self.picture.channels_first(numbers)  # type: ignore[no-any-return]

    def log_masks(self, image: Tensor) -> Tensor:
        """Return the logarithms [B, K, H, W] of each slot's share of the pixels of images [B, C, H, W]."""
        if not self.recurrent:
            return self.attention(image).log_softmax(1)  # type: ignore[no-any-return]
        scope = torch.zeros_like(image[:, :1])
        log_masks = []
        for _ in range(self.slots - 1):
            log_shares = self.attention(torch.cat((image, scope.exp()), 1)).log_softmax(1)
            log_masks.append(scope + log_shares[:, :1])
            scope = scope + log_shares[:, 1:]
        return torch.cat((*log_masks, scope), 1)

    def posterior(self, image: Tensor, log_masks: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-deviation of latents, [B, K, latent] each."""
        images = image.unsqueeze(1).expand(-1, self.slots, -1, -1, -1)
        seen = torch.cat((images, log_masks.exp().unsqueeze(2)), 2).flatten(0, 1)
        mean, log_variance = self.encoder(seen).unflatten(0, (-1, self.slots)).chunk(2, -1)
        return mean, 0.5 * log_variance

    def decode(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return pixels [B, K, C, H, W] of latents [B, K, latent], and log-masks [B, K, H, W]."""
        channels, height, width = self.shape
        decoded = self.decoder(latents.flatten(0, 1)).reshape(-1, self.slots, channels + 1, height, width)
        return decoded[:, :, :-1].sigmoid(), decoded[:, :, -1].log_softmax(1)

    def log_likelihood(self, image: Tensor, log_masks: Tensor, pictures: Tensor) -> Tensor:
        """Return the log-density [B] of images [B, C, H, W]; each pixel is a mixture of the slots' pixels."""
        deviation = self.deviation[:, None, None, None]
        distance = (image.unsqueeze(1) - pictures) / deviation
        log_prob = -(0.5 * distance.square() + deviation.log() + HALF_LOG_TWO_PI).sum(2)  # [B, K, H, W]
        return (log_masks + log_prob).logsumexp(1).sum((1, 2))

    def forward(self, observation: Tree) -> dict[str, Tensor]:
        """Return `image`, the mean of pixels [B, N] at the mean of latents, and `masks` [B, K, H, W]."""
        image = self.pixels(observation)
        log_masks = self.log_masks(image)
        pictures, _ = self.decode(self.posterior(image, log_masks)[0])
        mean = (log_masks.exp().unsqueeze(2) * pictures).sum(1)
        return {"image": self.picture.restored(mean).flatten(1), "masks": log_masks.exp()}


class MONetLoss(LossCallback):
    """Minus the log-likelihood of images, and the divergences of latents and of masks.

    Args:
        network: attention, encoder and decoder.
        optimizer: of their parameters.
        beta, gamma: β and γ.
        options: of `LossCallback`.

    Raises:
        ConfigError: a weight is negative.
    """

    network: MONet

    def __init__(
        self, network: MONet, optimizer: Optimizer | None, *, beta: float = 0.5, gamma: float = 0.5, **options: Any
    ) -> None:
        require_at_least("beta", beta, 0.0)
        require_at_least("gamma", gamma, 0.0)
        super().__init__(network, optimizer, **options)
        self.beta, self.gamma = beta, gamma

    def loss(self, observation: Tree) -> LossResult:
        network = self.network
        image = network.pixels(observation)
        log_masks = network.log_masks(image)
        mean, log_deviation = network.posterior(image, log_masks)
        pictures, decoded_masks = network.decode(mean + log_deviation.exp() * ops.normal_like(mean))
        reconstruction = -network.log_likelihood(image, log_masks, pictures)
        zeros = torch.zeros_like(mean)
        divergence = ops.gaussian_divergence(mean, log_deviation, zeros, zeros).sum(-1)
        of_masks = (log_masks.exp() * (log_masks - decoded_masks)).sum((1, 2, 3))
        metrics: dict[str, Any] = {
            "monet/reconstruction": reconstruction,
            "monet/divergence": divergence,
            "monet/masks": of_masks,
            "monet/slots": Metric((log_masks.exp(),), used),
        }
        return reconstruction + self.beta * divergence + self.gamma * of_masks, {}, metrics


def used(masks: Tensor) -> Tensor:
    """Return the number of slots that have at least the share `USED` of all pixels, from masks [B, K, H, W]."""
    return (masks.mean((0, 2, 3)) >= USED).float().sum()


def ari(output: Mapping[str, Tensor], segmentation: Tensor) -> Tensor:
    """Return the adjusted Rand index [B] of each pixel's largest mask and its true segment, without the background.

    Args:
        output: of a `MONet`.
        segmentation: whole numbers [B, H, W]; 0 is the background.

    Raises:
        ConfigError: the segmentation has other sides than the image, or fractions.
    """
    slots, truth = output["masks"].argmax(1), segmentation.flatten(1)
    if truth.shape != slots.flatten(1).shape or truth.is_floating_point():
        got = f"{segmentation.dtype} {[*segmentation.shape[1:]]}; callbacks.validation.metrics.ari=null omits it"
        raise ConfigError(f"segmentation: wanted whole numbers {[*slots.shape[1:]]} of an image, got {got}")
    return ops.adjusted_rand_index(slots.flatten(1), truth, truth > 0)


class ImageError(SquaredError):
    """The mean squared error [B] of an output's `image`, whose pixels are from 0 to 1."""

    def __call__(self, output: Any, observation: Tree) -> Tensor:
        return super().__call__(output["image"], observation)
