"""Which networks act in evaluation mode while they collect."""

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.collect import PolicyAgent
from rlrun.collect.modes import modal_parts
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.nn.encoders import DetachedEncoder, EncodedMLP

SPACES = Spaces(Box((3,), -1.0, 1.0), Discrete(2))


class Own(nn.Module):
    """Read the mode in a way that no list of layers can know."""

    def forward(self, rows):
        return nn.functional.dropout(rows, 0.5, self.training)


class Policy(nn.Module):
    state_size = 0

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def act(self, observation, explore):
        return self.layers(observation)

    def evaluate_actions(self, observation, action):
        return type("Evaluated", (), {"log_prob": self.layers(observation).sum(-1)})


Policy.__module__ = "rlrun.nn.policy"  # so that its layers alone decide

NORM = nn.BatchNorm1d(3, momentum=1.0)  # in training it subtracts the batch's mean


@pytest.mark.parametrize("layers", [NORM, nn.Sequential(nn.Dropout(0.5)), Own()])
def test_collecting_networks_are_in_evaluation_mode(layers):
    agent = PolicyAgent(Policy(layers), log_prob=True)
    rows = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]], np.float32)
    response = agent(rows)
    assert np.allclose(response["action"], rows, atol=1e-4)
    assert np.allclose(response["log_prob"], rows.sum(-1), atol=1e-4)
    assert layers.training
    assert torch.equal(NORM.running_mean, torch.zeros(3))


def test_borrowed_encoders_count():
    lender = EncodedMLP(SPACES, 2, encoder=nn.Sequential(nn.Linear(3, 4), nn.Dropout()))
    assert [type(part) for part in modal_parts(Policy(DetachedEncoder(lender)))] == [nn.Dropout]


@pytest.mark.parametrize("part", [Policy(nn.Linear(3, 2)), EncodedMLP(SPACES, 2), "handwritten"])
def test_other_networks_keep_their_mode(part):
    assert modal_parts(part) == []
