"""A collector that steps its environment in parallel to learning."""

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
import torch

from rlrun.collect.agents import Agent
from rlrun.collect.collector import Collector, forget_returns, require_finite
from rlrun.collect.unroll import Began, Go, Made, Refresh, UnrollRecipe, WeighGoals, counted, freeze, unroll
from rlrun.core.clock import Spent
from rlrun.core.errors import ConfigError, RequestError, WorkerError, require_one_of
from rlrun.core.typing import Array, Tree
from rlrun.core.worker import GRACE, Failed, Inbox, Worker
from rlrun.env import Env
from rlrun.memory import Rollout, Table

KINDS = ("thread", "process")
POLL = 0.1  # seconds between two checks for signals and for the worker's end

_messages = logging.getLogger("rlrun")


class ThreadWorker:
    """A worker like `Worker`, in a thread of this process."""

    def __init__(self, recipe: UnrollRecipe) -> None:
        self.messages, self._jobs = Inbox(), Inbox()
        # The context of this thread, as an environment may load a policy from another run.
        run = partial(copy_context().run, self._run, recipe)
        self._thread = threading.Thread(target=run, name="unroll", daemon=True)
        self._thread.start()

    def _run(self, recipe: UnrollRecipe) -> None:
        try:
            unroll(recipe, self._jobs, lambda message: self.messages.put(copy.deepcopy(message)))
        finally:
            self.messages.close()

    def send(self, job: Any) -> None:
        self._jobs.put(job)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def cause(self) -> str:
        return "it ended"

    def close(self) -> bool:
        self._jobs.close()
        self._thread.join(GRACE)
        return not self._thread.is_alive()


class AsyncCollector(Collector):
    """A collector whose worker steps the environment up to `queue` steps ahead of learning.

    `collect` returns as soon as enough steps are stored. The worker acts by a copy of the agent that is replaced every
    `refresh` updates. So a policy may be `refresh` updates and `queue` steps old, and a rollout stores the log_prob of
    the acting policy. Steps count when they are stored.

    A resumed run begins new episodes, as the state of the worker is unknown. Steps in the queue are made again.

    Args:
        kind: of worker, thread or process.
        queue: environment steps that the worker may be ahead, all envs together.
        refresh: updates between two copies of the agent; 0 = only at the start and by `push`.
        interval: seconds from the beginning of a step to that of the next one, at least.
        max_unroll: most environment steps that `take` stores at once; None = all that are ready.
        options: of `Collector`.

    Raises:
        ConfigError: a setting is wrong, or the agent or the environment cannot be sent to the worker.
        WorkerError: in `collect` and `take`, if the worker died or failed; all its earlier steps are stored.
    """

    def __init__(
        self,
        env: Env,
        agent: Agent,
        table: Table,
        *,
        kind: str = "process",
        queue: int = 200,
        refresh: int = 10,
        interval: float = 0.0,
        max_unroll: int | None = None,
        **options: Any,
    ) -> None:
        require_one_of("async.kind", kind, KINDS)
        if kind == "process" and env.maker is None:
            raise ConfigError(
                f"async.kind=process: '{env.name}' cannot be made in another process; only kind=thread can use it"
            )
        least = {"queue": env.num_envs, "refresh": 0, "interval": 0, "max_unroll": 1}
        for name, value in {"queue": queue, "refresh": refresh, "interval": interval, "max_unroll": max_unroll}.items():
            if value is not None and value < least[name]:
                raise ConfigError(f"async.{name} must be at least {least[name]}, not {value}")
        if isinstance(table, Rollout) and "log_prob" not in table.names():
            add_log_prob = getattr(agent, "add_log_prob", None)
            if add_log_prob is None:
                name = type(agent).__name__
                raise ConfigError(
                    f"async: a rollout of older policies needs their log_prob, which a {name} does not give"
                )
            add_log_prob()
            table.widen({"log_prob": {}})
        super().__init__(env, agent, table, **options)
        self.kind = kind
        self.queue = queue
        self.refresh = refresh
        self.interval = interval
        self.max_unroll = max_unroll
        self.worker: Worker | ThreadWorker | None = None
        self._allowed: Go | None = None  # the worker's newest job of stepping
        self._update = 0
        self._acted = 0  # update after which the newest stored action was chosen
        self._following: Tree = None  # next observations after the newest step, where an episode ended

    def begin_training(
        self, callbacks: Mapping[str, Any] | None = None, spent: Spent | None = None, update: int = 0
    ) -> dict[str, int]:
        self._connect(callbacks, spent)
        self._update = self._acted = update
        if self.observation is not None:
            self.approximate = f"every env: its environment ran ahead of learning ({self.kind}); new episodes begin"
            _messages.warning("resume: approximate: %s", self.approximate)
            self._break_off(np.arange(self.env.num_envs))
            self.seeds.episode += 1
        else:
            self.seeds.episode[:] = self.steps
            for table in (self.table, *(second.table for second in self._seconds)):
                forget_returns(table, np.arange(self.env.num_envs))
        self.state = self._initial
        make = (lambda: self.env) if self.kind == "thread" else self.env.maker
        assert make is not None
        wrappers = self.env.wrapper_states()
        if self.kind != "thread":
            self.env.close()  # the worker has its own
        recipe = UnrollRecipe(
            make,
            copy.deepcopy(self.random),  # the main process's agent gets its state at each step
            seeds=copy.deepcopy(self.seeds),
            steps=self.steps,
            interval=self.interval,
            threads=torch.get_num_threads(),
            own=self.kind != "thread",
            executed=self.executed,
            wrappers=wrappers,
            goals=None if self.goal_generator is None else self.goal_generator.probabilities(),
        )
        self.env.wrappers_elsewhere = wrappers
        self.executed = None  # the worker replaces actions itself
        self._allowed = None
        try:
            self.worker = ThreadWorker(recipe) if self.kind == "thread" else Worker(unroll, recipe)
        except ConfigError as error:
            raise ConfigError(f"{error}; async.kind=thread") from error
        self.push()
        return {"step": self.steps}

    def end_batch(self, update: int) -> None:
        self._update = update
        if self.refresh and update % self.refresh == 0:
            self.push()

    def end_training(self, error: BaseException | None) -> dict[str, int]:
        if self.worker is None:
            return super().end_training(error)
        if self.worker.close():
            self.env.end()
        else:
            _messages.warning("the environment did not return from a step; its thread ends with the process")
        return {"step": self.steps}

    def push(self) -> None:
        """Send the current agent to the worker, for its next steps."""
        self._working().send(Refresh(freeze(self.agent), self._update))

    def collect(self, steps: int, random: bool = False) -> int:
        self._require_stored(random)
        before, target = self.steps, self.steps + steps
        while self.steps < target:
            if self._signals.requested is not None:
                self._signals.check()
            self._allow(target if random else None)
            with self._spent.during("env"):  # waiting for the worker
                message = self._next()
            self._store_message(message)
        return self.steps - before

    def take(self) -> int:
        """Store the steps that are ready, up to `max_unroll`, without waiting; return their number."""
        if self._signals.requested is not None:
            self._signals.check()
        before, rows = self.steps, self._working().messages
        most = np.inf if self.max_unroll is None else self.max_unroll
        self._allow(None)
        while self.steps - before < most and (message := rows.receive(0.0)) is not None:
            self._store_message(message)
        if rows.closed and rows.empty():
            self._store_message(self._next())
        self._allow(None)
        return self.steps - before

    def _working(self) -> Worker | ThreadWorker:
        if self.worker is None:
            raise RequestError("callbacks.collector is missing: the loader's collector must be among the callbacks")
        return self.worker

    def _allow(self, target: int | None) -> None:
        """Raise the limit of the worker's steps; random ones end exactly at `target`."""
        ahead = self.steps + self.queue
        go = Go(ahead if target is None else min(ahead, target), target is not None)
        if self._allowed is not None and self._allowed.random == go.random:
            more = go.limit - self._allowed.limit
            if more <= 0 or (more < self.queue // 4 and go.limit != target):
                return
        self._allowed = go
        self._working().send(go)

    def _next(self) -> Any:
        """Return the next message of the worker.

        Raises:
            WorkerError: it has ended.
            Stop: a signal came.
        """
        worker = self._working()
        while (message := worker.messages.receive(POLL)) is None:
            self._signals.check()
            if worker.messages.closed or not worker.alive():
                if (message := worker.messages.receive(GRACE)) is not None:  # its last messages may come late
                    return message
                raise WorkerError(f"collector: its {self.kind} is gone: {worker.cause()}")
        return message

    def _store_message(self, message: Began | Made | Failed) -> None:
        if isinstance(message, Failed):
            raise WorkerError(f"collector: its {self.kind} failed: {message.line}") from RuntimeError(message.trace)
        if isinstance(message, Began):
            require_finite(message.observation, "observation", self.steps)
            self.observation = message.observation
            return
        self._following, self._acted = message.following, message.update
        if message.wrappers is not None:
            self.env.wrappers_elsewhere = message.wrappers
        self._store_response(message.response, message.step)
        if message.agent is not None and counted(self.agent) is not None:
            self.agent.load_state_dict(message.agent)  # type: ignore[attr-defined]
        if message.random is not None:
            self.random.load_state_dict(message.random)

    def _weigh_goals(self) -> None:
        if self.goal_generator is not None:
            self._working().send(WeighGoals(self.goal_generator.probabilities()))

    def _restart(self, episode_end: Array) -> Tree:
        return self._following

    @property
    def metrics(self) -> Mapping[str, Any]:
        metrics = {**super().metrics}
        if self.worker is not None:
            metrics["async/queued"] = self.worker.messages.qsize() * self.env.num_envs
            metrics["async/age"] = self._update - self._acted  # of the newest stored action, in updates
        return metrics

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"{super().note(path_of)}, up to {self.queue} steps ahead ({self.kind})"
