"""Mutual information: its bounds and gradients against closed forms, its samplers, and its bonus and loss in runs."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.nn.spaces_for_tests import OBSERVATIONS, box, draw
from tests.resume.twins import assert_exact
from torch.distributions import MultivariateNormal, Normal

from rlrun.algorithms.density.mutual_information import (
    InformationBonus,
    InformationBonusLoss,
    InformationBound,
    InformationLoss,
    MutualInformation,
    RunningMean,
)
from rlrun.callbacks import JointLoss
from rlrun.core.errors import ConfigError, RlrunError, SpaceError
from rlrun.core.spaces import Composite, Discrete
from rlrun.memory import Intrinsic
from rlrun.memory.loaders.held_out import gaussians
from rlrun.nn import EncodedMLP, Normalizer

from .runs import REPLAY, ROLLOUT

pytestmark = pytest.mark.usefixtures("folder")
sgd = partial(torch.optim.SGD, lr=0.1)
PAIR = {"x": box(2), "y": box(2)}
WEIGHT, BIAS = torch.tensor([0.5, -1.0, 0.25, 2.0]), 0.3
TWO = {"x": torch.tensor([[0.0, 1.0], [2.0, -1.0]]), "y": torch.tensor([[1.0, 0.0], [0.5, 0.5]])}


def linear(estimator="dv", *, sampler="shift", spaces=PAIR, **options):
    """Return an estimator with T(x, y) = WEIGHT · (x, y) + BIAS."""
    network = MutualInformation(spaces, estimator=estimator, sampler=sampler, hidden=(), **options)
    with torch.no_grad():
        network.layers[-1].weight.copy_(WEIGHT.unsqueeze(0))
        network.layers[-1].bias.fill_(BIAS)
    return network


def score(x, y):
    return torch.cat([x, y], -1) @ WEIGHT + BIAS


def pairs(rows, *lead):
    return {name: torch.randn(rows, *lead, 2) for name in "xy"}


# --- formulas


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"speed": 10.0}, [1.0, 1.909091, 2.818182, 3.727273]),
        ({"speed": 1.0}, [1.0, 1.5, 2.0, 2.5]),
        ({"rate": 0.1}, [1.0, 1.526316, 2.070110]),
    ],
)
def test_averages_are_known(options, values):
    average = RunningMean(torch.tensor(7.0), **options)
    for newest, expected in enumerate(values, 1):
        average.load_state_dict(average.after(torch.tensor([newest - 1.0, newest + 1.0])))
        assert float(average.value) == pytest.approx(expected, abs=1e-6)


def softplus(value):
    return (1.0 + value.exp()).log()


ESTIMATES = {
    "dv": lambda joint, product: joint.mean() - product.exp().mean().log(),
    "kld": lambda joint, product: joint.mean() - product.exp().mean() + 1.0,
    "jsd": lambda joint, product: math.log(4.0) - softplus(-joint).mean() - softplus(product).mean(),
}
LOSSES = {
    "dv": lambda joint, product: product.exp() / product.exp().mean() - joint,
    "kld": lambda joint, product: product.exp() - 1.0 - joint,
    "jsd": lambda joint, product: softplus(-joint) + softplus(product) - math.log(4.0),
}


@pytest.mark.parametrize("estimator", ["dv", "kld", "jsd"])
def test_losses_are_closed_forms(estimator):
    network = linear(estimator)
    joint, product = score(**TWO), score(TWO["x"], TWO["y"].flip(0))
    loss, estimate, buffers = network.learn(**TWO)
    torch.testing.assert_close(loss, LOSSES[estimator](joint, product), rtol=0.0, atol=1e-6)
    assert float(estimate) == pytest.approx(float(ESTIMATES[estimator](joint, product)), abs=1e-6)
    assert [*buffers] == (["average.value", "average.updates"] if estimator == "dv" else [])


def test_dv_gradient_has_running_mean():
    network = linear()
    callback = InformationLoss(network, partial(torch.optim.SGD, lr=0.0))
    joint, product = (torch.cat([TWO["x"], y], -1) for y in (TWO["y"], TWO["y"].flip(0)))
    ratio = (product @ WEIGHT + BIAS).exp()
    first = pairs(2)
    before = score(first["x"], first["y"].flip(0)).exp().mean()
    callback.backward(**first)
    callback.backward(**TWO)
    mean = before + (ratio.mean() - before) * 10.0 / 11.0
    gradient = (ratio.unsqueeze(-1) * product).mean(0) / mean - joint.mean(0)
    torch.testing.assert_close(network.layers[-1].weight.grad[0], gradient, rtol=1e-6, atol=1e-6)
    assert float(network.average.value) == pytest.approx(float(mean), rel=1e-6)


def test_large_ratios_are_limited():
    network = linear("kld")
    with torch.no_grad():
        network.layers[-1].bias.fill_(50.0)
    assert float(network.learn(**TWO)[0].detach().max()) < math.exp(20.0)


@pytest.mark.parametrize(("estimator", "offset"), [("dv", math.log(3.0)), ("kld", 0.0), ("jsd", 0.0)])
def test_pointwise_information_is_the_log_ratio(estimator, offset):
    network, rows = linear(estimator), pairs(4, 3)
    network.average.value.fill_(3.0)
    torch.testing.assert_close(network.pointwise(**rows), score(**rows) - offset, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("known", "mean", "deviation"),
    [(None, [0.0, 3.0], [2.0, 1.0]), (MultivariateNormal(torch.ones(2), 4.0 * torch.eye(2)), [1.0, 1.0], [2.0, 2.0])],
)
def test_ml_compares_two_normal_densities(known, mean, deviation):
    network = MutualInformation(PAIR, estimator="ml", hidden=(), distribution=known)
    network.average.value.copy_(torch.tensor([[0.0, 3.0], [4.0, 10.0]]))
    rows = pairs(5)
    mean, deviation = torch.tensor(mean), torch.tensor(deviation)
    torch.testing.assert_close(network.pointwise(**rows), torch.zeros(5), rtol=0.0, atol=1e-6)  # it begins with p(y)
    with torch.no_grad():
        network.layers[-1].weight.normal_()
        shift, scale = network.layers(rows["x"]).chunk(2, -1)
    scale = deviation * torch.nn.functional.softplus(scale + math.log(math.e - 1.0))
    expected = Normal(mean + shift, scale).log_prob(rows["y"]) - Normal(mean, deviation).log_prob(rows["y"])
    torch.testing.assert_close(network.pointwise(**rows), expected.sum(-1), rtol=1e-5, atol=1e-5)


def test_ml_learns_moments_first():
    loss, estimate, buffers = MutualInformation(PAIR, estimator="ml", rate=0.5).learn(**TWO)
    expected = torch.stack([TWO["y"].mean(0), TWO["y"].square().mean(0)])
    torch.testing.assert_close(buffers["average.value"], expected)
    torch.testing.assert_close((loss, estimate), (torch.zeros(2), torch.zeros(())), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("estimator", ["dv", "kld", "jsd", "ml"])
def test_held_out_estimate_is_of_all_rows(estimator):
    network = MutualInformation(PAIR, estimator="ml", hidden=(4,)) if estimator == "ml" else linear(estimator)
    rows, metric = pairs(7), InformationBound(network, shifts=2)
    with torch.no_grad():
        parts = [metric(*(rows[name][begin : begin + 3] for name in "xy")) for begin in (0, 3, 6)]
        value = float(metric.reduce(torch.cat(parts).double()))
        if estimator == "ml":
            expected = network.pointwise(**rows).mean()
        else:
            places = [(0, 2), (1, 0), (2, 1), (0, 1), (1, 2), (2, 0)]
            places += [(x + 3, y + 3) for x, y in places]  # the seventh row has no other in its batch
            x, y = torch.tensor(places).T
            expected = ESTIMATES[estimator](score(**rows), score(rows["x"][x], rows["y"][y]))
    assert value == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("estimator", ["dv", "kld", "jsd", "ml"])
def test_information_of_gaussians_is_learned(estimator):
    torch.manual_seed(0)
    data = {name: torch.from_numpy(column) for name, column in gaussians(rows=9_000, size=1, correlation=0.8).items()}
    network = MutualInformation({name: box(1) for name in data}, estimator=estimator, hidden=(64,))
    loss = InformationLoss(network, partial(torch.optim.Adam, lr=3e-3))
    for _ in range(300):
        rows = torch.randint(8_000, (128,))
        loss.backward(**{name: column[rows] for name, column in data.items()})
    metric = InformationBound(network)
    with torch.no_grad():
        information = float(metric.reduce(metric(*(column[8_000:] for column in data.values())).double()))
    truth = 0.2769 if estimator == "jsd" else -0.5 * math.log(1.0 - 0.64)
    assert 0.85 * truth < information < 1.1 * truth


# --- samplers


def of_product(network, rows):
    """Return the pairs of the product that learning from rows [B, 2] uses, and write new values of buffers."""
    x, y, buffers = network._of_product(rows["x"], rows["y"])
    for path, value in buffers.items():
        network.get_buffer(path).copy_(value)
    return x, y


def numbered(first, count=2):
    values = torch.arange(first, first + count).float().unsqueeze(-1).expand(count, 2)
    return {"x": values, "y": -values}


def test_shift_and_shuffle_pair_within_batches():
    x, y = of_product(linear(sampler="shift"), numbered(0, 4))
    assert (x[:, 0].tolist(), y[:, 0].tolist()) == ([0.0, 1.0, 2.0, 3.0], [-3.0, 0.0, -1.0, -2.0])
    x, y = of_product(linear(sampler="shuffle"), numbered(0, 50))
    assert x[:, 0].tolist() == [*range(50)]
    assert y[:, 0].tolist() != [-float(row) for row in range(50)]
    assert sorted(y[:, 0].tolist()) == [float(row) for row in range(-49, 1)]


@pytest.mark.parametrize("sampler", ["buffer", "double_buffer"])
def test_buffers_pair_with_earlier_rows(sampler):
    torch.manual_seed(0)
    network = linear(sampler=sampler, buffer_rows=40)
    for first in range(1, 61, 10):  # the first batch is its own buffer; the last one finds 40 rows; none is 0
        rows = numbered(first, 10)
        earlier = {float(row) for row in range(max(first - 40, 1), max(first, 11))}
        x, y = of_product(network, rows)
        assert {float(-value) for value in y[:, 0]} <= earlier
        if sampler == "buffer":
            assert torch.equal(x, rows["x"])
        else:
            assert {float(value) for value in x[:, 0]} <= earlier
            assert not torch.equal(x, -y)  # drawn apart
    kept = sorted(network.rings["y"].leaf_0[:, 0].tolist())
    assert kept == [float(row) for row in range(-60, -20)]


@pytest.mark.parametrize("count", [-1, 2**63 - 1])
def test_forged_counts_of_buffers_are_refused(count):
    network = linear(sampler="double_buffer")
    state = network.state_dict()
    state["rings.x.count"] = torch.tensor(count)
    with pytest.raises(RlrunError, match="'count' of a Ring holds numbers that no run has"):
        network.load_state_dict(state)


def test_batches_larger_than_buffers_fit():
    network = linear(sampler="buffer", buffer_rows=3)
    for first in (0, 5):
        _, y = of_product(network, numbered(first, 5))
        assert {float(-value) for value in y[:, 0]} <= {first + 2.0, first + 3.0, first + 4.0}


def test_known_distributions_replace_samples():
    network = linear(distribution=Normal(100.0, 0.001), sampler="buffer")
    x, y = of_product(network, TWO)
    assert torch.equal(x, TWO["x"])
    assert (y - 100.0).abs().max() < 0.1
    assert y.shape == (2, 2)
    assert len(network.rings) == 0


@pytest.mark.parametrize(
    ("sampler", "refused"), [("buffer", "y"), ("double_buffer", "xy"), ("shuffle", ""), ("shift", "")]
)
def test_only_batch_samplers_give_gradients(sampler, refused):
    for name in "xy":
        rows = {**pairs(4), name: torch.randn(4, 2, requires_grad=True)}
        if name in refused:
            with pytest.raises(ConfigError, match=f"sampler {sampler} gives {name} no gradient; shuffle and shift do"):
                linear(sampler=sampler).learn(**rows)
        else:
            (gradient,) = torch.autograd.grad(linear(sampler=sampler).learn(**rows)[0].mean(), rows[name])
            assert gradient.abs().sum() > 0.0


def test_ranks_share_no_buffers(monkeypatch):
    monkeypatch.setattr("rlrun.core.distributed._world_size", 2)
    with pytest.raises(ConfigError, match="sampler buffer: its rows would differ between ranks; shuffle and shift"):
        linear("kld", sampler="buffer").learn(**TWO)
    linear("kld", sampler="shuffle").learn(**TWO)


@pytest.mark.parametrize("sampler", ["buffer", "double_buffer", "shuffle", "shift"])
@pytest.mark.parametrize("kind", ["vector", "discrete", "camera and speed"])
def test_every_space_has_information(kind, sampler):
    space, _ = OBSERVATIONS[kind]
    network = MutualInformation({"x": space, "y": Discrete(3)}, sampler=sampler, hidden=(8,), buffer_rows=16)
    x, y = draw(space, 4, 5), torch.randint(3, (4, 5))
    loss, _, buffers = network.learn(x, y)
    assert loss.shape == network.pointwise(x, y).shape == (4, 5)
    assert {name: value.shape for name, value in network.named_buffers() if name in buffers} == {
        name: value.shape for name, value in buffers.items()
    }


@pytest.mark.parametrize(("sampler", "estimator"), [("buffer", "kld"), ("shift", "dv"), ("shuffle", "jsd")])
def test_invalid_rows_teach_nothing(sampler, estimator):
    network, rows = linear(estimator, sampler=sampler, buffer_rows=4), pairs(2, 3)
    valid = torch.tensor([[True, True, False], [True, False, True]])
    torch.manual_seed(1)
    loss, estimate, buffers = network.learn(**rows, valid=valid)
    torch.manual_seed(1)
    alone, of_valid, own = network.learn(**{name: column[valid] for name, column in rows.items()})
    assert torch.equal(loss, torch.zeros(2, 3).masked_scatter(valid, alone))
    assert torch.equal(estimate, of_valid)
    assert all(torch.equal(value, own[name]) for name, value in buffers.items())
    nothing, _, unchanged = network.learn(**rows, valid=torch.zeros(2, 3, dtype=torch.bool))
    assert nothing.tolist() == [[0.0] * 3] * 2
    assert all(torch.equal(value, network.get_buffer(path)) for path, value in unchanged.items())
    nothing.mean().backward()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimator": "dw"}, ConfigError, "estimator: wanted one of dv, kld, jsd, ml, got 'dw'"),
        ({"sampler": "roll"}, ConfigError, "sampler: wanted one of buffer, .*, got 'roll'"),
        ({"buffer_rows": 0}, ConfigError, "buffer_rows"),
        ({"speed": 0.0}, ConfigError, "wanted speed > 0 and 0 < rate <= 1, got 0.0 and None"),
        ({"rate": 1.5}, ConfigError, "got 10.0 and 1.5"),
        ({"y": "z"}, SpaceError, "there is no column 'z'; there are x, y, both"),
        ({"y": "both.c"}, SpaceError, "there is no column 'both.c'; there are a, b"),
        ({"y": "x.a"}, SpaceError, "there is no column 'x.a'; there are no parts"),
        ({"estimator": "ml", "y": "both"}, SpaceError, "need one array of numbers; 'both' is"),
        ({"estimator": "ml", "y": "both.b"}, SpaceError, r"'both.b' is Discrete\(3\)"),
        ({"distribution": Normal(0.0, 1.0), "y": "both"}, SpaceError, "a known distribution"),
    ],
)
def test_settings_without_meaning_are_refused(options, error, message):
    spaces = {**PAIR, "both": Composite({"a": box(2), "b": Discrete(3)})}
    with pytest.raises(error, match=message):
        MutualInformation(spaces, **options)


def test_gaussians_have_their_correlation():
    columns = gaussians(rows=100_000, size=2, correlation=-0.6, seed=3)
    assert {column.dtype.name for column in columns.values()} == {"float32"}
    table = np.corrcoef(columns["x"].T, columns["y"].T)
    expected = np.eye(4) - 0.6 * np.eye(4, k=2) - 0.6 * np.eye(4, k=-2)
    np.testing.assert_allclose(table, expected, atol=0.015)
    assert not np.array_equal(columns["x"], gaussians(rows=100_000, size=2, correlation=-0.6, seed=4)["x"])
    with pytest.raises(ConfigError, match=r"correlation: wanted a number between -1 and 1, got 1\.0"):
        gaussians(rows=3, size=1, correlation=1.0)


# --- a bonus, and a term of another loss


def test_bonus_is_pointwise_information():
    spaces = {"action": box(2), "next_observation": Composite({"goal": box(2), "rest": box(1)})}
    network = linear(spaces=spaces, x="action", y="next_observation.goal")
    network.average.value.fill_(3.0)
    step = {"reward": torch.tensor([1.0, 2.0]), "action": TWO["x"], "other": torch.zeros(2)}
    step["next_observation"] = {"goal": TWO["y"], "rest": torch.zeros(2, 1)}
    adaptor = Intrinsic({"mutual_information": InformationBonus(network, weight=0.5)}, extrinsic_weight=2.0)
    assert {*adaptor.requires} == {"reward", "next_observation", "action"}
    batch = adaptor(step, None)
    expected = 2.0 * step["reward"] + 0.5 * (score(**TWO) - math.log(3.0))
    torch.testing.assert_close(batch["reward"], expected, rtol=0.0, atol=1e-6)
    loss = InformationBonusLoss(network, sgd)
    elements, outputs, _ = loss.loss(batch["mutual_information"])
    own, _, buffers = network.learn(**TWO)
    assert torch.equal(elements, own)
    assert [*outputs["updates"]] == [f"network.{path}" for path in buffers]


def test_bonus_sees_normalized_observations():
    spaces = {"observation": box(2), "next_observation": box(2)}
    normalizer = Normalizer([2])
    normalizer.update(torch.tensor([[1.0, 2.0], [5.0, 2.5]]))
    network = linear("kld", spaces=spaces, x="observation", y="next_observation")
    step = {"observation": TWO["x"], "next_observation": TWO["y"], "reward": torch.zeros(2)}
    value = InformationBonus(network, observation=normalizer).read(step)
    torch.testing.assert_close(value, score(normalizer(TWO["x"]), normalizer(TWO["y"])))


def test_term_makes_features_informative():
    torch.manual_seed(0)
    features = EncodedMLP(box(4), hidden=(8,), encoder=torch.nn.Linear(4, 2))
    network = MutualInformation(PAIR, features=features, sampler="shift", hidden=(16,))
    names = {name for name, _ in network.named_parameters()}
    assert not any("encoder" in name for name in names)  # they are of the other network

    class Other(InformationLoss):
        def loss(self, x):
            return self.network(x).squeeze(-1).square()

    terms = {"other": Other(features, None), "information": InformationLoss(network, None)}
    joint = JointLoss(sgd, terms=terms, loss_weight={"other": 0.0})
    x = torch.randn(16, 4)
    before = features.encoder.weight.clone()
    joint.backward(x, x + 0.1 * torch.randn(16, 4))
    assert not torch.equal(before, features.encoder.weight)
    assert float(network.average.updates) == 1.0


TERM = (
    *("encoder._target_=torch.nn.LazyLinear", "+encoder.out_features=4", "+with=shared_encoder", "~callbacks.q_loss"),
    "+networks.mutual_information={_target_: rlrun.algorithms.density.mutual_information.MutualInformation, "
    "sampler: shuffle, spaces: {x: '${spaces.observation}', y: '${spaces.observation}'}, "
    "features: '${networks.critics}'}",
    "+callbacks.joint={_target_: rlrun.callbacks.JointLoss, optimizer: '${optimizer}', terms: {"
    "q_loss: {_target_: rlrun.callbacks.CriticLoss, network: '${networks.critics}', optimizer: null}, "
    "mutual_information: {_target_: rlrun.algorithms.density.mutual_information.InformationLoss, optimizer: null, "
    "_inputs_: {x: observation, y: next_observation}, network: '${networks.mutual_information}'}}}",
)
KLD = ("intrinsic.mutual_information.estimator=kld",)
BUFFERED = ("+with=mutual_information", "intrinsic.mutual_information.sampler=double_buffer")


DATA = ("algorithm=mutual_information", "data.dataset.rows=400", "algorithm.batch_size=32", "algorithm.hidden=[8]")
DATA += ("stop.updates=50", "evaluation.every=20", "logger=[]", "log.every=10")


@pytest.mark.parametrize(
    ("overrides", "at"),
    [
        (("algorithm=sac", "env=pendulum", *BUFFERED, *REPLAY), 45),
        (("algorithm=ppo", "env=cartpole", *BUFFERED, *KLD, *ROLLOUT, "algorithm.epochs=1", "stop.updates=3"), 32),
        (("algorithm=sac", "env=pendulum", *TERM, *REPLAY), 45),
        ((*DATA, "algorithm.sampler=double_buffer"), 20),
        ((*DATA, "algorithm.estimator=ml"), 20),
    ],
)
def test_killed_runs_end_with_the_same_state(overrides, at, folder):
    saved = ("checkpoint.every=4", "checkpoint.keep_last=null", "preset=null")
    assert_exact([*overrides, *saved], folder, at=at)
