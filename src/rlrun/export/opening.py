"""Open an exported policy with its environment."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlrun import config as configuration
from rlrun.config.build import Builder
from rlrun.config.overrides import Override, apply, listed, parse
from rlrun.config.places import add_to_path, project_dir
from rlrun.config.schema import check_kinds
from rlrun.core.errors import RequestError, RunDirError, did_you_mean
from rlrun.core.files import place_of, read_bytes, read_json
from rlrun.env import Env
from rlrun.env.descriptions import space_of
from rlrun.env.sync import SyncEnv
from rlrun.env.wrapper_state import States
from rlrun.export import play_onnx
from rlrun.export.acting import FileAgent, cause
from rlrun.export.graph import Outer
from rlrun.export.making import require, said_of_env
from rlrun.loading.assembly import one_at_a_time
from rlrun.loading.policy import Frozen, frozen, has_agent, has_env
from rlrun.runs.directory import CHECKPOINT, RunDir
from rlrun.runs.trust import require_remembered

SUFFIX = ".onnx"
NEWER = ("opset version", "IR version")  # in messages of an onnxruntime that is too old for a file
PRIMARY = "episodes"  # primary config for episodes in an environment that overrides choose
NAMING = ("env", "env.id", "env.target")
LIMIT = "evaluation.max_steps"
VARIED = ("env.kwargs", "env.reset_options")  # keys that may differ in an evaluation of a run
SEARCH = "algorithm.search."  # these too, for algorithms that search
ENV = ("id", "target", "kwargs", "reset_options", "wrappers", "vectorization")  # keys of an environment in FILE.json
BLANK: dict[str, Any] = {
    "_target_": "rlrun.env.make",
    "_recipes_": ["wrappers", "around"],
    **dict.fromkeys(("id", "target")),
    **{key: {} for key in ("kwargs", "reset_options", "around")},
    "wrappers": [],
    "vectorization": "auto",
}


class Exported:
    """An exported policy and its environment, with the attributes of a run's frozen policy.

    Attributes:
        path: of the file.
        about: the content of FILE.json.
        agent: its policy.
        env: a template that envs are copied from; it takes the environment's own actions.
        max_steps: limit of an episode, or None.
    """

    def __init__(self, path: Path, data: bytes, about: Mapping[str, Any], config: DictConfig) -> None:
        session = _session(path, data)
        self.path, self.about = path, about
        self.max_steps: int | None = config.evaluation.max_steps
        self.wrappers: States = {}  # the file contains their statistics
        self.env: Env = _worker(config)
        try:
            self.agent = FileAgent(session, about, Outer.of(self.env.outer), path.name)
        except BaseException:
            self.env.close()
            raise

    @property
    def checkpoint(self) -> str:
        """Name of the exported checkpoint, if FILE.json has it; otherwise of the file."""
        name = self.about.get("checkpoint")
        return name if isinstance(name, str) and CHECKPOINT.fullmatch(name) else self.path.name

    @property
    def env_steps(self) -> int:
        """Environment steps of training; 0 if unknown."""
        steps = self.about.get("env_steps")
        return steps if isinstance(steps, int) else 0

    def require(self, *, checkpoint: str | Sequence[str], stochastic: bool, epsilon: float | None = None) -> None:
        """Refuse options that only apply to run directories.

        Raises:
            RequestError: naming the first such option.
        """
        if checkpoint not in ("latest", ["latest"]):
            raise RequestError(f"--checkpoint goes with a run directory; {self.path.name} is of one checkpoint")
        if epsilon is not None:
            raise RequestError(f"--epsilon goes with a run directory; {self.path.name} either samples or does not")
        if stochastic and not self.agent.stochastic:
            raise RequestError(
                f"--stochastic: {self.path.name} knows its best actions only; export it with --stochastic"
            )


def is_export(path: Path | str) -> bool:
    """Return True if a path names an exported policy rather than a run directory."""
    return (place := place_of(path)).suffix == SUFFIX and not place.is_dir()


def refuse_overrides(run: Path | str, overrides: Iterable[str]) -> None:
    """Refuse overrides that do not apply to a run with its own environment, with a RequestError."""
    for override in _settings(overrides):
        if not override.startswith((*(f"{place}." for place in VARIED), SEARCH)) and has_env(run):
            keys = " and ".join(f"{place}.KEY=VALUE" for place in VARIED)
            raise RequestError(
                f"{override}: a run plays in its own environment, changed by {keys} alone, and {SEARCH}KEY=VALUE of "
                "one that searches; an exported policy, FILE.onnx, plays in another environment"
            )


@contextlib.contextmanager
def frozen_in(run: Path | str, overrides: Iterable[str], *, act: str) -> Iterator[Frozen]:
    """Open a run in its own environment; for a run from data, overrides choose the environment.

    overrides: those that `refuse_overrides` accepts.
    act: the command, for messages.

    Raises:
        RequestError: the run has no agent, or has no environment and overrides choose none.
    """
    overrides, place = listed(overrides), place_of(run)
    if has_env(place) or not has_agent(place):
        varied = {override.key: override.value for override in parse(overrides)}
        search = {key: varied.pop(key) for key in [*varied] if key.startswith(SEARCH)}
        _require_keys(place, search)
        changed = configuration.load(RunDir.open(place).config) if varied else None
        packaged = changed is None or str(OmegaConf.select(changed, "env._target_")).startswith("rlrun.")
        for key, value in varied.items():
            own = key if packaged else key.replace("env.kwargs.", "env.", 1)  # arguments of the user's own class
            for where in (own, f"evaluation.{key}"):
                OmegaConf.update(changed, where, value, force_add=True)  # type: ignore[arg-type]
        with frozen(place, elsewhere=changed, changes=search) as policy:
            yield policy
        return
    parsed = _of_environments(overrides, "a run that learned from data alone")
    if not any(override.key in NAMING for override in parsed):
        raise RequestError(
            f"{place} learned from data alone and has no environment; name one: rlrun {act} {place} env=NAME (or "
            "env.id=ID, env.target=CLASS)"
        )
    with frozen(place, elsewhere=_named(parsed)) as policy:
        yield policy


def _require_keys(run: Path, search: Mapping[str, Any]) -> None:
    """Refuse settings of a search that a run lacks, with a RequestError."""
    config = configuration.load(RunDir.open(run).config) if search else None
    known = OmegaConf.select(config, SEARCH[:-1]) if config is not None else None
    for key in search:
        name = key.removeprefix(SEARCH)
        if known is None:
            raise RequestError(f"{key}: {run.name} does not search")
        if name not in known:
            near = did_you_mean(name, map(str, known), SEARCH) or f"; there are {', '.join(map(str, known))}"
            raise RequestError(f"{key}: no such key{near}")


def _of_environments(overrides: Sequence[str], subject: str) -> list[Override]:
    """Return overrides that choose or change an environment; refuse others with a RequestError."""
    parsed = parse(overrides)
    for override in parsed:
        if override.key.partition(".")[0] != "env" and override.key != LIMIT:
            raise RequestError(f"{override.text}: {subject} takes env=NAME, env.KEY=VALUE and {LIMIT}=NUMBER")
    return parsed


def _named(overrides: Sequence[Override]) -> DictConfig:
    """Return the config for episodes in the environment that overrides choose."""
    roots = ("num_envs", "env", "evaluation")
    return configuration.compose([override.text for override in overrides], primary=PRIMARY, roots=roots).config


def _settings(overrides: Iterable[str]) -> list[str]:
    """Return overrides as a list; refuse a second run or file among them."""
    for override in (overrides := listed(overrides)):
        if "=" not in override and not override.startswith("~"):
            raise RequestError(
                f"{override}: one run or exported policy plays at a time; rlrun ls and report take several"
            )
    return overrides


@contextlib.contextmanager
def exported(path: Path | str, overrides: Iterable[str] = (), *, trust: bool = False) -> Iterator[Exported]:
    """Open an exported policy; its environment is closed at the end.

    Args:
        path: of the file; `path` + `.json` describes it.
        overrides: of a command line: another environment, or changes to the one that the file names.
        trust: make the environment even if FILE.json was written elsewhere, and remember that it is trusted.

    Raises:
        RequestError: the file cannot be read or does not fit the environment, the environment is not trusted or cannot
            be made, or a package is missing.
    """
    path, parsed = place_of(path), _of_environments(_settings(overrides), "an exported policy")
    require("a policy that is an .onnx file", "onnxruntime")
    data, about = _read(path)
    own = any(override.key in NAMING for override in parsed)  # if so, nothing from FILE.json is built
    if not own:
        said = [(path.with_name(f"{path.name}.json"), said_of_env(about))]
        require_remembered(path, said, trust, "its environment was not named here", ", or name another one: env=NAME")
        add_to_path(project_dir())
    with one_at_a_time():
        policy = Exported(path, data, about, (_chosen if own else _config)(path, about, parsed))
        try:
            yield policy
        finally:
            policy.env.close()


def file_policy(path: Path | str) -> tuple[FileAgent, Outer]:
    """Return the policy of a file with the spaces in FILE.json, without making an environment.

    Raises:
        RequestError: the file or FILE.json cannot be read, or FILE.json does not describe it.
    """
    path = place_of(path)
    require("a policy that is an .onnx file", "onnxruntime")
    (data, about), place = _read(path), f"{path}.json"
    try:
        ports = {
            role: {port["name"].partition(".")[2]: port for port in about[key] if port["role"] == role}
            for key, role in (("inputs", "observation"), ("outputs", "action"))
        }
        outer = Outer(*(space_of(about[role], parts, place) for role, parts in ports.items()))
    except (KeyError, TypeError, AttributeError) as error:
        raise RunDirError(f"{place} is damaged: it does not describe the spaces") from error
    return FileAgent(_session(path, data), about, outer, path.name), outer


def _session(path: Path, data: bytes) -> Any:
    import onnxruntime

    try:
        return play_onnx.session(data)
    except Exception as error:
        message = cause(error)
        if any(override in message for override in NEWER):
            version = onnxruntime.__version__
            raise RequestError(
                f"{path} is for a newer onnxruntime than {version}: pip install -U onnxruntime"
            ) from error
        raise RequestError(f"{path} is no ONNX file, or is damaged: {message}") from error


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return a file, and the content of FILE.json.

    Raises:
        RequestError: one of them is missing, or cannot be read.
    """
    data, beside = read_bytes(path), path.with_name(f"{path.name}.json")
    if not beside.exists():
        raise RequestError(f"{beside} is missing, which describes the policy; rlrun export-onnx RUN writes both files")
    about = read_json(beside)
    if not isinstance(about, dict) or not isinstance(about.get("env", {}), dict):
        raise RunDirError(f"{beside} is damaged: wanted what an export writes")
    return data, about


def _config(path: Path, about: Mapping[str, Any], overrides: Sequence[Override]) -> DictConfig:
    """Return the config of the environment in FILE.json, with overrides applied.

    Raises:
        RequestError: FILE.json names no environment, or its config is wrong.
    """
    section = about.get("env", {})
    if section.get("id") is None and section.get("target") is None:
        if "network" in about:
            raise RequestError(f"{path.name} is a network, no policy: rlrun.load(FILE).predict(observation) asks it")
        raise RequestError(f"{path.name} does not say what it acts in; name that: rlrun eval {path.name} env=NAME")
    env = {key: value for key, value in section.items() if key in ENV and value is not None}
    config = OmegaConf.create({"env": BLANK | env, "evaluation": {"max_steps": section.get("max_steps")}})
    for override in overrides:
        apply(config, override, ())
    check_kinds(config)
    return config


def _chosen(path: Path, about: Mapping[str, Any], overrides: Sequence[Override]) -> DictConfig:
    """Return the config of the environment that overrides choose.

    Raises:
        ConfigError: an override is wrong.
    """
    config = _named(overrides)
    limit = about.get("env", {}).get("max_steps")
    if isinstance(limit, int) and not any(override.key == LIMIT for override in overrides):
        config.evaluation.max_steps = limit
        check_kinds(config)
    return config


def _worker(config: DictConfig) -> Env:
    """Return a template env that takes the environment's own actions."""
    env = Builder(config).get("env")
    if not isinstance(env, Env):
        raise RequestError(f"env: wanted an environment, got a {type(env).__name__}")
    try:
        return _direct(env.copy(num_envs=1))
    finally:
        env.close()


def _direct(env: Env) -> Env:
    if not isinstance(env, SyncEnv):
        env.close()
        raise RequestError(f"env.vectorization={env.vectorization}: a file acts on envs of this process; say sync")
    env.accept_own_actions()
    copy = env.copier
    assert copy is not None
    env.copier = lambda num_envs, render_mode: _direct(copy(num_envs, render_mode))
    return env
