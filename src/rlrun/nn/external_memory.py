"""An external memory of slots, its reader, and a recurrent layer that uses both.

A step reads by similarity and writes one slot (Wayne et al. 2018, arXiv 1803.10760; Graves et al. 2016, the DNC):

    w_k    = softmax_i(β_k cos(key_k, M_i)),   read_k = Σ_i w_ki M_i
    usage ← usage + Σ_k w_k                                              of a read
    j      = argmin usage,   M_j ← [value, 0],   usage_j ← usage_j + 1   of a write
    M_i    ← d M_i + v_i [0, value],   v ← γ v + (1 - γ) onehot(j)       the other slots; v where γ is given

Gradients reach keys, strengths and written values through reads alone: usage and the choice of a slot have none.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.errors import RequestError, require_number, require_whole
from rlrun.nn.mlp import orthogonal_
from rlrun.nn.recurrent import STATELESS, Stack

Slots = dict[str, Tensor]  # the state of a memory
STRENGTH = 5.0  # β of a key without one, and of keys before they are learned
TIE = 1e-3  # slots whose usage differs by less count as equal; the first of them is written


class ExternalMemory(nn.Module):
    """Slots of numbers for each environment, read by cosine similarity; a write replaces the least used slot.

    It has no parameters. Its state is a dict of tensors: `content` [B, slots, row], `usage` [B, slots], and `trace`
    [B, slots] with retroactive writes. Zeros are an empty memory.

    Args:
        slots: how many there are.
        width: numbers of a value that is written.
        decay: factor of all other slots at a write; None = 1 - 1 / slots.
        retroactive: γ; slots then have a second half, in which the values of later steps add up with falling weights.
            None = without this half.

    Attributes:
        row: numbers of a slot: `width`, or twice as many with retroactive writes.

    Raises:
        ConfigError: `slots` or `width` is below 1, `decay` is outside [0, 1], or `retroactive` outside [0, 1).
    """

    def __init__(self, slots: int, width: int, *, decay: float | None = None, retroactive: float | None = None) -> None:
        super().__init__()
        require_whole("slots", slots, 1)
        require_whole("width", width, 1)
        self.slots, self.width = slots, width
        self.decay = 1.0 - 1.0 / slots if decay is None else decay
        require_number("decay", self.decay, 0.0, 1.0)
        if retroactive is not None:
            require_number("retroactive", retroactive, 0.0, below=1.0)
        self.retroactive = retroactive
        self.row = width if retroactive is None else 2 * width

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Shapes of the state of one environment."""
        trace = {} if self.retroactive is None else {"trace": [self.slots]}
        return {"content": [self.slots, self.row], "usage": [self.slots], **trace}

    def read(self, state: Slots, keys: Tensor, strengths: Tensor | None = None) -> tuple[Tensor, Tensor, Slots]:
        """Return the rows read [B, K, row], the weights of slots [B, K, slots], and the state with updated usage.

        keys: [B, K, row].
        strengths: [B, K] above 0; None = 5 each.
        """
        similarity = F.normalize(keys, dim=-1) @ F.normalize(state["content"], dim=-1).transpose(-1, -2)
        scaled = similarity * (STRENGTH if strengths is None else strengths.unsqueeze(-1))
        weights = scaled.softmax(-1)
        used = state["usage"] + weights.detach().sum(-2)
        return weights @ state["content"], weights, {**state, "usage": used}

    def write(self, state: Slots, value: Tensor) -> Slots:
        """Return the state after values [B, width] were written, each to the least used slot."""
        usage, content = state["usage"], state["content"]
        order = torch.arange(self.slots, device=usage.device, dtype=usage.dtype) * (TIE / self.slots)
        written = F.one_hot((usage + order).argmin(-1), self.slots).to(usage.dtype)  # [B, slots]
        kept = (1.0 - written).unsqueeze(-1)
        values = value if self.retroactive is None else torch.cat((value, torch.zeros_like(value)), -1)
        content = kept * content * self.decay + written.unsqueeze(-1) * values.unsqueeze(-2)
        after = {"content": content, "usage": usage + written}
        if self.retroactive is None:
            return after
        trace = (1.0 - written) * state["trace"]
        later = F.pad(value, (self.width, 0))
        after["content"] = content + trace.unsqueeze(-1) * later.unsqueeze(-2)
        after["trace"] = self.retroactive * trace + (1.0 - self.retroactive) * written
        return after


@torch.no_grad()
def focus(weights: Tensor) -> Tensor:
    """Return how concentrated the weights of slots are, [..., K, slots] -> [...]: 0 if uniform, 1 for a single slot.

    It is 1 minus their mean entropy over keys, relative to that of uniform weights.
    """
    entropy: Tensor = torch.special.entr(weights).sum(-1).mean(-1)
    return 1.0 - entropy / math.log(max(weights.shape[-1], 2))


class Reader(nn.Module):
    """Read a memory by keys and strengths that a dense layer makes of features.

    Args:
        memory: to read.
        inputs: width of the features.
        keys: number of keys.

    Attributes:
        size: width of the result, keys · row.

    Raises:
        ConfigError: `keys` is below 1.
    """

    def __init__(self, memory: ExternalMemory, inputs: int, keys: int) -> None:
        super().__init__()
        require_whole("keys", keys, 1)
        self.memory, self.keys, self.size = memory, keys, keys * memory.row
        self.layer = nn.Linear(inputs, keys * (memory.row + 1))
        orthogonal_(self.layer, 1.0)
        with torch.no_grad():
            self.layer.bias[self.size :] = STRENGTH

    def forward(self, features: Tensor, state: Slots) -> tuple[Tensor, Tensor, Slots]:
        """Return the rows read [B, size], the weights of slots [B, K, slots], and the state with updated usage."""
        numbers = self.layer(features)
        keys = numbers[..., : self.size].unflatten(-1, (self.keys, self.memory.row))
        found, weights, state = self.memory.read(state, keys, F.softplus(numbers[..., self.size :]))
        return found.flatten(-2), weights, state


class MemoryCore(nn.Module):
    """An LSTM with an external memory: each step writes a value, then reads.

    It takes the place of `rlrun.nn.Core`, in a2c say: `algorithm.recurrent={_target_: rlrun.nn.MemoryCore, _partial_:
    true}`. Its state is a row of numbers: the LSTM's, the rows read last, and the memory. Episodes begin with zeros.

    Args:
        inputs: width of the features.
        size: of the LSTM.
        slots, width, decay, retroactive: of the memory, see `ExternalMemory`.
        keys: number of keys that read in each step.
        depth: layers of the LSTM.

    Attributes:
        size: width of the result: the LSTM's features and the rows read.
    """

    def __init__(
        self,
        inputs: int,
        size: int,
        *,
        slots: int = 32,
        width: int = 16,
        keys: int = 1,
        depth: int = 1,
        decay: float | None = None,
        retroactive: float | None = None,
    ) -> None:
        super().__init__()
        require_whole("depth", depth, 1)
        self.memory = ExternalMemory(slots, width, decay=decay, retroactive=retroactive)
        self.reader = Reader(self.memory, size, keys)
        self.lstm = Stack(inputs + self.reader.size, [size] * depth)
        self.value = nn.Linear(size + inputs, width)
        self.size = size + self.reader.size
        shapes = {"lstm": [self.lstm.state_size], "read": [self.reader.size], **self.memory.shapes}
        self.shapes = {name: torch.Size(shape) for name, shape in shapes.items()}
        self.state_size = sum(shape.numel() for shape in self.shapes.values())

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, size] and the state after them, from [B, F] and the state [B, S] before them."""
        rows = torch.split(state, [shape.numel() for shape in self.shapes.values()], -1)
        parts = dict(zip(self.shapes, rows, strict=True))
        slots = {name: parts[name].reshape(-1, *self.shapes[name]) for name in self.memory.shapes}
        hidden, lstm = self.lstm.step(torch.cat((features, parts["read"]), -1), parts["lstm"])
        slots = self.memory.write(slots, self.value(torch.cat((hidden, features), -1)).tanh())
        found, _, slots = self.reader(hidden, slots)
        after = {"lstm": lstm, "read": found, **slots}
        return torch.cat((hidden, found), -1), torch.cat([after[name].flatten(1) for name in self.shapes], -1)

    def forward(self, features: Tensor, state: Tensor | None, episode_end: Tensor | None = None) -> Tensor:
        """Return features that depend on earlier steps; arguments and errors are those of `rlrun.nn.Core`."""
        if state is None:
            if features.dim() < 3 or features.shape[1] == 1:
                raise RequestError(STATELESS)
            state = features.new_zeros(features.shape[0], self.state_size)
        if features.dim() < 3:
            return self.step(features, state)[0]
        outputs = []
        for at, row in enumerate(features.unbind(1)):
            output, state = self.step(row, state)
            outputs.append(output)
            if episode_end is not None:
                state = torch.where(episode_end[:, at, None], 0.0, state)
        return torch.stack(outputs, 1)
