"""Dense layers in one step: outputs and gradients equal those of torch's own layers, by each matmul backend."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from tests.nn.side import outputs_of
from torch import nn
from torch.autograd import forward_ad, grad
from torch.nn.utils import parametrize, prune

from rlrun.core.spaces import Spaces
from rlrun.nn import MLP, ActorCritic, Ensemble, MixedPrecision, arrays, products, ways
from rlrun.nn.mlp import Dense, dense

from .spaces_for_tests import box


@pytest.fixture
def restored():
    """Restore the matmul backend afterwards."""
    before = products.in_use()
    yield
    products.use(before)


@pytest.fixture(params=products.WAYS)
def way(request, restored):
    """Compute products by each matmul backend."""
    if products.use(request.param) != request.param:
        pytest.skip("this build of torch has no oneDNN")
    return request.param


def plainly(network):
    """Return the same layers as torch computes them: one after the other, or members by a batched product."""
    return (lambda x: network._together(x, True)) if isinstance(network, Ensemble) else nn.Sequential(*network)


def stacks(widths=((8,), (16, 8)), activation="tanh"):
    torch.manual_seed(1)
    return [dense(4, hidden, activation=activation) for hidden in widths]


def assert_alike(ours, theirs):
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def assert_equals_torch(network, x):
    """Compare outputs and all gradients with those of torch's own layers."""
    wanted = [tensor for tensor in (x, *network.parameters()) if tensor.requires_grad]
    ours, theirs = network(x), plainly(network)(x)
    assert type(ours) is type(theirs)
    assert_alike([ours], [theirs])
    gradients, expected = (grad(output.square().sum(), wanted, allow_unused=True) for output in (ours, theirs))
    assert_alike(gradients, expected)
    return dict(zip(map(id, wanted), gradients, strict=True))


@pytest.mark.parametrize("widths", [((8,), (16, 8)), ((64, 64), (64, 64)), ((5,),), ((160, 160), (3, 160))])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_joined_stacks_equal_single_ones(widths, activation, way):
    pair, x = stacks(widths, activation), torch.randn(64, 4, requires_grad=True)
    inputs = [x, *(parameter for stack in pair for parameter in stack.parameters())]
    weights = [torch.randn(64, hidden[-1]) for hidden in widths]

    def gradients(outputs):
        return grad(sum((w * o).sum() for w, o in zip(weights, outputs, strict=True)), inputs)

    ours, theirs = outputs_of(x, *pair), [plainly(stack)(x) for stack in pair]
    assert type(ours[0].grad_fn).__name__ == "_StacksBackward"
    assert_alike(ours, theirs)
    assert_alike(gradients(ours), gradients(theirs))
    with torch.no_grad():
        assert_alike(outputs_of(x, *pair), theirs)


@pytest.mark.parametrize("inputs", [3, 200])  # the gradient of a narrow input goes another way
def test_wide_network_equals_torch(inputs, way):
    torch.manual_seed(0)
    network, x = MLP(inputs, 2, hidden=(160, 160)), torch.randn(64, inputs, requires_grad=True)
    gradients = assert_equals_torch(network, x)
    assert all(gradients[id(part)].stride() == part.stride() for part in network.parameters())


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_separate_members_equal_batched_product(members, shared, way):
    torch.manual_seed(0)
    network = Ensemble(6, 2, members=members, hidden=(260, 260))  # large enough at 64 rows to be taken apart
    x = torch.randn(*(() if shared else (members,)), 64, 6, requires_grad=True)
    wanted = [x, *network.parameters()]
    ours, theirs = network(x, shared=shared), network._together(x, shared)
    assert type(ours.grad_fn).__name__ != type(theirs.grad_fn).__name__
    assert_alike([ours], [theirs])
    assert_alike(*(grad(output.square().sum(), wanted) for output in (ours, theirs)))


def test_unwanted_gradients_are_not_computed(way, monkeypatch):
    policy, critics = MLP(3, 1, hidden=(8,)), Ensemble(1, 1, members=1, hidden=(8,))
    computed = []
    makes = arrays if way == "numpy" else products
    real = makes.of_weight
    monkeypatch.setattr(makes, "of_weight", lambda *sides, **more: computed.append(1) or real(*sides, **more))
    torch.autograd.backward(critics(policy(torch.randn(5, 3))).mean(), inputs=list(policy.parameters()))
    assert len(computed) == 2  # the policy's layers, not the critics'
    assert [parameter.grad is None for parameter in critics.parameters()] == [True] * 4
    torch.autograd.backward(critics(torch.randn(5, 1)).mean(), inputs=list(critics.parameters()))
    assert len(computed) == 4


@pytest.mark.parametrize("again", [False, True])  # with a graph of its own
def test_unreached_stack_has_no_gradient(again, way):
    used, unused = stacks()
    wanted = [*used.parameters(), *unused.parameters()]
    loss = outputs_of(torch.randn(6, 4), used, unused)[0].square().sum()
    gradients = grad(loss, wanted, create_graph=again, allow_unused=True)
    assert [gradient is None for gradient in gradients] == [False, False, True, True, True, True]


def test_frozen_layers_take_no_gradient(way):
    network, x = MLP(3, 1, hidden=(8,)).requires_grad_(False), torch.randn(5, 3, requires_grad=True)
    assert_equals_torch(network, x)
    assert not network(x.detach()).requires_grad


def test_tanh_is_exact_to_rounding(way):
    stack = dense(1, (1,), activation="tanh")
    nn.init.ones_(stack[0].weight)
    nn.init.zeros_(stack[0].bias)
    x = torch.linspace(-20.0, 20.0, 100_001).unsqueeze(-1)
    ours = outputs_of(x, stack)[0].detach()
    assert float((ours.double() - x.double().tanh()).abs().max()) < 2e-7
    assert float(ours.abs().max()) <= 1.0


@pytest.mark.parametrize("precision", ["highest", "bf16"])
@pytest.mark.parametrize("network", [MLP(3, 1, hidden=(256, 256)), Ensemble(3, 1, members=1, hidden=(256, 256))])
def test_nan_stays_in_its_row(network, precision, way, monkeypatch):
    monkeypatch.setattr("rlrun.nn.precision.has_bfloat16", lambda device: True)
    x = torch.randn(64, 3)
    x[5] = float("nan")
    with MixedPrecision(precision, "cpu"):
        output = network(x).view(64)
    assert output.isnan().nonzero().tolist() == [[5]]


def changed(change):
    pair = stacks()
    change(pair[0])
    return pair


OTHER_STACKS = {
    "windows": stacks(),
    "elu": stacks(activation="elu"),
    "empty": stacks(((), (8,))),
    "hook": changed(lambda stack: stack[1].register_forward_hook(lambda module, inputs, output: None)),
    "no bias": changed(lambda stack: setattr(stack[0], "bias", None)),
    "pruned": changed(lambda stack: prune.l1_unstructured(stack[0], "weight", 0.5)),  # the weight is no parameter now
    "double": [stack.double() for stack in stacks()],
}


@pytest.mark.parametrize("name", OTHER_STACKS)
def test_other_stacks_are_left_to_torch(name, way):
    pair = OTHER_STACKS[name]
    x = torch.randn(*(3, 6, 4) if name == "windows" else (6, 4)).to(next(pair[1].parameters()).dtype)
    assert_alike(outputs_of(x, *pair), [plainly(stack)(x) for stack in pair])


@pytest.mark.parametrize("part", ["trunk", "trunk.layers", "head", "value_trunk"])
def test_hooks_within_policies_are_called(part):
    network, seen, x = ActorCritic(Spaces(box(3), box(2)), hidden=(8,)), [], torch.randn(6, 3)
    expected = network.evaluate_actions(x, torch.zeros(6, 2))
    network.get_submodule(part).register_forward_hook(lambda module, inputs, output: seen.append(part))
    evaluated = network.evaluate_actions(x, torch.zeros(6, 2))
    assert_alike(evaluated[:2], expected[:2])
    assert seen == [part]
    network.heads(x)
    assert seen == [part] * (1 if part == "value_trunk" else 2)


@pytest.mark.parametrize("options", [{"layer_norm": True}, {"dropout": 0.5}])
def test_faster_library_serves_interrupted_layers(options, way, monkeypatch):
    torch.manual_seed(0)
    network, x = dense(4, (260, 260), activation="relu", **options).eval(), torch.randn(64, 4)
    called = []
    makes = arrays if way == "numpy" else products
    real = makes.last
    monkeypatch.setattr(makes, "last", lambda *args: called.append(1) or real(*args))
    assert_alike([network(x)], [plainly(network)(x)])
    assert called


def in_place(model, wanted, x):
    return grad(model(x).relu_().sum(), wanted)


def second_order(model, wanted, x):
    x = x.requires_grad_()
    (first,) = grad(model(x).square().sum(), x, create_graph=True)
    return grad(first.square().sum(), wanted[0])


def twice(model, wanted, x):
    return grad(model(model(x)).square().sum(), wanted, create_graph=True)


def forward_mode(model, wanted, x):
    with forward_ad.dual_level():
        return [forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))).tangent]


def traced(model, wanted, x):
    return [torch.jit.trace(model, x)(x)]


def autocast(model, wanted, x):
    with torch.autocast("cpu", torch.bfloat16):
        return [model(x)]  # whose type is compared, too


def infinite(model, wanted, x):
    direction = torch.ones(len(x), 3)
    direction[0, 0] = float("inf")
    (gradient,) = grad(model(x), wanted[1], direction)
    assert gradient.isinf().any()
    assert gradient.isfinite().any() or isinstance(model[1], nn.Tanh)  # units that are switched off stay finite
    return [gradient]


def unresolved(model, wanted, x):
    return grad(model(x), wanted, torch._neg_view(torch.ones(len(x), 3)))


USES = [in_place, second_order, twice, forward_mode, traced, autocast, infinite, unresolved]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [4, 1000])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("use", USES)
def test_uses_by_autograd_equal_torch(use, activation, rows, way):
    torch.manual_seed(0)
    network, x = MLP(3, 3, hidden=(16,), activation=activation), torch.randn(rows, 3)
    wanted = list(network.parameters())
    assert_alike(use(network, wanted, x), use(plainly(network), wanted, x))


@pytest.mark.parametrize("network", [MLP(3, 1, hidden=(8,)), Ensemble(3, 1, members=1, hidden=(8,))])
def test_gradients_of_rows_sum_up(network, way):
    parameters, x = dict(network.named_parameters()), torch.randn(5, 3)

    def value(parameters, row):
        return torch.func.functional_call(network, parameters, row.unsqueeze(0)).sum()

    gradients = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0))(parameters, x)
    whole = grad(network(x).sum(), list(parameters.values()))
    assert_alike([part.sum(0) for part in gradients.values()], whole)


@pytest.mark.parametrize("kind", [MLP, Ensemble])
def test_batched_directions_equal_single_ones(kind, way):
    network, x = kind(3, 2, hidden=(8,)), torch.randn(4, 3)
    wanted, output = list(network.parameters()), network(x)
    directions = torch.randn(5, *output.shape)
    gradients = grad(output, wanted, directions, is_grads_batched=True, retain_graph=True)
    by_direction = [grad(output, wanted, direction, retain_graph=True) for direction in directions]
    assert_alike(gradients, [torch.stack(parts) for parts in zip(*by_direction, strict=True)])
    mapped = torch.func.vmap(lambda direction: grad(output, wanted, direction, retain_graph=True))
    assert_alike(mapped(directions), gradients)


@pytest.mark.parametrize("cheap", products.WAYS)
@pytest.mark.parametrize("gain", [1.1, 1.3])
def test_fastest_backend_is_chosen(restored, cheap, gain, monkeypatch):
    if products.use(cheap) != cheap:
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(ways, "_seconds", lambda way, network, x: 1.0 / gain if way == cheap else 1.0)
    products.use("torch")
    drawn, recording = torch.random.get_rng_state(), torch.is_grad_enabled()
    with torch.no_grad():
        assert ways.fastest() == (cheap if gain > ways.GAIN else "torch")
    assert products.in_use() == "torch"
    assert torch.equal(torch.random.get_rng_state(), drawn), "the run's own numbers were drawn"
    assert torch.is_grad_enabled() == recording


def test_every_backend_is_timed(restored, monkeypatch):
    begun = []
    monkeypatch.setattr(ways.time, "perf_counter", lambda: float(begun.append(products.in_use()) or len(begun)))
    assert ways.fastest() == "torch"  # all take the same time
    assert set(begun) == {way for way in products.WAYS if products.use(way) == way}


def test_inexact_backend_is_not_taken(restored, monkeypatch):
    def short(x, weight, bias, *options):
        return torch.addmm(bias.bfloat16(), x.bfloat16(), weight.bfloat16().t()).float()

    monkeypatch.setattr(products, "_operator", short)
    monkeypatch.setattr(ways, "_seconds", lambda way, network, x: 0.1 if way == "onednn" else 1.0)
    assert ways.fastest() == "torch"  # however fast: its numbers are too short
    monkeypatch.setattr(products, "_operator", None)
    assert (products.use("onednn"), ways.fastest()) == ("torch", "torch")


def moved(network):
    for parameter in network.parameters():
        parameter.data = parameter.data.clone() * 2.0


def replaced(network):
    for layer in network.modules():
        if hasattr(layer, "weight"):
            layer.weight = nn.Parameter(layer.weight.detach() * 2.0)


def stepped(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)


def loaded(network):
    network.load_state_dict({name: value * 2.0 for name, value in network.state_dict().items()})


class Affine(nn.Module):
    """Makes a parameter of another one."""

    def forward(self, value):
        return 2.0 * value + 1.0


def parametrized(network):
    layers = network.layers if isinstance(network, Ensemble) else network
    parametrize.register_parametrization(layers[-1], "bias", Affine())


def no_longer_parametrized(network):
    parametrize.register_parametrization(network[0], "weight", Affine())
    parametrize.remove_parametrizations(network[0], "weight")  # now the bias is the first of its parameters


def with_more_parameters(network):
    network[0].register_parameter("temperature", nn.Parameter(torch.ones(1)))


def narrower(network):
    for parameter in (network[0].weight, network[0].bias):
        parameter.data = parameter.data[:4]  # at the same address
    network[2].weight.data = network[2].weight.data[:, :4]


def with_tanh(network):
    network[1] = nn.Tanh()


def without_bias(network):
    network[2].register_parameter("bias", None)


def with_another_layer(network):
    network.layers[-1] = Ensemble(3, 2, hidden=(8,)).layers[-1]


OF_BOTH = (moved, replaced, stepped, loaded, parametrized)
OF_MLP = (no_longer_parametrized, with_more_parameters, narrower, with_tanh, without_bias)
CHANGES = [(kind, change) for kind in (MLP, Ensemble) for change in OF_BOTH]
CHANGES += [*((MLP, change) for change in OF_MLP), (Ensemble, with_another_layer)]


@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_changed_parameters_are_used(kind, change, way):
    torch.manual_seed(2)
    network, x = kind(3, 2, hidden=(8,)), torch.randn(4, 3)
    before = network(x).detach()  # caches the parameters
    change(network)
    assert_equals_torch(network, x)
    assert change in (no_longer_parametrized, with_more_parameters) or not torch.allclose(network(x), before)


@pytest.mark.parametrize(
    ("network", "shape", "shared"),
    [
        (Ensemble(3, 2, members=2, hidden=(8,)), (3, 4, 3), False),
        (MLP(3, 2, hidden=(8,)), (5, 4), True),
        (Ensemble(3, 2, hidden=(8,)), (5, 4), True),
    ],
)
def test_inputs_of_wrong_shape_are_refused(network, shape, shared, way):
    with pytest.raises((RuntimeError, ValueError), match=r"4.*3|3.*4" if shared else None):
        network(torch.randn(shape), **({} if shared else {"shared": False}))


@pytest.mark.parametrize("kind", [MLP, Ensemble])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_copies_have_their_own_parameters(kind, copied, way):
    network, x = kind(3, 2, hidden=(8,)), torch.randn(4, 3)
    before = network(x).detach().clone()
    duplicate = copied(network)
    stepped(network)
    assert_alike([duplicate(x)], [before])


@pytest.mark.parametrize("hooked", [False, True])  # by a hook that knows its network
def test_cache_keeps_no_network_alive(hooked, way):
    network = MLP(3, 2, hidden=(8,))
    network(torch.randn(4, 3))
    if hooked:
        network[0].register_forward_hook(lambda *args, network=network: None)
        network(torch.randn(4, 3))
    layer = weakref.ref(network[0])
    del network
    gc.collect()
    assert layer() is None


@pytest.mark.parametrize("cached", [False, True])
def test_hooks_of_layers_are_called(cached, way):
    network, x, shapes = MLP(3, 2, hidden=(8,)), torch.randn(4, 3), []
    if cached:
        network(x)
    handle = network[0].register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    network(x)
    handle.remove()
    network(x)
    assert shapes == [(4, 8)]


def test_repeated_activation_is_applied_everywhere():
    activation, x = nn.Tanh(), torch.randn(6, 4)
    stack = Dense(nn.Linear(4, 8), activation, nn.Linear(8, 8), activation)
    assert_alike([stack(x)], [plainly(stack)(x)])


class Doubled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2.0 * self.inner(x)


def donated(part):
    return ActorCritic(Spaces(box(3), box(2)), hidden=(8,), output_gain=1.0).get_submodule(part)


DONORS = [(part, False) for part in ("trunk", "trunk.layers", "head", "head.layer")]
DONORS += [(part, True) for part in ("trunk.layers", "head.layer", "value_head")]


@pytest.mark.parametrize(("part", "doubled"), DONORS)
def test_replaced_parts_of_policies_are_used(part, doubled):
    torch.manual_seed(0)
    network, x = ActorCritic(Spaces(box(3), box(2)), hidden=(8,)), torch.randn(6, 3)
    before = network.evaluate_actions(x, torch.zeros(6, 2))
    parent, _, name = part.rpartition(".")
    setattr(network.get_submodule(parent), name, Doubled(network.get_submodule(part)) if doubled else donated(part))
    evaluated = network.evaluate_actions(x, torch.zeros(6, 2))
    assert_alike([evaluated.heads.mean, network.heads(x).mean], [network.head(network.trunk(x)).mean] * 2)
    assert_alike([evaluated.value], [network.value_head(network.value_trunk(x)).squeeze(-1)])
    if part == "value_head":
        assert not torch.allclose(evaluated.value, before.value)
    else:
        assert not torch.allclose(evaluated.heads.mean, before.heads.mean)


def test_changed_outputs_have_no_gradient(way):
    stack, x = stacks(((8, 8),))[0], torch.randn(4, 4)
    outputs_of(x, stack)[0].sum().backward()
    output = outputs_of(x, stack)[0]
    output.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


class Subclass(torch.Tensor):
    """A tensor of another class."""


INPUTS = {
    **{f"{rows} rows": lambda rows=rows: torch.randn(rows, 3) for rows in (0, 1, 2, 700)},
    "transposed": lambda: torch.randn(3, 5).t(),
    "expanded": lambda: torch.randn(1, 3).expand(4, 3),
    "strided": lambda: torch.randn(8, 6)[::2, 1::2],
    "parameter": lambda: nn.Parameter(torch.randn(4, 3)),
    "conjugate": lambda: torch.complex(torch.ones(4, 3), torch.randn(4, 3)).conj().imag,
    "zeros": lambda: torch._efficientzerotensor((4, 3)),
    "sparse": lambda: torch.randn(4, 3).to_sparse(),
    "subclass": lambda: torch.randn(4, 3).as_subclass(Subclass),
}


@pytest.mark.parametrize("name", INPUTS)
def test_any_input_goes_through(name, way):
    assert_equals_torch(MLP(3, 2, hidden=(8, 8)), INPUTS[name]())


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 1.0, 2: 0.9, 4: 0.85, 6: 0.9}, 1),  # not worth it
        ({1: 1.0, 2: 0.6, 4: 0.4, 6: 0.41}, 4),
        ({1: 1.0, 2: 0.6, 4: 0.57, 6: 0.56}, 2),  # about as fast
        ({1: 1.0, 2: 100.0, 4: 100.0, 6: 100.0}, 1),  # while another process is busy
        ({1: 1.0, 2: 0.8, 4: 0.5, 6: 0.3}, 6),
    ],
)
def test_threads_are_as_many_as_pay(seconds, best, monkeypatch):
    before, threads = torch.get_num_threads(), []

    def timed(way, network, x, passes=3):
        threads.append(torch.get_num_threads())
        return seconds[threads[-1]] * passes / 3

    monkeypatch.setattr(ways, "_seconds", timed)
    assert ways.best_threads(6) == best
    assert torch.get_num_threads() == before
    assert set(threads) == ({1, 2} if seconds[2] > 2.0 else set(seconds))
    assert threads.count(2) == (2 if seconds[2] > 2.0 else threads.count(1))
    assert ways.best_threads(1) == 1
