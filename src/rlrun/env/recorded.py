"""Recording of open episodes, which a resumed run replays up to their last step.

An open episode is recorded as the seed and the options of its reset, and the actions since.
"""

import zlib
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rlrun.core.errors import RlrunError, describe_error
from rlrun.core.spaces import Spaces, leaves_of, map_tree, row_count
from rlrun.core.typing import Array, Tree
from rlrun.env.spaces import Convert, Write, aligned, empty, rewards, row_writer
from rlrun.env.vector import GOALS, Env, Options, Resumed, Step, close_softly, private
from rlrun.env.wrapper_state import LayerStates, States
from rlrun.training.callback import Stop

# Steps. A replay takes as long as the episode took: seconds for control tasks, two minutes for Atari, whose longest
# episodes have 27,000 steps. Longer tasks are hardly episodic.
LIMIT = 100_000
PORTION = 1000  # steps of a replay between two checks for signals
BLOCK = 1 << 18  # most bytes of steps that are hashed together
STEPS = 64  # most steps that are hashed together
NO_INFO: dict[int, dict[str, Any]] = {}
Abandon = Callable[[], None] | None  # may raise to stop a replay
Build = Callable[[], gymnasium.Env[Any, Any]]


class ActionLog:
    """Batches of policy actions [N, …], and the step at which each env's episode began.

    Actions before all open episodes, and actions older than `LIMIT` steps, are dropped.
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

    def state_dict(self) -> dict[str, Any]:
        """Return the actions [T, N, …] since the oldest open episode began, and the step at which each episode began.

        -1 stands for an episode of more than `LIMIT` steps.
        """
        long = [self.steps - begun > LIMIT for begun in self.begun]
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
    """Return the actions [N, …] of T steps as [T, N, …], in a common dtype."""
    actions: Array = np.concatenate(steps).reshape(len(steps), *steps[0].shape)
    return actions


class StepBlock:
    """Buffers for the newest steps of N envs, and a running hash of each env's open episode.

    The hash is a checksum of all observations and one of all rewards. In an open episode neither `terminated` nor
    `truncated` is ever True. Whole blocks of steps are hashed at once, which costs a step nothing.

    Args:
        spaces: of one env.
        num_envs: N.
    """

    def __init__(self, spaces: Spaces, num_envs: int) -> None:
        first = empty(spaces.observation, num_envs)
        size = sum(leaf.nbytes for leaf in leaves_of(spaces.observation, first)) + 1
        self.length = max(3, min(STEPS, BLOCK // size))  # a step's buffers stay unchanged for two more steps
        observation = map_tree(partial(aligned, self.length), first)
        reward = np.zeros((self.length, *rewards(num_envs, spaces.rewards).shape), np.float32)
        flags = np.zeros((2, self.length, num_envs), np.bool_)
        self.steps: list[Step] = [
            Step(map_tree(itemgetter(at), observation), reward[at], flags[0, at], flags[1, at], None, NO_INFO)
            for at in range(self.length)
        ]
        # Writing plain numbers through memoryviews takes half as long as through numpy.
        columns: list[Sequence[Any]] = [step[1:4] for step in self.steps]
        self.views = [[memoryview(column) for column in step] for step in columns]
        self.newest = self.length - 1  # place of the newest step
        self.hashing = False
        self._space = spaces.observation
        self._blocks: list[Array] = [*leaves_of(spaces.observation, observation), reward]
        self._hashed = [self.length] * num_envs  # place before which each env's steps are hashed
        self._sums = [[0] * len(self._blocks) for _ in range(num_envs)]

    def advance(self) -> Step:
        """Return the buffers of the next step; they are reused after `length` steps."""
        self.newest += 1
        if self.newest == self.length:
            if self.hashing:
                self._hash(self.length)
                self._hashed = [0] * len(self._hashed)
            self.newest = 0
        step: Step = self.steps[self.newest]
        return step

    def begin(self, envs: Iterable[int], observation: Tree) -> None:
        """Begin new episodes in some envs, with these first observations [N, …]."""
        leaves = leaves_of(self._space, observation)
        for env_index in envs:
            self._sums[env_index] = [zlib.crc32(leaf[env_index].tobytes()) for leaf in leaves] + [0]
            self._hashed[env_index] = self.newest + 1

    def hashes(self) -> list[list[int]]:
        """Return the checksums of each env's open episode: one for each leaf of observations, and that of rewards."""
        self._hash(self.newest + 1)
        return [list(sums) for sums in self._sums]

    def load(self, hashes: Sequence[Sequence[int]]) -> None:
        """Continue with these checksums."""
        self._sums = [list(sums) for sums in hashes]
        self._hashed = [self.newest + 1] * len(self._hashed)

    def _hash(self, end: int) -> None:
        for env_index, begin in enumerate(self._hashed):
            if begin < end:
                sums = self._sums[env_index]
                for place, block in enumerate(self._blocks):
                    sums[place] = zlib.crc32(block[begin:end, env_index].tobytes(), sums[place])
                self._hashed[env_index] = end


class Episode(NamedTuple):
    """The data that restores an open episode, and the checksums that a replay must reproduce.

    seed: of its reset; options: those that change between episodes; before: the states of layers that remember,
        immediately before the reset; now: their states at the checkpoint; actions: of the environment, None if there
        are too many; hashes: of `StepBlock`.
    """

    seed: int | None
    options: dict[str, Any]
    before: States
    now: States
    actions: Sequence[Any] | None
    hashes: list[int]


class EpisodeOutcome(NamedTuple):
    """The result of a resume: the newest observation, or the reason why the episode is lost."""

    observation: Any = None
    lost: str | None = None


class EpisodeRecorder:
    """Records the episodes of one environment, in any process.

    Args:
        env: with all its wrappers.
        spaces: of the environment.
        build: makes a fresh one if a replay fails.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], spaces: Spaces, build: Build | None) -> None:
        self.env = env
        self.spaces = spaces
        self.build = build
        self.layers = LayerStates(env)
        self._first: States | None = None
        self._begun: dict[str, Any] | None = None

    def renew(self) -> None:
        """Restore the states that layers had at the first call."""
        if self._first is None:
            self._first = self.layers.state_dict()
        else:
            self.layers.load_state_dict(self._first)

    def begin(self, seed: int | None, options: Options) -> None:
        """Note seed and options of the next reset, and the states on which it depends."""
        changing = {GOALS: np.array(options[GOALS])} if options and GOALS in options else {}
        before = self.layers.state_dict()
        if self._begun is None:
            self.layers.require_savable(before)
        self._begun = {"seed": seed, "options": changing, "before": before}

    def state_dict(self) -> dict[str, Any]:
        """Return the beginning of the open episode, and the present states of layers that remember."""
        begun = self._begun or {"seed": None, "options": {}, "before": {}}
        return {**begun, "now": self.layers.state_dict()}

    def resume(self, episode: Episode, options: Options, abandon: Abandon = None) -> EpisodeOutcome:
        """Replay an episode; if this fails, make a fresh environment and return the reason."""
        try:
            lost, observation = self._replay(episode, options, abandon or (lambda: None))
        except Stop:
            raise
        except (Exception, SystemExit) as error:
            lost, observation = describe_error(error), None
        if lost is None:
            return EpisodeOutcome(observation)
        if self.build is not None:
            close_softly("resume", self.env.close)
            self.env = self.build()
            self.layers = LayerStates(self.env)
        try:
            self.layers.load_state_dict(episode.now)
        except RlrunError as error:
            lost = str(error)
        return EpisodeOutcome(lost=lost)

    def _replay(self, episode: Episode, options: Options, abandon: Callable[[], None]) -> tuple[str | None, Any]:
        """Return why the episode is lost, or None and the newest observation."""
        if episode.actions is None:
            return f"its episode has more than {LIMIT:,} steps", None
        abandon()
        self.layers.load_state_dict(episode.before)
        self._begun = {"seed": episode.seed, "options": episode.options, "before": episode.before}
        block, write = StepBlock(self.spaces, 1), row_writer(self.env.observation_space)
        options = private({**(options or {}), **episode.options}) or None
        observation, _ = self.env.reset(seed=episode.seed, options=options)
        row = empty(self.spaces.observation, 1)
        write(row, 0, observation)
        block.hashing = True
        block.begin([0], row)
        count = len(episode.actions)
        for number, action in enumerate(episode.actions, 1):
            step = block.advance()
            observation, step.reward[0], terminated, truncated, _ = self.env.step(action)
            write(step.observation, 0, observation)
            if terminated or truncated:
                return f"played again, its episode ended after {number} of {count} steps", None
            if number % PORTION == 0:
                abandon()
        if block.hashes()[0] != episode.hashes:
            return "played again, its episode had other observations or rewards", None
        return None, observation


class Recorded(Env):
    """Envs whose episodes are recorded, in this process or in workers."""

    _recording = False
    _last_written: Sequence[dict[str, Any]] = ()  # saved by `close`, for the last checkpoint
    _last_wrappers: Mapping[str, Any] = MappingProxyType({})  # likewise
    _action_log: ActionLog | None = None  # only if every episode has a seed
    _remembered: dict[str, Any] | None = None
    _episodes: Sequence[Episode] = ()  # of the remembered state, by env
    _block: StepBlock
    _next: Tree  # observations to act on, [N, …]
    _write: Write  # from an environment's observation into a row of observations
    _to_env: Convert | None  # from policy actions to environment actions
    _split: Callable[[Any], Iterator[Any]] | None  # splits environment actions by env, if they are not an array

    @abstractmethod
    def _written(self) -> list[dict[str, Any]]:
        """Return `EpisodeRecorder.state_dict` of each env."""

    def _keep_last(self) -> None:
        """Keep the states of envs that are about to be closed; those of a worker that died are lost."""
        with suppress(RlrunError):
            self._last_wrappers = self.live_wrappers()
        if self._recording:
            with suppress(RlrunError):
                self._last_written = self._written()

    def wrapper_states(self) -> States:
        if self._closed and self.wrappers_elsewhere is None:
            return dict(self._last_wrappers)
        return super().wrapper_states()

    @abstractmethod
    def _resume(self, episodes: Sequence[Episode], abandon: Abandon) -> list[EpisodeOutcome]:
        """Replay the episode of each env."""

    def record(self) -> None:
        self._recording = True
        if self._action_log is None and self.seed_episodes:
            self._action_log = ActionLog(self.num_envs)
            self._block.hashing = True

    def _note_begin(self, envs: Sequence[int], observation: Tree) -> None:
        """Record that episodes began in some envs."""
        if self._action_log is not None:
            self._action_log.begin(envs)
            self._block.begin(envs, observation)

    def state_dict(self) -> dict[str, Any]:
        if not self._recording:
            return self._remembered or super().state_dict()
        log = {"begun": [-1] * self.num_envs, "actions": None}
        if self._action_log is not None:
            log = self._action_log.state_dict()
        episodes = self._last_written if self._closed else self._written()
        return {**log, "episodes": episodes, "hashes": self._block.hashes(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._remembered, self._episodes = None, ()
        if "episodes" not in state:
            super().load_state_dict(state)
            return
        if len(state["episodes"]) != self.num_envs:
            raise RlrunError(f"it has {len(state['episodes'])} envs, and this environment has {self.num_envs}")
        log = ActionLog(self.num_envs)
        log.load_state_dict(state)
        rows = [self._rows(action) for action in log.log]
        self._episodes = [
            _episode(written, [row[env_index] for row in rows[begun:]] if begun >= 0 else None, hashes)
            for env_index, (written, begun, hashes) in enumerate(
                zip(state["episodes"], state["begun"], state["hashes"], strict=True)
            )
        ]
        self._remembered = state

    def resume_episodes(self, abandon: Abandon = None) -> Resumed | None:
        state, self._remembered = self._remembered, None
        if state is None:
            return None
        self.record()
        episodes, self._episodes = self._episodes, ()
        outcomes = self._resume(episodes, abandon)
        if self._action_log is not None:
            self._action_log.load_state_dict(state)
            self._block.load(state["hashes"])
        lost = {}
        for env_index, outcome in enumerate(outcomes):
            if outcome.lost is None:
                self._write(self._next, env_index, outcome.observation)
            else:
                lost[env_index] = outcome.lost if self.seed_episodes else "its episode has no seed (env.seed_episodes)"
        return Resumed(self._next, lost)

    def _rows(self, action: Tree) -> Sequence[Any]:
        """Return a batch of policy actions as environment actions, env by env."""
        if self._to_env is not None:
            action = self._to_env(action)
        rows: Sequence[Any] = action if self._split is None else list(self._split(action))
        return rows


def _episode(written: Mapping[str, Any], actions: Sequence[Any] | None, hashes: list[int]) -> Episode:
    return Episode(written["seed"], written["options"], written["before"], written["now"], actions, hashes)
