"""A representation in front of algorithms: who sees what, who trains what, and in what order."""

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.representation import Represent, RepresentationLoss, represented
from rlrun.collect.agents import chain, to_arrays, to_tensors
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Cast
from rlrun.nn import InverseModel, Normalizer

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
