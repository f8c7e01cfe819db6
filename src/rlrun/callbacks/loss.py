"""Losses: they compute gradients, step optimizers, and report metrics of updates.

Metrics use the gradients and optimizer states of the newest update. Reading them runs no network and draws no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.core.errors import ConfigError, DataError, require_one_of
from rlrun.core.schedules import Schedule
from rlrun.nn import Stepper, average_gradients
from rlrun.nn.ensemble import Ensemble, StackedLinear
from rlrun.training.callback import Callback, Hook

LOOKED_AT = 256  # losses of so many updates are checked together, unless metrics are read before
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
DENSE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BETWEEN = (nn.Dropout, nn.LayerNorm)  # may stand between a layer and its activation
ADAMS = (torch.optim.Adam, torch.optim.AdamW)


class LossCallback(Callback):
    """Step one optimizer on one network, by the loss that a subclass defines.

    A subclass writes `loss`, whose arguments are looked up by name. It returns the loss of each element, or that and a
    dict of named tensors for later callbacks (declared in `provides`). Gradients of several learners are averaged
    before they are clipped. Elements are weighted by `weight` ([B]) of the data group, if there is one. Each update
    uses `learning_rate`, if a `Schedule` provides it.

    `veto`, if set, gets the named tensors before each step, and returns True to skip the step. If `watched` is set,
    `elements` has the loss of each element of the newest update, [B] or [B, T] without weights; `error` gives the
    errors behind it.

    Args:
        network: is trained; one without parameters is only evaluated.
        optimizer: a partial, completed with the network's parameters.
        max_grad_norm: clip gradients to this; None = never.
        grad_clip: global limits the norm of all gradients together, parameter that of each parameter's gradient, value
            each number, adaptive each gradient's norm relative to its parameter's; none only logs the norm.
        data_group: name of the batches that are learned from.
        every: the network learns in every n-th update of the data group; other updates lack the tensors that this loss
            provides, so callbacks that read them learn as rarely.
        schedule: learning rate of this loss alone, as a function of its updates; it replaces `learning_rate`.
        compile: run `loss` through `torch.compile`, where the whole update is not (`rlrun.compile`).

    Raises:
        ConfigError: there is no such way to clip, or it lacks a limit.
    """

    data_group: str | None = "default"

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        *,
        max_grad_norm: float | None = None,
        grad_clip: ops.Clip = "global",
        every: int = 1,
        schedule: Schedule | None = None,
        data_group: str = "default",
        compile: bool = False,
    ) -> None:
        self.network = network
        trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
        self.parameters = list(trained.values())
        self.names = list(trained)
        self.optimizer = optimizer(self.parameters) if self.parameters else None
        self._hidden = hidden_layers(network)
        # Another loss may overwrite gradients before metrics are read.
        self.by_turns = getattr(network, "by_turns", False)
        self._stepper = None if self.optimizer is None else Stepper(self.optimizer)
        require_one_of("grad_clip", grad_clip, ops.CLIPS)
        if max_grad_norm is None and grad_clip not in ("global", "none"):
            raise ConfigError(f"grad_clip '{grad_clip}' wants a limit: max_grad_norm")
        self.max_grad_norm = max_grad_norm
        self.grad_clip = grad_clip
        self.schedule = schedule
        _check_schedule(schedule)
        self.data_group = data_group
        self.every = every
        self.updates = 0
        self.veto: Callable[[Mapping[str, Tensor]], bool] | None = None
        self.turns = 0  # updates of the data group so far, also those in which the network does not learn
        self.watched = False
        self.elements: Tensor | None = None
        self._weighs = "weight" in Callback.hook_of(self.loss, "loss").arguments  # then it weights elements itself
        self._compile = compile
        self._compiled: Callable[..., Any] | None = None
        self._last: Tensor | None = None  # loss of the newest update
        self._losses = torch.empty(0)  # of the updates since the last check
        self._places: Sequence[Tensor] = ()  # of each of them
        self._unseen = 0  # number of updates in `_losses`
        self._norm: Tensor | None = None
        self._rate: float | None = None  # learning rate of the newest update, where it was given
        self._before: Mapping[str, Any] = {}  # metrics of the newest update before a resume

    def loss(self, *names: Any) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each element: [B], [B, T], or a scalar."""
        raise TypeError(f"{type(self).__name__} does not define a loss")

    def backward(
        self, *values: Any, weight: Tensor | None = None, learning_rate: float | None = None, **optional: Any
    ) -> dict[str, Tensor] | None:
        """Evaluate the loss and step the optimizer on this network's parameters only."""
        due = self.due()
        self.passed()
        if not due:
            return None
        loss, named = self.evaluate(*values, weight=weight, **optional)
        if self._stepper is not None and not (self.veto is not None and self.veto(named or {})):
            self._step(loss, self._stepper, learning_rate)
        return named

    def trained(self) -> list[nn.Parameter]:
        return self.parameters

    def due(self) -> bool:
        return (self.turns + 1) % self.every == 0

    def passed(self) -> None:
        self.turns += 1

    def evaluate(
        self, *values: Any, weight: Tensor | None = None, **optional: Any
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Return the mean of the weighted losses of all elements, and what the loss names for later callbacks."""
        if self._weighs and weight is not None:
            optional["weight"], weight = weight, None
        of = self.loss
        if self._compile and not torch.compiler.is_compiling():  # otherwise the whole update is compiled
            if self._compiled is None:  # only now, as it imports the compiler
                # random numbers are drawn as without compilation, so only rounding differs
                self._compiled = torch.compile(of, options={"fallback_random": True})
            of = self._compiled
        if self.optimizer is None:
            with torch.no_grad():
                result = of(*values, **optional)
        else:
            result = of(*values, **optional)
        value: Tensor
        named: dict[str, Tensor] | None
        value, named = result if isinstance(result, tuple) else (result, None)
        if self.watched:
            self.elements = value.detach()
        loss = value.mean() if weight is None else _weighted(value, weight)
        self._last = loss.detach()
        return loss, named

    def error(self, elements: Tensor) -> Tensor:
        """Return the size of the error behind the loss of each element; here that of a squared distance."""
        return ops.error_size(elements)

    def _step(self, loss: Tensor, step: Stepper, rate: float | None) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        # A gradient per element would make torch import its compiler. Other networks get no gradient.
        torch.autograd.backward(loss, inputs=self.parameters)
        average_gradients(self.parameters)
        self.limit_gradients()
        self.set_rate(rate)
        step()
        self.stepped()

    def stepped(self) -> None:
        """Count a step of the optimizer.

        Raises:
            DataError: the loss of one of the newest updates was not finite.
        """
        self.updates += 1
        if self._last is None:
            return
        if not self._places:
            self._losses = torch.zeros(LOOKED_AT, device=self._last.device)
            self._places = self._losses.unbind()
        self._places[self._unseen].copy_(self._last)  # single tensors would fragment the heap
        self._unseen += 1
        if self._unseen == LOOKED_AT:
            self._require_finite()

    def _require_finite(self) -> None:
        losses, self._unseen = self._losses[: self._unseen], 0
        finite = losses.isfinite().tolist()
        if not all(finite):
            first = finite.index(False)
            raise DataError(
                f"callbacks.{self.name}: the loss is {float(losses[first])} at its update "
                f"{self.updates - len(losses) + first + 1:,}; a smaller algorithm.lr, algorithm.max_grad_norm "
                "or rewards of another scale may keep it finite"
            )
        losses.zero_()

    def set_rate(self, rate: float | None) -> None:
        """Set the learning rate of the optimizer: that of the schedule, or else the given one."""
        self._rate = rate if self.schedule is None else self.schedule(self.updates)
        if self._rate is not None and self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate

    def limit_gradients(self) -> None:
        """Limit the parameters' gradients, and keep their norm."""
        by = self.grad_clip
        if self.max_grad_norm is None and by != "none":
            return
        present = {parameter: parameter.grad for parameter in self.parameters if parameter.grad is not None}
        self._norm = ops.clip_(list(present.values()), largest=self.max_grad_norm, by=by, parameters=list(present))

    @property
    def metrics(self) -> Mapping[str, Any]:
        if self._last is None:
            return self._before
        self._require_finite()  # before a checkpoint as well: its state has the metrics
        if self.optimizer is None:
            return {}
        metrics: dict[str, Any] = {f"loss/{self.name}": self._last}
        if self._norm is not None:
            metrics[f"grad_norm/{self.name}"] = self._norm
        if self._rate is not None:
            metrics[f"learning_rate/{self.name}"] = self._rate
        if self.by_turns:
            return metrics
        vitals = {"update_ratio": update_ratio(self.optimizer), "dead_units": dead_units(self._hidden)}
        return metrics | {f"{name}/{self.name}": value for name, value in vitals.items() if value is not None}

    def note(self, path_of: Callable[[object], str]) -> str:
        if self.optimizer is None:
            return f"evaluates {path_of(self.network)}"
        count = sum(parameter.numel() for parameter in self.parameters)
        return f"trains {path_of(self.network)} ({type(self.optimizer).__name__.lower()}, {count:,} parameters)"

    def hook(self, event: str) -> Hook | None:
        hook = super().hook(event)
        if event != "backward" or hook is None:
            return hook
        loss = Callback.hook_of(self.loss, "loss")
        own = {name: hook.arguments[name] for name in ("weight", "learning_rate") if name in hook.arguments}
        return Hook(self.backward, {**own, **loss.arguments}, "loss")

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict() if self.optimizer is not None else {}
        counted = {"updates": self.updates, "turns": self.turns, "metrics": plain(self.metrics)}
        return {"optimiser": optimizer, "names": self.names, **counted}

    def load_state_dict(
        self, state: dict[str, Any], *, weights: bool = True, optimizer: bool = True, numbers: bool = True
    ) -> None:
        if optimizer and self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimiser"])
        super().load_state_dict(state, numbers=numbers)

    def load_numbers(self, state: dict[str, Any]) -> None:
        self.updates, self._before = state["updates"], state["metrics"]
        self.turns = state.get("turns", self.updates)  # earlier versions saved none


def _check_schedule(schedule: Schedule | None) -> None:
    try:
        float(0.0 if schedule is None else schedule(0))
    except Exception as error:  # a function of something else may raise anything
        raise ConfigError(
            "schedule: wanted a function of the number of updates, as rlrun.core.schedules has them (Linear, Step, …); "
            f"schedulers of torch.optim step an optimizer by themselves: {error}"
        ) from error


def plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers, for a checkpoint."""
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, Tensor) or value.numel() == 1}
    return {name: float(value.float()) if isinstance(value, Tensor) else value for name, value in numbers.items()}


def _weighted(value: Tensor, weight: Tensor) -> Tensor:
    """Mean of the weighted elements; `weight` may lack trailing dimensions of `value`."""
    return (value * weight.reshape(weight.shape + (1,) * (value.dim() - weight.dim()))).mean()


class BonusLoss(LossCallback):
    """Train the network of a bonus, and log the mean bonus.

    A subclass writes `loss`, which asks for the inputs of its bonus by name, and returns `counted`.
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer, **options: Any) -> None:
        super().__init__(network, optimizer, **options)
        self._tensors: dict[str, Tensor] = {}  # of the newest update, by the name of the metric

    def counted(self, elements: Tensor, valid: Tensor | None, **tensors: Tensor) -> Tensor:
        """Return the loss of each element, 0 for rows without a transition; keep other tensors [...] for metrics."""
        self._tensors = {name: value.detach() for name, value in tensors.items()}
        return elements if valid is None else elements * valid

    @property
    def metrics(self) -> Mapping[str, Any]:
        means = {f"intrinsic/{self.name}_{name}": value.float().mean() for name, value in self._tensors.items()}
        return {**super().metrics, **means}


@torch.no_grad()
def update_ratio(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """Return the Euclidean norm of the newest step of Adam, relative to that of the weights.

    None for other optimizers, before the first step, and without matrices.
    """
    if not isinstance(optimizer, ADAMS):
        return None
    steps, weights = [], []
    for group in optimizer.param_groups:
        first, second = group["betas"]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state or parameter.dim() < 2:
                continue
            count = state["step"]
            mean = state["exp_avg"] / (1.0 - first**count)
            deviation = (state["exp_avg_sq"] / (1.0 - second**count)).sqrt_().add_(group["eps"])
            steps.append(mean.div_(deviation).norm() * group["lr"])
            weights.append(parameter.norm())
    if not steps:
        return None
    ratio: Tensor = torch.stack(steps).norm() / torch.stack(weights).norm().clamp(min=1e-12)
    return ratio


@torch.no_grad()
def dead_units(layers: Sequence[nn.Module]) -> Tensor | None:
    """Return the share of hidden units without any gradient in the newest update.

    Such a unit is a rectifier that is off, or a saturated tanh, for every row of the batch.

    layers: hidden ones, as `hidden_layers` finds them.
    """
    moved = [reached for layer in layers if (reached := _reached(layer)) is not None]
    return 1.0 - torch.cat(moved).float().mean() if moved else None


def hidden_layers(network: nn.Module) -> list[nn.Module]:
    """Return the layers of a network that are followed by an activation."""
    layers: list[nn.Module] = []
    for module in network.modules():
        if isinstance(module, Ensemble):
            layers += [*module.layers][:-1]
        elif isinstance(module, nn.Sequential):
            layers += _before_activations(module)
    return layers


def _before_activations(layers: nn.Sequential) -> Iterator[nn.Module]:
    before: nn.Module | None = None
    for layer in layers:
        if isinstance(layer, DENSE):
            before = layer
        elif before is not None and not isinstance(layer, BETWEEN):
            yield before
            before = None


def _reached(layer: nn.Module) -> Tensor | None:
    """Return which units of a layer [M × out] a gradient reached; None where the layer has none."""
    weight = layer.weight
    if not isinstance(weight, Tensor) or weight.grad is None:
        return None
    if isinstance(layer, StackedLinear):  # [M, in, out]
        return weight.grad.ne(0).any(1).flatten()
    return weight.grad.ne(0).flatten(1).any(1)
