"""The auxiliary phase: what its gradients reach, and when it comes between rollouts."""

from functools import partial

import pytest
import torch

from rlrun import train
from rlrun.algorithms.on_policy.ppg import AuxiliaryLoss, PhasicActorCritic
from rlrun.core.spaces import Box, Composite, Discrete, Spaces

SEEN = Box((3,), low=-1.0, high=1.0)
ACTIONS = {"choices": Discrete(4), "mixed": Composite({"c": Box((2,), low=-1.0, high=1.0), "k": Discrete(3)})}


class Phase:
    def __init__(self):
        self.phase = self
        self.number = 1


def made(kind="mixed", *, shared=False, **settings):
    torch.manual_seed(0)
    network = PhasicActorCritic(Spaces(SEEN, ACTIONS[kind]), hidden=[8], shared=shared, output_gain=1.0)
    sgd = partial(torch.optim.SGD, lr=0.1)
    return network, AuxiliaryLoss(network, sgd, loader=Phase(), **settings)


def gradient_reaches(network, loss):
    """Return the names of the parameters whose gradient is not zero."""
    network.zero_grad()
    loss.mean().backward()
    return {
        name for name, parameter in network.named_parameters() if parameter.grad is not None and parameter.grad.any()
    }


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_divergence_grows_from_zero(kind, shared):
    network, loss = made(kind, shared=shared)
    observation, return_ = torch.randn(16, 3), torch.randn(16) + 3.0
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)  # a policy phase
    divergences = []
    for number in (1, 2, 3, 1):  # the next phase begins from the policy of then
        loss.loader.number = number
        loss.begin_batch()
        loss.backward(observation, return_)
        divergences.append(loss.store.newest["auxiliary/kl"])
    assert divergences[0].tolist() == divergences[3].tolist() == [0.0] * 16
    assert 1e-6 < float(divergences[1].mean()) < float(divergences[2].mean())


def test_values_leave_shared_layers_alone():
    network, _ = made(shared=True)
    observation = torch.randn(16, 3)
    action = network.act(observation)
    only_the_head = {"value_head.weight", "value_head.bias"}
    assert gradient_reaches(network, network.review(observation).value.square()) == only_the_head
    assert gradient_reaches(network, network.evaluate_actions(observation, action).value.square()) == only_the_head
    policy = gradient_reaches(network, network.evaluate_actions(observation, action).log_prob)
    assert not any(name.startswith(("value", "auxiliary")) for name in policy)
    moved = gradient_reaches(network, network.review(observation).auxiliary.square())
    assert moved == {name for name, _ in network.named_parameters() if name.startswith(("trunk", "auxiliary_head"))}


def test_values_train_their_own_layers():
    network, _ = made()
    names = gradient_reaches(network, network.review(torch.randn(16, 3)).value.square())
    assert names == {name for name, _ in network.named_parameters() if name.startswith("value")}


def test_loss_by_hand():
    network, loss = made("choices", value_weight=0.5, kl_weight=2.0)
    observation, return_ = torch.randn(4, 3), torch.tensor([1.0, 2.0, 3.0, 4.0])
    with torch.no_grad():
        network.head.layer.bias += torch.tensor([1.0, 0.0, 0.0, 0.0])
        now, before = network.heads(observation).choices, loss.before.heads(observation).choices
        reviewed = network.review(observation)
        losses, *_ = loss.loss(observation, return_)
    divergence = (before.exp() * (before - now)).sum(-1)
    squares = (reviewed.value - return_).square() + (reviewed.auxiliary - return_).square()
    torch.testing.assert_close(losses, 0.5 * squares + 2.0 * divergence)


SMALL = ["env=cartpole", "num_envs=2", "algorithm.hidden=[8]", "algorithm.horizon=6", "algorithm.batch_size=4"]
QUIET = ["algorithm.epochs=2", "evaluation.every=0", "logger=[]"]


def test_recurrent_networks_have_phases(tmp_path):
    overrides = ["algorithm=ppg", "+with=trust_region", "algorithm.auxiliary.interval=2", "algorithm.shared=false"]
    core = ["algorithm.recurrent=gru", "algorithm.core_size=4", "algorithm.unroll=3"]
    result = train([*overrides, *core, *SMALL, *QUIET, "stop.updates=60"], run_dir=tmp_path / "run")
    callbacks = result.trainer.callbacks
    assert callbacks["auxiliary"].updates > 0
    assert callbacks["trust_region"].updates == callbacks["ppo"].updates > 0


def test_divergence_of_windows_begins_zero():
    torch.manual_seed(0)
    network = PhasicActorCritic(Spaces(SEEN, Discrete(4)), hidden=[8], core="gru", core_size=4, output_gain=1.0)
    loss = AuxiliaryLoss(network, partial(torch.optim.SGD, lr=0.1), loader=Phase())
    loss.begin_batch()
    episode_end = torch.zeros(5, 6, dtype=torch.bool)
    episode_end[2, 3] = True
    loss.backward(
        torch.randn(5, 6, 3), torch.randn(5, 6), state=torch.randn(5, 8), episode_end=episode_end, valid=~episode_end
    )
    assert loss.store.newest["auxiliary/kl"].abs().max() == 0.0
