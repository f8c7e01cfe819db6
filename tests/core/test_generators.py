"""States of random generators from a checkpoint: set bit for bit, or refused before anybody draws."""

import random

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.core.errors import RlrunError
from rlrun.core.generators import Generators, put_back

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
    put_back(second, first.bit_generator.state)
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


def twister(place):
    return {**np.random.MT19937(0).state, "state": {"key": np.ones(624, np.uint32), "pos": place}}


def philox(place):
    return {**np.random.Philox(0).state, "buffer_pos": place}


PLACES = [-50_000_000, -1, 625, 1 << 40, 3.0, "x", None]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("state", [twister, philox])
def test_position_out_of_range_is_refused(state, place):
    kind = {twister: np.random.MT19937, philox: np.random.Philox}[state]
    generator = np.random.Generator(kind(0))
    with pytest.raises(RlrunError, match=r"the state of a random generator is damaged: (pos|buffer_pos) "):
        put_back(generator, state(place))
    with pytest.raises(RlrunError, match="random generator is damaged: pos"):
        Generators().load_state_dict({**Generators().state_dict(), "numpy": twister(place)})


@pytest.mark.parametrize("state", [None, 3, ("MT19937", np.ones(624), -5, 0, 0.0), {}, {"bit_generator": 3}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(RlrunError, match="the state of a random generator is none"):
        put_back(np.random.default_rng(0), state)
    with pytest.raises(RlrunError, match="the state of a random generator is none"):
        Generators().load_state_dict({**Generators().state_dict(), "numpy": state})


@pytest.mark.parametrize(("left", "place"), [(624, 624), (624, 2), (0, 0), (-5, 0), (1, 1 << 40)])
def test_torch_is_not_told_to_read_beyond_its_numbers(left, place):
    state = torch.get_rng_state()
    state[8:12] = torch.from_numpy(np.array([left], np.int32).view(np.uint8))
    state[16:24] = torch.from_numpy(np.array([place], np.uint64).view(np.uint8))
    with pytest.raises(RlrunError, match="torch's random generator is damaged"):
        Generators().load_state_dict({**Generators().state_dict(), "torch": state})


@pytest.mark.parametrize("state", [None, torch.zeros(3), torch.zeros(5, dtype=torch.uint8)])
def test_what_is_no_state_of_torchs_is_refused(state):
    with pytest.raises(RlrunError, match="torch's random generator is none"):
        Generators().load_state_dict({**Generators().state_dict(), "torch": state})
