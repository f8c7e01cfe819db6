"""Windows for recurrent networks, with the stored state before them."""

from typing import Any

import numpy as np
import torch
from torch import nn

from rlrun.core.errors import ConfigError, RlrunError, require_at_least
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Batch
from rlrun.memory.adaptors.adaptor import PAST
from rlrun.memory.table.columns import Column
from rlrun.memory.table.samplers import Rows
from rlrun.nn.policy import Policy
from rlrun.nn.recurrent import rows_at, with_state
from rlrun.nn.remembering import Remembering


class Past:
    """An adaptor that serves windows [B, T] to a recurrent network; with any other network it is left out.

    The sampler draws rows. The table serves the windows in which these rows are learned from, of this adaptor's length
    (Kapturowski et al. 2019, R2D2). A window begins with the agent's state there, which the table stores once a window.
    Its first steps (burn-in) only bring the state up to date, unless the episode begins there. Where they were
    overwritten, the state is older. Each row is learned from in one window only. `valid` [B, T] marks these rows, and
    `weight` makes them count equally.

    `observation` and `next_observation` then hold the window's observations, the state before it, and the positions
    that are meant: see `rlrun.nn.recurrent.with_state`. Differences from the paper: gradients pass through the burn-in,
    and successive windows overlap by it only.

    Args:
        network: policy; recurrent if its `state_size` is above 0.
        critics: trained with it; it keeps their state, too, and so does its agent. A soft policy has its own critics.
        length: T, steps of a window, and of backpropagation through time.
        burn_in: first steps of a window, which are not learned from.
        n_step: steps from a row to its next observation.
        stored: the table stores states; otherwise windows begin with zeros, as demonstrations have no states.

    Raises:
        ConfigError: lengths do not fit together, or states are stored of a network without those of its critics.
    """

    tier = PAST
    removes = ()

    def __init__(
        self,
        network: Any,
        critics: nn.Module | None = None,
        *,
        length: int = 32,
        burn_in: int = 8,
        n_step: int = 1,
        stored: bool = True,
    ) -> None:
        if critics is not None and isinstance(network, Remembering):
            network.keep_state_of(critics)
        self.idle = not getattr(network, "state_size", 0)
        if stored and not self.idle and isinstance(network, Policy):
            way_out = "a Policy keeps its own state, and not that of critics; give false"
            raise ConfigError(f"memory.adaptors.past.stored: {way_out}")
        require_at_least("algorithm.burn_in", burn_in, 0)
        if not isinstance(burn_in, int):
            raise ConfigError(f"algorithm.burn_in: wanted a whole number of steps, got {burn_in}")
        if not self.idle and length <= max(burn_in, n_step):
            raise ConfigError(
                f"algorithm.unroll: a window of {length} steps wants more than algorithm.burn_in={burn_in} and "
                f"algorithm.n_step={n_step}"
            )
        self.length, self.burn_in, self.n_step = length, burn_in, n_step
        state = Column("state", (getattr(network, "state_size", 0),), every=length - burn_in)
        self.columns = {"state": state} if stored and not self.idle else {}
        self.replaces = tuple(self.columns)
        self.requires = ("observation", "next_observation", *self.columns)
        self.provides = self.requires

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None or not rows.parted:
            raise RlrunError("memory.adaptors: Past serves windows of a table, and this batch is not of one")
        reach = rows.onward(self.n_step)[1] if rows.reach is None else rows.reach  # [B, T]
        step, ahead = np.arange(self.length), np.arange(self.length + self.n_step)
        # index of each step's observation among the observations, followed by the next observations
        own = np.minimum(ahead, self.length - 1)
        later = self.length + np.clip(ahead - self.n_step, 0, self.length - 1)
        stored = rows.step[:, -1:] - rows.step[:, :1] + 1  # rows [B, 1]; later windows learn from the last ones
        position = torch.from_numpy(np.where(ahead < stored, own, later))  # [B, T + n]
        seen = map_tree(
            lambda *parts: rows_at(torch.cat(parts, 1), position), batch["observation"], batch["next_observation"]
        )
        state: Any = rows.stored("state", rows.start) if self.columns else torch.zeros(len(reach), 0)
        at = torch.from_numpy(np.broadcast_to(step, reach.shape).copy())
        return batch | {
            **({"state": state} if self.columns else {}),
            "observation": with_state(seen, state, at),
            "next_observation": with_state(seen, state, torch.from_numpy(step + reach)),
        }
