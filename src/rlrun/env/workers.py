"""Environments in worker processes, where their episodes are recorded."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker

from rlrun.core.errors import DataError, RlrunError, describe_error
from rlrun.core.processes import describe_exit, end_with_parent
from rlrun.core.spaces import Space, Spaces, put_rows, take_rows
from rlrun.core.typing import Tree
from rlrun.env.batched import BatchedEnv
from rlrun.env.outputs import Outputs, explained, warn
from rlrun.env.recorded import Abandon, Build, Episode, EpisodeOutcome, EpisodeRecorder, Recorded, StepBlock
from rlrun.env.spaces import empty, from_gymnasium, rewards_of, row_splitter, row_writer
from rlrun.env.stacks import observed
from rlrun.env.vector import Options, Step, close_softly
from rlrun.env.wrapper_state import States, learns_unseen, load_shares, pool, pooled_states, share
from rlrun.env.wrappers import draws_goals

DYING = 2.0  # seconds from the end of a worker's connection to that of its process, which may write a core dump
POLL = 0.1  # seconds between two checks for signals
REMARKS = "rlrun.remarks"  # a key of infos from a worker


class WorkerFailure(Exception):
    """The description of a worker's exception; it begins with `env 3: `."""


class WorkerWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment of a worker, recorded if `recording` is set; the main process calls its methods by name.

    Args:
        build: makes the environment with all its wrappers.
        number: of the environment.
        in_worker: False in the main process, which builds one to read its spaces.
    """

    def __init__(self, build: Build, number: int, *, in_worker: bool) -> None:
        super().__init__(build())
        self.build = build
        self.number = number
        self.in_worker = in_worker
        self.recording = False
        self.episode: tuple[Episode, Options] | None = None  # to play again, with options of resets
        self.steps = -1  # of the episode; -1 before the first one
        self.is_stepped = False
        self.remarked = 0  # remarks sent to the main process

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.recording:
            self.recorder.begin(seed, options)
        result = self.env.reset(seed=seed, options=options)
        value, info = result
        if not self.outputs.begun or info.__class__ is not dict:
            self.outputs.reset(result)
        self.steps = 0
        self.store(value)
        return value, info or {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        result = self.env.step(action)
        value, reward, terminated, truncated, info = result
        outputs = self.outputs
        try:
            self.store(value)
            if terminated or truncated or not self.is_stepped:
                outputs.step(result)
            else:
                outputs.numbers(result)
        except Exception as error:
            cause = outputs.explain(error, result)
            raise DataError(f"{describe_error(cause)} (step {self.steps} of the episode)") from error
        self.is_stepped = True
        if len(outputs.remarks) > self.remarked:  # the main process logs them
            self.remarked = len(outputs.remarks)
            info = {**(info or {}), REMARKS: tuple(outputs.remarks.items())}
        return value, reward, terminated, truncated, info or {}

    @cached_property
    def recorder(self) -> EpisodeRecorder:
        place, spaces = f"env {self.number}", (self.env.observation_space, self.env.action_space)
        observation, action = (from_gymnasium(space, place, action=space is spaces[1]) for space in spaces)
        return EpisodeRecorder(self.env, Spaces(observation, action, self.env_rewards()), self.build)

    @cached_property
    def outputs(self) -> Outputs:
        return Outputs(self.env.observation_space, self.env_rewards())

    @cached_property
    def store(self) -> Callable[[Any], None]:
        """Write an observation into a row, which refuses another shape."""
        space = self.env.observation_space
        return partial(row_writer(space), empty(from_gymnasium(space, "the observation space"), 1), 0)

    def env_wrapper_states(self) -> States:
        """Return the states of wrappers that remember."""
        return pooled_states([self.env])

    def env_load_wrappers(self, states: States, count: int) -> None:
        """Take one of `count` shares of the states."""
        load_shares([self.env], share(states, count))

    def env_learns_unseen(self) -> dict[str, str]:
        """Return the wrappers that seem to learn and offer no state."""
        return learns_unseen(self.env)

    def env_observed(self, place: str) -> Space:
        """Return the observation space with the layouts that wrappers define."""
        return observed(self.env, place)

    def env_rewards(self) -> int:
        """Return the number of numbers in a reward; 0 = a scalar."""
        return rewards_of(self.env, "environment")

    def env_draws_goals(self) -> bool:
        """Return True if a wrapper draws goals."""
        return draws_goals(self.env)

    def env_written(self) -> dict[str, Any]:
        """Return the recorded beginning of the open episode."""
        return self.recorder.state_dict()

    def env_resume(self) -> EpisodeOutcome:
        """Play the episode again."""
        assert self.episode is not None
        self.steps = len(self.episode[0].actions or ())
        outcome = self.recorder.resume(*self.episode)
        self.env, self.episode = self.recorder.env, None
        return outcome

    def close(self) -> None:
        try:
            close_softly(f"env {self.number}", self.env.close)
        finally:
            # The pipe to the main process broke, so that process has ended and cannot receive an error.
            if self.in_worker and isinstance(sys.exc_info()[1], OSError | EOFError):
                os._exit(1)


def _worker(build: Build, number: int, parent: int, in_main_thread: bool) -> gymnasium.Env[Any, Any]:
    """Build an environment in a worker, which ignores signals to its parent's process group.

    parent: id of that process; in_main_thread: whether its main thread started the worker.
    """
    in_worker = os.getpid() != parent
    if in_worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)  # only the parent handles signals of a terminal or a scheduler to the whole group
        if in_main_thread:
            end_with_parent()
    return WorkerWrapper(build, number, in_worker=in_worker)


def _work(index: int, build: Any, pipe: Any, parent_pipe: Any, memory: Any, errors: Any, *rest: Any) -> None:
    """Run the process of an environment; send failures as text, as not every exception can be pickled."""

    def put(failure: tuple[int, Any, BaseException, str]) -> None:
        _, _, error, trace = failure
        errors.put((index, WorkerFailure, f"env {index}: {describe_error(error)}", trace))

    text_errors: Any = SimpleNamespace(put=put)
    try:
        _async_worker(index, build, pipe, parent_pipe, memory, text_errors, *rest)
    except (Exception, SystemExit) as error:  # raised by the constructor, or a request to exit
        put((index, None, error, traceback.format_exc()))
        pipe.send((None, False))


class WorkerEnv(Recorded, BatchedEnv):
    """Steps Gymnasium environments in worker processes.

    build: makes one environment; count: envs; place: the environment's name in messages.
    """

    vector: AsyncVectorEnv

    def __init__(
        self,
        build: Build,
        count: int,
        *,
        reset_options: dict[str, Any] | None = None,
        seed_episodes: bool = True,
        place: str = "environment",
    ) -> None:
        started_by = os.getpid(), threading.current_thread() is threading.main_thread()
        workers = [partial(_worker, build, env_index, *started_by) for env_index in range(count)]
        self._place, self._closed, self.vector = place, False, AsyncVectorEnv.__new__(AsyncVectorEnv)
        # `copy=False`: the reader copies anyway.
        begin = partial(AsyncVectorEnv.__init__, copy=False, autoreset_mode=AutoresetMode.DISABLED, worker=_work)
        self._call("start", lambda: begin(self.vector, workers))
        super().__init__(self.vector, reset_options=reset_options, place=place)
        self.remarked = set()
        self.seed_episodes = seed_episodes
        self._split = row_splitter(self.vector.single_action_space)
        self._block = StepBlock(self.spaces, count)
        self._is_replayed = False  # True from a replay to the next step

    def _observed(self, place: str) -> Space:
        return self._call("start", lambda: self.vector.call("env_observed", place))[0]  # type: ignore[no-any-return]

    def _rewards(self) -> int:
        return int(self._call("start", lambda: self.vector.call("env_rewards"))[0])

    def record(self) -> None:
        if not self._recording:
            self._call("record", lambda: self.vector.set_attr("recording", True))
        super().record()

    def step(self, action: Tree) -> Step:
        if self._action_log is not None:
            self._action_log.note(action)
        self._is_replayed = False
        step = super().step(action)
        if self._action_log is not None:
            copied = self._block.advance()
            put_rows(copied.observation, slice(None), step.observation)
            copied.reward[:] = step.reward
        return step

    def _check(self, raw: Any, info: Any) -> None:
        """Log the remarks of workers, which check the outputs."""
        for remarks in info.pop(REMARKS, ()):
            warn(self._place, dict(remarks or ()), self.remarked)
        info.pop(f"_{REMARKS}", None)

    def _reset(self, seed: Any, options: dict[str, Any] | None) -> Tree:
        everyone = np.ones(self.num_envs, np.bool_)
        chosen = (options or {}).get("reset_mask", everyone)
        before = self._next
        observation = super()._reset(seed, options)
        if self._is_replayed:  # the workers' shared memory lacks the observations of other replays
            put_rows(observation, ~chosen, take_rows(before, ~chosen))
        self._note_begin(np.flatnonzero(chosen).tolist(), observation)
        return observation

    def _draws_goals(self) -> bool:
        return bool(self._call("weigh_goals", lambda: self.vector.call("env_draws_goals"))[0])

    def live_wrappers(self) -> States:
        return pool(self._call("state_dict", lambda: self.vector.call("env_wrapper_states")))

    def load_wrappers(self, states: States) -> None:
        self._call("load_state_dict", lambda: self.vector.call("env_load_wrappers", states, self.num_envs))

    def learns_unseen(self) -> dict[str, str]:
        unseen: dict[str, str] = self._call("start", lambda: self.vector.call("env_learns_unseen"))[0]
        return unseen

    def close(self) -> None:
        if not self._closed:
            self._keep_last()
            self._closed = True
            with suppress(EOFError, OSError):  # a worker died before it could close its environment
                self.vector.close(timeout=5)
            self._end_workers()

    def _call(self, what: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            if not hasattr(self.vector, "processes"):  # the constructor failed
                raise
            self._closed = True
            if isinstance(error, WorkerFailure):
                raise RlrunError(f"{self._place}: {what} failed in {explained(what, str(error))}") from error
            cause = self._exit_of_worker() if isinstance(error, EOFError | OSError) else None
            cause = cause or f"a worker failed: {describe_error(error)}"
            raise RlrunError(f"{self._place}: {what} failed: {cause}") from error
        finally:
            if self._closed and hasattr(self.vector, "processes"):
                self._end_workers()

    def _started(self) -> list[Any]:
        return [process for process in self.vector.processes if process.pid is not None]

    def _exit_of_worker(self) -> str | None:
        """Return a description of a worker that has ended or is ending; None if all are running."""
        started = self._started()
        ready = wait([process.sentinel for process in started], timeout=DYING)
        ended = [process for process in started if process.sentinel in ready]
        for process in ended:
            process.join(DYING)  # it has closed its files, but may still be running
        if not ended:
            return None
        first = min(ended, key=lambda process: process.exitcode == 0)  # others may exit by themselves after it
        return f"the process of env {self.vector.processes.index(first)} is gone: {describe_exit(first.exitcode)}"

    def _end_workers(self) -> None:
        """Kill the processes that are still running."""
        self.vector.closed = True
        for process in self._started():
            process.kill()
        for pipe in self.vector.parent_pipes:
            if pipe is not None:
                pipe.close()
        for process in self._started():
            process.join()

    def _written(self) -> list[dict[str, Any]]:
        return list(self._call("state_dict", lambda: self.vector.call("env_written")))

    def _resume(self, episodes: Sequence[Episode], abandon: Abandon) -> list[EpisodeOutcome]:
        self._next = empty(self.spaces.observation, self.num_envs)
        self._is_replayed = True
        replays = [(episode, self._options) for episode in episodes]
        self._call("resume", lambda: self.vector.set_attr("episode", replays))
        self._call("resume", lambda: self.vector.call_async("env_resume"))
        for pipe in self.vector.parent_pipes:
            while abandon is not None and not pipe.poll(POLL):
                abandon()
        return list(self._call("resume", self.vector.call_wait))
