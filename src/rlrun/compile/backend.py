"""Compilation of a graph by torch's compiler, with transposed narrow products on a CPU and a CUDA graph on a GPU."""

import logging
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from rlrun.compile.graph import Untraceable, first_line
from rlrun.core import processes, user_cache
from rlrun.core.machine import instructions

Compiled = Callable[..., Sequence[Tensor]]
ATEN = torch.ops.aten
SIGNALS = {*processes.STOPS, getattr(signal, "SIGUSR2", signal.SIGINT)}
_messages = logging.getLogger("rlrun")


def keep_compiled() -> None:
    """Let torch's compiler cache its code in the user's caches, so that the next run starts sooner.

    The code is for this processor, but torch's key hardly differs between processors, and machines may share a home. So
    the folder depends on the processor. A run executes cached code, so the folder must be private; otherwise the code
    goes to a temporary folder, which is removed when the process ends.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    try:
        place = str(user_cache.private_folder(user_cache.folder(), "compiled", instructions()))
        if re.search(r"[\s'\"]", place):
            raise OSError(f"C++ compilers of torch take no folder with spaces or quotes: {place}")
    except (OSError, RuntimeError) as error:
        _messages.warning("compile: compiled code is not kept: %s", first_line(error))
        place = tempfile.mkdtemp(prefix="rlrun-compiled-")  # others could make torch's default folder first
        Finalize(None, shutil.rmtree, (place, True), exitpriority=0)  # also in the processes of a sweep
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = place


def compiled(module: fx.GraphModule, inputs: Sequence[Tensor], device: str, *, sized: bool, own: int) -> Compiled:
    """Return the graph as a function of its inputs, compiled for a device.

    sized: inputs always have these sizes.
    own: number of the first inputs that are the same tensors in every call.
    """
    if device == "cpu":
        turn_narrow(module.graph)
    if sized:  # the compiler has stand-ins of its own, and torch 2.8 refuses two kinds
        for node in module.graph.nodes:
            node.meta.pop("val", None)
    module.recompile()
    try:
        from torch._inductor import standalone_compile
    except ImportError:
        raise Untraceable(None, f"torch {torch.__version__} is too old (pip install -U torch)") from None
    # eager random numbers, so that a run equals an uncompiled one up to rounding
    settings: dict[str, Any] = {
        "fallback_random": True,
        "cpp_wrapper": device == "cpu",  # calls of kernels in C++, too: saves 5 to 15 % of an update of small networks
        "cpp.threads": torch.get_num_threads(),
        "size_asserts": False,
        "alignment_asserts": False,
        "loop_ordering_after_fusion": False,  # torch 2.11 fails on clipped gradients of a GPU with it
    }
    if not _headers_are_private():
        settings["cpp_cache_precompile_headers"] = False
    with torch.no_grad(), _signals_blocked():
        function: Compiled = standalone_compile(
            module,
            list(inputs),
            dynamic_shapes="from_example_inputs" if sized else "from_graph",
            options={"config_patches": settings},
        )
    recordable = sized and all(tensor.is_cuda for tensor in inputs)  # a CUDA graph would fix a number of the host
    return CudaGraph(function, own) if recordable and inputs else function


def _headers_are_private() -> bool:
    """Return True if only this user can write to torch's folder of compiled headers, which is always below /tmp."""
    from torch._inductor import codecache

    try:
        place = Path(codecache._HEADER_DIR)
        user_cache.private_folder(place.parent, place.name)
    except (AttributeError, OSError, RuntimeError):
        return False
    return True


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals of this thread and its children, as Ctrl-C in a terminal would also end the C++ compiler."""
    block = getattr(signal, "pthread_sigmask", None)  # Windows has none
    if block is None:
        yield
        return
    before = block(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        block(signal.SIG_SETMASK, before)


class CudaGraph:
    """A compiled function of a GPU, recorded as one CUDA graph in its second call and replayed from then on.

    The GPU then starts all kernels itself. On an H200 an update of SAC takes 650 µs, and 2,400 if Python starts them.

    Args:
        function: of tensors on a GPU.
        own: number of its first inputs that keep their addresses, and so are read and written in place.
    """

    def __init__(self, function: Compiled, own: int) -> None:
        self._function = function
        self._own = own
        self._pointers: list[int] | None = None
        self._recording: Any = None
        self._refused = False
        self._inputs: list[Tensor] = []
        self._results: list[Tensor] = []

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Return the results of the function, which later calls do not overwrite."""
        pointers = list(map(Tensor.data_ptr, inputs[: self._own]))
        if pointers != self._pointers:  # also the first call, which makes preparations that cannot be recorded
            self._pointers, self._recording = pointers, None
            return self._function(*inputs)
        if self._recording is None and not self._refused:
            self._record(inputs)
        if self._recording is None:
            return self._function(*inputs)
        if self._inputs:
            torch._foreach_copy_(self._inputs, inputs[self._own :])
        self._recording.replay()
        results = list(map(torch.empty_like, self._results))
        if results:
            torch._foreach_copy_(results, self._results)  # by one kernel
        return results

    def _record(self, inputs: Sequence[Tensor]) -> None:
        """Record the function, without executing it."""
        self._inputs = [  # `clone` would not keep the strides of rows with gaps
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
            for value in inputs[self._own :]
        ]
        recording = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(recording, capture_error_mode="thread_local"):  # other threads load batches
                self._results = [*self._function(*inputs[: self._own], *self._inputs)]
        except RuntimeError as error:
            self._refused = True
            _messages.warning("compile: kernels are started one by one: %s", first_line(error))
        else:
            self._recording = recording


def turn_narrow(nodes: fx.Graph) -> None:
    """Compute gradients of weights with fewer inputs than outputs by the transposed product.

    Autograd multiplies gᵀ [out, B] by x [B, in]. MKL takes 51 µs for 256, 256 and 17 of these, and 30 for (xᵀ g)ᵀ.
    Products with up to 8 inputs have become sums before.
    """
    for node in list(nodes.nodes):
        if node.op != "call_function" or node.target is not ATEN.mm.default:
            continue
        left, right = (part.meta["val"] for part in node.args)
        if not (left.stride(0) == 1 and right.stride(1) == 1 and right.shape[1] < left.shape[0]):
            continue
        with nodes.inserting_before(node):
            sides = [_call(nodes, ATEN.t.default, part) for part in node.args]
            turned = _call(nodes, ATEN.t.default, _call(nodes, ATEN.mm.default, *sides[::-1]))
            result = nodes.call_function(ATEN.clone.default, (turned,), {"memory_format": torch.contiguous_format})
        result.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(result)
        nodes.erase_node(node)


def _call(nodes: fx.Graph, operator: Any, *arguments: Any) -> fx.Node:
    """Return a new node that calls an operator, with a stand-in for its result."""
    node = nodes.call_function(operator, arguments)
    node.meta["val"] = operator(*fx.map_arg(arguments, lambda argument: argument.meta["val"]))
    return node
