"""Policies of latent actions: what is decoded, what memory holds, and whose weights are loaded."""

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.actor_critic.genrl import LatentActions, LatentAgent, Latents
from rlrun.algorithms.density.vae import VAE
from rlrun.checkpointing import load
from rlrun.collect import Collector
from rlrun.commands.check import check
from rlrun.core.errors import ConfigError, RequestError, SpaceError
from rlrun.core.spaces import Box, Composite, Spaces
from rlrun.env import make
from rlrun.memory import Table
from rlrun.runs.directory import RunDir

from .fixed import DISCRETE

OBSERVATION = Box((4,), np.full(4, -np.inf, np.float32), np.full(4, np.inf, np.float32))
THRUSTS = Box((4,), np.full(4, -1.0, np.float32), np.full(4, 1.0, np.float32))
SPACES = Spaces(OBSERVATION, THRUSTS)
COLUMNS = {"observation": OBSERVATION, "action": THRUSTS}
READERS = [None, "observation"]


class Fixed(torch.nn.Module):
    """Act by half of the first two numbers, or of the last two if it does not explore."""

    def act(self, observation, explore=True):
        return 0.5 * (observation[:, :2] if explore else observation[:, 2:])


def latents_of(condition=None, **options):
    torch.manual_seed(0)
    vae = VAE(
        COLUMNS,
        latent=2,
        observation="action",
        condition=condition,
        condition_reader="decoder",
        hidden=[8],
        likelihood="gaussian",
    )
    return Latents(vae, SPACES, **options)


def by_hand(latents, latent, observation):
    read = 2.0 * latent if latents.vae.condition is None else torch.cat((2.0 * latent, observation), -1)
    return latents.vae.decoder(read).clamp(-1.0, 1.0)


@pytest.mark.parametrize("condition", READERS)
@pytest.mark.parametrize("scale", [0.2, 30.0])  # within bounds, and cut off by them
def test_policy_does_what_is_decoded(condition, scale):
    latents = latents_of(condition, multiplier=2.0)
    latents.vae.decoder.layers[-1].weight.mul_(scale)
    agent = LatentAgent(Fixed(), latents=latents)
    observation = torch.randn(50, 4)
    response = agent(observation.numpy())
    latent = 0.5 * observation[:, :2]
    action = by_hand(latents, latent, observation)
    assert (action.abs().max() == 1.0) == (scale > 1.0)
    assert set(response) == {*agent.outputs} == {"action", "latent"}
    np.testing.assert_array_equal(response["latent"], latent)
    np.testing.assert_allclose(response["action"], action, atol=1e-6)
    np.testing.assert_array_equal(agent.respond(observation, None, True)[0], response["action"])
    greedy = by_hand(latents, 0.5 * observation[:, 2:], observation)
    np.testing.assert_allclose(agent(observation.numpy(), explore=False)["action"], greedy, atol=1e-6)
    np.testing.assert_allclose(agent.respond(observation, None, False)[0], greedy, atol=1e-6)


def test_random_latent_actions_are_decoded():
    latents = latents_of("observation", multiplier=2.0)
    observation = torch.randn(500, 4)
    response = LatentAgent(Fixed(), latents=latents).at_random(THRUSTS, seed=0)(observation.numpy())
    latent = torch.from_numpy(response["latent"])
    np.testing.assert_allclose(response["action"], by_hand(latents, latent, observation), atol=1e-6)
    assert latent.shape == (500, 2)
    assert latent.min() < -0.98
    assert latent.max() > 0.98


@pytest.mark.parametrize("encode", [False, True])
def test_memory_keeps_actions_as_they_were(encode):
    latents = latents_of("observation", multiplier=0.05)  # so that many encoded ones are beyond it
    env = make(target="rlrun.env.toys.Thrusters", num_envs=2)
    column = {} if encode else {"latent": {"shape": [2]}}
    adaptors = {"latent_actions": LatentActions(latents, encode=encode)}
    tables = [Table(spaces=env.spaces, num_envs=2, length=80, columns=column, adaptors=part) for part in ({}, adaptors)]
    for table in tables:
        collector = Collector(env.copy(num_envs=2), LatentAgent(Fixed(), latents=latents), table)
        collector.begin_training()
        collector.collect(60)
    stored, adapted = (table.sample(64) for table in tables)
    assert torch.equal(adapted["observation"], stored["observation"])
    assert torch.equal(adapted["next_observation"], stored["next_observation"])
    observation, action = stored["observation"], stored["action"]
    torch.testing.assert_close(action, latents.decode(0.5 * observation[:, :2], observation))
    if not encode:
        assert torch.equal(adapted["action"], 0.5 * observation[:, :2])
        return
    mean = latents.vae.encoder({"observation": action, "condition": observation})[:, :2] / 0.05
    assert (mean.abs() > 1.0).any()
    torch.testing.assert_close(adapted["action"], mean.clamp(-1.0, 1.0))


def test_decoders_of_others_are_never_trained():
    latents = latents_of()
    assert not any(part.requires_grad for part in latents.vae.parameters())
    assert not latents.vae.training


@pytest.mark.parametrize(
    ("make_latents", "error", "message"),
    [
        (lambda: latents_of(multiplier=0.0), ConfigError, "latent_multiplier: wanted a number above 0"),
        (lambda: Latents(latents_of().vae, DISCRETE), SpaceError, "handles continuous actions only"),
        (
            lambda: Latents(latents_of().vae, Spaces(OBSERVATION, Composite({"a": THRUSTS, "b": DISCRETE.action}))),
            SpaceError,
            "handles continuous actions only",
        ),
    ],
)
def test_spaces_without_latents_are_refused(make_latents, error, message):
    with pytest.raises(error, match=message):
        make_latents()


TINY = ["logger=[]", "algorithm.hidden=[8]", "evaluation.episodes=2", "algorithm.batch_size=8"]
GENRL = ["algorithm=genrl", "env=thrusters", *TINY, "algorithm.vae_hidden=[8]", "algorithm.condition=observation"]
SHORT = ["algorithm.warmup_steps=50", "stop.env_steps=60"]


@pytest.fixture(scope="module")
def vae_run(tmp_path_factory):
    """Return the run of an autoencoder of demonstrations, trained for a few updates."""
    folder = tmp_path_factory.mktemp("vae")
    expert = ["algorithm=handcrafted", "env=thrusters", "stop.env_steps=300", "evaluation.every=0", "logger=[]"]
    rlrun.train(expert, run_dir=folder / "expert")
    data = f"data.dataset={folder / 'expert' / 'exports' / 'memory.zip'}"
    columns = ["algorithm.column=action", "algorithm.condition=observation", "algorithm.condition_reader=decoder"]
    numbers = ["algorithm.latent=2", "algorithm.likelihood=gaussian", "algorithm.hidden=[8]", "stop.updates=3"]
    overrides = ["algorithm=vae", "data=file", data, *columns, *numbers, "logger=[]"]
    rlrun.train(overrides, run_dir=folder / "vae")
    return folder / "vae"


def vae_of(run):
    """Return the tensors of the autoencoder in the newest checkpoint of a run, by name."""
    return load(RunDir.open(run).checkpoint(), ["networks.vae"])["networks.vae"]


def test_runs_load_the_autoencoder_and_leave_it(vae_run, tmp_path):
    rlrun.train([*GENRL, *SHORT, f"init.networks.vae={vae_run}"], run_dir=tmp_path / "run")
    trained, left = map(vae_of, (vae_run, tmp_path / "run"))
    assert len(trained) == 9
    assert trained.keys() == left.keys()
    assert all(torch.equal(left[name], tensor) for name, tensor in trained.items())


def test_decoders_load_alone_from_an_autoencoder(vae_run, tmp_path):
    decoder = f"init={{networks.vae: null, networks.vae.decoder: {vae_run}}}"
    rlrun.train([*GENRL, *SHORT, decoder], run_dir=tmp_path / "run")
    trained, left = map(vae_of, (vae_run, tmp_path / "run"))
    equal = {name: torch.equal(left[name], tensor) for name, tensor in trained.items() if "weight" in name}
    assert equal == {name: "decoder" in name for name in equal}


@pytest.mark.parametrize("latent", [2, 6])  # fewer numbers than four thrusts, and more
def test_preceding_actions_are_no_prior(latent):
    overrides = ["algorithm=genrl", "env=thrusters", "init.networks.vae=null", "+with=same_action_prior"]
    with pytest.raises(ConfigError, match=r"networks\.policy\.prior: memory stores decoded actions"):
        check([*overrides, f"algorithm.latent={latent}"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("init.networks.vae=../expert",), "expert/.* has no networks.vae; it has"),
        (("init.networks.vae=../vae", "algorithm.latent=3"), r"\[4, 8\] there, \[6, 8\] here.*; init.strict=false"),
        (("init.networks.vae=../vae", "algorithm.condition=null"), r"not fit: .*\[8, 6\] there, \[8, 2\] here"),
        (("init.networks.vae=../nowhere",), "^init.networks.vae: .*nowhere does not exist"),
        ((), "^init.networks.vae: a value is needed: init.networks.vae=…"),
    ],
)
def test_weights_of_something_else_are_refused(vae_run, monkeypatch, overrides, message):
    (folder := vae_run.parent / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    with pytest.raises(RequestError, match=message):
        rlrun.train([*GENRL, *SHORT, *overrides], run_dir="run")
    assert [*folder.iterdir()] == []
