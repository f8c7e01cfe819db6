"""The loop of a worker that steps an environment ahead of learning, and processes jobs between two steps."""

from __future__ import annotations

import io
import pickle
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.collect.agents import Agent, RandomAgent, Response, initial_state, restarted, state_after
from rlrun.collect.collector import restart_by_seeds
from rlrun.collect.executed import Executed
from rlrun.collect.statistics import last_infos
from rlrun.core.errors import ConfigError
from rlrun.core.seeds import EpisodeSeeds
from rlrun.core.typing import Array, Stateful, Tree
from rlrun.core.worker import Give, Inbox, failures
from rlrun.env import Env, Step
from rlrun.env.wrapper_state import States

PORTION = 100  # steps after which the states of wrappers are sent, within an episode


class UnrollRecipe(NamedTuple):
    """The arguments of a worker; a job sends the agent."""

    make: Callable[[], Env]
    random: RandomAgent
    seeds: EpisodeSeeds  # of its episodes
    steps: int  # environment steps so far, over all envs
    interval: float  # seconds from the beginning of a step to that of the next one, at least
    threads: int  # of torch
    own: bool  # whether the worker has a process, and so the process's generators, of its own
    executed: Executed | None = None  # replaces actions, before infos are dropped
    wrappers: States | None = None  # of the environment
    goals: Array | None = None  # probability of each goal in the first episodes, if a generator learns them


class Go(NamedTuple):
    """Job: step until the total number of environment steps is reached, then wait."""

    limit: int
    random: bool  # act uniformly at random


class Refresh(NamedTuple):
    """Job: act by this agent from now on; counters of the worker's agent are kept."""

    agent: bytes
    update: int  # after which it was copied


class WeighGoals(NamedTuple):
    """Job: draw the goals of later episodes with these probabilities [K]."""

    probabilities: Array


class Began(NamedTuple):
    """Message: the envs were reset."""

    observation: Tree


class Made(NamedTuple):
    """Message: one step of all envs, and the states of both agents after it."""

    response: Response
    step: Step
    following: Tree  # next observations to act on, if an episode ended; else None
    agent: dict[str, Any] | None
    random: dict[str, Any] | None
    update: int  # after which the agent was copied
    wrappers: States | None = None  # after the step, in some messages


def unroll(recipe: UnrollRecipe, jobs: Inbox, give: Give) -> None:
    """Build the environment, step it as jobs request until they end, and close it; a failure is a message.

    Messages may be in buffers that later steps overwrite, so `give` must copy them.
    """
    env: Env | None = None
    try:
        with failures(give):
            torch.set_num_threads(recipe.threads)  # the default in a new thread is the number of cores
            if recipe.own:
                random.seed(recipe.seeds.branch)
                np.random.seed(recipe.seeds.branch)
                torch.manual_seed(recipe.seeds.branch)
            env = recipe.make()
            if recipe.wrappers:
                env.load_wrappers(recipe.wrappers)
            if recipe.goals is not None:
                env.weigh_goals(recipe.goals)
            _Unroller(recipe, env, jobs, give).run()
    finally:
        if env is not None:
            env.close()


class _Unroller:
    def __init__(self, recipe: UnrollRecipe, env: Env, jobs: Inbox, give: Give) -> None:
        self.env = env
        self.agent: Agent | None = None
        self.initial: Tree = None  # of a recurrent agent: the state of fresh episodes
        self.state: Tree = None  # and of each env
        self.random, self.executed = recipe.random, recipe.executed
        self.seeds, self.interval = recipe.seeds, recipe.interval
        self.jobs = jobs
        self.give = give
        self.steps = self.limit = recipe.steps
        self.acting_randomly = False
        self.update = 0
        self.made = 0  # steps
        self.remembers = bool(recipe.wrappers)
        self._next = 0.0  # time at which the next step may begin, on the monotonic clock

    def run(self) -> None:
        """Step until the inbox of jobs is closed."""
        observation = self.env.reset(self.seeds.every())
        self.give(Began(observation))
        while self._may_step():
            self._next = time.monotonic() + self.interval
            observation = self._step(observation)

    def _may_step(self) -> bool:
        """Process the jobs, and wait until a step is due; return False at the end."""
        while True:
            waiting = self.steps >= self.limit or self.agent is None
            job = self.jobs.receive(None if waiting else max(self._next - time.monotonic(), 0.0))
            if job is None and self.jobs.closed:
                return False
            if isinstance(job, Go):
                self.limit, self.acting_randomly = job
            elif isinstance(job, Refresh):
                self._refresh(job)
            elif isinstance(job, WeighGoals):
                self.env.weigh_goals(job.probabilities)
            elif not waiting and time.monotonic() >= self._next:
                return True

    def _refresh(self, job: Refresh) -> None:
        counters = counted(self.agent)
        self.agent, self.update = thaw(job.agent), job.update
        self.initial = initial_state(self.agent, self.env.num_envs)
        self.state = self.initial if self.state is None else self.state
        if counters is not None:
            self.agent.load_state_dict(counters)  # type: ignore[union-attr]
        self.random.act_for(self.agent)

    def _step(self, observation: Tree) -> Tree:
        assert self.agent is not None
        response = (self.random if self.acting_randomly else self.agent)(observation, self.state)
        step = self.env.step(response["action"])
        response = response if self.executed is None else self.executed(response, step)
        episode_end = step.terminated | step.truncated
        if self.initial is not None:  # a recurrent agent, whose state is reset with each episode
            fresh = episode_end if step.valid is None else episode_end | ~step.valid
            after = state_after(self.agent, observation, self.state, response)
            self.state = restarted(after, self.initial, fresh)
        following = None
        if episode_end.any():
            self.seeds.episode += episode_end
            following = restart_by_seeds(self.env, episode_end, self.seeds)
        self.steps += self.env.num_envs if step.valid is None else int(np.count_nonzero(step.valid))
        random_state = self.random.state_dict() if self.acting_randomly else None
        infos = {} if following is None else last_infos(step.info, np.flatnonzero(episode_end))
        self.made += 1
        due = self.remembers and (following is not None or self.made % PORTION == 0)
        wrappers = self.env.live_wrappers() if due else None
        made = step._replace(info=infos)
        self.give(Made(response, made, following, counted(self.agent), random_state, self.update, wrappers))
        return step.observation if following is None else following


def counted(agent: Any) -> dict[str, Any] | None:
    """Return the counters and generators of an agent, which the worker advances; None without any."""
    return agent.state_dict() if isinstance(agent, Stateful) and not isinstance(agent, nn.Module) else None


class _Freezer(pickle.Pickler):
    """Pickles tensors as bytes: numpy lacks some of torch's dtypes, and torch's own pickling is slower."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        raw = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _tensor, (raw, obj.dtype, tuple(obj.shape), isinstance(obj, nn.Parameter))


def _tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...], parameter: bool) -> Tensor:
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    return nn.Parameter(tensor, requires_grad=False) if parameter else tensor


def freeze(agent: Any) -> bytes:
    """Return an agent as bytes, with all its networks; tensors are moved to the CPU.

    Raises:
        ConfigError: a part of it cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _Freezer(file, protocol=5).dump(agent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        fault = str(error).splitlines()[0]
        raise ConfigError(f"agent: a {type(agent).__name__} cannot be sent to a worker: {fault}") from error
    return file.getvalue()


def thaw(frozen: bytes) -> Any:
    """Return a separate copy of the agent, on the CPU."""
    agent = pickle.loads(frozen)
    if getattr(agent, "device", "cpu") != "cpu":
        agent.device = "cpu"
    return agent
