"""Running statistics against their definitions, written out."""

import copy

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.nn.normalizer import Normalizer, Statistics

ROBOT = Composite(
    {
        "arm": Composite({"angle": Box((2,), np.zeros(2), np.ones(2))}),
        "camera": Box((8, 8, 3), np.zeros((8, 8, 3)), np.full((8, 8, 3), 255), "uint8"),
        "tool": Discrete(3),
    }
)


def batches(count: int, size: int = 4) -> torch.Tensor:
    return torch.randn(count, size, 3, generator=torch.Generator().manual_seed(1)) * 3 + 5


def learnt(data: torch.Tensor, **settings: object) -> Normalizer:
    """Return a normalizer that saw batch after batch."""
    normalizer = Normalizer([3], **settings)
    for batch in data:
        normalizer.update(batch)
    return normalizer


def moments(normalizer: Normalizer) -> torch.Tensor:
    statistics = normalizer.statistics[0]
    assert isinstance(statistics, Statistics)
    return statistics.moments


def expected(data: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return weighted means of each batch's mean and mean square: [2, 3]."""
    statistics = torch.stack([data.double().mean(1), data.double().square().mean(1)], 1)  # [K, 2, 3]
    return (statistics * weights[:, None, None]).sum(0) / weights.sum()


def test_adaptive_mean_follows_its_recursion():
    data = batches(20)
    average = torch.zeros(2, 3, dtype=torch.float64)
    for k, batch in enumerate(data):
        average += 8 / (8 + k) * (torch.stack([batch.double().mean(0), batch.double().square().mean(0)]) - average)
    assert torch.allclose(moments(learnt(data, mode="adaptive", speed=8)), average)


WEIGHTS = {  # of the updates, oldest first
    "adaptive": ({"mode": "adaptive", "speed": 1}, lambda ages: torch.ones_like(ages)),
    "exponential": ({"mode": "em", "rate": 0.3}, lambda ages: 0.7**ages),
    "window": ({"mode": "window", "window": 4}, lambda ages: (ages < 4).double()),
}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 11])
@pytest.mark.parametrize("name", WEIGHTS)
def test_updates_have_their_weights(name, count):
    settings, weights = WEIGHTS[name]
    data, ages = batches(count), torch.arange(count - 1.0, -1.0, -1.0)
    assert torch.allclose(moments(learnt(data, **settings)), expected(data, weights(ages)))


@pytest.mark.parametrize(("mode", "rollout"), [("cumulative", False), (None, True)])
def test_cumulative_mean_weighs_elements_alike(mode, rollout):
    data = batches(20).reshape(-1, 3)
    normalizer = Normalizer([3], mode=mode)
    for size, part in zip((1, 5, 30, 44), data.split((1, 5, 30, 44)), strict=True):
        assert len(part) == size
        normalizer.update(part, rollout=rollout)
        duplicate = Normalizer([3], mode=mode)
        duplicate.load_state_dict(normalizer.state_dict())  # as a resumed run does
        normalizer = duplicate
    assert torch.allclose(moments(normalizer), expected(data[None], torch.ones(1)))


def test_samples_are_averaged_adaptively():
    data = batches(20)
    assert torch.equal(moments(learnt(data)), moments(learnt(data, mode="adaptive")))
    assert not torch.allclose(moments(learnt(data)), moments(learnt(data, mode="cumulative")))


def test_nothing_changes_before_the_first_update():
    value = torch.randn(5, 3)
    assert torch.equal(Normalizer([3])(value), value)


def test_forms_by_hand():
    data = torch.tensor([[[3.0, 1.0, 0.0], [5.0, 1.0, 0.0]]])
    value = torch.tensor([6.0, 1.0, 0.0])
    assert learnt(data)(value).tolist() == pytest.approx([2.0, 0.0, 0.0])  # mean 4, deviation 1
    assert learnt(data, form="deviation")(value)[0] == 6.0
    assert learnt(data, form="rms")(value).tolist() == pytest.approx([6 / 17**0.5, 1.0, 0.0])  # (9 + 25) / 2
    assert learnt(data, form="centered")(value).tolist() == pytest.approx([2.0, 0.0, 0.0])


def test_clip_bounds_constant_entries():
    normalizer = learnt(torch.zeros(1, 4, 3), clip=10.0)
    assert normalizer(torch.tensor([1.0, -1.0, 0.0])).tolist() == [10.0, -10.0, 0.0]


def test_large_mean_hides_no_variance():
    data = batches(50, size=64) / 3 + 1e5  # deviation 1
    normalized = learnt(data, speed=1)(data.reshape(-1, 3))
    assert normalized.std(0).tolist() == pytest.approx([1.0] * 3, abs=0.02)


def test_all_leading_dimensions_are_a_batch():
    data = batches(1, size=12)[0]
    flat, deep = Normalizer([3]), Normalizer([3])
    flat.update(data)
    deep.update(data.reshape(2, 2, 3, 3))
    assert torch.equal(moments(flat), moments(deep))
    assert deep(data.reshape(2, 2, 3, 3)).shape == (2, 2, 3, 3)


def test_empty_batch_changes_nothing():
    normalizer = learnt(batches(2))
    before = copy.deepcopy(normalizer.state_dict())
    normalizer.update(torch.zeros(0, 3))
    assert str(normalizer.state_dict()) == str(before)


def test_only_boxes_are_normalized():
    tree = {
        "arm": {"angle": torch.tensor([[1.0, 2.0], [3.0, 6.0]])},
        "camera": torch.full((2, 8, 8, 3), 9, dtype=torch.uint8),
        "tool": torch.tensor([0, 2]),
    }
    normalizer = Normalizer(Spaces(ROBOT, Discrete(2)))
    normalizer.update(tree)
    normalized = normalizer(tree)
    assert normalized["arm"]["angle"].flatten().tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])
    assert normalized["camera"] is tree["camera"]
    assert normalized["tool"] is tree["tool"]
    assert torch.equal(normalizer(tree["arm"], "arm")["angle"], normalized["arm"]["angle"])


def test_chosen_images_are_normalized():
    normalizer = Normalizer(ROBOT, leaves=["camera"])
    pixels = torch.randint(0, 255, (50, 8, 8, 3), dtype=torch.uint8)
    tree = {"arm": {"angle": torch.ones(50, 2)}, "camera": pixels, "tool": torch.zeros(50)}
    normalizer.update(tree)
    assert float(normalizer(tree)["camera"].mean()) == pytest.approx(0.0, abs=1e-4)
    assert normalizer(tree)["arm"]["angle"] is tree["arm"]["angle"]


def test_batches_move_to_the_device():
    normalizer = Normalizer([3], mode="window", window=2, clip=1.0).to("meta")  # a device that only knows shapes
    normalizer.update(torch.ones(4, 3))
    assert normalizer(torch.ones(4, 3)).device.type == "meta"


def test_state_carries_on_exactly():
    data = batches(9)
    for mode in ("adaptive", "em", "window"):
        whole, part = learnt(data, mode=mode, window=4), learnt(data[:6], mode=mode, window=4)
        restored = Normalizer([3], mode=mode, window=4)
        restored.load_state_dict(part.state_dict())
        for batch in data[6:]:
            restored.update(batch)
        assert str(restored.state_dict()) == str(whole.state_dict())
        assert restored.updates == 9


def test_normalizing_compiles_to_one_graph():
    normalizer = learnt(batches(3), clip=5.0)
    exported = torch.export.export(normalizer, (torch.zeros(4, 3),))
    assert torch.equal(exported.module()(torch.ones(4, 3)), normalizer(torch.ones(4, 3)))


@pytest.mark.parametrize(
    ("space", "settings", "error", "message"),
    [
        ([3], {"mode": "adaptiv"}, ConfigError, "^mode: wanted one of .* 'adaptive'"),
        ([3], {"form": "mean"}, ConfigError, "form: wanted one of standard, deviation, rms, centered, got 'mean'"),
        ([3], {"speed": 0.0}, ConfigError, "wanted speed > 0"),
        ([3], {"clip": -1.0}, ConfigError, "clip=-1.0"),
        (ROBOT, {"leaves": ["arm.angel"]}, SpaceError, r"no leaf 'arm.angel' .* \(did you mean 'arm.angle'\?\)"),
        (ROBOT, {"leaves": ["tool"]}, SpaceError, r"leaf 'tool' is Discrete\(3\), wanted a Box"),
        (Discrete(4), {}, SpaceError, "nothing to normalize in Discrete"),
    ],
)
def test_bad_settings_are_refused(space, settings, error, message):
    with pytest.raises(error, match=message):
        Normalizer(space, **settings)


def test_unneeded_normalizer_passes_everything():
    space = Composite({"camera": ROBOT.parts["camera"], "tool": ROBOT.parts["tool"]})
    normalizer = Normalizer(space, needed=False)
    tree = {"camera": torch.ones(2, 8, 8, 3, dtype=torch.uint8), "tool": torch.tensor([0, 2])}
    normalizer.update(tree)
    passed = normalizer(tree)
    assert all(passed[name] is tree[name] for name in tree)
    assert (normalizer.leaves, normalizer.updates, normalizer.state_dict()) == ((), 0, {})
