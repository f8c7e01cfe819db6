"""A representation in front of algorithms: who sees what, who trains what, and in what order."""

import functools
import inspect

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.representation.representation import (
    Represent,
    RepresentationLoss,
    SharedRepresentation,
    SharedRepresentationLoss,
    represented,
)
from rlrun.callbacks import CriticLoss, JointLoss
from rlrun.collect.agents import chain, to_arrays, to_tensors
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Cast
from rlrun.nn import Critics, InverseModel, Normalizer, Trunk
from rlrun.nn.recurrent import with_state

from .runs import REPLAY, ROLLOUT

pytestmark = pytest.mark.usefixtures("folder")

IMAGES = "env.target=rlrun.env.toys.ImageObservation"
FAMILIES = {
    "sac": ("algorithm=sac", "env=pendulum", "preset=null", *REPLAY),
    "dqn-images": ("algorithm=dqn", IMAGES, *REPLAY),
    "ppo": ("algorithm=ppo", "env=mixedaction", "algorithm.batch_size=16", *ROLLOUT),
    "recurrent": ("algorithm=a2c", "env=cartpole", "preset=null", "algorithm.recurrent=gru", *ROLLOUT),
}


def trained(overrides, tmp_path):
    result = rlrun.train([*overrides, "representation.hidden=[12,6]"], run_dir=tmp_path / "run")
    return result.trainer


@pytest.mark.parametrize("family", FAMILIES)
def test_any_algorithm_learns_from_features(family, tmp_path):
    trainer = trained([*FAMILIES[family], "+with=representation"], tmp_path)
    callbacks = trainer.callbacks
    network, collector = callbacks["representation"].network, callbacks["collector"]
    assert callbacks["representation"].metrics["representation/inverse"] > 0
    assert network.features.size == 6
    policy = collector.agent.policy
    assert not {id(weight) for weight in policy.parameters()} & {id(weight) for weight in network.parameters()}
    columns = [name for name in collector.table.names() if name.startswith("observation")]
    assert columns  # what is stored is the environment's
    if family != "recurrent":
        with torch.no_grad():
            features = network.features(to_tensors(collector.observation))
            expected = to_arrays(policy.act(features, explore=False))
        acted = collector.agent(collector.observation, explore=False)["action"]
        assert repr(acted) == repr(expected)


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=pointreach", "+with=[representation,hindsight]"),
        ("env=pendulum", "preset=null", "+with=[representation,imagination]", "imagination.model.every=8"),
    ],
)
def test_goals_and_models_of_the_world_are_of_stored_observations(overrides, tmp_path):
    trainer = trained(["algorithm=sac", *overrides, *REPLAY], tmp_path)
    imagination = trainer.callbacks.get("imagination")
    assert imagination is None or len(imagination.table) > 0
    assert trainer.callbacks["representation"].metrics["representation/inverse"] > 0


def test_samples_are_features_of_stored_rows(tmp_path):
    steps = 3
    overrides = ["algorithm=sac", "env=pendulum", "preset=null", f"algorithm.n_step={steps}", *REPLAY]
    trainer = trained([*overrides, "+with=representation"], tmp_path)
    table, network = trainer.loader.table, trainer.callbacks["representation"].network
    batch = table.sample(32)
    ((_, rows),) = batch.parts
    slots, lengths = rows.onward(steps)
    last = slots[np.arange(32), lengths]
    with torch.no_grad():
        assert torch.allclose(batch["observation"], network.features(rows.stored("observation", rows.index)))
        assert torch.allclose(batch["next_observation"], network.features(rows.stored("observation", last)))
    raw = batch["untransformed"]  # a single transition, for the learner
    assert raw["observation"].shape == (32, 3)
    assert torch.equal(raw["next_observation"], rows.stored("observation", rows.successor))


def test_bonuses_see_features(tmp_path):
    trainer = trained([*FAMILIES["sac"], "+with=[rnd,observation_norm,representation]"], tmp_path)
    kinds = [type(adaptor).__name__ for adaptor in trainer.loader.table.adaptors]
    assert kinds.index("Represent") < kinds.index("Intrinsic") < kinds.index("ObservationNormalize")
    assert trainer.callbacks["rnd"].network.random[0].size == 6
    preprocess = trainer.callbacks["collector"].agent.preprocess
    assert [type(getattr(step, "__self__", step)).__name__ for step in preprocess] == ["Represent", "Normalizer"]


@pytest.mark.parametrize("order", ["icm,representation", "representation,icm"])
def test_curiosity_sees_features(order, tmp_path):
    trainer = trained([*FAMILIES["sac"], f"+with=[{order}]"], tmp_path)
    assert trainer.callbacks["icm"].network.features.encoded == 6


SPACE = Box((3,), np.full(3, -1.0, np.float32), np.ones(3, np.float32))


def test_preprocessing_has_the_memorys_order():
    network = InverseModel(Spaces(SPACE, Discrete(4)), hidden=(5,))
    normalize, cast, represent = Normalizer(SPACE), Cast("observation"), Represent(network)
    steps = chain({"norm": normalize, "cast": cast, "none": None, "front": represent})
    assert [getattr(step, "__self__", step) for step in steps] == [represent, normalize, cast]


def test_only_the_representation_loss_sends_gradients():
    torch.manual_seed(0)
    network = InverseModel(Spaces(SPACE, Discrete(4)), hidden=(5,))
    seen = torch.randn(6, 3)
    assert not Represent(network).preprocess(seen).requires_grad
    loss = RepresentationLoss(network, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    before = [parameter.clone() for parameter in network.parameters()]
    batch = {"observation": seen, "next_observation": torch.randn(6, 3), "action": torch.arange(6) % 4}
    first, *_ = loss.loss(batch)
    assert first.tolist() == pytest.approx([np.log(4)] * 6, rel=1e-5)  # the first prediction is uniform
    for _ in range(60):
        loss.backward(batch)
    assert loss.loss(batch)[0].mean() < 0.5 * first.mean()
    assert all(not torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize("core", [None, "gru"])
@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_both_losses_train_a_shared_representation(core, weight):
    torch.manual_seed(0)
    spaces = Spaces(Box((3,), np.full(3, -1.0), np.full(3, 1.0)), Discrete(2))
    critics = Critics(spaces, hidden=[4], encoder=functools.partial(Trunk, hidden=[5], core=core, core_size=5))
    terms = {"q_loss": CriticLoss(critics, None)}
    network = SharedRepresentation(critics, model=[4])
    for parameter in network.tell.parameters():
        torch.nn.init.normal_(parameter)  # its last layer begins with zeros
    terms["representation"] = SharedRepresentationLoss(network, None)
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    joint = JointLoss(sgd, terms=terms, loss_weight={"representation": weight})
    batch = {"observation": torch.randn(4, 2, 3), "next_observation": torch.randn(4, 2, 3)}
    for name in ("observation", "next_observation") if core else ():
        batch[name] = with_state(batch[name], torch.randn(4, 5), torch.tensor([[0, 1]] * 4))
    batch |= {"action": torch.randint(0, 2, (4, 2)), "q_target": torch.randn(4, 2)}
    assert network.size == 5
    layer = critics.encoder.layers[0].weight
    before, losses = layer.detach().clone(), []
    for term in terms.values():
        names = inspect.signature(term.loss).parameters
        losses.append(term.loss(**{name: value for name, value in batch.items() if name in names})[0].mean())
    gradients = [torch.autograd.grad(loss, [layer])[0] for loss in losses]
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    joint.backward(**batch)
    torch.testing.assert_close(layer, before - 0.1 * (gradients[0] + weight * gradients[1]))


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        (["algorithm=sac", "env=pendulum", "+with=[representation_shared,shared_encoder]"], 3),  # one for both
        (["algorithm=action_repeat", "env=mixedaction", "+with=representation_shared"], 6),
    ],
)
def test_agents_keep_the_state_of_a_shared_representation(overrides, size, tmp_path):
    core = ("encoder.core=gru", "encoder.core_size=3", "encoder.hidden=[12,6]")
    callbacks = rlrun.train([*overrides, "preset=null", *REPLAY, *core], run_dir=tmp_path / "run").trainer.callbacks
    collector = callbacks["collector"]
    assert "state" in collector.table.storage.columns
    assert float(callbacks["q_loss"].metrics["representation/inverse"]) > 0.0
    assert collector.agent.policy.state_size == size


def test_any_representations_are_learned_together(tmp_path):
    added = ("representation_shared", "spr", "autoencoder_shared", "curl", "predictive_shared")
    overrides = ["algorithm=sac", IMAGES, "preset=null", *REPLAY, f"+with=[{','.join(added)}]", "encoder.hidden=[12,6]"]
    loss = rlrun.train([*overrides, "spr.weight=0.5"], run_dir=tmp_path / "run").trainer.callbacks["q_loss"]
    weights = {"q_loss": 1.0, "representation": 1.0, "spr": 0.5, "reconstruction": 1.0, "curl": 1.0, "predictive": 1.0}
    assert [*loss.loss_weight.items()] == [*weights.items()]  # in the order of the overrides
    assert {f"loss/{name}" for name in weights} <= {*loss.metrics}
    assert {name.partition(".")[0] for name in loss.names} == {*weights}
    assert {int(loss.optimizer.state[parameter]["step"]) for parameter in loss.parameters} == {loss.updates}


def test_invalid_rows_teach_nothing():
    network = InverseModel(Spaces(SPACE, Discrete(4)), hidden=(5,))
    loss = RepresentationLoss(network, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    batch = {"observation": torch.randn(2, 3), "next_observation": torch.randn(2, 3), "action": torch.tensor([0, 1])}
    assert loss.loss(batch, torch.tensor([True, False]))[0].tolist()[1] == 0.0


def test_spaces_keep_action_and_rewards():
    class Lanes:
        spaces = Spaces(SPACE, Discrete(4), rewards=2)

    spaces = represented(Lanes(), InverseModel(Lanes.spaces, hidden=(5,)))
    assert (spaces.observation.shape, spaces.action, spaces.rewards) == ((5,), Discrete(4), 2)
