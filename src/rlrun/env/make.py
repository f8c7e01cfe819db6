"""Make envs from an environment's name in the config."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from rlrun.core.errors import BuildError, ConfigError, MissingExtra, RequestError, did_you_mean, require_one_of
from rlrun.core.spaces import Spaces, laid_out, leaves
from rlrun.env.batched import BatchedEnv
from rlrun.env.by_id import EnvById
from rlrun.env.find import construct, find_target, lookup, spec_of
from rlrun.env.raw_return import count_raw_return
from rlrun.env.sync import SyncEnv
from rlrun.env.vector import Env, close_softly, private
from rlrun.env.workers import WorkerEnv

NORMALIZE = (NormalizeObservation, NormalizeReward)
Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


@dataclass(frozen=True)
class Recipe:
    """The arguments of `make`, from which copies are made."""

    id: str | None = None
    target: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    reset_options: dict[str, Any] | None = None
    wrappers: tuple[Wrapper, ...] = ()
    around: dict[str, Wrapper] = field(default_factory=dict)
    vectorization: str = "sync"
    seed_episodes: bool = True
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    render_mode: str | None = None
    layout: str | Mapping[str, str] = "auto"
    remarked: set[str] = field(default_factory=set, compare=False)

    @property
    def place(self) -> str:
        """The environment's name in messages."""
        return f"env.id '{self.id}'" if self.target is None else f"env.target '{self.target}'"

    @property
    def name(self) -> str:
        """A short name for run directories: `ALE/Pong-v5` is `pong`, `my_pkg.MyEnv` is `myenv`."""
        parts = re.split(r"[/:.]", self.id) if self.target is None and self.id else (self.target or "").split(".")
        return re.sub(r"-v\d+$", "", re.sub(r"[^\w-]", "", parts[-1])).lower() or "env"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, in containers of their own."""
        mode = {} if self.render_mode is None else {"render_mode": self.render_mode}
        return {**private(self.kwargs), **mode}

    @property
    def common(self) -> dict[str, Any]:
        """Arguments of every kind of vector environment."""
        return {"reset_options": self.reset_options, "place": self.place}

    @property
    def single(self) -> dict[str, Any]:
        """Arguments of vector environments that step single environments."""
        return {**self.common, "seed_episodes": self.seed_episodes}

    @property
    def evaluated(self) -> "Recipe":
        """The recipe with the arguments and options of evaluations."""
        kwargs, options = (self.evaluation.get(name) or {} for name in ("kwargs", "reset_options"))
        reset_options = merged(self.reset_options or {}, options)
        return replace(self, kwargs=merged(self.kwargs, kwargs), reset_options=reset_options or None)

    @property
    def bare(self) -> "Recipe":
        """The recipe without Gymnasium's Normalize wrappers."""
        around = {name: wrapper for name, wrapper in self.around.items() if not _normalizes(wrapper)}
        return replace(self, wrappers=tuple(x for x in self.wrappers if not _normalizes(x)), around=around)

    def build(self) -> gymnasium.Env[Any, Any]:
        """Make one environment and put the wrappers around it, the first innermost."""
        constructor = find_target(self.target) if self.target is not None else lookup(str(self.id))
        env = construct(self.place, constructor, self.arguments)
        if not isinstance(env, gymnasium.Env):
            by_id = "; its agents are known by an id: +with=by_id" if hasattr(env, "dict_step") else ""
            raise BuildError(f"{self.place} made a {type(env).__name__}, wanted a gymnasium.Env{by_id}")
        around = [(f"env.around.{name}", wrapper) for name, wrapper in self.around.items()]
        for place, wrapper in [*((f"env.wrappers[{i}]", item) for i, item in enumerate(self.wrappers)), *around]:
            if not callable(wrapper):
                raise BuildError(f"{place}: wanted {{_target_: CLASS, …}}, as {{_target_: {wrapper}}}, got {wrapper!r}")
            try:
                env = wrapper(env)
            except RequestError:
                raise
            except Exception as error:
                raise BuildError(f"{place} around {self.place}: {type(error).__name__}: {error}") from error
        count_raw_return(env)
        for name in ("observation_space", "action_space"):
            if not isinstance(space := getattr(env, name, None), gymnasium.Space):
                kind = f"{type(space).__module__}.{type(space).__name__}"
                what = f"has no {name}" if space is None else f"has a {kind} as {name}"
                raise BuildError(f"{self.place} {what}; Gymnasium expects a gymnasium.spaces.Box, Discrete or the like")
        return env


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of dicts, updated by the values of another one."""
    new = dict(changes)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(before := base.get(key), Mapping):
            new[key] = merged(before, value)
    return {**base, **new}


def _normalizes(wrapper: Any) -> bool:
    return getattr(wrapper, "func", wrapper) in NORMALIZE


def make(
    id: str | None = None,
    *,
    target: str | None = None,
    kwargs: dict[str, Any] | None = None,
    reset_options: dict[str, Any] | None = None,
    wrappers: Sequence[Wrapper] = (),
    around: Mapping[str, Wrapper | None] | None = None,
    vectorization: str = "auto",
    seed_episodes: bool = True,
    layout: str | Mapping[str, str] = "auto",
    num_envs: int = 1,
    evaluation: Mapping[str, Any] | None = None,
) -> Env:
    """Make `num_envs` envs of a registered environment, or of one named by its import path.

    id: a registered id, `module:Id` too; target: a class or a function that makes one environment;
    wrappers: callables that take an environment and return one, the innermost first;
    around: more of them by name, around those;
    seed_episodes: whether every episode of training gets a seed, or only the first of each env;
    layout: of images, as `rlrun.core.spaces.laid_out` takes it;
    evaluation: kwargs and reset_options that override these in the copies of evaluations.

    Raises:
        RequestError: the environment cannot be found or built, or has unsupported spaces; the message names the key.
    """
    if (id is None) == (target is None):
        got = "neither" if id is None else "both; leave env=NAME out, or add env.id=null"
        raise ConfigError(f"env wants one of env.id and env.target, got {got}")
    require_one_of("env.vectorization", vectorization, ("auto", *_BUILDERS))
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(f"num_envs wants a whole number above 0, got {num_envs!r}")
    outer = {name: wrapper for name, wrapper in (around or {}).items() if wrapper is not None}
    kind = "sync" if vectorization == "auto" else vectorization
    around_all = tuple(wrappers), outer
    recipe = Recipe(
        id,
        target,
        dict(kwargs or {}),
        reset_options,
        *around_all,
        kind,
        bool(seed_episodes),
        evaluation or {},
        layout=layout,
    )
    return _assemble(recipe, num_envs)


def _assemble(recipe: Recipe, num_envs: int) -> Env:
    env = _BUILDERS[recipe.vectorization](recipe, num_envs)
    env.spaces = replace(env.spaces, observation=laid_out(env.spaces.observation, recipe.layout))
    env.name = recipe.name
    env.vectorization = recipe.vectorization
    env.remarked = recipe.remarked
    # single environments lack the wrappers of a native vector environment
    wrapped = isinstance(env, BatchedEnv) and env.vector is not env.vector.unwrapped
    several = recipe.vectorization == "native" and env.seed_episodes  # episodes of copies are played at once
    spaces = None if wrapped or (recipe.vectorization == "native" and env.wrapper_states()) else env.spaces
    env.varies = any(recipe.evaluation.values())
    env.copier = partial(_copy, recipe.evaluated, spaces, several)
    env.bare_copier = partial(_copy, recipe.evaluated.bare, spaces, several)
    env.twin = partial(_copy, recipe, spaces, several, 1, None)
    env.maker = partial(_assemble, recipe, num_envs)
    return env


def _copy(recipe: Recipe, spaces: Spaces | None, several: bool, num_envs: int, render_mode: str | None) -> Env:
    """Make envs in this process, or with the engine if a single environment is missing or has other spaces.

    spaces: of the envs; None = only the engine can make them.
    several: whether the engine makes several envs, because it seeds each.
    """
    copied = replace(recipe, render_mode=render_mode or recipe.render_mode)
    plain = replace(copied, vectorization="sync")
    if recipe.vectorization in ("sync", "async"):
        return _assemble(plain, num_envs)
    if spaces is None or recipe.vectorization in (
        "envpool",
        "by_id",
    ):  # ids and arguments of EnvPool differ from Gymnasium's
        return _assemble(copied, num_envs)
    if several and num_envs > 1 and render_mode is None:
        return _assemble(copied, num_envs)
    try:
        env = _assemble(plain, num_envs)
    except RequestError:  # there is no single environment of this id
        return _assemble(copied, num_envs)
    if _layout(env.spaces) == _layout(spaces):
        return env
    env.close()
    return _assemble(copied, num_envs)


def require_equal_spaces(env: Env) -> None:
    """Make an env of the evaluations, and refuse other spaces than those of training.

    Raises:
        ConfigError: its spaces differ, or it cannot be made.
    """
    try:
        with closing(env.copy()) as other:
            if _layout(other.spaces) != _layout(env.spaces):
                raise ConfigError("observations or actions differ from those of training")
    except RequestError as error:
        raise ConfigError(f"evaluation.env: {error}") from error


def _layout(spaces: Spaces) -> list[tuple[str, type, tuple[int, ...], str, int]]:
    parts = [*leaves(spaces.observation), *leaves(spaces.action)]
    return [(path, type(leaf), leaf.shape, leaf.dtype, leaf.size) for path, leaf in parts]


def _sync(recipe: Recipe, num_envs: int) -> Env:
    envs: list[gymnasium.Env[Any, Any]] = []
    try:
        for _ in range(num_envs):
            envs.append(recipe.build())
        return SyncEnv(envs, build=recipe.build, **recipe.single)
    except BaseException:
        for env in envs:
            close_softly(recipe.place, env.close)
        raise


def _native(recipe: Recipe, num_envs: int) -> Env:
    if recipe.target is not None:
        vector = construct(recipe.place, _of_target(recipe, num_envs), recipe.arguments)
        if not isinstance(vector, VectorEnv) or vector.num_envs != num_envs:
            count = f" of {vector.num_envs} envs" if isinstance(vector, VectorEnv) else ""
            raise ConfigError(
                f"{recipe.place}: vector_entry_point(num_envs={num_envs}) made a {type(vector).__name__}{count}, "
                f"wanted a gymnasium.vector.VectorEnv of {num_envs}"
            )
        return BatchedEnv(vector, **recipe.common)
    if spec_of(id := _engine(recipe)).vector_entry_point is None:
        raise ConfigError(f"{recipe.place} has no native vector environment; env.vectorization: sync or async")
    build = partial(gymnasium.make_vec, id, num_envs, "vector_entry_point")
    vector = construct(recipe.place, build, recipe.arguments)
    return BatchedEnv(vector, **recipe.common)


def _of_target(recipe: Recipe, num_envs: int) -> Callable[..., Any]:
    """Return the constructor of `num_envs` envs of a class; refuse wrappers, and classes without one."""
    _refuse_wrappers(recipe)
    build = getattr(find_target(str(recipe.target)), "vector_entry_point", None)
    if not callable(build):
        raise ConfigError(
            f"{recipe.place} has no vector_entry_point(num_envs), so env.vectorization is sync or async; a "
            "VectorEnv is the argument of env._target_=rlrun.env.BatchedEnv"
        )
    return partial(build, num_envs=num_envs)


def _envpool(recipe: Recipe, num_envs: int) -> Env:
    id = _engine(recipe)
    try:
        envpool = importlib.import_module("envpool")
    except ModuleNotFoundError as error:
        raise MissingExtra("env.vectorization 'envpool'", "envpool", "envpool") from error
    if id not in (known := envpool.list_all_envs()):
        raise ConfigError(f"env.id: EnvPool has no environment '{id}'{did_you_mean(id, known)}")

    def remake(seeds: Sequence[int]) -> Any:
        first = int(seeds[0]) % np.iinfo(np.int32).max  # EnvPool counts on from one int32 seed
        return envpool.make(id, env_type="gymnasium", num_envs=num_envs, seed=first, **recipe.arguments)

    vector = construct(recipe.place, partial(remake, [0]), {})
    return BatchedEnv(vector, **recipe.common, remake=remake)


def _by_id(recipe: Recipe, num_envs: int) -> Env:
    if recipe.target is None or recipe.wrappers or recipe.around or recipe.reset_options:
        raise ConfigError("+with=by_id wants env.target and env.kwargs; there are no env.id, wrappers or reset_options")
    if num_envs != 1:
        raise ConfigError(f"num_envs={num_envs}: agents known by an id share one environment; num_envs=1")
    return EnvById(construct(recipe.place, find_target(recipe.target), recipe.arguments), recipe.place)


def _engine(recipe: Recipe) -> str:
    """Return the id for an engine that makes all environments at once; refuse wrappers and targets."""
    _refuse_wrappers(recipe)
    if recipe.id is None:
        raise ConfigError(f"env.vectorization '{recipe.vectorization}' needs env.id, got {recipe.place}")
    return recipe.id


def _refuse_wrappers(recipe: Recipe) -> None:
    if recipe.wrappers or recipe.around:
        raise ConfigError(f"env.wrappers wrap single environments; env.vectorization '{recipe.vectorization}' has none")


_BUILDERS: dict[str, Callable[[Recipe, int], Env]] = {
    "sync": _sync,
    "async": lambda recipe, num_envs: WorkerEnv(recipe.build, num_envs, **recipe.single),
    "native": _native,
    "envpool": _envpool,
    "by_id": _by_id,
}
