"""What the config of a run may import: another person may have made a run directory, and a name in a config is code.

The overrides that a user typed and the files of the user's own `conf/` name whatever they like. `NEVER` catches
mistakes among them; it is no fence. While `limited` holds, a config names only:

* what cannot do harm with arguments of its own (`PARTS`),
* modules of the project in the working directory,
* installed plugins, and what `--trust` names.

The limits are of the whole process. Worker processes that are forked inherit them, threads do, and learners receive
them. One that is spawned builds only what its parent has built before.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlrun.core.errors import BuildError, ConfigError
from rlrun.core.layers import PARTS as PARTS_OF_RUNS
from rlrun.security import plugins, projects

# No part of a training run: they start programs, load code, run text as code, or are rlrun's own machinery.
NEVER = """
    os posix nt posixpath ntpath sys builtins importlib _frozen_importlib _frozen_importlib_external imp zipimport
    subprocess _posixsubprocess multiprocessing concurrent asyncio signal pty _thread
    shutil socket _socket socketserver ssl http urllib ftplib smtplib xmlrpc
    pickle _pickle copyreg marshal shelve dill cloudpickle joblib ctypes _ctypes cffi
    runpy code codeop pdb bdb cProfile profile trace timeit gc webbrowser pydoc doctest
    types.FunctionType types.CodeType operator.attrgetter operator.methodcaller operator.call
    pip setuptools distutils ensurepip venv site pkgutil hydra yaml logging.config unittest
    numpy.load numpy.loadtxt numpy.fromfile numpy.f2py numpy.distutils numpy.lib._npyio_impl numpy.lib.npyio
    pandas.read_pickle pandas.io.pickle pandas.eval numexpr
    torch.load torch.serialization torch.hub torch.package torch.jit.load torch.export.load torch.multiprocessing
    torch.utils.collect_env torch.utils.cpp_extension torch.utils.model_zoo torch.utils.bottleneck
    torch.ops.load_library torch.classes.load_library torch._inductor torch.distributed
    rlrun.checkpointing rlrun.cli rlrun.commands rlrun.config rlrun.devtools rlrun.loading rlrun.runs rlrun.security
    rlrun.analysis.doctor rlrun.export.checking rlrun.export.making rlrun.export.opening rlrun.export.play_onnx
    rlrun.export.during.ExportedFiles rlrun.export.during.write_file
    rlrun.checkpoints rlrun.doctor rlrun.evaluate rlrun.export_onnx rlrun.init rlrun.play
    rlrun.resume rlrun.train
""".split()  # noqa: SIM905

# A config names parts of a run by these.
PACKAGES = (
    *(f"rlrun.{name}" for name in PARTS_OF_RUNS),
    *("torch.nn", "torch.optim", "torch.distributions", "gymnasium.wrappers", "gymnasium.spaces"),
)
# Parts are the classes that are defined in these; no other module of the packages defines one.
PARTS = (
    *("rlrun.algorithms", "rlrun.callbacks", "rlrun.env", "rlrun.nn", "rlrun.ops", "rlrun.compile.update.FusedUpdate"),
    *("rlrun.core.schedules", "rlrun.core.seeds", "rlrun.training.trainer", "rlrun.export.during.OnnxExport"),
    *(
        f"rlrun.collect.{name}"
        for name in "agents async_collector by_id collector goals noisy repeating".split()  # noqa: SIM905
    ),
    *(
        f"rlrun.memory.{name}"
        for name in """
            adaptors advantages augment by_episode columns dataset ejectors hindsight intrinsic joint loaders normalize
            past prefetch prioritized proxy recent rollout rollout_table samplers split storage table transforms virtual
            whole
        """.split()  # noqa: SIM905
    ),
    *("torch.nn.modules", "torch.nn.parameter", "torch.optim", "torch.distributions", "gymnasium.spaces"),
    *(
        f"gymnasium.wrappers.{name}"
        for name in """
            atari_preprocessing common stateful_action stateful_observation stateful_reward transform_action
            transform_observation transform_reward rendering.AddWhiteNoise rendering.HumanRendering
            rendering.ObstructView rendering.RenderCollection vector.common vector.dict_info_to_list
            vector.rendering.HumanRendering vector.stateful_observation vector.stateful_reward
            vector.vectorize_action vector.vectorize_observation vector.vectorize_reward
        """.split()  # noqa: SIM905
    ),
)
FUNCTIONS = (  # some are parts, too: they compute, or make one
    *("rlrun.algorithms", "rlrun.nn", "rlrun.ops", "rlrun.env.make.make", "rlrun.env.vector.spaces_of"),
    *("rlrun.memory.sources.spaces_in", "rlrun.memory.split", "rlrun.memory.intrinsic.effort"),
    *("rlrun.callbacks.logging.sinks.make_sinks", "rlrun.callbacks.joint.replaced"),
    *("torch.nn.functional", "torch.nn.init"),
)
ELEMENTWISE = tuple(f"torch.{name}" for name in "abs clamp exp log1p sigmoid sign sqrt square tanh".split())  # noqa: SIM905
# Where the environments with a registered id are defined.
ENVIRONMENTS = (
    *(f"gymnasium.envs.{name}" for name in "box2d classic_control mujoco phys2d tabular toy_text".split()),  # noqa: SIM905
    *("ale_py", "minigrid", "rlrun.env"),
)
# Of what `${name:…}` computes: the time, else nothing from outside of the config, no text read as a config.
RESOLVERS = ("oc.select", "oc.dict.keys", "oc.dict.values", "oc.deprecated", "now")

NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")  # my_package.MyEnv
ID = re.compile(r"([^\W\d][\w.]*):.+")  # my_package:Id

limits: list[Limit] = []  # those in force; a name has to pass all of them


class Limit:
    """What one config may import.

    Args:
        packages: named by `--trust`.
        typed: config key -> value, what the user typed; a value that is a name may be imported, too.
        folder: the working directory; None where that is no project.
        project: the folder of the user's own code when the run was started, as the run says.
        run: the run directory.
    """

    def __init__(
        self,
        packages: Sequence[str],
        typed: Mapping[str, Any],
        *,
        folder: Path | None = None,
        project: Path | None = None,
        run: Path | None = None,
    ) -> None:
        self.typed = dict(typed)
        self.texts = frozenset([*(text for _, text in typed_texts(typed)), *filter(is_place, packages)])
        self.paths = frozenset(map(_absolute, self.texts))
        self.packages = (*packages, *typed_names(typed))
        self.folder = folder
        self.project = project
        self.run = None if run is None else run.resolve()
        self.carried: set[str] = set()  # top folders of the project in which the run arrived
        if folder is not None and run is not None:
            arrived = [root for root in (folder, folder / "src") if run.resolve().is_relative_to(root.resolve())]
            self.carried = {run.resolve().relative_to(root.resolve()).parts[0] for root in arrived}

    def allows(self, name: str) -> bool:
        """Return True if a dotted name may be imported."""
        if any(part.startswith("__") for part in name.split(".")):
            return False
        if within(name, self.packages):
            return True
        if within(name, PACKAGES) or name in ELEMENTWISE:
            return "._" not in name
        own = None if name.split(".")[0] in self.carried else self.folder
        return (own is not None and projects.provides(own, name)) or within(name, plugins.packages())

    def allows_object(self, target: Any, text: str) -> bool:
        """Return True if what a name led to may be called."""
        if text in self.packages or text in ELEMENTWISE:
            return True
        name, home = definition(target), getattr(target, "__module__", None)
        if not within(text, PACKAGES) or within(text, self.packages):
            if not isinstance(home, str) or within(name, self.packages):
                return True
            if not within(name, PACKAGES):
                return self.allows(name)
        elif inspect.isbuiltin(target):
            return text.startswith("torch.nn.functional.") and "._" not in text
        plain = "." not in getattr(target, "__qualname__", ".") and "._" not in name  # no method of a class
        kinds = PARTS if inspect.isclass(target) else FUNCTIONS if inspect.isfunction(target) else ()
        return plain and within(name, kinds)

    def reaches(self, text: str, path: Path | None) -> bool:
        """Return True if a file is in the run, or is what the user typed or trusts."""
        inside = path is not None and self.run in Path(os.path.expanduser(path)).resolve().parents
        return inside or text in self.texts or (path is not None and _absolute(str(path)) in self.paths)

    def way_out(self, text: str) -> str:
        """Return what a user can do who trusts the run."""
        top = text.split(".")[0]
        say = text if top in ("rlrun", "torch", "gymnasium", "numpy", "oc") else top
        if self.project is None or self.project == self.folder:
            return f"--trust {say} allows it"
        return f"stand in its project ({self.project}) or say --trust {say}"


@contextmanager
def limited(
    packages: Iterable[str] = (),
    typed: Mapping[str, Any] | None = None,
    *,
    run: Path | None = None,
    project: Any = None,
) -> Iterator[None]:
    """Restrict what configs may import, for as long as the block lasts.

    Args:
        packages: modules, packages and names in them that the user trusts beyond the others; also files, folders and
            datasets, which are what has a slash or a colon.
        typed: config key -> value, what the user typed; names among the values are admitted.
        run: the run directory; it is no project, and neither is a folder inside of it.
        project: what the run says of the folder of its own code. It is searched only for `packages` that are
            found nowhere else.

    Raises:
        ConfigError: one of the packages is no name, or there is no such module.
    """
    packages, where = tuple(packages), Path.cwd()
    inside = run is not None and (run.resolve() in (where.resolve(), *where.resolve().parents))
    recorded = Path(project) if isinstance(project, str) and project.isprintable() and project.startswith("/") else None
    folder = None if inside or projects.in_a_run(where) else where
    limit = Limit(packages, typed or {}, folder=folder, project=recorded, run=run)
    for package in packages:
        _require_there(package, limit)
    limits.append(limit)
    try:
        yield
    finally:
        limits.remove(limit)


def require_of_use(packages: Iterable[str]) -> list[str]:
    """Return the names of packages, also of a single one; refuse `--trust` of what is never allowed: it would be void.

    Raises:
        ConfigError: naming the first.
    """
    packages = [packages] if isinstance(packages, str) else list(packages)
    for package in packages:
        if within(package, NEVER):
            raise ConfigError(f"--trust {package} is void: no config may name it, whoever wrote it; leave it away")
    return packages


def is_limited() -> bool:
    """Return True if configs are restricted now."""
    return bool(limits)


def is_foreign(block: str, *texts: str) -> bool:
    """Return True if configs are restricted now and the user did not type all of these texts in a block of keys."""
    typed = [[value for key, value in limit.typed.items() if within(key, [block])] for limit in limits]
    return not all(_texts_in(values).issuperset(texts) for values in typed)


def _texts_in(typed: Any) -> set[str]:
    if isinstance(typed, Mapping):
        typed = [*typed, *typed.values()]
    return set[str]().union(*map(_texts_in, typed)) if isinstance(typed, list) else {str(typed)}


def within(name: str, packages: Iterable[str]) -> bool:
    """Return True if a dotted name is one of the packages or inside one."""
    return f"{name}.".startswith(tuple([f"{package}." for package in packages]))


def definition(target: Any) -> str:
    """Return the dotted name of the place where a class or function is defined."""
    return f"{getattr(target, '__module__', None) or ''}.{getattr(target, '__qualname__', '')}"


def admit(name: str, text: str, place: str) -> None:
    """Let a config import a module or a name in it.

    Args:
        name: of what is about to be imported.
        text: as written in the config.
        place: where.

    Raises:
        BuildError: the name is refused.
    """
    if within(name, NEVER):
        raise BuildError(f"{place}: {text} can never be a `_target_`: it reaches beyond a training run")
    for limit in limits:
        if text in limit.packages:  # also the modules on the way to it
            continue
        if not limit.allows(name) or not all(part.isidentifier() for part in name.split(".")):
            raise BuildError(f"{place}: {text} comes with the run and is not trusted; {limit.way_out(name)}")


def admit_object(target: Any, text: str, place: str) -> None:
    """Let a config call what a name led to: a forbidden function can also be reached through a module that imported it.

    Raises:
        BuildError: it is refused.
    """
    if within(definition(target), NEVER):
        raise BuildError(f"{place}: {text} can never be a `_target_`: it reaches beyond a training run")
    for limit in limits:
        if not limit.allows_object(target, text):
            raise BuildError(f"{place}: {text} comes with the run and is not trusted; {limit.way_out(text)}")


def admit_attribute(name: str, value: Any, place: str) -> None:
    """Let a config read an attribute of an object: data, but nothing that leads on to code.

    Raises:
        BuildError: it is private, or a module, class, function or method.
    """
    code = inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, partial)
    if limits and (name.startswith("_") or code):
        raise BuildError(f"{place}: '{name}' is code, not data; a config that comes with a run cannot reach it")


def admit_resolver(name: str, text: str, place: str) -> None:
    """Let a config compute a value by `${name:…}`, as part of a text.

    Raises:
        ConfigError: it is refused.
    """
    for limit in limits:
        if name not in (*RESOLVERS, *limit.packages) and text not in limit.texts:
            way_out = f"--trust {name} allows it" if name.startswith("oc.") else "it names no function for it"
            raise ConfigError(f"{place}: ${{{name}:…}} comes with the run and is not trusted; {way_out}")


def admit_environment(id: str, home: str, place: str) -> None:
    """Let a config name an environment by its id.

    Args:
        id: as it is registered.
        home: the module that defines it.
        place: where the config names it.

    Raises:
        BuildError: it is refused.
    """
    for limit in limits:
        if not (id in limit.texts or within(home, ENVIRONMENTS) or limit.allows(home)):
            raise BuildError(f"{place}: {id} comes with the run and is not trusted; {limit.way_out(home)}")


def admit_writing(text: str, path: Path | None, may_go: Callable[[Path], bool], place: str) -> None:
    """Let a config have something written: inside of its run, where the user says so, or a zip that takes nothing away.

    Args:
        text: as written in the config.
        path: the file; None where it is no file of its own, but a dataset.
        may_go: returns True if an existing file may be replaced.
        place: where the config names it.

    Raises:
        ConfigError: it is refused.
    """
    for limit in limits:
        if limit.reaches(text, path):
            continue
        if path is None or path.suffix != ".zip" or (os.path.lexists(path) and not may_go(path)):
            hint = f"writes outside of it only .zip files that are new; say {place}={text}"
            raise ConfigError(f"{place}: {text}: a config that comes with a run {hint}")


def admit_place(text: str, path: Path | None, place: str) -> None:
    """Let a config read a file or use a folder inside its run, or one that the user names.

    Args:
        text: as written in the config.
        path: the file or folder; None where it is a dataset.
        place: where the config names it.

    Raises:
        ConfigError: it is refused.
    """
    for limit in limits:
        if not limit.reaches(text, path):
            named = text if is_place(text) else f"./{text}"  # else `--trust` would look for a package
            raise ConfigError(f"{place}: {text} lies outside of the run that names it; --trust {named} allows it")


def is_place(text: str) -> bool:
    """Return True if `--trust` names a file, a folder or a dataset, no package."""
    return "/" in text or ":" in text


def _absolute(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def _require_there(package: str, limit: Limit) -> None:
    if is_place(package):
        if ":" not in package and not os.path.exists(_absolute(package)):
            raise ConfigError(f"--trust {package}: there is no such file or folder")
        return
    if not all(part.isidentifier() for part in package.split(".")):
        raise ConfigError(f"--trust {package}: wanted the name of a package")
    top, folders = package.split(".")[0], [folder for folder in (limit.folder, limit.project) if folder is not None]
    if not package.startswith("oc.") and not projects.find(top, folders):
        nor = "" if limit.project is None else f", nor in the run's project {limit.project}"
        raise ConfigError(f"--trust {package}: there is no module '{top}' here{nor}")


def typed_texts(typed: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a nest of values, after the last name of its key."""
    if isinstance(typed, Mapping):
        for name, value in typed.items():
            yield from typed_texts(value, str(name).rpartition(".")[2])
    elif isinstance(typed, list):
        for value in typed:
            yield from typed_texts(value, key)
    elif isinstance(typed, str):
        yield key, typed


def typed_names(typed: Any) -> Iterator[str]:
    """Yield names among the texts, and the package of an `id`; a name inside a path or a pattern is not an import."""
    for key, text in typed_texts(typed):
        if NAME.fullmatch(text):
            yield text
        elif key == "id" and (match := ID.fullmatch(text)):
            yield match[1]
