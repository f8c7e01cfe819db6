"""State on disk: what goes in comes out, bit for bit, or is refused."""

import random

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.core.errors import RlrunError, RunDirError


def there_and_back(tmp_path, state):
    storage.write(tmp_path / "state", storage.snapshot({"part": state}))
    return storage.load(tmp_path / "state")["part"]


def test_plain_values_come_back_with_their_types(tmp_path):
    state = {"a": [1, 2**200, True, None, -0.0, 0.1], 7: (1, ("x", b"\x00\xff")), (1, "k"): {}, "$tensor": "word"}
    back = there_and_back(tmp_path, state)
    assert back == state
    assert [type(value) for value in back["a"]] == [int, int, bool, type(None), float, float]
    assert str(back["a"][4]) == "-0.0"


def test_numbers_that_json_lacks_come_back(tmp_path):
    back = there_and_back(tmp_path, [float("inf"), float("-inf"), float("nan")])
    assert back[:2] == [float("inf"), float("-inf")]
    assert np.isnan(back[2])


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "uint16", "int32", "int64", "float16", "bfloat16", "float64", "complex64", "complex128"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensor_of_any_dtype_comes_back(tmp_path, dtype, shape):
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    back = there_and_back(tmp_path, {"x": tensor})["x"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "uint64", "bool", "<U5", "datetime64[s]"])
def test_array_of_any_dtype_comes_back(tmp_path, dtype):
    array = np.arange(6).reshape(2, 3).astype("int64").astype(dtype)
    back = there_and_back(tmp_path, {"x": array, "row": array[:, 1], "one": array[1, 1]})
    assert back["x"].dtype == array.dtype
    assert np.array_equal(back["x"], array)
    assert np.array_equal(back["row"], array[:, 1])
    assert type(back["one"]) is type(array[1, 1])
    assert back["one"] == array[1, 1]


def test_views_come_back_on_their_own(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    back = there_and_back(tmp_path, {"base": base, "turned": base.T, "row": base[1], "wide": base[0].expand(2, 4)})
    assert torch.equal(back["turned"], base.T)
    assert torch.equal(back["row"], base[1])
    assert torch.equal(back["wide"], base[0].expand(2, 4))


def test_tensor_that_occurs_twice_is_stored_once(tmp_path):
    weight = torch.nn.Parameter(torch.randn(3))
    tensors, _ = storage.split({"a": {"w": weight}, "b": [weight]})
    assert list(tensors) == ["a/w"]
    assert torch.equal(there_and_back(tmp_path, {"a": weight, "b": weight})["b"], weight)


def test_tensors_whose_names_collide_are_kept_apart(tmp_path):
    values = {"a/b": torch.tensor(1), 1: torch.tensor(3), "1": torch.tensor(4)}
    back = there_and_back(tmp_path, {**values, "a": {"b": torch.tensor(2)}})
    assert [int(back["a/b"]), int(back["a"]["b"]), int(back[1]), int(back["1"])] == [1, 2, 3, 4]


def test_saved_tensor_is_a_snapshot():
    weight = torch.zeros(2)
    tensors, _ = storage.split({"w": weight})
    weight.add_(1)
    assert tensors["w"].sum() == 0


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_generators_go_on_where_they_were(tmp_path, kind):
    generator = np.random.Generator(getattr(np.random, kind)(5))
    generator.integers(10, size=7, dtype=np.int32)
    state = there_and_back(tmp_path, {"numpy": generator.bit_generator.state, "python": random.getstate()})
    restored = np.random.Generator(getattr(np.random, kind)(0))
    restored.bit_generator.state = state["numpy"]
    assert np.array_equal(generator.normal(size=9), restored.normal(size=9))
    assert state["python"] == random.getstate()


def test_foreign_object_is_refused_by_place(tmp_path):
    with pytest.raises(RlrunError, match=r"'loader/order/0' is a builtins\.set"):
        storage.write(tmp_path / "state", storage.snapshot({"loader": {"order": [{1}]}}))
    assert list(tmp_path.iterdir()) == []


def test_unknown_part_gets_a_hint(tmp_path):
    storage.write(tmp_path / "state", storage.snapshot({"networks.policy": {}, "networks.critics": {}}))
    assert storage.load(tmp_path / "state", ["networks.policy"]) == {"networks.policy": {}}
    with pytest.raises(RunDirError, match=r"did you mean 'networks\.critics'"):
        storage.load(tmp_path / "state", ["networks.critic"])


def test_same_state_gives_the_same_bytes(tmp_path):
    state = {"part": {"b": torch.arange(3), "a": torch.ones(2), "n": np.float32(1)}}
    storage.write(tmp_path / "a", storage.snapshot(state))
    storage.write(tmp_path / "b", storage.snapshot(state))
    for name in (storage.TENSORS, storage.STATE, storage.MANIFEST):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_stored_state_is_replaced_whole(tmp_path):
    storage.write(tmp_path / "state", storage.snapshot({"part": 1}))
    storage.write(tmp_path / "state", storage.snapshot({"part": 2}, about={"env_steps": 5}))
    assert storage.load(tmp_path / "state") == {"part": 2}
    assert storage.read_manifest(tmp_path / "state").env_steps == 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_digests_take_numbers_with_strides():
    column = torch.arange(6.0)[::3]  # one number of it counts as contiguous
    assert storage.digest({"x": column[1:]}) == storage.digest({"x": torch.tensor([3.0])})
