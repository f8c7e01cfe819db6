"""The training loop: it calls the hooks of eight events, and is independent of reinforcement learning."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, Protocol

from rlrun.core.clock import Spent
from rlrun.core.errors import RlrunError, WiringError
from rlrun.core.typing import Groups
from rlrun.training.callback import Callback, SkipBatch, Stop, derive
from rlrun.training.plan import DataGroup, Plan, State, plan
from rlrun.training.update import Compiler, Update

UPDATE = ("begin_batch", "backward", "end_batch")


class Loader(Protocol):
    """Yields data groups; owns pacing, warm-up and epochs."""

    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Names in each data group, known before the first step."""

    def __iter__(self) -> Iterator[Groups]: ...


class Trainer:
    """Call every callback's hooks, for each batch that the loader yields.

    The plan is made here, so wiring mistakes are reported before anything runs. `state` has further arguments of hooks:
    `update` (number of the current update, from 1), `callbacks`, `loader`, `run_dir`, `config`, `parts`,
    `spent` (seconds by kind of work), `batches` (of the update, by group), `group_updates` (updates of each data group;
    empty if there is only one), and all names that callbacks add to it.

    Args:
        callbacks: by name.
        loader: of batches.
        around: a context around `begin_batch`, `backward` and `end_batch` of each batch; acting, environment steps and
            evaluations are outside of it.
        fuse: compiles successive hooks of the update; None = nothing is compiled.

    Raises:
        WiringError: an entry is not a callback, or a hook requests a name that nobody provides.
    """

    def __init__(
        self,
        callbacks: Mapping[str, Callback],
        loader: Loader,
        around: AbstractContextManager[object] = nullcontext(),  # noqa: B008, as it holds nothing
        fuse: Compiler | None = None,
    ) -> None:
        self.callbacks = {name: callback for name, callback in callbacks.items() if callback is not None}
        for name, callback in self.callbacks.items():
            if not isinstance(callback, Callback):
                raise WiringError(f"callbacks.{name} is of type {type(callback).__name__}{derive(type(callback))}")
        self.loader = loader
        self.around = around
        names = loader.names()
        self.state = State(
            update=0,
            callbacks=self.callbacks,
            loader=loader,
            spent=Spent(),
            batches={},
            group_updates=dict.fromkeys(names, 0) if len(names) > 1 else {},
            run_dir=None,  # the experiment sets these three; None = no files
            config={},
            parts={},  # config path -> object with a state_dict
        )
        self.plan: Plan = plan(self.callbacks, names, self.state)
        inner = getattr(loader, "loader", loader)  # a prefetch wraps one
        self.plan.rates = inner.rates() if hasattr(inner, "rates") else {}
        self.update = Update([step for event in UPDATE for step in self.plan.steps[event]], fuse)
        self._reached: str | None = None  # callback whose `end_cycle` is running or was interrupted

    def train(self, ready: Callable[[], None] | None = None) -> State:
        """Run until the loader ends or a hook raises `Stop`; `end_training` is called also after errors.

        A restored update may have stopped between its `end_cycle` hooks, by a `Stop` or because the state was saved
        there. The remaining hooks are called first.

        Args:
            ready: called after all `begin_training` hooks; may raise `Stop`, too.

        Returns:
            The run's state; `state["stopped_by"]` is the `Stop` that ended it, or None.
        """
        error: BaseException | None = None
        owner = os.getpid()
        Spent.current = self.state["spent"]
        try:
            for call in self.plan.calls("restore_state", "begin_training"):
                call({}, self.state)
            if ready is not None:
                ready()
            self._finish_update()
            self._loop()
        except BaseException as raised:
            if os.getpid() != owner:  # a part's code forked: only the parent process may end the run
                raise
            error = raised
            _note_hook(error)
        self.state["stopped_by"] = error
        try:
            self._end(error)
        finally:
            Spent.current = None
        if error is not None and not isinstance(error, Stop):
            raise error
        return self.state

    def _loop(self) -> None:
        state, batches = self.state, iter(self.loader)
        update_groups, spent, counts = self.update, state["spent"], state["group_updates"]
        begin, end = self.plan.cycles("begin_cycle"), self.plan.cycles("end_cycle")
        verified = False
        begun = perf_counter()
        for batch in batches:
            loaded = perf_counter()
            spent["load"] += loaded - begun
            groups: dict[str, Any] = {name: DataGroup(group, state) for name, group in batch.items()}
            if not verified:
                self.plan.verify(groups)
                verified = True
            update = state["update"] = state["update"] + 1
            state["batches"] = groups
            if counts:
                for name in groups:
                    counts[name] += 1
            for _, cycle, call in begin:
                if (update - 1) % cycle == 0:
                    call(groups, state)
            try:
                with self.around:
                    update_groups(groups, state)
            except SkipBatch:
                pass
            spent["update"] += perf_counter() - loaded
            for name, cycle, call in end:
                if update % cycle == 0:
                    self._reached = name
                    call(groups, state)
            self._reached = None
            begun = perf_counter()

    def _finish_update(self) -> None:
        """Call the remaining `end_cycle` hooks of a restored update, except those that read its lost batch."""
        state, resumed = self.state, False
        for step in self.plan.steps["end_cycle"] if self._reached is not None else ():
            resumed = resumed or step.callback.name == self._reached
            due = state["update"] % step.callback.cycle == 0
            if resumed and due and state.keys() >= {*step.required.values()}:
                self._reached = step.callback.name
                step.call()({step.callback.data_group or "": DataGroup({}, state)}, state)
        self._reached = None

    def _end(self, error: BaseException | None) -> None:
        """Call all `end_training` hooks; then raise the first failure."""
        failure: BaseException | None = None
        for step in self.plan.steps["end_training"]:
            try:
                # names are missing if the start failed
                wanted = {**step.required, **step.optional}.items()
                named = {argument: self.state[name] for argument, name in wanted if name in self.state}
                self.state.update(step.method(error, **named) or {})
            except BaseException as raised:
                _note_hook(raised)
                failure = failure or raised
        if failure is None or not (error is None or isinstance(error, Stop)):
            return
        if not isinstance(failure, Stop):
            raise failure
        self.state["stopped_by"] = failure  # a signal while hooks cleaned up

    def state_dict(self) -> dict[str, Any]:
        counts = dict(self.state["group_updates"])
        return {"update": self.state["update"], "reached": self._reached, "group_updates": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state["update"], self._reached = state["update"], state["reached"]
        self.state["group_updates"].update(state["group_updates"])


def _note_hook(error: BaseException) -> None:
    """Add a note with the callback's hook to an error, from the first such frame in its traceback.

    Errors of rlrun name the place in their message.
    """
    if isinstance(error, RlrunError):
        return
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        if isinstance(owner, Callback):
            error.add_note(f"in callbacks.{owner.name}.{frame.f_code.co_name}")
            return
