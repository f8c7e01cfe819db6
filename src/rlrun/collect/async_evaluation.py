"""The loop of a worker that evaluates copies of an agent next to training."""

import os
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from rlrun.collect.evaluate import evaluate, parallel, sampling, staged
from rlrun.collect.links import ProcessLink
from rlrun.collect.unroll import Failed, Give, Inbox, thaw
from rlrun.core.errors import ConfigError, describe_error
from rlrun.env import Env
from rlrun.env.wrapper_state import States


class EvaluationRecipe(NamedTuple):
    """The arguments of a worker; each job is a copy of the agent."""

    make: Callable[[], Env]
    epsilon: float
    options: dict[str, Any]  # of `evaluate`
    process: tuple[int, str]  # threads and precision, so that numbers are those of this process


class EvaluationJob(NamedTuple):
    """Evaluate this agent; its observations are those of wrappers with these states."""

    agent: bytes
    wrappers: States


def evaluate_jobs(load: Callable[[], EvaluationRecipe], jobs: Inbox, give: Give) -> None:
    """Load the recipe, build the environment, and give an `Evaluation` for each job, until a `Leave`."""
    env: Env | None = None
    try:
        recipe = load()
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
    except (Exception, SystemExit) as error:
        give(Failed(describe_error(error), traceback.format_exc()))
    finally:
        if env is not None:
            env.close()


def start(env: Env, epsilon: float, options: dict[str, Any], num_envs: int | None = None) -> ProcessLink:
    """Start a worker that evaluates in copies of an environment.

    Raises:
        ConfigError: the environment cannot be sent to it.
    """
    if env.copier is None:
        raise ConfigError(f"'{env.name}' was not made by rlrun.env.make")
    make = partial(staged, env.copier, parallel(env, options["episodes"], num_envs))
    process = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return ProcessLink(EvaluationRecipe(make, epsilon, options, process), evaluate_jobs)
