"""The weight of the entropy follows what the entropy does."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.algorithms.runs import REPLAY
from torch import nn
from torch.distributions import Categorical

from rlrun import train
from rlrun.algorithms.actor_critic.dsac import ImplicitQuantilePolicyLoss
from rlrun.algorithms.actor_critic.iql import AdvantageWeightedLoss
from rlrun.algorithms.imitation.bc import BCLoss
from rlrun.algorithms.on_policy.a2c import A2CLoss
from rlrun.callbacks import EntropyTarget, EntropyWeight, SGDEntropyTarget, SoftPolicyLoss
from rlrun.commands.check import check
from rlrun.core.errors import ConfigError, WiringError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Spaces
from rlrun.nn import ActionCodec, ActorCritic, Heads, Policy, SoftPolicy, Temperature
from rlrun.training.plan import plan

ONE = Box((1,), low=-1.0, high=1.0)
CHOICE = Spaces(ONE, Discrete(3))
MIXED = Spaces(ONE, Composite({"c": ONE, "k": Discrete(3)}))
FAST = math.log(2.0)
ADAM = partial(torch.optim.Adam, lr=0.05)


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


class Fixed(nn.Module):
    """Values that grow with c and with the choice: Q(c) = c, Q(k) = k, or both; of any fractions the same."""

    members = 1

    def __init__(self, spaces):
        super().__init__()
        self.codec = ActionCodec(spaces)

    def forward(self, observation, c=None):
        value = torch.zeros(1, len(observation)) if c is None else c.sum(-1).unsqueeze(0)
        return value.unsqueeze(-1) + torch.arange(3.0) if self.codec.discrete else value

    def raw_output(self, observation, c, points):
        return self(observation, c).unsqueeze(-1).expand(1, *points.shape)


def soft(spaces, kind=SoftPolicyLoss, **options):
    critics, temperature = Fixed(spaces), Temperature(spaces)
    policy = SoftPolicy(spaces, critics, temperature, hidden=())
    return kind(policy, ADAM, critics=critics, temperature=temperature, **options)


def cloned(spaces, kind=BCLoss):
    return kind(Policy(spaces, hidden=()), ADAM)


NUMBERS = Spaces(ONE, ONE)
OFF_POLICY = {
    "sac of numbers": (NUMBERS, partial(soft, NUMBERS)),
    "sac of choices": (CHOICE, partial(soft, CHOICE)),
    "sac of both": (MIXED, partial(soft, MIXED)),
    "dsac": (NUMBERS, partial(soft, NUMBERS, ImplicitQuantilePolicyLoss, fractions=4)),
    "cloning numbers": (NUMBERS, partial(cloned, NUMBERS)),
    "cloning both": (MIXED, partial(cloned, MIXED)),
    "iql": (MIXED, partial(cloned, MIXED, AdvantageWeightedLoss)),
}
WANTED = {"continuous": -0.5, "discrete": 0.6}


@pytest.mark.parametrize(("name", "form"), [*((name, "sgd") for name in OFF_POLICY), ("sac of both", "staged")])
def test_off_policy_entropy_settles(name, form):
    torch.manual_seed(0)
    spaces, loss = OFF_POLICY[name][0], OFF_POLICY[name][1]()
    c, k = torch.linspace(0.4, 0.8, 32).unsqueeze(-1), torch.full((32,), 2)
    batch = {"observation": torch.zeros(32, 1)}
    if isinstance(loss, BCLoss | AdvantageWeightedLoss):
        batch["action"] = c if spaces is NUMBERS else {"c": c, "k": k}
    if isinstance(loss, AdvantageWeightedLoss):
        batch["advantage"] = torch.zeros(32)
    wanted = {part: WANTED[part] for part in ActionCodec(spaces).kinds}
    if form == "staged":
        target = EntropyTarget(spaces, target=wanted, free=False, rates=[0.001, 0.01, 0.1])
    else:
        target = SGDEntropyTarget(
            EntropyWeight(spaces, initial=0.5), partial(torch.optim.SGD, lr=0.05), spaces=spaces, target=wanted
        )
    entropies = []
    for update in range(400):
        outputs = loss.backward(**batch, entropy_weight=target.begin_batch(update)["entropy_weight"])
        entropy = outputs["policy_entropy"]
        target.end_batch(entropy) if form == "staged" else learn(target, entropy)
        entropies.append(entropy.mean(0))
    assert torch.stack(entropies[-100:]).mean(0).tolist() == pytest.approx([*wanted.values()], abs=0.05)
    if name == "sac of choices":  # of values 0, 1 and 2 at this temperature
        choices = Categorical(logits=torch.arange(3.0) / loss.temperature.of("discrete"))
        assert float(choices.entropy()) == pytest.approx(0.6, abs=0.05)


def test_weight_is_the_temperature(tmp_path):
    overrides = ["algorithm=sac", "env=mixedaction", "+with=entropy_target_sgd", *REPLAY]
    callbacks = train(overrides, run_dir=tmp_path / "run").trainer.callbacks
    assert "temperature" not in callbacks
    log, weight = callbacks["policy"].temperature.log, callbacks["entropy_target"].weight.log
    torch.testing.assert_close(log, weight, rtol=0.0, atol=0.0031)  # one step of Adam later; it began at 1
    assert {"entropy/continuous", "entropy/discrete"} <= callbacks["policy"].metrics.keys()


@pytest.mark.parametrize("weighted", ["+with=prioritized", "algorithm.recurrent=gru"])
def test_gradient_steps_take_weighted_batches(weighted, tmp_path):
    overrides = ["algorithm=sac", "env=pendulum", "+with=entropy_target_sgd", weighted, *REPLAY]
    assert train(overrides, run_dir=tmp_path / "run").trainer.callbacks["entropy_target"].weight.log != 0.0


SECOND = (
    "+callbacks.second={_target_: rlrun.algorithms.actor_critic.sac.TemperatureLoss, network: '${networks.temperature}'"
)
SECOND += ", optimizer: '${optimizer}', spaces: '${spaces}'}"
REFUSED = {
    **{name: ((f"algorithm={name}", "env=pendulum"), "no loss .* asks for") for name in ("td3", "mdq", "taac")},
    "dqn": (("algorithm=dqn", "env=cartpole"), "no loss .* asks for 'entropy_weight'"),
    "leaves": (
        ("algorithm=sac", "env=mixedaction", "callbacks.entropy_target.leaves=true"),
        "weighs level, choice; here there is a temperature of continuous, discrete",
    ),
    "epistemic": (
        ("algorithm=dsac", "env=pendulum", "algorithm.temperature.epistemic=0.1"),
        "remove algorithm.temperature.epistemic",
    ),
    "other actions": (
        ("algorithm=genrl", "env=thrusters", "init.networks.vae=null"),
        r"target\.spaces: its targets are for Box\[4\] float32, the policy chooses Box\[2\] float32; give \$",
    ),
    "two targets": (("algorithm=sac", "env=pendulum", SECOND), r"another source; remove ~callbacks\.second"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_check_refuses_what_has_no_effect(name):
    overrides, message = REFUSED[name]
    with pytest.raises(WiringError, match=message):
        check([*overrides, "+with=entropy_target"])


def test_clones_by_the_mode_have_no_entropy():
    loss, target = cloned(NUMBERS, partial(BCLoss, objective="mode")), EntropyTarget(NUMBERS)
    with pytest.raises(WiringError, match=r"callbacks\..* is an entropy target; set algorithm\.objective=likelihood"):
        plan({"target": target, "loss": loss}, {"default": ("observation", "action")}, ())
