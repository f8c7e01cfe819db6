"""Vector environments of Gymnasium, native ones, and EnvPool."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlrun.core.errors import DataError, RlrunError, describe_error
from rlrun.core.spaces import Space, Spaces, leaves, leaves_of, put_rows, take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.outputs import Outputs, warn
from rlrun.env.raw_return import count_raw_return, normalizes_rewards
from rlrun.env.spaces import (
    action_writer,
    batch_reader,
    from_gymnasium,
    key_of,
    parts_of,
    rewards,
    rewards_of,
    row_writer,
)
from rlrun.env.stacks import observed
from rlrun.env.sync import env_seeds
from rlrun.env.vector import Env, Resumed, Seed, Step, close_softly
from rlrun.env.wrapper_state import FrozenWrappers, LayerStates, States, learns_unseen, load_shares, pooled_states
from rlrun.training.callback import Stop


class EnvInfos(Mapping[int, dict[str, Any]]):
    """The infos of a vector environment by env; each is extracted when it is read."""

    def __init__(self, columns: dict[str, Any], count: int) -> None:
        self._columns = columns
        self._count = count

    def __getitem__(self, env_index: int) -> dict[str, Any]:
        if not 0 <= env_index < self._count:
            raise KeyError(env_index)
        row = _row(self._columns, env_index)
        final: dict[str, Any] | None = row.get("final_info")
        return row if final is None else final  # after a reset within the step, `row` is of the next episode

    def __iter__(self) -> Iterator[int]:
        return (env_index for env_index in range(self._count) if self[env_index])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _row(columns: dict[str, Any], env_index: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, column in columns.items():
        present = columns.get(f"_{name}")
        if (name.startswith("_") and name[1:] in columns) or (present is not None and not present[env_index]):
            continue
        row[name] = _row(column, env_index) if isinstance(column, dict) else column[env_index]
    return row


def _observation_of(space: gymnasium.Space[Any], raw: Any, env_index: int) -> Any:
    """Return one env's observation from those of a vector environment, in the same containers."""
    parts = parts_of(space)
    if not parts:
        return raw[env_index]
    return {
        key_of(space, name): _observation_of(part, raw[key_of(space, name)], env_index) for name, part in parts.items()
    }


class BatchedEnv(Env):
    """Steps a vector environment that resets in any of Gymnasium's three modes.

    DISABLED: ended envs are reset by a mask. NEXT_STEP: the row after an end is the reset itself, so it is marked
    invalid. SAME_STEP: the true successor is `final_obs` in the info.

    With `seeds_each` in its metadata the vector environment takes a seed for each env that it resets. With `open_state`
    and `load_open_state` it continues its open episodes after a resume.

    vector: the environment; remake: makes it from seeds, if it cannot be seeded otherwise.
    """

    def __init__(
        self,
        vector: VectorEnv[Any, Any, Any],
        *,
        reset_options: dict[str, Any] | None = None,
        place: str = "environment",
        remake: Callable[[list[int]], VectorEnv[Any, Any, Any]] | None = None,
    ) -> None:
        self.vector = vector
        self.num_envs = vector.num_envs
        self._place, self._options, self._remake = place, reset_options, remake
        observations, actions = vector.single_observation_space, vector.single_action_space
        self.spaces = Spaces(
            observation=self._observed(f"{place}: the observation space"),
            action=from_gymnasium(actions, f"{place}: the action space", action=True),
            rewards=self._rewards(),
        )
        self.outer = observations, actions
        self._rewards_shape = rewards(self.num_envs, self.spaces.rewards).shape
        self._read = batch_reader(observations)
        self._write = row_writer(observations)
        self._to_env = action_writer(actions, self.num_envs)
        self._mode = AutoresetMode((vector.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.resets_itself = self._mode is AutoresetMode.NEXT_STEP
        self.seed_episodes = self._mode is AutoresetMode.DISABLED and bool((vector.metadata or {}).get("seeds_each"))
        self._outputs = Outputs(observations, self.spaces.rewards)
        self.remarked = set()
        self._steps = 0  # since the last reset of all envs
        self._episode_end = np.zeros(self.num_envs, np.bool_)  # by the last step
        self._next: Tree = None  # observations to act on
        self._first: States | None = None
        self._frozen: FrozenWrappers | None = None
        self._open: dict[str, Any] | None = None  # state of the episodes that a resume continues
        count_raw_return(vector)
        self.normalizes_rewards = normalizes_rewards(vector)

    def _observed(self, place: str) -> Space:
        envs = getattr(self.vector.unwrapped, "envs", None)  # Gymnasium's own vector environments have these
        if envs and self.vector is self.vector.unwrapped and isinstance(envs[0], gymnasium.Env):
            return observed(envs[0], place)
        return from_gymnasium(self.vector.single_observation_space, place)

    def _rewards(self) -> int:
        return rewards_of(self.vector, self._place)

    def reset(self, seed: Seed = None) -> Tree:
        seeds = env_seeds(seed, self.num_envs)
        options = self._reset_options()
        if self._remake is not None and seed is not None:
            self.vector.close()
            self.vector = self._remake([env_seed or 0 for env_seed in seeds])
        if seed is None or self._remake is not None:
            return self._reset(None, options)
        # True if each env has a generator of its own
        own_generators = self.seed_episodes or isinstance(self.vector.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        return self._reset(seeds if own_generators else seeds[0], options)

    def _reset(self, seed: Any, options: dict[str, Any] | None) -> Tree:
        if self._frozen is not None:
            self._frozen.renew()
        observation, _ = self._call("reset", lambda: self.vector.reset(seed=seed, options=options))
        self._episode_end[:] = False
        self._steps = 0
        self._next = self._read_all(observation, "reset")
        return self._next

    def step(self, action: Tree) -> Step:
        if self._to_env is not None:
            action = self._to_env(action)
        raw, reward, terminated, truncated, info = self._call("step", lambda: self.vector.step(action))
        self._steps += 1
        observation = self._next = self._read_all(raw, "step")
        reward, flags = np.array(reward, np.float32), (np.array(terminated, np.bool_), np.array(truncated, np.bool_))
        if reward.shape != self._rewards_shape:
            spec = f"wanted {list(self._rewards_shape)} by its reward_space"
            raise self._fault("step", f"it gave rewards of shape {list(reward.shape)} for {self.num_envs} envs; {spec}")
        terminated, truncated = flags
        if not terminated.shape == truncated.shape == (self.num_envs,):
            shapes = " and ".join(str(list(flag.shape)) for flag in flags)
            raise self._fault("step", f"it gave flags of shapes {shapes}; wanted [{self.num_envs}]")
        if not isinstance(info, dict | None):
            raise self._fault("step", f"it gave an info of {type(info).__name__}; wanted a dict")
        info = {} if info is None else info
        before, self._episode_end = self._episode_end, terminated | truncated
        self._check(raw, info)
        valid = None
        if self._mode is AutoresetMode.NEXT_STEP and before.any():
            valid = ~before
        elif self._mode is AutoresetMode.SAME_STEP and self._episode_end.any():
            observation = self._successor(observation, info)
        return Step(observation, reward, terminated, truncated, valid, EnvInfos(info, self.num_envs) if info else {})

    def _read_all(self, raw: Any, event: str) -> Tree:
        """Copy the observations of all envs.

        Raises:
            DataError: their shapes differ from those of the space.
        """
        try:
            observation = self._read(raw)
        except (TypeError, LookupError, ValueError) as error:
            raise self._fault(event, f"its observations do not fit: {describe_error(error)}") from error
        space = self.spaces.observation
        for (path, leaf), values in zip(leaves(space), leaves_of(space, observation), strict=True):
            if values.shape != (self.num_envs, *leaf.shape):
                part = f" with part '{path}'" if path else ""
                wanted = f"wanted {[self.num_envs, *leaf.shape]}"
                raise self._fault(event, f"it gave observations{part} of shape {list(values.shape)}; {wanted}")
        return observation

    def _fault(self, event: str, cause: str) -> DataError:
        at = f" (step {self._steps} since all envs were reset)" if event == "step" else ""
        return DataError(f"{self._place}: {event} failed: {cause}{at}")

    def _check(self, raw: Any, info: Any) -> None:
        """Compare the observation of an env whose episode ended, and that of the first step, with the space.

        Raises:
            DataError: a choice is not in the space.
        """
        if self._episode_end.any() or self._steps == 1:
            env_index = int(self._episode_end.argmax())
            try:
                self._outputs.observation(_observation_of(self.vector.single_observation_space, raw, env_index))
            except DataError as error:
                raise self._fault("step", f"env {env_index}: {error}") from error
            warn(self._place, self._outputs.remarks, self.remarked)

    def _successor(self, observation: Tree, info: dict[str, Any]) -> Tree:
        """Return observations with the last ones of ended episodes, in place of the first of the next episode."""
        final = info.get("final_obs")
        if final is None:
            raise RlrunError(f"{self._place} resets within a step, and its info has no 'final_obs'")
        successor = take_rows(observation, np.arange(self.num_envs))
        if isinstance(final, np.ndarray) and final.dtype == object:
            for env_index in np.flatnonzero(self._episode_end).tolist():
                self._write(successor, env_index, final[env_index])
        else:
            put_rows(successor, self._episode_end, take_rows(self._read_all(final, "step"), self._episode_end))
        return successor

    def restart(self, episode_end: Array, seeds: Sequence[int] | None = None) -> Tree:
        if not episode_end.any():
            return self._next
        if seeds is not None and episode_end.all():
            return self.reset(seeds)
        if self._mode is AutoresetMode.DISABLED:
            every = None
            if seeds is not None:
                every = dict(zip(np.flatnonzero(episode_end).tolist(), seeds, strict=True))
            options = {**(self._reset_options() or {}), "reset_mask": np.array(episode_end, np.bool_)}
            return self._reset(every and [every.get(env_index) for env_index in range(self.num_envs)], options)
        if seeds is not None:
            raise RlrunError(f"{self._place} resets its envs by itself; chosen envs cannot be seeded")
        if (episode_end & ~self._episode_end).any():
            raise RlrunError(f"{self._place} resets its envs by itself; an episode cannot be cut short from outside")
        return self._next

    @property
    def keeps_open(self) -> bool:
        """Whether the vector environment can save the state of its open episodes."""
        return hasattr(self.vector.unwrapped, "load_open_state")

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self._open is not None or not self.keeps_open:
            return state if self._open is None else {**state, "open": self._open}
        return {**state, "open": self.vector.unwrapped.open_state()}  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._open = state.get("open") if self.keeps_open else None

    def resume_episodes(self, abandon: Callable[[], None] | None = None) -> Resumed | None:
        state, self._open = self._open, None
        if state is None:
            return None
        raw = self._call("resume", lambda: self.vector.unwrapped.load_open_state(state))  # type: ignore[attr-defined]
        self._next = self._read_all(raw, "resume")
        return Resumed(self._next, {})

    def _stepped(self) -> Sequence[Any]:
        return [self.vector]

    def live_wrappers(self) -> States:
        return pooled_states([self.vector])

    def load_wrappers(self, states: States) -> None:
        load_shares([self.vector], states)

    def freeze_wrappers(self, states: States) -> None:
        self._frozen = FrozenWrappers(self.vector, states)

    def renew(self) -> None:
        layers = LayerStates(self.vector)
        if self._first is None:
            self._first = layers.state_dict()
        else:
            layers.load_state_dict(self._first)

    def learns_unseen(self) -> dict[str, str]:
        return learns_unseen(self.vector)

    def render(self) -> Any:
        frames = self.vector.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        if self._closed:
            return
        if self.keeps_open:  # for the last checkpoint, which comes later
            self._open = self.state_dict()["open"]
        self._closed = True
        close_softly(self._place, self.vector.close)

    def _call(self, what: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except (Stop, RlrunError):
            raise
        except Exception as error:
            raise RlrunError(f"{self._place}: {what} failed: {describe_error(error)}") from error
