"""Encoding and decoding: losses by output, weights and fields, and gradients through both."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from rlrun import train
from rlrun.algorithms.representation.autoencoder import (
    DecodingLoss,
    EncoderDecoder,
    EncodingLoss,
    ReconstructionLoss,
    Representation,
)
from rlrun.callbacks import CriticLoss, JointLoss
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.nn import Critics, Decoder, RegularizedMLP, SharedFeatures

VECTOR = Box((3,), np.full(3, -np.inf), np.full(3, np.inf))
SGD = functools.partial(torch.optim.SGD, lr=0.05)


class Heads(nn.Module):
    """Return features and losses by name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, observation):
        features = self.layer(observation)
        return {
            "heads": {"features": features, "twice": 2.0 * features},
            "size": features.square().sum(-1),
            "bias": 3.0,
        }


def test_encoders_weigh_their_own_losses():
    network, observation = Heads(), torch.randn(5, 3)
    losses = {"loss_fields": ["size", "bias"], "loss_weights": [0.5, 2.0]}
    loss, outputs, metrics = EncodingLoss(network, None, output_fields="heads.features", **losses).loss(observation)
    features = network.layer(observation)
    torch.testing.assert_close(loss, 0.5 * features.square().sum(-1) + 6.0)
    torch.testing.assert_close(outputs["encoded"], features)
    assert metrics["encoding/bias"] == 3.0
    _, outputs, _ = EncodingLoss(network, None, output_fields=["heads.twice", "size"]).loss(observation)
    assert [*outputs["encoded"]] == ["heads.twice", "size"]


def test_shipped_encoders_have_losses(tmp_path):
    network = RegularizedMLP(VECTOR, 4, hidden=[])
    output = network(torch.randn(5, 3))
    torch.testing.assert_close(output["size"], output["features"].square().mean(-1))
    torch.testing.assert_close(output["sparsity"], output["features"].abs().mean(-1))
    options = ["networks.encoder._target_=rlrun.nn.RegularizedMLP", "algorithm.output_fields=features", "logger=[]"]
    place = "callbacks.autoencoder.terms.encoding"
    options += [f"{place}.loss_fields=[sparsity,size]", f"{place}.loss_weights=[0.0,100.0]", "stop.updates=100"]
    sizes = []
    for weight in (0.0, 10.0):
        run = [
            *options,
            f"callbacks.autoencoder.loss_weight.encoding={weight}",
            "evaluation.every=100",
        ]
        result = train(["algorithm=autoencoder", *run], run_dir=tmp_path / str(weight))
        sizes.append(float(result.trainer.callbacks["autoencoder"].metrics["encoding/size"]))
        assert 0.0 < result.summary["validation"]["squared_error"] < 10.0
    assert sizes[1] < 0.1 * sizes[0]


def test_decoders_sum_distances_of_entries():
    decoder, encoded = nn.Identity(), torch.tensor([[1.0, 2.0, 5.0]])
    target = torch.tensor([[1.0, 0.0, 2.0]])
    assert DecodingLoss(decoder, None, space=VECTOR).loss(encoded, target).tolist() == [13.0]
    absolute = nn.L1Loss(reduction="none")
    assert DecodingLoss(decoder, None, space=VECTOR, distance=absolute).loss(encoded, target).tolist() == [5.0]
    assert DecodingLoss(decoder, None, space=Discrete(3)).loss(encoded, torch.tensor([2])).tolist() == [1 + 4 + 16]


def test_linear_regression_is_found():
    draw = torch.Generator().manual_seed(0)
    observation, weight = torch.randn(64, 3, generator=draw), torch.randn(3, 3, generator=draw)
    target = observation @ weight + 1.0
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(3, 4), Decoder(VECTOR, 4, hidden=[])
    terms = {"encoding": EncodingLoss(encoder, None), "decoding": DecodingLoss(decoder, None, space=VECTOR)}
    joint = JointLoss(SGD, terms=terms)
    for _ in range(500):
        joint.backward(observation, target)
    with torch.no_grad():
        assert (decoder(encoder(observation)) - target).square().mean() < 1e-3


def test_representations_learn_from_stored_observations():
    network = Representation(Spaces(VECTOR, Discrete(2)), latent=2, hidden=[])
    stored = {"observation": torch.randn(4, 3)}
    valid = torch.tensor([1.0, 1.0, 0.0, 1.0])
    loss = ReconstructionLoss(network, SGD)
    features = network.features(stored["observation"])
    error = (network.decoder(features) - stored["observation"]).square().mean(-1)
    torch.testing.assert_close(loss.loss(stored, valid)[0], error * valid)
    assert network.size == features.shape[-1] == 2


@pytest.mark.parametrize("addition", ["autoencoder", "autoencoder_shared"])
def test_windows_of_recurrent_networks_are_reconstructed(addition, tmp_path):
    options = ["algorithm.recurrent=gru", "algorithm.unroll=4", "algorithm.burn_in=1", "algorithm.hidden=[8]"]
    options += ["algorithm.warmup_steps=20", "algorithm.batch_size=4", "stop.updates=2", "logger=[]", "preset=null"]
    result = train(["algorithm=sac", "env=pendulum", f"+with={addition}", *options], run_dir=tmp_path / "run")
    assert result.summary["updates"] == 2


def test_critics_encoder_learns_from_both_terms():
    torch.manual_seed(0)
    spaces = Spaces(VECTOR, Box((1,), -np.ones(1), np.ones(1)))
    critics = Critics(spaces, hidden=[4], encoder=functools.partial(nn.Linear, 3, 5))
    network = EncoderDecoder(SharedFeatures(critics), Decoder(VECTOR, critics.encoded, hidden=[]))
    decoding = DecodingLoss(network, None, space=VECTOR)
    decoding.inputs = {"encoded": "observation", "target": "observation"}
    joint = JointLoss(SGD, terms={"q_loss": CriticLoss(critics, None), "reconstruction": decoding})
    assert len(joint.parameters) == len([*critics.parameters()]) + 2  # the encoder's count once
    observation, action, target = torch.randn(6, 3), torch.rand(6, 1), torch.randn(6)
    weight = critics.encoder.weight.detach().clone()
    losses = [CriticLoss(critics, None).loss(observation, action, target)[0], decoding.loss(observation, observation)]
    gradients = [torch.autograd.grad(loss.mean(), [critics.encoder.weight])[0] for loss in losses]
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    arguments = joint.hook("backward").arguments
    values = {"observation": observation, "action": action, "q_target": target}
    joint.backward(*[values[name] for name, argument in arguments.items() if argument.default is argument.empty])
    torch.testing.assert_close(critics.encoder.weight, weight - 0.05 * sum(gradients))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SharedFeatures(Critics(Spaces(VECTOR, Discrete(2)))), "no layers in its encoder"),
        (lambda: EncodingLoss(Heads(), None, loss_fields=["size"], loss_weights=[]), "wanted one of each"),
        (
            lambda: EncodingLoss(Heads(), None, loss_fields=["sizes"]).loss(torch.zeros(2, 3)),
            "no 'sizes'; there is heads",
        ),
        (lambda: EncodingLoss(nn.Identity(), None, output_fields="z").loss(torch.zeros(2, 3)), "there is a Tensor"),
        (
            lambda: DecodingLoss(nn.Linear(3, 2), None, space=VECTOR).loss(torch.zeros(2, 3), torch.zeros(2, 3)),
            r"\[2, 2\]",
        ),
        (
            lambda: DecodingLoss(nn.Identity(), None, space=VECTOR, distance=nn.MSELoss()).loss(
                torch.zeros(2, 3), torch.zeros(2, 3)
            ),
            "reduction: none",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
