"""MuZero: its loss in plain form, where each term counts, new searches of stored positions, and its model."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rlrun.algorithms.search import Gumbel, LearnedModel, Puct, search_of
from rlrun.algorithms.search.muzero import MuZeroLoss, SearchTargets, Targets, running_sums, summed_roots, targets
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import ACTION_MASK, Box, Composite, Discrete, Spaces, map_tree
from rlrun.nn import MuZeroNetwork, Numbers

OBSERVED = Box((3,), np.full(3, -9.0), np.full(3, 9.0))
SPACES = Spaces(OBSERVED, Discrete(2))
STEPS, ROWS, LENGTH = 3, 6, 7
ADAM = partial(torch.optim.Adam, lr=0.01)


def network(spaces=SPACES, **options):
    torch.manual_seed(0)
    sizes = {"latent": 5, "hidden": [8], "dynamics": [8], "prediction": [8], "value_head": Numbers()}
    net = MuZeroNetwork(spaces, **{**sizes, "reward_head": Numbers(), **options})
    torch.nn.init.normal_(net.prediction[-1].weight)
    return net


def rows(seed=0):
    """Return what is stored of some rows: the first ends after two steps, the second is cut off there."""
    draw = torch.Generator().manual_seed(seed)
    end = torch.tensor([2, 2, 6, 6, 6, 6])
    terminated = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    terminated[0, 2:] = True
    trajectory = {
        "action": torch.randint(0, 2, (ROWS, STEPS), generator=draw),
        "reward": torch.randn(ROWS, LENGTH, generator=draw),
        "terminated": terminated,
        "value": torch.randn(ROWS, LENGTH, generator=draw),
        "policy": torch.rand(ROWS, STEPS + 1, 2, generator=draw).softmax(-1),
        "end": end,
        "closed": end == 2,
        "age": torch.linspace(0.0, 1.0, ROWS),
    }
    seen = torch.randn(ROWS, LENGTH + 1, 3, generator=draw)  # those of all positions, and of the end
    seen[:, -1] = seen[torch.arange(ROWS), end]
    return {"trajectory": trajectory, "later": seen}


def wanted_of(batch):
    stored = batch["trajectory"]
    discount = torch.where(stored["terminated"], 0.0, 0.9)
    return targets(stored["reward"], discount, stored["value"], stored["policy"], stored["end"], td_steps=2)


@pytest.mark.parametrize("consistency", ["cosine", "squares"])
def test_the_loss_in_plain_form(consistency):
    net, batch, observation = network(projection=4, entropy_weight=0.3), rows(), torch.randn(ROWS, 3)
    weights = {"value": 0.25, "reward": 2.0, "policy": 3.0, "end": 0.5, "consistency": 4.0}
    options = {"weights": weights, "initial_weight": 0.7, "consistency": consistency}
    wanted = wanted_of(batch)
    loss, outputs, _ = MuZeroLoss(net, ADAM, **options).loss(observation, wanted=wanted._asdict(), **batch)
    total = torch.zeros(ROWS)
    latent = net.represent(observation)
    for k in range(STEPS + 1):
        if k:
            latent = net.step(latent, F.one_hot(batch["trajectory"]["action"][:, k - 1], 2).float())
        predicted = net.predict(latent)
        known = (k <= batch["trajectory"]["end"]) | torch.tensor([True, False, *[True] * 4])
        chosen = known & ~wanted.ended[:, k]
        log_policy = predicted.policy.log_softmax(-1)
        entropy = torch.distributions.Categorical(logits=predicted.policy).entropy()
        loss_k = 0.25 * (predicted.value[:, 0] - wanted.value[:, k]).square() * known
        loss_k += (3.0 * F.kl_div(log_policy, wanted.policy[:, k], reduction="none").sum(-1) - 0.3 * entropy) * chosen
        loss_k -= 3.0 * torch.xlogy(wanted.policy[:, k], wanted.policy[:, k]).sum(-1) * chosen
        ended = wanted.ended[:, k].float()
        loss_k += 0.5 * F.binary_cross_entropy_with_logits(predicted.ended, ended, reduction="none") * known
        if k:
            loss_k += 2.0 * (predicted.reward[:, 0] - wanted.reward[:, k]).square() * known
            seen = net.represent(batch["later"][:, k - 1])
            squares = (latent - seen).square().mean(-1)
            apart = 1.0 - net.similarity(latent, seen) if consistency == "cosine" else squares
            loss_k += 4.0 * apart * (k <= batch["trajectory"]["end"])
        total += loss_k * (1.0 / STEPS if k else 0.7)
    torch.testing.assert_close(loss, total)
    first = net.value(observation)
    torch.testing.assert_close(outputs["value_error"], (first - wanted.value[:, 0]).abs())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_windows_are_so_many_rows(share):
    net, batch, observation = network(), rows(), torch.randn(ROWS, 3)
    windows = map_tree(lambda value: value.unflatten(0, (2, ROWS // 2)), {**batch, "observation": observation})
    made = targets_of(net, share=share, noise=False, reanalyze_td_steps=2)
    loss = MuZeroLoss(net, ADAM)
    each = made.target(**batch)[0]["wanted"]
    wanted = made.target(windows["trajectory"], windows["later"])[0]["wanted"]
    for name, value in each.items():
        torch.testing.assert_close(wanted[name], value.unflatten(0, (2, ROWS // 2)), msg=name)
    elements, outputs, _ = loss.loss(wanted=wanted, **windows)
    expected, errors, _ = loss.loss(observation, wanted=each, **batch)
    torch.testing.assert_close(elements, expected.reshape(2, -1))
    torch.testing.assert_close(outputs["value_error"], errors["value_error"].reshape(2, -1))


def test_rewards_may_be_predicted_as_running_sums():
    reward = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert running_sums(reward, 0).tolist() == [[0.0, 2.0, 5.0, 9.0, 14.0]]
    assert running_sums(reward, 2).tolist() == [[0.0, 2.0, 3.0, 7.0, 5.0]]


def test_the_value_of_an_end_stands_for_a_reward_that_is_not_predicted():
    net = network(rewards=False)
    model = LearnedModel(net, discount=0.9, players=2, end_logit=-9.0)
    after = model(model.node(torch.randn(2, 3)).state, np.array([0, 1]))
    np.testing.assert_allclose(after.reward, -after.value, rtol=1e-6)  # of who moves there, and not discounted
    assert after.discount.tolist() == [0.0, 0.0]
    alive = LearnedModel(net, discount=0.9, players=2, end_logit=9.0)
    after = alive(alive.node(torch.randn(2, 3)).state, np.array([0, 1]))
    assert (after.reward.tolist(), after.discount.tolist()) == ([0.0, 0.0], [-0.9, -0.9])
    alone = LearnedModel(net, discount=0.9, end_logit=-9.0)
    after = alone(alone.node(torch.randn(2, 3)).state, np.array([0, 1]))
    np.testing.assert_allclose(after.reward, after.value, rtol=1e-6)


@pytest.mark.parametrize("period", [0, 2])
def test_a_search_reads_rewards_from_running_sums(period):
    net = network()
    plain, summed = LearnedModel(net), LearnedModel(net, period=period)
    observation, actions = torch.randn(2, 3), np.array([0, 1])
    nodes, sums = [plain.node(observation)], [summed.node(observation)]
    for _ in range(4):
        nodes.append(plain(nodes[-1].state, actions))
        sums.append(summed(sums[-1].state, actions))
    for step in range(1, 5):
        begins = period and step % period == 0
        before = 0.0 if begins or step == 1 else nodes[step - 1].reward
        np.testing.assert_allclose(sums[step].reward, nodes[step].reward - before, rtol=1e-5, atol=1e-6)


def test_the_weight_of_the_entropy_moves_towards_a_target():
    batch, wanted = rows(), wanted_of(rows())
    for target, moved in ((0.0, -0.01), (2.0, 0.01)):
        net = network(entropy_weight=0.5)
        loss = MuZeroLoss(net, ADAM, entropy_target=target, entropy_rate=0.01)
        _, outputs, _ = loss.loss(torch.randn(ROWS, 3), wanted=wanted._asdict(), **batch)
        assert float(outputs["updates"]["network.entropy_weight"]) == pytest.approx(0.5 * np.exp(moved))
    with pytest.raises(ConfigError, match=r"entropy_target: a weight that is to move begins above 0"):
        MuZeroLoss(network(), ADAM, entropy_target=1.0)


def test_priorities_may_be_a_function_of_losses():
    net, batch, wanted, observation = network(), rows(), wanted_of(rows()), torch.randn(ROWS, 3)
    loss = MuZeroLoss(net, ADAM, priority=summed_roots)
    elements, outputs, _ = loss.loss(observation, wanted=wanted._asdict(), **batch)
    value = net.decoded(net.unroll(observation, batch["trajectory"]["action"])).value
    torch.testing.assert_close(loss.error(elements, outputs), (value - wanted.value).abs().sum(-1).detach())


def targets_of(net, search=None, td_steps=2, **options):
    search = Puct(simulations=3) if search is None else search
    return SearchTargets(net, search, discount=0.9, td_steps=td_steps, tau=1.0, **options)


def test_a_value_where_an_episode_was_cut_off_is_the_target_networks():
    net, batch = network(), rows()
    wanted = targets_of(net).target(**batch)[0]["wanted"]
    stored = batch["trajectory"]
    last = net.value(batch["later"][:, -1]).detach()
    reward = stored["reward"][1]
    assert float(wanted["value"][1, 0]) == pytest.approx(float(reward[1] + 0.9 * reward[2] + 0.81 * last[1]), abs=1e-5)
    assert float(wanted["value"][1, 2]) == pytest.approx(float(last[1]), abs=1e-5)
    assert wanted["value"][0, 2:].eq(0.0).all()
    assert wanted["policy"][:2, 2:].eq(0.0).all()  # nothing was searched there
    assert torch.equal(wanted["policy"][2:], stored["policy"][2:])
    other = wanted_of(batch)
    torch.testing.assert_close(wanted["value"][2:], other.value[2:])


def test_fresh_values_are_the_target_networks_everywhere():
    net, batch = network(), rows()
    value = net.value(batch["later"][:, :-1]).detach()
    seen = batch["later"]
    ahead = torch.minimum(2 + torch.arange(STEPS + 1), batch["trajectory"]["end"].unsqueeze(-1))
    batch["later"] = torch.cat((seen[torch.arange(ROWS).unsqueeze(1), ahead], seen[:, -1:]), 1)
    wanted = targets_of(net, fresh=True).target(**batch)[0]["wanted"]
    batch["trajectory"]["value"] = value
    torch.testing.assert_close(wanted["value"], wanted_of(batch).value)


@pytest.mark.parametrize(("full", "positions"), [(False, None), (True, 5)])
def test_all_positions_may_be_searched_again(full, positions):
    net, batch = network(), rows()
    search = Puct(simulations=4)
    options = {"share": 1.0, "reanalyze_td_steps": 2, "full": full, "positions": positions, "noise": False}
    wanted, metrics = targets_of(net, search, **options).target(**batch)
    model = LearnedModel(net, discount=0.9)
    count = LENGTH if full else STEPS + 1
    trees = search.grow(model, model.node(batch["later"][:, :count].flatten(0, 1)))
    value = net.value(batch["later"][:, :-1]).detach().clone()
    value[:, :count] = torch.from_numpy(trees.root_value).float().reshape(ROWS, count)
    policy = torch.from_numpy(search.policy(trees)).float().reshape(ROWS, count, 2)[:, : STEPS + 1]
    batch["trajectory"] |= {"value": value, "policy": policy}
    expected = wanted_of(batch)
    torch.testing.assert_close(wanted["wanted"]["value"], expected.value)
    torch.testing.assert_close(wanted["wanted"]["policy"], expected.policy)
    assert metrics["reanalyze/value_change"].shape == (ROWS, LENGTH)


def test_a_share_of_a_batch_is_searched_again_at_random():
    net, batch = network(), rows()
    before = targets_of(net).target(**batch)[0]["wanted"]["policy"]
    callback, changed = targets_of(net, share=0.5), []
    for seed in range(8):
        torch.manual_seed(seed)
        policy = callback.target(**batch)[0]["wanted"]["policy"]
        changed.append((policy != before).flatten(1).any(1))
    assert all(int(rows.sum()) == 3 for rows in changed)
    assert torch.stack(changed).any(0).all()


def test_returns_of_whole_episodes_stay_so_beside_rows_that_are_searched_again():
    net, batch = network(), rows()
    before = targets_of(net, td_steps=-1).target(**batch)[0]["wanted"]
    after = targets_of(net, td_steps=-1, share=0.5).target(**batch)[0]["wanted"]
    same = (before["policy"] == after["policy"]).flatten(1).all(1)
    assert 3 <= int(same.sum()) < ROWS
    torch.testing.assert_close(after["value"][same], before["value"][same])


def test_returns_of_old_rows_are_shorter():
    callback = targets_of(network(), share=1.0, reanalyze_td_steps=5, least_td_steps=1, oldest=0.5)
    assert callback._lengths(torch.tensor([0.0, 0.1, 0.25, 0.5, 1.0])).tolist() == [5, 5, 3, 1, 1]
    assert targets_of(network(), share=1.0)._lengths(torch.tensor([0.0, 1.0])).tolist() == [5, 5]


WRONG = ("abc", None, -1, [1], float("nan"))


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("name", ["share", "reanalyze_td_steps", "least_td_steps"])
def test_targets_refuse_wrong_numbers(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: wanted"):
        targets_of(network(), **{name: value})


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize(
    ("name", "place"),
    [("initial_weight", "initial_weight"), ("gradient", "gradient"), ("entropy_rate", "entropy_rate")],
)
def test_a_loss_refuses_wrong_numbers(name, place, value):
    with pytest.raises(ConfigError, match=f"^{place}: wanted a number from 0"):
        MuZeroLoss(network(), ADAM, **{name: value})
    with pytest.raises(ConfigError, match=r"^weights\.value: wanted a number from 0"):
        MuZeroLoss(network(), ADAM, weights={"value": value})


@pytest.mark.parametrize("value", ["abc", -1, [1]])
def test_a_model_refuses_a_wrong_period(value):
    with pytest.raises(ConfigError, match=r"^period: wanted a whole number from 0"):
        LearnedModel(network(), period=value)


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("gumbel", [True, False])
@pytest.mark.parametrize("name", ["alpha", "c1", "c2", "c_visit", "smallest_range", "tie_noise", "learn_temperature"])
def test_a_search_refuses_wrong_numbers(name, gumbel, value):
    if name == "c_visit" and not gumbel:
        return
    with pytest.raises(ConfigError, match=f"{name}: wanted a number"):
        search_of(gumbel=gumbel, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("noise", value) for value in ("abc", -1, [1])),
        *(("bounds", value) for value in ("abc", -1, [1], [1, "x"], [2, 1], [0, None])),
        *(("regularized", value) for value in ("act", None, 0, ["x"])),
        *(("unexpanded", value) for value in ("abc", [1])),
    ],
)
def test_searches_refuse_wrong_settings(name, value):
    for gumbel in (True, False):
        with pytest.raises(ConfigError, match=f"{name}: wanted"):
            search_of(gumbel=gumbel, **{name: value})


def test_the_reward_before_the_first_step_is_in_no_sum():
    with pytest.raises(ConfigError, match="initial_reward: sums of rewards begin at 0"):
        MuZeroLoss(network(), ADAM, initial_reward=True, period=0)


def test_a_model_says_what_its_networks_predict():
    flags = Box((2,), np.zeros(2), np.ones(2), "int8")
    net = network(Spaces(Composite({ACTION_MASK: flags, "seen": OBSERVED}), Discrete(2)))
    model = LearnedModel(net, discount=0.9, end_logit=0.0)
    seen = {ACTION_MASK: np.eye(2, dtype=np.int8), "seen": np.random.default_rng(0).normal(size=(2, 3)).astype("f4")}
    root = model.root(seen)
    latent = net.represent({name: torch.from_numpy(part) for name, part in seen.items()})
    np.testing.assert_array_equal(np.isinf(root.logits), 1 - np.eye(2))
    np.testing.assert_allclose(root.state, latent.detach())
    assert root.discount.tolist() == [0.9, 0.9]
    after, latent = model(root.state, np.array([1, 0])), net.step(latent, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    predicted = net.decoded(latent)
    for found, expected in zip(after[:4], (latent, predicted.policy, predicted.value, predicted.reward), strict=True):
        np.testing.assert_allclose(found, expected.detach(), rtol=1e-5)
    assert after.discount.tolist() == torch.where(predicted.ended > 0.0, 0.0, 0.9).tolist()
    trees = Gumbel(simulations=8).grow(model, root, np.random.default_rng(0))
    assert trees.root_visits.tolist() == [[8, 0], [0, 8]]


def test_an_update_learns_what_it_is_given():
    torch.manual_seed(0)
    net, batch, observation = network(), rows(), torch.randn(ROWS, 3)
    wanted = wanted_of(batch)._asdict()
    loss = MuZeroLoss(net, ADAM)
    first = loss.loss(observation, wanted=wanted, **batch)[0].mean().item()
    for _ in range(60):
        loss.backward(observation, wanted=wanted, **batch)
    assert loss.loss(observation, wanted=wanted, **batch)[0].mean().item() < 0.5 * first
    assert isinstance(Targets(**wanted), Targets)
