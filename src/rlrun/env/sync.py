"""Environments in this process, stepped one after another: the default, and the fastest for quick environments.

Results equal those of Gymnasium's SyncVectorEnv bit for bit, whose overhead exceeds a step of CartPole.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np

from rlrun.core.errors import DataError, RlrunError, describe_error
from rlrun.core.spaces import Spaces, put_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.outputs import NUMBERS, Outputs, explained, warn
from rlrun.env.raw_return import normalizes_rewards
from rlrun.env.recorded import Abandon, Build, Episode, EpisodeOutcome, EpisodeRecorder, Recorded, StepBlock
from rlrun.env.spaces import (
    action_writer,
    empty,
    from_gymnasium,
    is_plain,
    rewards_of,
    row_splitter,
    row_writer,
)
from rlrun.env.stacks import frames_of, observed
from rlrun.env.vector import Seed, Step, close_softly
from rlrun.env.wrapper_state import FrozenWrappers, States, learns_unseen, load_shares, pooled_states, remembering
from rlrun.env.wrappers import draws_goals
from rlrun.training.callback import Stop


class SyncEnv(Recorded):
    """Steps Gymnasium environments in a loop, into preallocated buffers.

    Args:
        envs: single environments with equal spaces.
        build: makes a fresh one if a resume cannot replay an episode.
        reset_options: of every reset.
        seed_episodes: whether every episode gets a seed, or only the first of each env.
        place: the environment's name in messages.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        *,
        build: Build | None = None,
        reset_options: dict[str, Any] | None = None,
        seed_episodes: bool = True,
        place: str = "environment",
    ) -> None:
        first = envs[0]
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self.spaces = Spaces(
            observation=observed(first, f"{place}: the observation space"),
            action=from_gymnasium(first.action_space, f"{place}: the action space", action=True),
            rewards=rewards_of(first, place),
        )
        self.outer = first.observation_space, first.action_space
        self.frame_stack = frames_of(first)
        self._place = place
        self._options = reset_options or None
        self.seed_episodes = seed_episodes
        self._recorders = [EpisodeRecorder(env, self.spaces, build) for env in self.envs]
        self._outputs = [Outputs(first.observation_space, self.spaces.rewards) for _ in self.envs]
        self.remarked = set()
        self._step_functions: list[Callable[[Any], Any]] = [
            partial(self._first_step, number) for number in range(self.num_envs)
        ]
        self._write = row_writer(first.observation_space)
        self._to_env = action_writer(first.action_space, self.num_envs)
        self._split = row_splitter(first.action_space)
        self._block = StepBlock(self.spaces, self.num_envs)
        self._flat_views: list[memoryview] | None = None  # of each step's observations, if these are plain rows
        if is_plain(first.observation_space):
            self._flat_views = [memoryview(step.observation.reshape(-1)) for step in self._block.steps]
        width = math.prod(first.observation_space.shape or ())
        self._rows_of = [slice(env_index * width, (env_index + 1) * width) for env_index in range(self.num_envs)]
        # The observation after a restart must outlive the next step and the restart after it.
        self._restarted = [empty(self.spaces.observation, self.num_envs) for _ in range(2)]
        self._next: Tree = self._restarted[0]
        self._steps = 0
        self._begun = [0] * self.num_envs  # value of `_steps` when each episode began
        self._frozen: list[FrozenWrappers] = []
        self.normalizes_rewards = normalizes_rewards(first)

    def reset(self, seed: Seed = None) -> Tree:
        return self._restart(range(self.num_envs), env_seeds(seed, self.num_envs))

    def _begin(self, env_index: int, seed: int | None, observation: Tree) -> None:
        """Reset an env, and write its observation into its row."""
        options = self._reset_options()
        if self._recording:
            self._recorders[env_index].begin(seed, options)
        outputs = self._outputs[env_index]
        try:
            if self._frozen:
                self._frozen[env_index].renew()
            result = self.envs[env_index].reset(seed=seed, options=options)
            value, info = result
            if not outputs.begun or info.__class__ is not dict:
                outputs.reset(result)
                warn(self._place, outputs.remarks, self.remarked)
            self._begun[env_index] = self._steps
            self._write(observation, env_index, value)
        except (Exception, SystemExit) as error:
            self._fail(error, "reset", env_index)

    def _first_step(self, env_index: int, action: Any) -> Any:
        """Step an env for the first time and check its outputs closely."""
        self._step_functions[env_index] = self.envs[env_index].step
        result = self._step_functions[env_index](action)
        self._check(env_index, result)
        return result

    def _check(self, env_index: int, result: Any) -> None:
        """Check the outputs of a step closely."""
        outputs = self._outputs[env_index]
        outputs.step(result)
        warn(self._place, outputs.remarks, self.remarked)

    def step(self, action: Tree) -> Step:
        if self._action_log is not None:
            self._action_log.note(action)
        step = self._block.advance()
        observation, reward, terminated, truncated, _, _ = step
        rewards, ends, cuts = self._block.views[self._block.newest]
        flat, rows_of = None if self._flat_views is None else self._flat_views[self._block.newest], self._rows_of
        self._steps += 1
        if self._to_env is not None:
            action = self._to_env(action)
        if self._split is not None:
            action = list(self._split(action))
        write, infos = self._write, None
        env_index, result = 0, None
        try:
            for env_index, step_env in enumerate(self._step_functions):
                result = None
                # Rows by index: with one env, iterating an array costs eight times as much.
                result = value, earned, ended, cut, info = step_env(action[env_index])
                if flat is None:
                    write(observation, env_index, value)
                else:
                    try:
                        flat[rows_of[env_index]] = value  # takes half as long, and refuses other shapes and types
                    except (TypeError, ValueError):
                        self._flat_views = flat = None
                        write(observation, env_index, value)
                if ended is False and cut is False and earned.__class__ in NUMBERS and info.__class__ is dict:
                    rewards[env_index] = earned
                    ends[env_index] = cuts[env_index] = False
                else:
                    if ended or cut:
                        self._check(env_index, result)
                    else:
                        self._outputs[env_index].numbers(result)
                    reward[env_index], terminated[env_index], truncated[env_index] = earned, ended, cut
                if info:
                    infos = infos or {}
                    infos[env_index] = info
        except (Exception, SystemExit) as error:
            self._fail(self._outputs[env_index].explain(error, result), "step", env_index)
        self._next = observation
        return step if infos is None else Step(observation, reward, terminated, truncated, None, infos)

    def _fail(self, error: BaseException, event: str, env_index: int) -> NoReturn:
        """Raise an error that names environment, event and env; signals and errors of rlrun are raised unchanged."""
        if isinstance(error, Stop | RlrunError) and not isinstance(error, DataError):
            raise error
        cause = explained(event, describe_error(error))
        if isinstance(error, DataError) and event == "step":
            cause = f"{cause} (step {self._steps - self._begun[env_index]} of the episode)"
        raise RlrunError(f"{self._place}: {event} failed in env {env_index}: {cause}") from error

    def restart(self, episode_end: Array, seeds: Sequence[int] | None = None) -> Tree:
        if not np.count_nonzero(episode_end):
            return self._next
        envs = episode_end.nonzero()[0].tolist()
        return self._restart(envs, (None,) * len(envs) if seeds is None else seeds)

    def _restart(self, envs: Sequence[int], seeds: Sequence[int | None]) -> Tree:
        self._restarted.reverse()
        observation = self._restarted[0]
        if len(envs) < self.num_envs:
            put_rows(observation, slice(None), self._next)
        for env_index, seed in zip(envs, seeds, strict=True):
            self._begin(env_index, seed, observation)
        self._next = observation
        self._note_begin(envs, observation)
        return observation

    def accept_own_actions(self) -> None:
        """Make `step` accept the environment's own actions, in its own containers, in place of policy actions."""
        self._to_env = None

    def renew(self) -> None:
        for recorder in self._recorders:
            recorder.renew()

    def _draws_goals(self) -> bool:
        return draws_goals(self.envs[0])

    def live_wrappers(self) -> States:
        return pooled_states(self.envs)

    def load_wrappers(self, states: States) -> None:
        load_shares(self.envs, states)

    def freeze_wrappers(self, states: States) -> None:
        self._frozen = [FrozenWrappers(env, states) for env in self.envs]

    def learns_unseen(self) -> dict[str, str]:
        return learns_unseen(self.envs[0])

    def remembers(self, *, rewards: bool = True) -> str | None:
        """Return the wrapper that makes a replayed episode differ, or None; it steps the env, so use a copy."""
        return remembering(self.envs[0], self._reset_options(), rewards=rewards)

    def _written(self) -> list[dict[str, Any]]:
        return [recorder.state_dict() for recorder in self._recorders]

    def _resume(self, episodes: Sequence[Episode], abandon: Abandon) -> list[EpisodeOutcome]:
        outcomes = [
            recorder.resume(episode, self._options, abandon)
            for recorder, episode in zip(self._recorders, episodes, strict=True)
        ]
        self.envs = [recorder.env for recorder in self._recorders]
        self._begun = [self._steps - len(episode.actions or ()) for episode in episodes]
        return outcomes

    def render(self) -> Any:
        return self.envs[0].render()

    def close(self) -> None:
        if not self._closed:
            self._keep_last()
            self._closed = True
            for env in self.envs:
                close_softly(self._place, env.close)


def env_seeds(seed: Seed, count: int) -> list[int | None]:
    """Return one seed an env: s, s + 1, … for an integer, the list itself, or None for all."""
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + env_index for env_index in range(count)]
    return [None if env_seed is None else int(env_seed) for env_seed in seed]
