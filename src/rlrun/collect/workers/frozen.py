"""An agent as bytes, to act by somewhere else."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.errors import ConfigError


class _Freezer(pickle.Pickler):
    """Take an object apart into its structure and the tensors in it, each of them once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Tensor):
            return None
        number = self._numbers.setdefault(id(obj), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(obj)
        return number


class _Thawer(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def freeze(agent: Any) -> bytes:
    """Return all that an agent is at this moment, other networks that it looks into included; tensors on the CPU.

    Raises:
        ConfigError: some part of it cannot be sent.
    """
    file = io.BytesIO()
    freezer = _Freezer(file)
    try:
        freezer.dump(agent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        what = str(error).splitlines()[0]
        raise ConfigError(f"agent: a {type(agent).__name__} cannot be sent to a worker: {what}") from error
    flat = [(*_bytes(tensor), isinstance(tensor, nn.Parameter)) for tensor in freezer.tensors]
    return pickle.dumps((file.getvalue(), flat), protocol=5)


def thaw(frozen: bytes) -> Any:
    """Return the agent, with nothing shared, to act on the CPU."""
    structure, flat = pickle.loads(frozen)
    agent = _Thawer(io.BytesIO(structure), [_tensor(*entry) for entry in flat]).load()
    if getattr(agent, "device", "cpu") != "cpu":
        agent.device = "cpu"
    return agent


def _bytes(tensor: Tensor) -> tuple[bytes, torch.dtype, tuple[int, ...]]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)  # numpy lacks some of torch's numbers: as bytes
    return flat.view(torch.uint8).numpy().tobytes(), tensor.dtype, tuple(tensor.shape)


def _tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...], parameter: bool) -> Tensor:
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    return nn.Parameter(tensor, requires_grad=False) if parameter else tensor
