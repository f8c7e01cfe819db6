"""Vector quantization: the straight-through gradient, the three losses, running means of codes, and revival."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.algorithms.density.vq_vae import VQVAE, Perplexity, VQVAELoss, perplexity
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Box

SPACES = {"observation": Box((2,), np.full(2, -np.inf), np.full(2, np.inf))}
CODES = [[0.0, 0.0], [4.0, 0.0], [0.0, 9.0]]
ROWS = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0], [1.0, 1.0]])  # nearest: 0, 1, 1, 0


def quantizer(**options):
    """Return a network whose encoder and decoder change nothing, and with known codes."""
    network = VQVAE(SPACES, codes=3, latent=2, hidden=[], **options)
    for layer in (network.encoder.layers[-1], network.decoder.layers[-1]):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    with torch.no_grad():
        network.codebook.copy_(torch.tensor(CODES))
        if network.ema is not None:
            network.sums.copy_(torch.tensor(CODES))
    return network


def test_rows_become_their_nearest_code():
    network = quantizer()
    assert network.index(ROWS).tolist() == [0, 1, 1, 0]
    assert network(ROWS).tolist() == [[0.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 0.0]]


def test_gradient_passes_straight_through():
    network = quantizer()
    decoder = network.decoder.layers[-1]
    nn.init.constant_(decoder.weight, 0.7)
    loss, _, _ = VQVAELoss(network, None, commitment=0.5).loss(ROWS)
    (own,) = torch.autograd.grad(loss.sum(), [network.encoder.layers[-1].bias], retain_graph=True)
    chosen = network.codebook[network.index(ROWS)].detach().requires_grad_()
    (decoder(chosen) - ROWS).square().mean(-1).sum().backward()
    committed = 0.5 * (ROWS - network.codebook[network.index(ROWS)]).detach()  # of w mean (e - x)², D = 2
    torch.testing.assert_close(own, (chosen.grad + committed).sum(0))
    (codes,) = torch.autograd.grad(loss.sum(), [network.codebook])
    wanted = torch.tensor([[-2.0, -1.0], [0.0, 0.0], [0.0, 0.0]])  # 2 Σ (e - x) / D of (1, 0), (1, 1); 1 and -1 cancel
    torch.testing.assert_close(codes, wanted)


@pytest.mark.parametrize(("commitment", "ema"), [(0.0, None), (0.25, None), (1.0, None), (0.25, 0.9)])
def test_loss_adds_distances_of_rows(commitment, ema):
    loss, _, metrics = VQVAELoss(quantizer(ema=ema), None, commitment=commitment).loss(ROWS)
    distance = torch.tensor([0.5, 0.5, 0.5, 1.0])  # of rows to codes, and here of decoded rows, too
    torch.testing.assert_close(loss, distance * (1.0 + commitment + (ema is None)))
    torch.testing.assert_close(metrics["vq_vae/commitment"], distance)
    torch.testing.assert_close(metrics["vq_vae/reconstruction"], distance)


def test_running_means_follow_their_rows():
    network = quantizer(ema=0.75)
    loss = VQVAELoss(network, functools.partial(torch.optim.SGD, lr=0.0))
    loss.backward(ROWS)
    assert network.counts.tolist() == pytest.approx([1.25, 1.25, 0.75])  # 0.75 + 0.25 n
    assert network.codebook.flatten().tolist() == pytest.approx(
        [0.25 * 2.0 / 1.25, 0.25 * 1.0 / 1.25, (0.75 * 4.0 + 0.25 * 8.0) / 1.25, 0.0, 0.0, 9.0]
    )
    assert network.usage.tolist() == pytest.approx([0.99 / 3 + 0.01 / 2, 0.99 / 3 + 0.01 / 2, 0.99 / 3])
    assert "codebook" not in dict(network.named_parameters())
    assert network.one_rank


def test_dead_codes_move_to_rows():
    network = quantizer(ema=0.5)
    network.usage.copy_(torch.tensor([0.6, 0.39, 0.01]))
    loss = VQVAELoss(network, functools.partial(torch.optim.SGD, lr=0.0), revive=0.1)
    _, _, metrics = loss.loss(ROWS)
    assert metrics["vq_vae/dead_codes"] == pytest.approx(1 / 3)
    loss.backward(ROWS)
    assert network.codebook[2].tolist() in ROWS.tolist()
    assert network.usage[2].item() == pytest.approx(1 / 3)
    assert network.codebook[1].tolist() == [4.0, 0.0]


@pytest.mark.parametrize("name", ["counts", "usage"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_forged_counts_are_refused(name, value):
    state = quantizer(ema=0.9).state_dict()
    state[name] = torch.full_like(state[name], value)
    with pytest.raises(RlrunError, match=f"'{name}' of a VQVAE holds numbers that no run has"):
        quantizer(ema=0.9).load_state_dict(state)


def test_perplexity_counts_codes_in_use():
    assert perplexity(torch.eye(4)) == pytest.approx(4.0)
    assert perplexity(torch.eye(4)[[1, 1, 1]]) == pytest.approx(1.0)
    metric = Perplexity(quantizer())
    assert metric.reduce(metric(ROWS)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VQVAE(SPACES, codes=1), "codes"),
        (lambda: VQVAE(SPACES, latent=0), "latent"),
        (lambda: VQVAE(SPACES, ema=1.0), "ema: wanted a number between 0 and 1"),
        (lambda: VQVAELoss(VQVAE(SPACES), None, revive=0.1), "revive: .* together with ema"),
        (lambda: VQVAELoss(VQVAE(SPACES, ema=0.9), None, revive=-0.1), "revive"),
    ],
)
def test_settings_without_meaning_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
