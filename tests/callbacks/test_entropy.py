"""The weight of the entropy follows what the entropy does."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from rlrun import train
from rlrun.algorithms.a2c import A2CLoss
from rlrun.callbacks import EntropyTarget, EntropyWeight, SGDEntropyTarget
from rlrun.core.errors import ConfigError, WiringError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Spaces
from rlrun.nn import ActorCritic, Heads

ONE = Box((1,), low=-1.0, high=1.0)
CHOICE = Spaces(ONE, Discrete(3))
MIXED = Spaces(ONE, Composite({"c": ONE, "k": Discrete(3)}))
FAST = math.log(2.0)


def staged(**settings):
    return EntropyTarget(CHOICE, **{"target": 0.5, "initial": 1.0, **settings})


def fed(target, *entropies):
    """Show the mean entropies of updates; return stage and log α after each."""
    history = []
    for entropy in entropies:
        target.end_batch(torch.tensor([[entropy - 0.1], [entropy + 0.1]]))
        history.append((target.stage.tolist()[0], pytest.approx(float(target.log), abs=1e-6)))
    return history


def test_stages_go_from_counting_to_adjusting():
    # means: 1.0 1.0 | 1.0 .9 .7 | .55 .45 | .45 .55
    history = fed(staged(), 1.0, 1.0, 1.0, 0.8, 0.6, 0.5, 0.4, 0.5, 0.6)
    assert [stage for stage, _ in history] == [-3, -2, -2, -2, -1, -1, 0, 0, 1]
    very_slow = [0.0, 0.0, -0.001, -0.0005, 0.0, 0.0, 0.0]  # it fell in the fourth and fifth
    assert [log for _, log in history[:7]] == very_slow
    # below and as before: half; above at last and rising: all of a rate that shrank at the crossing
    assert [log for _, log in history[7:]] == [-0.5 * FAST, -0.5 * FAST - 0.9 * FAST]


def test_largest_entropy_follows_first_ones():
    target = staged()
    fed(target, 1.0, 0.5)
    assert float(target.largest) == pytest.approx(0.6)
    negative = staged(target=-2.0)
    fed(negative, -1.0, -1.0)
    assert float(negative.largest) == pytest.approx(-1.25)


@pytest.mark.parametrize(
    ("first", "second", "way"),
    [(1.0, 0.9, 0.5), (1.0, 1.1, -1.0), (0.4, 0.39, 1.0), (0.4, 0.41, -0.5)],
    ids=["above, falling", "above, rising", "below, falling", "below, rising"],
)
def test_weight_moves_against_the_entropy(first, second, way):
    # nothing came before the first, which counts as rising; a target begins as if above
    start, rate = (-FAST, FAST) if first > 0.5 else (-0.5 * 0.9 * FAST, 0.9 * FAST)
    history = fed(staged(free=False, window=1), first, second)
    assert [log for _, log in history] == [start, start + way * rate]


def test_rate_shrinks_at_crossings():
    target = staged(free=False, window=1)
    rates = []
    for entropy in [0.6, 0.4] * 20 + [0.24]:
        fed(target, entropy)
        rates.append(float(target.rate))
    assert rates[:4] == pytest.approx([FAST, 0.9 * FAST, 0.9**2 * FAST, 0.9**3 * FAST])
    assert rates[-2:] == pytest.approx([max(0.9**39 * FAST, 0.01), FAST])


def test_weight_has_a_lower_bound():
    target = staged(free=False, window=1, smallest=0.25)
    fed(target, 1.0, 1.1, 1.2, 1.3)
    assert float(target.log.exp()) == pytest.approx(0.25)


def test_parts_have_separate_stages():
    target = EntropyTarget(MIXED, target={"continuous": -1.0}, largest={"discrete": 1.0}, window=1)
    assert target.kinds == ("continuous", "discrete")
    assert target.targets.value.tolist() == pytest.approx([-1.0, 0.394398])
    assert target.stage.tolist() == [-3, -2]
    target.end_batch(torch.tensor([[0.5, 1.2]]))
    assert target.stage.tolist() == [-2, -2]
    assert target.largest.tolist() == pytest.approx([0.4, 1.0])
    assert target.begin_batch(1)["entropy_weight"].tolist() == pytest.approx([0.1, 0.1 * math.exp(-0.001)])


ARM = Composite({"k": Discrete(3), "arm": Composite({"turn": ONE, "lift": Box((2,), low=-1.0, high=1.0)})})
LEAVES = Spaces(ONE, Composite({**ARM.parts, "legs": MultiDiscrete(np.array([2, 4]), np.zeros(2, np.int64))}))


@pytest.mark.parametrize("joint_limit", [1, 64])
def test_each_leaf_has_its_entropy_and_target(joint_limit):
    target = EntropyTarget(
        LEAVES, leaves=True, target={"arm": {"lift": -3.0}, "k": 0.2}, largest={"legs": 2.0}, window=1
    )
    network = ActorCritic(LEAVES, hidden=[4], joint_limit=joint_limit)
    assert target.kinds == network.head.codec.names(leaves=True) == ("arm.turn", "arm.lift", "k", "legs")
    assert target.targets.value.tolist() == pytest.approx([math.log(0.2), -3.0, 0.2, 0.760027], abs=1e-5)
    assert target.stage.tolist() == [-3, -3, -3, -2]
    k, legs = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([[0.1, 0.2, 0.05, 0.05], [0.3, 0.1, 0.1, 0.1]])
    if joint_limit == 1:
        choices, expected = (
            torch.cat((k, torch.tensor([0.4, 0.6]), torch.tensor([0.4, 0.3, 0.2, 0.1]))),
            0.673 + 1.279854,
        )
    else:  # k and legs are not independent here: what counts for each is its own distribution
        choices = torch.stack((0.2 * legs, 0.3 * legs.flip(0), 0.5 * legs)).flatten()
        both = 0.7 * legs + 0.3 * legs.flip(0)
        expected = -float((both * both.log()).sum())
    mean, log_std = torch.zeros(3), torch.tensor([0.0, -1.0, -2.0])
    entropy = network.head.leaf_entropy(Heads(mean, log_std, choices.log()), torch.zeros(3))
    of_normal = 0.5 + 0.5 * math.log(2 * math.pi)
    numbers = [of_normal, 2 * of_normal - 3.0, -float((k * k.log()).sum()), expected]
    assert entropy.tolist() == pytest.approx(numbers, abs=1e-4)


def test_loss_weighs_the_entropy_of_each_leaf():
    network, rows = ActorCritic(LEAVES, hidden=[4]), torch.zeros(3, 1)
    loss = A2CLoss(network, partial(torch.optim.SGD, lr=0.0))
    evaluated = network.evaluate_actions(rows, network.act(rows))
    weight, nothing = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.zeros(3)
    total, outputs, metrics = loss.total(evaluated, nothing, nothing, nothing, weight)
    torch.testing.assert_close(outputs["policy_entropy"], evaluated.leaf_entropy.detach())
    torch.testing.assert_close(total, -(evaluated.leaf_entropy * weight).sum(-1))
    assert {"entropy/arm.turn", "entropy/arm.lift", "entropy/k", "entropy/legs"} <= metrics.keys()


def test_invalid_rows_do_not_count():
    target = staged(window=1)
    entropy = torch.tensor([[[1.0], [9.0]], [[0.5], [9.0]]])  # [B, T, parts]
    target.end_batch(entropy, torch.tensor([[True, False], [True, False]]))
    assert float(target.average.value) == pytest.approx(0.75)
    target.end_batch(entropy, torch.zeros(2, 2, dtype=torch.bool))
    assert target.average.updates == 1


def test_target_follows_a_schedule():
    target = staged(target=Linear(1.0, 0.0, steps=100))
    target.begin_batch(7, 25)
    assert target.targets.value.tolist() == [0.75]
    assert EntropyTarget(MIXED).targets.value.tolist() == pytest.approx([math.log(0.2), 0.394398])  # the defaults


def test_invalid_entropy_targets_are_refused():
    with pytest.raises(ConfigError, match=r"target: 0\.5 is above the largest entropy, 0\.4"):
        staged(largest=0.4)
    with pytest.raises(ConfigError, match=r"target\.discreet: .* \(did you mean 'discrete'\?\)"):
        staged(target={"discreet": 0.5})
    with pytest.raises(ConfigError, match=r"target\.arm\.tur: wanted arm\.turn or .* \(did you mean 'arm\.turn'\?\)"):
        EntropyTarget(LEAVES, leaves=True, target={"arm": {"tur": 0.5}})
    with pytest.raises(ConfigError, match="window must be at least 1"):
        staged(window=0)


def learn(target, entropy):
    """Make the update after which a policy has this entropy."""
    target.backward(policy_entropy=entropy, entropy_target=target.begin_batch(1)["entropy_target"])


def test_gradient_step_equals_the_error():
    network = EntropyWeight(MIXED, initial=1.0)
    target = SGDEntropyTarget(network, partial(torch.optim.SGD, lr=0.1), spaces=MIXED, target=0.5, window=2)
    learn(target, torch.tensor([[0.7, 0.1], [0.9, 0.1]]))
    assert network.log.tolist() == pytest.approx([-0.03, 0.04])
    learn(target, torch.tensor([[0.2, 0.1]]))  # the mean of two updates is at the target
    assert network.log.tolist() == pytest.approx([-0.03, 0.08])
    assert target.begin_batch(1)["entropy_weight"].tolist() == pytest.approx([math.exp(-0.03), math.exp(0.08)])


@pytest.mark.parametrize("form", ["staged", "sgd"])
def test_entropy_settles_at_the_target(form):
    logits = nn.Parameter(torch.zeros(3))
    reward = torch.tensor([0.1, 0.5, 0.9])
    optimizer = torch.optim.SGD([logits], lr=0.2)
    if form == "staged":
        target = staged(initial=0.1)
    else:
        target = SGDEntropyTarget(EntropyWeight(CHOICE), partial(torch.optim.Adam, lr=0.01), spaces=CHOICE, target=0.5)
    entropies, stages = [], set()
    for update in range(1_000):
        stages.add(int(getattr(target, "stage", torch.tensor([0]))))
        weight = target.begin_batch(update)["entropy_weight"]
        log_prob = logits.log_softmax(-1)
        entropy = -(log_prob.exp() * log_prob).sum()
        optimizer.zero_grad()
        (-(log_prob.exp() * reward).sum() - (weight * entropy).sum()).backward()
        optimizer.step()
        entropies.append(float(entropy.detach()))
        settle = target.end_batch if form == "staged" else partial(learn, target)
        settle(entropy.detach().reshape(1, 1))
    assert min(entropies[-250:]) > 0.45
    assert max(entropies[-250:]) < 0.55
    if form == "staged":
        assert stages == {-4, -3, -2, -1, 0, 1}


def test_unread_weight_is_refused(tmp_path):
    with pytest.raises(WiringError, match=r"callbacks\.entropy_target: no loss .* algorithm\.temperature\.target"):
        train(["algorithm=sac", "env=cartpole", "+with=entropy_target", "logger=[]"], run_dir=tmp_path / "run")
