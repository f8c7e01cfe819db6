"""While networks learn, their hidden products may be in bfloat16; what they say, and all that acts, is float32."""

import threading
from functools import wraps

import pytest
import torch
from gymnasium.envs.classic_control import PendulumEnv

import rlrun
from rlrun.algorithms.actor_critic.sac import TemperatureLoss
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Discrete, Spaces
from rlrun.nn import MLP, ActorCritic, Core, Critics, ImageEncoder, ImplicitCritics, MixedPrecision, SquashedGaussian
from rlrun.nn.ensemble import Ensemble
from rlrun.nn.mlp import dense
from rlrun.nn.precision import onednn_pays

from .spaces_for_tests import VECTOR, box, draw, image

WIDE = 256


@pytest.fixture(autouse=True)
def instructions(monkeypatch):
    """Any machine computes in bfloat16, some slowly."""
    monkeypatch.setattr("rlrun.nn.precision.has_bfloat16", lambda device: True)
    torch.manual_seed(0)


def bf16():
    return MixedPrecision("bf16", "cpu")


def stacked(shared):
    network = Ensemble(20, 4, hidden=(WIDE, WIDE), members=2, activation="tanh")
    return network, lambda: network(torch.ones(16, 20) if shared else torch.ones(2, 16, 20), shared=shared)


def recurrent(kind):
    network, features = Core(kind, 32, WIDE), torch.randn(4, 5, 32)
    episode_end = torch.zeros(4, 5, dtype=torch.bool)
    episode_end[1, 2] = True
    return network, lambda: network(features, torch.zeros(4, network.state_size), episode_end)


def cell(kind):
    network, features = Core(kind, 32, WIDE), torch.randn(4, 32)
    state = torch.randn(4, network.state_size)
    return network, lambda: torch.cat(network.step(features, state), -1)


def of(network, *arguments):
    return network, lambda: network(*arguments)


def networks():
    seen, c, hidden = torch.randn(16, 3), torch.rand(16, 2), (WIDE, WIDE)
    spaces, choices = Spaces(VECTOR, box(2)), Spaces(VECTOR, Discrete(3))
    actor_critic, action = ActorCritic(spaces, hidden=hidden), draw(box(2), 16)
    gaussian, pixels = SquashedGaussian(spaces), draw(image(40, 36, 3), 4)
    return {
        "tanh layers": of(dense(3, hidden, activation="tanh"), seen),
        "dense layers": of(MLP(3, 4, layer_norm=True), seen),
        "members by one product": stacked(shared=False),
        "members one by one": (big := Ensemble(3, 4), lambda: big(torch.ones(128, 3))),
        "members with norms and dropout": of(Ensemble(3, 4, layer_norm=True), seen),
        "dueling": of(Critics(choices, dueling=True), seen),
        "quantiles by fractions": of(ImplicitCritics(spaces), seen, c),
        "images": of(ImageEncoder(image(40, 36, 3)), pixels),
        "actor and critic": (actor_critic, lambda: torch.cat(actor_critic.evaluate_actions(seen, action)[:2], -1)),
        "gaussian": (gaussian, lambda: gaussian(seen, torch.ones(16, 2))[1]),
        "gru": recurrent("gru"),
        "lstm": recurrent("lstm"),
        "gru step": cell("gru"),
        "lstm step": cell("lstm"),
    }


def gradient(network, output):
    network.zero_grad()
    (output * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum().backward()
    grads = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert {grad.dtype for grad in grads} == {torch.float32}
    return torch.cat([grad.flatten().double() for grad in grads])


@pytest.mark.parametrize("name", networks())
def test_bf16_is_close_to_float32(name):
    network, run = networks()[name]
    exact = run()
    expected = gradient(network, exact)
    with bf16():
        output = run()
        grad = gradient(network, output)
    assert output.dtype == torch.float32
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert not torch.equal(output, exact)
    torch.testing.assert_close(output, exact, rtol=0.05, atol=0.05 * float(exact.detach().abs().max()))
    assert torch.cosine_similarity(grad, expected, dim=0) > 0.999
    assert torch.equal(run(), exact)  # outside again


def test_only_hidden_layers_are_bf16():
    network, seen = MLP(3, 4), {}
    for index, layer in enumerate(network):
        layer.register_forward_hook(lambda layer, inputs, result, index=index: seen.update({index: result.dtype}))
    with bf16():
        network(torch.ones(2, 3))
    assert [seen[index] for index in range(5)] == [torch.bfloat16] * 4 + [torch.float32]


def test_single_layer_stays_float32():
    rows = torch.randn(64, 256)
    for network in (MLP(256, 256, hidden=()), Ensemble(256, 256, hidden=())):
        expected = network(rows)
        with bf16():
            assert torch.equal(network(rows), expected)


def test_double_precision_stays_double():
    critics = Critics(Spaces(VECTOR, box(2)))
    seen, c = torch.rand(5, 3), torch.rand(5, 2)
    with bf16():
        assert torch.equal(critics.doubled(seen, c), critics.doubled(seen, c))
        assert critics.doubled(seen, c).dtype == torch.float64


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_other_precisions_change_nothing(precision):
    network, value = MLP(3, 4), torch.ones(2, 3)
    expected = network(value)
    with MixedPrecision(precision, "cpu"):
        assert torch.equal(network(value), expected)


@pytest.mark.parametrize(("width", "low"), [(181, False), (182, True)])  # 256 x 128 is between their squares
def test_narrow_layers_stay_float32(width, low):
    network, value = MLP(3, 4, hidden=(width, width)), torch.ones(512, 3)
    expected = network(value)
    with bf16():
        assert torch.equal(network(value), expected) is not low


def test_other_threads_stay_float32():
    network, value, outputs = MLP(3, 4), torch.ones(2, 3), []
    expected = network(value)
    with bf16():
        thread = threading.Thread(target=lambda: outputs.append(network(value)))
        thread.start()
        thread.join()
    assert torch.equal(outputs[0], expected)


def test_precision_is_restored_after_all():
    network, value, around = MLP(3, 4), torch.ones(2, 3), bf16()
    expected = network(value)

    def fail():
        with around:
            with around:
                pass
            assert not torch.equal(network(value), expected)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(network(value), expected)


def test_compiled_network_knows_its_precision():
    network, value = Critics(Spaces(VECTOR, Discrete(3))), torch.ones(4, 3)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    outside = compiled(value)
    with bf16():
        inside, expected = compiled(value), network(value)
    assert torch.equal(inside, expected)
    assert torch.equal(compiled(value), outside)
    assert not torch.equal(inside, outside)


def test_unsupported_machine_is_refused(monkeypatch):
    monkeypatch.setattr("rlrun.nn.precision.has_bfloat16", lambda device: False)
    MixedPrecision("medium", "cpu")
    with pytest.raises(ConfigError, match=r"precision=bf16: cpu .* no bfloat16 instructions .* precision=highest"):
        bf16()


class TestOneDnn:
    """Wide networks learn by the products of oneDNN on processors that gain by it; the process's own are as before."""

    @pytest.fixture(autouse=True)
    def processor(self, monkeypatch):
        monkeypatch.setattr("rlrun.nn.precision.onednn_pays", lambda: True)

    def inside(self, around):
        with around:
            used = torch.get_float32_matmul_precision()
        assert torch.get_float32_matmul_precision() == "highest"
        return used

    @pytest.mark.parametrize(
        ("networks", "used"),
        [
            ([MLP(3, 4, hidden=(WIDE, WIDE))], "medium"),
            ([MLP(3, 4, hidden=(64, 64)), Ensemble(3, 4, hidden=(WIDE, WIDE), members=2)], "medium"),
            ([MLP(WIDE * 2, 4, hidden=(64, 64))], "medium"),
            ([MLP(3, 4, hidden=(128, 84))], "highest"),
            ([torch.nn.LazyLinear(3)], "highest"),
            ([], "highest"),
        ],
    )
    def test_only_for_wide_networks(self, networks, used):
        around = MixedPrecision("highest", "cpu")
        around.look_at(networks)
        assert self.inside(around) == used

    @pytest.mark.parametrize(("precision", "device"), [("high", "cpu"), ("bf16", "cpu"), ("highest", "cuda")])
    def test_only_where_float32_was_chosen_on_a_cpu(self, precision, device):
        around = MixedPrecision(precision, device)
        around.look_at([MLP(3, 4, hidden=(WIDE, WIDE))])
        assert self.inside(around) == "highest"

    @pytest.mark.parametrize("kind", [MLP, Ensemble])
    def test_last_layers_stay_with_mkl_forward_and_backward(self, kind):
        network, values, seen = kind(8, 2, hidden=(WIDE, WIDE)), torch.randn(128, 8), {}
        plain = torch.autograd.grad(network(values).sum(), [*network.parameters()])
        for name, weight in network.named_parameters():
            weight.register_hook(lambda _, name=name: seen.update({name: torch.get_float32_matmul_precision()}))
        around = MixedPrecision("highest", "cpu")
        around.look_at([network])
        with around:
            network(values).sum().backward()
        for gradient, weight in zip(plain, network.parameters(), strict=True):
            assert (weight.grad - gradient).norm() < 0.02 * gradient.norm()  # bfloat16's, where there is AMX
        used = [seen[name] for name, _ in network.named_parameters() if name.endswith("weight")]
        assert used == ["medium", "medium", "highest"]

    def test_an_update_has_them_and_a_step_of_the_environment_has_not(self, tmp_path, monkeypatch):
        seen = {"loss": set(), "step": set()}

        def noting(name, function):
            @wraps(function)
            def noted(*args, **named):
                seen[name].add(torch.get_float32_matmul_precision())
                return function(*args, **named)

            return noted

        monkeypatch.setattr(TemperatureLoss, "loss", noting("loss", TemperatureLoss.loss))
        monkeypatch.setattr(PendulumEnv, "step", noting("step", PendulumEnv.step))
        short = ("algorithm.hidden=[256,256]", "algorithm.warmup_steps=8", "stop.updates=2", "logger=[]")
        rlrun.train(["algorithm=sac", "env=pendulum", "preset=null", *short], run_dir=tmp_path / "run")
        assert seen == {"loss": {"medium"}, "step": {"highest"}}


@pytest.mark.parametrize(
    ("vendor", "family", "pays"),
    [("AuthenticAMD", "25", False), ("GenuineIntel", "26", False), (None, None, False), ("AuthenticAMD", "x", False)],
)
def test_onednn_does_not_pay_on_other_processors(vendor, family, pays, monkeypatch):
    monkeypatch.setattr("rlrun.nn.precision.cpu_facts", lambda name: {"vendor_id": vendor, "cpu family": family}[name])
    assert onednn_pays.__wrapped__() is pays


def test_onednn_pays_on_zen_5_only_while_it_is_as_exact(monkeypatch):
    monkeypatch.setattr("rlrun.nn.precision.cpu_facts", {"vendor_id": "AuthenticAMD", "cpu family": "26"}.get)
    exact = onednn_pays.__wrapped__()
    product = torch.Tensor.__matmul__

    def rounded(a, b):
        short = torch.get_float32_matmul_precision() == "medium" and a.dtype == torch.float32
        return product(a.bfloat16(), b.bfloat16()).float() if short else product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert not onednn_pays.__wrapped__()
    assert torch.get_float32_matmul_precision() == "highest"
    if not torch.cpu._is_amx_tile_supported():
        assert exact
