import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch

from rlrun.compile import backend


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Call graphs as they were traced, since to compile one takes seconds; return those that were made."""
    modules: list[Any] = []

    def compiled(module: Any, inputs: Sequence[Any], device: str, *, sized: bool, own: int) -> Callable[..., Any]:
        module.recompile()
        modules.append(module)
        return module

    monkeypatch.setattr(backend, "compiled", compiled)
    return modules


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterable[Callable[[], list[str]]]:
    """What the log says of hooks that are called without a graph."""
    with caplog.at_level(logging.WARNING, "rlrun"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "rlrun"]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let networks, batches and updates have double precision, as whole runs do with float32."""
    from_numpy = torch.from_numpy

    def widened(array: Any) -> torch.Tensor:
        tensor = from_numpy(array)
        return tensor.double() if tensor.dtype == torch.float32 else tensor

    monkeypatch.setattr(torch, "from_numpy", widened)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
