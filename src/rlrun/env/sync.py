"""Environments in this process, one after another: the default, and the fastest for quick environments.

The numbers equal those of Gymnasium's SyncVectorEnv bit for bit, which takes longer than CartPole itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np

from rlrun.core.errors import DataError, RlrunError
from rlrun.core.spaces import Spaces, put_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.outputs import NUMBERS, Outputs, explained, warn
from rlrun.env.recorded import Abandon, ActionRecorder, Recorded, RecordedEpisode, ReplayOutcome
from rlrun.env.spaces import (
    action_writer,
    empty,
    from_gymnasium,
    rewards,
    rewards_of,
    row_splitter,
    row_writer,
)
from rlrun.env.vector import Seed, Step, close_softly
from rlrun.env.wrappers import frames_of, weigh_goals
from rlrun.runs.processes import describe_error
from rlrun.training.callback import Stop

# An observation must outlive the step it leads to and the restart after it: three sets of buffers.
_SETS = 3
_NO_INFO: dict[int, dict[str, Any]] = {}


class SyncEnv(Recorded):
    """Step gymnasium environments in a loop, and write into preallocated buffers.

    envs: single environments with equal spaces; place: what messages call the environment.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        *,
        reset_options: dict[str, Any] | None = None,
        place: str = "environment",
    ) -> None:
        first = envs[0]
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self.spaces = Spaces(
            observation=from_gymnasium(first.observation_space, f"{place}: the observation space"),
            action=from_gymnasium(first.action_space, f"{place}: the action space", action=True),
            rewards=rewards_of(first, place),
        )
        self.outer = first.observation_space, first.action_space
        self.frame_stack = frames_of(first)
        self._place = place
        self._options = reset_options or None
        self._recorders = [ActionRecorder(env) for env in self.envs]
        self._outputs = [Outputs(first.observation_space, self.spaces.rewards) for _ in self.envs]
        self.remarked = set()
        self._step_functions: list[Callable[[Any], Any]] = [
            partial(self._first_step, number) for number in range(self.num_envs)
        ]
        self._write = row_writer(first.observation_space)
        self._to_env = action_writer(first.action_space, self.num_envs)
        self._split = row_splitter(first.action_space)
        self._sets = [self._buffers() for _ in range(_SETS)]
        # Plain numbers are written through these, which takes half as long as through numpy.
        columns: list[Sequence[Any]] = [buffers[1:4] for buffers in self._sets]
        self._views = [[memoryview(column) for column in buffers] for buffers in columns]
        self._turn = 0
        self._steps = 0
        self._begun = [0] * self.num_envs  # of these steps, those before each episode
        self._closed = False

    def _buffers(self) -> Step:
        count = self.num_envs
        observation = empty(self.spaces.observation, count)
        flags = np.zeros((2, count), np.bool_)
        return Step(observation, rewards(count, self.spaces.rewards), flags[0], flags[1], None, _NO_INFO)

    def reset(self, seed: Seed = None) -> Tree:
        seeds = env_seeds(seed, self.num_envs)
        observation = self._sets[self._turn].observation
        for env_index, env_seed in enumerate(seeds):
            self._begin(env_index, env_seed, observation)
        if self._action_log is not None:
            self._action_log.begin(range(self.num_envs))
        return observation

    def _begin(self, env_index: int, seed: int | None, observation: Tree) -> None:
        """Reset an env, and write its observation into its row."""
        if self._action_log is not None:
            self._recorders[env_index].begin(seed)
        outputs = self._outputs[env_index]
        try:
            result = self.envs[env_index].reset(seed=seed, options=self._options)
            value, info = result
            if not outputs.begun or info.__class__ is not dict:
                outputs.reset(result)
                warn(self._place, outputs.remarks, self.remarked)
            self._begun[env_index] = self._steps
            self._write(observation, env_index, value)
        except (Exception, SystemExit) as error:
            self._fail(error, "reset", env_index)

    def _first_step(self, env_index: int, action: Any) -> Any:
        """Step an env and check its outputs; later, those of an episode's last step are checked as closely."""
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
        self._turn = turn = (self._turn + 1) % _SETS
        step = self._sets[turn]
        observation, reward, terminated, truncated, _, _ = step
        rewards, ends, cuts = self._views[turn]
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
                # Rows by index: iterating an array costs eight times as much where there is one env.
                result = value, earned, ended, cut, info = step_env(action[env_index])
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
        return step if infos is None else Step(observation, reward, terminated, truncated, None, infos)

    def _fail(self, error: BaseException, event: str, env_index: int) -> NoReturn:
        """Raise an error that names environment, event and env; signals and errors of rlrun are raised unchanged."""
        if isinstance(error, Stop | RlrunError) and not isinstance(error, DataError):
            raise error
        cause = explained(event, describe_error(error))
        if isinstance(error, DataError) and event == "step":
            cause = f"{cause} (step {self._steps - self._begun[env_index]} of the episode)"
        raise RlrunError(f"{self._place}: {event} failed in env {env_index}: {cause}") from error

    def restart(self, episode_end: Array) -> Tree:
        if not np.count_nonzero(episode_end):
            return self._sets[self._turn].observation
        envs = episode_end.nonzero()[0].tolist()
        return self._restart(envs, (None,) * len(envs))

    def reset_envs(self, envs: Array, seeds: Sequence[int | None]) -> Tree:
        return self._restart(np.flatnonzero(envs).tolist(), seeds)

    def _restart(self, envs: list[int], seeds: Sequence[int | None]) -> Tree:
        last = self._sets[self._turn].observation
        self._turn = (self._turn + 1) % _SETS
        observation = self._sets[self._turn].observation
        if len(envs) < self.num_envs:
            put_rows(observation, slice(None), last)
        for env_index, seed in zip(envs, seeds, strict=True):
            self._begin(env_index, seed, observation)
        if self._action_log is not None:
            self._action_log.begin(envs)
        return observation

    def accept_own_actions(self) -> None:
        """Make `step` accept the environment's own actions, in its own containers, in place of policy actions."""
        self._to_env = None

    def weigh_goals(self, probabilities: Array) -> None:
        for env in self.envs:
            weigh_goals(env, probabilities)

    def renew(self) -> None:
        for recorder in self._recorders:
            recorder.reset_state.renew()

    @property
    def _observations(self) -> Tree:
        return self._sets[self._turn].observation

    def _origins(self, long: list[bool]) -> list[dict[str, Any] | None]:
        return [recorder.written(is_long) for recorder, is_long in zip(self._recorders, long, strict=True)]

    def _replay(self, episodes: list[RecordedEpisode | None], abandon: Abandon) -> list[ReplayOutcome]:
        outcomes = [
            ReplayOutcome() if episode is None else recorder.replay(episode, self._options, abandon)
            for recorder, episode in zip(self._recorders, episodes, strict=True)
        ]
        self._begun = [self._steps - outcome.length for outcome in outcomes]
        return outcomes

    def render(self) -> Any:
        return self.envs[0].render()

    def close(self) -> None:
        if not self._closed:
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
