"""Particles, generators and hypernetworks: their losses against closed forms, and what they refuse."""

import math

import pytest
import torch
from torch import nn

from rlrun import train
from rlrun.algorithms.density.generator import Generator, Inverse, InverseLoss, product_of
from rlrun.algorithms.density.hypernetwork import Likelihood, Outliers, Votes, metric_of
from rlrun.algorithms.density.mutual_information import information_of
from rlrun.algorithms.density.particles import (
    GaussianEnergy,
    Kernel,
    ParticleLoss,
    Particles,
    SteinCriticLoss,
    critic_loss,
    trace_of,
)
from rlrun.commands.check import check
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Box
from rlrun.nn import MLP
from rlrun.ops import stein

COVARIANCE = [[1.0, 0.3], [0.3, 4.0]]
GAUSSIAN = GaussianEnergy([1.0, -1.0], COVARIANCE)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def particle_loss(network, optimizer=sgd, **options):
    options = {"energy": GAUSSIAN, "method": "svgd", "kernel": Kernel(), **options}
    return ParticleLoss(network, optimizer, **options)


def generator(outputs=2, noise=2, count=6, **options):
    energy = GaussianEnergy([0.0] * outputs, torch.eye(outputs).tolist())
    return Generator(energy, noise=noise, count=count, hidden=[8], activation="tanh", **options)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_gaussian_is_a_density():
    values = torch.randn(5, 2)
    true = torch.distributions.MultivariateNormal(torch.tensor([1.0, -1.0]), torch.tensor(COVARIANCE))
    difference = GAUSSIAN(values) + true.log_prob(values)
    torch.testing.assert_close(difference, difference[:1].expand(5), atol=1e-5, rtol=0)
    label = torch.randn(5, 2)
    torch.testing.assert_close(GAUSSIAN(values, None, label), GAUSSIAN(values - label + GAUSSIAN.mean))


@pytest.mark.parametrize("method", ["svgd", "gfsf"])
def test_particles_step_by_their_drift(method):
    network = Particles(GAUSSIAN, count=6)
    before = network.values.detach().clone()
    particle_loss(network, method=method, entropy_weight=0.7).backward()
    width = stein.kernel_width(stein.squared_distances(before, before))
    slope = (before - GAUSSIAN.mean) @ torch.linalg.inv(torch.tensor(COVARIANCE))
    if method == "svgd":
        drift = stein.svgd_drift(before, before, slope, width, 0.7)
    else:
        drift = stein.gfsf_drift(before, slope, width, 0.7)
    torch.testing.assert_close(network.values.detach(), before - 0.1 * drift / 6)


@pytest.mark.parametrize("sources", ["same", "halves", "apart", "pairs"])
def test_generators_without_entropy_find_the_mode(sources):
    network = generator(count=16)
    loss = particle_loss(network, adam, entropy_weight=0.0, sources=sources)
    for _ in range(300):
        loss.backward()
    assert network(network.noise(50)).detach().allclose(GAUSSIAN.mean, atol=0.15)


@pytest.mark.parametrize(("rate", "widths"), [(None, (1.0, 2.0, 3.0)), (0.1, (1.0, 1.526316, 2.070110))])
def test_widths_are_averaged_without_their_start(rate, widths):
    kernel = Kernel(factor=2.0, rate=rate)
    for number, expected in enumerate(widths, 1):
        distances = torch.full((3, 3), number * torch.tensor(3.0).log())
        width, updates = kernel(distances)
        assert float(width) == pytest.approx(2.0 * expected, rel=1e-5)
        for path, value in updates.items():
            kernel.get_buffer(path.rpartition(".")[2]).copy_(value)


def test_averages_and_widths_last():
    network = generator(average_rate=0.75)
    loss = particle_loss(network, kernel=Kernel(rate=0.5), sources="apart")
    slow = network.slow[0].weight.clone()
    loss.backward()
    after = network.layers[0].weight.detach().clone()
    loss.backward()
    torch.testing.assert_close(network.slow[0].weight, slow.lerp(after, 0.25))
    assert float(loss.kernel.moments[1]) == 0.75
    noise = network.noise(3)
    assert not network.predict(noise).equal(network(noise))


@pytest.mark.parametrize("exact", [True, False])
def test_traces_of_a_critic(exact):
    matrix = torch.tensor([[2.0, 1.0], [0.5, -5.0]])
    values = torch.randn(4_000, 2, requires_grad=True)
    trace = trace_of(values @ matrix.T, values, exact=exact)
    torch.testing.assert_close(
        trace if exact else trace.mean(0, keepdim=True),
        torch.full_like(trace, -3.0)[: len(trace) if exact else 1],
        atol=0.1,
        rtol=0,
    )


def test_critics_share_noise_on_demand():
    network, critic = generator(), nn.Linear(2, 2)
    options = {"source": network, "energy": GAUSSIAN}
    loss = SteinCriticLoss(critic, sgd, l2=1.0, resample=False, **options)
    noise = loss.backward()["noise"]
    follower = particle_loss(network, method="minmax", critic=critic)
    elements, _, metrics = follower.loss(noise=noise)
    values = network(noise).detach()
    torch.testing.assert_close(elements.detach(), -(critic(values) * values).sum(-1).detach())
    assert noise.shape == (6, 2)
    torch.testing.assert_close(metrics["particles/energy"], GAUSSIAN(network(noise)).detach())
    assert SteinCriticLoss(critic, sgd, **options).provides == ()


@pytest.mark.parametrize(
    ("count", "scale", "block"), [(1, 0.8, True), (2, 0.8, False), (3, 0.8, False), (3, None, False)]
)
def test_products_with_the_inverse_jacobian(count, scale, block):
    network = generator(3, noise=count, scale=scale)
    noise, vector = network.noise(4), torch.randn(4, 5, 3)
    exact = Inverse(network, exact=True, block=block, hidden=[])(network, noise, vector)
    jacobian = torch.stack([torch.autograd.functional.jacobian(network, row) for row in noise])
    torch.testing.assert_close(torch.einsum("mdk,mnd->mnk", jacobian, exact), vector, atol=1e-5, rtol=1e-4)
    product = product_of(network, noise, vector, scaled=True)
    torch.testing.assert_close(product, torch.einsum("mdk,mnd->mnk", jacobian, vector))


def test_exact_inverses_solve_no_more_than_the_block_of_noise(monkeypatch):
    network, sizes = generator(500, noise=2, scale=0.8), []
    solve = torch.linalg.solve
    monkeypatch.setattr(torch.linalg, "solve", lambda left, right: sizes.append(left.shape) or solve(left, right))
    inverse = Inverse(network, exact=True, block=False, hidden=[])
    noise, vector = network.noise(4), torch.randn(4, 5, 500)
    product = product_of(network, noise, inverse(network, noise, vector), scaled=True)
    torch.testing.assert_close(product, vector, atol=1e-4, rtol=1e-4)
    assert sizes == [(4, 2, 2)]


@pytest.mark.parametrize("block", [False, True])
def test_inverse_networks_learn_the_products(block):
    network = Generator(GAUSSIAN, noise=1, count=64, hidden=[], scale=1.0)
    inverse = Inverse(network, exact=False, block=block, hidden=[32])
    loss = InverseLoss(inverse, adam, generator=network, kernel=Kernel())
    for _ in range(400):
        loss.backward()
    assert float(loss.metrics["particles/inverse"]) < 0.02
    noise, vector = network.noise(8), 0.3 * torch.randn(8, 4, 2)
    exact = Inverse(network, exact=True, block=False, hidden=[])(network, noise, vector)
    error = (inverse(network, noise, vector) - exact).detach().square().mean()
    assert float(error) < 0.02 * float(exact.detach().square().mean()) + 1e-3


@pytest.mark.parametrize("estimator", ["jsd", "dv"])
def test_information_keeps_collapsing_generators_apart(estimator):
    spreads = []
    for weight in (0.0, 3.0):
        torch.manual_seed(1)
        network = generator(
            count=32, information=information_of(weight, noise=2, outputs=2, estimator=estimator, hidden=[32])
        )
        loss = particle_loss(network, adam, entropy_weight=0.0, information_weight=weight)
        for _ in range(300):
            loss.backward()
        spreads.append(float(network(network.noise(100)).detach().var(0).sum()))
    assert spreads[0] < 0.05 < 0.5 < spreads[1]


def test_the_moved_half_of_particles_shares_information():
    torch.manual_seed(1)
    information = information_of(1.0, noise=2, outputs=2, hidden=[32])
    network = generator(count=32, information=information)
    noise = network.noise()
    elements = [
        particle_loss(network, adam, sources="halves", information_weight=weight).loss(noise=noise)[0]
        for weight in (0.0, 0.5)
    ]
    expected, _, _ = information.learn(noise[:16], network(noise[:16]))
    torch.testing.assert_close(elements[1] - elements[0], 0.5 * expected)


def test_generators_with_inputs_learn_a_map():
    network = generator(inputs=Box((1,), -1.0, 1.0, "float32"))
    loss = particle_loss(network, adam, sources="pairs", energy=GaussianEnergy([0.0, 0.0], [[0.01, 0.0], [0.0, 0.01]]))
    for _ in range(400):
        seen = torch.rand(32, 1) * 2.0 - 1.0
        loss.backward(observation=seen, label=torch.cat((seen, -2.0 * seen), 1))
    seen = torch.full((500, 1), 0.5)
    assert network(network.noise(500), seen).mean(0).tolist() == pytest.approx([0.5, -1.0], abs=0.2)


class Rows:
    """So many rows of data."""

    def __len__(self):
        return 20


def likelihood(**options):
    return Likelihood(MLP(2, 3, hidden=[4], activation="tanh"), Rows(), **options)


def test_networks_take_the_weights_of_particles():
    energy = likelihood(prior=2.0)
    weights, seen = energy.initial(5), torch.randn(7, 2)
    outputs = energy.functions(weights, seen)
    twin = MLP(2, 3, hidden=[4], activation="tanh")
    nn.utils.vector_to_parameters(weights[3], twin.parameters())
    torch.testing.assert_close(outputs[3], twin(seen))
    label = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    wanted = nn.functional.cross_entropy(twin(seen), label) + weights[3].square().sum() / (2.0 * 20.0 * 4.0)
    torch.testing.assert_close(energy(weights, seen, label)[3], wanted)
    assert not weights[0].equal(weights[1])


def test_functions_have_further_places():
    energy = likelihood(extra=0.3, extra_noise="normal")
    weights, seen, label = energy.initial(5), torch.randn(7, 2), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    places = energy.places(seen)
    assert places.shape == (10, 2)  # ⌈0.3 · 7⌉ more
    torch.testing.assert_close(places[:7], seen)
    values = energy.functions(weights, places).flatten(1)
    torch.testing.assert_close(energy.fit(values, label), likelihood_of(energy, weights, seen, label))
    network = Particles(energy, count=5)
    loss = particle_loss(network, energy=energy, functional=True)
    loss.backward(observation=seen, label=label)
    assert loss.entropy_weight == 1.0 / 20.0


def likelihood_of(energy, weights, seen, label):
    outputs = energy.functions(weights, seen)
    return torch.stack([nn.functional.cross_entropy(output, label) for output in outputs])


class Bare(nn.Module):
    """A parameter that no layer owns."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))


def normed():
    return MLP(2, 2, hidden=[4], batch_norm=True)


def test_new_weights_begin_as_the_network_says():
    network = MLP(2, 3, hidden=[2], init="orthogonal", output_gain=0.1)
    weights = Likelihood(network, Rows()).initial(2)
    assert not weights[0].equal(weights[1])
    for particle in weights:
        nn.utils.vector_to_parameters(particle, network.parameters())
        first, last = network[0].weight, network[-1].weight
        torch.testing.assert_close(first @ first.T, (first @ first.T)[0, 0] * torch.eye(2))
        torch.testing.assert_close(last.T @ last, 0.01 * torch.eye(2))


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_votes_of_certain_networks_are_finite(voting):
    votes = Votes(Particles(GAUSSIAN, count=2), likelihood(), count=2, voting=voting)
    votes.members = lambda observation: torch.tensor([[[0.0, -150.0]], [[0.0, -150.0]]])
    few = 0.0 if voting == "soft" else math.log(1e-3)
    assert votes(None)[0].tolist() == pytest.approx([0.0, -150.0 + few], abs=1e-4)


@pytest.mark.parametrize(("voting", "expected"), [("soft", [0.5 / 3, 2.5 / 3]), ("hard", [1.0 / 3, 2.0 / 3])])
def test_votes_are_soft_or_hard(voting, expected):
    votes = Votes(Particles(GAUSSIAN, count=3), likelihood(), count=3, voting=voting)
    outputs = torch.tensor([[[0.5, 0.5 - 1e-6]], [[0.0, 1.0]], [[0.0, 1.0]]]).clamp(min=1e-30).log()
    votes.members = lambda observation: outputs
    assert votes(None).exp().flatten().tolist() == pytest.approx(expected, abs=2e-3)
    mean = torch.tensor([0.5 / 3, 2.5 / 3])
    assert float(votes.uncertainty(None, "entropy")) == pytest.approx(float(-(mean * mean.log()).sum()), rel=1e-3)
    assert float(votes.uncertainty(None, "variance")) == pytest.approx(1.0 / 9.0, rel=1e-3)


def test_regressions_predict_mean_and_variance():
    votes = Votes(Particles(GAUSSIAN, count=2), likelihood(loss="regression", deviation=0.5), count=2)
    votes.members = lambda observation: torch.tensor([[[1.0]], [[3.0]]])
    output, label = votes(None), torch.tensor([4.0])
    assert output.tolist() == [[[2.0], [1.25]]]
    assert metric_of("error", "regression")(output, label).tolist() == [4.0]
    true = torch.distributions.Normal(2.0, 1.25**0.5).log_prob(label)
    torch.testing.assert_close(metric_of("likelihood", "regression")(output, label), true)
    assert metric_of("accuracy", "regression") is None


@pytest.mark.parametrize(("change", "expected"), [("inverted", [255, 55]), ("noise", None)])
def test_outliers_are_changed_or_a_column(change, expected):
    class Network:
        _borrowed = (None, likelihood())

        def uncertainty(self, observation, measure):
            return observation.float().flatten()

    metric, seen = Outliers(Network(), change=change), torch.tensor([[0], [200]], dtype=torch.uint8)
    values = metric(seen)
    assert expected is None or values[:, 1].tolist() == expected
    values = metric(seen, torch.tensor([[201], [150]]))
    assert values.tolist() == [[0, 201], [200, 150]]
    assert float(metric.reduce(values)) == 0.75
    choices = metric(torch.tensor([[0], [3], [4]]))[:, 1]
    assert choices.tolist() == [4, 1, 0] if change == "inverted" else set(choices.tolist()) <= {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: GaussianEnergy([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), "energy.covariance"),
        (lambda: Kernel(factor=0.0), "kernel"),
        (lambda: Particles(GAUSSIAN, count=1), "algorithm.particles"),
        (lambda: particle_loss(Particles(GAUSSIAN, count=4), method="gpvi"), "particles have no noise"),
        (lambda: particle_loss(Particles(GAUSSIAN, count=4), sources="pairs"), "particles have no noise"),
        (lambda: particle_loss(Particles(GAUSSIAN, count=4), method="sgvd"), "did you mean 'svgd'"),
        (lambda: particle_loss(Particles(GAUSSIAN, count=4), functional=True), "algorithm.functional"),
        (lambda: particle_loss(Particles(GAUSSIAN, count=4), information_weight=0.1), "algorithm.information_weight"),
        (lambda: generator(noise=3, scale=1.0), "algorithm.scale"),
        (lambda: Inverse(generator(noise=1), exact=False, block=False, hidden=[]), "algorithm.method=gpvi"),
        (lambda: Inverse(generator(batch_norm=True), exact=True, block=False, hidden=[]), "gpvi: .* batch_norm mixes"),
        (
            lambda: critic_loss("minmax", normed(), optimizer=sgd, source=generator(), energy=GAUSSIAN, exact=True),
            "exact",
        ),
        (lambda: generator(count=1), "algorithm.particles"),
        (lambda: generator(average_rate=1.5), "algorithm.average_rate"),
        (lambda: particle_loss(generator(), information_weight=0.1), "algorithm.information_weight"),
        (lambda: particle_loss(generator(), pace={"svgd": 0}), "pace.svgd"),
        (lambda: likelihood(loss="hinge"), "algorithm.loss"),
        (lambda: likelihood(deviation=0.0), "algorithm.deviation"),
        (lambda: likelihood(prior=-1.0), "algorithm.prior"),
        (lambda: likelihood(extra=1.5), "algorithm.extra.share"),
        (lambda: Likelihood(Bare(), Rows()), "a Bare has parameters, but no reset_parameters"),
        (lambda: Votes(Particles(GAUSSIAN, count=2), likelihood(), count=0), "algorithm.members"),
        (lambda: Likelihood(nn.BatchNorm1d(3), Rows()), "energy.network"),
        (lambda: likelihood()(torch.zeros(2, 27), torch.zeros(4, 2), torch.zeros(4)), "not classes"),
        (lambda: likelihood(loss="regression")(torch.zeros(2, 27), torch.zeros(4, 2), torch.zeros(4)), "3 outputs"),
        (lambda: Votes(Particles(GAUSSIAN, count=2), likelihood(), count=2, voting="loud"), "algorithm.voting"),
    ],
)
def test_what_does_not_fit_is_refused(build, text):
    with pytest.raises(ConfigError, match=text):
        build()


@pytest.mark.parametrize("method", ["svgd", "gfsf", "minmax", "gpvi"])
@pytest.mark.parametrize("algorithm", ["generator", "hypernetwork"])
def test_every_method_runs(algorithm, method, tmp_path):
    small = ["algorithm.hidden=[4]", "algorithm.scale=1.0", "algorithm.noise=1", "algorithm.particles=4"]
    small += ["algorithm.critic.hidden=[4]", "algorithm.inverse.hidden=[4]", "stop.updates=3", "logger=[]"]
    if algorithm == "hypernetwork":
        small += ["algorithm.network.hidden=[2]", "encoder=flat", "evaluation.every=3", "algorithm.members=3"]
    result = train([f"algorithm={algorithm}", f"algorithm.method={method}", *small], run_dir=tmp_path / "run")
    assert result.summary["status"] == "completed"
    extra = {"minmax": ["critic"], "gpvi": ["inverse"]}.get(method, [])
    assert [name for name in ("critic", "inverse") if name in result.trainer.callbacks] == extra


@pytest.mark.parametrize("label", ["[0, 1, 2, 1]", "[0.0, 1.5, 2.0, 1.0]", "[[0, 1], [1, 2], [2, 0], [1, 1]]"])
def test_outputs_follow_from_the_loss(label):
    data = ["data=file", f"data.dataset={{observation: [[0.5], [1.5], [2.5], [3.0]], label: {label}}}"]
    numbers = Builder(compose(["algorithm=hypernetwork", "algorithm.loss=regression", *data, "env=none"]).config)
    rows = numbers.get("data").train
    energy = numbers.get("energy")
    output = energy.functions(energy.initial(2), torch.zeros(len(rows), 1))
    assert energy._error(output, torch.zeros(len(rows), output.shape[-1])).shape == (2,)
    assert output.shape[-1] == (2 if "[[" in label else 1)


def test_classes_are_no_numbers():
    data = ["data=file", "data.dataset={observation: [0.5, 1.5, 2.5], label: [0.0, 1.5, 2.0]}"]
    with pytest.raises(RlrunError, match="labels are numbers, not classes"):
        check(["algorithm=functional_particles", *data, "env=none"])


@pytest.mark.parametrize(("algorithm", "rate"), [("functional_particles", 0.05), ("hypernetwork", 0.01)])
def test_regressions_learn_from_numbers(algorithm, rate, tmp_path):
    points = [number / 10.0 for number in range(-10, 11)]
    data = f"data.dataset={{observation: {[[x] for x in points]}, label: {[[2.0 * x] for x in points]}}}"
    options = ["algorithm.loss=regression", "algorithm.deviation=0.1", "algorithm.network.hidden=[]", "logger=[]"]
    options += [f"algorithm.lr={rate}", "stop.updates=200", "evaluation.every=200", "algorithm.batch_size=16"]
    result = train([f"algorithm={algorithm}", "data=file", data, *options], run_dir=tmp_path / "run")
    judged = result.summary["validation"]
    assert [*judged] == ["likelihood", "error", "outliers", "outliers_noise"]
    assert judged["error"] < 0.02
    assert judged["likelihood"] > 0.0
