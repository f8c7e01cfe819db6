"""Open a run and build its policy from a checkpoint, to evaluate, play or export it.

Commands check with `rlrun.runs.trust` first.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun import config as configuration
from rlrun.callbacks import Validation
from rlrun.checkpointing import load
from rlrun.checkpointing.manifest import read_manifest
from rlrun.collect import Agent
from rlrun.config.build import Builder, register_resolvers
from rlrun.config.interpolation import plain
from rlrun.config.places import add_to_path, project_dir
from rlrun.config.reading import ROOTS, reached, resolve_texts
from rlrun.config.schema import KINDS, SETTINGS, check_kinds
from rlrun.core.errors import BuildError, ConfigError, RequestError, RunDirError, SpaceError, did_you_mean
from rlrun.core.files import read_json
from rlrun.core.spaces import Box, Composite, Spaces, describe
from rlrun.core.typing import Stateful
from rlrun.env import Env
from rlrun.env.descriptions import RecordedSpaces, describe_spaces
from rlrun.env.wrapper_state import States, wrappers_in
from rlrun.loading.assembly import (
    builder_of,
    one_at_a_time,
    prepare_process,
    process_restored,
    restore_part,
    stateful,
)
from rlrun.runs.directory import RunDir, checkpoint_key

REQUIRED = ("seed", "device", "threads", "precision", "stop")  # read before anything is built


class Arrival(NamedTuple):
    """An opened run directory with its config and manifest."""

    directory: RunDir
    config: DictConfig  # unresolved, as it was saved
    about: dict[str, Any]  # the manifest


@contextmanager
def arrived(run: Path | str) -> Iterator[Arrival]:
    """Open a trusted run; other threads that build parts wait until the `with` block ends.

    Raises:
        RequestError: there is no such run, or its config or manifest is damaged.
    """
    directory = RunDir.open(run)
    about = read_json(directory.manifest)
    if not isinstance(about, dict):
        raise RunDirError(f"{directory.manifest} is damaged: wanted keys with values, got a {type(about).__name__}")
    with one_at_a_time():
        add_to_path(project_dir())
        config = configuration.load(directory.config)
        register_resolvers(plain(config))
        check_saved(config, directory.config)
        try:
            yield Arrival(directory, config, about)
        except BuildError as error:
            if isinstance(error.__cause__, ModuleNotFoundError) and about.get("project") not in (None, os.getcwd()):
                error.args = (f"{error}; the run was started in {about['project']}",)
            raise


def check_saved(config: DictConfig, path: Path) -> None:
    """Refuse values of the wrong kind in a saved config, also those of interpolations."""
    tree = plain(config)
    for name in REQUIRED:
        if name not in tree:
            raise ConfigError(f"{path} is damaged: it has no '{name}'")
    check_kinds(tree)
    resolve_texts(config, reached(config, (*ROOTS, "agent", "env")))
    try:
        known = {key: OmegaConf.select(config, key) for key in KINDS if key.split(".")[0] in (*REQUIRED, *SETTINGS)}
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
    resolved = OmegaConf.create()
    for key, value in known.items():
        if value is not None:
            OmegaConf.update(resolved, key, value, force_add=True)
    check_kinds(resolved)


class Restored:
    """Parts of a run, built once; `take` loads the state of a checkpoint into them.

    Attributes:
        config: of the run, unresolved.
        about: its manifest.
        directory: the run's.
    """

    _parts: Mapping[str, Stateful]

    def __init__(self, arrival: Arrival) -> None:
        self.directory, self.config, self.about = arrival

    def _prepared(self, device: str | None) -> str:
        """Set up the process by the run's config, with another device if one is given; return the device."""
        config = self.config if device is None else OmegaConf.merge(self.config, {"device": device})
        return prepare_process(cast(DictConfig, config))

    def take(self, where: Path) -> None:
        """Load the state of a checkpoint into the parts.

        Raises:
            RunDirError: the checkpoint is damaged, or does not fit.
        """
        states = load(where, self._parts)
        for path, part in self._parts.items():
            restore_part(part, states[path], f"{where}: part '{path}'")

    def take_only(self, where: Path) -> None:
        """Load the state of the requested checkpoint, and suggest another one if it is damaged.

        Raises:
            RequestError: it is damaged; the message names the newest intact one.
            RunDirError: all checkpoints are damaged.
        """
        try:
            self.take(where)
        except RunDirError as error:
            override = self._newest_good(where)
            if override is None:
                raise
            raise RequestError(f"{error}; --checkpoint {override} is the newest good one") from error

    def _newest_good(self, damaged: Path) -> str | None:
        for checkpoint in self.directory.newest_first():
            with suppress(RunDirError):
                if checkpoint != damaged and load(checkpoint, self._parts):
                    step = checkpoint_key(checkpoint)[0]
                    shared = [path for path in self.directory.checkpoint_dirs() if checkpoint_key(path)[0] == step]
                    return checkpoint.name if len(shared) > 1 else str(step)
        return None


class Frozen(Restored):
    """The agent and the environment of a run.

    Args:
        arrival: the run.
        device: of the policy; None = as in the run.
        only_acts: make no environment, if the manifest has its spaces.
        elsewhere: config of an environment in place of the run's; a run from data has none of its own.
        changes: new values of other config keys.

    Attributes:
        agent: the policy as an agent.
        env: a template that envs are copied from, never stepped; `RecordedSpaces` of a policy that only acts.
        max_steps: limit of an episode in the run's evaluations, or None.
        epsilon: probability of a sampled action in the run's evaluations.
        opponents: in the run's evaluations, by name.
        wrappers: states of the environment's wrappers at the loaded checkpoint.
    """

    def __init__(
        self,
        arrival: Arrival,
        device: str | None = None,
        *,
        only_acts: bool = False,
        elsewhere: DictConfig | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(arrival)
        device, self._changes = self._prepared(device), changes or {}
        recorded, alone = None, arrival.config.get("env") is None
        if (only_acts or alone) and (spaces := arrival.about.get("spaces")) is not None:
            recorded = RecordedSpaces(spaces, str(self.directory.manifest))
        try:
            builder, agent, env = self._built(device, recorded)
        except BuildError:
            if recorded is None:
                raise
            builder, agent, env = self._built(device, None)  # some part needs the environment itself
        limit: int | None = OmegaConf.select(arrival.config, "evaluation.max_steps")
        if alone:
            env = recorded or RecordedSpaces(describe_spaces(builder.get("spaces")), str(self.directory.manifest))
        if elsewhere is not None:
            elsewhere.encoder.layout = OmegaConf.select(arrival.config, "encoder.layout", default="auto")
            own, env = env, builder_of(elsewhere).get("env")
            limit = elsewhere.evaluation.max_steps
            if isinstance(env, Env):
                _require_fit(own.spaces, env, self.directory.path.name)
        for path, fits, kind, part in (
            ("agent", callable(agent), "something to call", agent),
            ("env", isinstance(env, Env | RecordedSpaces), "an environment", env),
        ):
            if not fits:
                raise ConfigError(f"{path}: wanted {kind}, got a {type(part).__name__}")
        self.agent: Agent = agent
        self.env: Env = env
        self.max_steps = limit
        self.eval_envs: int | None = OmegaConf.select(arrival.config, "evaluation.num_envs")
        self.epsilon: float = OmegaConf.select(arrival.config, "evaluation.epsilon") or 0.0
        named = OmegaConf.select(arrival.config, "evaluation.opponents")
        self.opponents: dict[str, Any] = dict(builder.get("evaluation.opponents")) if named else {}
        # Episodes start anew here, so the open ones of the run are not loaded. An agent that has never acted has no
        # state in the checkpoint.
        built = {path: part for path, part in stateful(builder.built).items() if not isinstance(part, Env)}
        if OmegaConf.select(arrival.config, "checkpoint.parts") is not None:
            built.pop("agent", None)  # its state only has counters for exploration
        self._parts = {path: part for path, part in built.items() if not (alone and f"{path}.".startswith("agent."))}
        self.wrappers: States = {}  # states of the environment's wrappers at the checkpoint

    def take(self, where: Path) -> None:
        super().take(where)
        stored = "env" in read_manifest(where).parts  # a policy from data was trained without an environment
        self.wrappers = wrappers_in(load(where, ["env"])["env"]) if stored else {}

    def _built(self, device: str, recorded: RecordedSpaces | None) -> tuple[Builder, Any, Any]:
        builder = builder_of(self.config, recorded=recorded, device=device, num_envs=1, **self._changes)
        with torch.device(device):
            return builder, builder.get("agent"), builder.get("env")


def _require_fit(own: Spaces, env: Env, run: str) -> None:
    """Refuse an environment whose spaces differ from those of a policy; more choices of actions are allowed.

    Raises:
        SpaceError: naming both spaces.
    """
    for role, more in (("observation", False), ("action", True)):
        wanted, here = getattr(own, role), getattr(env.spaces, role)
        if not _fits(wanted, here, more=more):
            env.close()
            raise SpaceError(
                f"{run} learned from {role}s {describe(wanted)}, and those of environment '{env.name}' are "
                f"{describe(here)}; name another one: env=NAME"
            )


def _fits(own: Any, here: Any, *, more: bool) -> bool:
    if isinstance(own, Composite) or isinstance(here, Composite):
        parts = [getattr(space, "parts", {}) for space in (own, here)]
        same = [*parts[0]] == [*parts[1]] != []
        return same and all(_fits(parts[0][name], parts[1][name], more=more) for name in parts[0])
    if type(own) is not type(here) or own.shape != here.shape:
        return False
    if isinstance(own, Box):
        return bool(own.dtype == here.dtype)
    choices = [np.asarray(getattr(space, "n", getattr(space, "nvec", 0))) for space in (own, here)]
    return bool((choices[0] <= choices[1]).all() if more else (choices[0] == choices[1]).all())


class Judged(Restored):
    """A network of a run, and the validation that judges it by held-out data.

    Attributes:
        path: of the network in the config.
        network: the network.
        validation: `callbacks.validation` of the run, or None.

    Raises:
        RequestError: there is no such network, several and no name, or the run has an agent and no held-out data.
    """

    validation: Validation | None = None

    def __init__(self, arrival: Arrival, network: str | None, device: str | None = None) -> None:
        super().__init__(arrival)
        device = self._prepared(device)
        callbacks = plain(self.config).get("callbacks")
        judges: Any = callbacks.get("validation") if isinstance(callbacks, dict) else "callbacks"
        if not isinstance(judges, dict) and (judges is not None or self.config.get("agent") is not None):
            if network is not None:
                raise RequestError(f"--network {network}: this run has an agent, which acts; leave the option out")
            self.judge()
        silent = {f"callbacks.validation.{name}": None for name in ("logger", "checkpointer") if judges}
        self.path = self._named(network, (judges or {}).get("network"))
        builder = builder_of(self.config, device=device, **silent)
        with torch.device(device):
            self.validation = builder.get("callbacks.validation") if judges else None
            self.network: Any = builder.get(top := ".".join(self.path.split(".")[:2]))
        for path, kind in (("callbacks.validation", Validation), (top, torch.nn.Module))[not judges :]:
            if not isinstance(part := builder.get(path), kind):
                raise ConfigError(f"{path}: wanted a {kind.__name__}, got a {type(part).__name__}")
        self._parts = stateful(builder.built)
        try:
            self.network = self.network.get_submodule(self.path[len(top) + 1 :])
        except AttributeError as error:
            names = ", ".join(name for name, _ in self.network.named_children())
            raise RequestError(f"--network {self.path}: {error}; {top} has the parts {names}") from None

    def judge(self) -> Validation:
        """Return the validation by held-out data.

        Raises:
            RequestError: the run has none.
        """
        if self.validation is None:
            raise RequestError(f"{self.directory.path}: no callbacks.validation judges by held-out data in this run")
        return self.validation

    def _named(self, network: str | None, validated: Any) -> str:
        """Return the path of the named network; by default the only one, or the one that is validated."""
        networks = plain(self.config).get("networks") or {}
        paths = [f"networks.{name}" for name, node in networks.items() if node is not None]
        if network is None and (only := paths if len(paths) == 1 else [p for p in paths if validated == f"${{{p}}}"]):
            return only[0]
        parts = (network or "").split(".")
        if network is None or ".".join(parts[:2]) not in paths or not all(map(re.compile(r"\w+").fullmatch, parts)):
            near = did_you_mean(network or "", paths)
            raise RequestError(f"--network {network or 'NAME'}: there are {', '.join(paths) or 'none'}{near}")
        return network


@contextmanager
def judged(run: Path | str, network: str | None = None, *, device: str | None = None) -> Iterator[Judged]:
    """Open a run, and build a network with its validation; other arguments as of `frozen`.

    network: path in the config, such as networks.classifier, or of a module in one, such as networks.vae.decoder;
        None = the only one, or else the one that is validated.
    """
    with process_restored(), arrived(run) as arrival:
        yield Judged(arrival, network, device)


def has_env(run: Path | str) -> bool:
    """Return True if a run has an environment; a run from data has none."""
    return configuration.load(RunDir.open(run).config).get("env") is not None


def has_agent(run: Path | str) -> bool:
    """Return True if a run has an agent; a run from data may have none."""
    return configuration.load(RunDir.open(run).config).get("agent") is not None


@contextmanager
def frozen(
    run: Path | str,
    *,
    device: str | None = None,
    only_acts: bool = False,
    elsewhere: DictConfig | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Iterator[Frozen]:
    """Open a run, build its agent and environment, and close them at the end of the `with` block.

    Args:
        run: a run directory.
        device: of the policy; None = as in the run.
        only_acts: make no environment, if the manifest has its spaces.
        elsewhere: config of an environment in place of the run's.
        changes: new values of other config keys.

    Raises:
        RequestError: there is no such run, or it is damaged.
    """
    with process_restored(), arrived(run) as arrival:
        if arrival.config.get("agent") is None:
            raise RequestError(f"{arrival.directory.path}: this run has no agent that plays; it learns from data alone")
        policy = Frozen(arrival, device, only_acts=only_acts, elsewhere=elsewhere, changes=changes)
        try:
            yield policy
        finally:
            policy.env.close()
