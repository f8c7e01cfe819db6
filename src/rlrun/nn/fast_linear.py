"""Dense layers that equal `nn.Linear` up to rounding, with large float32 products by oneDNN where that is faster.

torch multiplies by MKL on a CPU, which reaches half of the speed of some processors. oneDNN, a part of the same build,
reaches all of it there: an eager update of SAC is about 1.5 times as fast on a Zen 5 core, and the same on Zen 4. So
`fastest` times both once on a machine. The operator of oneDNN is private to torch; this file alone calls it.
"""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.autograd import forward_ad

BACKENDS = ("torch", "onednn")
GAIN = 1.2  # speed of oneDNN relative to torch that is worth other roundings
# Multiplications in a product from which oneDNN is faster, on processors where it is. One thread, both in µs:
# 38 / 25 at 1.0 M (256 × 64 × 64), 33 / 27 at 1.5 M (256 × 23 × 256), 47 / 37 at 2.1 M, 338 / 166 at 16.8 M.
# The gradient of weights loses below that: 24 / 52 at 1.0 M, 108 / 62 at 1.5 M.
LARGE = 1_400_000
SMALL = 16_384  # numbers up to which torch's own tanh and its gradient take less time, by the overhead of a function
_ALIKE, _LOST = 1.1, 5.0  # relative times: about as fast; threads that wait for each other
_ROUNDS, _PASSES = 6, 3

_operator: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
_backend = "torch"
_MINUS_ONE = torch.tensor(-1.0)


def use(backend: str) -> str:
    """Set the backend of large products; return the one in use, which is torch in builds without oneDNN."""
    global _backend
    _backend = "torch" if _operator is None else backend
    return _backend


def in_use() -> str:
    """Return the backend of large products."""
    return _backend


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [..., in] times weight [out, in], plus bias [out]."""
    if _backend == "torch" or x.dim() != 2 or not is_large(x, weight.numel()) or not _is_plain(weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _multiply(x, weight, bias)
    product: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


def is_large(x: Tensor, work: int, least: int | None = None) -> bool:
    """Return True for x [..., B, in] and a matrix of `work` numbers if their product has so many multiplications.

    It is False for tensors that `_is_plain` refuses, and while a graph is made.
    """
    if torch.compiler.is_compiling() or type(x) is not Tensor or torch._C._is_tracing():
        return False
    return x.shape[-2] * work >= (LARGE if least is None else least) and _is_plain(x)


def tanh(x: Tensor) -> Tensor:
    """Return tanh(x), of many numbers as 2 σ(2x) - 1: 3e-7 off at most, in a third of the time on many processors."""
    if torch.compiler.is_compiling() or x.numel() <= SMALL or not _is_plain(x):
        return x.tanh()
    if not torch.is_grad_enabled():
        return _tanh(x)
    result: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
    return result


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters  # torch finds an attribute of a module slowly
        if "weight" in own and "bias" in own:
            return linear(x, own["weight"], own["bias"])  # type: ignore[arg-type]
        return linear(x, self.weight, self.bias)  # a parametrization computes them


class Tanh(nn.Tanh):
    """`nn.Tanh` by `tanh`."""

    def forward(self, x: Tensor) -> Tensor:
        return tanh(x)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = (_is_wanted(node) for node, _ in ctx.next_functions)
        x_gradient = _product(gradient, weight) if of_x else None
        weight_gradient = None
        if of_weight and weight.stride(0) == 1:  # a member of a stack: its gradient lies like it
            weight_gradient = _product(x.t(), gradient).t()
        elif of_weight:
            weight_gradient = _product(gradient.t(), x)
        return x_gradient, weight_gradient, gradient.sum(0) if of_bias else None


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = _tanh(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.tanh_backward.default(gradient, *ctx.saved_tensors)
        return result


def _tanh(x: Tensor) -> Tensor:
    return torch.add(_MINUS_ONE, torch.mul(x, 2.0).sigmoid_(), alpha=2.0)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return left [B, K] times right [K, N]; with a graph by torch, so that it has a gradient itself."""
    if torch.is_grad_enabled() or not is_large(left, right.numel()):
        return left.mm(right)
    return _multiply(left, right.t(), None)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.contiguous()  # the operator ignores its strides
    product: Tensor = _operator(x, weight, bias, "none", [], "")
    return product


def _is_plain(x: Tensor) -> bool:
    """Return True for a float32 matrix of the CPU that no transform, tracing or autocast needs to see."""
    if type(x) is not Tensor and type(x) is not nn.Parameter:
        return False
    if x.dtype != torch.float32 or not x.is_cpu or x.layout is not torch.strided or torch.is_autocast_enabled("cpu"):
        return False
    transforms = torch._C._functorch
    if torch._C._are_functorch_transforms_active() or transforms.is_legacy_batchedtensor(x):
        return False
    return not torch._C._is_tracing() and forward_ad._current_level < 0


def _is_wanted(node: Any) -> bool:
    """Return True if the running backward pass needs the gradient that goes to a node."""
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # `torch.autograd.grad` asks for a leaf
        return True


def fastest() -> str:
    """Return the backend that takes clearly less time for a network of 2 × 256 units, and is as exact."""
    if _operator is None:
        return "torch"
    network, x = _network()
    exact = copy.deepcopy(network).double()(x.double())
    with _restoring():
        errors = [float((_output(backend, network, x) - exact).detach().abs().max()) for backend in BACKENDS]
        if errors[1] > 8.0 * errors[0]:  # oneDNN takes a processor's shorter numbers
            return "torch"
        rounds = [[_seconds(backend, network, x) for backend in BACKENDS] for _ in range(_ROUNDS)]
    torch_time, onednn_time = map(min, zip(*rounds, strict=True))
    return "onednn" if torch_time > GAIN * onednn_time else "torch"


def set_threads(count: int) -> None:
    """Set the number of threads of torch, and of numpy in environments."""
    torch.set_num_threads(count)
    threadpool_limits(count, "blas")


def best_threads(at_most: int) -> int:
    """Return the number of threads with which a network of 2 × 256 units takes least time.

    One, unless more are clearly faster: threads wait for each other, and next to a busy process that takes many times
    as long as the work.
    """
    network, x = _network()
    counts = sorted({1, at_most, *(2**power for power in range(1, at_most.bit_length()) if 2**power <= at_most)})
    times: dict[int, float] = {}
    before = torch.get_num_threads()
    with _restoring():
        try:
            for count in counts:
                set_threads(count)
                times[count] = _least(network, x, times.get(1, math.inf))
                if math.isinf(times[count]):
                    break
        finally:
            set_threads(before)
    least = min(times.values())
    return 1 if times[1] < GAIN * least else min(count for count, seconds in times.items() if seconds < _ALIKE * least)


def _least(network: nn.Module, x: Tensor, single: float) -> float:
    """Return the least time of some rounds by any backend; infinity if it is far longer than with a single thread."""
    times = []
    for backend in BACKENDS:
        first = min(_seconds(backend, network, x, passes=1) for _ in range(2))  # the first wakes threads
        if first * _PASSES > _LOST * single:
            return math.inf
        times.append(min(_seconds(backend, network, x) for _ in range(_ROUNDS)))
    return min(times)


def _network() -> tuple[nn.Module, Tensor]:
    """Return a network to time and a batch for it, without a draw from the run's own generator."""
    with torch.random.fork_rng(devices=[]):  # for no device: that would import torch's compiler
        torch.default_generator.manual_seed(0)
        layers = [Linear(8, 256), nn.ReLU(), Linear(256, 256), nn.ReLU(), Linear(256, 1)]
        return nn.Sequential(*layers), torch.randn(256, 8)


def _output(backend: str, network: nn.Module, x: Tensor) -> Tensor:
    use(backend)
    output: Tensor = network(x)
    return output


def _seconds(backend: str, network: nn.Module, x: Tensor, passes: int = _PASSES) -> float:
    """Return the time of some passes forward and backward."""
    parameters = list(network.parameters())
    begun = time.perf_counter()
    for _ in range(passes):
        torch.autograd.backward(_output(backend, network, x).sum(), inputs=parameters)
    return time.perf_counter() - begun


@contextmanager
def _restoring() -> Iterator[None]:
    """Restore the backend afterwards."""
    before = in_use()
    try:
        with torch.enable_grad():
            yield
    finally:
        use(before)
