"""What hooks ask for in an update, as tensors and numbers that a graph takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.compile.places import leaves, rebuilt, structure
from rlrun.core.errors import RlrunError
from rlrun.core.typing import Groups
from rlrun.training.routing import HookCall


class Inputs(NamedTuple):
    """What hooks are given in one update.

    Attributes:
        form: of all of it; what has the same form can go by the same graph.
        tensors: what tensors are among it.
        numbers: what is of type float.
    """

    form: tuple[Any, ...]
    tensors: list[Tensor]
    numbers: list[float]

    @property
    def pattern(self) -> tuple[Any, ...]:
        """The form but for sizes."""
        return tuple(len(part) if isinstance(part, torch.Size) else part for part in self.form)


class Wanted:
    """The names that hooks ask for, and that none of them has made.

    Not among them are the learning rate, which is the optimizer's, and what target networks ask for when they move.
    """

    def __init__(self, steps: Sequence[HookCall]) -> None:
        self.names: list[tuple[str, str]] = []
        provided: set[tuple[str, str]] = set()
        for step in steps:
            group = step.callback.data_group or ""
            wanted = [(group, name) for name in step.asks if name != "learning_rate" and step.event != "end_batch"]
            self.names += [key for key in wanted if key not in provided and key not in self.names]
            provided |= {(group, name) for name in step.callback.provides}

    def of(self, groups: Groups) -> Inputs | None:
        """Find it in the groups of an update; None where it is absent, as a loss provides it that is not due."""
        form: list[Any] = []
        tensors: list[Tensor] = []
        numbers: list[float] = []
        for group, name in self.names:
            try:
                tree = groups[group][name]
            except (KeyError, RlrunError):
                return None
            if not isinstance(tree, Tensor):
                form.append(structure(tree))
            for leaf in leaves(tree):
                if isinstance(leaf, Tensor):
                    form += (leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad)
                    tensors.append(leaf.contiguous())  # a graph takes how rows lie for granted
                elif type(leaf) is float:
                    form.append(float)
                    numbers.append(leaf)
                else:
                    form.append(leaf)
        return Inputs(tuple(form), tensors, numbers)

    def instead(
        self, groups: Groups, tensors: Iterator[Tensor], numbers: Iterator[Tensor]
    ) -> Mapping[str, dict[str, Any]]:
        """Return the groups with others in place of tensors and numbers."""
        result: dict[str, dict[str, Any]] = {name: {} for name in groups}
        for group, name in self.names:
            tree = groups[group][name]
            stand_ins = [
                next(tensors) if isinstance(leaf, Tensor) else next(numbers) if type(leaf) is float else leaf
                for leaf in leaves(tree)
            ]
            result[group][name] = rebuilt(tree, iter(stand_ins))
        return result
