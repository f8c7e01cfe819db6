"""States of wrappers and environments that last across episodes: saved, loaded, frozen and pooled.

A layer of an environment, a wrapper or the environment itself, takes part by `state_dict()` and
`load_state_dict(state)`. Gymnasium's NormalizeObservation and NormalizeReward take part without changes.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import vector

from rlrun.checkpointing import split
from rlrun.core.errors import RlrunError, describe_error

MOMENTS = ("mean", "var", "count")
FREEZABLE = "update_running_mean"  # Gymnasium's attribute: False keeps the statistics unchanged
# Gymnasium's wrappers that learn: the attribute with their moments, and the one with the open discounted return.
_NORMALIZERS: tuple[tuple[type[Any], str, str | None], ...] = (
    (wrappers.NormalizeObservation, "obs_rms", None),
    (wrappers.NormalizeReward, "return_rms", "discounted_reward"),
    (vector.NormalizeObservation, "obs_rms", None),
    (vector.NormalizeReward, "return_rms", "accumulated_reward"),
)

_LIBRARIES = ("gymnasium.", "rlrun.", "ale_py.", "minigrid.")  # their wrappers do not learn, except those above
_OF_REWARDS = re.compile("rew|ret", re.IGNORECASE)

Layer = Any  # a gymnasium.Env or VectorEnv
States = dict[str, dict[str, Any]]  # a layer's name -> its state


def layers_of(env: Layer) -> Iterator[Layer]:
    """Yield the wrappers around an environment, the outermost first, and the environment itself."""
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        yield env
        env = env.env
    yield env


class LayerStates:
    """The states of all layers of one environment that offer a state.

    A layer offers its state by `state_dict` and `load_state_dict`. Gymnasium's Normalize wrappers, and classes derived
    from them, add their moments and the open discounted return.

    Args:
        env: with all its wrappers.
        wrappers_only: leave out the environment itself, unless it holds running moments.

    Attributes:
        layers: name -> layer, the outermost first; a name is the layer's number and class.
    """

    def __init__(self, env: Layer, *, wrappers_only: bool = False) -> None:
        self.layers: dict[str, Layer] = {}
        for number, layer in enumerate(layers_of(env)):
            inner = not isinstance(layer, gymnasium.Wrapper | VectorWrapper)
            if offers_state(layer) and not (wrappers_only and inner and not has_moments(layer)):
                self.layers[f"{number}.{type(layer).__name__}"] = layer

    def __bool__(self) -> bool:
        """Return True if any layer offers a state."""
        return bool(self.layers)

    def state_dict(self) -> States:
        """Return a copy of the state of each layer.

        Raises:
            RlrunError: a layer's own `state_dict` fails.
        """
        return {name: _call(name, "state_dict", _take, layer) for name, layer in self.layers.items()}

    def require_savable(self, states: States) -> None:
        """Refuse states that a checkpoint cannot hold, before training begins.

        Raises:
            RlrunError: a layer's own state has other things than numbers, text, arrays and nests of these.
        """
        for name, state in states.items():
            try:
                split(state, "")
            except RlrunError as error:
                raise RlrunError(f"env: state_dict of {name.partition('.')[2]}: {error}") from error

    def load_state_dict(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the state of each layer.

        Raises:
            RlrunError: the states are of other layers, or a layer refuses its state.
        """
        if states.keys() != self.layers.keys():
            has, wanted = (", ".join(names) or "no layer" for names in (states, self.layers))
            raise RlrunError(f"the state is of {has}, and this environment remembers by {wanted}")
        for name, layer in self.layers.items():
            _call(name, "load_state_dict", _load, layer, deepcopy({**states[name]}))

    def freeze(self) -> None:
        """Stop the updates of every layer that has `update_running_mean`."""
        for layer in self.layers.values():
            if is_freezable(layer):
                layer.update_running_mean = False


class FrozenWrappers:
    """Keeps the wrappers of one environment at fixed states.

    Statistics of a wrapper with `update_running_mean` are frozen. A wrapper with a `state_dict` of its own is reset to
    its state before each episode.

    Args:
        env: with all its wrappers.
        states: of its wrappers.

    Raises:
        RlrunError: the states are of other wrappers.
    """

    def __init__(self, env: Layer, states: States) -> None:
        layers = LayerStates(env, wrappers_only=True)
        layers.load_state_dict(states)
        layers.freeze()
        own = {name for name, layer in layers.layers.items() if _has_own_state(layer) or not is_freezable(layer)}
        self._states = {name: states[name] for name in layers.layers if name in own}
        layers.layers = {name: layers.layers[name] for name in self._states}
        self._renewed = layers

    def renew(self) -> None:
        """Restore the states, before the next reset."""
        if self._states:
            self._renewed.load_state_dict(self._states)
            self._renewed.freeze()


def offers_state(layer: Layer) -> bool:
    """Return True if the state of a layer can be saved and loaded."""
    return _has_own_state(layer) or any(isinstance(layer, kind) for kind, _, _ in _NORMALIZERS)


def _has_own_state(layer: Layer) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in ("state_dict", "load_state_dict"))


def is_freezable(layer: Layer) -> bool:
    """Return True if a layer has the attribute `update_running_mean` of its own."""
    return hasattr(type(layer), FREEZABLE) or FREEZABLE in attributes_of(layer)


def has_moments(layer: Layer) -> bool:
    """Return True if an attribute of a layer, or a part of one, is a running mean and variance with a count."""
    return next(_moments_of(layer), None) is not None


def _moments_of(layer: Layer) -> Iterator[Any]:
    for value in attributes_of(layer).values():
        yield from _moments_in(value)


def _moments_in(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _moments_in(part)
        return
    numbers = (getattr(value, name, None) for name in MOMENTS)  # a data frame has methods of these names
    if callable(getattr(type(value), "update", None)) and not any(n is None or callable(n) for n in numbers):
        yield value


def learns_unseen(env: Layer) -> dict[str, str]:
    """Return the classes of layers that keep running moments and offer no state.

    Each is mapped to the `+with=` addition that does the same within the run.
    """
    unseen = {}
    for layer in layers_of(env):
        if offers_state(layer) or f"{type(layer).__module__}.".startswith(_LIBRARIES):
            continue
        names = [name for name, value in attributes_of(layer).items() if any(True for _ in _moments_in(value))]
        if names and not (is_freezable(layer) and not layer.update_running_mean):
            rewards = isinstance(layer, gymnasium.RewardWrapper) or any(_OF_REWARDS.search(name) for name in names)
            unseen[type(layer).__name__] = "return_norm" if rewards else "observation_norm"
    return unseen


def are_learning(env: Any, names: Collection[str], steps: int = 20) -> list[str]:
    """Return the classes, among `names`, of layers whose running moments change in a few random steps.

    env: a `SyncEnv`, which resets with the run's options.
    """
    outermost = env.envs[0]
    layers = [layer for layer in layers_of(outermost) if type(layer).__name__ in names]
    before = [_numbers(layer) for layer in layers]
    actions = deepcopy(outermost.action_space)  # it may belong to a class
    actions.seed(0)
    env.reset(0)
    for number in range(steps):
        _, _, terminated, truncated, _ = outermost.step(actions.sample())
        if terminated or truncated:
            env.reset(number)
    return [type(layer).__name__ for layer, old in zip(layers, before, strict=True) if _numbers(layer) != old]


def remembering(env: Layer, options: Mapping[str, Any] | None, *, rewards: bool, steps: int = 20) -> str | None:
    """Return the class of the innermost user's wrapper that makes a replayed episode differ; None if there is none.

    Such a wrapper remembers across episodes, but offers no state. The result is also None if the environment below it
    differs already.

    env: a fresh one; options: of its resets; rewards: whether to compare them, too.
    """
    layers = [*layers_of(env)]
    foreign = [layer for layer in layers[:-1] if not f"{type(layer).__module__}.".startswith(_LIBRARIES)]
    for layer in reversed([layer for layer in foreign if not offers_state(layer)]):
        if _differs(layer, options, steps, rewards):
            return None if _differs(layer.env, options, steps, rewards) else type(layer).__name__
    return None


def _differs(layer: Layer, options: Mapping[str, Any] | None, steps: int, rewards: bool) -> bool:
    """Play two episodes by one seed and equal actions; return True if an observation, or a reward, differs."""
    actions = deepcopy(layer.action_space)
    outputs: list[list[Any]] = []
    for episode in range(2):
        actions.seed(0)
        outputs.append([deepcopy(layer.reset(seed=0, options=deepcopy(options))[0])])
        for _ in range(steps):
            observation, reward, terminated, truncated, _ = layer.step(actions.sample())
            outputs[episode].append((deepcopy(observation), reward if rewards else 0.0))
            if terminated or truncated:
                break
    return not data_equivalence(outputs[0], outputs[1])


def _numbers(layer: Layer) -> list[Any]:
    """Return the numbers of all running moments of a layer."""
    return [np.asarray(getattr(moments, name)).tolist() for moments in _moments_of(layer) for name in MOMENTS]


def attributes_of(layer: Layer) -> dict[str, Any]:
    """Return the attributes of a layer by name, without slowing down its steps.

    Up to Python 3.12 the first `vars` of an object moves its attributes to a slower dict: CartPole's step takes a tenth
    longer. Replacing the dict by an ordinary one restores the speed.
    """
    attributes = vars(layer)
    if sys.version_info < (3, 13) and sys.getrefcount(attributes) <= 3:  # this name, the argument, and the object
        object.__setattr__(layer, "__dict__", {**attributes})
    return {**attributes}


def pool(states: Sequence[States]) -> States:
    """Return one state from those of several environments that began equal.

    Moments, each a dict with `mean`, `var` and `count`, are merged over all samples. Any other value is that of the
    first environment.
    """
    return {} if not states else _pooled(list(states))


def _pooled(values: list[Any]) -> Any:
    first = values[0]
    if len(values) == 1 or not all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
        return first
    pooled = {name: _pooled([value[name] for value in values]) for name in first}
    return pooled | joint_moments(values) if first.keys() >= {*MOMENTS} else pooled


def pooled_states(envs: Sequence[Layer]) -> States:
    """Return the states of the wrappers of several environments as one."""
    return pool([LayerStates(env, wrappers_only=True).state_dict() for env in envs])


def wrappers_in(state: Mapping[str, Any]) -> States:
    """Return the pooled states of wrappers in the saved state of an environment."""
    wrappers: States = state.get("wrappers", {})
    return wrappers


def load_shares(envs: Sequence[Layer], states: States) -> None:
    """Load into the wrappers of each environment its share of pooled states."""
    for env in envs:
        LayerStates(env, wrappers_only=True).load_state_dict(share(states, len(envs)))


def share(states: Any, count: int) -> Any:
    """Return the states for each of `count` environments; pooled, they equal the given states."""
    if not isinstance(states, dict):
        return states
    parts = {name: share(part, count) for name, part in states.items()}
    if parts.keys() >= {*MOMENTS}:
        parts["count"] = _like(float(parts["count"]) / count, parts["count"])
    return parts


def joint_moments(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean, variance and count of all samples together, from those of each part (Chan et al., 1979)."""
    counts = [float(part["count"]) for part in parts]
    total = sum(counts)
    if total <= 0.0:
        return {name: parts[0][name] for name in MOMENTS}
    weights = [count / total for count in counts]
    means, variances = ([np.asarray(part[name], np.float64) for part in parts] for name in ("mean", "var"))
    mean = sum(weight * part for weight, part in zip(weights, means, strict=True))
    spread = zip(weights, means, variances, strict=True)
    variance = sum(weight * (within + (part - mean) ** 2) for weight, part, within in spread)
    joint = zip(MOMENTS, (mean, variance, total), strict=True)
    return {name: _like(value, parts[0][name]) for name, value in joint}


def _like(value: Any, model: Any) -> Any:
    """Return numbers in the type of others: an array, a tensor or a plain number."""
    if hasattr(model, "new_tensor"):
        return model.new_tensor(value)
    return np.asarray(value, model.dtype) if isinstance(model, np.ndarray) else type(model)(value)


def _take(layer: Layer) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for kind, moments, total in _NORMALIZERS:
        if isinstance(layer, kind):
            statistics = getattr(layer, moments)
            state[moments] = {name: np.array(getattr(statistics, name)) for name in ("mean", "var")}
            state[moments]["count"] = float(statistics.count)
            state |= {} if total is None else {total: getattr(layer, total)}
    if state:
        state[FREEZABLE] = layer.update_running_mean
    if hasattr(type(layer), "state_dict"):
        state["own"] = layer.state_dict()
    return deepcopy(state)


def _load(layer: Layer, state: dict[str, Any]) -> None:
    for kind, moments, total in _NORMALIZERS:
        if isinstance(layer, kind):
            statistics = getattr(layer, moments)
            for name in MOMENTS:
                setattr(statistics, name, state[moments][name])
            if total is not None and np.shape(state[total]) == np.shape(getattr(layer, total)):  # else of other envs
                setattr(layer, total, state[total])
            layer.update_running_mean = state[FREEZABLE]
    if "own" in state:
        layer.load_state_dict(state["own"])


def _call(name: str, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        layer = name.partition(".")[2]
        raise RlrunError(f"env: {what} of {layer} failed: {describe_error(error)}") from error
