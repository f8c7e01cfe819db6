"""One integer, many independent branches."""

import random

import numpy as np
import torch

from rlrun.core.seeds import Seeds

RANGE = 1000  # envs and evaluation episodes count up from their seeds


def branches(seed):
    return [value for name, value in vars(Seeds(seed)).items() if name not in ("seed", "first_env")]


def test_branches_of_a_seed_are_far_apart():
    for seed in range(200):
        numbers = sorted(branches(seed))
        assert len(numbers) >= 6
        assert min(np.diff(numbers)) > RANGE


def test_neighboring_seeds_share_no_episode():
    envs = sorted(start for seed in range(100) for start in (Seeds(seed).envs, Seeds(seed).evaluation))
    assert min(np.diff(envs)) > RANGE


def test_same_seed_has_the_same_branches():
    assert branches(7) == branches(7)
    assert not set(branches(7)) & set(branches(8))


def test_branches_suit_every_library():
    assert all(0 <= value < 2**31 and type(value) is int for seed in range(50) for value in branches(seed))


def draw(seed):
    Seeds(seed).apply()
    return random.random(), np.random.random(), float(torch.rand(()))


def test_generators_of_the_process_are_seeded():
    assert draw(1) == draw(1)
    assert all(a != b for a, b in zip(draw(1), draw(2), strict=True))
