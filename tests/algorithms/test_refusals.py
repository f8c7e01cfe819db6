"""What networks, targets and losses of algorithms refuse when they are made, and in which words."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.algorithms.actor_critic.action_repeat import decisions
from rlrun.algorithms.actor_critic.ddpg import DeterministicPolicyLoss
from rlrun.algorithms.actor_critic.doac import DOACAgent
from rlrun.algorithms.actor_critic.dsac import ImplicitQuantilePolicyLoss
from rlrun.algorithms.actor_critic.iql import AdvantageWeightedLoss, ValueLoss
from rlrun.algorithms.actor_critic.lagrangian import LagrangianWeights, RewardWeights
from rlrun.algorithms.actor_critic.oac import OACAgent
from rlrun.algorithms.actor_critic.prior import PolicyPrior, SameActionPrior, UniformPrior
from rlrun.algorithms.actor_critic.qrsac import FixedQuantileTarget
from rlrun.algorithms.actor_critic.sarsa import SarsaTarget
from rlrun.algorithms.actor_critic.seditor import Apart, Editor, EditorLoss
from rlrun.algorithms.actor_critic.taac import SwitchingPolicy, Trajectories, TrajectoryCritics
from rlrun.algorithms.density.rnd import Distillation
from rlrun.algorithms.imitation.bc import BCLoss
from rlrun.algorithms.imitation.handcrafted import WaypointFollow
from rlrun.algorithms.on_policy.trac import TrustRegion
from rlrun.algorithms.representation.diayn import Discriminator
from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.algorithms.value_based.mdq import BinPolicy
from rlrun.commands import check
from rlrun.config import compose
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.memory import Past
from rlrun.nn import (
    Critics,
    DeterministicPolicy,
    Encoder,
    ImplicitCritics,
    Policy,
    Quantiles,
    SquashedGaussian,
    Temperature,
    Value,
)

from .fixed import CONTINUOUS, DISCRETE, LINE, MANY, MIXED, column, deterministic, policy_of, sgd

NOTHING = SimpleNamespace(reward_sum=np.zeros(2), reward_steps=0)
UNBOUNDED = Box((2,), low=-np.inf, high=np.inf)
STACK = Box((4, 10, 10), np.zeros((4, 10, 10), np.uint8), np.full((4, 10, 10), 255, np.uint8), "uint8")


def lagrangian(thresholds, **options):
    network = RewardWeights(Spaces(LINE, LINE, rewards=2))
    return LagrangianWeights(network, sgd, paid=NOTHING, thresholds=thresholds, **options)


def weights(initial):
    return RewardWeights(Spaces(LINE, LINE, rewards=2), initial=initial)


def agent_of(kind, spaces, critics):
    policy, _ = policy_of(spaces, critics, alphas=(0.2,) * (1 + (spaces is MIXED)))
    return kind(policy, gaussian=policy.gaussian, critics=critics)


def quantile_target(critics, **options):
    return FixedQuantileTarget(critics, *policy_of(CONTINUOUS, critics), **options)


def critics_of(members):
    return ImplicitCritics(CONTINUOUS, hidden=(4,), members=members)


def priced(members):
    critics = critics_of(members)
    policy, temperature = policy_of(CONTINUOUS, critics)[0], Temperature(CONTINUOUS, epistemic=0.4)
    return ImplicitQuantilePolicyLoss(policy, sgd, critics=critics, temperature=temperature)


def past(**options):
    return Past(DeterministicPolicy(CONTINUOUS, hidden=(4,), core="gru", core_size=3), **options)


def editor(change):
    parts = dict.fromkeys(("utility", "utility_critics", "cost_critics", "weights", "temperature"))
    return EditorLoss(Editor(CONTINUOUS), sgd, **parts, change=change)


def switching(most_steps):
    critics = TrajectoryCritics(CONTINUOUS, hidden=())
    return SwitchingPolicy(CONTINUOUS, critics, Temperature(critics.decisions), hidden=(), most_steps=most_steps)


def followed(spaces):
    return DeterministicPolicyLoss(deterministic(0.5), sgd, critics=Critics(spaces), actor_q="frist")


def cut_optimism():
    cut, critics = SquashedGaussian(CONTINUOUS, hidden=(), distribution="truncated"), Critics(CONTINUOUS)
    return OACAgent(policy_of(CONTINUOUS, critics)[0], gaussian=cut, critics=critics)


SETTINGS = [
    (cut_optimism, r"^networks\.policy\.distribution: optimism moves a squashed normal; remove it"),
    (lambda: Policy(MIXED, distribution="cut"), "^distribution: wanted one of squashed, truncated, got 'cut'"),
    (lambda: decisions(CONTINUOUS, most=0), r"algorithm\.most_steps must be at least 1, not 0"),
    (lambda: BCLoss(Policy(CONTINUOUS), sgd, objective="mod"), r"objective: wanted one of likelihood, mode, got 'mod'"),
    (lambda: followed(CONTINUOUS), r"actor_q: wanted one of first, min, mean, got 'frist'.*first"),
    (lambda: QNetwork(DISCRETE, members=2, layers=torch.nn.Linear(1, 2)), r"one module cannot be 2 members"),
    (lambda: priced(1), r"deviation of critics; give algorithm\.ensemble at least 2, not 1$"),
    (lambda: Temperature(CONTINUOUS, epistemic=0.4).of("continuous"), "epistemic is for algorithm=dsac and doac"),
    (lambda: Temperature(CONTINUOUS, epistemic=0.0), r"^algorithm\.temperature\.epistemic: .* above 0, got 0.0$"),
    (lambda: Temperature(CONTINUOUS, epistemic=True), r"^algorithm\.temperature\.epistemic: .* above 0, got True$"),
    (lambda: ImplicitCritics(CONTINUOUS, value_head=Quantiles(3)), r"has quantiles; remove algorithm\.value_head "),
    (lambda: agent_of(DOACAgent, CONTINUOUS, critics_of(1)), r"^algorithm\.ensemble: DOAC uses the deviation of"),
    (lambda: ValueLoss(Value(CONTINUOUS), sgd, expectile=0.0), "expectile: wanted a number between 0 and 1"),
    (lambda: ValueLoss(Value(CONTINUOUS), sgd, expectile=1.0), "expectile: wanted a number between 0 and 1"),
    (lambda: AdvantageWeightedLoss(Policy(CONTINUOUS), sgd, temperature=0.0), "wanted a number above 0, got 0"),
    (lambda: lagrangian([0.1]), "thresholds: wanted 2"),
    (lambda: lagrangian(-0.1), "thresholds: wanted 2"),
    (lambda: lagrangian([None, None]), "none is given"),
    (lambda: lagrangian([None, 0.1], rate=1.5), r"lagrangian\.rate"),
    (lambda: weights(0.0), r"lagrangian\.initial"),
    (lambda: weights([1.0, -1.0]), r"lagrangian\.initial"),
    (lambda: weights([1.0, 1.0, 1.0]), r"lagrangian\.initial"),
    (lambda: BinPolicy(CONTINUOUS, Temperature(CONTINUOUS), bins=5), "bins: wanted at least 6 values .* got 5"),
    (lambda: SameActionPrior(CONTINUOUS, share=1.0), "wanted a share between 0 and 1 and a deviation above 0, got 1"),
    (lambda: SameActionPrior(CONTINUOUS)(column(0.0)), r"lack the previous action; \+with=same_action_prior"),
    (lambda: PolicyPrior(deterministic(0.5)), r"networks\.prior: a DeterministicPolicy has no distribution over such"),
    (lambda: BCLoss(SquashedGaussian(CONTINUOUS), sgd), "a SquashedGaussian has no `head`, as rlrun.nn.Policy has"),
    (lambda: PolicyPrior(SquashedGaussian(MIXED)), "a SquashedGaussian has no distribution over such actions"),
    (lambda: Past(Policy(CONTINUOUS, core="gru")), "past.stored: a Policy keeps its own state, and not"),
    (lambda: PolicyPrior(Policy(CONTINUOUS, core="gru")), r"networks\.prior\.core: a prior sees one observation"),
    *(
        (lambda prior=prior: policy_of(MANY, Critics(MANY), prior=prior), r"choices \(128,\), critics \(2, .* in both")
        for prior in (UniformPrior(MANY, joint_limit=128), PolicyPrior(Policy(MANY, joint_limit=128)))
    ),
    (lambda: quantile_target(Critics(CONTINUOUS)), r"algorithm\.quantiles"),
    (lambda: quantile_target(Critics(CONTINUOUS, quantiles=2), least="members"), r"^least: .*did you mean 'member'"),
    (lambda: past(length=4, burn_in=4), r"algorithm\.unroll: a window of 4 steps wants more than .*burn_in=4"),
    (lambda: past(length=4, burn_in=0, n_step=4), r"algorithm\.unroll: .* algorithm\.n_step=4"),
    (lambda: past(burn_in=-1), r"algorithm\.burn_in must be at least 0"),
    (lambda: past(burn_in=0.25), r"algorithm\.burn_in: wanted a whole number of steps, got 0\.25"),
    *(
        (lambda encoder=encoder: QNetwork(DISCRETE, layers=torch.nn.Linear(1, 2), encoder=encoder), "remove encoder=…")
        for encoder in (torch.nn.Linear(1, 2), partial(Encoder, features=3), partial(torch.nn.Linear, 1, 2))
    ),
    (lambda: QNetwork(DISCRETE, layers=torch.nn.Linear(1, 2), core="gru"), r"remove algorithm\.recurrent"),
    (lambda: editor("distanse"), r"algorithm\.change: wanted one of utility, distance, got 'distanse'"),
    (lambda: Trajectories(CONTINUOUS, "linaer"), r"algorithm\.trajectory: wanted one of .*, got 'linaer'"),
    (lambda: switching(0), r"algorithm\.most_steps must be at least 1, not 0"),
    (lambda: TrustRegion(policy_of(DISCRETE, Critics(DISCRETE))[0], spaces=DISCRETE), "SoftPolicy has no policy with"),
]


@pytest.mark.parametrize(("make", "message"), SETTINGS)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


NUMBERS_ONLY = [
    (DeterministicPolicy, "actions that are numbers"),
    (ImplicitCritics, "^ImplicitCritics handles continuous actions only"),
    (lambda spaces: BinPolicy(spaces, Temperature(spaces)), "handles continuous actions only"),
    (lambda spaces: agent_of(OACAgent, spaces, Critics(spaces)), "numbers; here they are"),
    (
        lambda spaces: quantile_target(Critics(spaces, hidden=(), quantiles=2)),
        r"^QRSAC .* Discrete\(2\) .algorithm=sac",
    ),
    (lambda spaces: SarsaTarget(Critics(spaces), deterministic(0.5)), "handles continuous actions only"),
    (Editor, "handles continuous actions only"),
    (TrajectoryCritics, "for continuous actions"),
]


@pytest.mark.parametrize("spaces", [DISCRETE, MIXED], ids=["discrete", "mixed"])
@pytest.mark.parametrize(("make", "message"), NUMBERS_ONLY)
def test_choices_are_refused(make, message, spaces):
    with pytest.raises(SpaceError, match=message):
        make(spaces)


SPACES = [
    (lambda: QNetwork(MIXED), r"^DQN handles discrete actions only; action part 'level' is Box\[1\]"),
    (lambda: QNetwork(CONTINUOUS), r"the action space is Box\[1\]"),
    (lambda: SameActionPrior(DISCRETE), "continuous actions; here they are Discrete"),
    (lambda: Apart(CONTINUOUS, lambda: torch.ones(2)), r"\[utility, -cost\], and it is one plain number"),
    (lambda: WaypointFollow(Spaces(LINE, LINE)), r"\[speed, steer, reverse\] within bounds, not Box\[1\]"),
    (lambda: Distillation(CONTINUOUS, frames=1), r"rnd\.frames.*more than 1 frames"),
    (lambda: Distillation(Spaces(STACK, LINE), frames=4), r"rnd\.frames.*more than 4 frames"),
    *(
        (lambda space=space: Discriminator(Spaces(space, LINE)), "a choice or bounded numbers 'goal' and something")
        for space in (LINE, Composite({"goal": Discrete(3)}), Composite({"goal": UNBOUNDED, "x": LINE}))
    ),
]


@pytest.mark.parametrize(("make", "message"), SPACES)
def test_wrong_spaces_are_refused(make, message):
    with pytest.raises(SpaceError, match=message):
        make()


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        *(("ppo", key) for key in ("lambda", "return_lambda", "value_weight", "entropy_weight")),
        *(("ppg", f"auxiliary.{name}_weight") for name in ("value", "kl")),
        *(("td3", key) for key in ("noise.deviation", "noise.target", "noise.target_limit", "action_weight")),
        *(("sarsa_ddpg", key) for key in ("noise.deviation", "noise.target", "noise.target_limit")),
        *(("hypernetwork", key) for key in ("entropy_weight", "ridge", "information_weight", "extra.deviation")),
        *(("trac", "per_dim"), ("mdq", "distill_noise"), ("oac", "exploration.shift"), ("iql", "edge")),
        *(("vq_vae", "commitment"), ("merlin", "lambda"), ("a2c", "value_weight")),
    ],
)
def test_weights_shares_and_deviations_are_not_negative(algorithm, key):
    env = [] if algorithm in ("hypernetwork", "vq_vae") else ["env=pendulum"]
    composed = compose([f"algorithm={algorithm}", *env, f"algorithm.{key}=-1"])
    with pytest.raises(ConfigError, match=r"wanted a number (from|above) 0.*, got -1"):
        check.check(composed)
