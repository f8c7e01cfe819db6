"""Dense layers equal those of torch by each backend: outputs, gradients, and gradients of gradients."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, grad
from torch.fx.experimental.proxy_tensor import make_fx

from rlrun.nn import MLP, Ensemble, MixedPrecision, ensemble, fast_linear
from rlrun.nn.fast_linear import Linear, Tanh


@pytest.fixture
def restored():
    """Restore the backend afterwards."""
    before = fast_linear.in_use()
    yield
    fast_linear.use(before)


@pytest.fixture(params=fast_linear.BACKENDS)
def backend(request, restored, monkeypatch):
    """Compute by each backend, which takes products and activations of any size."""
    if fast_linear.use(request.param) != request.param:
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(fast_linear, "LARGE", 1)
    monkeypatch.setattr(ensemble, "LARGE", 1)
    monkeypatch.setattr(fast_linear, "SMALL", 0)
    return request.param


def plain(network):
    """Return the network by torch's own layers, on the same parameters."""
    if isinstance(network, Ensemble):
        return lambda x: torch.stack([plain_member(network, member)(x) for member in range(network.members)])
    layers = nn.Sequential()
    for layer in network:
        if isinstance(layer, nn.Linear):
            torch_layer = nn.Linear(layer.in_features, layer.out_features)
            torch_layer.weight, torch_layer.bias = layer.weight, layer.bias
            layers.append(torch_layer)
        else:
            layers.append(nn.Tanh() if isinstance(layer, nn.Tanh) else layer)
    return layers


def plain_member(network, member):
    def run(x):
        *hidden, last = network.layers
        for layer in hidden:
            x = network.activation(x @ layer.weight[member] + layer.bias[member])
        return x @ last.weight[member] + last.bias[member]

    return run


def assert_close(ours, theirs):
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def assert_equals_torch(network, x):
    """Compare outputs and all gradients with those of torch's own layers."""
    wanted = [tensor for tensor in (x, *network.parameters()) if tensor.requires_grad]
    ours, theirs = network(x), plain(network)(x)
    assert_close([ours], [theirs])
    gradients = [grad(output.square().sum(), wanted, allow_unused=True) for output in (ours, theirs)]
    assert_close(*gradients)
    assert all(part.stride() == tensor.stride() for part, tensor in zip(gradients[0][1:], wanted[1:], strict=True))


NETWORKS = {
    "relu": lambda: MLP(4, 2, hidden=(16, 8)),
    "tanh": lambda: MLP(4, 2, hidden=(16, 8), activation="tanh"),
    "no hidden layer": lambda: MLP(4, 2, hidden=()),
    "wide input": lambda: nn.Sequential(Linear(200, 30)),
    "one member": lambda: Ensemble(4, 2, members=1, hidden=(16, 8), activation="tanh"),
    "members": lambda: Ensemble(4, 2, members=3, hidden=(16, 8)),
}


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_equal_torch(name, rows, backend):
    torch.manual_seed(0)
    network = NETWORKS[name]()
    assert_equals_torch(network, torch.randn(rows, 200 if name == "wide input" else 4, requires_grad=True))
    frozen = network.requires_grad_(False)
    assert_equals_torch(frozen, torch.randn(rows, 200 if name == "wide input" else 4, requires_grad=True))


def test_onednn_multiplies_large_products(restored, monkeypatch):
    if fast_linear.use("onednn") != "onednn":
        pytest.skip("this build of torch has no oneDNN")
    shapes = []
    operator = fast_linear._operator
    monkeypatch.setattr(fast_linear, "_operator", lambda x, *more: shapes.append(tuple(x.shape)) or operator(x, *more))
    torch.manual_seed(0)
    for network in (MLP(8, 1), Ensemble(8, 1)):
        assert_equals_torch(network, torch.randn(128, 8))
        one = {(128, 256): 2, (256, 128): 1}  # 128 × 256 × 256 forward, and gradients of the input and the weight
        assert {shape: shapes.count(shape) for shape in set(shapes)} == {
            shape: count * getattr(network, "members", 1) for shape, count in one.items()
        }
        shapes.clear()


INPUTS = {
    "windows": lambda: torch.randn(3, 6, 4),
    "transposed": lambda: torch.randn(4, 5).t(),
    "expanded": lambda: torch.randn(1, 4).expand(5, 4),
    "strided": lambda: torch.randn(8, 8)[::2, 1::2],
    "parameter": lambda: nn.Parameter(torch.randn(5, 4)),
    "negative": lambda: torch.complex(torch.ones(5, 4), torch.randn(5, 4)).conj().imag,
    "zeros": lambda: torch._efficientzerotensor((5, 4)),
    "sparse": lambda: torch.randn(5, 4).to_sparse(),
    "subclass": lambda: torch.randn(5, 4).as_subclass(type("Subclass", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("name", INPUTS)
def test_any_input_is_accepted(name, backend):
    assert_equals_torch(MLP(4, 2, hidden=(8, 8), activation="tanh"), INPUTS[name]())


def test_bias_may_be_a_column(backend):
    x, weight, bias = torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 7)[:, 2]
    torch.testing.assert_close(fast_linear.linear(x, weight, bias), nn.functional.linear(x, weight, bias))


def test_double_precision_stays_double(backend):
    assert_equals_torch(MLP(4, 2, hidden=(8,), activation="tanh").double(), torch.randn(5, 4).double())


def second_order(model, wanted, x):
    x = x.clone().requires_grad_()
    (first,) = grad(model(x).square().sum(), x, create_graph=True)
    return grad(first.square().sum(), wanted, allow_unused=True)


def third_order(model, wanted, x):
    gradients = grad(model(x).pow(3).sum(), wanted, create_graph=True)
    again = grad(sum(part.square().sum() for part in gradients), wanted, create_graph=True)
    return grad(sum(part.sum() for part in again), wanted)


def twice(model, wanted, x):
    return grad(model(model(x)).square().sum(), wanted, create_graph=True)


def in_place(model, wanted, x):
    return grad(model(x).relu_().sum(), wanted)


def forward_mode(model, wanted, x):
    with forward_ad.dual_level():
        return [forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))).tangent]


def traced(model, wanted, x):
    return [torch.jit.trace(model, x)(x)]


def graph(model, wanted, x):
    def gradients(x):
        return grad(model(x).square().sum(), wanted)

    module = make_fx(gradients, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)
    assert "mkldnn" not in module.code
    return module(torch.cat((x, x)))


def compiled(model, wanted, x):
    return [torch.compile(model, backend="eager", fullgraph=True)(x)]


def autocast(model, wanted, x):
    with torch.autocast("cpu", torch.bfloat16):
        return [model(x)]  # whose type is compared, too


def infinite(model, wanted, x):
    direction = torch.ones(len(x), 3)
    direction[0, 0] = float("inf")
    return grad(model(x), wanted[3], direction)  # of the bias before the last activation


def negative_view(model, wanted, x):
    return grad(model(x), wanted, torch._neg_view(torch.ones(len(x), 3)))


def batched_directions(model, wanted, x):
    directions = torch.randn(5, len(x), 3, generator=torch.Generator().manual_seed(0))
    return grad(model(x), wanted, directions, is_grads_batched=True)


def of_each_row(model, wanted, x):
    names = [name for name, _ in model.named_parameters()]

    def value(parameters, row):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), row.unsqueeze(0)).sum()

    return torch.func.vmap(torch.func.grad(value), in_dims=(None, 0))(wanted, x)


USES = [second_order, third_order, twice, in_place, forward_mode, traced, graph, compiled, autocast, infinite]
USES += [negative_view, batched_directions, of_each_row]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES)
def test_uses_by_autograd_equal_torch(use, backend):
    torch.manual_seed(0)
    layers = [Linear(3, 16), nn.ReLU(inplace=True), Linear(16, 16), Tanh(), Linear(16, 3)]
    network, x = nn.Sequential(*layers), torch.randn(5, 3)
    wanted = list(network.parameters())
    assert_close(use(network, wanted, x), use(plain(network), wanted, x))


@pytest.mark.parametrize("members", [1, 2])
def test_double_backward_of_members_equals_torch(members, backend):
    torch.manual_seed(0)
    network, x = Ensemble(3, 3, members=members, hidden=(16,), activation="tanh"), torch.randn(5, 3)
    wanted = list(network.parameters())
    assert_close(second_order(network, wanted, x), second_order(plain(network), wanted, x))


@pytest.mark.parametrize("backend", ["onednn"], indirect=True)  # by torch, autograd leaves them out
def test_unwanted_gradients_are_not_computed(backend, monkeypatch):
    policy, critic = MLP(3, 1, hidden=(8,)), MLP(1, 1, hidden=(8,))
    products = []
    product = fast_linear._product
    monkeypatch.setattr(fast_linear, "_product", lambda *sides: products.append(1) or product(*sides))
    torch.autograd.backward(critic(policy(torch.randn(5, 3))).mean(), inputs=list(policy.parameters()))
    assert len(products) == 5  # of the critic two inputs, of the policy two weights and an input
    assert all(parameter.grad is None for parameter in critic.parameters())
    products.clear()
    critic(torch.randn(5, 1)).mean().backward()
    assert len(products) == 3


def test_tanh_is_exact_to_rounding(backend):
    x = torch.linspace(-20.0, 20.0, 100_001)
    ours = Tanh()(x)
    assert float((ours.double() - x.double().tanh()).abs().max()) < 3e-7
    assert float(ours.abs().max()) <= 1.0


@pytest.mark.parametrize("precision", ["highest", "bf16"])
@pytest.mark.parametrize("network", [MLP(3, 1), Ensemble(3, 1, members=1), MLP(3, 1, activation="tanh")])
def test_nan_stays_in_its_row(network, precision, backend, monkeypatch):
    monkeypatch.setattr("rlrun.nn.precision.has_bfloat16", lambda device: True)
    x = torch.randn(64, 3)
    x[5] = float("nan")
    with MixedPrecision(precision, "cpu"):
        assert network(x).view(64).isnan().nonzero().tolist() == [[5]]


@pytest.mark.parametrize(
    ("network", "shape", "options"),
    [
        (Ensemble(3, 2, members=2, hidden=(8,)), (3, 4, 3), {"shared": False}),
        (MLP(3, 2, hidden=(8,)), (5, 4), {}),
        (Ensemble(3, 2, hidden=(8,)), (5, 4), {}),
    ],
)
def test_inputs_of_wrong_shape_are_refused(network, shape, options, backend):
    with pytest.raises((RuntimeError, ValueError)):
        network(torch.randn(shape), **options)


@pytest.mark.parametrize("gain", [1.1, 1.3])
def test_fastest_backend_is_chosen(gain, restored, monkeypatch):
    if fast_linear.use("onednn") != "onednn":
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(fast_linear, "_seconds", lambda backend, network, x: 1.0 if backend == "torch" else 1.0 / gain)
    fast_linear.use("torch")
    drawn = torch.random.get_rng_state()
    with torch.no_grad():
        assert fast_linear.fastest() == ("onednn" if gain > fast_linear.GAIN else "torch")
        assert not torch.is_grad_enabled()
    assert fast_linear.in_use() == "torch"
    assert torch.equal(torch.random.get_rng_state(), drawn), "the run's own numbers were drawn"


def test_inexact_backend_is_not_chosen(restored, monkeypatch):
    def short(x, weight, bias, *options):
        return torch.nn.functional.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).float()

    monkeypatch.setattr(fast_linear, "_operator", short)
    monkeypatch.setattr(fast_linear, "_seconds", lambda backend, network, x: 0.1 if backend == "onednn" else 1.0)
    assert fast_linear.fastest() == "torch"  # its numbers are too short
    monkeypatch.setattr(fast_linear, "_operator", None)
    assert (fast_linear.use("onednn"), fast_linear.fastest()) == ("torch", "torch")


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 1.0, 2: 0.9, 4: 0.85, 6: 0.9}, 1),  # not worth it
        ({1: 1.0, 2: 0.6, 4: 0.4, 6: 0.41}, 4),
        ({1: 1.0, 2: 0.6, 4: 0.57, 6: 0.56}, 2),  # about as fast
        ({1: 1.0, 2: 100.0, 4: 100.0, 6: 100.0}, 1),  # next to a busy process
        ({1: 1.0, 2: 0.8, 4: 0.5, 6: 0.3}, 6),
    ],
)
def test_threads_are_as_many_as_pay(seconds, best, restored, monkeypatch):
    before, threads = torch.get_num_threads(), []

    def timed(backend, network, x, passes=3):
        threads.append(torch.get_num_threads())
        return seconds[threads[-1]] * passes / 3

    monkeypatch.setattr(fast_linear, "_seconds", timed)
    assert fast_linear.best_threads(6) == best
    assert torch.get_num_threads() == before
    assert set(threads) == ({1, 2} if seconds[2] > 2.0 else set(seconds))
    assert threads.count(2) == (2 if seconds[2] > 2.0 else threads.count(1))
    assert fast_linear.best_threads(1) == 1
