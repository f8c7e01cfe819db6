"""Metrics of each parameter, each module's output, and each dimension of actions."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from rlrun.callbacks.losses.diagnostics import ADAMS
from rlrun.callbacks.losses.loss import LossCallback
from rlrun.core.spaces import Box, Spaces, leaves, leaves_of
from rlrun.core.typing import Batch, Tree
from rlrun.training.callback import Callback
from rlrun.training.metrics import Histogram, as_numbers

SHOWN = 64  # metrics of actions, at most


class ParameterLogs(Callback):
    """Log norms and histograms of parameters and gradients, the gradient noise scale, and actions by dimension.

    They are computed when metrics are read, from the newest update, and change nothing. Gradients are clipped, as the
    optimizer gets them; a compiled update keeps none.

    Args:
        spaces: of the environment.
        data_group: name of the batches whose losses and actions are logged.
        outputs: also log histograms of each module's output in trained networks. A loss is evaluated once more for
            each record, with the newest batch and networks in evaluation mode.
    """

    leads = True

    def __init__(self, spaces: Spaces, *, data_group: str = "default", outputs: bool = False) -> None:
        self.space = spaces.action
        self.data_group: str | None = data_group
        self.outputs = outputs
        self.one_rank = "only the first one would evaluate losses once more (outputs)" if outputs else ""
        self._batch: Mapping[str, Any] = {}  # the newest
        self._losses: list[LossCallback] = []
        self._newest: tuple[Tree, Tensor | None] | None = None  # actions, and which of them count
        self._saved: Mapping[str, Any] = {}  # of the checkpoint, until the first update

    def begin_training(self, callbacks: Mapping[str, Callback]) -> None:
        losses = [callback for callback in callbacks.values() if isinstance(callback, LossCallback)]
        self._losses = [loss for loss in losses if loss.data_group == self.data_group and not loss.by_turns]

    def end_batch(self, batches: Mapping[str, Batch], action: Tree, valid: Tensor | None = None) -> None:
        self._newest, self._saved = (action, valid), {}
        self._batch = batches[self.data_group or ""] if self.outputs else {}

    @property
    @torch.no_grad()
    def metrics(self) -> Mapping[str, Any]:
        if self._newest is None:
            return self._saved
        tensors = leaves_of(self.space, self._newest[0])
        parts = [(leaf, self._rows(part, leaf)) for (_, leaf), part in zip(leaves(self.space), tensors, strict=True)]
        metrics: dict[str, Any] = dict(islice(_of_actions(parts), SHOWN))
        for loss in self._losses:
            for name, parameter in zip(loss.names, loss.parameters, strict=True):
                path = f"{loss.name}_{name.replace('.', '_')}"
                metrics |= {f"weight_norm/{path}": parameter.norm(), f"weight/{path}": Histogram(parameter)}
                if (gradient := parameter.grad) is not None:
                    metrics |= {f"gradient_norm/{path}": gradient.norm(), f"gradient/{path}": Histogram(gradient)}
            scale = None if loss.optimizer is None else noise_scale(loss.optimizer, len(parts[0][1]))
            metrics |= {} if scale is None else {f"noise_scale/{loss.name}": scale}
            metrics |= module_outputs(loss, self._batch) if self.outputs else {}
        return metrics

    def _rows(self, action: Tensor, leaf: Any) -> Tensor:
        """Return one part of the valid actions, [rows, numbers]."""
        assert self._newest is not None
        rows = action.reshape(-1, leaf.size if isinstance(leaf, Box) else len(leaf.choices))
        valid = self._newest[1]
        return rows if valid is None else rows[valid.reshape(-1)]

    def note(self, path_of: Callable[[object], str]) -> str:
        return "logs norms and histograms of parameters and gradients, and actions"

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": as_numbers(self.metrics)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._newest, self._saved = None, state["metrics"]


def module_outputs(loss: LossCallback, batch: Mapping[str, Any]) -> dict[str, Histogram]:
    """Return histograms of each module's first output while the loss is evaluated; nothing else changes.

    They are empty if the loss needs more than the batch.
    """
    hook = loss.hook("backward")
    arguments = {} if hook is None else hook.arguments
    names = {argument: loss.inputs.get(argument, argument) for argument in arguments}
    required = [names[name] for name, entry in arguments.items() if entry.default is entry.empty]
    missing = [name for name in required if name not in batch]
    if hook is None or hook.label != "loss" or missing:
        return {}
    metrics: dict[str, Histogram] = {}

    def keep(path: str, output: Any) -> None:
        parts = [part for part in _tensors_in(output) if part.is_floating_point()]
        if parts and path not in metrics:
            metrics[path] = Histogram(torch.cat([part.detach().flatten() for part in parts]))  # a copy

    modules = dict(loss.network.named_modules())
    places = {
        module: "_".join(["output/" + loss.name, *path.split(".")]).rstrip("_") for path, module in modules.items()
    }
    modes = {module: module.training for module in places}
    handles = [
        module.register_forward_hook(lambda module, _, output: keep(places[module], output)) for module in places
    ]
    loss.network.eval()
    devices = {parameter.device for parameter in loss.parameters if parameter.is_cuda}
    try:
        with torch.random.fork_rng([*devices]), torch.enable_grad():
            hook.method(**{argument: batch[name] for argument, name in names.items() if name in batch})
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return metrics


def _tensors_in(output: Any) -> list[Tensor]:
    """Return the tensors in lists, tuples and dicts."""
    if isinstance(output, Mapping | list | tuple):
        return [
            part
            for value in (output.values() if isinstance(output, Mapping) else output)
            for part in _tensors_in(value)
        ]
    return [output] if isinstance(output, Tensor) else []


def _of_actions(parts: list[tuple[Any, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield mean and deviation of each continuous dimension, and each choice's share; parts: rows [n, numbers]."""
    number = 0
    for leaf, rows in parts:
        for index, column in enumerate(rows.unbind(-1), start=number):
            if isinstance(leaf, Box):
                yield f"action/mean_{index}", column.float().mean()
                yield f"action/deviation_{index}", column.float().std(correction=0)
            else:
                for choice in range(leaf.choices[index - number]):
                    yield f"action/share_{index}_{choice}", (column == choice).float().mean()
        number += rows.shape[-1]


@torch.no_grad()
def noise_scale(optimizer: torch.optim.Optimizer, rows: int) -> Tensor | None:
    """Return the gradient noise scale tr(Σ) / |G|², equation 2.9 of McCandlish et al. 2018 (arXiv 1812.06162).

    Gradients of batches well below it are mostly noise. Adam's averages of gradients and of their squares replace
    gradients of two batch sizes. NaN where these averages cannot separate the gradient from noise.

    Args:
        optimizer: others than Adam and AdamW give None.
        rows: of a batch.
    """
    states = [
        (optimizer.state[parameter], group["betas"])
        for group in optimizer.param_groups
        for parameter in group["params"]
        if isinstance(optimizer, ADAMS) and optimizer.state.get(parameter)
    ]
    means, squares, kept = [], [], torch.zeros(())
    for state, (first, second) in states:
        count = state["step"]
        means.append((state["exp_avg"] / (1.0 - first**count)).square().sum())
        squares.append((state["exp_avg_sq"] / (1.0 - second**count)).sum())
        # the share of a batch's variance that the mean of the newest batches keeps: the sum of its squared weights
        kept = (1.0 - first) / (1.0 + first) * (1.0 + first**count) / (1.0 - first**count)
    if not states:
        return None
    mean, square = torch.stack(means).sum(), torch.stack(squares).sum()
    signal = (mean - kept * square) / (1.0 - kept)  # |G|²; the mean's square is that and a part of the variance
    return torch.where(signal > 0.0, rows * (square - signal) / signal, torch.nan)
