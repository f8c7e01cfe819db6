"""Additions that go together add; two that would displace something of each other are refused."""

import pytest

from rlrun.config import compose
from rlrun.config.interpolation import plain
from rlrun.core.errors import ConfigError

SAC = ("algorithm=sac", "env=pendulum", "preset=null")
STORED = "dataset=demonstrations.zip"
APART = {  # by what both set
    "memory.sampler": (*SAC, "+with=[prioritized,whole_replay]"),
    "collector": (*SAC, "+with=[async,offline]", STORED),
    "callbacks.temperature": (*SAC, "+with=[uniform_prior,entropy_target]"),
    "spaces.network": ("algorithm=ppo", "env=cartpole", "+with=[predictive,representation]"),
    "loader": ("algorithm=sarsa", "env=pendulum", "preset=null", "+with=[whole_replay,on_policy]"),
}


@pytest.mark.parametrize("key", APART)
def test_two_parts_in_one_place_are_refused(key):
    with pytest.raises(ConfigError, match=rf"^\+with=\w+ and \+with=\w+ do not go together: both set {key}; leave one"):
        compose(APART[key])


def test_a_key_of_two_values_is_the_users_to_set():
    with pytest.raises(ConfigError, match=r"^mixed.parts.own.share: \+with=imagination and \+with=offline_share give"):
        compose(["algorithm=mbpo", "env=cartpole", "+with=offline_share", STORED])
    message = r"^intrinsic.extrinsic_weight: \+with=diayn and \+with=rnd give 0.0 and 1.0; intrinsic.extrinsic_weight=…"
    with pytest.raises(ConfigError, match=message):
        compose([*SAC, "+with=[diayn,rnd]"])
    composed = compose([*SAC, "+with=[diayn,rnd]", "intrinsic.extrinsic_weight=0.5"])
    assert composed.config.intrinsic.extrinsic_weight == 0.5
    assert {*composed.config.memory.adaptors.intrinsic.bonuses} == {"diayn", "rnd"}


@pytest.mark.parametrize(
    "overrides",
    [
        ("+with=[lagrangian_evaluated,lagrangian]", "env=constrainedbandit", "lagrangian.thresholds=[null,-0.25]"),
        ("+with=[random_goal,learned_goal]",),
        ("+with=[prioritized,whole_replay]", "memory.sampler._target_=rlrun.memory.Shuffled"),
        ("+with=[entropy_target,uniform_prior]", "~callbacks.temperature"),
        ("+with=[parameter_groups,weight_decay]",),
    ],
)
def test_what_starts_from_another_or_is_settled_goes_together(overrides):
    compose([*SAC, *overrides])


@pytest.mark.parametrize("names", ["curl,spr,prefetch", "prefetch,spr,curl"])
def test_order_changes_the_order_of_terms_alone(names):
    tree = plain(compose(["algorithm=dqn", "env=cartpole_pixels", f"+with=[{names}]"]).config)
    assert next(iter(tree["joint"]["terms"])) == "q_loss"
    assert tree["joint"]["terms"].keys() == {"q_loss", "curl", "spr"}
    assert (tree["trainer"]["loader"], tree["trainer"]["callbacks"]) == ("${ahead}", "${replaced}")
