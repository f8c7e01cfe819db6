"""What acts in a worker: it steps an environment ahead of learning, and obeys jobs between two steps."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rlrun.collect.agents import Agent, RandomAgent, Response, begun_anew, initial_state
from rlrun.collect.workers.frozen import thaw
from rlrun.collect.workers.inbox import Inbox
from rlrun.env import Env, Step
from rlrun.exits import said
from rlrun.memory.episodes import map_tree
from rlrun.typing import Stateful, Tree


class Recipe(NamedTuple):
    """All that a worker begins with; the agent comes by a job."""

    make: Callable[[], Env]
    random: RandomAgent
    seed: int  # lane i is first reset with seed + i
    steps: int  # environment steps made before, over all lanes
    interval: float  # seconds from the beginning of a step to that of the next one, at least
    threads: int  # of torch
    own: bool  # whether the generators of its process are the worker's own


class Go(NamedTuple):
    """Job: step until so many environment steps were made in all, then wait."""

    limit: int
    random: bool  # act uniformly at random


class Refresh(NamedTuple):
    """Job: act by this agent from now on; its counters stay the worker's."""

    agent: bytes
    update: int  # after which it was taken


class Leave(NamedTuple):
    """Job: close the environment, and end."""


class Began(NamedTuple):
    """The lanes were reset."""

    observation: Tree


class Made(NamedTuple):
    """One step of all lanes, and the states of the two agents after it."""

    response: Response
    step: Step
    following: Tree  # to act on next, where an episode ended; else None
    agent: dict[str, Any] | None
    random: dict[str, Any] | None
    update: int  # that the agent is of


class Failed(NamedTuple):
    """The worker cannot go on."""

    line: str
    trace: str


Give = Callable[[Any], None]


def unroll(recipe: Recipe, jobs: Inbox, give: Give) -> None:
    """Build the environment, step it as jobs say until one says to leave, and close it.

    What it gives may be in buffers that later steps overwrite: `give` copies.
    """
    env: Env | None = None
    try:
        torch.set_num_threads(recipe.threads)  # a new thread would take as many as the machine has
        if recipe.own:
            random.seed(recipe.seed)
            np.random.seed(recipe.seed)
            torch.manual_seed(recipe.seed)
        env = recipe.make()
        _Unroller(recipe, env, jobs, give).run()
    except (Exception, SystemExit) as error:
        give(failure(error))
    finally:
        if env is not None:
            env.close()


def failure(error: BaseException) -> Failed:
    """Tell in a line what went wrong."""
    return Failed(said(error), traceback.format_exc())


class _Unroller:
    def __init__(self, recipe: Recipe, env: Env, jobs: Inbox, give: Give) -> None:
        self.env = env
        self.agent: Agent | None = None
        self.initial: Tree = None  # of a recurrent agent: the state of fresh episodes
        self.state: Tree = None  # and of each lane
        self.random = recipe.random
        self.seed, self.interval = recipe.seed, recipe.interval
        self.jobs = jobs
        self.give = give
        self.steps = self.limit = recipe.steps
        self.acting_randomly = False
        self.update = 0
        self._next = 0.0  # when the next step may begin, on the monotonic clock

    def run(self) -> None:
        """Step until a job says to leave, or nobody can say so any more."""
        observation = self.env.reset(self.seed)
        self.give(Began(observation))
        while self._may_step():
            self._next = time.monotonic() + self.interval
            observation = self._step(observation)

    def _may_step(self) -> bool:
        """Do the jobs that are there, and wait while no step is due; False: leave."""
        while True:
            waiting = self.steps >= self.limit or self.agent is None
            job = self.jobs.get(None if waiting else max(self._next - time.monotonic(), 0.0))
            if isinstance(job, Leave) or (job is None and self.jobs.closed):
                return False
            if isinstance(job, Go):
                self.limit, self.acting_randomly = job
            elif isinstance(job, Refresh):
                self._refresh(job)
            elif not waiting and time.monotonic() >= self._next:
                return True

    def _refresh(self, job: Refresh) -> None:
        counters = counted(self.agent)
        self.agent, self.update = thaw(job.agent), job.update
        self.initial = initial_state(self.agent, self.env.num_envs)
        self.state = self.initial if self.state is None else self.state
        if counters is not None:
            self.agent.load_state_dict(counters)  # type: ignore[union-attr]
        self.random.stand_in_for(self.agent)

    def _step(self, observation: Tree) -> Tree:
        assert self.agent is not None
        response = (self.random if self.acting_randomly else self.agent)(observation, self.state)
        step = self.env.step(response["action"])
        ended = step.terminated | step.truncated
        if self.initial is not None:  # of a recurrent agent, which remembers nothing where an episode begins
            fresh = ended if step.valid is None else ended | ~step.valid
            self.state = begun_anew(response.get("state", self.state), self.initial, fresh)
        following = self.env.restart(ended) if ended.any() else None
        self.steps += self.env.num_envs if step.valid is None else int(np.count_nonzero(step.valid))
        random_state = self.random.state_dict() if self.acting_randomly else None
        self.give(Made(response, step._replace(info={}), following, counted(self.agent), random_state, self.update))
        return step.observation if following is None else following


def counted(agent: Any) -> dict[str, Any] | None:
    """Return what an agent counts and draws by, which is the worker's to know; None where there is nothing.

    A network's state is what was learnt, which is not.
    """
    return agent.state_dict() if isinstance(agent, Stateful) and not isinstance(agent, nn.Module) else None


def copied(message: Any) -> Any:
    """Return a message with arrays of its own."""
    if isinstance(message, Began):
        return Began(map_tree(np.array, message.observation))
    if not isinstance(message, Made):
        return message
    arrays = {"response": message.response, "following": message.following}
    arrays["step"] = dict(zip(Step._fields[:4], message.step[:4], strict=True))
    own = map_tree(lambda array: None if array is None else np.array(array), arrays)
    step = Step(**own["step"], valid=None if message.step.valid is None else message.step.valid.copy(), info={})
    return message._replace(response=own["response"], step=step, following=own["following"])
