"""Dense layers in one step: what torch's own layers give, and their gradients, by each library."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from tests.nn.side import tandem
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize, prune

from rlrun.core.spaces import Spaces
from rlrun.nn import MLP, ActorCritic, Ensemble, MixedPrecision, arrays, products, ways
from rlrun.nn.mlp import Dense, dense

from .spaces_for_tests import box


@pytest.fixture(params=products.WAYS)
def way(request):
    """Products by each library."""
    before = products.in_use()
    if products.use(request.param) != request.param:
        pytest.skip("this build of torch has no oneDNN")
    yield request.param
    products.use(before)


def plainly(stack):
    """The same layers, one after the other by torch."""
    return nn.Sequential(*stack)


def stacks(widths=((8,), (16, 8)), activation="tanh"):
    torch.manual_seed(1)
    return [dense(4, hidden, activation=activation) for hidden in widths]


def assert_alike(ours, theirs):
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("widths", [((8,), (16, 8)), ((64, 64), (64, 64)), ((5,),), ((160, 160), (3, 160))])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_stacks_in_tandem_give_what_each_gives_and_its_gradients(widths, activation, way):
    pair, x = stacks(widths, activation), torch.randn(64, 4, requires_grad=True)
    inputs = [x, *(parameter for stack in pair for parameter in stack.parameters())]
    weights = [torch.randn(64, hidden[-1]) for hidden in widths]

    def gradients(outputs):
        return torch.autograd.grad(sum((w * o).sum() for w, o in zip(weights, outputs, strict=True)), inputs)

    ours, theirs = tandem(x, *pair), [plainly(stack)(x) for stack in pair]
    assert type(ours[0].grad_fn).__name__ == "_StacksBackward"
    assert_alike(ours, theirs)
    assert_alike(gradients(ours), gradients(theirs))
    with torch.no_grad():
        assert_alike(tandem(x, *pair), theirs)


@pytest.mark.parametrize("inputs", [3, 200])  # the gradient of a narrow input goes another way
def test_a_network_gives_what_its_layers_give(inputs, way):
    torch.manual_seed(0)
    network, x = MLP(inputs, 2, hidden=(160, 160)), torch.randn(64, inputs, requires_grad=True)
    wanted = [x, *network.parameters()]
    ours, theirs = network(x), plainly(network)(x)
    assert_alike([ours], [theirs])
    gradients, expected = (torch.autograd.grad(output.square().sum(), wanted) for output in (ours, theirs))
    assert_alike(gradients, expected)
    assert all(gradient.stride() == part.stride() for gradient, part in zip(gradients[1:], wanted[1:], strict=True))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_members_side_by_side_give_what_the_batched_product_gives(members, shared, way):
    torch.manual_seed(0)
    network = Ensemble(6, 2, members=members, hidden=(260, 260))  # large enough at 64 rows to be taken apart
    x = torch.randn(*(() if shared else (members,)), 64, 6, requires_grad=True)
    wanted = [x, *network.parameters()]
    ours, theirs = network(x, shared=shared), network._together(x, shared)
    assert type(ours.grad_fn).__name__ != type(theirs.grad_fn).__name__
    assert_alike([ours], [theirs])
    assert_alike(*(torch.autograd.grad(output.square().sum(), wanted) for output in (ours, theirs)))


def test_what_another_loss_trains_is_not_computed(way, monkeypatch):
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
def test_a_stack_that_no_loss_reaches_has_no_gradient(again, way):
    used, unused = stacks()
    wanted = [*used.parameters(), *unused.parameters()]
    loss = tandem(torch.randn(6, 4), used, unused)[0].square().sum()
    gradients = torch.autograd.grad(loss, wanted, create_graph=again, allow_unused=True)
    assert [gradient is None for gradient in gradients] == [False, False, True, True, True, True]


def test_frozen_layers_take_no_gradient(way):
    network, x = MLP(3, 1, hidden=(8,)).requires_grad_(False), torch.randn(5, 3, requires_grad=True)
    network(x).sum().backward()
    expected = torch.autograd.grad(plainly(network)(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)
    assert not network(x.detach()).requires_grad


def test_tanh_is_exact_to_rounding_over_its_range(way):
    stack = dense(1, (1,), activation="tanh")
    nn.init.ones_(stack[0].weight)
    nn.init.zeros_(stack[0].bias)
    x = torch.linspace(-20.0, 20.0, 100_001).unsqueeze(-1)
    ours = tandem(x, stack)[0].detach()
    assert float((ours.double() - x.double().tanh()).abs().max()) < 2e-7
    assert float(ours.abs().max()) <= 1.0


@pytest.mark.parametrize("precision", ["highest", "bf16"])
@pytest.mark.parametrize("network", [MLP(3, 1, hidden=(256, 256)), Ensemble(3, 1, members=1, hidden=(256, 256))])
def test_what_is_no_number_stays_none(network, precision, way, monkeypatch):
    monkeypatch.setattr("rlrun.nn.precision.has_bfloat16", lambda device: True)
    x = torch.randn(64, 3)
    x[5] = float("nan")
    with MixedPrecision(precision, "cpu"):
        output = network(x).view(64)
    assert output.isnan().nonzero().tolist() == [[5]]


def watched():
    first, second = stacks()
    first[1].register_forward_hook(lambda module, inputs, output: None)
    return first, second


def unbiased():
    first, second = stacks()
    first[0] = nn.Linear(4, 8, bias=False)
    return first, second


def pruned():
    first, second = stacks()
    prune.l1_unstructured(first[0], "weight", 0.5)  # the layer's weight is no parameter of its own any more
    return first, second


@pytest.mark.parametrize(
    "pair",
    [
        stacks(activation="elu"),
        stacks(((), (8,))),
        watched(),
        unbiased(),
        pruned(),
        [stack.double() for stack in stacks()],
    ],
    ids=["elu", "empty", "hook", "no bias", "pruned", "double"],
)
def test_whatever_else_a_stack_is_goes_its_own_way(pair, way):
    x = torch.randn(6, 4).to(next(pair[1].parameters()).dtype)
    assert_alike(tandem(x, *pair), [plainly(stack)(x) for stack in pair])


def test_a_watched_layer_is_called(way):
    seen, (stack, _) = [], watched()
    stack[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    stack(torch.randn(6, 4))
    assert seen == [(6, 8)]


@pytest.mark.parametrize("part", ["trunk", "trunk.layers", "head", "value_trunk"])
def test_a_watched_part_of_a_policy_is_called(part):
    network, seen, x = ActorCritic(Spaces(box(3), box(2)), hidden=(8,)), [], torch.randn(6, 3)
    expected = network.evaluate_actions(x, torch.zeros(6, 2))
    network.get_submodule(part).register_forward_hook(lambda module, inputs, output: seen.append(part))
    evaluated = network.evaluate_actions(x, torch.zeros(6, 2))
    assert_alike(evaluated[:2], expected[:2])
    assert seen == [part]
    network.heads(x)
    assert seen == [part] * (1 if part == "value_trunk" else 2)


@pytest.mark.parametrize("options", [{"layer_norm": True}, {"dropout": 0.5}])
def test_layers_with_more_between_them_take_the_faster_library_too(options, way, monkeypatch):
    torch.manual_seed(0)
    network, x = dense(4, (260, 260), activation="relu", **options).eval(), torch.randn(64, 4)
    called = []
    makes = arrays if way == "numpy" else products
    real = makes.last
    monkeypatch.setattr(makes, "last", lambda *args: called.append(1) or real(*args))
    assert_alike([network(x)], [plainly(network)(x)])
    assert called


def test_windows_go_through_each_stack(way):
    pair, x = stacks(), torch.randn(3, 6, 4)
    assert_alike(tandem(x, *pair), [plainly(stack)(x) for stack in pair])


def test_an_output_may_be_changed_in_place(way):
    network, x = MLP(3, 4, hidden=(8,)), torch.randn(5, 3)
    wanted = list(network.parameters())
    ours = torch.autograd.grad(network(x).relu_().sum(), wanted)
    assert_alike(ours, torch.autograd.grad(plainly(network)(x).relu().sum(), wanted))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_gradient_of_a_gradient_is_that_of_the_layers(activation, way):
    stack, x = stacks(((8, 8),), activation)[0], torch.randn(5, 4, requires_grad=True)

    def slope(output):
        (first,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), stack[0].weight)
        return second

    torch.testing.assert_close(slope(tandem(x, stack)[0]), slope(plainly(stack)(x)), rtol=1e-4, atol=1e-5)


def test_layers_that_are_gone_through_twice_count_twice(way):
    stack, x = stacks(((4,),))[0], torch.randn(5, 4)
    wanted = list(stack.parameters())
    ours, theirs = tandem(tandem(x, stack)[0], stack)[0], plainly(stack)(plainly(stack)(x))
    grads, expected = (torch.autograd.grad(out.square().sum(), wanted, create_graph=True) for out in (ours, theirs))
    assert_alike(grads, expected)


@pytest.mark.parametrize("network", [MLP(3, 1, hidden=(8,)), Ensemble(3, 1, members=1, hidden=(8,))])
def test_gradients_of_each_row_go_through_the_transforms_of_torch(network, way):
    parameters, x = dict(network.named_parameters()), torch.randn(5, 3)

    def value(parameters, row):
        return torch.func.functional_call(network, parameters, row.unsqueeze(0)).sum()

    gradients = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0))(parameters, x)
    whole = torch.autograd.grad(network(x).sum(), list(parameters.values()))
    assert_alike([part.sum(0) for part in gradients.values()], whole)


def test_slopes_are_carried_forward(way):
    network, x = MLP(3, 1, hidden=(8,)), torch.randn(5, 3)
    with forward_ad.dual_level():
        slopes = [
            forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))).tangent for model in (network, plainly(network))
        ]
    assert_alike(slopes[:1], slopes[1:])


@pytest.mark.filterwarnings("ignore")
def test_layers_are_traced(way):
    network, x = MLP(160, 1, hidden=(160,)), torch.randn(64, 160)
    assert_alike([torch.jit.trace(network, x)(x)], [network(x)])


def test_autocast_is_heeded(way):
    network, x = MLP(3, 4, hidden=(8,)), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(x).dtype == plainly(network)(x).dtype == torch.bfloat16


@pytest.fixture
def as_before():
    """Leave products as they were made before."""
    before = products.in_use()
    yield
    products.use(before)


@pytest.mark.parametrize("cheap", products.WAYS)
@pytest.mark.parametrize("gain", [1.1, 1.3])
def test_the_way_of_least_time_is_chosen_where_it_matters(as_before, cheap, gain, monkeypatch):
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


def test_what_is_timed_is_a_pass_forward_and_backward_that_way(as_before, monkeypatch):
    begun = []
    monkeypatch.setattr(ways.time, "perf_counter", lambda: float(begun.append(products.in_use()) or len(begun)))
    assert ways.fastest() == "torch"  # all take the same time
    assert set(begun) == {way for way in products.WAYS if products.use(way) == way}


def test_a_way_that_is_less_exact_is_not_taken(as_before, monkeypatch):
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


@pytest.mark.parametrize("change", [moved, replaced, stepped, loaded])
@pytest.mark.parametrize("kind", [MLP, Ensemble])
def test_a_network_computes_with_the_parameters_of_now(kind, change, way):
    torch.manual_seed(2)
    network, x = kind(3, 2, hidden=(8,)), torch.randn(4, 3)
    network(x)  # finds out where parameters lie
    change(network)
    fresh = kind(3, 2, hidden=(8,))
    fresh.load_state_dict(network.state_dict())
    wanted = fresh(x)
    assert_alike([network(x)], [wanted])
    gradient = torch.autograd.grad(network(x).sum(), list(network.parameters()))
    assert_alike(gradient, torch.autograd.grad(wanted.sum(), list(fresh.parameters())))


class Other(nn.Module):
    """Makes a parameter of another one."""

    def forward(self, value):
        return 2.0 * value + 1.0


def parametrized(network):
    parametrize.register_parametrization(network[2], "bias", Other())


def no_longer_parametrized(network):
    parametrize.register_parametrization(network[0], "weight", Other())
    parametrize.remove_parametrizations(network[0], "weight")  # now the bias is the first of its parameters


def with_a_parameter_more(network):
    network[0].register_parameter("temperature", nn.Parameter(torch.ones(1)))


def narrower(network):
    for parameter in (network[0].weight, network[0].bias):
        parameter.data = parameter.data[:4]  # where it lay
    network[2].weight.data = network[2].weight.data[:, :4]


@pytest.mark.parametrize("change", [parametrized, no_longer_parametrized, with_a_parameter_more, narrower])
def test_layers_whose_parameters_are_told_otherwise_compute_with_them(change, way):
    network, x = MLP(3, 2, hidden=(8,)), torch.randn(4, 3)
    network(x)
    change(network)
    assert_alike([network(x)], [plainly(network)(x)])


def replaced_layer(network):
    network.layers[-1] = Ensemble(3, 2, hidden=(8,)).layers[-1]


def parametrized_layer(network):
    parametrize.register_parametrization(network.layers[-1], "bias", Other())


@pytest.mark.parametrize("change", [replaced_layer, parametrized_layer])
def test_members_compute_with_the_layers_of_now(change, way):
    network, x = Ensemble(3, 2, hidden=(8,)), torch.randn(4, 3)
    network(x)
    change(network)
    assert_alike([network(x)], [network._together(x, True)])


def test_inputs_of_other_members_than_there_are_are_refused(way):
    with pytest.raises((RuntimeError, ValueError)):
        Ensemble(3, 2, members=2, hidden=(8,))(torch.randn(3, 4, 3), shared=False)


@pytest.mark.parametrize("kind", [MLP, Ensemble])
def test_rows_of_another_width_are_refused_as_torch_does(kind, way):
    with pytest.raises(RuntimeError, match=r"4.*3|3.*4"):
        kind(3, 2, hidden=(8,))(torch.randn(5, 4))


@pytest.mark.parametrize("kind", [MLP, Ensemble])
def test_many_gradients_are_taken_at_once(kind, way):
    network, x = kind(3, 2, hidden=(8,)), torch.randn(4, 3)
    wanted, output = list(network.parameters()), network(x)
    directions = torch.randn(5, *output.shape)
    gradients = torch.autograd.grad(output, wanted, directions, is_grads_batched=True, retain_graph=True)
    by_direction = [torch.autograd.grad(output, wanted, direction, retain_graph=True) for direction in directions]
    assert_alike(gradients, [torch.stack(parts) for parts in zip(*by_direction, strict=True)])
    mapped = torch.func.vmap(lambda direction: torch.autograd.grad(output, wanted, direction, retain_graph=True))
    assert_alike(mapped(directions), gradients)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("rows", [4, 1000])
def test_a_gradient_without_end_stays_with_the_units_that_it_reaches(rows, way):
    torch.manual_seed(0)
    network, x = MLP(3, 1, hidden=(16,)), torch.randn(rows, 3)
    direction = torch.ones(rows, 1)
    direction[0] = float("inf")
    wanted = network[0].bias
    ours, theirs = (torch.autograd.grad(model(x), wanted, direction) for model in (network, plainly(network)))
    assert ours[0].isinf().any()
    assert ours[0].isfinite().any()
    assert_alike(ours, theirs)


def test_what_torch_has_not_computed_yet_goes_through(way):
    network, x = MLP(3, 2, hidden=(8,)), torch.randn(4, 3)
    for strange in (torch.complex(x, x).conj().imag, torch._efficientzerotensor((4, 3)), x.to_sparse()):
        assert_alike([network(strange)], [plainly(network)(strange)])
    wanted = list(network.parameters())
    ours = torch.autograd.grad(network(x), wanted, torch._neg_view(torch.ones(4, 2)))
    assert_alike(ours, torch.autograd.grad(plainly(network)(x), wanted, -torch.ones(4, 2)))


@pytest.mark.parametrize("kind", [MLP, Ensemble])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_a_copy_computes_with_parameters_of_its_own(kind, copied, way):
    network, x = kind(3, 2, hidden=(8,)), torch.randn(4, 3)
    before = network(x).detach().clone()
    twin = copied(network)
    stepped(network)
    assert_alike([twin(x)], [before])


def test_layers_that_are_known_are_not_kept_alive(way):
    network = MLP(3, 2, hidden=(8,))
    network(torch.randn(4, 3))
    layer = weakref.ref(network[0])
    del network
    gc.collect()
    assert layer() is None


def test_a_hook_that_knows_its_network_keeps_nobody_alive(way):
    network = MLP(3, 2, hidden=(8,))
    network(torch.randn(4, 3))
    network[0].register_forward_hook(lambda *args, network=network: None)
    network(torch.randn(4, 3))
    layer = weakref.ref(network[0])
    del network
    gc.collect()
    assert layer() is None


def test_a_layer_that_was_plain_is_heard_once_somebody_looks(way):
    network, x, seen = MLP(3, 2, hidden=(8,)), torch.randn(4, 3), []
    network(x)
    handle = network[0].register_forward_hook(lambda *args: seen.append(1))
    network(x)
    handle.remove()
    network(x)
    assert len(seen) == 1
    network[1] = nn.Tanh()
    assert_alike([network(x)], [plainly(network)(x)])
    network[2].register_parameter("bias", None)
    assert_alike([network(x)], [plainly(network)(x)])


def test_an_activation_that_stands_at_several_places_is_applied_at_each():
    activation, x = nn.Tanh(), torch.randn(6, 4)
    stack = Dense(nn.Linear(4, 8), activation, nn.Linear(8, 8), activation)
    assert_alike([stack(x)], [plainly(stack)(x)])


def test_modules_that_hold_the_layers_may_be_replaced():
    torch.manual_seed(0)
    network, x = ActorCritic(Spaces(box(3), box(2)), hidden=(8,)), torch.randn(6, 3)
    for part in ("trunk", "trunk.layers", "head", "head.layer"):
        before = network.heads(x).mean
        torch.manual_seed(len(part))
        donor = ActorCritic(Spaces(box(3), box(2)), hidden=(8,), output_gain=1.0)
        place, _, name = part.rpartition(".")
        setattr(network.get_submodule(place), name, donor.get_submodule(part))
        expected = network.head(network.trunk(x)).mean
        assert_alike([network.heads(x).mean], [expected])
        assert not torch.allclose(expected, before)


@pytest.mark.parametrize("part", ["trunk.layers", "head.layer", "value_head"])
def test_a_layer_of_the_users_own_may_take_the_place_of_one(part):
    class Doubled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2.0 * self.inner(x)

    network, x = ActorCritic(Spaces(box(3), box(2)), hidden=(8,), output_gain=1.0), torch.randn(6, 3)
    place, _, name = part.rpartition(".")
    setattr(network.get_submodule(place), name, Doubled(network.get_submodule(part)))
    evaluated = network.evaluate_actions(x, torch.zeros(6, 2))
    assert_alike([evaluated.heads.mean], [network.head(network.trunk(x)).mean])
    assert_alike([evaluated.value], [network.value_head(network.value_trunk(x)).squeeze(-1)])


def test_the_outputs_of_a_closed_stack_must_not_change_before_its_gradient_is_taken(way):
    stack, x = stacks(((8, 8),))[0], torch.randn(4, 4)
    tandem(x, stack)[0].sum().backward()
    output = tandem(x, stack)[0]
    output.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("rows", [0, 1, 2, 700])
def test_any_number_of_rows_goes_through(rows, way):
    network, x = MLP(3, 2, hidden=(8, 8)), torch.randn(rows, 3)
    parameters = list(network.parameters())
    assert_alike([network(x)], [plainly(network)(x)])
    ours = torch.autograd.grad(network(x).sum(), parameters)
    assert_alike(ours, torch.autograd.grad(plainly(network)(x).sum(), parameters))


def test_strange_inputs_go_through(way):
    network, x = MLP(3, 2, hidden=(8,)), torch.randn(3, 5)
    for strange in (x.t(), torch.randn(1, 3).expand(4, 3), torch.randn(8, 6)[::2, 1::2]):
        assert_alike([network(strange)], [plainly(network)(strange.contiguous())])
    weighed = nn.Parameter(torch.randn(4, 3))
    (ours,) = torch.autograd.grad(network(weighed).sum(), [weighed])
    assert_alike([ours], torch.autograd.grad(plainly(network)(weighed).sum(), [weighed]))


class Told(torch.Tensor):
    """A tensor that stands for something else."""


def test_tensors_of_other_kinds_are_left_to_torch(way):
    network = MLP(3, 2, hidden=(8,))
    assert type(network(torch.randn(4, 3).as_subclass(Told))) is Told


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 1.0, 2: 0.9, 4: 0.85, 6: 0.9}, 1),  # not worth it
        ({1: 1.0, 2: 0.6, 4: 0.4, 6: 0.41}, 4),
        ({1: 1.0, 2: 0.6, 4: 0.57, 6: 0.56}, 2),  # about as fast
        ({1: 1.0, 2: 100.0, 4: 100.0, 6: 100.0}, 1),  # beside another busy process
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
