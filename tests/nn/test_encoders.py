from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces as theirs
from torch import nn

from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Composite, Discrete, Spaces
from rlrun.core.spaces import leaves as spaces_of_leaves
from rlrun.env import make
from rlrun.env.spaces import from_gymnasium
from rlrun.nn import ActorCritic, Convolutions, Critics, Encoder, ImageEncoder, ResNet, SquashedGaussian, Value, flatten

from .spaces_for_tests import OBSERVATIONS, VECTOR, box, draw, image, multi

PIXELS = image(4, 42, 42)
MIXED_ACTION = Composite({"push": box(1), "gear": Discrete(2)})
MASKED = Composite({"camera": image(42, 42), "speed": VECTOR, "action_mask": box(2)})
FILTERS = {"channels": [8, 8], "kernels": [5, 3], "strides": [2, 1]}


@pytest.mark.parametrize("lead", [(4,), (4, 2), ()], ids=str)
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_every_space_is_encoded(kind, lead):
    space, size = OBSERVATIONS[kind]
    encoder = Encoder(space)
    encoded = encoder(draw(space, *lead))
    assert encoder.size == size
    assert encoded.shape == (*lead, size)
    assert encoded.dtype == torch.float32


def test_plain_vector_is_passed_through():
    observation = draw(VECTOR, 4)
    assert Encoder(Spaces(VECTOR, Discrete(2)))(observation) is observation


TREE = Composite({"a": VECTOR, "b": Composite({"0": Discrete(4), "1": box(2)}), "c": image(10, 10, 4)})


@pytest.mark.parametrize(
    ("leaves", "paths"), [(["b", "a"], "a b.0 b.1"), (["b.1"], "b.1"), (["c"], "c"), (["b.0", "b.1", "b.0"], "b.0 b.1")]
)
def test_networks_see_chosen_leaves_only(leaves, paths):
    seen, tree = paths.split(), draw(TREE, 4)
    parts = {"a": tree["a"], "b.0": tree["b"]["0"], "b.1": tree["b"]["1"], "c": tree["c"]}
    spaces = {path: leaf for path, leaf in spaces_of_leaves(TREE) if path in seen}
    encoder = Encoder(TREE, leaves=leaves)
    alone = Encoder(Composite({path.replace(".", "/"): leaf for path, leaf in spaces.items()}))
    alone.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(encoder(tree), alone({path.replace(".", "/"): parts[path] for path in seen}))
    assert encoder.size == sum(128 if path == "c" else leaf.size for path, leaf in spaces.items())


@pytest.mark.parametrize(
    ("space", "leaves", "message"),
    [
        (TREE, ["b.2"], r"encoder.leaves: wanted parts of observations, got \['b.2'\] .did you mean 'b.[01]'"),
        (TREE, [], r"got \[\]; there are a, b.0, b.1, c"),
        (VECTOR, ["a"], r"Box\[3\] float32 has none"),
        (MASKED, ["action_mask"], "there are camera, speed"),
    ],
)
def test_leaves_that_are_not_there_are_refused(space, leaves, message):
    with pytest.raises(SpaceError, match=message):
        Encoder(space, leaves=leaves)


CHOSEN = "{_target_: rlrun.nn.Encoder, _partial_: true, leaves: [observation]}"


@pytest.mark.parametrize(
    ("overrides", "blind"),
    [
        (["algorithm=sac", "+encoder.leaves=[observation]"], "policy critics"),
        (["algorithm=sac", f"networks.policy.encoder={CHOSEN}"], "policy"),
        (["algorithm=sac", f"networks.critics.encoder={CHOSEN}"], "critics"),
        (["algorithm=sac", "algorithm.recurrent=gru", "+encoder.leaves=[observation]"], "policy critics"),
        (["algorithm=sac", "algorithm.recurrent=null", "encoder=recurrent", "+encoder.leaves=[observation]"], "policy"),
        (["algorithm=ppo", "+encoder.leaves=[observation]"], "actor_critic"),
        (["algorithm=ppo", "algorithm.recurrent=gru", "+encoder.leaves=[observation]"], "actor_critic"),
        (["algorithm=td3", "+encoder.leaves=[observation]"], "policy critics"),
        (["algorithm=mdq", "+encoder.leaves=[observation]"], "policy critics"),
        (["algorithm=taac", "+encoder.leaves=[observation]"], "policy critics"),
        (["algorithm=iql", "+encoder.leaves=[observation]"], "policy critics value"),
        (["algorithm=sac", "+with=representation", f"+networks.representation.encoder={CHOSEN}"], "representation"),
        (["algorithm=ppo", "+with=icm", f"+networks.icm.encoder={CHOSEN}"], "icm"),
    ],
)
def test_every_network_takes_leaves(overrides, blind):
    config = compose([*overrides, "env=pointreach", "preset=null", "device=cpu"]).config
    builder = Builder(config)
    builder.get("agent")
    for name in blind.split():
        encoders = [part for part in builder.get(f"networks.{name}").modules() if isinstance(part, Encoder)]
        own = [encoder for encoder in encoders if "trajectory" not in encoder.space.parts]  # TAAC's reads features
        assert {encoder.size for encoder in own} == {2}
    if blind == "policy" and "recurrent" not in " ".join(overrides):
        assert builder.get("networks.critics").encoded == 6


def test_choices_become_one_hot():
    assert flatten(Discrete(3, start=2), torch.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert flatten(multi(2, 3, start=1), torch.tensor([[1, 0]])).tolist() == [[0, 1, 1, 0, 0]]


def test_observations_count_from_zero_once():
    env = make(target="rlrun.env.toys.DiscreteStart", num_envs=8)
    encoded = Encoder(env.spaces)(torch.from_numpy(env.reset(0)))
    observations = [single_env.unwrapped.observation for single_env in env.envs]  # -1, 0, 1 or 2
    assert encoded.argmax(-1).tolist() == [number + 1 for number in observations]
    assert encoded.sum(-1).tolist() == [1.0] * 8


def test_flat_parts_keep_the_leaves_order():
    space = Composite({"b": Discrete(2), "a": VECTOR})
    tree = {"a": torch.tensor([[3.0, 4.0, 5.0]]), "b": torch.tensor([1])}
    assert flatten(space, tree).tolist() == [[0, 1, 3, 4, 5]]


def test_pixels_are_scaled_to_one():
    assert flatten(image(2), torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("shape", [(12, 10, 3), (3, 12, 10), (12, 10)], ids=str)
def test_layout_of_pixels_is_guessed(shape):
    encoder = ImageEncoder(image(*shape))
    pixels = draw(image(*shape), 2)
    channels = 1 if len(shape) == 2 else 3
    assert encoder.convolutions[0].in_channels == channels
    assert encoder._picture(pixels).shape == (2, channels, 12, 10)


def test_leading_dimensions_do_not_matter():
    encoder = Encoder(image(10, 10, 4))
    pixels = draw(image(10, 10, 4), 3, 2)
    torch.testing.assert_close(encoder(pixels)[1], encoder(pixels[1]))


def test_gradients_reach_the_convolutions():
    encoder = Encoder(OBSERVATIONS["camera and speed"][0])
    encoder(draw(encoder.space, 4)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def named(name):
    """Return the recipe of conf/encoder/NAME.yaml."""
    return Builder(compose(["algorithm=dqn", "env=cartpole", f"encoder={name}"]).config).get("encoder")


@pytest.mark.parametrize(
    ("name", "space", "parameters", "size"),
    [  # 42 pixels: nature leaves 1 x 1, small 21 x 21, impala 6 x 6
        ("nature", PIXELS, 8224 + 32832 + 36928 + 65 * 512, 512),
        ("small", PIXELS, 1184 + 18496 + (64 * 441 + 1) * 128, 128),
        ("impala", PIXELS, 592 + 4 * 2320 + 4640 + 4 * 9248 + 9248 + 4 * 9248 + (32 * 36 + 1) * 256, 256),
        ("signals", box(60, 3), (3 * 8 + 1) * 32 + (32 * 4 + 1) * 32 + (32 * 6 + 1) * 128, 128),
    ],
)
def test_named_encoders(name, space, parameters, size):
    encoder = named(name)(space)
    assert (sum(map(torch.numel, encoder.parameters())), encoder.size) == (parameters, size)
    assert encoder(draw(space, 3, 2)).shape == (3, 2, size)
    encoder(draw(space, 2)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def test_settings_of_convolutions():
    channels_first, channels_last = (
        ImageEncoder(box(*shape), recipe=partial(Convolutions, dimensions=1, **FILTERS)) for shape in ((3, 20), (20, 3))
    )
    assert [layers.convolutions[0].in_channels for layers in (channels_first, channels_last)] == [3, 3]
    assert channels_first.convolutions(torch.zeros(1, 3, 20)).shape == (1, 8, 6)
    bare = Encoder(image(9, 12), images=partial(Convolutions, padding=[[1, 0], 2], **FILTERS), features=None)
    assert bare.size == 8 * 6 * 6  # (9 + 2 - 5) / 2 + 1 = 4, (12 - 5) / 2 + 1 = 4; + 4 - 3 + 1


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_residual_block_adds_its_input(activation):
    block = ResNet(2, channels=[4], blocks=1, activation=activation)[2]
    maps = torch.randn(1, 4, 3, 3)
    for layer in block.layers[1::2]:
        nn.init.dirac_(layer.weight)
        nn.init.zeros_(layer.bias)
    act = torch.relu if activation == "relu" else torch.tanh
    torch.testing.assert_close(block(maps), maps + act(act(maps)))


class Own(nn.Module):
    """Features of a camera and a speed, as somebody writes them who knows of no windows and masks."""

    def __init__(self):
        super().__init__()
        self.camera, self.speed = nn.Conv2d(1, 2, 7, 7), nn.Linear(3, 5)

    def forward(self, observation):
        assert set(observation) == {"camera", "speed"}
        assert observation["camera"].dim() == 3
        pixels = self.camera(observation["camera"].unsqueeze(1) / 255.0)
        return torch.cat((pixels.flatten(1), self.speed(observation["speed"])), -1)


MADE = {
    "critics": lambda **own: Critics(Spaces(MASKED, Discrete(2)), hidden=(4,), **own),
    "value": lambda **own: Value(Spaces(MASKED, Discrete(2)), **own),
    "gaussian": lambda **own: SquashedGaussian(Spaces(MASKED, MIXED_ACTION), hidden=(4,), **own),
    "recurrent": lambda **own: ActorCritic(Spaces(MASKED, Discrete(2)), core="gru", **own),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_module_of_ones_own_reads_rows_without_masks(kind):
    torch.manual_seed(0)
    network = MADE[kind](encoder=Own)
    part = getattr(network, "trunk", network)
    windows = draw(MASKED, 3, 2)
    assert part.encode(windows).shape == (3, 2, 2 * 36 + 5)
    step = {name: value[1, 1:2] for name, value in windows.items()}
    torch.testing.assert_close(part.encode(windows)[1, 1:2], part.encode(step))
    output = network.evaluate_actions(windows, torch.zeros(3, 2).long()).value if kind == "recurrent" else network(step)
    (output if isinstance(output, torch.Tensor) else output[0]).sum().backward()
    own = [p for name, p in network.named_parameters() if "encoder.camera" in name]
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in own)


def test_recipes_and_modules():
    spaces = Spaces(VECTOR, box(1))
    recipe = partial(nn.LazyLinear, 6)
    first, second = (SquashedGaussian(spaces, encoder=recipe).encoder for _ in range(2))
    assert first is not second
    assert first.in_features == 3
    assert SquashedGaussian(spaces, encoder=first).encoder is first
    assert set(SquashedGaussian(spaces, hidden=(), encoder=first).state_dict()) == {
        "encoder.weight",
        "encoder.bias",
        "layers.0.weight",
        "layers.0.bias",
    }
    alone = Critics(Spaces(Composite({"observation": VECTOR, "action_mask": box(2)}), Discrete(2)), encoder=recipe)
    assert alone.encoder.in_features == 3  # it gets the observation itself


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (VECTOR, {"images": ResNet}, "encoder.images: no part of the observation is an image"),
        (PIXELS, {"signals": ResNet}, "encoder.signals: no part of the observation is a signal"),
        (
            image(10, 10),
            {"images": partial(Convolutions, channels=[4], kernels=[20], strides=[1])},
            "encoder=auto fits",
        ),
        (PIXELS, {"images": partial(Convolutions, channels=[4], kernels=[3, 3], strides=[1])}, "got 1, 2, 1, 1"),
        (PIXELS, {"images": partial(Convolutions, dimensions=3, **FILTERS)}, "dimensions: wanted 2"),
        (VECTOR, {"features": 0}, "encoder.features must be at least 1, not 0"),
    ],
)
def test_layers_that_do_not_fit_are_refused(space, options, message):
    with pytest.raises(ConfigError, match=message):
        Encoder(space, **options)


class Wrong(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda rows: (rows, None), "makes a tuple of 2 rows"),
        (lambda rows: rows.long(), r"makes int64 \[2, 3\] of 2 rows, wanted floating numbers \[2, F\]"),
        (lambda rows: rows.sum(-1), r"makes float32 \[2\] of"),
        (lambda rows: rows.sum(0, keepdim=True), r"makes float32 \[1, 3\] of"),
        (lambda rows: rows.view(-1, 7), r"does not fit: shape '\[-1, 7\]'"),
        (lambda rows: rows.pixels, "does not fit: 'Tensor' object has no attribute 'pixels'"),
    ],
)
def test_outputs_that_are_no_features_are_refused(forward, message):
    with pytest.raises(ConfigError, match=rf"^encoder of Box\[3\] float32: Wrong {message}"):
        Critics(Spaces(VECTOR, Discrete(2)), encoder=Wrong(forward))


def test_an_encoder_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="encoder: wanted a module of torch or a recipe of one, got 'impala'"):
        Critics(Spaces(PIXELS, Discrete(2)), encoder="impala")
    with pytest.raises(ConfigError, match=r"encoder: Wrong.__init__\(\) missing 1 required"):
        Critics(Spaces(PIXELS, Discrete(2)), encoder=Wrong)
    with pytest.raises(ConfigError, match=r"encoder of Box\[3\] float32: Linear does not fit: mat1"):
        Critics(Spaces(VECTOR, Discrete(2)), encoder=nn.Linear(4, 4))
    parts = Spaces(Composite({"goal": VECTOR, "road": VECTOR}), Discrete(2))
    with pytest.raises(ConfigError, match=r"LazyLinear does not fit: it gets a dict of tensors, which encoder=auto"):
        Critics(parts, encoder=nn.LazyLinear(4))


def cells(dtype, low, high):
    """Return a space of eight cells, and 64 observations with one cell at its upper bound."""
    space = from_gymnasium(theirs.Box(low, high, (8,), np.dtype(dtype).type), "cells")
    lit = np.eye(8)[np.arange(64) % 8]
    return space, torch.from_numpy((low + lit * (float(high) - float(low))).astype(space.dtype))


CELLS = [("bool", 0, 1), ("uint8", 0, 1), ("int8", -1, 1), ("uint8", 0, 255), ("int64", 3, 1000), ("uint16", 0, 65535)]


@pytest.mark.parametrize(("dtype", "low", "high"), CELLS)
def test_the_same_task_in_other_numbers_is_the_same_to_an_encoder(dtype, low, high):
    wanted = Encoder(cells("float32", 0, 1)[0])(cells("float32", 0, 1)[1])
    space, observation = cells(dtype, low, high)
    assert torch.equal(Encoder(space)(observation), wanted)
    assert torch.equal(flatten(space, observation), wanted)
    nested = Composite({"inner": Composite({"0": space}), "action_mask": space})
    seen = {"inner": {"0": observation}, "action_mask": observation}
    assert torch.equal(Encoder(nested)(seen), wanted)


NUMBERS = [  # dtype, low, high, value, what networks read
    ("int32", -(2**31), 2**31 - 1, 7, 7.0),
    ("int32", 0, 2**31 - 1, 7, 7.0),
    ("int64", -(2**63), 2**63 - 1, -3, -3.0),
    ("uint64", 0, 2**64 - 1, 5, 5.0),
    ("int16", -(2**15), 2**15 - 1, 5, 5.0),
    ("int16", -100, 100, 50, 0.75),
    ("int8", -128, 127, -128, 0.0),
    ("int8", -2, 2, 1, 0.75),
    ("uint8", 4, 4, 4, 4.0),
    ("int64", 10**12, 10**12 + 4, 10**12 + 3, 0.75),
    ("float32", 0.0, 255.0, 51.0, 51.0),
    ("float64", -1.0, 1.0, 0.5, 0.5),
]


@pytest.mark.parametrize(("dtype", "low", "high", "value", "wanted"), NUMBERS)
def test_whole_numbers_are_scaled_by_useful_bounds(dtype, low, high, value, wanted):
    kind = np.dtype(dtype).type
    bounds = [np.full(2, bound, kind) for bound in (low, high)]
    space = from_gymnasium(theirs.Box(*bounds, dtype=kind), "numbers")
    observation = torch.from_numpy(np.full((3, 2), value, space.dtype))
    assert Encoder(space)(observation).tolist() == [[wanted] * 2] * 3


def test_each_number_has_its_own_bounds():
    low, high = np.array([0, -5, 0, -(2**31)], np.int32), np.array([10, 5, 1, 2**31 - 1], np.int32)
    space = from_gymnasium(theirs.Box(low, high, dtype=np.int32), "numbers")
    observation = torch.tensor([[5, 5, 1, 9], [10, -5, 0, -9]], dtype=torch.int32)
    assert Encoder(space)(observation).tolist() == [[0.5, 1.0, 1.0, 9.0], [1.0, 0.0, 0.0, -9.0]]
    assert Encoder(space)(observation.float() / 2).tolist() == [[2.5, 2.5, 0.5, 4.5], [5.0, -2.5, 0.0, -4.5]]  # adapted


@pytest.mark.parametrize(("dtype", "low", "high"), [("bool", 0, 1), ("uint8", 0, 1), ("int8", -1, 1)])
def test_the_same_board_in_other_numbers_is_the_same_image(dtype, low, high):
    board = (torch.rand(2, 10, 10, 4) > 0.5).float()
    encoders, images = [], []
    for kind, least, most in (("float32", 0, 1), (dtype, low, high)):
        torch.manual_seed(0)
        space = from_gymnasium(theirs.Box(least, most, (10, 10, 4), np.dtype(kind).type), "board")
        encoders.append(Encoder(space))
        images.append((least + board * (most - least)).to(getattr(torch, space.dtype)))
    assert encoders[0].images[0].convolutions[0].in_channels == 4
    assert torch.equal(encoders[0](images[0]), encoders[1](images[1]))
