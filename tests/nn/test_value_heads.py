"""How outputs of a network encode large returns: by two whole numbers, or by all that a return is above."""

import pytest
import torch
from tests.nn.spaces_for_tests import multi

from rlrun import ops
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Discrete
from rlrun.nn import ActionCodec, Ordered, TwoHot

RETURNS = torch.linspace(-2_000.0, 2_000.0, 1_000)
HEADS = {
    "two_hot": TwoHot(101),
    "exact": TwoHot(101, exact=True),
    "plain": TwoHot(5_001, shrink=None),
    "ordered": Ordered(100),
}


def exact_outputs(head, target):
    """Return outputs that say exactly what a target is."""
    if isinstance(head, TwoHot):
        return head.shares(target).log().clamp(min=-200.0)
    place = ops.shrunk(target, head.shrink).unsqueeze(-1) - head.least
    return (place - torch.arange(head.size)).clamp(0.0, 1.0).double().logit().clamp(-30.0, 30.0).float()


def test_shrunk_returns_are_known():
    known = {0.0: 0.0, 1.0: 0.41521, 5.0: 1.45449, -3.0: -1.003, 100.0: 9.14988}
    assert ops.shrunk(torch.tensor([*known])).tolist() == pytest.approx([*known.values()], abs=1e-5)
    torch.testing.assert_close(ops.grown(ops.shrunk(RETURNS)), RETURNS, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_what_is_encoded_is_decoded_and_costs_nothing(name):
    head = HEADS[name]
    outputs = exact_outputs(head, RETURNS)
    torch.testing.assert_close(head.mean(outputs), RETURNS, rtol=1e-4, atol=1e-2)
    distance = head.distance(outputs.unsqueeze(0), RETURNS, huber=None)
    assert distance.shape == (1, 1_000)
    assert distance.abs().max() < 1e-4
    wrong = head.distance(outputs.flip(0).unsqueeze(0), RETURNS, huber=None)
    assert wrong.min() > 0.1


@pytest.mark.parametrize("name", HEADS)
def test_learned_outputs_say_the_mean_of_targets(name):
    head, target = HEADS[name], torch.tensor([4.0, 9.0])
    if head.size > 200:
        return
    outputs = head.first_outputs().repeat(1, 2, 1).requires_grad_()
    optimizer = torch.optim.Adam([outputs], lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        head.distance(outputs, target, huber=None).sum().backward()
        optimizer.step()
    torch.testing.assert_close(head.mean(outputs[0].detach()), target, rtol=0.0, atol=0.05)


def test_shares_of_two_numbers_are_those_between_which_a_return_lies():
    shares = TwoHot(5, shrink=None).shares(torch.tensor([0.25, -2.0, 7.0]))
    assert shares.tolist() == [[0.0, 0.0, 0.75, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    exact = TwoHot(5, exact=True)
    numbers = ops.grown(torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]))
    assert float(exact.shares(torch.tensor(1.5)) @ numbers) == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_values_begin_around_0_with_the_spread_of_a_cauchy_distribution(name):
    head = HEADS[name]
    outputs = head.first_outputs()
    assert outputs.shape == (head.size,)
    assert float(head.mean(outputs)) == pytest.approx(0.0, abs=1e-3)
    if isinstance(head, TwoHot):
        middle = -head.least
        odds = outputs.exp()
        assert float(odds[middle + 2] / odds[middle]) == pytest.approx(1 / 5)
    else:
        assert float(outputs[head.size // 2].sigmoid()) == pytest.approx(0.5 - torch.tensor(0.5).atan() / torch.pi)


@pytest.mark.parametrize("head", [TwoHot(), Ordered()])
def test_values_of_several_branches_are_refused(head):
    head.fit(ActionCodec(Discrete(3)))
    with pytest.raises(SpaceError, match="adds up over 2"):
        head.fit(ActionCodec(multi(9, 9)))


@pytest.mark.parametrize("kind", [TwoHot, Ordered])
@pytest.mark.parametrize(("name", "value"), [("count", 1), ("count", None), ("shrink", 0.0), ("shrink", "abc")])
def test_numbers_out_of_range_are_refused(kind, name, value):
    with pytest.raises(ConfigError, match=f"^{name}: wanted a (whole number from 2|number above 0), got"):
        kind(**{name: value})
