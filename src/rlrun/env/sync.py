"""Lanes in this process, one after the other: the default, and the cheapest where an environment is quick.

The numbers equal those of gymnasium's SyncVectorEnv bit for bit; what is left out is its generic
machinery, which costs more than the environment itself for CartPole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np

from rlrun.callback import Stop
from rlrun.env.recorded import Episode, Outcome, Recorded, Recorder, finish
from rlrun.env.spaces import (
    Outputs,
    action_writer,
    empty,
    explained,
    from_gymnasium,
    lane_splitter,
    lane_writer,
    rewards,
    rewards_of,
    warn,
)
from rlrun.env.vector import Seed, Step, close_softly
from rlrun.env.wrappers import frames_of
from rlrun.errors import DataError, RlrunError
from rlrun.exits import said
from rlrun.spaces import Spaces, put_rows
from rlrun.typing import Array, Tree

# An observation must outlive the step it leads to and the restart after it: three sets of buffers.
_SETS = 3
_NO_INFO: dict[int, dict[str, Any]] = {}


class SyncEnv(Recorded):
    """Step gymnasium environments in a loop, writing into buffers made once.

    lanes: single environments with equal spaces; place: what messages call the environment.
    """

    def __init__(
        self,
        lanes: Sequence[gymnasium.Env[Any, Any]],
        *,
        reset_options: dict[str, Any] | None = None,
        place: str = "environment",
    ) -> None:
        first = lanes[0]
        self.lanes = list(lanes)
        self.num_envs = len(self.lanes)
        self.spaces = Spaces(
            observation=from_gymnasium(first.observation_space, f"{place}: the observation space"),
            action=from_gymnasium(first.action_space, f"{place}: the action space", action=True),
            rewards=rewards_of(first, place),
        )
        self.outer = first.observation_space, first.action_space
        self.frame_stack = frames_of(first)
        self._place = place
        self._options = reset_options or None
        self._recorders = [Recorder(lane) for lane in self.lanes]
        self._outputs = [Outputs(first.observation_space, self.spaces.rewards) for _ in self.lanes]
        self.remarked = set()
        self._step_lanes: list[Callable[[Any], Any]] = [
            partial(self._first_step, number) for number in range(self.num_envs)
        ]
        self._write = lane_writer(first.observation_space)
        self._to_env = action_writer(first.action_space, self.num_envs)
        self._split = lane_splitter(first.action_space)
        self._sets = [self._buffers() for _ in range(_SETS)]
        self._turn = 0
        self._closed = False

    def _buffers(self) -> Step:
        count = self.num_envs
        observation = empty(self.spaces.observation, count)
        flags = np.zeros((2, count), np.bool_)
        return Step(observation, rewards(count, self.spaces.rewards), flags[0], flags[1], None, _NO_INFO)

    def reset(self, seed: Seed = None) -> Tree:
        seeds = lane_seeds(seed, self.num_envs)
        observation = self._sets[self._turn].observation
        for lane, lane_seed in enumerate(seeds):
            self._begin(lane, lane_seed, observation)
        if self._tape is not None:
            self._tape.begin(range(self.num_envs))
        return observation

    def _begin(self, lane: int, seed: int | None, observation: Tree) -> None:
        """Reset a lane, and write what it gives into its row of the observations."""
        if self._tape is not None:
            self._recorders[lane].begin(seed)
        outputs = self._outputs[lane]
        try:
            result = self.lanes[lane].reset(seed=seed, options=self._options)
            value, _ = result
            if not outputs.begun:
                outputs.reset(result)
                warn(self._place, outputs.remarks, self.remarked)
            self._write(observation, lane, value)
        except (Exception, SystemExit) as error:
            self._fail(error, "reset", lane)

    def _first_step(self, lane: int, action: Any) -> Any:
        """Step a lane and look at what it gives; later steps are its own."""
        outputs, self._step_lanes[lane] = self._outputs[lane], self.lanes[lane].step
        result = self._step_lanes[lane](action)
        outputs.step(result)
        warn(self._place, outputs.remarks, self.remarked)
        return result

    def step(self, action: Tree) -> Step:
        if self._tape is not None:
            self._tape.note(action)
        self._turn = turn = (self._turn + 1) % _SETS
        step = self._sets[turn]
        observation, reward, terminated, truncated, _, _ = step
        if self._to_env is not None:
            action = self._to_env(action)
        if self._split is not None:
            action = list(self._split(action))
        write, infos = self._write, None
        lane = 0
        try:
            for lane, step_lane in enumerate(self._step_lanes):
                # Rows by index: iterating an array costs eight times as much where there is one lane.
                value, reward[lane], terminated[lane], truncated[lane], info = step_lane(action[lane])
                write(observation, lane, value)
                if info:
                    infos = infos or {}
                    infos[lane] = info
        except (Exception, SystemExit) as error:
            self._fail(error, "step", lane)
        return step if infos is None else Step(observation, reward, terminated, truncated, None, infos)

    def _fail(self, error: BaseException, event: str, lane: int) -> NoReturn:
        """Raise an error that names environment, event and number; a signal's, or an explained one, stays as it is."""
        if isinstance(error, Stop | RlrunError) and not isinstance(error, DataError):
            raise error
        raise RlrunError(f"{self._place}: {event} failed in env {lane}: {explained(event, said(error))}") from error

    def restart(self, ended: Array) -> Tree:
        if not np.count_nonzero(ended):
            return self._sets[self._turn].observation
        lanes = ended.nonzero()[0].tolist()
        return self._restart(lanes, (None,) * len(lanes))

    def reset_lanes(self, lanes: Array, seeds: Sequence[int | None]) -> Tree:
        return self._restart(np.flatnonzero(lanes).tolist(), seeds)

    def _restart(self, lanes: list[int], seeds: Sequence[int | None]) -> Tree:
        last = self._sets[self._turn].observation
        self._turn = (self._turn + 1) % _SETS
        observation = self._sets[self._turn].observation
        if len(lanes) < self.num_envs:
            put_rows(observation, slice(None), last)
        for lane, seed in zip(lanes, seeds, strict=True):
            self._begin(lane, seed, observation)
        if self._tape is not None:
            self._tape.begin(lanes)
        return observation

    def take_own_actions(self) -> None:
        """Let `step` take the environment's own actions, in its own containers, in place of policy actions."""
        self._to_env = None

    def renew(self) -> None:
        for recorder in self._recorders:
            recorder.keeper.renew()

    @property
    def _now(self) -> Tree:
        return self._sets[self._turn].observation

    def _written(self, long: list[bool]) -> list[dict[str, Any] | None]:
        return [recorder.written(is_long) for recorder, is_long in zip(self._recorders, long, strict=True)]

    def _replay(self, episodes: list[Episode | None], abandon: Callable[[], None] | None) -> list[Outcome]:
        return [
            Outcome() if episode is None else finish(recorder.replay(episode, self._options), abandon)
            for recorder, episode in zip(self._recorders, episodes, strict=True)
        ]

    def render(self) -> Any:
        return self.lanes[0].render()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for lane in self.lanes:
                close_softly(self._place, lane.close)


def lane_seeds(seed: Seed, count: int) -> list[int | None]:
    """Return one seed a lane: s, s + 1, … for an integer, the list itself, or None for all."""
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + lane for lane in range(count)]
    return [None if lane_seed is None else int(lane_seed) for lane_seed in seed]
