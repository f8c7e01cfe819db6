"""`optimizer=` reaches every loss of every algorithm and addition; a loss may have another one."""

from functools import partial

import pytest
import torch
from tests.conf.files import CONF, overrides_of, provide
from tests.conf.test_every_config import empty_folder
from tests.short import SMALL, shrink

from rlrun.callbacks import LossCallback
from rlrun.config import build
from rlrun.config.composition import compose
from rlrun.nn import retuned

__all__ = ["empty_folder"]
OWN_RATE = sorted(
    path.relative_to(CONF).with_suffix("").as_posix()
    for path in CONF.rglob("*.yaml")
    if "rlrun.nn.retuned" in path.read_text()
)
OF_METHOD = {
    "algorithm/generator": ["algorithm.method=gpvi", "algorithm.scale=1.0"],
    "algorithm/hypernetwork": ["algorithm.method=gpvi", "algorithm.scale=1.0"],
    "algorithm/particles": ["algorithm.method=minmax"],
    "algorithm/functional_particles": ["algorithm.method=minmax"],
}


def optimizers(*overrides):
    """Return the optimizer of each callback that has one."""
    builder = build.Builder(shrink(compose([*overrides, "device=cpu"]), SMALL).config)
    callbacks = builder.get("callbacks")
    if (env := builder.built.get("env")) is not None:
        env.close()
    owned = {name: getattr(callback, "optimizer", None) for name, callback in callbacks.items()}
    return {name: optimizer for name, optimizer in owned.items() if optimizer is not None}


@pytest.mark.parametrize("group", ["algorithm", "preset", "env", "encoder", "memory", "data"])
def test_only_files_of_optimizers_name_a_class(group):
    named = [path.name for path in (CONF / group).glob("*.yaml") if "torch.optim" in path.read_text()]
    assert named == []


def test_additions_name_a_class_for_groups_of_parameters_alone():
    named = {path.stem for path in (CONF / "with").glob("*.yaml") if "torch.optim" in path.read_text()}
    assert named == {"parameter_groups", "weight_decay"}


DECAYING = (["optimizer=adamw", "optimizer.weight_decay=0.03"], torch.optim.AdamW, {"weight_decay": 0.03})
OTHERS = [
    (["optimizer=sgd", "optimizer.momentum=0.5"], torch.optim.SGD, {"momentum": 0.5}),
    (["optimizer=rmsprop", "optimizer.alpha=0.9"], torch.optim.RMSprop, {"alpha": 0.9}),
]


@pytest.mark.parametrize(
    ("file", "chosen", "kind", "settings"),
    [(file, *DECAYING) for file in OWN_RATE]
    + [(file, *other) for file in ("with/rnd", "with/lagrangian") for other in OTHERS],
)
def test_an_optimizer_reaches_every_loss(file, chosen, kind, settings):
    overrides = [*overrides_of(file), *OF_METHOD.get(file, [])]
    provide(overrides)
    found = optimizers(*overrides, *chosen)
    assert found
    assert {type(optimizer) for optimizer in found.values()} == {kind}
    for name, optimizer in found.items():
        decays_itself = name == "inverse"  # by `algorithm.inverse.weight_decay`
        assert decays_itself or settings.items() <= optimizer.defaults.items(), name


def test_an_addition_keeps_its_epsilon_beside_that_of_ppo():
    found = optimizers("algorithm=ppo", "env=cartpole", "preset=null", "+with=rnd")
    assert {name: optimizer.defaults["eps"] for name, optimizer in found.items()} == {"ppo": 1e-5, "rnd": 1e-8}
    found = optimizers("algorithm=ppo", "env=cartpole", "preset=null", "+with=rnd", "optimizer.additions.eps=1e-4")
    assert {name: optimizer.defaults["eps"] for name, optimizer in found.items()} == {"ppo": 1e-5, "rnd": 1e-4}


def test_groups_choose_parameters_of_an_addition_where_they_fit():
    groups = ["+with=[rnd,parameter_groups]", "optimizer.groups.slow={names: [actor], lr: 1e-5}"]
    with pytest.raises(Exception, match=r"groups\.slow"):
        optimizers("algorithm=sac", "env=pendulum", *groups, "optimizer.groups.slow.bad=1")
    groups[1] = "optimizer.groups.slow={names: [predictor], lr: 1e-5}"
    found = optimizers("algorithm=sac", "env=pendulum", *groups)
    names = {name: [group["name"] for group in optimizer.param_groups] for name, optimizer in found.items()}
    assert names["q_loss"] == [""]
    assert names["rnd"] == ["slow"]
    assert found["rnd"].defaults["lr"] == 3e-4


def test_constraints_decay_by_groups():
    overrides = ["algorithm=ppo", "env=constrainedbandit", "lagrangian.thresholds=[null,-0.25]"]
    group = "optimizer.groups.own={names: [raw], weight_decay: 0.5}"
    found = optimizers(*overrides, "+with=[lagrangian,parameter_groups]", group)
    assert [group["weight_decay"] for group in found["reward_weights"].param_groups] == [0.5]


@pytest.mark.parametrize(
    "overrides",
    [
        ["callbacks.policy.optimizer={_target_: torch.optim.SGD, lr: 1e-2, _partial_: true}"],
        [
            "+optimizer@policy_optimizer=sgd",
            "callbacks.policy.optimizer=${policy_optimizer}",
            "policy_optimizer.lr=1e-2",
        ],
    ],
)
def test_one_loss_may_have_another_optimizer(overrides):
    found = optimizers("algorithm=sac", "env=pendulum", *overrides)
    kinds = {name: type(optimizer) for name, optimizer in found.items()}
    assert kinds == {"q_loss": torch.optim.Adam, "policy": torch.optim.SGD, "temperature": torch.optim.Adam}
    assert found["policy"].defaults["lr"] == 1e-2


def test_a_class_of_torch_takes_the_place_of_an_additions_optimizer():
    found = optimizers("algorithm=sac", "env=pendulum", "+with=rnd", "callbacks.rnd.optimizer._target_=torch.optim.SGD")
    assert type(found["rnd"]) is torch.optim.SGD
    assert found["rnd"].defaults["lr"] == 3e-4


def test_a_schedule_keeps_the_share_of_an_additions_rate():
    overrides = ["algorithm=ppo", "env=cartpole", "preset=null", "+with=[rnd,anneal]", "intrinsic.rnd.lr=1e-2"]
    for name, share in optimizers(*overrides, "algorithm.lr=1e-3").items():
        assert getattr(share, "rate_factor", 1.0) == pytest.approx({"ppo": 1.0, "rnd": 10.0}[name])


def test_a_loss_multiplies_the_runs_rate_by_its_own_share():
    network = torch.nn.Linear(2, 1)
    recipe = partial(torch.optim.SGD, lr=1e-3)
    loss = LossCallback(network, optimizer=partial(retuned, optimizer=recipe, lr=1e-2))
    loss.set_rate(5e-4)
    assert [group["lr"] for group in loss.optimizer.param_groups] == pytest.approx([5e-3])


@pytest.mark.parametrize(("chosen", "decay"), [([], 0.0), (["optimizer=adamw"], 0.01)])
def test_parameters_of_no_group_keep_the_settings_of_the_optimizer(chosen, decay):
    found = optimizers("algorithm=sac", "env=pendulum", *chosen, "+with=parameter_groups")
    assert found["q_loss"].defaults["weight_decay"] == decay
