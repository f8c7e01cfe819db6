"""The loop of a worker that evaluates copies of an agent next to training."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from rlrun.collect.evaluate import evaluate, parallel, sampling, staged
from rlrun.collect.unroll import thaw
from rlrun.core.errors import ConfigError
from rlrun.core.worker import Give, Inbox, Worker, failures
from rlrun.env import Env
from rlrun.env.wrapper_state import States


class EvaluationRecipe(NamedTuple):
    """The arguments of a worker; each job is a copy of the agent."""

    make: Callable[[], Env]
    epsilon: float
    options: dict[str, Any]  # of `evaluate`
    process: tuple[int, str]  # threads and precision, so that results equal those of this process


class EvaluationJob(NamedTuple):
    """Job: evaluate this agent, with these states of wrappers."""

    agent: bytes
    wrappers: States


def evaluate_jobs(recipe: EvaluationRecipe, jobs: Inbox, give: Give) -> None:
    """Build the environment, and send an `Evaluation` for each job; a failure is a message, too."""
    env: Env | None = None
    try:
        with failures(give):
            threads, precision = recipe.process
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(precision)
            if hasattr(os, "nice"):
                os.nice(10)  # training comes first
            env = recipe.make()
            seed = recipe.options["seed"]
            while isinstance(job := jobs.receive(), EvaluationJob):
                if recipe.epsilon:
                    torch.manual_seed(seed)
                agent = sampling(thaw(job.agent), recipe.epsilon, seed=seed)
                give(evaluate(env, agent, wrappers=job.wrappers, **recipe.options))
    finally:
        if env is not None:
            env.close()


def start(env: Env, epsilon: float, options: dict[str, Any], num_envs: int | None = None) -> Worker:
    """Start a worker that evaluates in copies of an environment.

    Raises:
        ConfigError: the environment cannot be sent to it.
    """
    if env.copier is None or env.maker is None:
        raise ConfigError(f"'{env.name}' cannot be made in another process")
    make = partial(staged, env.copier, parallel(env, options["episodes"], num_envs))
    process = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return Worker(evaluate_jobs, EvaluationRecipe(make, epsilon, options, process))
