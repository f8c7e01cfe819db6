"""Losses compute gradients, step optimizers, and report metrics of updates.

Metrics use the gradients and optimizer states of the newest update. Reading them runs no network and draws no number.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.diagnostics import Diagnostics, FiniteCheck, learning_rates
from rlrun.compile.calls import NoGrad
from rlrun.compile.fused_adam import Stepper
from rlrun.compile.several import kinds_of
from rlrun.core.errors import ConfigError, WiringError, require_number, require_one_of
from rlrun.core.schedules import Schedule
from rlrun.nn.optimizers import load_optimizer, optimizer_state, require_recipe
from rlrun.nn.parameter_groups import optimizer_of
from rlrun.training.callback import Callback, Hook
from rlrun.training.metrics import as_numbers
from rlrun.training.update import of_loss

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
LossResult = tuple[Tensor, dict[str, Any], dict[str, Any]]  # loss of each element, outputs, metrics


class Steps(Protocol):
    """Computes gradients and steps parameters, in an eager update or in a compiled graph."""

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the gradient of each parameter; None where the loss does not depend on it."""

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Step the parameters by their gradients."""


class StepResult(NamedTuple):
    """The results of one step of a loss.

    Attributes:
        loss: the weighted mean.
        outputs: for other callbacks.
        metrics: of the loss.
        norm: of the gradients before they were clipped; None = it is not computed.
        errors: of the elements, if a callback reads them.
        stepped: False if neither parameters nor buffers changed.
    """

    loss: Tensor
    outputs: dict[str, Any]
    metrics: Mapping[str, Any]
    norm: Tensor | None
    errors: Tensor | None
    stepped: bool = True


class LossCallback(Callback):
    """Train one network with one optimizer, by the loss that a subclass defines.

    A subclass writes `loss`, whose arguments are looked up by name. It returns the loss of each element; or that, a
    dict of outputs for later callbacks (declared in `provides`), and a dict of metrics: tensors, which stand for their
    mean, or `rlrun.training.metrics.Metric`s. `loss` reads its arguments, its modules and constants, and assigns
    nothing. It returns new values of buffers, by path, in the output `updates`.

    Gradients of several ranks are averaged before they are clipped. Elements are weighted by `weight` ([B]) of the
    data group, if there is one. Each update uses `learning_rate`, if a `Schedule` provides it.

    If `watched` is set, `elements` has the error of each element of the newest update, [B] or [B, T] without weights.

    Args:
        network: is trained; one without parameters is only evaluated.
        optimizer: a partial, completed with the network's parameters; None = the loss is only evaluated and logged, as
            on held-out data, or it is a term of a `JointLoss`.
        loss_weight: factor of the gradients before they are clipped, also in a joint loss; the logged loss omits it.
        max_grad_norm: clip gradients to this; None = never.
        grad_clip: global limits the joint norm of all gradients, parameter the norm of each parameter's gradient, value
            each number, adaptive each gradient's norm relative to its parameter's; none only logs the joint norm.
        data_group: name of the training batches.
        every: the network learns in every n-th update of the data group; other updates lack the tensors that this loss
            provides, so hooks that require them are called as rarely.
        schedule: learning rate of this loss alone, as a function of its updates; it replaces `learning_rate`.

    Raises:
        ConfigError: `grad_clip` is unknown, or lacks a limit.
    """

    data_group: str | None = "default"
    inherited: tuple[str, ...] = ("optimizer", "names")

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        *,
        loss_weight: float = 1.0,
        max_grad_norm: float | None = None,
        grad_clip: ops.Clip = "global",
        every: int = 1,
        schedule: Schedule | None = None,
        data_group: str = "default",
    ) -> None:
        require_number("loss_weight", loss_weight, 0)
        require_bound("max_grad_norm", max_grad_norm)
        if optimizer is not None:
            require_recipe(optimizer)
        self.network, self.scale = network, loss_weight
        named = {} if optimizer is None else dict(network.named_parameters())
        trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        self.optimizer = optimizer_of(network, optimizer) if optimizer is not None and trained else None
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        index_of = {id(parameter): index for index, parameter in enumerate(p for g in groups for p in g["params"])}
        self.names = sorted(trained, key=lambda name: index_of.get(id(trained[name]), 0))  # in the optimizer's order
        self.parameters = [trained[name] for name in self.names]
        self.logs_loss = optimizer is None
        self.by_turns = getattr(network, "by_turns", False)  # several losses train it, each in phases of its own
        self.diagnostics = Diagnostics(network, self.optimizer, others=self.by_turns)
        self.check = FiniteCheck()
        self._stepper = None if self.optimizer is None else Stepper(self.optimizer)
        require_one_of("grad_clip", grad_clip, ops.CLIPS)
        if max_grad_norm is None and grad_clip not in ("global", "none"):
            raise ConfigError(f"grad_clip '{grad_clip}' needs a limit: max_grad_norm")
        self.max_grad_norm = max_grad_norm
        self.grad_clip = grad_clip
        self.schedule = schedule
        _check_schedule(schedule)
        self.data_group = data_group
        self.every = every
        self.updates = 0
        self.turns = 0  # updates of the data group so far, also those in which the network does not learn
        self.watched = False
        self.elements: Tensor | None = None
        self.norm: Tensor | None = None  # of the newest gradients, where it is computed
        self.rate: float | None = None  # learning rate of the newest update, where it was given

    def loss(self, *names: Any) -> Tensor | LossResult:
        """Return the loss of each element: [B], [B, T], or a scalar; or that, outputs and metrics."""
        raise TypeError(f"{type(self).__name__} does not define a loss")

    def backward(  # type: ignore[override]
        self, *values: Any, weight: Tensor | None = None, learning_rate: float | None = None, **optional: Any
    ) -> dict[str, Any] | None:
        """Evaluate the loss and step the optimizer, if an update is due; return the outputs."""
        if not self.due():
            self.passed()
            return None
        with torch.set_grad_enabled(self.optimizer is not None):
            elements, outputs, metrics = of_loss(self.loss(*values, **optional))
        return self.step(elements, outputs, metrics, weight=weight, learning_rate=learning_rate)

    def step(
        self,
        elements: Tensor,
        outputs: Mapping[str, Any],
        metrics: Mapping[str, Any],
        *,
        weight: Tensor | None = None,
        learning_rate: float | None = None,
    ) -> dict[str, Any]:
        """Step the optimizer on this network's parameters only, by what `loss` returned; return the outputs."""
        self.passed()
        if self._stepper is not None:
            self.set_rate(learning_rate)
        return self.record(self.phases(elements, outputs, metrics, weight, self._stepper))

    def phases(
        self,
        elements: Tensor,
        outputs: Mapping[str, Any],
        metrics: Mapping[str, Any],
        weight: Tensor | None,
        stepper: Steps | None,
    ) -> StepResult:
        """Weight the loss, compute its gradients, clip them, step the parameters, write buffers.

        Eager updates call it, and so does the trace of a compiled update; they differ in their stepper.
        """
        errors = self.error(elements.detach(), outputs) if self.watched else None
        loss = self.weighted_mean(elements, weight)
        norm = self.norm
        if stepper is not None:
            if not loss.requires_grad:
                raise WiringError(
                    f"callbacks.{self.name}.loss: the loss has no gradient; it must depend on parameters of its "
                    "network, without detach, no_grad or item() between"
                )
            gradients = stepper.gradients(loss if self.scale == 1.0 else self.scale * loss, self.parameters)
            with NoGrad():
                norm = self.clipped(gradients)
                stepper.step(gradients)
        others = dict(outputs)
        updates = others.pop("updates", {})
        if updates:
            with NoGrad():
                for path, value in updates.items():
                    self.buffer(path).copy_(value)
        return StepResult(loss.detach(), others, metrics, norm, errors)

    def weighted_mean(self, elements: Tensor, weight: Tensor | None) -> Tensor:
        """Return the mean of the elements' losses, each times its weight: [B], or [B, T] of windows.

        A loss [B, …] may have further dimensions. The loss [B] of whole windows is weighted by the mean weight of their
        T steps; padding has weight 0.

        Raises:
            WiringError: the shapes of losses and weights do not match.
        """
        if weight is None:
            return elements.mean()
        if elements.shape[: weight.dim()] == weight.shape:
            weight = weight.reshape(weight.shape + (1,) * (elements.dim() - weight.dim()))
        elif elements.dim() == 1 and elements.shape == weight.shape[:1]:
            weight = weight.flatten(1).mean(1)
        else:
            raise WiringError(
                f"callbacks.{self.name}.loss: its shape is {[*elements.shape]}, and its batch has a weight for each of "
                f"{[*weight.shape]}; return the loss of each element (without sum or mean), or ask for 'weight' there"
            )
        return (elements * weight).mean()

    def buffer(self, path: str) -> Tensor:
        """Return the tensor at a path of attributes, such as `network.seen`; `.data` of a parameter is itself."""
        tensor: Tensor = attrgetter(path.removesuffix(".data"))(self)
        return tensor

    def record(self, result: StepResult, gradients: Sequence[Tensor | None] | None = None) -> dict[str, Any]:
        """Count a step of the optimizer, store metrics, and return the outputs for other callbacks.

        gradients: of hidden layers' weights; None = the weights' `grad`.

        Raises:
            DataError: the loss of one of the newest updates was not finite.
        """
        self.elements, self.norm = result.errors, result.norm
        loss, metrics = result.loss, result.metrics
        if self.optimizer is None:
            self.store.put({f"loss/{self.name}": loss, **metrics} if self.logs_loss else metrics)
            return result.outputs
        norms = {} if self.norm is None else {f"grad_norm/{self.name}": self.norm}
        self.store.put({f"loss/{self.name}": loss, **norms, **metrics})
        if not result.stepped:
            return result.outputs
        self.diagnostics.gradients = gradients
        self.updates += 1
        if self.check.add(loss):
            self.check.require(self.name, self.updates)
        return result.outputs

    def trained(self) -> list[nn.Parameter]:
        return self.parameters

    def due(self) -> bool:
        return (self.turns + 1) % self.every == 0

    def passed(self) -> None:
        self.turns += 1
        self.elements = None  # those of an earlier update belong to another batch

    def error(self, elements: Tensor, outputs: Mapping[str, Any]) -> Tensor:
        """Return the absolute error that gives each element's loss; here for a squared distance."""
        return ops.error_size(elements)

    def set_rate(self, rate: float | None) -> None:
        """Set the optimizer's learning rate, by its schedule if it has one, else to this rate."""
        if self.schedule is not None:
            self.rate = self.schedule(self.updates)
        elif rate is not None:
            self.rate = rate * getattr(self.optimizer, "rate_factor", 1.0)
        if self.rate is not None and self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * group.get("lr_factor", 1.0)

    def clipped(self, gradients: Sequence[Tensor | None]) -> Tensor | None:
        """Clip the gradients of all parameters in place; return their earlier norm, or None without a limit."""
        if self.max_grad_norm is None and self.grad_clip != "none":
            return None
        present = [gradient for gradient in gradients if gradient is not None]
        pairs = zip(self.parameters, gradients, strict=True)
        parameters: list[Tensor] = [parameter for parameter, gradient in pairs if gradient is not None]
        return ops.clip_(present, largest=self.max_grad_norm, by=self.grad_clip, parameters=parameters)

    @property
    def metrics(self) -> Mapping[str, Any]:
        self.check.require(self.name, self.updates)  # before a checkpoint as well: its state has the metrics
        metrics = self.store.read()
        if self.optimizer is None or not self.store.fresh:
            return metrics
        return metrics | learning_rates(self.optimizer, self.name) | self.diagnostics.metrics(self.name)

    def note(self, path_of: Callable[[object], str]) -> str:
        if self.optimizer is None:
            return f"evaluates {path_of(self.network)}"
        count = sum(parameter.numel() for parameter in self.parameters)
        sizes = [(group.get("name"), sum(map(Tensor.numel, group["params"]))) for group in self.optimizer.param_groups]
        groups = "".join(f", {name} {size:,}" for name, size in sizes if name)
        kind = " and ".join(dict.fromkeys(kind.__name__.lower() for kind in kinds_of(self.optimizer)))
        pace = "" if self.every == 1 else f", every {self.every} updates"
        return f"trains {path_of(self.network)} ({kind}, {count:,} parameters{groups}){pace}"

    def hook(self, event: str) -> Hook | None:
        if event != "backward" or type(self).backward is not LossCallback.backward:
            return super().hook(event)
        loss = Callback.hook_of(self.loss, "loss")
        # a loss with an argument `weight`, or one that reads that name, weights its elements itself
        weighs = any("weight" in (argument, self.inputs.get(argument, argument)) for argument in loss.arguments)
        own = ("learning_rate",) if weighs else ("weight", "learning_rate")
        return loss._replace(framework=own)

    def state_dict(self) -> dict[str, Any]:
        optimizer = optimizer_state(self.optimizer) if self.optimizer is not None else {}
        counted = {"updates": self.updates, "turns": self.turns, "metrics": as_numbers(self.metrics)}
        return {"optimizer": optimizer, "names": self.names, **counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.optimizer is not None:
            load_optimizer(self.optimizer, state["optimizer"])
        self.updates = state["updates"]
        self.store.load(state["metrics"])
        self.turns = state["turns"]


def _check_schedule(schedule: Schedule | None) -> None:
    try:
        float(0.0 if schedule is None else schedule(0))
    except Exception as error:  # a function of something else may raise anything
        raise ConfigError(
            "schedule: wanted a function of the number of updates, as rlrun.core.schedules has them (Linear, Step, …); "
            f"schedulers of torch.optim step an optimizer by themselves: {error}"
        ) from error


def require_bound(name: str, bound: float | None) -> None:
    """Refuse a bound that is not a number above 0, with a ConfigError."""
    if bound is not None and not (isinstance(bound, int | float) and bound > 0.0):
        raise ConfigError(f"{name}: wanted a number above 0, got {bound!r}")


def require_distance(function: ops.Distance | None, huber: float | None) -> None:
    """Refuse a `huber` that is not a number above 0, and a distance that is given beside it or is not elementwise.

    Raises:
        ConfigError: with an example.
    """
    require_bound("huber", huber)
    if function is None:
        return
    example = "{_target_: torch.nn.SmoothL1Loss, reduction: none}"
    if not callable(function):
        raise ConfigError(f"distance: wanted a function, such as {example}, got {function!r}")
    if huber is not None:
        raise ConfigError(f"distance: it replaces huber={huber:g}; add algorithm.huber=null")
    try:
        shape = [*function(torch.zeros(2, 3), torch.ones(2, 3)).shape]
    except Exception as error:  # a function of one's own may raise anything
        raise ConfigError(f"distance: {type(error).__name__}: {error}") from error
    if shape != [2, 3]:
        raise ConfigError(f"distance: wanted that of each entry [2, 3], as by {example}; got {shape}")


class BonusLoss(LossCallback):
    """Train the network of a bonus, and log the mean bonus.

    A subclass writes `loss`, which asks for the inputs of its bonus by name, and returns `counted`.
    """

    def counted(self, elements: Tensor, valid: Tensor | None, **tensors: Tensor) -> LossResult:
        """Return the loss of each element, 0 for rows without a transition, and the tensors [...] as metrics."""
        metrics = {f"intrinsic/{self.name}_{name}": value for name, value in tensors.items()}
        return elements if valid is None else elements * valid, {}, metrics
