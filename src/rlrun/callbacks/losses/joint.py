"""A weighted sum of losses: one backward pass, and one step of one optimizer."""

from collections.abc import Callable, Mapping
from inspect import Parameter
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer
from rlrun.core.errors import ConfigError, did_you_mean, require_number
from rlrun.training.callback import EVENTS, Callback, Hook
from rlrun.training.metrics import detached
from rlrun.training.update import of_loss

ERRORS = "element_errors"  # an output: of the first term, for priorities


class JointLoss(LossCallback):
    """Step one optimizer on the networks of several losses, by their weighted sum.

        L = Σ_k w_k mean(L_k)

    The gradient of each term reaches the networks of all terms. A term reads outputs of earlier terms with their
    gradients; other callbacks get them detached. Names of parameters begin with their term's name, for the groups of
    `rlrun.nn.grouped`. Priorities are the errors of the first term. The loss of each term is logged under its name.

    Args:
        optimizer: a partial, completed with the parameters of all networks.
        terms: losses by name, each with `optimizer: null`; `data_group`, clipping and the like are settings of the sum.
            A schedule of the first term is that of the sum, if it has none.
        loss_weight: of terms, by name (default 1), times each term's own. A number is the weight of the sum.
        options: of `LossCallback`.

    Raises:
        ConfigError: a term is not a loss, has an optimizer, a pace or hooks of its own, or a weight names no term.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        terms: Mapping[str, LossCallback],
        loss_weight: Mapping[str, float] | float | None = None,
        **options: Any,
    ) -> None:
        self.terms: dict[str, LossCallback] = dict(terms)  # type: ignore[assignment]
        self.term = SimpleNamespace(**self.terms)  # the root of paths of buffers
        for position, (name, term) in enumerate(self.terms.items()):
            _check(name, term, scheduled=position == 0)
            term.name = name
        if not self.terms:
            raise ConfigError("terms: a JointLoss needs losses by name")
        by_name = dict(loss_weight) if isinstance(loss_weight, Mapping) else {}
        for name, factor in by_name.items():
            if name not in self.terms:
                raise ConfigError(f"loss_weight.{name}: there is no such term{did_you_mean(name, self.terms)}")
            require_number(f"loss_weight.{name}", factor, 0)
        self.loss_weight = {name: by_name.get(name, 1.0) * term.scale for name, term in self.terms.items()}
        if loss_weight is not None and not isinstance(loss_weight, Mapping):
            options["loss_weight"] = loss_weight
        self._first = next(iter(self.terms.values()))
        options["schedule"] = options.get("schedule") or self._first.schedule
        super().__init__(nn.ModuleDict({name: term.network for name, term in self.terms.items()}), optimizer, **options)
        self.provides = tuple(dict.fromkeys(name for term in self.terms.values() for name in term.provides))
        self._reads: dict[str, list[tuple[str, str]]] = {}  # term -> (argument, its name in the batch)
        self._wanted: dict[str, bool] = {}  # names that terms read from the batch -> whether a term requires them
        provided: set[str] = set()
        for name, term in self.terms.items():
            arguments = Callback.hook_of(term.loss, "loss").arguments
            self._reads[name] = [(argument, term.inputs.get(argument, argument)) for argument in arguments]
            for argument, read in self._reads[name]:
                if read not in provided:
                    self._wanted[read] = self._wanted.get(read, False) or arguments[argument].default is Parameter.empty
            provided |= set(term.provides)
        self._wanted.setdefault("weight", False)
        self._required = [name for name, needed in self._wanted.items() if needed]

    def loss(self, *values: Any, **optional: Any) -> LossResult:
        """Return the weighted sum, a scalar; values: of required arguments, in order, if they are not keywords."""
        inputs = dict(zip(self._required, values, strict=bool(values))) | optional
        weight = inputs.get("weight")
        total: Any = 0.0
        outputs: dict[str, Any] = {}
        buffers: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        for name, term in self.terms.items():
            reads = self._reads[name]
            elements, own, shown = of_loss(term.loss(**{key: inputs[read] for key, read in reads if read in inputs}))
            loss = term.weighted_mean(elements, None if any("weight" in pair for pair in reads) else weight)
            total = total + self.loss_weight[name] * loss
            metrics |= {f"loss/{name}": loss, **shown}
            if term is self._first and term.watched:
                outputs[ERRORS] = term.error(elements.detach(), own)
            inputs |= own
            outputs |= {key: detached(value) for key, value in own.items() if key != "updates"}
            for path, value in own.get("updates", {}).items():
                buffers[f"term.{name}.{path}"] = value
        return total, outputs | ({"updates": buffers} if buffers else {}), metrics

    @property
    def watched(self) -> bool:  # type: ignore[override]
        """True if a callback reads `elements`, here the errors of the first term."""
        return self._first.watched

    @watched.setter
    def watched(self, value: bool) -> None:
        self._first.watched = value

    def error(self, elements: Tensor, outputs: Mapping[str, Any]) -> Tensor:
        errors: Tensor = outputs[ERRORS]
        return errors

    def hook(self, event: str) -> Hook | None:
        if event != "backward":
            return super().hook(event)
        arguments = {
            name: Parameter(name, Parameter.KEYWORD_ONLY, default=Parameter.empty if needed else None)
            for name, needed in self._wanted.items()
        }
        return Hook(self.loss, arguments, "loss", ("learning_rate",))

    def note(self, path_of: Callable[[object], str]) -> str:
        paths = dict.fromkeys(path_of(term.network) for term in self.terms.values())
        total = " + ".join(f"{self.loss_weight[name]:g} × {name}" for name in self.terms)
        return super().note(lambda part: " and ".join(paths)) + f" by {total}"


def with_terms(callback: Callback) -> list[Callback]:
    """Return a callback, followed by its terms if it is a joint loss."""
    return [callback, *(callback.terms.values() if isinstance(callback, JointLoss) else ())]


def replaced(callbacks: Mapping[str, Callback | None], *, by: Mapping[str, Callback]) -> dict[str, Callback | None]:
    """Return callbacks in their order, some of them replaced, such as a loss by the joint loss that contains it.

    Args:
        callbacks: by name.
        by: the replacements, by the names of the callbacks they replace.

    Raises:
        ConfigError: there is no callback of such a name.
    """
    for name in by:
        if callbacks.get(name) is None:
            raise ConfigError(f"by.{name}: there is no callback of that name{did_you_mean(name, callbacks)}")
    return {name: by.get(name, callback) for name, callback in callbacks.items()}


def _check(name: str, term: Any, *, scheduled: bool) -> None:
    """Refuse a term that is not a loss, or has settings of the joint loss; scheduled: it may have a schedule."""
    place = f"terms.{name}"
    if not isinstance(term, LossCallback):
        raise ConfigError(f"{place}: wanted a loss, a rlrun.callbacks.LossCallback; got {term!r}")
    if term.optimizer is not None or term.by_turns:
        raise ConfigError(f"{place}.optimizer: the joint loss steps all terms; give the term optimizer: null")
    if term.every != 1 or term.max_grad_norm is not None or not (scheduled or term.schedule is None):
        raise ConfigError(f"{place}: every, max_grad_norm and schedule are settings of the joint loss")
    known = ("backward", *getattr(term, "watches", ()))
    hooks = [event for event in EVENTS if event not in known and term.hook(event) is not None]
    if hooks or type(term).backward is not LossCallback.backward:
        raise ConfigError(f"{place}: a {type(term).__name__} does more than a loss ({', '.join(hooks) or 'backward'})")
