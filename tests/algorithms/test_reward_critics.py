"""Critics that learn the value of each of several rewards: worked by hand on networks of one layer, and in runs."""

import math

import gymnasium
import numpy as np
import pytest
import torch

import rlrun
from rlrun import ops
from rlrun.algorithms.actor_critic import ddpg, dsac, qrsac, sac, sarsa
from rlrun.algorithms.actor_critic.lagrangian import RewardWeights
from rlrun.algorithms.actor_critic.oac import OACAgent
from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.algorithms.value_based.dqn import QTarget as DQNTarget
from rlrun.callbacks import CriticLoss, SoftPolicyLoss
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces
from rlrun.nn import ActionCodec, Critics, Quantiles, Rewards, Temperature

from .fixed import CONTINUOUS, DISCRETE, LINE, MIXED, column, deterministic, fill, policy_of, sgd, write
from .runs import REPLAY

WEIGHTS = (0.5, -2.0)
LOG_3 = math.log(3.0)
ENTROPY = 0.562335  # of (1/4, 3/4)
PAID = torch.tensor([[1.0, 3.0], [1.0, 3.0]])
OVER = torch.tensor([False, True])
SLOW = ([[2.0, 0.0], [3.0, 1.0]], [1.0, 0.0]), ([[2.0, 0.0], [3.0, 1.0]], [4.0, 2.0])
FAR = ([[0.0, 0.0], [0.0, 0.0]], [100.0, 100.0])


@pytest.fixture(autouse=True)
def by_hand(request):
    """Leave noise out, except in runs."""
    if "tmp_path" not in request.fixturenames:
        request.getfixturevalue("no_noise")


def critics_of(spaces, *members, weights=WEIGHTS, kind=Critics):
    """Return critics of two rewards; of outputs the reward comes last: choice 0 reward 0, choice 0 reward 1, …"""
    return write(kind(spaces, hidden=(), members=len(members), value_head=Rewards(weights)), *members)


def soft(spaces, online, slow, *, alphas=(0.2,), **options):
    critics = critics_of(spaces, *slow)
    target = sac.SoftQTarget(critics, *policy_of(spaces, critics, alphas=alphas), discount=0.9, **options)
    write(critics, *online)
    return target


def targets(target, reward=PAID, **extra):
    """Return the targets of an interior step and of a terminal one: [[r, r], [r, r]]."""
    return target.begin_batch(column(1, 1), reward, OVER, **extra)["q_target"]


@pytest.mark.parametrize("weights", [(-1.0, 1.0), (0.0, 0.0), (-0.5, -2.0)])
def test_least_value_is_that_weighed(weights):
    values = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0))  # [M, R, B, K]
    least = ops.least_weighed(values, torch.tensor(weights))
    by_hand = [
        part.amax(0) if weight < 0 else part.amin(0) for weight, part in zip(weights, values.unbind(1), strict=True)
    ]
    assert torch.equal(least, torch.stack(by_hand))
    weighed = sum(weight * part for weight, part in zip(weights, least, strict=True))
    products = [weight * part for weight, part in zip(weights, values.unbind(1), strict=True)]
    torch.testing.assert_close(weighed, sum(part.amin(0) for part in products))
    torch.testing.assert_close(Rewards(weights).guiding(values), weighed)


# Online choice 0 has the values (0, 0) and (2, 0), choice 1 (LOG_3, 0) and (9, -LOG_3 / 4): at temperature 1/2 and with
# the least of both, (0, 0) and (LOG_3, 0), the policy is softmax(0, LOG_3 / 2 / (1/2)) = (1/4, 3/4).
ONLINE = [0.0, 0.0, LOG_3, 0.0], [2.0, 0.0, 9.0, -LOG_3 / 4]
# Slow: choice 0 (4, 1) or (5, 0): least (4, 1). Choice 1 (9, 2) or (8, 3): least (8, 3).
OF_CHOICES = [4.0, 1.0, 9.0, 2.0], [5.0, 0.0, 8.0, 3.0]


def flat(inputs, *members):
    return [([[0.0] * 4] * inputs, biases) for biases in members]


def of_two(kind):
    """Return a target of DDPG or SARSA, whose policy plays 1/2."""
    return kind(critics_of(CONTINUOUS, *SLOW), deterministic(0.5), discount=[0.9, 0.9])


def dqn(double):
    """Return a target whose slow choices are worth 4/2 - 2 and 8/2 - 6; online the second is the better one."""
    target = DQNTarget(critics_of(DISCRETE, *flat(1, *OF_CHOICES), kind=QNetwork), discount=0.9, double=double)
    write(target.network, *flat(1, [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]))
    assert target.network.act(column(1)).tolist() == [1]
    return target


# At next_observation 1 the action is 1/2; members say (4.5, 0.5) and (7.5, 2.5). The second weight is negative, so the
# largest of its values counts.
BONUS = 0.2 * 1.5
OF_BOTH = (0.25 * 4 + 0.75 * 8 + 0.5 * ENTROPY, 0.25 * 1 + 0.75 * 3 + 0.5 * ENTROPY)
TARGETS = {
    "sac": (lambda: soft(CONTINUOUS, (FAR, FAR), SLOW), (4.5 + BONUS, 2.5 + BONUS)),
    "sac of a member": (lambda: soft(CONTINUOUS, (FAR, FAR), SLOW, target_subset=1), (4.5 + BONUS, 0.5 + BONUS)),
    "sac of choices": (lambda: soft(DISCRETE, flat(1, *ONLINE), flat(1, *OF_CHOICES), alphas=(0.5,)), OF_BOTH),
    "sac of both": (
        lambda: soft(MIXED, flat(2, *ONLINE), flat(2, *OF_CHOICES), alphas=(0.2, 0.5)),
        (OF_BOTH[0] + BONUS, OF_BOTH[1] + BONUS),
    ),
    "ddpg": (lambda: of_two(ddpg.DeterministicQTarget), (4.5, 2.5)),
    "sarsa": (lambda: of_two(sarsa.SarsaTarget), (4.5, 2.5)),
    "dqn": (lambda: dqn(True), (8.0, 3.0)),
    "dqn without double": (lambda: dqn(False), (4.0, 1.0)),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_of_each_reward(name, monkeypatch):
    monkeypatch.setattr("torch.randperm", lambda count, device: torch.arange(count))
    target, (first, second) = TARGETS[name][0](), TARGETS[name][1]
    named = [{"discount": torch.tensor(discount)} for discount in ([0.5, 0.5], [[0.5, 0.25]] * 2)]
    for discount, options in ((0.9, {}), ([0.5, 0.25], {}), (0.5, named[0]), ([0.5, 0.25], named[1])):
        target.discount = 0.9 if options else discount
        interior, terminal = targets(target, **options).tolist()
        one, two = np.broadcast_to(discount, 2)
        assert interior == pytest.approx([1 + one * first, 3 + two * second], abs=1e-5)
        assert terminal == [1.0, 3.0]
    assert float(target.metrics["batch/reward"]) == pytest.approx(0.5 * 1 - 2 * 3)


PAIRS = [1.0, 3.0, 2.0, 4.0], [0.0, 5.0, 6.0, 1.0]  # two quantiles of each reward
LEAST = {  # of the second reward the large ones
    "quantile": [[0.0, 3.0], [6.0, 4.0]],
    "member": [[1.0, 3.0], [6.0, 1.0]],
    "deviation": [[0.5 - 0.5**0.5, 4 - 2**0.5], [4 + 8**0.5, 2.5 + 4.5**0.5]],
}


@pytest.mark.parametrize("least", LEAST)
def test_quantiles_of_each_reward(least):
    critics = Critics(CONTINUOUS, hidden=(), members=2, value_head=Rewards(WEIGHTS), quantiles=2)
    policy, temperature = policy_of(CONTINUOUS, write(critics, *flat(2, *PAIRS)))
    target = qrsac.FixedQuantileTarget(critics, policy, temperature, discount=[0.9, 0.5], least=least)
    expected = [(1 + 0.9 * np.array(LEAST[least][0])).tolist(), (3 + 0.5 * np.array(LEAST[least][1])).tolist()]
    for options in ({}, {"discount": torch.tensor([[0.9, 0.5]] * 2)}):
        interior, terminal = targets(target, **options).tolist()
        assert interior == [pytest.approx(part, abs=1e-5) for part in expected]
        assert terminal == [[1.0, 1.0], [3.0, 3.0]]
    loss = qrsac.QuantilePolicyLoss(policy, sgd, critics=critics, temperature=temperature, least=least)
    value = np.dot(WEIGHTS, np.mean(LEAST[least], 1))
    assert loss.loss(column(1))[0].tolist() == pytest.approx([0.2 * -1.5 - value], abs=1e-5)


class Pairs(torch.nn.Module):
    """Quantiles of each reward by the half that a fraction is in, whatever it sees."""

    codec, members = ActionCodec(CONTINUOUS), 2

    def __init__(self, weights):
        super().__init__()
        self.pairs = torch.nn.Parameter(torch.tensor(PAIRS).reshape(2, 2, 1, 2))  # [M, R, 1, N]
        self.value_head = Rewards(weights)

    def raw_output(self, observation, c, points):
        return self.pairs.expand(-1, -1, len(points), -1).gather(-1, (points > 0.5).long().expand(2, 2, -1, -1))


@pytest.mark.parametrize("least", LEAST)
def test_implicit_quantiles_of_each_reward(least):
    critics, options = Pairs(WEIGHTS), {"fractions": 2, "fixed": True}
    policy, temperature = policy_of(CONTINUOUS, critics)
    target = dsac.ImplicitQuantileTarget(critics, policy, temperature, discount=[0.9, 0.5], least=least, **options)
    interior, terminal = targets(target).tolist()
    expected = (1 + 0.9 * np.array(LEAST[least][0]), 3 + 0.5 * np.array(LEAST[least][1]))
    assert interior == [pytest.approx(part.tolist(), abs=1e-5) for part in expected]
    assert terminal == [[1.0, 1.0], [3.0, 3.0]]
    for epistemic, deviation in ((None, 0.0), (0.4, abs((2 / 2 - 2 * 3) - (2.5 / 2 - 2 * 3.5)) / math.sqrt(2))):
        alpha = 0.2 if epistemic is None else epistemic * deviation
        loss = dsac.ImplicitQuantilePolicyLoss(
            policy,
            sgd,
            critics=critics,
            temperature=temperature if epistemic is None else Temperature(CONTINUOUS, epistemic=epistemic),
            least=least,
            **options,
        )
        value = np.dot(WEIGHTS, np.mean(LEAST[least], 1))
        assert loss.loss(column(1))[0].tolist() == pytest.approx([alpha * -1.5 - value], abs=1e-5)


def test_weights_leave_implicit_critics_alone():
    batch = column(1), column(0.5), torch.tensor([[[0.0, 2.0], [5.0, 4.0]]]), torch.tensor([0.5, 0.5])
    parts = torch.tensor(PAIRS).reshape(2, 2, 1, 2)
    distances = [Quantiles(2).distance(parts[:, i], batch[2][:, i], huber=None).sum() / 2 for i in (0, 1)]
    means = {"value/mean_0": [[2.0], [2.5]], "value/mean_1": [[3.0], [3.5]]}
    for weights, value, total in (
        ((1.0, 0.0), 1.5, [[2.0], [2.5]]),
        ((0.5, 2.0), 0.5 * 1.5 + 2 * 1.5, [[7.0], [8.25]]),
    ):
        critics = Pairs(weights)
        loss = dsac.ImplicitQuantileLoss(critics, sgd, fractions=2, fixed=True, huber=None)
        loss.watched = True
        elements, outputs, metrics = loss.loss(*batch)
        assert elements.tolist() == pytest.approx([float(sum(distances))])
        assert outputs["td_error"].tolist() == pytest.approx([(1 + 1.5 + 1.5 + 1) / 4])  # to means 1 and 4.5
        assert {name: mean.tolist() for name, mean in metrics.items()} == {"value/mean": total, **means}
        policy, temperature = policy_of(CONTINUOUS, critics)
        options = {"critics": critics, "temperature": temperature, "fractions": 2, "fixed": True}
        follows = dsac.ImplicitQuantilePolicyLoss(policy, sgd, **options)
        assert follows.loss(column(1))[0].tolist() == pytest.approx([-0.3 - value])  # least: (0, 3) and (2, 1)


def test_quantiles_of_choices_and_their_loss():
    network = QNetwork(DISCRETE, hidden=(), members=1, value_head=Rewards(WEIGHTS), quantiles=2)
    write(network, ([[0.0] * 8], [*PAIRS[0], *PAIRS[1]]))  # choice 0 is worth 2/2 - 6, choice 1 2.5/2 - 7
    interior, _ = targets(DQNTarget(network, discount=0.9)).tolist()
    assert interior == [pytest.approx([1 + 0.9 * 1, 1 + 0.9 * 3]), pytest.approx([3 + 0.9 * 2, 3 + 0.9 * 4])]
    loss, q_target = CriticLoss(network, sgd), torch.tensor([[[0.0, 2.0], [5.0, 4.0]]])
    loss.watched = True
    elements, outputs, _ = loss.loss(column(1), torch.tensor([1]), q_target)
    apart = [
        Quantiles(2).distance(torch.tensor([[PAIRS[1][2 * i : 2 * i + 2]]]), q_target[:, i], huber=None) for i in (0, 1)
    ]
    assert elements.tolist() == pytest.approx([float(sum(apart)) / 2])
    assert outputs["td_error"].tolist() == pytest.approx([(abs(2.5 - 1) + abs(3.5 - 4.5)) / 2])
    means, outputs, _ = loss.loss(column(1), torch.tensor([1]), torch.tensor([[1.0, 4.5]]))  # as of SAC
    same = loss.loss(column(1), torch.tensor([1]), torch.tensor([[[1.0], [4.5]]]))
    assert means.tolist() == same[0].tolist()
    assert outputs["td_error"].tolist() == pytest.approx([(abs(2.5 - 1) + abs(3.5 - 4.5)) / 2])


def test_windows_have_targets_of_rewards():
    target, terminated = soft(CONTINUOUS, (FAR, FAR), SLOW), torch.zeros(2, 3, dtype=torch.bool)
    reward = PAID[:, None].expand(2, 3, 2)
    terminated[1, 0] = True
    one_step = target.begin_batch(torch.ones(2, 3, 1), reward, terminated, torch.full((2, 3), 0.9))["q_target"]
    first, second = 1 + 0.9 * 4.8, 3 + 0.9 * 2.8
    assert one_step[0].tolist() == [pytest.approx([first, second])] * 3
    assert one_step[1].tolist() == [[1.0, 3.0], *[pytest.approx([first, second])] * 2]


def test_dueling_values_each_reward():
    network = Critics(DISCRETE, hidden=(), members=1, value_head=Rewards(WEIGHTS), dueling=True)
    fill(network.layers.value.layers[0], 10.0, 20.0)
    fill(network.layers.advantage.layers[0], 1.0, 0.0, 3.0, 8.0)
    assert network(column(1))[0, :, 0].tolist() == [[9.0, 11.0], [16.0, 24.0]]  # advantages less their means 2 and 4


def test_loss_averages_rewards_sums_members():
    critics = critics_of(CONTINUOUS, *SLOW)
    loss = CriticLoss(critics, sgd)
    loss.watched = True
    batch = column(1), column(0.5), torch.tensor([[4.0, 1.5]])  # members differ by (0.5, -1) and (3.5, 1)
    assert loss.loss(*batch)[0].tolist() == pytest.approx([(0.25 + 1) / 2 + (12.25 + 1) / 2])
    loss.backward(*batch)
    assert loss.elements.tolist() == pytest.approx([math.sqrt((1.25 + 13.25) / 4)])
    metrics = {name: float(value) for name, value in loss.metrics.items() if name.startswith("value/")}
    means = {"value/mean_0": 6.0, "value/mean_1": 1.5}
    assert metrics == pytest.approx({"value/mean": 0.5 * 6 - 2 * 1.5, **means})
    window, *_ = loss.loss(torch.ones(2, 3, 1), torch.full((2, 3, 1), 0.5), torch.tensor([4.0, 1.5]).expand(2, 3, 2))
    assert window.shape == (2, 3)


def test_loss_compares_the_taken_choice():
    loss = CriticLoss(critics_of(DISCRETE, *flat(1, *OF_CHOICES)), sgd)
    assert loss.loss(column(1), torch.tensor([1]), torch.tensor([[8.0, 2.0]]))[0].tolist() == [0.5 + 0.5]


@pytest.mark.parametrize(
    ("actor_q", "value"), [("min", 0.5 * 4.5 - 2 * 2.5), ("first", 0.5 * 4.5 - 2 * 0.5), ("mean", 0.5 * 6 - 2 * 1.5)]
)
def test_policies_follow_the_weighed_sum(actor_q, value):
    critics, policy = critics_of(CONTINUOUS, *SLOW), deterministic(0.5)
    follows = ddpg.DeterministicPolicyLoss(policy, sgd, critics=critics, actor_q=actor_q)
    assert follows.loss(column(1))[0].tolist() == pytest.approx([-value], abs=1e-5)
    follows.backward(column(1))
    # the values' slopes are (3, 1), so the sum's is 3/2 - 2, and that of tanh 3/4
    assert policy.layers[-1].bias.item() == pytest.approx(math.atanh(0.5) - 0.5 * 0.75, abs=1e-5)
    gaussian, temperature = policy_of(CONTINUOUS, critics)
    soft_loss = SoftPolicyLoss(gaussian, sgd, critics=critics, temperature=temperature, actor_q=actor_q)
    assert soft_loss.loss(column(1))[0].tolist() == pytest.approx([0.2 * -1.5 - value], abs=1e-5)


def test_soft_choices_use_weighed_values():
    critics = critics_of(DISCRETE, *flat(1, *ONLINE))
    policy, temperature = policy_of(DISCRETE, critics, alphas=(0.5,))
    loss, outputs, _ = SoftPolicyLoss(policy, sgd, critics=critics, temperature=temperature).loss(column(1))
    assert loss.tolist() == pytest.approx([-0.75 * LOG_3 / 2])
    assert outputs["policy_entropy"].tolist() == [pytest.approx([ENTROPY], abs=1e-5)]
    assert policy.act(column(1), explore=False).tolist() == [1]


def test_optimism_climbs_the_weighed_sum():
    critics = critics_of(CONTINUOUS, ([[0.0, 0.0], [1.0, 1.0]], [0.0, 0.0]), ([[0.0, 0.0], [1.0, 1.0]], [0.0, 0.0]))
    policy, _ = policy_of(CONTINUOUS, critics)
    agent = OACAgent(policy, gaussian=policy.gaussian, critics=critics)
    assert float(agent._slope(column(1), torch.zeros(1, 1))) == pytest.approx(0.5 - 2.0)


def test_weights_may_change_without_critics():
    weights = RewardWeights(Spaces(LINE, LINE, rewards=2), normalize=False)
    network = critics_of(DISCRETE, *flat(1, [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]), weights=weights, kind=QNetwork)
    target = DQNTarget(network, discount=0.9, double=False)
    for first, best in ((2.0, 0), (0.5, 1)):
        with torch.no_grad():
            weights.raw[0] = math.log(math.expm1(first))
        assert network.act(column(1)).tolist() == [best]
        assert targets(target)[0].tolist() == pytest.approx([1 + 0.9 * (best == 0), 3 + 0.9 * (best == 1)])
    assert [*dict(network.named_parameters())] == [*dict(target.target_network.named_parameters())]
    assert not any(parameter is weights.raw for parameter in network.parameters())


@pytest.mark.parametrize(("reward", "value_head"), [(PAID, None), (PAID[:, 0], Rewards(WEIGHTS))])
def test_mismatched_rewards_are_refused(reward, value_head):
    critics = Critics(CONTINUOUS, hidden=(), value_head=value_head)
    target = sac.SoftQTarget(critics, *policy_of(CONTINUOUS, critics))
    with pytest.raises(ConfigError, match=r"^algorithm\.value_head: a step has (one|several) of rewards"):
        targets(target, reward)


class Coins(gymnasium.Env):
    """Two coins to choose from: the first pays more and costs something, the second neither; an episode is a step."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    reward_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        paid = [1.0, -0.5] if action == 0 else [0.0, 0.0]
        return np.ones(1, np.float32), np.array(paid, np.float32), True, False, {}


BANDIT = ("env=constrainedbandit", "lagrangian.thresholds=[null,-0.25]", "lagrangian.lr=0.5")
BOTH = "+with=[lagrangian,reward_critics]"
COINS = ("env=gym", f"env.target={__name__}.Coins")


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm=sac", "+with=reward_scale"),
        ("algorithm=sac", "+with=[prioritized,td_lambda,reward_norm]", "memory.short=pad"),
        ("algorithm=action_repeat",),
        ("algorithm=doac", "+with=td_lambda", "algorithm.fixed=true", "td_lambda.lambda=1.0", "memory.short=pad"),
    ],
    ids=["scaled", "windows", "repeats", "implicit"],
)
def test_actors_use_the_current_weights(overrides, tmp_path):
    trainer = rlrun.train([*overrides, *BANDIT, *REPLAY, BOTH], run_dir=tmp_path / "run").trainer
    callbacks, table = trainer.callbacks, trainer.loader.table
    weights, loss = callbacks["reward_weights"].network, callbacks["q_loss"]
    assert float(weights().detach()[1]) > 0.55
    assert torch.equal(loss.value_head.weights(), weights().detach())
    assert callbacks["q_target"].target_network is not loss.critics
    batch = table.sample(8)
    assert batch["reward"].shape[-1] == 2
    if overrides[-1] == "+with=reward_scale":
        assert torch.allclose(batch["reward"], 0.1 * (rows := batch.parts[0][1]).stored("reward", rows.index))
    assert {"value/mean", "value/mean_0", "value/mean_1", "reward_weight/1"} <= {
        name for callback in (loss, callbacks["reward_weights"]) for name in callback.metrics
    }


@pytest.mark.parametrize(("algorithm", "weights", "best"), [("dqn", "[1.0,3.0]", 1), ("sac", "[1.0,-1.0]", 0)])
def test_choices_are_learned_by_weights(algorithm, weights, best, folder):
    overrides = [f"algorithm={algorithm}", *COINS, *REPLAY, "stop.updates=60", "algorithm.lr=0.05"]
    overrides += ["+with=[reward_weights,reward_critics]", f"++reward_weights={weights}", "algorithm.ensemble=2"]
    run = rlrun.train(overrides, run_dir="run")
    assert run.trainer.callbacks["q_loss"].critics.value_head.size == 2
    evaluation = rlrun.evaluate("run", episodes=2, trust=__name__.partition(".")[0])  # a text is one name
    assert evaluation.totals == [[1.0, -0.5] if best == 0 else [0.0, 0.0]] * 2
