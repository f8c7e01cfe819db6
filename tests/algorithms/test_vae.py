"""Variational autoencoders: divergences, draws and their gradients, β, and the likelihood of a linear model."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import distributions as D
from torch import nn

from rlrun import ops
from rlrun.algorithms.density.vae import VAE, Beta, BetaLoss, Bound, DiscreteVAE, VAELoss, active
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete

NUMBERS = Box((3,), np.full(3, -np.inf), np.full(3, np.inf))
PIXELS = Box((8, 8), np.zeros((8, 8)), np.full((8, 8), 255), "uint8")
SPACES = {"observation": NUMBERS, "label": Discrete(4), "image": PIXELS}


class Fixed(nn.Module):
    """Return the same row for every observation."""

    def __init__(self, *row):
        super().__init__()
        self.row = nn.Parameter(torch.tensor(row, dtype=torch.float64))

    def forward(self, observation):
        while isinstance(observation, dict):
            observation = next(iter(observation.values()))
        return self.row.expand(len(observation), -1)


def gaussian(encoded, prior=None):
    network = VAE(SPACES, latent=len(encoded) // 2, likelihood="gaussian", condition=prior and "label")
    network.encoder = Fixed(*encoded)
    network.prior = prior and Fixed(*prior)
    return network


def inputs(network, rows=2):
    observation, label = torch.zeros(rows, 3), torch.zeros(rows, dtype=torch.int64)
    return network.joined(observation, label)


@pytest.mark.parametrize(
    ("encoded", "prior", "divergence"),
    [((1.0, 0.5), None, 0.574361), ((1.0, 0.5), (7.0, 0.2), 0.483726), ((0.0, 0.0), (3.0, -1.0), 0.0)],
)
def test_divergence_of_known_numbers(encoded, prior, divergence):
    network = gaussian(encoded, prior)
    assert network.draw(inputs(network))[1].sum(-1).tolist() == pytest.approx([divergence] * 2, abs=1e-6)


@pytest.mark.parametrize("prior", [None, (0.3, -2.0, 0.5, -1.5)])
def test_gaussian_divergence_equals_torch(prior):
    network = gaussian((1.5, -0.7, 0.4, -2.0), prior)
    mean, log_deviation, divergence = network.posterior(inputs(network))
    center, log_variance = torch.tensor(prior or (0.0,) * 4, dtype=torch.float64).chunk(2)
    posterior, reference = D.Normal(mean, log_deviation.exp()), D.Normal(center, (0.5 * log_variance).exp())
    torch.testing.assert_close(divergence, D.kl_divergence(posterior, reference), atol=1e-6, rtol=0)


@pytest.mark.parametrize("prior", [None, (0.1, 2.0, -1.0, 0.0, 0.5, 0.5)])
def test_discrete_divergence_equals_torch(prior):
    network = DiscreteVAE(SPACES, latent=2, choices=3, likelihood="gaussian", condition=prior and "label")
    network.encoder, network.prior = Fixed(1.0, 0.0, -2.0, 0.3, 0.3, 4.0), prior and Fixed(*prior)
    log_probs, divergence = network.posterior(inputs(network))
    given = torch.tensor(prior or (0.0,) * 6, dtype=torch.float64).reshape(2, 3)
    reference = D.Categorical(logits=given.expand(2, 2, 3))
    posterior = D.Categorical(logits=network.encoder.row.reshape(2, 3) + given.expand(2, 2, 3))
    torch.testing.assert_close(log_probs, posterior.logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(divergence, D.kl_divergence(posterior, reference), atol=1e-6, rtol=0)


def test_draws_have_the_posterior_moments():
    network = gaussian((2.0, -1.0, 2.0 * math.log(0.5), 0.0), prior=(1.0, 1.0, 0.0, 2.0 * math.log(3.0)))
    torch.manual_seed(0)
    latent = network.draw(inputs(network, 40_000))[0]
    assert latent.mean(0).tolist() == pytest.approx([3.0, 0.0], abs=0.06)
    assert latent.std(0).tolist() == pytest.approx([0.5, 3.0], rel=0.02)


@pytest.mark.parametrize(("mode", "temperature"), [("st", 1.0), ("st-gumbel", 0.5)])
def test_choices_are_one_hot_with_smooth_gradients(mode, temperature):
    network = DiscreteVAE(SPACES, latent=2, choices=3, mode=mode, likelihood="gaussian")
    network.encoder = Fixed(1.0, 0.0, -2.0, 0.3, 0.3, 1.0)
    noise, weight = torch.randn(2, 2, 3, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    with ops.distributions.given(lambda kind, value: noise):
        latent = network.draw(inputs(network), temperature)[0]
    (own,) = torch.autograd.grad((weight * latent).sum(), [network.encoder.row])
    log_probs = network.encoder.row.reshape(2, 3).expand(2, 2, 3).log_softmax(-1)
    best = (log_probs + noise).argmax(-1)
    assert torch.equal(latent.detach().reshape(2, 2, 3), nn.functional.one_hot(best, 3).double())
    smooth = log_probs.exp() if mode == "st" else ((log_probs + noise) / temperature).softmax(-1)
    (wanted,) = torch.autograd.grad((weight * smooth.flatten(1)).sum(), [network.encoder.row])
    torch.testing.assert_close(own, wanted)


def test_schedules_weigh_loss_and_temperature():
    network = DiscreteVAE(SPACES, latent=2, choices=3, mode="st-gumbel", likelihood="gaussian", deviation=1.0)
    loss = VAELoss(network, None, beta=Beta(2.0))
    torch.manual_seed(0)
    whole, outputs, _ = loss.loss(torch.ones(5, 3), temperature=0.5)
    torch.manual_seed(0)
    without, _, metrics = loss.loss(torch.ones(5, 3), temperature=0.5, kl_weight=0.0)
    torch.testing.assert_close(whole - without, 2.0 * outputs["divergence"])
    torch.testing.assert_close(without, metrics["vae/reconstruction"])


def test_likelihood_of_even_pixels_is_known():
    network = VAE({"observation": PIXELS}, latent=2)
    nn.init.zeros_(network.decoder.layers[-1].weight)
    nn.init.zeros_(network.decoder.layers[-1].bias)
    images = torch.randint(0, 256, (4, 8, 8), dtype=torch.uint8)
    assert network.log_likelihood(network.decoder(torch.zeros(4, 2)), images).tolist() == pytest.approx(
        [64.0 * math.log(0.5)] * 4, rel=1e-5
    )
    likelihood, elbo = Bound(network, "log_likelihood"), Bound(network)
    torch.manual_seed(0)
    divergence = Bound(network, "divergence")(images)
    torch.testing.assert_close(elbo(images), likelihood(images) - divergence, rtol=1e-5, atol=0)


def test_priors_see_the_condition_alone():
    network = VAE(SPACES, latent=2, condition="label", likelihood="gaussian")
    assert isinstance(network.encoder.observed, Composite)
    observation, label = torch.randn(3, 3), torch.tensor([0, 1, 2])
    loss = VAELoss(network, None, beta=Beta())
    assert loss.inputs == {"observation": "observation", "condition": "label"}
    before = network.prior(label)
    loss.loss(observation + 1.0, label)
    assert torch.equal(network.prior(label), before)
    joined, flipped = (network.encoder(network.joined(observation, labels)) for labels in (label, label.flip(0)))
    assert not torch.equal(joined, flipped)


def test_decoders_read_the_condition_last():
    columns = {"observation": "image", "condition": "observation"}
    options = {"likelihood": "gaussian", "deviation": 1.0, "latent": 2, "hidden": [5]}
    network = VAE(SPACES, **columns, condition_reader="decoder", **options)
    assert network.prior is None
    images, numbers = torch.randint(0, 256, (6, 8, 8), dtype=torch.uint8), torch.randn(6, 3)
    decoded = network.decode(latent := torch.randn(6, 2), numbers)
    torch.testing.assert_close(decoded, network.decoder.layers(torch.cat((latent, numbers), -1)))
    mean, log_variance = network.encoder({"observation": images, "condition": numbers}).chunk(2, -1)
    exact = D.kl_divergence(D.Normal(mean, (0.5 * log_variance).exp()), D.Normal(0.0, 1.0))
    torch.testing.assert_close(network.posterior(network.joined(images, numbers))[2], exact)
    loss = VAELoss(network, functools.partial(torch.optim.Adam, lr=1e-3), beta=Beta())
    assert loss.inputs == columns
    before = _mean_loss(loss, images, numbers)
    torch.manual_seed(0)
    loss.backward(observation=images, condition=numbers)
    assert _mean_loss(loss, images, numbers) < before
    joined = network.joined(images, numbers)
    torch.testing.assert_close(network(joined), network.decode(network.posterior(joined)[0], numbers))


def test_bounds_read_the_condition():
    options = {"condition": "label", "condition_reader": "decoder", "likelihood": "gaussian", "deviation": 1.0}
    network, label = VAE(SPACES, latent=2, hidden=[5], **options), torch.tensor([1, 2, 3])
    observation = torch.randn(3, 3)
    torch.manual_seed(0)
    latent, divergences = network.draw(network.joined(observation, label))
    likelihood = D.Normal(network.decode(latent, label), 1.0).log_prob(observation).sum(-1)
    for part, wanted in {"log_likelihood": likelihood, "elbo": likelihood - divergences.sum(-1)}.items():
        torch.manual_seed(0)
        torch.testing.assert_close(Bound(network, part)(observation, label), wanted)


@pytest.mark.parametrize("reader", ["prior", "decoder"])
def test_choices_decode_at_the_likeliest(reader):
    options = {"condition": "label", "condition_reader": reader, "likelihood": "gaussian"}
    network, label = DiscreteVAE(SPACES, latent=2, choices=3, hidden=[5], **options), torch.tensor([1, 2, 3])
    read = network.joined(torch.randn(3, 3), label)
    best = network.posterior(read)[0].argmax(-1)
    latent = nn.functional.one_hot(best, 3).flatten(1).float()
    torch.testing.assert_close(network(read), network.decode(latent, label))


def _mean_loss(loss, *columns):
    torch.manual_seed(0)
    return loss.loss(*columns)[0].mean().item()


@pytest.mark.parametrize(("divergence", "rises"), [(3.0, True), (1.0, False)])
def test_beta_moves_divergence_to_target(divergence, rises):
    beta = Beta(0.5, target=0.25, variables=8)  # 2 nats in all
    loss = BetaLoss(beta, functools.partial(torch.optim.SGD, lr=0.1))
    loss.backward(torch.full((4,), divergence))
    value = beta.log.exp().item()
    assert value == pytest.approx(0.5 * math.exp(0.1 * (divergence - 2.0)))
    assert (value > 0.5) == rises
    assert [*Beta(0.5).parameters()] == []


def test_active_variables_are_counted_over_batches():
    assert active(torch.tensor([[0.02, 0.0, 0.009], [0.0, 0.0, 0.009]])) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VAE({"observation": NUMBERS}), "likelihood: bernoulli wants numbers from 0 to 1"),
        (lambda: VAE({"observation": PIXELS}, condition="lable"), "there is no column 'lable'"),
        (lambda: VAE(SPACES, condition="lable", likelihood="gaussian"), "did you mean 'label'"),
        (lambda: VAE(SPACES, likelihood="gauss"), "likelihood"),
        (lambda: VAE(SPACES, condition="label", condition_reader="encoder", likelihood="gaussian"), "condition_reader"),
        (lambda: VAE(SPACES, likelihood="gaussian", deviation=0.0), "deviation: wanted a number above 0"),
        (lambda: VAE({"observation": PIXELS}, deviation=0.5), "deviation: .* with likelihood=gaussian"),
        (lambda: VAE(SPACES, latent=0, likelihood="gaussian"), "latent"),
        (lambda: DiscreteVAE(SPACES, choices=1, likelihood="gaussian"), "choices"),
        (lambda: DiscreteVAE(SPACES, mode="gumbel", likelihood="gaussian"), "mode"),
        (lambda: Beta(0.0), "beta"),
        (lambda: Bound(VAE(SPACES, likelihood="gaussian"), "kl"), "part"),
    ],
)
def test_settings_without_meaning_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_linear_model_reaches_the_likelihood_of_ppca():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 2, generator=draw) @ torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 1.5]])
    rows = rows + 0.7 * torch.randn(600, 3, generator=draw) + 1.0
    values = torch.linalg.eigvalsh(torch.cov(rows.T, correction=0).double())
    likelihood = -0.5 * (3 * math.log(2.0 * math.pi) + values.log().sum() + 3.0)  # its ML noise is the smallest value
    torch.manual_seed(0)
    network = VAE({"observation": NUMBERS}, latent=2, hidden=[], likelihood="gaussian")
    loss = VAELoss(network, functools.partial(torch.optim.Adam, lr=0.01), beta=Beta())
    for _ in range(1_000):
        loss.backward(rows)
    with torch.no_grad():
        elbo = torch.stack([Bound(network)(rows).mean() for _ in range(20)]).mean()
    assert float(elbo) == pytest.approx(float(likelihood), rel=0.01)
