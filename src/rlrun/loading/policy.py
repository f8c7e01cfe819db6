"""Open a run that another person may have made: its files are checked, and the imports of its config limited.

`frozen` builds its policy as it was at a checkpoint: what is evaluated, looked at and exported.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun import config as configuration
from rlrun.callbacks import Validation
from rlrun.checkpointing import load
from rlrun.collect import Agent
from rlrun.config.build import Builder
from rlrun.config.interpolation import plain
from rlrun.config.reading import ROOTS, reached, resolve_texts
from rlrun.config.schema import KINDS, SETTINGS, check_kinds
from rlrun.core.errors import BuildError, ConfigError, RequestError, RunDirError, SpaceError, did_you_mean
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
from rlrun.runs.checkpoint_manifest import read_manifest
from rlrun.runs.directory import RunDir, checkpoint_key
from rlrun.runs.files import read_json, require_own_database, require_own_file
from rlrun.runs.learners import places_in
from rlrun.security import trust

REQUIRED = ("seed", "device", "threads", "precision", "stop")  # read before anything is built
READ = (*REQUIRED, "learners")  # runs of before have no learners


class Arrival(NamedTuple):
    """A run directory, and what it says."""

    directory: RunDir
    config: DictConfig  # unresolved, as it was saved
    about: dict[str, Any]  # the manifest


@contextmanager
def arrived(run: Path | str, packages: Iterable[str] = (), typed: Mapping[str, Any] | None = None) -> Iterator[Arrival]:
    """Open a run; as long as the `with` block lasts, configs import only what `rlrun.security.trust` admits.

    Other threads that build parts wait until then.

    Args:
        run: a run directory.
        packages: what its config may import beyond that, as `--trust` names it.
        typed: config key -> value, what the user typed; the names among the values are admitted, too.

    Raises:
        RequestError: there is no such run, its config or manifest is damaged, or a package is not there.
    """
    packages = trust.require_of_use(packages)
    directory = RunDir.open(run)
    about = read_json(directory.manifest)
    _check_about(about, directory.manifest)
    with one_at_a_time(), trust.limited(packages, run=directory.path, project=about.get("project"), typed=typed):
        try:
            config = configuration.load(directory.config)
            _check(config, directory.config)
        except RecursionError as error:
            raise ConfigError(f"{directory.config} is damaged: a text in it is nested too deeply") from error
        yield Arrival(directory, config, about)


def _check_about(about: Any, path: Path) -> None:
    if not isinstance(about, dict):
        raise RunDirError(f"{path} is damaged: wanted keys with values, got a {type(about).__name__}")
    past = about.get("resumed", [])
    for record in (about, *past) if isinstance(past, list) else (None,):
        if not isinstance(record, dict) or not isinstance(record.get("packages", {}), dict):
            raise RunDirError(f"{path} is damaged: it lacks what every run records")


def _check(config: DictConfig, path: Path) -> None:
    """Refuse values of the wrong kind, also where they come out of interpolations."""
    tree = plain(config)
    for name in REQUIRED:
        if name not in tree:
            raise ConfigError(f"{path} is damaged: it has no '{name}'")
    check_kinds(tree)
    resolve_texts(config, reached(config, (*ROOTS, "agent", "env")))
    try:
        known = {key: OmegaConf.select(config, key) for key in KINDS if key.split(".")[0] in (*READ, *SETTINGS)}
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
    resolved = OmegaConf.create()
    for key, value in known.items():
        if value is not None:
            OmegaConf.update(resolved, key, value, force_add=True)
    check_kinds(resolved)


def require_own_folder(folder: Path) -> None:
    """Refuse a link to somewhere else, or no folder, in place of a folder of the run.

    Raises:
        RunDirError: it is one.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RunDirError(f"{folder} is a link or a file; rlrun writes into folders and files of its own only")


def require_own_files(run: RunDir) -> None:
    """Refuse to write into what is no plain file of the run itself: a link could lead to any file of the user's.

    Raises:
        RunDirError: naming the first.
    """
    folders = (run.exports, run.videos, run.tensorboard, run.mlflow)
    for folder in (run.checkpoints, run.wandb, *folders):
        require_own_folder(folder)
    require_own_database(run.mlflow / "mlflow.db")
    for path in filter(Path.is_symlink, (run.config, run.overrides, run.manifest)):
        require_own_file(path)  # its content may go to a service
    if (settings := run.wandb / "settings").exists():
        raise RunDirError(f"{settings} cannot be used: W&B would take its settings from it; delete the file")
    listed = [folder.iterdir() for folder in (*places_in(run.checkpoints), *folders) if folder.is_dir()]
    for path in (run.metrics, run.log, *sorted(chain.from_iterable(listed))):
        if path.is_symlink() or not path.is_dir():
            require_own_file(path)


class Restored:
    """Parts of a run, built once; `take` gives them the state of a checkpoint.

    Attributes:
        config: of the run, unresolved.
        about: its manifest.
        directory: the run's.
    """

    _parts: Mapping[str, Stateful]

    def __init__(self, arrival: Arrival) -> None:
        self.directory, self.config, self.about = arrival

    def _prepared(self, device: str | None) -> str:
        """Set up the process as the run's config says; return the device, which may be another one."""
        config = self.config if device is None else OmegaConf.merge(self.config, {"device": device})
        return prepare_process(cast(DictConfig, config))

    def take(self, where: Path) -> None:
        """Give the parts the state of a checkpoint.

        Raises:
            RunDirError: it is damaged, or does not fit.
        """
        states = load(where, self._parts)
        for path, part in self._parts.items():
            restore_part(part, states[path], f"{where}: part '{path}'")

    def take_only(self, where: Path) -> None:
        """Give the parts the state of the one checkpoint that was asked for.

        Raises:
            RequestError: it is damaged; the message names the newest of the others that is not.
            RunDirError: all are.
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
        device: where the policy goes; None = as in the run.
        only_acts: make no environment, if the manifest has its spaces.
        elsewhere: config of an environment in place of the run's; a run that learned from data alone has none.

    Attributes:
        agent: what acts.
        env: what its own envs are copied from, never stepped; `RecordedSpaces` of a policy that only acts.
        max_steps: of an episode of the run's evaluations, or None.
        epsilon: probability of a sampled action in the run's evaluations.
        wrappers: states of the environment's wrappers at the checkpoint that was taken.
    """

    def __init__(
        self,
        arrival: Arrival,
        device: str | None = None,
        *,
        only_acts: bool = False,
        elsewhere: DictConfig | None = None,
    ) -> None:
        super().__init__(arrival)
        device = self._prepared(device)
        recorded, alone = None, arrival.config.get("env") is None
        if (only_acts or alone) and (spaces := arrival.about.get("spaces")) is not None:
            recorded = RecordedSpaces(spaces, str(self.directory.manifest))
        try:
            builder, agent, env = self._built(device, recorded)
        except BuildError:
            if recorded is None:
                raise
            builder, agent, env = self._built(device, None)  # a part reads more of the environment than its spaces
        limit: int | None = OmegaConf.select(arrival.config, "evaluation.max_steps")
        if alone:
            env = recorded or RecordedSpaces(describe_spaces(builder.get("spaces")), str(self.directory.manifest))
        if elsewhere is not None:
            elsewhere.encoder.layout = OmegaConf.select(arrival.config, "encoder.layout", default="auto")
            own, env = env, Builder(elsewhere).get("env")
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
        # Environments begin a new episode; open ones of the run stay with it. An agent that has never acted has no
        # state in the checkpoint.
        built = {path: part for path, part in stateful(builder.built).items() if not isinstance(part, Env)}
        self._parts = {path: part for path, part in built.items() if not (alone and f"{path}.".startswith("agent."))}
        self.wrappers: States = {}  # of the environment, at the checkpoint

    def take(self, where: Path) -> None:
        super().take(where)
        stored = "env" in read_manifest(where).parts  # a policy of data alone was trained in none
        self.wrappers = wrappers_in(load(where, ["env"])["env"]) if stored else {}

    def _built(self, device: str, recorded: RecordedSpaces | None) -> tuple[Builder, Any, Any]:
        builder = builder_of(self.config, recorded=recorded, device=device, num_envs=1)
        with torch.device(device):
            return builder, builder.get("agent"), builder.get("env")


def _require_fit(own: Spaces, env: Env, run: str) -> None:
    """Refuse an environment that does not have the spaces of a policy; it may have more choices of actions.

    Raises:
        SpaceError: naming both.
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
    """A network of a run, and what judges it by held-out data.

    Attributes:
        path: of the network in the config.
        network: it.
        validation: `callbacks.validation` of the run; None where there is none.

    Raises:
        RequestError: there is no such network, several and none is named, or an agent acts and no data are held out.
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
        """Return what judges by held-out data.

        Raises:
            RequestError: nothing does.
        """
        if self.validation is None:
            raise RequestError(f"{self.directory.path}: no callbacks.validation judges by held-out data in this run")
        return self.validation

    def _named(self, network: str | None, validated: Any) -> str:
        """Return the path of the network that was named, of the only one, or of that which is validated."""
        networks = plain(self.config).get("networks") or {}
        names = [name for name, node in networks.items() if node is not None and str(name).isidentifier()]
        paths = [f"networks.{name}" for name in names]  # a file may be called by one
        if network is None and (only := paths if len(paths) == 1 else [p for p in paths if validated == f"${{{p}}}"]):
            return only[0]
        parts = (network or "").split(".")
        if network is None or ".".join(parts[:2]) not in paths or not all(map(re.compile(r"\w+").fullmatch, parts)):
            near = did_you_mean(network or "", paths)
            raise RequestError(f"--network {network or 'NAME'}: there are {', '.join(paths) or 'none'}{near}")
        return network


@contextmanager
def judged(
    run: Path | str, network: str | None = None, trust: Iterable[str] = (), *, device: str | None = None
) -> Iterator[Judged]:
    """Open a run that another person may have made, and build a network and what judges it; arguments as of `frozen`.

    network: path in the config, such as networks.classifier, or of a part, such as networks.vae.decoder; None = the
        only one, or else that which is validated.
    """
    with process_restored(), arrived(run, trust) as arrival:
        yield Judged(arrival, network, device)


def has_env(run: Path | str, trust: Iterable[str] = ()) -> bool:
    """Return True if a run has an environment; one that learns from data alone has none."""
    with arrived(run, trust) as arrival:
        return arrival.config.get("env") is not None


def has_agent(run: Path | str, trust: Iterable[str] = ()) -> bool:
    """Return True if a run has an agent; one that learns from data alone may have none."""
    with arrived(run, trust) as arrival:
        return arrival.config.get("agent") is not None


@contextmanager
def frozen(
    run: Path | str,
    trust: Iterable[str] = (),
    *,
    typed: Mapping[str, Any] | None = None,
    device: str | None = None,
    only_acts: bool = False,
    elsewhere: DictConfig | None = None,
) -> Iterator[Frozen]:
    """Open a run that another person may have made, build its agent and environment, and close them in the end.

    Args:
        run: a run directory.
        trust: packages that its config may import, beyond those of any run and of the user's project.
        typed: config key -> value, what the user typed; the names among the values are admitted, too.
        device: where the policy goes; None = as in the run.
        only_acts: make no environment, if the manifest has its spaces.
        elsewhere: config of an environment in place of the run's.

    Raises:
        RequestError: there is no such run, it is damaged, or it names code that is not trusted.
    """
    with process_restored(), arrived(run, trust, typed) as arrival:
        if arrival.config.get("agent") is None:
            raise RequestError(f"{arrival.directory.path}: this run has no agent that plays; it learns from data alone")
        policy = Frozen(arrival, device, only_acts=only_acts, elsewhere=elsewhere)
        try:
            yield policy
        finally:
            policy.env.close()
