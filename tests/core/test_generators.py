"""States of random generators from a checkpoint: set bit for bit, or refused before anybody draws."""

import random

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.core.generators import Generators

KINDS = [np.random.MT19937, np.random.Philox, np.random.PCG64, np.random.PCG64DXSM, np.random.SFC64]


@pytest.fixture(autouse=True)
def same_afterwards():
    before = Generators().state_dict()
    yield
    Generators().load_state_dict(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 700])
def test_any_state_comes_back(kind, drawn):
    first, second = np.random.Generator(kind(3)), np.random.Generator(kind(4))
    first.integers(0, 1 << 32, drawn, np.uint32)
    second.bit_generator.state = first.bit_generator.state
    assert first.random(5).tolist() == second.random(5).tolist()


@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 625, 2000])
def test_the_generators_of_the_process_come_back(drawn, tmp_path):
    seeded(drawn)
    storage.write(tmp_path / "state", storage.snapshot({"generators": Generators().state_dict()}))
    expected = numbers()
    Generators().load_state_dict(storage.load(tmp_path / "state")["generators"])
    assert numbers() == expected


def seeded(drawn):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for _ in range(drawn):
        random.random(), np.random.randint(9), torch.rand(1)


def numbers():
    return random.random(), np.random.random(5).tolist(), torch.rand(700).tolist()
