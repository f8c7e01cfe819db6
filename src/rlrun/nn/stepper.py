"""One step of an optimizer, with little around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from rlrun.runs import learners

LARGEST = 65_536  # numbers; adding gradients of larger networks into zeros takes longer than it spares
ALIGNED = 16  # numbers: what a parameter's part is a multiple of


class Gradients:
    """The gradients of parameters, those of small networks one behind the other, so that one call sees all of them.

    A backward pass adds into them. Parameters that it did not reach have no gradient afterwards, as ever: torch
    counts for each tensor how often something was written there.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._decided = False  # whether they lie one behind the other
        self._flat: Tensor | None = None
        self._parts: list[Tensor] = []
        self._before: list[int] = []  # how often each part was written, when all were cleared

    @property
    def flat(self) -> Tensor | None:
        """All numbers, and zeros between them and for parameters without a gradient; None where they lie apart."""
        return self._flat

    def clear(self) -> None:
        """Have none, before a backward pass."""
        if not self._decided:
            self._make()
        if self._flat is None:
            for parameter in self.parameters:
                parameter.grad = None
            return
        self._flat.zero_()
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            if parameter.grad is not part:
                parameter.grad = part
        self._before = [part._version for part in self._parts]

    def settle(self) -> None:
        """Take the gradient from parameters that the backward pass did not reach."""
        for parameter, part, before in zip(self.parameters, self._parts, self._before, strict=False):
            if part._version == before:
                parameter.grad = None

    def average(self) -> None:
        """Let them be the mean of all learners' gradients."""
        if learners.count() == 1:
            return
        if self._flat is not None:
            learners.mean_(self._flat)
            return
        present = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if present:
            together = learners.mean_(torch.cat([gradient.flatten() for gradient in present]))
            parts = torch.split(together, [gradient.numel() for gradient in present])
            shaped = [part.view_as(gradient) for part, gradient in zip(parts, present, strict=True)]
            torch._foreach_copy_(present, shaped)

    def _make(self) -> None:
        """Make room, if the parameters are few numbers of one kind in one place."""
        self._decided = True
        kinds = {(parameter.device, parameter.dtype) for parameter in self.parameters}
        sizes = [-(-parameter.numel() // ALIGNED) * ALIGNED for parameter in self.parameters]
        if len(kinds) != 1 or sum(sizes) > LARGEST:
            return
        ((device, dtype),) = kinds
        self._flat = torch.zeros(sum(sizes), device=device, dtype=dtype)
        # `data` has a counter of its own, a view would share that of the whole
        parts = [part.data for part in torch.split(self._flat, sizes)]
        self._parts = [
            part[: parameter.numel()].view(parameter.shape)
            for parameter, part in zip(self.parameters, parts, strict=True)
        ]


class _Ready(NamedTuple):
    """What the kernel takes beside gradients: the very tensors that the optimizer keeps."""

    group: dict[str, Any]
    parameters: list[Tensor]  # those that had a gradient so far
    idle: list[Tensor]  # the others
    means: list[Tensor]
    squares: list[Tensor]
    counts: list[Tensor]
    counter: Tensor  # [P]; `counts` are its entries, so that one call counts for all
    states: int  # parameters of which the optimizer keeps something

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether the optimizer is still what this was made of."""
        groups, group = optimizer.param_groups, self.group
        return len(groups) == 1 and groups[0] is group and len(optimizer.state) == self.states and _is_plain(group)

    def gradients(self) -> list[Tensor] | None:
        """Return the gradients; None where there is one too few or too many."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        fit = len(gradients) == len(self.parameters) and all(parameter.grad is None for parameter in self.idle)
        return gradients if fit else None


class Stepper:
    """Step an optimizer as its `step()` does; torch's fused Adam by its kernel alone.

    For small networks there is ten times as much around that kernel as in it, and the first call of `step()` imports
    torch's compiler, which takes 2 s. The state is the optimizer's own. Whatever is not plain goes through `step()`:
    hooks, other rules, a parameter that once had a gradient and has none now.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._ready: _Ready | None = None
        self._state: Any = None  # of the optimizer when that was made; loading gives it another one

    @torch.no_grad()
    def __call__(self) -> None:
        optimizer = self.optimizer
        if hooked(optimizer):
            self._ready = None
            optimizer.step()
            return
        ready = self._ready if self._state is optimizer.state else None
        gradients = ready.gradients() if ready is not None and ready.holds(optimizer) else None
        if gradients is None:
            self._ready = ready = _ready(optimizer)
            self._state = optimizer.state
            gradients = None if ready is None else ready.gradients()
        if ready is None or gradients is None:
            optimizer.step()
            return
        ready.counter.add_(1.0)
        torch._fused_adam_(
            ready.parameters,
            gradients,
            ready.means,
            ready.squares,
            [],
            ready.counts,
            lr=ready.group["lr"],
            beta1=ready.group["betas"][0],
            beta2=ready.group["betas"][1],
            weight_decay=ready.group["weight_decay"],
            eps=ready.group["eps"],
            amsgrad=False,
            maximize=False,
        )


def _ready(optimizer: torch.optim.Optimizer) -> _Ready | None:
    """Return what the kernel takes; None where the optimizer is no plain Adam, or lies on several devices.

    A parameter takes part from its first gradient on.
    """
    group, *rest = optimizer.param_groups
    if type(optimizer) is not torch.optim.Adam or rest or not _is_plain(group):
        return None
    parameters: list[Tensor] = []
    idle: list[Tensor] = []
    for parameter in group["params"]:
        begun = parameter.grad is not None or optimizer.state.get(parameter)
        (parameters if begun else idle).append(parameter)
    if len({(parameter.device, parameter.dtype) for parameter in parameters}) != 1:
        return None
    if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in parameters):
        return None
    states = [optimizer.state[parameter] or _begun(optimizer, parameter) for parameter in parameters]
    counter = torch.stack([state["step"] for state in states])
    counts = list(counter.unbind())
    for state, count in zip(states, counts, strict=True):
        state["step"] = count
    means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
    return _Ready(group, parameters, idle, means, squares, counts, counter, len(optimizer.state))


def _is_plain(group: dict[str, Any]) -> bool:
    """Tell whether a group of Adam follows the rule that the kernel is called with."""
    variant = group["amsgrad"] or group["maximize"] or group["differentiable"] or group["decoupled_weight_decay"]
    return bool(group["fused"] and not variant)


def _begun(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Give a parameter the state that Adam begins with."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    return state


def hooked(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether somebody is called before or after a step."""
    ours = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(ours or _global_optimizer_pre_hooks or _global_optimizer_post_hooks)


def _leave_compiler_out() -> None:
    """Let optimizers be built, saved and loaded without torch's compiler.

    torch marks these methods as none to compile, and imports the compiler at their first call to do so. Nothing here
    compiles them; unmarked, a run starts 2 s sooner and holds 100 MB less.
    """
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        method = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if method is not None:
            vars(method).setdefault("__dynamo_disable", method)


_leave_compiler_out()
