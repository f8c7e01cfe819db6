"""Environments with goals: two small ones, and a part that calls the reward function of any of them.

A goal environment observes a Dict of `observation`, `achieved_goal` and `desired_goal`, and has
`compute_reward(achieved_goal, desired_goal, info)`, like those of Gymnasium-Robotics. So the reward for another goal
can be computed afterwards (`+with=hindsight`).
"""

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.typing import Array
from rlrun.env.toys.toy import Info, Toy
from rlrun.env.vector import Env

__all__ = ["BitFlip", "GoalReward", "PointReach"]

Goals = dict[str, Array]
Infos: TypeAlias = Mapping[str, Array]  # name -> [..., …]
NO_INFO: Infos = MappingProxyType({})


class GoalEnv(Toy):
    """Reward 0 if the goal is reached, else -1; an action determines the next achieved goal.

    Args:
        space: of goals.
        goal, achieved: names of the parts of an observation that are the desired and the achieved goal.
    """

    achieved: Array
    desired: Array

    def __init__(self, space: Box, *, goal: str, achieved: str) -> None:
        self.names = ("observation", achieved, goal)
        if len({*self.names}) < 3:
            raise ConfigError(f"env.kwargs: wanted two names other than 'observation', got '{goal}' and '{achieved}'")
        self.observation_space = Dict(dict.fromkeys(self.names, space))

    @abstractmethod
    def compute_reached(self, achieved_goal: Array, desired_goal: Array) -> Any:
        """Return whether goals are reached: [..., G] -> [...] bool."""

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        """Return the reward for arriving at `achieved_goal` [..., G]: [...]."""
        return np.float32(self.compute_reached(achieved_goal, desired_goal)) - np.float32(1.0)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        """Return whether `achieved_goal` [..., G] ends the episode: [...] bool; never, unless overridden."""
        return np.zeros(np.shape(achieved_goal)[:-1], np.bool_)[()]

    @abstractmethod
    def reach(self, action: Any) -> Array:
        """Return the goal that an action achieves: [G]."""

    def act(self, action: Any) -> tuple[float, bool]:
        self.achieved = self.reach(action)
        reward = float(self.compute_reward(self.achieved, self.desired, {}))
        return reward, bool(self.compute_terminated(self.achieved, self.desired, {}))

    def observe(self) -> Goals:
        goals = (self.achieved, self.achieved, self.desired)
        return {name: goal.copy() for name, goal in zip(self.names, goals, strict=True)}

    def info(self) -> Info:
        return {"is_success": bool(self.compute_reached(self.achieved, self.desired))}


class BitFlip(GoalEnv):
    """Flip bits, one a step, until they equal the goal (Andrychowicz et al. 2017, arXiv 1707.01495, section 3.1).

    observation: {"observation", "achieved_goal", "desired_goal"}, each [n] of 0.0 and 1.0, the first two equal;
    action: the bit to flip. Start and goal are random and differ. Reaching the goal terminates; an episode is
    truncated after n steps. So an episode succeeded exactly if its return is above -n.

    Answer: flip each wrong bit once: the return is 1 - (number of wrong bits), -4.0 on average for n = 10,
    and every episode succeeds. Of random episodes 0.8 % do.
    """

    def __init__(self, n: int = 10, *, goal: str = "desired_goal", achieved: str = "achieved_goal") -> None:
        if n < 1:
            raise ConfigError(f"env.kwargs.n: BitFlip wants a whole number above 0, got {n}")
        self.n = self.steps = n
        super().__init__(Box(0.0, 1.0, (n,), np.float32), goal=goal, achieved=achieved)
        self.action_space = Discrete(n)

    def compute_reached(self, achieved_goal: Array, desired_goal: Array) -> Any:
        return (achieved_goal == desired_goal).all(-1)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return self.compute_reached(achieved_goal, desired_goal)

    def begin(self) -> None:
        self.achieved = self.desired = self._draw()
        while (self.desired == self.achieved).all():
            self.desired = self._draw()

    def _draw(self) -> Array:
        return self.np_random.integers(0, 2, self.n).astype(np.float32)

    def reach(self, action: Any) -> Array:
        achieved = self.achieved.copy()
        achieved[int(action)] = 1.0 - achieved[int(action)]
        return achieved


class PointReach(GoalEnv):
    """Move a point in a square to the goal and stay there.

    observation: {"observation", "achieved_goal", "desired_goal"}, each [2] in [-1, 1], the first two equal;
    action: [2] in [-1, 1], a step of up to `stride` along each axis; walls stop the point. Start and goal are
    random. Nothing terminates; episodes are truncated after 50 steps. The goal is reached within `radius` of it.

    Answer: go straight ahead; the return is minus the number of steps on which the point is farther than `radius`
    from the goal, -8.2 on average. Random steps have -49.9 of -50.
    """

    stride, radius, steps = np.float32(0.1), np.float32(0.05), 50

    def __init__(self, *, goal: str = "desired_goal", achieved: str = "achieved_goal") -> None:
        super().__init__(Box(-1.0, 1.0, (2,), np.float32), goal=goal, achieved=achieved)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def compute_reached(self, achieved_goal: Array, desired_goal: Array) -> Any:
        return ((achieved_goal - desired_goal) ** 2).sum(-1) <= self.radius**2

    def begin(self) -> None:
        self.achieved, self.desired = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)

    def reach(self, action: Any) -> Array:
        step = self.stride * np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        achieved: Array = np.clip(self.achieved + step, -1.0, 1.0)
        return achieved


class GoalReward:
    """The reward for an achieved goal, by the environment's own `compute_reward`: [..., G] -> [...].

    `terminated` calls its `compute_terminated`, [..., G] -> [...] bool; None if the environment has none.

    Args:
        env: its outermost wrapper with the function is called. Envs in other processes are copied to this one.
        achieved: name of the part of the observation that is the achieved goal.

    Raises:
        ConfigError: the environment has no such function.
    """

    def __init__(self, env: Env, *, achieved: str = "achieved_goal") -> None:
        single_env = _single(env)
        place = f"environment '{env.name}'"
        function = _own(single_env, "compute_reward")
        if function is None:
            raise ConfigError(
                f"{place} has no compute_reward(achieved_goal, desired_goal, info): hindsight needs an environment "
                "with goals, whose observation is a Dict of observation, achieved_goal and desired_goal "
                "(env=bitflip, env=pointreach)"
            )
        space = _part(single_env.observation_space, achieved)
        self._reward = _Batched(_current(env, "compute_reward"), space, np.float32, f"{place}: compute_reward")
        terminated = None
        if _own(single_env, "compute_terminated") is not None:
            function = _current(env, "compute_terminated")
            terminated = _Batched(function, space, np.bool_, f"{place}: compute_terminated")
        self.terminated = terminated

    def __call__(self, achieved: Array, desired: Array, info: Infos = NO_INFO) -> Array:
        return self._reward(achieved, desired, info)


def _single(env: Env) -> gymnasium.Env[Any, Any]:
    """Return the first environment, or a copy of it in this process if it is closed or in another one."""
    source = env.in_process()
    if not source.envs:
        env.end()
        raise ConfigError(
            f"env.vectorization: hindsight calls the reward function of an environment in this process, and "
            f"'{env.name}' ({env.vectorization}) has none here: env.vectorization=sync"
        )
    return source.envs[0]


def _current(env: Env, name: str) -> Any:
    """Return a function that calls a method of the current environment, as a resume may replace it."""
    return lambda *arguments: _own(_single(env), name)(*arguments)


def _own(env: gymnasium.Env[Any, Any], name: str) -> Any:
    """Return a method of the outermost wrapper that has it, or of the environment itself; None if it is missing."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def _part(space: gymnasium.Space[Any], path: str) -> gymnasium.Space[Any] | None:
    """Return the part of a Dict space at a dotted path; None if it is missing."""
    for name in path.split("."):
        if not isinstance(space, Dict) or name not in space.spaces:
            return None
        space = space.spaces[name]
    return space


class _Batched:
    """Calls an environment's function for many goals at once, or one by one if it takes single goals.

    The first call decides by comparing both.
    """

    tried = 64  # rows

    def __init__(self, function: Any, space: gymnasium.Space[Any] | None, dtype: Any, place: str) -> None:
        self.function = function
        self.dtype = np.dtype(dtype)
        self.place = place
        self.dimensions = len(space.shape or ()) if space is not None else 1  # of a single goal
        self.goal_dtype = None if space is None else space.dtype
        start = getattr(space, "start", 0)
        self.start = start if np.any(start) else None  # stored discrete values count from 0
        self.at_once: bool | None = None

    def __call__(self, achieved: Array, desired: Array, info: Infos = NO_INFO) -> Array:
        shape = achieved.shape[: achieved.ndim - self.dimensions]
        achieved, desired = (self._theirs(goals, len(shape)) for goals in (achieved, desired))
        info = {name: value.reshape(-1, *value.shape[len(shape) :]) for name, value in info.items()}
        if not len(achieved):
            return np.zeros(shape, self.dtype)
        if self.at_once is None:
            few = {name: value[: self.tried] for name, value in info.items()}
            self.at_once = self._agrees(achieved[: self.tried], desired[: self.tried], few)
        rewards = (self._all if self.at_once else self._of_each)(achieved, desired, info)
        return rewards.reshape(shape)

    def _theirs(self, goals: Array, lead: int) -> Array:
        """Return goals [n, …] in the environment's units and dtype."""
        flat = goals.reshape(-1, *goals.shape[lead:])
        if self.start is not None:
            flat = flat + self.start
        return flat if self.goal_dtype is None else flat.astype(self.goal_dtype, copy=False)

    def _all(self, achieved: Array, desired: Array, info: Infos) -> Array:
        return np.asarray(self.function(achieved, desired, dict(info))).astype(self.dtype, copy=False)

    def _of_each(self, achieved: Array, desired: Array, info: Infos) -> Array:
        infos = [{name: value[row] for name, value in info.items()} for row in range(len(achieved))]
        try:
            rewards = [self.function(*arguments) for arguments in zip(achieved, desired, infos, strict=True)]
        except Exception as error:
            given = f"an info of {', '.join(info)}" if info else "an empty info"
            raise RlrunError(
                f"{self.place} failed for a goal of the memory, with {given}: {type(error).__name__}: {error}"
            ) from error
        return np.asarray(rewards).astype(self.dtype, copy=False)

    def _agrees(self, achieved: Array, desired: Array, info: Infos) -> bool:
        """Return True if batched and single calls agree, also on reached goals."""
        got = np.concatenate([achieved, achieved, achieved])
        wanted = np.concatenate([desired, achieved, np.roll(achieved, 1, axis=0)])
        thrice = {name: np.concatenate([value] * 3) for name, value in info.items()}
        try:
            reward = self._all(got, wanted, thrice)
        except Exception:
            return False
        single = self._of_each(got, wanted, thrice)
        return reward.shape == (len(got),) and bool(np.allclose(reward, single, rtol=1e-5, atol=1e-6))
