"""Latents of MuZero as maps: their shapes, how actions are planes, and that convolutions see neighbors."""

import pytest
import torch
from tests.nn.spaces_for_tests import box, image

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Composite, Discrete, Spaces
from rlrun.nn import MuZeroMaps
from rlrun.nn.muzero_maps import MapDynamics


def network(observation, choices=4, **options):
    torch.manual_seed(0)
    sizes = {"latent": 3, "hidden": [4], "dynamics": [4], "prediction": [8], "planes": 2}
    return MuZeroMaps(Spaces(observation, Discrete(choices)), **{**sizes, **options})


@pytest.mark.parametrize(
    ("shape", "options", "cells"),
    [((2, 6, 7), {}, (6, 7)), ((6, 7, 2), {}, (6, 7)), ((19, 19, 17), {}, (19, 19)), ((2, 6, 7), {"side": 4}, (3, 4))],
)
def test_a_latent_has_planes_over_the_cells(shape, options, cells):
    net = network(box(*shape), **options)
    assert net.representation.encoder.module.sides == cells
    latent = net.unroll(torch.randn(5, *shape), torch.randint(0, 4, (5, 2)))
    assert latent.shape == (5, 3, 3 * cells[0] * cells[1])
    assert latent.amin(-1).eq(0.0).all()
    assert latent.amax(-1).eq(1.0).all()
    predicted = net.decoded(latent)
    assert predicted.policy.shape == (5, 3, 4)
    torch.testing.assert_close(predicted.value, torch.zeros(5, 3), rtol=0.0, atol=1e-4)  # no preference at first


def test_channels_last_is_the_same_board():
    board = torch.randn(5, 2, 6, 7)
    first, last = (
        network(box(*shape)).represent(x) for shape, x in ((board[0].shape, board), ((6, 7, 2), board.movedim(1, -1)))
    )
    torch.testing.assert_close(first, last)


def test_images_are_halved():
    space = image(4, 42, 42)
    net = network(space, side=4)
    assert max(net.representation.encoder.module.sides) <= 4


def test_a_choice_marks_its_cell_and_a_pass_all_of_them():
    dynamics = MapDynamics(2 * 9 + 10, 2 * 9, shape=(2, 3, 3), blocks=[], activation="relu")
    conv = dynamics.layers[-1]
    with torch.no_grad():
        conv.weight.zero_(), conv.bias.zero_()
        conv.weight[0, 2, 1, 1] = 1.0  # the plane of cells
        conv.weight[1, 3, 1, 1] = 1.0  # that of the pass
    moves = torch.eye(10)
    planes = dynamics(torch.cat((torch.zeros(10, 18), moves), 1)).reshape(10, 2, 9)
    torch.testing.assert_close(planes[:, 0], moves[:, :9])
    torch.testing.assert_close(planes[:, 1], moves[:, 9:].expand(-1, 9))


def test_other_observations_are_refused():
    for space in (box(4), Composite({"a": box(2, 3, 3), "b": box(2)})):
        with pytest.raises(ConfigError, match=r"networks\.muzero: latents as maps are of one image or board"):
            network(space)
