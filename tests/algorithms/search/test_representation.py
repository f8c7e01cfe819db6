"""MuZero's model in front of an algorithm: who sees and trains what, at which pace, from which rows."""

import gymnasium
import numpy as np
import pytest
import torch
from tests.algorithms.runs import REPLAY, ROLLOUT
from tests.identical import compare
from tests.short import copy_as_killed

import rlrun
from rlrun.algorithms.search import Candidates, search_of
from rlrun.algorithms.search.representation import (
    MuZeroRepresentation,
    MuZeroRepresentationLoss,
    MuZeroRepresentationTargets,
    trajectory_of,
    weighed,
)
from rlrun.collect.agents import to_arrays, to_tensors
from rlrun.commands.check import check
from rlrun.core.errors import RequestError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Scale, Table, WeighRewards
from rlrun.training.callback import Callback

pytestmark = pytest.mark.usefixtures("folder")

NAME = "muzero_representation"
SIZES = {"latent": 6, "hidden": "[8]", "dynamics": "[8]", "prediction": "[8]", "batch_size": 8, "warmup_steps": 20}
WITH = (f"+with={NAME}", *(f"{NAME}.{key}={value}" for key, value in SIZES.items()))
CARTPOLE = ("env=cartpole", "preset=null")
FAMILIES = {
    "dqn": ("algorithm=dqn", *CARTPOLE, *REPLAY),
    "images": ("algorithm=dqn", "env.target=rlrun.env.toys.ImageObservation", *REPLAY),
    "ppo": ("algorithm=ppo", *CARTPOLE, "algorithm.batch_size=16", *ROLLOUT),
    "sac": (
        *("algorithm=sac", *CARTPOLE, *REPLAY, f"{NAME}.reanalyze.share=0.5", f"{NAME}.reanalyze.simulations=2"),
        *(f"{NAME}.weights.consistency=1.0", f"{NAME}.consistency=squares"),
    ),
    "numbers": (
        *("algorithm=sac", "env=pendulum", "preset=null", *REPLAY),
        *(f"{NAME}.reanalyze.share=0.5", f"{NAME}.reanalyze.simulations=2"),
    ),
    "recurrent": ("algorithm=a2c", *CARTPOLE, "algorithm.recurrent=gru", *ROLLOUT),
    "windows": ("algorithm=dqn", *CARTPOLE, "algorithm.recurrent=gru", "algorithm.burn_in=2", *REPLAY),
    "muzero": ("algorithm=muzero", *CARTPOLE, "algorithm.search.simulations=2", *REPLAY),
}


def trained(*overrides):
    return rlrun.train([*overrides], run_dir="run").trainer


def weights(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


class Paced(Callback):
    """Notes the environment step of each update of the model."""

    data_group = NAME

    def __init__(self):
        self.steps = []

    def begin_batch(self, step):
        self.steps.append(step)


PACED = f"+callbacks.paced={{_target_: {__name__}.Paced}}"


@pytest.mark.parametrize("family", FAMILIES)
def test_any_algorithm_learns_from_latents(family, caplog):
    trainer = trained(*FAMILIES[family], *WITH)
    model, collector = trainer.callbacks[NAME], trainer.callbacks["collector"]
    network, policy = model.network, collector.agent.policy
    assert model.metrics["representation/loss_value"] > 0
    assert (model.metrics["representation/loss_policy"] != 0) == (family in ("sac", "numbers"))
    assert (model.metrics.get("representation/loss_consistency", 0.0) > 0) == (family == "sac")
    assert not {id(weight) for weight in policy.parameters()} & {id(weight) for weight in network.parameters()}
    seen = trainer.callbacks["muzero_memory"].table.sample(2)["observation"]
    assert seen.shape[1:] == collector.env.spaces.observation.shape  # what is stored is the environment's
    assert "replaces another one of this name" not in caplog.text
    if family in ("dqn", "images", "ppo"):
        with torch.no_grad():
            latent = network.represent(to_tensors(collector.observation))
            expected = to_arrays(policy.act(latent, explore=False))
        assert latent.shape[-1] == 6
        assert repr(collector.agent(collector.observation, explore=False)["action"]) == repr(expected)


RANDOM = ("algorithm=dqn", *CARTPOLE, *REPLAY, "algorithm.epsilon.first=1", "algorithm.epsilon.last=1")


def test_neither_trains_the_other():
    base, still = (*RANDOM, *WITH, "stop.updates=40"), "lr=1e-30"  # actions do not depend on what is learned
    runs = {"both": (), "model": (f"algorithm.{still}",), "critic": (f"{NAME}.{still}",)}
    models, critics = {}, {}
    for name, more in runs.items():
        callbacks = rlrun.train([*base, *more], run_dir=name).trainer.callbacks
        models[name], critics[name] = weights(callbacks[NAME].network), weights(callbacks["q_loss"].network)
    for name in models["both"]:
        assert torch.equal(models["both"][name], models["model"][name]), f"the loss of the critic moves {name}"
    network = {name: distance(models["both"][name], models["critic"][name]) for name in models["both"]}
    moved = {name.partition(".")[0] for name, far in network.items() if far > 1e-4}
    assert moved == {"representation", "dynamics", "prediction"}
    assert any(distance(critics["both"][name], critics["critic"][name]) > 1e-4 for name in critics["both"])
    assert any(distance(critics["both"][name], critics["model"][name]) > 1e-4 for name in critics["both"])
    first = rlrun.train([*base, f"algorithm.{still}", f"{NAME}.{still}", "stop.updates=1"], run_dir="first").trainer
    for name, value in weights(first.callbacks[NAME].network).items():
        assert distance(value, models["critic"][name]) < 1e-20, f"something else moves {name}"


def distance(one, other):
    return float((one - other).abs().max())


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            (*RANDOM, "num_envs=2", "algorithm.warmup_steps=8", f"{NAME}.every=6", f"{NAME}.updates=3"),
            [step for step in (20, 26, 32, 38) for _ in range(3)],
        ),
        ((*RANDOM, "algorithm.warmup_steps=30", f"{NAME}.every=7"), [31, 38]),  # after the first step
        (
            (*FAMILIES["ppo"], f"{NAME}.warmup_steps=40", f"{NAME}.updates=2"),
            [64, 64, 96, 96, 128],  # once each rollout of 32 steps
        ),
    ],
)
def test_the_model_has_its_own_pace(overrides, expected):
    most = 128 if "algorithm=ppo" in overrides else 40
    trainer = trained(*WITH, *overrides, PACED, "stop.updates=null", f"stop.env_steps={most}")
    assert trainer.callbacks["paced"].steps == expected


class Clock(gymnasium.Env):
    """Observe the number of steps so far; episodes of 7 steps end, or are cut off, in turns."""

    observation_space = gymnasium.spaces.Box(0.0, 1e6, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.steps = self.episodes = -1

    def seen(self):
        self.steps += 1
        return np.array([self.steps], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes, self.begun = self.episodes + 1, self.steps + 1
        return self.seen(), {}

    def step(self, action):
        seen = self.seen()
        over, cut = self.steps - self.begun == 7, self.episodes % 2 == 1
        return seen, float(self.steps), over and not cut, over and cut, {}


def test_only_the_newest_steps_are_learned_from():
    env = f"env.target={__name__}.Clock"
    trainer = trained("algorithm=dqn", env, *REPLAY, *WITH, f"{NAME}.memory=24", "stop.updates=60")
    table, own = trainer.callbacks["muzero_memory"].table, trainer.callbacks["collector"].table
    seen = table.sample(500)["observation"]
    newest = float(trainer.callbacks["collector"].observation[0, 0])
    assert newest - 30 < seen.min() < newest - 15, "24 steps, and the last observations of episodes between them"
    assert len(table) < 24 < len(own) == 60 + 40 - 1


SPACES = Spaces(Box((1,), np.zeros(1), np.full(1, 100.0)), Discrete(2))


def network():
    torch.manual_seed(0)
    model = MuZeroRepresentation(SPACES, latent=4, hidden=[8], dynamics=[8], prediction=[8])
    torch.nn.init.normal_(model.prediction[-1].weight)
    return model


def stored(*adaptors, ends=("terminated", "truncated")):
    """Return a table of episodes of 6 steps whose observations and rewards are 0, 1, …"""
    table = Table(spaces=SPACES, length=100, adaptors=adaptors)
    at = 0
    for end in ends:
        for step in range(6):
            flags = {flag: np.array([step == 5 and flag == end]) for flag in ("terminated", "truncated")}
            here = np.full((1, 1), at, np.float32)
            table.add(None, {"observation": here, "action": np.array([at % 2]), "reward": here[0], **flags})
            at += 1
        table.close(None, np.full((1, 1), at, np.float32))
    return table


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_nothing_of_a_search_need_be_stored(share):
    model, steps, td = network(), 2, 3
    trajectory = trajectory_of(
        Candidates(model.codec), unroll=steps, td_steps=td, share=share, reanalyze_td_steps=td, seed=0
    )
    batch = stored(trajectory).sample(64)
    search = search_of(gumbel=True, simulations=2)
    options = {"td_steps": td, "reanalyze_td_steps": td, "share": share, "discount": 0.9, "tau": 1.0, "every": 1}
    provider = MuZeroRepresentationTargets(model, search, noise=False, **options)
    wanted = provider.target(batch["trajectory"], batch["later"])[0]["wanted"]
    value = model.value(torch.arange(13.0).unsqueeze(-1)).detach()
    for row, first in enumerate(batch["observation"][:, 0].int().tolist()):
        end = 6 if first < 6 else 12
        for k in range(steps + 1):
            at = min(first + k, end)
            last = min(at + td, end)
            expected = sum(0.9**j * float(at + j) for j in range(last - at))
            if last < end or end == 12:  # the first episode terminates
                expected += 0.9 ** (last - at) * float(value[last])
            if not share or last - first > steps:  # otherwise its value is that of a search
                assert float(wanted["value"][row, k]) == pytest.approx(expected, rel=1e-4), (first, k)
        policy = wanted["policy"][row, : end - first].sum(-1)  # nothing is learned where an episode is over
        assert policy.tolist() == pytest.approx([share] * len(policy))
    loss = MuZeroRepresentationLoss(model, None)
    metrics = loss.loss(batch["observation"], batch["trajectory"], wanted, batch["later"])[2]
    assert bool(metrics["representation/loss_policy"].sum() > 0) is bool(share)


def test_several_rewards_are_weighed_as_the_algorithm_weighs_them():
    assert weighed({"clip": Scale("reward", factor=0.5)}) is None
    sums = weighed({"clip": None, "weights": WeighRewards([2.0, 0.5])})
    assert sums.change(torch.tensor([[1.0, 4.0]])).tolist() == [4.0]


@pytest.mark.parametrize("family", ["sac", "ppo"])
def test_a_resumed_run_is_exact(family, tmp_path):
    own = (*FAMILIES[family], *WITH, "num_envs=3", f"{NAME}.every=6", f"{NAME}.updates=2")
    paced = ("stop.updates=null", "stop.env_steps=144", "checkpoint.every=48", "checkpoint.keep_last=null")
    run = rlrun.train([*own, *paced], run_dir="run").run_dir
    copy_as_killed(run, tmp_path / "killed", at=96)
    rlrun.resume(tmp_path / "killed")
    assert all(compare(run, tmp_path / "killed").values())


def test_a_resume_without_rows_waits_for_new_ones(tmp_path):
    base = (*FAMILIES["ppo"], *WITH, "checkpoint.memory=false", "checkpoint.every=32", "checkpoint.keep_last=null")
    run = rlrun.train([*base, "stop.updates=null", "stop.env_steps=96"], run_dir="run").run_dir
    copy_as_killed(run, tmp_path / "killed", at=64)
    assert rlrun.resume(tmp_path / "killed").summary["env_steps"] == 96


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("algorithm=bc", "env=cartpole", "dataset=none.zip"), "^collector: .* nothing is collected"),
        (
            ("algorithm=dqn", "env.target=rlrun.env.by_id.Crowd", "+with=by_id"),
            "^collector: wanted a rlrun.collect.Collector, .* a ByIdCollector collects",
        ),
        (
            ("algorithm=dqn", "env=cartpole", "+with=predictive"),
            r"\+with=predictive and \+with=muzero_representation do not go together",
        ),
        (("algorithm=dqn", "env=cartpole", f"{NAME}.latent=0"), f"{NAME}.latent: wanted a whole number from 1, got 0"),
        (
            ("algorithm=dqn", "env=cartpole", f"{NAME}.weights.consistency=1"),
            f"^{NAME}.consistency: a cosine is that of",
        ),
        (("algorithm=dqn", "env=cartpole", f"{NAME}.unroll=null"), f"{NAME}.unroll: wanted a whole number, got null"),
        (("algorithm=dqn", "env=cartpole", f"{NAME}.td_steps=-2"), f"{NAME}.td_steps: wanted a whole number from 1"),
        (("algorithm=dqn", "env=cartpole", f"{NAME}.tau=2"), f"{NAME}.tau: wanted a number from 0 to 1, got 2"),
        (("algorithm=dqn", "env=cartpole", f"{NAME}.target_every=0"), f"{NAME}.target_every: wanted a whole number"),
        (("algorithm=dqn", "env=cartpole", f"{NAME}.discount=[0.9]"), f"{NAME}.discount: wanted a number"),
        (
            ("algorithm=dqn", "env=cartpole", f"{NAME}.reanalyze.share=much"),
            f"{NAME}.reanalyze.share: wanted a number",
        ),
        (
            ("algorithm=dqn", "env=cartpole", f"{NAME}.weights.value=-1"),
            f"{NAME}.weights.value: wanted a number from 0",
        ),
        (
            ("algorithm=dqn", "env=cartpole", f"{NAME}.warmup_steps=-1"),
            rf"^{NAME}.warmup_steps must be",
        ),
    ],
)
def test_what_cannot_work_is_refused(overrides, message):
    with pytest.raises(RequestError, match=message):
        check([*overrides, f"+with={NAME}"])
