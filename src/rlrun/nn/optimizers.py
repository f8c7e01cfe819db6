"""Building, saving and loading optimizers without importing torch's compiler.

torch wraps these methods of `torch.optim.Optimizer`, and the first call of one imports the compiler. rlrun never
compiles them. Without the wrappers a run starts 1.6 s sooner (processor time on a Zen 4 core) and holds 100 MB less.
"""

import inspect
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch

from rlrun.core.errors import ConfigError, RlrunError

MOMENTS = frozenset(("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "momentum_buffer", "sum"))


def require_recipe(optimizer: Any) -> None:
    """Raise a ConfigError unless `optimizer` is a recipe of one, with a number as its learning rate."""
    if not callable(optimizer):
        raise ConfigError(
            f"optimizer: wanted {{_target_: torch.optim.Adam, lr: 1.0e-3, _partial_: true}}, got {optimizer!r}; "
            "optimizer=NAME (rlrun list) chooses that of every loss"
        )
    if callable(rate := getattr(optimizer, "keywords", {}).get("lr")):
        raise ConfigError(
            f"optimizer.lr: wanted a number, got a {type(rate).__name__}; +with=anneal lowers it to 0, and "
            "+callbacks.NAME.schedule={_target_: …} changes that of one loss"
        )


def build_optimizer(
    optimizer: Callable[..., torch.optim.Optimizer], parameters: Any, **settings: Any
) -> torch.optim.Optimizer:
    """Return an optimizer of parameters; optimizer: a class, a partial of one, or a function."""
    given = optimizer if isinstance(optimizer, partial) else partial(optimizer)
    kind = given.func
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        built = optimizer(parameters, **settings)
        if not hasattr(built, "param_groups"):
            raise ConfigError(f"optimizer: wanted a torch.optim.Optimizer, got a {type(built).__name__}")
        return built
    chosen: Any = kind
    result: torch.optim.Optimizer = chosen.__new__(chosen)
    vars(result)["add_param_group"] = MethodType(inspect.unwrap(kind.add_param_group), result)
    chosen.__init__(result, *given.args, parameters, **{**given.keywords, **settings})
    del vars(result)["add_param_group"]
    return result


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what the optimizer's `state_dict` returns."""
    state: dict[str, Any] = inspect.unwrap(type(optimizer).state_dict)(optimizer)
    return state


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's `state_dict`, and check shapes, as kernels write to moments without a check.

    Raises:
        RlrunError: the shape of a moment differs from its parameter's, or a setting is missing.
    """
    settings = [*optimizer.defaults]
    inspect.unwrap(type(optimizer).load_state_dict)(optimizer, state)
    for name in settings:
        if not all(name in group for group in optimizer.param_groups):
            raise RlrunError(f"optimizer: its settings lack {name}")
    for parameter, entries in optimizer.state.items():
        for name in MOMENTS.intersection(entries.keys()):
            shape, wanted = getattr(entries[name], "shape", ()), torch.Size() if name == "step" else parameter.shape
            if shape != wanted:
                raise RlrunError(f"optimizer: {name} has shape {[*shape]}, wanted {[*wanted]}")
