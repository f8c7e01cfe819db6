"""What the rest of `rlrun` sees of an environment: envs that step together and restart one by one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Array, Tree
from rlrun.runs.exits import describe_error

_messages = logging.getLogger("rlrun")
Seed = int | Sequence[int | None] | None


class Step(NamedTuple):
    """One step of every env.

    observation: tree [N, …], the true successor, also of an env whose episode ended; reward: [N] float32, or [N, R];
    terminated, truncated: [N] bool; valid: [N] bool, False where the row is no transition of the task
    (a vector environment's own reset) and must not be stored, or None where all rows are real;
    info: env -> what the environment said beside, for envs where it said something.
    """

    observation: Tree
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array | None
    info: Mapping[int, dict[str, Any]]


class Rejoined(NamedTuple):
    """Environments back where they were left, as far as that is possible.

    observation: tree [N, …] to act on; episode_return: [N] or [N, R] float64, the float32 rewards added up one by one;
    length: [N]; of an env that was set directly, not played again, these are NaN and -1;
    lost: env -> why it did not come back; it has to be reset.
    """

    observation: Tree
    episode_return: Array
    length: Array
    lost: dict[int, str]


class Env(ABC):
    """N envs of one environment.

    Arrays that `reset`, `step` and `restart` return may be buffers: they stay as they are through
    the next `step` and the `restart` after it, then they are written again.
    """

    spaces: Spaces
    outer: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]  # observation and action, one env, as its own clients see
    num_envs: int
    name: str = "env"
    vectorization: str = "sync"
    resets_itself: bool = False  # in a step of its own, whose row is no transition
    frame_stack: int = 1  # frames in an observation, where it is known that it is a stack of the newest ones
    envs: Sequence[gymnasium.Env[Any, Any]] = ()  # the environments themselves, where they live in this process
    remarked: set[str]  # kinds of outputs that were warned of, by copies too
    copier: Callable[[int, str | None], Env] | None = None  # set by `make`
    maker: Callable[[], Env] | None = None  # makes just these envs again, in another process, too; set by `make`

    @abstractmethod
    def reset(self, seed: Seed = None) -> Tree:
        """Start an episode in every env; with an integer `s` env i gets seed s + i. Returns observation [N, …]."""

    @abstractmethod
    def step(self, action: Tree) -> Step:
        """Step every env with policy actions [N, …] (Box in [-1, 1], Discrete from 0)."""

    @abstractmethod
    def restart(self, episode_end: Array) -> Tree:
        """Begin new episodes in the envs where `episode_end` [N] is True; return the observations [N, …] to act on."""

    @abstractmethod
    def reset_envs(self, envs: Array, seeds: Sequence[int | None]) -> Tree:
        """Start episodes in chosen envs, each with a seed of its own; return the observations of all envs.

        envs: [N] bool; seeds: one for each chosen env, in order; each env is called with `reset(seed=…)`.
        """

    @abstractmethod
    def render(self) -> Any:
        """Return a frame of the first env: [H, W, 3] uint8."""

    @abstractmethod
    def close(self) -> None:
        """Let go of simulators, windows and workers; a second call does nothing."""

    def record(self) -> None:
        """Write down from the next reset on what fixes the open episodes; evaluation does without."""

    def state_dict(self) -> dict[str, Any]:
        """Return what fixes the open episode of each env; nothing where nothing is recorded."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember a state for `resume_episodes`; no environment is touched.

        Raises:
            RlrunError: it is of another number of envs.
        """

    def resume_episodes(self, abandon: Callable[[], None] | None = None) -> Rejoined | None:
        """Bring every env back to where its state was taken, by playing its open episode again.

        Args:
            abandon: called now and then; may raise to give up.

        Returns:
            None where there is no state, or such envs have none.
        """
        return None

    def renew(self) -> None:
        """Forget what was learned from episodes so far: be as when this was first called."""

    def copy(self, num_envs: int = 1, render_mode: str | None = None) -> Env:
        """Return another environment of the same making, with nothing shared, to evaluate on."""
        if self.copier is None:
            raise RlrunError(f"environment '{self.name}' was not made by rlrun.env.make and cannot be copied")
        return self.copier(num_envs, render_mode)


def close_softly(place: str, close: Callable[[], object]) -> None:
    """Close an environment, of which nothing more is wanted; warn where it fails."""
    try:
        close()
    except (Exception, SystemExit) as error:
        _messages.warning("%s: close failed: %s", place, describe_error(error))


def spaces_of(env: Env | None) -> Spaces:
    """Return what an environment gives and takes, for one env.

    Raises:
        ConfigError: there is no environment.
    """
    if env is None:
        raise ConfigError(
            "env=none: there is no environment whose spaces a part could ask for; name the one that the data is of"
        )
    return env.spaces
