"""The networks of MuZero: latents, what they predict, and how gradients pass them."""

import functools

import numpy as np
import pytest
import torch
from tests.nn.spaces_for_tests import MIXED, box, draw, image, multi

from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import ACTION_MASK, Box, Composite, Discrete, Spaces
from rlrun.nn import MuZeroNetwork, Numbers, Ordered, Quantiles, TwoHot
from rlrun.nn.muzero import distance_of, mean_of, scaled

SPACES = Spaces(box(3), Discrete(4))
HEADS = {"squares": Numbers, "two_hot": TwoHot, "ordered": Ordered, "quantiles": Quantiles}


def network(spaces=SPACES, **options):
    torch.manual_seed(0)
    sizes = {"latent": 6, "hidden": [8], "dynamics": [8], "prediction": [8]}
    return MuZeroNetwork(spaces, **{**sizes, **options})


def test_latents_lie_between_0_and_1_row_by_row():
    assert scaled(torch.tensor([[2.0, 4.0, 3.0], [5.0, 5.0, 5.0]])).tolist() == [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]
    latent = network().unroll(torch.randn(5, 3), torch.randint(0, 4, (5, 2)))
    assert latent.shape == (5, 3, 6)
    assert latent.amin(-1).eq(0.0).all()
    assert latent.amax(-1).eq(1.0).all()


def test_an_unroll_is_step_by_step():
    net, observation, action = network(), torch.randn(5, 3), torch.randint(0, 4, (5, 2))
    latent = net.represent(observation)
    first = net.step(latent, torch.nn.functional.one_hot(action[:, 0], 4).float())
    second = net.step(first, torch.nn.functional.one_hot(action[:, 1], 4).float())
    torch.testing.assert_close(net.unroll(observation, action), torch.stack((latent, first, second), 1))


def test_gradients_are_scaled_at_each_step():
    sizes = {}
    for factor in (1.0, 0.5):
        net = network()
        latent = net.unroll(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.int64), factor)
        (latent[:, 3] * torch.arange(6.0)).sum().backward()
        sizes[factor] = next(net.representation.parameters()).grad.norm()
    assert float(sizes[0.5] / sizes[1.0]) == pytest.approx(0.5**3, rel=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_predictions_begin_without_a_preference(name):
    net = network(value_head=HEADS[name](), reward_head=HEADS[name](), end_bias=-3.0)
    predicted = net.decoded(torch.rand(5, 2, 6))
    for number in (predicted.value, predicted.reward, predicted.policy.flatten(-2)[:, :2]):
        torch.testing.assert_close(number, torch.zeros(5, 2), rtol=0.0, atol=1e-4)
    assert predicted.ended.eq(-3.0).all()
    target = torch.randn(5, 2)
    loss = distance_of(net.value_head, net.predict(torch.rand(5, 2, 6)).value, target)
    assert loss.shape == (5, 2)
    assert loss.min() >= 0.0


def test_value_heads_see_rows_of_any_shape_alike():
    head, outputs, target = Quantiles(4), torch.randn(3, 2, 4), torch.randn(3, 2)
    by_row = [head.distance(outputs[None, :, k], target[:, k], huber=None)[0] for k in range(2)]
    torch.testing.assert_close(distance_of(head, outputs, target), torch.stack(by_row, 1))
    torch.testing.assert_close(mean_of(Numbers(), outputs[..., :1]), outputs[..., 0])


def test_parts_may_be_left_out():
    predicted = network(rewards=False, ends=False).predict(torch.rand(5, 6))
    assert predicted.reward is None
    assert predicted.ended is None
    with pytest.raises(ConfigError, match="projection: cosines are of projected latents"):
        network().similarity(torch.rand(2, 6), torch.rand(2, 6))


def test_networks_of_ones_own_take_the_place_of_layers():
    linear = functools.partial(torch.nn.Linear, bias=False)

    def made(inputs, outputs):
        return linear(inputs, outputs)

    own = {"representation": linear(3, 6), "dynamics": made, "prediction": made}
    net = network(**own, projection=lambda inputs: linear(inputs, 3))
    latent = net.unroll(torch.randn(5, 3), torch.randint(0, 4, (5, 2)))
    assert net.predict(latent).policy.shape == (5, 3, 4)
    assert net.similarity(latent, latent).shape == (5, 3)
    assert isinstance(net.dynamics, torch.nn.Linear)
    with pytest.raises(ConfigError, match="dynamics: it makes 7 numbers of 10, wanted 6"):
        network(dynamics=lambda inputs: linear(inputs, 7))
    with pytest.raises(ConfigError, match="value_head: wanted a value head, such as"):
        network(value_head=3)


def test_latents_of_observations_are_not_moved_by_the_cosine():
    net = network(projection=4)
    latent, seen = torch.rand(5, 6, requires_grad=True), torch.rand(5, 6, requires_grad=True)
    cosine = net.similarity(latent, seen)
    cosine.sum().backward()
    assert cosine.shape == (5,)
    assert seen.grad is None
    assert latent.grad.ne(0.0).any()


def test_its_policy_alone_acts_within_an_action_mask():
    flags = Box((4,), np.zeros(4), np.ones(4), "int8")
    net = network(Spaces(Composite({ACTION_MASK: flags, "seen": box(3)}), Discrete(4)))
    mask = torch.eye(4, dtype=torch.int8)
    observation = {ACTION_MASK: mask, "seen": torch.randn(4, 3)}
    for explore in (True, False):
        assert net.act(observation, explore).tolist() == [0, 1, 2, 3]


def test_images_and_several_choices_are_read():
    net = network(Spaces(image(36, 36, 3), multi(2, 3)))
    action = torch.tensor([[1, 2]])
    assert net.codec.coded(action).tolist() == [[0, 0, 0, 0, 0, 1]]
    assert net.represent(torch.zeros(1, 36, 36, 3, dtype=torch.uint8)).shape == (1, 6)


@pytest.mark.parametrize("widths", [None, -1, 64, "abc", [1, "x"], [0], [True]])
@pytest.mark.parametrize("name", ["dynamics", "prediction"])
def test_wrong_widths_are_refused(name, widths):
    with pytest.raises(ConfigError, match=f"^{name}: wanted a list of whole numbers from 1, got"):
        MuZeroNetwork(SPACES, **{name: widths})


@pytest.mark.parametrize("spread", ["observation", "free"])
def test_policies_over_numbers_and_choices_begin_wide_and_even(spread):
    net = network(Spaces(box(3), MIXED), spread=spread, log_std=-0.5, joint_limit=1)
    assert net.codec.coded(draw(MIXED, 5, 2)).shape == (5, 2, 6 + 3 + 6)
    heads = net.head(net.predict(torch.rand(5, 6)).policy)
    assert heads.mean.eq(0.0).all()
    assert heads.log_std.shape == (5, 6)
    assert heads.log_std.eq(-0.5).all()
    torch.testing.assert_close(heads.choices.exp()[:, :3], torch.full((5, 3), 1 / 3))
    assert ("head.log_std" in dict(net.named_parameters())) == (spread == "free")
    action = {name: part.detach() for name, part in net.act(torch.randn(50, 3), True).items() if name != "parts"}
    assert {*action["mode"].tolist()} == {0, 1, 2}
    assert float(action["move"].atanh().std()) == pytest.approx(0.6, abs=0.15)
    assert net.act(torch.randn(4, 3), False)["move"].eq(0.0).all()


def test_numbers_without_bounds_are_refused():
    with pytest.raises(SpaceError, match="MuZeroNetwork needs bounded actions"):
        network(Spaces(box(3), box(1, high=np.inf)))
