"""Critics alone train the encoder that a policy reads, too."""

from functools import partial

import pytest
import torch
from tests.nn.spaces_for_tests import box, draw, image
from torch import nn

from rlrun import load, train
from rlrun.algorithms.actor_critic.ddpg import DeterministicQTarget
from rlrun.callbacks import CriticLoss, SharedEncoder, SmoothedPolicy, SoftPolicyLoss
from rlrun.config import compose
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Composite, Spaces
from rlrun.nn import Critics, DetachedEncoder, DeterministicPolicy, SoftPolicy, Temperature, Value

SPACES = Spaces(Composite({"camera": image(12, 12), "speed": box(2)}), box(1, low=-1.0, high=1.0))
ADAM = partial(torch.optim.Adam, lr=0.1)


def networks(spaces=SPACES):
    torch.manual_seed(0)
    critics, temperature = Critics(spaces, hidden=(8,)), Temperature(spaces, initial=0.1)
    return critics, temperature, SoftPolicy(spaces, critics, temperature, hidden=(8,), encoder=DetachedEncoder(critics))


def weights(network):
    return [parameter.detach().clone() for parameter in network.parameters()]


def moved(before, network):
    return [not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True)]


def test_critics_alone_train_the_encoder():
    critics, temperature, policy = networks()
    assert not {*map(id, critics.parameters())} & {*map(id, policy.parameters())}
    assert [name for name in policy.state_dict() if "encoder" in name] == []
    observation = draw(SPACES.observation, 6)
    loss = SoftPolicyLoss(policy, ADAM, critics=critics, temperature=temperature)
    elements, *_ = loss.loss(observation)
    gradients = torch.autograd.grad(elements.mean(), [*policy.parameters()], retain_graph=True)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    features = policy.gaussian.encode(observation)
    assert not features.requires_grad
    torch.testing.assert_close(features, critics.encode(observation).detach())

    before = weights(critics), weights(policy)
    loss.backward(observation)
    assert not any(moved(before[0], critics))
    assert all(moved(before[1], policy))

    before = weights(critics.encoder), weights(policy)
    action = draw(SPACES.action, 6)
    CriticLoss(critics, ADAM).backward(observation, action, torch.ones(6))
    assert all(moved(before[0], critics.encoder))
    assert not any(moved(before[1], policy))
    torch.testing.assert_close(policy.gaussian.encode(observation), critics.encode(observation).detach())


def test_copies_read_the_encoder_of_their_side():
    """A target policy reads the target critics; a smoothed policy alone, which acts, those that learn."""
    critics, _, soft = networks()
    policy = DeterministicPolicy(SPACES, hidden=(8,), encoder=DetachedEncoder(critics))
    target = DeterministicQTarget(critics, policy, tau=0.5).target_network
    assert target.policy.encoder._borrowed[0] is target.critics
    assert target.critics.encoder is not critics.encoder
    assert SmoothedPolicy(soft).target_network.gaussian.encoder._borrowed[0] is critics


@pytest.mark.parametrize("mode", [True, False])
def test_modes_reach_the_shared_encoder(mode):
    critics, _, policy = networks()
    critics.encoder.train(not mode)
    assert policy.gaussian.train(mode) is policy.gaussian
    assert {part.training for part in critics.encoder.modules()} == {mode}


def test_what_has_no_such_encoder_is_refused():
    critics, _, policy = networks()
    SharedEncoder(policy)
    with pytest.raises(ConfigError, match="a Critics has no encoder here; remove \\+with=shared_encoder"):
        SharedEncoder(critics)
    with pytest.raises(ConfigError, match="a Linear has no encoder to share"):
        DetachedEncoder(nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r"the shared encoder reads \{camera.*\}, but this network Box\[2\]"):
        Value(Spaces(box(2), SPACES.action), encoder=DetachedEncoder(critics))


@pytest.mark.parametrize("algorithm", ["sac", "td3", "iql"])
def test_a_run_with_a_module_of_ones_own(algorithm, tmp_path):
    overrides = [
        *(f"algorithm={algorithm}", "env=pendulum", "preset=null", "+with=shared_encoder", "logger=[]"),
        *("encoder._target_=torch.nn.LazyLinear", "+encoder.out_features=5", "algorithm.hidden=[8]"),
        *("stop.env_steps=60", "algorithm.warmup_steps=40", "algorithm.batch_size=8", "memory.length=100"),
        "evaluation.every=0",
        *(["networks.value.encoder=${networks.policy.encoder}"] if algorithm == "iql" else []),
    ]
    train(compose(overrides), run_dir=tmp_path / "run")
    policy = load(tmp_path / "run")
    action, _ = policy.predict(draw(box(3)).numpy())
    assert action.shape == (1,)
