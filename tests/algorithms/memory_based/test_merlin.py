"""MERLIN: the predictor's loss in plain form, acting as learning sees it, and gradients where they belong."""

from functools import partial

import numpy as np
import pytest
import torch

from rlrun.algorithms.memory_based.merlin import (
    LatentDecoder,
    MemoryActor,
    Merlin,
    Predictor,
    PredictorLoss,
    seen,
)
from rlrun.algorithms.on_policy.a2c import A2CLoss
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces, map_tree
from rlrun.nn import ResNetDecoder

B, T = 2, 5
ONES = np.ones(2, np.float32)
VECTOR = Box((2,), -ONES, ONES)
SPACES = Spaces(VECTOR, Discrete(3))
DECODERS = {"observation": partial(LatentDecoder, hidden=[4])}


def network(spaces=SPACES, *, actor=None, **options):
    torch.manual_seed(2)
    small = {"latent": 3, "lstm_size": [4, 5], "slots": 3, "keys": 2, "hidden": [6], "decoders": DECODERS}
    return Merlin(
        spaces,
        predictor=partial(Predictor, **{**small, **options}),
        actor=partial(MemoryActor, lstm_size=[4], hidden=[6], **(actor or {})),
    )


def windows(merlin, *, ends=((0, 2), (1, 3))):
    """Return observations, actions, a state within an episode, and the ends of episodes."""
    torch.manual_seed(3)
    end = torch.zeros(B, T, dtype=torch.bool)
    for place in ends:
        end[place] = True
    state = map_tree(lambda part: torch.rand_like(part), merlin.initial_state(B))
    return torch.randn(B, T, 2), torch.randint(0, 3, (B, T)), state, end


def test_the_predictors_loss_is_that_of_a_loop():
    merlin = network()
    mbp, loss = merlin.mbp, PredictorLoss(merlin.mbp, None, divergence_weight=0.5, q_weight=2.0)
    observation, action, state, end = windows(merlin)
    return_, total = torch.randn(B, T), 0.0
    torch.manual_seed(5)
    noise = [torch.randn(B, 3) for _ in range(T)]
    for row in range(B):
        z, a, m = (state[name][row] for name in ("latent", "action", "read"))
        content, usage = state["memory"]["content"][row], state["memory"]["usage"][row]
        lstm = state["lstm"][row]
        for t in range(T):
            below, after = torch.cat((z, a, m))[None], []
            for core, own in zip(mbp.lstm.cores, lstm.split([8, 10]), strict=True):
                h, c = torch.lstm_cell(below, own[None].chunk(2, -1), *core.weights())
                below, after = h, [*after, h, c]
            lstm = torch.cat(after, -1)[0]
            numbers = mbp.reader.layer(below[0])
            keys, strengths = numbers[:6].view(2, 3), torch.nn.functional.softplus(numbers[6:])
            cosines = torch.stack([torch.nn.functional.cosine_similarity(key[None], content) for key in keys])
            weights = (cosines * strengths[:, None]).softmax(-1)
            m, usage = (weights @ content).flatten(), usage + weights.detach().sum(0)
            least = int(usage.argmin())
            content = content * (2 / 3)
            content[least], usage[least] = z.detach(), usage[least] + 1.0
            prior = mbp.prior(torch.cat((below[0], m)))
            change = mbp.posterior(torch.cat((observation[row, t], below[0], m, prior)))
            (mean_p, log_p), (mean, log) = prior.chunk(2), change.chunk(2)
            q = torch.distributions.Normal(mean_p + mean, (0.5 * (log_p + log)).exp())
            p = torch.distributions.Normal(mean_p, (0.5 * log_p).exp())
            z, drawn = q.mean, q.mean + q.stddev * noise[t][row]
            a = torch.nn.functional.one_hot(action[row, t], 3).float()
            decoded = mbp.decoders["observation"].decoder.layers(drawn[None])[0]
            total = total + 0.5 * torch.distributions.kl_divergence(q, p).sum()
            total = total + (decoded - observation[row, t]).square().sum()
            total = total + 2.0 * (mbp.q(torch.cat((z, a)))[0] - return_[row, t]).square()
            if end[row, t]:
                z, a, m, content, usage, lstm = map(torch.zeros_like, (z, a, m, content, usage, lstm))
    torch.manual_seed(5)
    elements, outputs, _ = loss.loss(observation, action, return_, state, end)
    torch.testing.assert_close(elements.sum(), total)
    wanted, actual = (torch.autograd.grad(value, [*mbp.parameters()]) for value in (total, elements.sum()))
    for expected, gradient in zip(wanted, actual, strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)
    assert outputs["predicted"]["latent"].shape == (B, T, 3)


@pytest.mark.parametrize("ends", [(), ((0, 2), (1, 0), (1, 3))])
@pytest.mark.parametrize("options", [{}, {"retroactive": 0.9}])
def test_a_window_is_evaluated_as_it_was_acted(ends, options):
    merlin = network(**options)
    observation, _, first, end = windows(merlin, ends=ends)
    state, actions, log_probs, values = first, [], [], []
    for t in range(T):
        values.append(merlin.value(observation[:, t], state))
        heads = merlin.heads(observation[:, t], state)
        action, after = merlin.advance(observation[:, t], state)
        same = merlin.after(observation[:, t], state, action)
        map_tree(lambda part, other: torch.testing.assert_close(part, other), after, same)
        actions.append(action)
        log_probs.append(merlin.head.log_prob(heads, action))
        over = end[:, t]
        state = map_tree(lambda part: torch.where(over.view(-1, *[1] * (part.dim() - 1)), 0.0, part), after)  # noqa: B023
    evaluated = merlin.evaluate_actions(observation, torch.stack(actions, 1), first, end)
    torch.testing.assert_close(evaluated.log_prob, torch.stack(log_probs, 1))
    torch.testing.assert_close(evaluated.value, torch.stack(values, 1))


def test_the_policy_has_no_gradient_to_latents_and_the_value_has():
    merlin = network()
    observation, action, state, end = windows(merlin)
    evaluated = merlin.evaluate_actions(observation, action, state, end)
    own = [*merlin.mbp.parameters()]
    policy = torch.autograd.grad(evaluated.log_prob.sum(), own, allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in policy)
    value = torch.autograd.grad(evaluated.value.sum(), own, allow_unused=True)
    keys = dict(zip(own, value, strict=True))[merlin.mbp.reader.layer.weight]
    assert keys.abs().sum() > 0.0


def test_what_is_written_has_no_gradient():
    merlin = network()
    observation, action, state, end = windows(merlin)
    predicted = merlin.mbp(observation, action, state, end)
    assert not any(part.requires_grad for part in predicted.memory.values())


def test_the_actors_loss_is_that_of_its_class():
    merlin = network(actor={"gain": 1.0})
    observation, action, state, end = windows(merlin)
    predicted = seen(merlin.mbp(observation, action, state, end), observation)
    advantage, return_ = torch.randn(B, T), torch.randn(B, T)
    elements, _, _ = A2CLoss(merlin.mba, None, entropy_weight=0.1).loss(
        predicted, action, advantage, return_, None, state, end
    )
    evaluated = merlin.evaluate_actions(observation, action, state, end)
    wanted = (
        0.5 * (evaluated.value - return_).square() - evaluated.log_prob * advantage - 0.1 * evaluated.entropy[..., 0]
    )
    torch.testing.assert_close(elements, wanted)


def test_draws_are_remembered_where_that_is_wanted():
    for drawn in (False, True):
        merlin = network(drawn=drawn)
        observation, action, state, end = windows(merlin)
        predicted = merlin.mbp(observation, action, state, end)
        assert torch.equal(predicted.latent, predicted.drawn) == drawn


def test_parts_of_observations_are_decoded():
    pixels = np.zeros((8, 8, 3), np.uint8)
    camera = Box(pixels.shape, pixels, pixels + 255, dtype="uint8")
    spaces = Spaces(Composite({"camera": camera, "place": VECTOR}), Discrete(2))
    decoder = LatentDecoder(spaces, 3, leaves=["camera"], network=partial(ResNetDecoder, channels=[4], blocks=1))
    observation = {"camera": torch.randint(0, 256, (B, T, 8, 8, 3), dtype=torch.uint8), "place": torch.zeros(B, T, 2)}
    latent = torch.randn(B, T, 3)
    wanted = (decoder.decoder(latent) - observation["camera"].flatten(2) / 255.0).square().sum(-1)
    torch.testing.assert_close(decoder(latent, observation), wanted)
    with pytest.raises(SpaceError, match="leaves"):
        LatentDecoder(spaces, 3, leaves=["sound"])


def test_an_encoder_with_a_state_is_refused():
    from rlrun.nn import Trunk

    with pytest.raises(ConfigError, match="MERLIN remembers by itself"):
        network(encoder=partial(Trunk, core="gru"))
