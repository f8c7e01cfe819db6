import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rlrun.core.errors import SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces, leaves, leaves_of
from rlrun.nn import Policy, SquashedGaussian

from .spaces_for_tests import ACTIONS, MIXED, VECTOR, box, draw, multi


def gaussian(action=MIXED):
    torch.manual_seed(0)
    return SquashedGaussian(Spaces(VECTOR, action), hidden=(16, 16))


def policy(action, **options):
    torch.manual_seed(0)
    return Policy(Spaces(VECTOR, action), hidden=(16, 16), **{"output_gain": 1.0, **options})


def test_given_noise_fixes_the_sample():
    network, observation, noise = gaussian(), draw(VECTOR, 5), torch.randn(5, 6)
    assert torch.equal(network(observation, noise)[0], network(observation, noise)[0])
    assert torch.equal(network(observation, torch.zeros(5, 6))[0], network.mode(observation))


def test_log_std_is_clamped():
    network = gaussian()
    for bias, bound in ((100.0, 2.0), (-100.0, -20.0)):
        torch.nn.init.constant_(network.layers[-1].bias, bias)
        assert network.normal(draw(VECTOR, 1))[1].tolist() == [[bound] * 6]


def test_gradients_flow_through_the_draw():
    network = gaussian()
    c, log_prob = network(draw(VECTOR, 5))
    (c.sum() + log_prob.sum()).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_unbounded_action_is_refused_by_name():
    space = Composite({"arm": box(2, high=float("inf")), "mode": Discrete(2)})
    for network in (SquashedGaussian, Policy):
        with pytest.raises(SpaceError, match=r"bounded actions; action part 'arm' is Box\[2\].*wrapper"):
            network(Spaces(VECTOR, space))


def test_gaussian_needs_a_box():
    with pytest.raises(SpaceError, match=r"needs a Box in the action space; there is Discrete\(3\)"):
        SquashedGaussian(Spaces(VECTOR, Discrete(3)))


@pytest.mark.parametrize("joint_limit", [1, 64])
@pytest.mark.parametrize("kind", ACTIONS)
def test_every_action_space_is_drawn(kind, joint_limit):
    network, observation = policy(ACTIONS[kind], joint_limit=joint_limit), draw(VECTOR, 6)
    action, log_prob = network.sample(observation)
    for (_, leaf), value in zip(leaves(ACTIONS[kind]), leaves_of(ACTIONS[kind], action), strict=True):
        assert value.shape == (6, *leaf.shape)
        assert value.dtype == (torch.float32 if isinstance(leaf, Box) else torch.int64)
    torch.testing.assert_close(network.log_prob(observation, action), log_prob, atol=1e-3, rtol=1e-4)
    assert network.head.entropy(network.heads(observation)).sum(-1).shape == (6,)


@pytest.mark.parametrize("joint_limit", [1, 64])
def test_all_probabilities_sum_to_one(joint_limit):
    network, observation = policy(multi(2, 3), joint_limit=joint_limit), draw(VECTOR, 1).expand(6, 3)
    actions = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    heads = network.heads(observation)
    log_prob, entropy = network.head.log_prob(heads, actions), network.head.entropy(heads).sum(-1)
    torch.testing.assert_close(log_prob.exp().sum(), torch.tensor(1.0))
    torch.testing.assert_close(-(log_prob.exp() * log_prob).sum(), entropy[0])


def test_mixed_log_prob_sums_its_parts():
    network, observation = policy(MIXED), draw(VECTOR, 8)
    action = draw(MIXED, 8)
    mean, log_std, choices = network.heads(observation)
    c, k = network.codec.split(action)
    density = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform()])
    expected = density.log_prob(c) + torch.distributions.Categorical(logits=choices).log_prob(k.squeeze(-1))
    torch.testing.assert_close(network.log_prob(observation, action), expected, atol=1e-4, rtol=1e-5)


def test_entropy_is_the_mean_surprise():
    network, observation = policy(MIXED), draw(VECTOR, 1).expand(50_000, 3)
    with torch.no_grad():
        surprise = -network.sample(observation)[1].mean()
        entropy = network.head.entropy(network.heads(observation)).sum(-1)
        assert abs(float(entropy.mean() - surprise)) < 0.05


def test_mode_is_the_most_likely_choice():
    network, observation = policy(Discrete(3)), draw(VECTOR, 4)
    assert torch.equal(network.mode(observation), network.heads(observation)[2].argmax(-1))


def test_policy_begins_near_centre_and_uniform():
    network, observation = policy(MIXED, output_gain=0.01), draw(VECTOR, 16)
    mean, log_std, choices = network.heads(observation)
    assert mean.abs().max() < 0.1
    assert log_std.abs().max() < 0.1
    assert choices.exp().min() > 0.9 / 24


def test_sequences_equal_their_rows():
    network, observation, action = policy(MIXED), draw(VECTOR, 4, 2), draw(MIXED, 4, 2)
    heads = network.heads(observation)
    log_prob, entropy = network.head.log_prob(heads, action), network.head.entropy(heads).sum(-1)
    assert log_prob.shape == entropy.shape == (4, 2)
    row = {"move": action["move"][1], "mode": action["mode"][1], "parts": {n: p[1] for n, p in action["parts"].items()}}
    torch.testing.assert_close(log_prob[1], network.log_prob(observation[1], row))
