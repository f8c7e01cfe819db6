"""The interface of environments: envs that step together and restart one by one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rlrun.core.errors import ConfigError, RlrunError, describe_error
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Array, Tree
from rlrun.env.spaces import OuterSpaces, to_gymnasium
from rlrun.env.wrapper_state import States

_messages = logging.getLogger("rlrun")
Seed = int | Sequence[int | None] | None
Options = dict[str, Any] | None
GOALS = "goal_probabilities"  # the option of resets that changes between episodes


class Step(NamedTuple):
    """One step of every env.

    observation: tree [N, …], the true successor, also of an env whose episode ended; reward: [N] float32, or [N, R];
    terminated, truncated: [N] bool; valid: [N] bool, or None if all rows are transitions; False for a row that must
    not be stored (a vector environment's own reset);
    info: env -> the info of its step, for envs with one.
    """

    observation: Tree
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array | None
    info: Mapping[int, dict[str, Any]]


class Resumed(NamedTuple):
    """Environments with resumed episodes.

    observation: tree [N, …] to act on; lost: env -> why its episode could not be resumed; it must be reset.
    """

    observation: Tree
    lost: dict[int, str]


class Env(OuterSpaces, ABC):
    """N envs of one environment.

    Arrays that `reset`, `step` and `restart` return may be buffers: they stay unchanged through the next `step` and the
    `restart` after it, then they are reused.
    """

    spaces: Spaces
    num_envs: int
    name: str = "env"
    vectorization: str = "sync"
    resets_itself: bool = False  # in a separate step, whose row is not a transition
    seed_episodes: bool = False  # whether `restart` takes a seed for each episode
    frame_stack: int = 1  # frames in an observation, if it is known to be a stack of the newest ones
    envs: Sequence[gymnasium.Env[Any, Any]] = ()  # the environments themselves, if they are in this process
    inherited = ("wrappers",)  # of its state, by a fork
    remarked: set[str]  # kinds of outputs that were warned of, shared with copies
    copier: Callable[[int, str | None], Env] | None = None  # set by `make`, or else by the config
    bare_copier: Callable[[int, str | None], Env] | None = None  # likewise
    twin: Callable[[], Env] | None = None  # makes one equal env in this process; set by `make`
    varies: bool = False  # whether copies, which evaluations use, have other arguments
    maker: Callable[[], Env] | None = None  # makes equal envs, also in another process; set like `copier`
    normalizes_rewards: bool = False  # if so, evaluations count the environment's own rewards
    wrappers_elsewhere: States | None = None  # newest known states of equal envs in another process
    _closed: bool = False
    _single: Env | None = None  # the copy made by `in_process`
    _options: Options = None  # of every reset
    _goals: Mapping[str, Any] = MappingProxyType({})  # options of resets that change between episodes

    @cached_property
    def outer(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:  # type: ignore[override]
        """Gymnasium's spaces of observations and actions; by default equal to `spaces`."""
        return to_gymnasium(self.spaces.observation, tuples=True), to_gymnasium(self.spaces.action, tuples=True)

    @abstractmethod
    def reset(self, seed: Seed = None) -> Tree:
        """Start an episode in every env; with an integer `s` env i gets seed s + i. Returns observation [N, …]."""

    @abstractmethod
    def step(self, action: Tree) -> Step:
        """Step every env with policy actions [N, …] (Box in [-1, 1], Discrete from 0)."""

    @abstractmethod
    def restart(self, episode_end: Array, seeds: Sequence[int] | None = None) -> Tree:
        """Begin new episodes in the envs where `episode_end` [N] is True; return the observations [N, …] to act on.

        seeds: one for each of these envs, in order; without them the envs continue their own generators.
        """

    @abstractmethod
    def render(self) -> Any:
        """Return a frame of the first env: [H, W, 3] uint8."""

    @abstractmethod
    def close(self) -> None:
        """Close simulators, windows and workers; a second call does nothing."""

    def record(self) -> None:
        """Record episodes from the next reset on, for checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of wrappers, and if episodes are recorded, the open episode of each env."""
        states = self.wrapper_states()
        return {"wrappers": states} if states else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep recorded episodes for `resume_episodes`; if there are none, load the states of wrappers.

        Raises:
            RlrunError: the state is of another number of envs, or of other wrappers.
        """
        if "wrappers" in state:
            self.load_wrappers(state["wrappers"])

    def wrapper_states(self) -> States:
        """Return the states of wrappers that remember, pooled over all envs."""
        return self.live_wrappers() if self.wrappers_elsewhere is None else self.wrappers_elsewhere

    def live_wrappers(self) -> States:
        """Return the wrapper states of the envs that this object steps itself."""
        return {}

    def load_wrappers(self, states: States) -> None:
        """Give the wrappers of all envs their share of pooled states."""

    def freeze_wrappers(self, states: States) -> None:
        """Fix the wrappers of later episodes at pooled states."""

    def learns_unseen(self) -> dict[str, str]:
        """Return the classes of wrappers that seem to learn but offer no state -> the addition that replaces each."""
        return {}

    def resume_episodes(self, abandon: Callable[[], None] | None = None) -> Resumed | None:
        """Replay the open episode of every env, up to the step of its state.

        Args:
            abandon: called repeatedly; may raise to stop.

        Returns:
            None without a state.
        """
        return None

    def weigh_goals(self, probabilities: Array) -> None:
        """Draw the goals of later episodes with these probabilities [K].

        Raises:
            RlrunError: no wrapper draws goals.
        """
        if not self._draws_goals():
            raise RlrunError(
                f"environment '{self.name}' ({self.vectorization}) has no wrapper rlrun.env.wrappers.RandomGoal, which "
                "draws learned goals"
            )
        self._goals = {GOALS: probabilities}

    def _draws_goals(self) -> bool:
        return False

    def face(self, opponent: Any) -> None:
        """Set the opponent of later episodes: a name, or an `rlrun.env.Opponent`.

        Raises:
            ConfigError: the environment has no method `face(opponent)`, or it refuses this one.
        """
        players = [env.unwrapped for env in self._stepped()]
        if not players or not all(hasattr(player, "face") for player in players):
            raise ConfigError(f"environment '{self.name}' has no method face(opponent) that takes one")
        for player in players:
            player.face(opponent)

    @property
    def plays_both(self) -> bool:
        """Whether the agent moves for both players, so that returns do not compare players."""
        return any(getattr(env.unwrapped, "plays_both", False) for env in self._stepped())

    @property
    def rules(self) -> Any:
        """The `rlrun.env.Simulator` of a game; None for other environments."""
        rules = _rules_of(self._stepped())
        return _rules_of(self.in_process()._stepped()) if rules is None else rules

    def _stepped(self) -> Sequence[Any]:
        """Return the environments of Gymnasium that this object steps in this process."""
        return self.envs

    def _reset_options(self) -> Options:
        """Return the options of the next reset, in a dict of its own."""
        return private({**(self._options or {}), **self._goals}) or None

    def renew(self) -> None:
        """Reset layers with a `state_dict` to their states at the first call of this method."""

    def made_by(self, recipe: Any) -> None:
        """Make copies from the config node of these envs, if `make` did not make them.

        A copy has its number of envs as `num_envs` of the config, and `evaluation.env.kwargs` as arguments.

        recipe: of the config's builder.
        """
        if self.copier is not None:
            return
        given = ((recipe.tree.get("evaluation") or {}).get("env") or {}).items()
        changes = {key: value for key, value in given if value}
        self.copier = partial(_built_again, recipe, changes)
        self.bare_copier = self.copier
        self.varies = bool(changes)
        if not any(hasattr(part, "state_dict") for part in recipe.shared.values()):
            self.maker = partial(recipe.build, {}, {})

    def copy(self, num_envs: int = 1, render_mode: str | None = None) -> Env:
        """Return a separate environment of the same kind, for evaluation.

        Raises:
            RlrunError: neither a config nor `rlrun.env.make` made it, and its class does not override `copy`.
        """
        return self._copier(self.copier)(num_envs, render_mode)

    def copy_bare(self) -> Env:
        """Return a separate env without Gymnasium's Normalize wrappers."""
        return self._copier(self.bare_copier)(1, None)

    def _copier(self, copier: Callable[[int, str | None], Env] | None) -> Callable[[int, str | None], Env]:
        if copier is None:
            way_out = f"give {type(self).__name__} a method copy(num_envs, render_mode)"
            raise RlrunError(f"environment '{self.name}' was made neither by a config nor by rlrun.env.make; {way_out}")
        return copier

    def in_process(self) -> Env:
        """Return these envs, if they are open and in this process, else a copy of one env that `end` closes.

        Callers use it for an environment's own functions. `envs` is empty if there is no single environment.
        """
        if self.envs and (not self._closed or self.copier is None):
            return self
        if self._single is None:
            self._single = self.copy() if self.twin is None else self.twin()
        return self._single

    def end(self) -> None:
        """Close these envs, and the copy that `in_process` made, at the end of a run."""
        self.close()
        if self._single is not None:
            self._single.close()
            self._single = None


def _built_again(recipe: Any, changes: Mapping[str, Any], num_envs: int, render_mode: str | None) -> Env:
    """Build a copy of envs by their config node.

    changes: the `kwargs` and `reset_options` of evaluations.
    """
    arguments = dict(changes.get("kwargs") or {})
    if "reset_options" in changes:
        arguments["reset_options"] = {**(recipe.node.get("reset_options") or {}), **changes["reset_options"]}
    for name in arguments:
        if name not in recipe.takes:
            known = ", ".join(recipe.takes) or "none"
            raise ConfigError(f"{recipe.node['_target_']} takes no argument '{name}'; it takes {known}")
    if isinstance(recipe.node.get("num_envs"), int):
        arguments["num_envs"] = num_envs
    if render_mode is not None and "render_mode" in recipe.takes:
        arguments["render_mode"] = render_mode
    env: Env = recipe.build({"num_envs": num_envs}, arguments)
    return env


def private(value: Any) -> Any:
    """Return a value with copies of its dicts, lists and arrays, as an environment may change its arguments."""
    if isinstance(value, dict):
        return {key: private(part) for key, part in value.items()}
    if isinstance(value, list):
        return [private(part) for part in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def describe_lost_envs(lost: dict[int, str], count: int) -> str:
    """Return the reasons why envs were lost, as text, grouped by reason."""
    envs: dict[str, list[int]] = {}
    for env_index, why in sorted(lost.items()):
        envs.setdefault(why, []).append(env_index)
    if list(map(len, envs.values())) == [count]:
        return f"every env: {next(iter(envs))}"
    return "; ".join(
        f"{'env' if len(group) == 1 else 'envs'} {', '.join(map(str, group))}: {why}" for why, group in envs.items()
    )


def close_softly(place: str, close: Callable[[], object]) -> None:
    """Close an environment; log an error as a warning."""
    try:
        close()
    except (Exception, SystemExit) as error:
        _messages.warning("%s: close failed: %s", place, describe_error(error))


def _rules_of(envs: Sequence[Any]) -> Any:
    return next((getattr(env.unwrapped, "rules", None) for env in envs), None)


def spaces_of(env: Env | None) -> Spaces:
    """Return the spaces of one env.

    Raises:
        ConfigError: there is no environment.
    """
    if env is None:
        raise ConfigError("env=none: there is no environment whose spaces a part needs; name that of the data")
    if not hasattr(env, "spaces"):
        name = type(env).__name__
        if isinstance(env, gymnasium.vector.VectorEnv):
            way_out = "its node belongs into env: {_target_: rlrun.env.BatchedEnv, vector: …}"
        else:
            way_out = "env.target=… names what makes one environment"
        raise ConfigError(f"env: {name} is no rlrun.env.Env; {way_out}")
    return env.spaces
