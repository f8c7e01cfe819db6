"""A trained policy as an object that acts: `rlrun.load(RUN).predict(observation)`."""

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from rlrun.collect.agents import Agent, initial_state, restarted
from rlrun.collect.normalized import Unwrapper
from rlrun.commands.fork.parents import find
from rlrun.core.errors import RequestError
from rlrun.core.files import place_of
from rlrun.core.spaces import describe, map_tree, tree_of
from rlrun.core.typing import Array, Tree
from rlrun.env.descriptions import containers, walk
from rlrun.env.spaces import action_writer, batch_reader, from_gymnasium
from rlrun.export.acting import FileAgent
from rlrun.export.graph import Outer, flat
from rlrun.export.opening import file_policy, is_export
from rlrun.loading.policy import frozen
from rlrun.runs.trust import require_trusted


class Policy:
    """A frozen policy that maps the environment's own observations to its own actions.

    Attributes:
        name: of the run and checkpoint, or of the file.
        observation_space, action_space: Gymnasium's, of one environment.
        recurrent: whether it has a state.
        agent: the agent, which acts on observations [N, …] in the form that networks read.
    """

    def __init__(self, agent: Agent, outer: Outer, name: str) -> None:
        self.agent, self.name = agent, name
        self.observation_space, self.action_space = outer
        self.recurrent = initial_state(agent, 1) is not None
        self._draws = agent.stochastic if isinstance(agent, FileAgent) else None  # None: the caller chooses
        self._space = from_gymnasium(outer.observation, "the observation space")
        self._leaves = [_Leaf(path, leaf) for path, leaf in walk(outer.observation)]
        self._keys = containers(outer.observation)
        self._count = 0  # size of the newest batch, for which the next three attributes are prepared
        self._initial: Tree = None
        self._shapes: list[tuple[str, tuple[int, ...]]] = []  # of the parts of the state
        self._to_env: Any = None
        network = getattr(agent, "policy", None)
        if isinstance(network, nn.Module):
            network.eval()

    def predict(
        self,
        observation: Any,
        state: Tree | None = None,
        *,
        deterministic: bool = True,
        episode_start: Any = None,
    ) -> tuple[Any, Tree | None]:
        """Return the action for an observation, or actions [N, …] for a batch, and the next state.

        Args:
            observation: as the environment gives it; its shape shows whether it is one observation or a batch.
            state: from the previous call; None at the start of an episode.
            deterministic: return the best action; otherwise sample one by torch's generator.
            episode_start: flags [N]; the state is reset where they are true.

        Raises:
            RequestError: the observation or the state does not fit.
        """
        rows, count, single = self._read(observation)
        if count != self._count:
            self._resize(count)
        if not isinstance(deterministic, bool | np.bool_):
            raise RequestError(f"{self.name}: deterministic is True or False, got {deterministic!r}")
        if state is not None and not self.recurrent:
            raise RequestError(f"{self.name}: the policy has no state; leave it out")
        if self._draws == deterministic:
            kind, value = ("draws its actions", False) if deterministic else ("knows its best actions only", True)
            raise RequestError(f"{self.name} {kind}: predict(…, deterministic={value})")
        before = self._state(state, episode_start) if self.recurrent else None
        response = self.agent(rows, before, explore=not deterministic)
        action = response["action"] if self._to_env is None else self._to_env(response["action"])
        return _first(action) if single else action, response["state"] if self.recurrent else None

    def _resize(self, count: int) -> None:
        self._initial = initial_state(self.agent, count)
        self._shapes = [(path, value.shape) for path, value in flat(self._initial)] if self.recurrent else []
        if not isinstance(self.agent, FileAgent):  # a file's actions are already in the environment's form
            self._to_env = action_writer(self.action_space, count)
        self._count = count

    def _read(self, observation: Any) -> tuple[Tree, int, bool]:
        """Return the observation [N, …] as networks read it, N, and whether it was a single one."""
        arrays, sizes = [], set()
        if self._keys and (key := _surplus(observation, self._keys)):
            raise self._refusal(f"the observation has a part '{key}'")
        for leaf in self._leaves:
            try:
                array, size = leaf.read(observation)
            except ValueError as error:
                pair = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict)
                if pair and not isinstance(self.observation_space, spaces.Tuple):
                    raise self._refusal("got what env.reset() returns, pass its first part") from None
                raise self._refusal(str(error)) from None
            arrays.append(array)
            sizes.add(size)
        if len(sizes) > 1:
            raise self._refusal("its parts differ in the number of observations")
        return tree_of(self._space, arrays), len(arrays[0]), size is None

    def _refusal(self, problem: str) -> RequestError:
        return RequestError(
            f"{self.name}: {problem}; the policy expects an observation {describe(self._space)}, or a batch of them"
        )

    def _state(self, state: Tree | None, episode_start: Any) -> Tree:
        if state is None:
            return self._initial
        try:
            state = map_tree(lambda before, value: np.asarray(value, before.dtype), self._initial, state)
            fits = [(path, value.shape) for path, value in flat(state)] == self._shapes
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError):
            fits = False
        if not fits:
            shapes = ", ".join(f"{path} {list(shape)}".strip() for path, shape in self._shapes)
            raise RequestError(f"{self.name}: the state is not one that `predict` returned for as many: {shapes}")
        if episode_start is None:
            return state
        starts = np.asarray(episode_start).reshape(-1)
        if len(starts) not in (1, self._count) or starts.dtype.kind not in "biuf":
            raise RequestError(
                f"{self.name}: episode_start is a flag, or {self._count} of them, one for each observation; "
                f"got {episode_start!r}"
            )
        return restarted(state, self._initial, np.broadcast_to(starts.astype(np.bool_), self._count))


class _Leaf:
    """A part of observations: its place and its space."""

    def __init__(self, path: str, space: Any) -> None:
        self.what = f"the observation's part '{path}'" if path else "the observation"
        self.keys = path.split(".") if path else []
        self.shape, self.dtype, self._convert = tuple(space.shape), space.dtype, batch_reader(space)
        self.real = space.dtype.kind == "f"
        first = np.asarray(getattr(space, "start", 0))
        choices = getattr(space, "nvec", getattr(space, "n", None)) if type(space).__name__ != "MultiBinary" else 2
        self.bounds = None if choices is None else (first, first + np.asarray(choices) - 1)

    def read(self, observation: Any) -> tuple[Array, int | None]:
        """Return the part [N, …] as networks read it, and N; N is None for a single observation.

        Raises:
            ValueError: it does not fit; the message is the reason.
        """
        for key in self.keys:
            try:
                observation = observation[int(key) if isinstance(observation, tuple | list) else key]
            except (LookupError, TypeError, ValueError):
                raise ValueError(f"there is no {self.what.removeprefix('the ')}") from None
        try:
            array = np.asarray(observation)
        except Exception as error:
            raise ValueError(f"{self.what} is no array: {str(error).splitlines()[0]}") from None
        if array.dtype.kind == "O":
            raise ValueError(f"{self.what} is {'None' if observation is None else 'a ' + type(observation).__name__}")
        single = array.shape == self.shape
        if not single and (array.ndim != len(self.shape) + 1 or array.shape[1:] != self.shape or not len(array)):
            raise ValueError(f"{self.what} has shape {list(array.shape)}")
        if array.dtype.kind not in ("fiub" if self.real else "iub"):
            raise ValueError(f"{self.what} is {array.dtype}")
        self._require_range(array)
        return self._convert(array[None] if single else array), None if single else len(array)

    def _require_range(self, array: Array) -> None:
        """Refuse whole numbers outside the choices or outside the space's dtype."""
        bounds: Any = self.bounds
        if bounds is None and not self.real and array.dtype != self.dtype and array.dtype.kind != "b":
            bounds = (0, 1) if self.dtype.kind == "b" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
        if bounds is not None and ((array < bounds[0]) | (array > bounds[1])).any():
            raise ValueError(f"{self.what} has values from {array.min()} to {array.max()}")


def _surplus(observation: Any, keys: Any) -> str:
    """Return a key in an observation's dicts that the space lacks, or ""; keys: as `containers` returns them."""
    if not isinstance(keys, dict) or not isinstance(observation, dict | Mapping):  # testing dict first is faster
        return ""
    own = next((str(key) for key in observation if key not in keys), "")
    return own or next((name for key in keys if (name := _surplus(observation.get(key), keys[key]))), "")


def _first(action: Any) -> Any:
    return tuple(map(_first, action)) if isinstance(action, tuple) else map_tree(lambda value: value[0], action)


def load(run: os.PathLike[str] | str, *, trust: bool = False, device: str | None = None) -> Policy:
    """Return the policy of a run or of an exported file.

    An environment is made only if its wrappers learn statistics.

    Args:
        run: RUN (its latest checkpoint), RUN@best, RUN@STEP, a result of `train`, or FILE.onnx.
        trust: build the run even if it was made elsewhere, and remember that it is trusted.
        device: of the policy; None = as in the run.

    Raises:
        RequestError: there is no such policy, it is damaged, or it is not trusted.
    """
    place = str(place_of(run))
    if is_export(place):
        if device is not None:
            raise RequestError(f"{place}: onnxruntime chooses where an exported policy runs; leave out device")
        agent, outer = file_policy(place)
        return Policy(agent, outer, os.path.basename(place))
    if os.path.isfile(place):
        raise RequestError(f"{place}: wanted RUN, RUN@best, RUN@STEP, or a FILE.onnx of rlrun export-onnx")
    parent, which = find(place)
    require_trusted(parent, trust)
    where = parent.checkpoint(which or "latest")
    name = f"{parent.path.name}@{where.name}"
    with frozen(parent.path, device=device, only_acts=True) as policy:
        policy.take_only(where)
        if not policy.wrappers:
            return Policy(policy.agent, Outer(*policy.env.outer), name)
    with frozen(parent.path, device=device) as policy:
        policy.take_only(where)
        with closing(Unwrapper(policy.env)) as unwrapper:
            bare, env = unwrapper(policy.agent, policy.wrappers)
            return Policy(bare, Outer(*env.outer), name)
