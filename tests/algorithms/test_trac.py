"""A trust region: how far a policy moved, and that it never moved too far."""

import copy
import math
from functools import partial

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from rlrun import ops, train
from rlrun.algorithms.actor_critic.sac import SoftPolicy, Temperature
from rlrun.algorithms.on_policy.a2c import A2CLoss
from rlrun.algorithms.on_policy.trac import TrustRegion, changes
from rlrun.core.errors import RlrunError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.nn import ActorCritic, Critics, Heads
from rlrun.nn.recurrent import with_state
from rlrun.ops.distributions import GAUSSIANS

SEEN = Box((3,), low=-1.0, high=1.0)
ONE, TWO = Box((1,), low=-1.0, high=1.0), Box((2,), low=-1.0, high=1.0)
ACTIONS = {"choices": Discrete(4), "numbers": TWO, "mixed": Composite({"a": TWO, "b": ONE, "k": Discrete(3)})}


def made(kind, *, lr=10.0, **settings):
    torch.manual_seed(0)
    spaces = Spaces(SEEN, ACTIONS[kind])
    network = ActorCritic(spaces, hidden=[8])
    loss = A2CLoss(network, partial(torch.optim.SGD, lr=lr))
    return network, loss, TrustRegion(network, spaces=spaces, **settings)


def updated(network, loss, region, valid=None):
    """Make one update from random data; return heads before and after it."""
    observation = torch.randn(32, 3)
    with torch.no_grad():
        before, action = network.heads(observation), network.act(observation)
        region.begin_batch(observation)
        with torch.enable_grad():
            loss.backward(observation, action, torch.randn(32), torch.randn(32))
        region.end_batch(valid)
        return before, network.heads(observation)


def test_change_of_normals_is_symmetric_divergence():
    mean, log_std, other_mean, other_log_std = torch.randn(4, 5, 2)
    first, second = Normal(mean, log_std.exp()), Normal(other_mean, other_log_std.exp())
    distance = ops.gaussian_distance(mean, log_std, other_mean, other_log_std)
    torch.testing.assert_close(distance, kl_divergence(first, second) + kl_divergence(second, first))


def test_change_of_a_leaf_by_hand():
    before = Heads(None, None, torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log())
    now = Heads(None, None, torch.tensor([[0.25, 0.75], [0.2, 0.8]]).log())
    expected = [[math.log(2.0) ** 2, math.log(1.5) ** 2], [0.0, 0.0]]
    torch.testing.assert_close(changes(before, now), torch.tensor(expected))
    forbidden = torch.tensor([[0.0, -1e9]])
    assert changes(Heads(None, None, forbidden), Heads(None, None, forbidden - 128.0))[0, 1] == 0.0  # it was rounded
    numbers = changes(Heads(torch.tensor([[1.0, 2.0]]), None, None), Heads(torch.tensor([[3.0, 2.5]]), None, None))
    assert numbers.tolist() == [[4.0, 0.25]]


def test_ratio_is_of_the_largest_change():
    network, _, region = made("mixed", per_dim=0.04)
    region.begin_batch(torch.zeros(2, 3))
    still = region._heads
    with torch.no_grad():
        region._look = lambda: still._replace(
            mean=still.mean + torch.tensor([0.0, 0.0, 0.3]), choices=still.choices + 0.1
        )
        # log_std is 0: Δ² for the number; three choices together 0.03 of 0.12
        assert region._ratio(None) == pytest.approx(math.sqrt(0.09 / 0.04))
    assert network.head.codec.sizes == (2, 1)


@pytest.mark.parametrize("kind", ACTIONS)
def test_no_update_exceeds_the_limit(kind):
    network, loss, region = made(kind)
    codec = network.codec
    taken_back = 0
    for _ in range(30):
        before, now = updated(network, loss, region)
        taken_back += region.ratio > 1.0
        squares = changes(before, now).mean(0).split([*codec.sizes, *codec.branches])
        for square, size in zip(squares, [*codec.sizes, *codec.branches], strict=True):
            assert float(square.sum().sqrt()) <= math.sqrt(0.01 * size) * (1 + 1e-5)
    assert taken_back > 20
    assert region.shrunk == taken_back
    assert all(bool(part.isfinite().all()) for part in now if part is not None)


@pytest.mark.parametrize(("lr", "shrinks"), [(10.0, True), (1e-4, False)])
def test_only_large_policy_updates_shrink(lr, shrinks):
    network, loss, region = made("choices", lr=lr)
    free = copy.deepcopy(network)
    free_loss = A2CLoss(free, partial(torch.optim.SGD, lr=lr))
    torch.manual_seed(1)
    updated(network, loss, region)
    torch.manual_seed(1)
    updated(free, free_loss, TrustRegion(free, spaces=Spaces(SEEN, ACTIONS["choices"]), per_dim=1e9))
    assert region.ratio > 1.0 if shrinks else 0.0 < region.ratio <= 1.0
    for (name, parameter), expected in zip(network.named_parameters(), free.parameters(), strict=True):
        assert torch.equal(parameter, expected) is (name.startswith("value") or not shrinks)


def test_invalid_rows_do_not_count():
    network, loss, region = made("choices")
    valid = torch.zeros(32, dtype=torch.bool)
    valid[:4] = True
    before, now = updated(network, loss, region, valid)
    assert float(changes(before, now)[:4].mean(0).sum().sqrt()) <= math.sqrt(0.01 * 4) * (1 + 1e-5)


@pytest.mark.parametrize("distribution", GAUSSIANS)
def test_soft_policies_have_trust_regions(distribution):
    spaces = Spaces(SEEN, ACTIONS["mixed"])
    critics, temperature = Critics(spaces, hidden=[8]), Temperature(spaces)
    policy = SoftPolicy(spaces, critics, temperature, hidden=[8], distribution=distribution)
    region = TrustRegion(policy, spaces=spaces)
    assert region.distance is GAUSSIANS[distribution].distance
    observation = torch.randn(4, 3)
    region.begin_batch(observation)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
        region.end_batch()
        assert region._ratio(None) <= 1.0 < region.ratio


def test_latent_actions_have_trust_regions(tmp_path):
    overrides = ["algorithm=genrl", "env=thrusters", "preset=null", "init.networks.vae=null", "+with=trust_region"]
    small = ["algorithm.hidden=[8]", "algorithm.warmup_steps=10", "stop.env_steps=20", "logger=[]"]
    region = train([*overrides, *small], run_dir=tmp_path / "run").trainer.callbacks["trust_region"]
    assert region.codec.sizes == (2,)  # of four thrusts
    assert 0.0 < region.ratio <= 1.0


def test_recurrent_policies_have_trust_regions():
    """Replayed windows bring their state with the observation; the column `state` is not another one."""
    spaces = Spaces(SEEN, TWO)
    policy = SoftPolicy(spaces, Critics(spaces, hidden=[8]), Temperature(spaces), hidden=[8], core="gru", core_size=4)
    region = TrustRegion(policy, spaces=spaces)
    state = torch.randn(4, policy.state_size)
    region.begin_batch(with_state(torch.randn(4, 3, 3), state, torch.tensor([[0, 1]] * 4)), state)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
        region.end_batch(torch.ones(4, 2, dtype=torch.bool))
        assert region._ratio(None) <= 1.0 < region.ratio


def test_deterministic_policies_have_trust_regions(tmp_path):
    overrides = ["algorithm=td3", "env=pendulum", "preset=null", "+with=trust_region", "algorithm.lr=0.1"]
    small = ["algorithm.hidden=[8]", "algorithm.warmup_steps=20", "algorithm.batch_size=8", "stop.env_steps=60"]
    more = ["logger=[]", "evaluation.every=0", "callbacks.trust_region.per_dim=1.0e-6"]
    region = train([*overrides, *small, *more], run_dir=tmp_path / "run").trainer.callbacks["trust_region"]
    assert region.updates == 40
    assert region.shrunk == 20  # the policy learns at every second update
    assert region._ratio(None) <= 1.0


def test_nan_policy_ends_the_run():
    network, _, region = made("choices")
    region.begin_batch(torch.zeros(2, 3))
    with torch.no_grad():
        network.head.layer.bias.fill_(math.nan)
    with pytest.raises(RlrunError, match="the policy is not finite after this update"):
        region.end_batch()


def test_large_rate_finds_the_best_arm(tmp_path):
    env = ["env=bandit", "env.kwargs.means=[0.5,1.0,-1.0]", "num_envs=3", "logger=[]", "evaluation.every=0"]
    numbers = ["algorithm.horizon=5", "algorithm.lr=0.1", "stop.updates=100"]
    result = train(["algorithm=trac", *env, *numbers], run_dir=tmp_path / "run")
    network = result.trainer.callbacks["trust_region"].network
    with torch.no_grad():
        choices = network.heads(torch.ones(1, 1)).choices[0]
    assert int(choices.argmax()) == 1
