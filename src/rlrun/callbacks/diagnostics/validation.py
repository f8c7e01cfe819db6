"""Periodic validation by held-out data, for learning that has no returns."""

import inspect
import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.checkpointer import Checkpointer
from rlrun.callbacks.logging.logger import Logger
from rlrun.callbacks.losses.loss import LossCallback
from rlrun.callbacks.schedule import following
from rlrun.collect.evaluate import restored_generators
from rlrun.collect.modes import evaluation_mode
from rlrun.collect.statistics import saved_numbers
from rlrun.core.clock import Spent
from rlrun.core.errors import ConfigError, did_you_mean, require_one_of
from rlrun.core.spaces import Space, row_count
from rlrun.core.typing import Batch, Tree
from rlrun.memory.loaders.dataset import DatasetLoader
from rlrun.nn import flatten
from rlrun.training.callback import Callback, Stop
from rlrun.training.update import of_loss

Metric = Callable[..., Tensor] | LossCallback
Direction = Literal["maximize", "minimize"]
OUTPUT = "output"


class Validation(Callback):
    """Evaluate networks on held-out data periodically, and once at the end.

    Every validation reads all rows in their order, without gradients, in evaluation mode. Adaptors learn and draw
    nothing. Random generators and modes are restored, so training is the same without it.

    A metric is a function whose arguments name columns, or `output`, the network's output. It returns a value of each
    row, [B, …]. Its method `reduce`, if it has one, makes one number of all rows [N, …]; the default is their mean.
    A `LossCallback` stands for its loss.

    Args:
        loader: of the held-out data.
        metrics: by name; they are logged as `validation/NAME`.
        objective: the metric for the best checkpoint, `stop.validation` and searches.
        direction: of the objective.
        every: environment steps (updates, where there is no collector); 0 or None = never, not even at the end.
        network: returns `output`; None = no metric asks for it.
        input: the column that the network gets; or several, by the network's names for them.
        seed: of the networks' random numbers; each validation draws the same.
        logger: gets `validation/…` at once.
        checkpointer: keeps the best.

    Raises:
        ConfigError: there is no such objective, or a metric asks for a column that is not there.
    """

    cycle = 1

    def __init__(
        self,
        loader: DatasetLoader,
        metrics: Mapping[str, Metric],
        *,
        objective: str,
        every: int | None,
        direction: Direction = "maximize",
        network: nn.Module | None = None,
        input: str | Mapping[str, str] = "observation",
        seed: int = 0,
        logger: Logger | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        self.loader = loader
        self.network = network
        self.input = input
        self.functions = {name: metric for name, metric in metrics.items() if metric is not None}
        require_one_of("validation.objective", objective, self.functions)
        require_one_of("validation.direction", direction, ("maximize", "minimize"))
        self.objective = objective
        self.sign = 1.0 if direction == "maximize" else -1.0
        self.every = every or 0
        self.seed = seed
        self.logger = logger
        self.checkpointer = checkpointer
        (columns,) = loader.names().values()
        known = columns if network is None else (*columns, OUTPUT)
        self._asked = {name: _asked(f"metrics.{name}", metric, known) for name, metric in self.functions.items()}
        if network is not None:
            _require("input", [input] if isinstance(input, str) else [*input.values()], columns)
        self.last: dict[str, float] | None = None
        self.best: dict[str, float] | None = None
        self._next = following(0, self.every)
        self._at: tuple[int | None, int] | None = None  # environment step and update of the newest validation
        self._due = self._newest()  # results of the newest validation that was due
        self._newest_update: tuple[int | None, int] = (None, 0)
        self._spent = Spent()

    @property
    def value(self) -> float:
        """The objective at the newest validation; NaN before the first."""
        return math.nan if self.last is None else self.last[self.objective]

    def reaches(self, limit: float) -> bool:
        """Return True if the newest validation is as good as a limit."""
        return self.sign * self.value >= self.sign * limit

    def begin_training(self, update: int = 0, step: int | None = None, spent: Spent | None = None) -> None:
        self._newest_update = (step, update)
        self._spent = self._spent if spent is None else spent

    def end_cycle(self, update: int, step: int | None = None) -> None:
        clock = update if step is None else step
        self._newest_update = (step, update)
        if clock >= self._next:
            self._next = following(clock, self.every)
            self._validate(step, update)
            self._due = self._newest()

    def end_training(self, error: BaseException | None) -> None:
        step, update = self._newest_update
        ended_well = update > 0 and (error is None or type(error) is Stop)
        if self.every and ended_well and self._at != self._newest_update:
            self._validate(step, update, final=True)

    def _validate(self, step: int | None, update: int, *, final: bool = False) -> None:
        with self._spent.during("evaluate"):
            self.last = self.measure()
        self._at = (step, update)
        if self.logger is not None:
            record = {f"validation/{name}": value for name, value in self.last.items()}
            self.logger.write(step, update, record, counted=not final)
        if self.checkpointer is not None:
            self.checkpointer.evaluation = {"env_steps": step or 0, "objective": self.value, **self.last}
        if math.isnan(self.value) or (self.best is not None and not self.reaches(self.best[self.objective])):
            return  # of equal ones the later is the best
        self.best = dict(self.last)
        if self.checkpointer is not None:
            self.checkpointer.mark_best(update if step is None else step, update, final=final)

    @torch.no_grad()
    def measure(self, network: Callable[[Tree], Any] | None = None) -> dict[str, float]:
        """Return each metric of the current networks, the objective first; `network` replaces the own one."""
        network = self.network if network is None else network
        values: dict[str, list[Tensor]] = {name: [] for name in self.functions}
        with restored_generators(), evaluation_mode(*self._networks()):
            torch.manual_seed(self.seed)
            for batch in self.loader.once():
                for name, value in self._values(batch, network).items():
                    values[name].append(value)
        reduce = {name: getattr(metric, "reduce", torch.mean) for name, metric in self.functions.items()}
        results = {name: float(reduce[name](torch.cat(parts).double())) for name, parts in values.items()}
        return {self.objective: results[self.objective], **results}

    def rows(self, batch: Batch) -> Tree:
        """Return the network's input in a batch."""
        if isinstance(self.input, str):
            return batch[self.input]
        return {name: batch[column] for name, column in self.input.items()}

    def _values(self, batch: Batch, network: Callable[[Tree], Any] | None) -> dict[str, Tensor]:
        columns = batch if network is None else {**batch, OUTPUT: network(self.rows(batch))}
        values = {}
        for name, metric in self.functions.items():
            function = metric.loss if isinstance(metric, LossCallback) else metric
            result = function(**{argument: columns[column] for argument, column in self._asked[name].items()})
            value = of_loss(result)[0]
            values[name] = value.expand(row_count(batch)) if value.dim() == 0 else value
        return values

    def _networks(self) -> list[Any]:
        """Return the parts that may have an evaluation mode: the network, and attributes of metrics."""
        parts = [
            (metric, *getattr(metric, "__dict__", {}).values(), *getattr(metric, "keywords", {}).values())
            for metric in self.functions.values()
        ]
        return [self.network, *chain.from_iterable(parts)]

    def note(self, path_of: Callable[[object], str]) -> str:
        rows = f"{', '.join(self.functions)} of {len(self.loader):,} rows"
        return f"{rows} every {self.every:,} updates" if self.every else "off"

    def _newest(self) -> Any:
        return self.last, self.best, self._at

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the validation at the end, which an extended run never makes."""
        last, best, at = self._due
        return {"last": last, "best": best, "next": self._next if self.every else 0, "at": at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for result in (state["last"], state["best"]):
            if result is not None:
                saved_numbers([result[self.objective], *result.values()])
        self.last, self.best = state["last"], state["best"]
        self._next = (state["next"] or self.every) if self.every else following(0, None)  # `every` may change on resume
        self._at = None if state["at"] is None else tuple(state["at"])
        self._due = self._newest()
        if self.checkpointer is not None and self.last is not None:
            step = 0 if self._at is None else self._at[0] or 0
            self.checkpointer.evaluation = {"env_steps": step, "objective": self.value, **self.last}


def _asked(place: str, metric: Metric, known: tuple[str, ...]) -> dict[str, str]:
    """Return the columns that a metric gets, by argument; one with a default may be absent."""
    function = metric.loss if isinstance(metric, LossCallback) else metric
    renamed, bound = getattr(metric, "inputs", {}), getattr(metric, "keywords", {})
    arguments = {
        renamed.get(name, name): (name, part.default is part.empty)
        for name, part in inspect.signature(function).parameters.items()
        if name not in bound
    }
    _require(place, [column for column, (_, needed) in arguments.items() if needed], known)
    return {name: column for column, (name, _) in arguments.items() if column in known}


def _require(place: str, columns: list[str], known: tuple[str, ...]) -> None:
    for column in columns:
        if column not in known:
            there = f"there are {', '.join(known)}{did_you_mean(column, known)}"
            there += f"; callbacks.validation.{place}=null leaves the metric out" if place != "input" else ""
            raise ConfigError(f"validation.{place}: the held-out data have no '{column}'; {there}")


class Auroc:
    """The mean over classes of the area under the ROC curve, each class against the others.

    Both of two classes have the same area. Classes without a row are left out.
    """

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the log-odds of each class and the label, [B, K + 1]; probabilities near 1 would be equal."""
        scores = output.double()
        log_prob, best = scores.log_softmax(-1), scores.argmax(-1, keepdim=True)
        odds = log_prob - torch.log1p(-log_prob.exp())  # inexact for the best class alone, as it may be near 1
        of_best = scores.gather(-1, best) - scores.scatter(-1, best, -math.inf).logsumexp(-1, keepdim=True)
        return torch.cat([odds.scatter(-1, best, of_best), label.unsqueeze(-1).double()], -1)

    def reduce(self, values: Tensor) -> Tensor:
        """Return the mean area; NaN if all rows have the same label."""
        scores, labels = values[:, :-1], values[:, -1]
        areas = torch.stack([ops.auroc(score, labels == kind) for kind, score in enumerate(scores.unbind(-1))])
        return areas.nanmean()


class SquaredError:
    """The mean squared error [B] over the numbers of a column; pixels are numbers from 0 to 1.

    Args:
        space: of the column `observation`, or of its replacement in `_inputs_`.
    """

    inputs: Mapping[str, str] = {}

    def __init__(self, space: Space) -> None:
        self.space = space

    def __call__(self, output: Tensor, observation: Tree) -> Tensor:
        return (output - flatten(self.space, observation)).square().mean(-1)
