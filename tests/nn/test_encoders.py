import pytest
import torch

from rlrun.core.spaces import Composite, Discrete, Spaces
from rlrun.env import make
from rlrun.nn import Encoder, ImageEncoder, flatten

from .spaces_for_tests import OBSERVATIONS, VECTOR, draw, image, multi


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
