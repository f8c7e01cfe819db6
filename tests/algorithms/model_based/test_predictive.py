"""Latents predict later columns under actions: what they learn from, the loss in plain form, and planning by them."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.algorithms.runs import ROLLOUT
from torch import nn

import rlrun
from rlrun.algorithms.model_based.planning import CEM
from rlrun.algorithms.model_based.predictive import FieldDecoder, Predictive, PredictiveLoss
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.memory import Table, Unrolled
from rlrun.nn import Core, Critics, SharedFeatures, Trunk, WorldModel
from rlrun.nn.recurrent import with_state

from .test_planning import box

SPACES, LINE = Spaces(box(3, 10.0), box(2)), Spaces(box(1, 1e3), box(1, 1e3))
REWARD = partial(FieldDecoder, field="reward", hidden=[4])
STATE = partial(FieldDecoder, field="observation")
TRACKS = ("FMMMLFMMLFMMMM", "FMMMMMLFMMMMLF")
FIELDS = {"seen": "observation", "paid": "reward"}


def stored(length=100, steps=4):
    """Return a table of the tracks: observations, and actions and rewards that lead there, are 100 env + position."""
    adaptors = [Unrolled(steps=steps, fields=FIELDS)]
    table = Table(spaces=LINE, num_envs=len(TRACKS), length=length, adaptors=adaptors)
    for env, track in enumerate(TRACKS):
        for position, kind in enumerate(track):
            here = np.full((1, 1), 100 * env + position, np.float32)
            if kind == "L":
                table.close(np.array([env]), here)
                continue
            flags = {"terminated": np.array([track[position + 1 :][:1] == "L"]), "truncated": np.array([False])}
            table.add(np.array([env]), {"observation": here, "action": here + 1, "reward": here[0] + 1, **flags})
    return table


def expected(track, start, steps=4):
    """Return the positions of actions, which of all count, and the positions of targets, by the letters of a track."""
    end = start
    while end + 1 < len(track) and track[end] != "L":
        end += 1
    positions = [min(start + step, end) for step in range(steps + 1)]
    return positions[1:], [start + step <= end for step in range(steps + 1)], positions


def test_positions_behind_the_end_of_an_episode_are_clamped_and_masked():
    assert expected(TRACKS[0], 1) == ([2, 3, 4, 4], [True, True, True, True, False], [1, 2, 3, 4, 4])
    batch = stored().sample(800)
    unrolled, starts = batch["unrolled"], batch["observation"][:, 0]
    assert torch.equal(unrolled["observation"], batch["observation"])
    for env, track in enumerate(TRACKS):
        for start, kind in enumerate(track[:-1]):  # what follows the newest row is not known
            if kind == "L":
                continue
            row = (starts == 100 * env + start).nonzero()[0, 0]
            action, valid, target = expected(track, start)
            assert unrolled["valid"][row].tolist() == valid
            assert unrolled["action"][row, :, 0].tolist() == [100 * env + position for position in action]
            target = [100 * env + position for position in target]
            assert unrolled["target"]["seen"][row, :, 0].tolist() == target
            target[0] *= kind != "F"  # nothing is paid before an episode begins
            assert unrolled["target"]["paid"][row].tolist() == target


def test_steps_of_a_rollout_end_with_it():
    tracks = [track + "M" for track in TRACKS]  # of the newest row the next observation is known, too
    places = [[at for at, kind in enumerate(track[:-1]) if kind != "L"] for track in tracks]
    here = torch.tensor(places).float()
    batch = {
        "observation": here.unsqueeze(-1),
        "action": here.unsqueeze(-1) + 1.0,
        "reward": here + 1.0,
        "terminated": torch.tensor([[tracks[env][at + 1] == "L" for at in row] for env, row in enumerate(places)]),
        "truncated": torch.zeros(here.shape, dtype=torch.bool),
        "valid": torch.ones(here.shape, dtype=torch.bool),
        "next_observation": here.unsqueeze(-1) + 1.0,
    }
    unrolled = Unrolled(steps=4, fields=FIELDS).rollout(batch)["unrolled"]
    for env, track in enumerate(tracks):
        for row, start in enumerate(places[env]):
            action, valid, target = expected(track, start)
            assert unrolled["action"][env, row, :, 0].tolist() == action
            assert unrolled["valid"][env, row].tolist() == [row > 0, *valid[1:]]  # what led to the first is not known
            assert unrolled["target"]["seen"][env, row, :, 0].tolist() == target
            target[0] = (row > 0) * (track[start] != "F") * start
            assert unrolled["target"]["paid"][env, row, 1:].tolist() == target[1:]
            assert row == 0 or unrolled["target"]["paid"][env, row, 0] == target[0]


def test_a_reward_that_was_overwritten_does_not_count():
    batch = stored(length=20).sample(400)
    unrolled, first = batch["unrolled"], batch["observation"][:, 0]
    valid = unrolled["valid"][:, 0]
    oldest = {env: float(first[(first // 100) == env].min()) for env in (0, 1)}
    begins = {float(100 * env + at) for env, track in enumerate(TRACKS) for at, kind in enumerate(track) if kind == "F"}
    for value, counts in zip(first.tolist(), valid.tolist(), strict=True):
        assert counts == (value not in oldest.values() or value in begins)
    assert not valid.all()


def test_windows_and_an_autoencoder_have_their_own_positions():
    batch = stored(steps=0).sample(10, 2)
    unrolled = batch["unrolled"]
    assert unrolled["action"].shape == (10, 2, 0, 1)
    assert torch.equal(unrolled["target"]["seen"][..., 0, :], batch["observation"])
    network = Predictive(LINE, {"seen": STATE}, steps=0)
    assert not network.rewards
    elements, _, metrics = PredictiveLoss(network, None).loss(unrolled)
    assert elements.shape == (10, 2)
    decoded = network.decoders["seen"](network.encoder(batch["observation"]))
    distance = F.smooth_l1_loss(decoded, batch["observation"], reduction="none")[..., 0]
    torch.testing.assert_close(elements, distance * unrolled["valid"][..., 0])
    assert torch.equal(metrics["predictive/loss_seen"], elements)


def rows(count=6, steps=3, *, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "observation": torch.randn(count, 3, generator=draw),
        "action": torch.rand(count, steps, 2, generator=draw) * 2 - 1,
        "valid": torch.arange(steps + 1) <= torch.randint(0, steps + 1, (count, 1), generator=draw),
        "target": {
            "reward": 5.0 + 2.0 * torch.randn(count, steps + 1, generator=draw),
            "state": torch.randn(count, steps + 1, 3, generator=draw),
        },
    }


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_loss_is_a_mean_over_all_positions(kind):
    torch.manual_seed(0)
    decoders = {
        "reward": partial(REWARD, normalize=True),
        "state": partial(STATE, weight=0.5, distance=nn.L1Loss(reduction="none"), each=True),
    }
    network = Predictive(SPACES, decoders, steps=3, latent=8, dynamics=partial(Core, kind))
    assert isinstance(network.begin, nn.Identity if kind == "gru" else nn.Linear)
    batch = rows()
    elements, outputs, metrics = PredictiveLoss(network, partial(torch.optim.Adam, lr=0.1)).loss(batch)
    valid = batch["valid"]
    paid = batch["target"]["reward"][valid]
    total = torch.zeros(6)
    latent = network.encoder(batch["observation"])
    state = network.begin(latent)
    for step in range(4):
        if step:
            latent, state = network.dynamics.step(batch["action"][:, step - 1], state)
        reward = network.decoders["reward"](latent)[:, 0]
        pair = reward, batch["target"]["reward"][:, step]
        scaled = [(value - paid.mean()) / paid.std(unbiased=False) for value in pair]
        state_off = (network.decoders["state"](latent) - batch["target"]["state"][:, step]).abs().mean(-1)
        total += valid[:, step] * (F.smooth_l1_loss(*scaled, reduction="none") + 0.5 * state_off) / 4.0
    torch.testing.assert_close(elements, total, rtol=1e-4, atol=1e-5)
    updates = outputs["updates"]
    assert {*updates} == {f"network.decoders.reward.{name}" for name in ("shift", "deviation", "seen")}
    torch.testing.assert_close(updates["network.decoders.reward.shift"], paid.mean().unsqueeze(0))
    shown = {"explained_reward", "explained_state", *(f"explained_state/{index}" for index in range(3))}
    assert {*metrics} == {f"predictive/{name}" for name in (*shown, "loss_reward", "loss_state")}


def test_rewards_of_a_linear_system_are_predicted_five_steps_ahead():
    """x' = A x + B u and the reward is x_0: of new rows, the variance at the fifth step is explained."""
    torch.manual_seed(0)
    turn = torch.tensor([[0.9, 0.3], [-0.3, 0.9]])
    push = torch.tensor([[0.0, 0.5]])

    def batch(count=256):
        state, action = torch.randn(count, 2), torch.rand(count, 5, 1) * 2 - 1
        path = [state]
        for step in range(5):
            path.append(path[-1] @ turn + action[:, step] @ push)
        reward = torch.stack(path, 1)[..., 0]
        valid = torch.ones(count, 6, dtype=torch.bool)
        return {"observation": state, "action": action, "valid": valid, "target": {"reward": reward}}

    network = Predictive(Spaces(box(2, 10.0), box(1)), {"reward": REWARD}, steps=5, latent=32, hidden=[32])
    loss = PredictiveLoss(network, partial(torch.optim.Adam, lr=5e-3))
    for _ in range(150):
        loss.backward(batch())
    held = batch(1_000)
    with torch.no_grad():
        latents = network.unroll(held["observation"], held["action"])
    error = held["target"]["reward"][:, 5] - network.decoders["reward"](latents[:, 5])[:, 0]
    assert 1.0 - error.var() / held["target"]["reward"][:, 5].var() > 0.95


def test_a_planner_adds_the_rewards_that_are_decoded_from_latents():
    torch.manual_seed(0)
    decoders = {"paid": REWARD, "end": partial(FieldDecoder, field="terminated", hidden=[4])}
    network = Predictive(SPACES, decoders, steps=3, latent=8, dynamics=partial(Core, "lstm"))
    planner = CEM(SPACES, WorldModel(network), horizon=3, population=5, elite=2)
    observation, sequences = torch.randn(2, 3), torch.rand(2, 5, 3, 2)
    value = planner.evaluator(network.numbers(observation), False)(sequences)
    for row in range(2):
        latents = network.unroll(observation[row].expand(5, 3), sequences[row])[:, 1:]
        ended = network.decoders["end"](latents)[..., 0].clamp(0.0, 1.0)
        goes_on = torch.cat((torch.ones(5, 1), (1.0 - ended).cumprod(1)[:, :-1]), 1)
        torch.testing.assert_close(value[row], (goes_on * network.decoders["paid"](latents)[..., 0]).sum(1))
    action, _ = planner.advance(observation, planner.initial_state(2), False)
    assert action.shape == (2, 2)


@pytest.mark.parametrize("core", [None, "gru"])
def test_a_shared_encoder_learns_from_observations_with_their_state(core):
    torch.manual_seed(0)
    critics = Critics(SPACES, hidden=[4], encoder=partial(Trunk, hidden=[5], core=core, core_size=5))
    network = Predictive(SPACES, {"reward": REWARD}, steps=3, network=SharedFeatures(critics))
    assert network.size == 5
    batch = rows()
    seen = batch["observation"]
    if core:
        seen = with_state(seen, torch.randn(6, 5))
    assert torch.equal(network.unroll(seen, batch["action"])[:, 0], critics.encode(seen))
    loss = PredictiveLoss(network, None).loss(batch, seen)[0]
    layer = critics.encoder.layers[0].weight
    assert torch.autograd.grad(loss.mean(), [layer])[0].abs().sum() > 0.0


def test_rollouts_are_learned_from(tmp_path):
    overrides = ["algorithm=ppo", "env=mixedaction", "algorithm.batch_size=16", *ROLLOUT, "+with=predictive"]
    callbacks = rlrun.train(overrides, run_dir=tmp_path / "run").trainer.callbacks
    assert 0.0 < float(callbacks["predictive"].metrics["predictive/loss_observation"]) < 1.0


def test_fields_are_parts_of_observations_choices_and_columns_of_your_own():
    camera = Box((2, 2), np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32))
    spaces = Spaces(Composite({"camera": camera, "side": Discrete(3)}), Discrete(2))
    sizes = {"observation.side": 3, "observation": 7, "action": 2, "truncated": 1}
    for field, size in sizes.items():
        assert FieldDecoder(spaces, 4, field=field)(torch.zeros(5, 4)).shape == (5, size)
    assert FieldDecoder(spaces, 4, field="cost", size=2).numbers(torch.zeros(5, 3, 2), (5, 3)).shape == (5, 3, 2)
    side = FieldDecoder(spaces, 4, field="observation.side").numbers(torch.tensor([[0, 2]]), (1, 2))
    assert side.tolist() == [[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]


def test_only_features_pass_the_postprocessor():
    network = Predictive(SPACES, {"reward": REWARD}, latent=8, postprocessor=lambda latent: latent[..., :3].detach())
    observation = torch.randn(5, 3)
    assert network.size == 3
    assert torch.equal(network.features(observation), network.encoder(observation)[:, :3])
    assert network.unroll(observation, torch.zeros(5, 5, 2)).shape == (5, 6, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoders": {"reward": None}}, "without a decoder"),
        ({"decoders": {"reward": {"field": "reward"}}}, "decoders.reward: wanted a recipe"),
        ({"latent": 0}, "latent"),
        ({"dynamics": partial(nn.Linear, 2, 64)}, "a Linear has no 'size'"),
        ({"postprocessor": nn.Linear(3, 2)}, "postprocessor: Linear does not fit"),
        ({"decoders": {"cost": partial(FieldDecoder, field="cost")}}, "wants a size"),
        ({"decoders": {"part": partial(FieldDecoder, field="observation.part")}}, "no part 'part'"),
        ({"decoders": {"reward": partial(REWARD, network=partial(nn.Linear, 64, 2))}}, "makes 2 numbers"),
        ({"dynamics": partial(Core, "gru", size=3)}, "wanted a size of 64"),
        ({"steps": -1}, "steps"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Predictive(SPACES, **{"decoders": {"reward": REWARD}, **options})
