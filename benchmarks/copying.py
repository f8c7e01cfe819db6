"""The copy task: a network sees rows of bits, then nothing, and says them again (Graves et al. 2014, section 4.1).

python -m benchmarks.copying SEED prints one JSON object with `value`, the share of wrong bits.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.nn import MemoryCore

LENGTH, BITS = 10, 8
BATCH, UPDATES, HELD_OUT = 32, 2_000, 1_000


def sequences(count: int) -> tuple[Tensor, Tensor]:
    """Return inputs [count, 2 LENGTH + 1, BITS + 2], of which two numbers mark the rows and their end, and the bits."""
    bits = torch.randint(0, 2, (count, LENGTH, BITS)).float()
    inputs = torch.zeros(count, 2 * LENGTH + 1, BITS + 2)
    inputs[:, :LENGTH, :BITS] = bits
    inputs[:, :LENGTH, BITS] = 1.0
    inputs[:, LENGTH, BITS + 1] = 1.0
    return inputs, bits


def wrong_bits(seed: int) -> float:
    """Train an LSTM with an external memory; return the share of wrong bits in sequences that it has not seen."""
    torch.manual_seed(seed)
    core = MemoryCore(BITS + 2, 100, slots=20, width=20)
    network = nn.ModuleList([core, nn.Linear(core.size, BITS)])
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)

    def said(inputs: Tensor) -> Tensor:
        outputs: Tensor = network[1](core(inputs, None))
        return outputs[:, LENGTH + 1 :]

    for _ in range(UPDATES):
        inputs, bits = sequences(BATCH)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(said(inputs), bits).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
    with torch.no_grad():
        inputs, bits = sequences(HELD_OUT)
        return float(((said(inputs) > 0.0) != (bits > 0.5)).float().mean())


if __name__ == "__main__":
    print(json.dumps({"value": wrong_bits(int(sys.argv[1]))}))
