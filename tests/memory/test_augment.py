"""Random changes of images: what becomes of pixels, what is changed alike, and exact resume."""

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RlrunError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Space, Spaces
from rlrun.memory import (
    ColorJitter,
    CutOut,
    ImageScale,
    Later,
    NStep,
    Past,
    PixelNoise,
    RandomCrop,
    RandomShift,
    Table,
    Views,
)
from rlrun.memory.adaptors.augment import Augmentation

from .tables import add_steps

SIDE = 12
KINDS: dict[str, tuple[type[Augmentation], dict[str, Any]]] = {
    "shift": (RandomShift, {"pixels": 3}),
    "crop": (RandomCrop, {"least": 0.5}),
    "cut-out": (CutOut, {"least": 0.25, "largest": 0.5, "color": 7}),
    "noise": (PixelNoise, {"deviation": 0.1, "chance": 1.0}),
    "jitter": (ColorJitter, {"tint": 0.2}),
}
SHAPES = {"gray": (SIDE, SIDE), "channels last": (SIDE, SIDE, 3), "stacked frames": (4, SIDE, SIDE)}


def image(shape: tuple[int, ...]) -> Box:
    return Box(shape, np.zeros(shape), np.full(shape, 255), dtype="uint8")


def spaces(observation: Space) -> Spaces:
    return Spaces(observation, Discrete(2))


def gradient(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return an image whose pixel (y, x) is 100 + 10 y + x in every channel."""
    pixels = 100 + 10 * np.arange(SIDE)[:, None] + np.arange(SIDE)
    placed = {2: pixels, 3: pixels[..., None] if shape[-1] == 3 else pixels[None]}[len(shape)]
    return np.broadcast_to(placed, shape).astype(np.uint8)


def sampled(augmentation: Augmentation, shape: tuple[int, ...], count: int = 200, length: int = 1) -> Mapping[str, Any]:
    table = Table(length=20, spaces=spaces(image(shape)), adaptors=[augmentation])
    add_steps(table, 9, lambda step: {"observation": gradient(shape)[None], "action": [0], "reward": [0.0]})
    return table.sample(count, length)


def pictures(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return one channel of each image [n, H, W]; all channels are equal."""
    flat = value.reshape(-1, *shape)
    if len(shape) == 2:
        return flat
    channels = flat if shape[-1] == 3 else flat.movedim(1, -1)
    assert (channels == channels[..., :1]).all()
    return channels[..., 0]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shift_repeats_the_border(shape):
    batch = sampled(RandomShift(spaces(image(shape)), pixels=3), shape)
    shifts = set()
    for picture in pictures(batch["observation"], shape):
        middle = int(picture[6, 6]) - 166
        down = round(middle / 10)
        across = middle - 10 * down
        shifts.add((down, across))
        rows, columns = (np.clip(np.arange(SIDE) + by, 0, SIDE - 1) for by in (down, across))
        assert (picture.numpy() == gradient((SIDE, SIDE))[rows][:, columns]).all()
    assert shifts <= {(down, across) for down in range(-3, 4) for across in range(-3, 4)}
    assert len(shifts) > 40
    assert batch["observation"].dtype == torch.uint8


def test_crop_is_a_scaled_part():
    shape = SHAPES["gray"]
    changed = pictures(sampled(RandomCrop(spaces(image(shape)), least=0.5), shape)["observation"], shape).int()
    heights = (changed[:, -1, 0] - changed[:, 0, 0]) / 10  # rows between the first and the last
    assert heights.min() >= SIDE / 2 - 2
    assert heights.max() <= SIDE - 1
    assert heights.float().std() > 1.0
    assert (changed.diff(dim=1) >= 0).all()
    assert (changed.diff(dim=2) >= 0).all()
    corners = changed[:, 0, 0] - 100
    assert len(corners.unique()) > 10
    assert (changed[:, -1, -1] <= 100 + 11 * (SIDE - 1)).all()


@pytest.mark.parametrize(("least", "largest", "sides"), [(0.25, 0.25, {3}), (0.25, 0.5, {3, 4, 5, 6})])
def test_cut_out_is_one_rectangle(least, largest, sides):
    shape = SHAPES["channels last"]
    cut = CutOut(spaces(image(shape)), least=least, largest=largest, color=7)
    changed = pictures(sampled(cut, shape)["observation"], shape)
    removed = changed == 7
    height, width = removed.any(2).sum(1), removed.any(1).sum(1)
    assert (removed.sum((1, 2)) == height * width).all()
    assert set(height.tolist()) == set(width.tolist()) == sides
    kept = torch.from_numpy(gradient((SIDE, SIDE))).expand_as(changed)
    assert (changed[~removed] == kept[~removed]).all()
    assert removed.any(0).any(0).all()  # each column is cut out in some image


def test_noise_has_its_deviation_and_chance():
    shape = SHAPES["gray"]
    noise = PixelNoise(spaces(image(shape)), deviation=0.04, chance=0.5)
    table = Table(length=20, spaces=spaces(image(shape)), adaptors=[noise])
    middle = np.full(shape, 128, np.uint8)
    add_steps(table, 9, lambda step: {"observation": middle[None], "action": [0], "reward": [0.0]})
    deviations = [table.sample(64)["observation"].float().std() for _ in range(60)]
    noisy = torch.stack([deviation for deviation in deviations if deviation > 0])
    assert 15 <= len(noisy) <= 45
    assert torch.allclose(noisy, torch.tensor(0.04 * 255.0), rtol=0.05)


def test_jitter_changes_light_of_whole_images():
    shape = SHAPES["channels last"]
    plain = torch.from_numpy(gradient((SIDE, SIDE))).float()
    brighter = ColorJitter(spaces(image(shape)), brightness=0.1, contrast=0.0)
    changed = pictures(sampled(brighter, shape)["observation"], shape).float()
    change = changed - plain
    assert (change - change.mean((1, 2), keepdim=True)).abs().max() <= 1.0  # by rounding
    assert change.abs().max() <= 26.0
    assert change.mean((1, 2)).std() > 5.0
    contrast = ColorJitter(spaces(image(shape)), brightness=0.0, contrast=0.2)
    changed = pictures(sampled(contrast, shape)["observation"], shape).float()
    ratio = changed.std((1, 2)) / plain.std()
    assert torch.allclose(changed.mean((1, 2)), plain.mean().expand(200), atol=0.5)
    assert 0.79 < ratio.min() < 0.9
    assert 1.1 < ratio.max() < 1.21


@pytest.mark.parametrize("kind", KINDS)
def test_windows_change_alike(kind):
    shape, (cls, options) = SHAPES["gray"], KINDS[kind]
    batch = sampled(cls(spaces(image(shape)), **options), shape, count=50, length=3)
    observation, following = batch["observation"], batch["next_observation"]
    assert (observation == observation[:, :1]).all() == (kind != "noise")
    assert not (observation == observation[:1]).all()
    assert not (observation == following).all()


@pytest.mark.parametrize("n_step", [1, 3])
def test_recurrent_paths_change_alike(n_step):
    """The observation behind a window belongs to its path, too."""
    shape, (cls, options) = SHAPES["gray"], KINDS["shift"]
    past = Past(SimpleNamespace(state_size=1), length=4, burn_in=1, n_step=n_step)
    adaptors = [past, NStep(steps=n_step, discount=0.9), cls(spaces(image(shape)), **options)]
    table = Table(length=20, spaces=spaces(image(shape)), adaptors=adaptors)
    row = {"observation": gradient(shape)[None], "action": [0], "reward": [0.0], "state": [[0.0]]}
    add_steps(table, 9, lambda step: row)
    batch = table.sample(50)
    path = batch["observation"]["observation"]
    assert path.shape == (50, 4 + n_step, *shape)
    assert (path == path[:, :1]).all()
    assert not (path == path[:1]).all()
    assert torch.equal(batch["next_observation"]["observation"], path)


@pytest.mark.parametrize("kind", KINDS)
def test_resume_repeats_the_changes(kind):
    shape, (cls, options) = SHAPES["stacked frames"], KINDS[kind]
    table = Table(length=20, spaces=spaces(image(shape)), adaptors=[cls(spaces(image(shape)), **options)])
    add_steps(table, 9, lambda step: {"observation": gradient(shape)[None], "action": [0], "reward": [0.0]})
    table.sample(8)
    state, generator = table.state_dict(), table.adaptors[0].state_dict()
    expected = table.sample(8)
    table.sample(8)
    table.load_state_dict(state)
    table.adaptors[0].load_state_dict(generator)
    again = table.sample(8)
    assert all(torch.equal(expected[name], again[name]) for name in ("observation", "next_observation"))


def test_only_chosen_leaves_change():
    space = Composite({"left": image((SIDE, SIDE)), "right": image((SIDE, SIDE)), "goal": Box((2,), [0, 0], [1, 1])})
    picture, goal = gradient((SIDE, SIDE))[None], np.float32([[0.5, 0.5]])
    table = Table(length=20, spaces=spaces(space), adaptors=[CutOut(spaces(space), leaves=["right"])])
    row = {"observation": {"left": picture, "right": picture, "goal": goal}, "action": [0], "reward": [0.0]}
    add_steps(table, 9, lambda step: row)
    observation = table.sample(20)["observation"]
    assert (observation["left"].numpy() == picture).all()
    assert (observation["goal"].numpy() == goal).all()
    assert not (observation["right"].numpy() == picture).all((1, 2)).any()
    assert list(table.metrics["augmentation/CutOut"].pixels.shape) == [SIDE, 2 * SIDE, 1]


SHIFT = {"shift": partial(RandomShift, pixels=3)}


def views_of(*adaptors: Any, length: int = 1, count: int = 50) -> Mapping[str, Any]:
    shape = SHAPES["gray"]
    table = Table(length=20, spaces=spaces(image(shape)), adaptors=list(adaptors))
    add_steps(table, 9, lambda step: {"observation": gradient(shape)[None], "action": [0], "reward": [0.0]})
    return table.sample(count, length)


@pytest.mark.parametrize("augment_anchor", [True, False])
def test_views_differ_from_the_observation(augment_anchor):
    gray = spaces(image(SHAPES["gray"]))
    batch = views_of(
        RandomShift(gray, pixels=3, seed=5), Views(gray, changes=SHIFT, augment_anchor=augment_anchor, seed=5)
    )
    plain = torch.from_numpy(gradient((SIDE, SIDE)))
    same = {name: (batch[name] == plain).all((1, 2)).float().mean() for name in ("anchor", "positive", "observation")}
    assert same["positive"] < 0.2  # 1 in 49 shifts is none
    assert same["observation"] < 0.2
    assert same["anchor"] < 0.2 if augment_anchor else same["anchor"] == 1.0
    for first, second in (("anchor", "positive"), ("observation", "anchor")):
        assert (batch[first] == batch[second]).all((1, 2)).float().mean() < 0.2  # each has draws of its own


def test_changes_of_a_kind_draw_apart():
    changes = Views(spaces(image(SHAPES["gray"])), changes={"first": SHIFT["shift"], "second": SHIFT["shift"]}).changes
    images = torch.from_numpy(gradient(SHAPES["gray"]))[None].repeat(50, 1, 1)
    first, second = (change.apply(images, False) for change in changes.values())
    assert (first == second).all((1, 2)).float().mean() < 0.2


def test_views_pass_later_changes():
    gray = spaces(image(SHAPES["gray"]))
    batch = views_of(ImageScale(), Views(gray, changes=SHIFT), Later(gray, steps=2, changes=SHIFT))
    for name in ("observation", "anchor", "positive", "origin", "later"):
        assert batch[name].dtype == torch.float32
        assert -0.3 < batch[name].min() < -0.2  # 100 of 255


@pytest.mark.parametrize("name", ["anchor", "positive"])
def test_views_of_windows_change_alike(name):
    view = views_of(Views(spaces(image(SHAPES["gray"])), changes=SHIFT), length=3)[name]
    assert view.shape == (50, 3, SIDE, SIDE)
    assert (view == view[:, :1]).all()
    assert not (view == view[:1]).all()


@pytest.mark.parametrize("kind", [Views, Later])
def test_views_resume_their_draws(kind):
    gray = spaces(image(SHAPES["gray"]))
    views = kind(gray, changes={**SHIFT, "cut": CutOut, "none": None})
    table = Table(length=20, spaces=gray, adaptors=[views])
    add_steps(table, 9, lambda step: {"observation": gradient(SHAPES["gray"])[None], "action": [0], "reward": [0.0]})
    table.sample(8)
    state, drawn = table.state_dict(), views.state_dict()
    expected = table.sample(8)
    assert {*table.metrics} >= {"augmentation/view_shift", "augmentation/view_cut"}
    table.load_state_dict(state)
    views.load_state_dict(drawn)
    again = table.sample(8)
    assert all(torch.equal(expected[name], again[name]) for name in kind.provides)


def test_held_out_views_are_plain():
    gray, plain = spaces(image(SHAPES["gray"])), torch.from_numpy(gradient(SHAPES["gray"]))[None]
    views = Views(gray, changes=SHIFT)
    state = views.state_dict()
    batch = views.evaluate({"observation": plain}, None)
    assert torch.equal(batch["anchor"], plain)
    assert torch.equal(batch["positive"], plain)
    assert views.state_dict() == state


def test_held_out_later_steps_are_plain():
    gray, plain = spaces(image(SHAPES["gray"])), torch.from_numpy(gradient((SIDE, SIDE)))
    later = Later(gray, steps=2, changes=SHIFT)
    table = Table(length=20, spaces=gray, adaptors=[later])
    add_steps(table, 9, lambda step: {"observation": gradient(SHAPES["gray"])[None], "action": [0], "reward": [0.0]})
    state = later.state_dict()
    batch = table.look_up(table.sampler.pick(50, 1), evaluation=True)
    assert (batch["origin"] == plain).all()
    assert (batch["later"] == plain).all()
    assert later.state_dict() == state


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_later_steps_stop_at_the_end(end):
    space = spaces(Box((1,), np.zeros(1), np.full(1, 99)))
    table = Table(length=20, spaces=space, adaptors=[Later(space, steps=3, changes={})])
    for first in (10, 20):  # two episodes, of four steps each
        row = lambda step, first=first: {"observation": [[first + step]], "action": [step % 2], "reward": [0.0]}  # noqa: E731
        add_steps(table, 4, row, end=end, last=np.float32([[first + 4]]))
    batch = table.sample(60)
    rows = zip(
        *(batch[name].reshape(60, -1) for name in ("origin", "later", "later_action", "later_valid")), strict=True
    )
    for (origin,), later, action, valid in rows:
        step, count = int(origin) % 10, int(valid.sum())
        assert valid.tolist() == [step + ahead < 4 for ahead in range(3)]
        assert later[:count].tolist() == [float(origin) + ahead + 1 for ahead in range(count)]
        assert action[:count].tolist() == [(step + ahead) % 2 for ahead in range(count)]


def test_later_steps_of_windows():
    gray = spaces(image(SHAPES["gray"]))
    batch = views_of(Later(gray, steps=2, changes=SHIFT), length=3, count=10)
    assert batch["later"].shape == (10, 3, 2, SIDE, SIDE)
    assert batch["later_action"].shape == batch["later_valid"].shape == (10, 3, 2)


def test_later_steps_change_apart():
    batch = views_of(Later(spaces(image(SHAPES["gray"])), steps=2, changes=SHIFT), length=3)
    origin, later, plain = batch["origin"], batch["later"].flatten(1, 2), torch.from_numpy(gradient((SIDE, SIDE)))
    assert (origin == origin[:, :1]).all()  # a window is changed alike
    for views, others in ((origin[:, 0], plain), (later[:, 0], later[:, 1]), (later[:, 0], origin[:, 0])):
        assert (views == others).all((1, 2)).float().mean() < 0.2


REFUSED: dict[str, tuple[Any, dict[str, Any], type[RlrunError], str]] = {
    "no image": (RandomShift, {"spaces": spaces(Box((4,), np.zeros(4), np.ones(4)))}, SpaceError, "wants images"),
    "unknown leaf": (RandomShift, {"leaves": ["camera"]}, ConfigError, "'camera' is no image"),
    "leaf of an image": (RandomShift, {"leaves": ["camera"]}, ConfigError, "it is an image itself; leaves=null takes"),
    "no leaf": (RandomShift, {"leaves": []}, ConfigError, r"wanted paths of images, or null for all of them; got \[\]"),
    "negative shift": (RandomShift, {"pixels": -1}, ConfigError, "pixels"),
    "crop of nothing": (RandomCrop, {"least": 0.0}, ConfigError, "least"),
    "bounds in disorder": (CutOut, {"least": 0.5, "largest": 0.2}, ConfigError, "in order"),
    "color": (CutOut, {"color": 256}, ConfigError, "color"),
    "chance": (PixelNoise, {"chance": 1.5}, ConfigError, "chance"),
    "deviation that is no number": (PixelNoise, {"deviation": float("nan")}, ConfigError, "deviation"),
    "jitter": (ColorJitter, {"contrast": 2.0}, ConfigError, "contrast"),
    "views without a change": (Views, {"changes": {"shift": None}}, ConfigError, "both views are the same"),
    "no recipe": (Views, {"changes": {"cut": True}}, ConfigError, "changes.cut: wanted a recipe of a change, got True"),
    "no change of images": (Views, {"changes": {"cut": Later}}, ConfigError, "cut: .*argument: 'changes'"),
    "views as a change": (Views, {"changes": {"cut": partial(Later, changes={})}}, ConfigError, "cut: a Later is no"),
    "no later step": (Later, {"changes": SHIFT, "steps": 0}, ConfigError, "^steps must be at least 1"),
}


@pytest.mark.parametrize(("cls", "options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses_settings(cls, options, error, message):
    with pytest.raises(error, match=message):
        cls(**{"spaces": spaces(image((SIDE, SIDE))), **options})


def test_later_steps_want_a_table():
    with pytest.raises(RlrunError, match="Later looks ahead in a table"):
        Later(spaces(image((SIDE, SIDE))), changes={})({"observation": torch.zeros(2, SIDE, SIDE)}, None)


def test_refuses_scaled_pixels():
    with pytest.raises(RlrunError, match="comes before image_scale"):
        RandomShift(spaces(image((SIDE, SIDE))))({"observation": torch.zeros(2, SIDE, SIDE)}, None)
