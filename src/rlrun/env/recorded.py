"""Environments whose open episodes can be recorded, and replayed up to their last step."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rlrun.core.errors import RlrunError
from rlrun.core.spaces import map_tree, put_rows, row_count, take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.origin import ResetState, whole_state
from rlrun.env.plain import Reader, Writer, require_sound
from rlrun.env.spaces import Convert, Write
from rlrun.env.vector import Env, Resumed
from rlrun.training.callback import Stop

# Steps. A replay takes as long as the episode took: seconds for control tasks, two minutes for Atari, whose longest
# episodes have 27,000 steps. Longer tasks are hardly episodic.
LIMIT = 100_000
PORTION = 1000  # steps of a replay between two checks for signals
Options = dict[str, Any] | None
Abandon = Callable[[], None] | None  # may raise to stop a replay


class ActionLog:
    """Batches of policy actions [N, …], and the step at which each env's episode began.

    Actions that no open episode needs are dropped, and so are those older than `LIMIT` steps.
    """

    def __init__(self, num_envs: int) -> None:
        self.begun = [0] * num_envs  # step after which the episode began
        self.steps = 0
        self.log: deque[Tree] = deque(maxlen=LIMIT)

    def note(self, action: Tree) -> None:
        """Add the actions of a step."""
        self.log.append(map_tree(np.array, action) if isinstance(action, dict) else action.copy())
        self.steps += 1

    def begin(self, envs: Iterable[int]) -> None:
        """Begin new episodes in some envs."""
        for env_index in envs:
            self.begun[env_index] = self.steps
        needed = self.steps - min(self.begun)
        while len(self.log) > needed:
            self.log.popleft()

    def long(self) -> list[bool]:
        """Return for each env whether its open episode has more than `LIMIT` steps."""
        return [self.steps - begun > LIMIT for begun in self.begun]

    def state_dict(self) -> dict[str, Any]:
        """Return the actions [T, N, …] since the oldest open episode began, and the step at which each one did.

        -1 stands for an episode of more than `LIMIT` steps.
        """
        long = self.long()
        first = min((at for at, lost in zip(self.begun, long, strict=True) if not lost), default=self.steps)
        begun = [-1 if lost else at - first for at, lost in zip(self.begun, long, strict=True)]
        actions = list(islice(self.log, len(self.log) - (self.steps - first), None))
        return {"begun": begun, "actions": map_tree(_joined, *actions) if actions else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a log; the next action follows its last."""
        self.log.clear()
        if state["actions"] is not None:
            count = row_count(state["actions"])
            self.log.extend(map_tree(itemgetter(step), state["actions"]) for step in range(count))
        self.steps = len(self.log)
        self.begun = [at if at >= 0 else -LIMIT - 1 for at in state["begun"]]


def _joined(*steps: Array) -> Array:
    """Return the actions [N, …] of T steps as [T, N, …], of one dtype that holds them all."""
    actions: Array = np.concatenate(steps).reshape(len(steps), *steps[0].shape)
    return actions


class RecordedEpisode(NamedTuple):
    """The data that restores an open episode.

    origin: the `seed` of its reset, and the `layers` before it. For an episode that is too long to be replayed: the
    present layers, the `whole` simulator and the `observation`. actions: as the environment took them.
    """

    origin: dict[str, Any]
    actions: Sequence[Any]


class ReplayOutcome(NamedTuple):
    """The result of a replay; an episode that was set directly has no return or length."""

    observation: Any = None
    total: Any = np.nan  # sum of rewards, [R] where they have several numbers
    length: int = -1
    lost: str | None = None


class ActionRecorder:
    """Records the episodes of one environment, in any process."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.reset_state = ResetState(env)
        self._origin: dict[str, Any] | None = None

    def begin(self, seed: int | None) -> None:
        """Capture the state that the next reset depends on."""
        self._origin = {"seed": seed, "layers": self.reset_state.capture()}

    def written(self, long: bool) -> dict[str, Any] | None:
        """Return the origin of the open episode; for a long one the current state, if the environment provides it."""
        if not long:
            return self._origin
        functions = whole_state(self.env)
        if functions is not None:
            with suppress(Exception):  # the environment has no state now; a resume reports it
                return {"layers": self.reset_state.capture(), "whole": Writer().whole(functions[0]())}
        return None

    def replay(self, episode: RecordedEpisode, options: Options, abandon: Abandon = None) -> ReplayOutcome:
        """Play an episode again; an error becomes the reason of a lost one."""
        try:
            return self._replay(episode, options, abandon or (lambda: None))
        except Stop:
            raise
        except Exception as error:
            return ReplayOutcome(lost=f"{type(error).__name__}: {error}".splitlines()[0])

    def _replay(self, episode: RecordedEpisode, options: Options, abandon: Callable[[], None]) -> ReplayOutcome:
        abandon()
        self._origin = episode.origin
        self.reset_state.restore(episode.origin["layers"])
        if "whole" in episode.origin:
            functions = whole_state(self.env)
            assert functions is not None
            functions[1](Reader().read(episode.origin["whole"]))
            return ReplayOutcome()
        observation, _ = self.env.reset(seed=episode.origin["seed"], options=options)
        count = len(episode.actions)
        total: Any = 0.0
        for number, action in enumerate(episode.actions, 1):
            observation, reward, terminated, truncated, _ = self.env.step(action)
            total = total + np.float32(reward).astype(np.float64)  # in the order and types of a collector's sum
            if terminated or truncated:
                return ReplayOutcome(lost=f"played again, its episode ended after {number} of {count} steps")
            if number % PORTION == 0:
                abandon()
        return ReplayOutcome(observation, total, count)


class Recorded(Env):
    """Envs whose episodes are recorded, in this process or in workers."""

    _action_log: ActionLog | None = None
    _remembered: dict[str, Any] | None = None
    _episodes: Sequence[RecordedEpisode | None] = ()  # of the remembered state, by env
    _write: Write  # from an environment's observation into a row of observations
    _to_env: Convert | None  # from policy actions to environment actions
    _split: Callable[[Any], Iterator[Any]] | None  # divides these by env, if they are not an array

    @property
    @abstractmethod
    def _observations(self) -> Tree:
        """The observations to act on, [N, …]; the caller may overwrite rows."""

    @abstractmethod
    def _origins(self, long: list[bool]) -> list[dict[str, Any] | None]:
        """Return `ActionRecorder.written` of each env."""

    @abstractmethod
    def _replay(self, episodes: list[RecordedEpisode | None], abandon: Abandon) -> list[ReplayOutcome]:
        """Play an episode again in each env that has one."""

    def record(self) -> None:
        if self._action_log is None:
            self._action_log = ActionLog(self.num_envs)

    def state_dict(self) -> dict[str, Any]:
        if self._action_log is None:
            return self._remembered or {}
        state = self._action_log.state_dict()
        long = [begun < 0 for begun in state["begun"]]
        envs = self._origins(long)
        for env_index in np.flatnonzero(long).tolist():
            if (origin := envs[env_index]) is not None:
                origin["observation"] = take_rows(self._observations, np.array([env_index]))
        return {**state, "lanes": envs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._remembered, self._episodes = None, ()
        if not state:
            return
        if len(state["lanes"]) != self.num_envs:
            raise RlrunError(f"it has {len(state['lanes'])} envs, and this environment has {self.num_envs}")
        require_sound(state["lanes"])
        log = ActionLog(self.num_envs)
        log.load_state_dict(state)
        rows = [self._rows(action) for action in log.log]
        self._episodes = [
            None
            if origin is None
            else RecordedEpisode(origin, [row[env_index] for row in rows[begun:]] if begun >= 0 else [])
            for env_index, (origin, begun) in enumerate(zip(state["lanes"], state["begun"], strict=True))
        ]
        self._remembered = state

    def resume_episodes(self, abandon: Abandon = None) -> Resumed | None:
        state, self._remembered = self._remembered, None
        if state is None:
            return None
        self.record()
        assert self._action_log is not None
        self._action_log.load_state_dict(state)
        episodes, self._episodes = [*self._episodes], ()
        outcomes = self._replay(episodes, abandon)
        lost = {}
        for env_index, (episode, outcome) in enumerate(zip(episodes, outcomes, strict=True)):
            if episode is None:
                lost[env_index] = f"its episode has more than {LIMIT:,} steps"
            elif outcome.lost is not None:
                lost[env_index] = outcome.lost
            elif "whole" in episode.origin:
                put_rows(self._observations, np.array([env_index]), episode.origin["observation"])
            else:
                self._write(self._observations, env_index, outcome.observation)
        shape = (self.spaces.rewards,) if self.spaces.rewards else ()
        totals = np.array([np.broadcast_to(outcome.total, shape) for outcome in outcomes])
        return Resumed(self._observations, totals, np.array([outcome.length for outcome in outcomes]), lost)

    def _rows(self, action: Tree) -> Sequence[Any]:
        """Return a batch of policy actions as environment actions, env by env."""
        if self._to_env is not None:
            action = self._to_env(action)
        rows: Sequence[Any] = action if self._split is None else list(self._split(action))
        return rows
