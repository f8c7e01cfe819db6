"""Variational autoencoders: Gaussian (Kingma and Welling 2014, arXiv 1312.6114; β: Higgins et al. 2017) and discrete.

The encoder proposes a distribution q of latents z, the decoder a distribution p of observations x:

    L    = -log p(x | z) + β KL(q(z | x) ‖ p(z)),  z ~ q        at β = 1 minus the evidence lower bound (ELBO)
    KL   = ½ Σ (μ² + σ² - 1 - log σ²)                           Gaussian, p(z) = N(0, 1)
    KL   = Σ_l Σ_k q_lk log (q_lk / p_lk)                       L variables of K choices, p uniform
    L(β) = log β (target - KL)                                  with a target of KL, β rises while KL is above it

With a condition c the prior is learned: p(z | c) = N(μ_p, σ_p²). The encoder outputs the difference from it, so the
posterior has mean μ + μ_p and variance σ² σ_p². The KL is then ½ Σ (μ² / σ_p² + σ² - 1 - log σ²). Logits of choices
add up likewise. Alternatively the decoder reads the condition, p(x | z, c), and the prior is the unconditional one.

Draws of choices are one-hot. Their gradient is that of the probabilities (straight-through, Bengio et al. 2013, arXiv
1308.3432), or of softmax((logits + Gumbel noise) / temperature) (Jang et al. 2017, arXiv 1611.01144).
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError, require_at_least, require_one_of
from rlrun.core.spaces import Space
from rlrun.core.typing import Tree
from rlrun.nn import Autoencoder
from rlrun.training.metrics import Metric

ACTIVE = 0.01  # nats of divergence, averaged over a batch, from which a latent variable counts as used
Mode = Literal["st", "st-gumbel"]
Part = Literal["elbo", "log_likelihood", "divergence"]


class VAE(Autoencoder):
    """An encoder of means and log-variances, a decoder, and with a condition a prior.

    Args:
        spaces: of columns, by name.
        latent: number of latent variables.
        options: of `rlrun.nn.Autoencoder`.
    """

    def __init__(self, spaces: Mapping[str, Space], *, latent: int = 8, **options: Any) -> None:
        require_at_least("latent", latent, 1)
        super().__init__(spaces, latent=latent, outputs=2 * latent, **options)
        self.variables = latent

    def posterior(self, inputs: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and log-deviation of latents, and their divergences from the prior: [B, latent] each."""
        mean, log_variance = self.encoder(inputs).chunk(2, -1)
        log_deviation = 0.5 * log_variance
        if self.prior is None:
            return mean, log_deviation, _divergence(mean, log_deviation)
        prior_mean, prior_log_variance = self.prior(inputs["condition"]).chunk(2, -1)
        prior_log_deviation = 0.5 * prior_log_variance
        divergence = _divergence(mean * (-prior_log_deviation).exp(), log_deviation)
        return mean + prior_mean, log_deviation + prior_log_deviation, divergence

    def draw(self, inputs: Tree) -> tuple[Tensor, Tensor]:
        """Return a draw of latents, and the divergence of each: [B, latent] both."""
        mean, log_deviation, divergence = self.posterior(inputs)
        return mean + log_deviation.exp() * ops.normal_like(mean), divergence

    def forward(self, inputs: Tree) -> Tensor:
        """Return the mean of observations [B, N] at the mean of latents."""
        return self.decoded(self.posterior(inputs)[0], inputs)


def _divergence(mean: Tensor, log_deviation: Tensor) -> Tensor:
    """Return KL(normal ‖ standard normal), entry by entry."""
    return 0.5 * (mean.square() + (2.0 * log_deviation).exp() - 1.0) - log_deviation


class DiscreteVAE(Autoencoder):
    """An encoder of logits, a decoder, and with a condition a prior of logits.

    Args:
        spaces: of columns, by name.
        latent: number of latent variables.
        choices: of each of them.
        mode: source of a draw's gradient: st, its probabilities; st-gumbel, a softmax of noisy logits.
        options: of `rlrun.nn.Autoencoder`.
    """

    def __init__(
        self, spaces: Mapping[str, Space], *, latent: int = 16, choices: int = 8, mode: Mode = "st", **options: Any
    ) -> None:
        require_at_least("latent", latent, 1)
        require_at_least("choices", choices, 2)
        require_one_of("mode", mode, ("st", "st-gumbel"))
        super().__init__(spaces, latent=latent * choices, **options)
        self.variables, self.choices, self.mode = latent, choices, mode

    def posterior(self, inputs: Tree) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [B, L, K] of choices, and their divergences [B, L] from the prior."""
        logits = self._by_variable(self.encoder(inputs))
        if self.prior is None:
            log_probs = logits.log_softmax(-1)
            return log_probs, ops.choice_divergence(log_probs, torch.full_like(logits, -math.log(self.choices)))
        prior = self._by_variable(self.prior(inputs["condition"])).log_softmax(-1)
        log_probs = (logits + prior).log_softmax(-1)
        return log_probs, ops.choice_divergence(log_probs, prior)

    def _by_variable(self, numbers: Tensor) -> Tensor:
        return numbers.reshape(*numbers.shape[:-1], self.variables, self.choices)

    def draw(self, inputs: Tree, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return a one-hot draw of latents [B, L K], and the divergence of each variable [B, L].

        temperature: of the softmax of mode st-gumbel.
        """
        log_probs, divergence = self.posterior(inputs)
        noisy = log_probs + ops.gumbel_like(log_probs)
        smooth = log_probs.exp() if self.mode == "st" else (noisy / temperature).softmax(-1)
        return self._one_hot(noisy) + (smooth - smooth.detach()).flatten(1), divergence

    def _one_hot(self, scores: Tensor) -> Tensor:
        """Return the best choice of each variable [B, L, K] as numbers [B, L K]."""
        return ops.one_hot(scores.argmax(-1), (self.choices,) * self.variables)

    def forward(self, inputs: Tree) -> Tensor:
        """Return the mean of observations [B, N] at the most likely latents."""
        return self.decoded(self._one_hot(self.posterior(inputs)[0]), inputs)


class Beta(nn.Module):
    """The weight β of the divergence: constant, or learned on a log scale where there is a target.

    Args:
        initial: β to start from.
        target: nats of a variable's divergence; None = β is constant.
        variables: number of latent variables.

    Raises:
        ConfigError: β is not above 0.
    """

    def __init__(self, initial: float = 1.0, *, target: float | None = None, variables: int = 1) -> None:
        super().__init__()
        if not initial > 0.0:
            raise ConfigError(f"beta: wanted a number above 0, got {initial}")
        self.target = None if target is None else target * variables
        log = torch.tensor(math.log(initial))
        if target is None:
            self.register_buffer("log", log)
        else:
            self.log: Tensor = nn.Parameter(log)


class VAELoss(LossCallback):
    """Minus the log-likelihood of decoded observations, and β times the divergence of their latents.

    Args:
        network: encoder, decoder and prior.
        optimizer: of their parameters.
        beta: β.
        options: of `LossCallback`.
    """

    network: VAE | DiscreteVAE
    provides = ("divergence",)

    def __init__(self, network: VAE | DiscreteVAE, optimizer: Optimizer | None, *, beta: Beta, **options: Any) -> None:
        super().__init__(network, optimizer, **options)
        self.beta = beta
        self.inputs = network.inputs

    def loss(
        self,
        observation: Tree,
        condition: Tree | None = None,
        temperature: float | None = None,
        kl_weight: float = 1.0,
    ) -> LossResult:
        """Return the loss [B]; schedules may provide `temperature`, of choices, and `kl_weight`, a factor of β."""
        network, beta = self.network, self.beta.log.detach().exp()
        softmax = () if temperature is None else (temperature,)
        latent, divergences = network.draw(network.joined(observation, condition), *softmax)
        reconstruction = -network.log_likelihood(network.decode(latent, condition), observation)
        divergence = divergences.sum(-1)
        metrics: dict[str, Any] = {
            "vae/elbo": -(reconstruction + divergence),
            "vae/reconstruction": reconstruction,
            "vae/divergence": divergence,
            "vae/active": Metric((divergences,), active),
            "vae/beta": beta,
        }
        return reconstruction + kl_weight * beta * divergence, {"divergence": divergence.detach()}, metrics


def active(divergence: Tensor) -> Tensor:
    """Return the share of latent variables whose mean divergence [B, L] is at least `ACTIVE` nats."""
    return (divergence.mean(0) >= ACTIVE).float().mean()


class BetaLoss(LossCallback):
    """Learn the β that holds the divergence at its target; without a target β is constant."""

    network: Beta

    def loss(self, divergence: Tensor) -> Tensor:
        beta = self.network
        return 0.0 * divergence if beta.target is None else beta.log * (beta.target - divergence)


class Bound:
    """The evidence lower bound of held-out data, or a part of it, [B] in nats.

    Args:
        network: of the run.
        part: elbo, the log-likelihood of decoded observations minus the divergence of latents; or one of these.
    """

    def __init__(self, network: VAE | DiscreteVAE, part: Part = "elbo") -> None:
        require_one_of("part", part, ("elbo", "log_likelihood", "divergence"))
        self.network, self.part = network, part
        self.inputs = network.inputs

    def __call__(self, observation: Tree, condition: Tree | None = None) -> Tensor:
        latent, divergences = self.network.draw(self.network.joined(observation, condition))
        if self.part == "divergence":
            return divergences.sum(-1)
        likelihood = self.network.log_likelihood(self.network.decode(latent, condition), observation)
        return likelihood if self.part == "log_likelihood" else likelihood - divergences.sum(-1)
