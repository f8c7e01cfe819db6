"""Compose a run's config with Hydra from packaged files, the user's files and overrides."""

import copy
import pickle
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra import initialize_config_dir, version
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlrun.config import places, plugins, reading
from rlrun.config.build import register_resolvers
from rlrun.config.checks import check, require_ours
from rlrun.config.files import one_line
from rlrun.config.interpolation import child, dotted, leaves, mentions, plain
from rlrun.config.layers import Composed, Layer, layer_of_file, layer_of_overrides, merged, naming_file
from rlrun.config.overrides import (
    ADDITIONS,
    CONFIG_NAME,
    FOLDERS,
    GRID,
    NUMBER,
    SUBDIR,
    Override,
    apply,
    is_class,
    parse,
    unused,
)
from rlrun.config.peers import GYM_ID, near_addition
from rlrun.config.places import readable_places
from rlrun.config.replaced import mark
from rlrun.config.schema import OPEN
from rlrun.config.sources import OURS, SearchPath, stored
from rlrun.core.errors import ConfigError, did_you_mean, nearest

TRAIN = "train"  # the file of a run's config
MULTIRUN = "multirun"  # the file with a sweep's own settings
RESOLVERS = "resolvers"  # key of the functions for `${name:…}`
PRESET = "preset"  # the group of tuned values for one algorithm on one environment
NAMES_OF_ENV = (("env",), ("env", "id"), ("env", "target"), ("env", "_target_"))
OF_STORE = "ConfigStore:"  # prefix of the labels of layers from a user's ConfigStore
ONE_OF = ("algorithm", "env", "preset")  # groups of which a run has one option
OF_SWEEPS = ("launcher", "sweep")  # groups of sweeps; no run has them
_UNLISTED = re.compile(
    r"^Could not (override|delete) '([^'=]+)(?:=[^']*)?'\. No match in the defaults list"
    r"|^Could not (override) '([^'=@]+@[^'=]+)'\.\nDid you mean"  # listed elsewhere
)
_DOUBLED = re.compile(r"(?:^Multiple values for |^)(\S+?)(?:\.| appears more than once)")


given: dict[tuple[str, ...], Composed] = {}  # overrides -> config composed by the parent process


def compose(
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    *,
    roots: Sequence[str] = reading.ROOTS,
    check: bool = True,
    primary: str = TRAIN,
) -> Composed:
    """Compose `train.yaml` with the overrides of a command line, and check the result.

    Precedence: packaged files < the tuned preset < the user's files < overrides. Nothing is built or imported.
    `roots` are keys that count as read in any case; `primary` names another file than `train.yaml`.

    Raises: ConfigError with a message of one line.
    """
    if (known := given.get(tuple(overrides))) is not None:
        places.add_to_path(known.project)
        return known
    return Composer(config_dir, primary=primary).compose(overrides, roots=roots, check=check)


class Selection(NamedTuple):
    """The config merged from the chosen files, before overrides set keys."""

    config: DictConfig
    choices: dict[str, Any]
    layers: list[Layer]
    preset: str | None


class Composer:
    """Composes many command lines from one search path; equal choices of files are merged only once."""

    def __init__(self, config_dir: str | Path | None = None, *, primary: str = TRAIN) -> None:
        folder = Path(config_dir) if config_dir is not None else None
        folders = readable_places(folder)
        self._path = SearchPath(folders)
        self._groups = self._path.groups()
        self._primary = primary
        self._project = places.project_dir(folder)
        self._selections = _of_packaged if [place.packaged for place in folders] == [True] else {}
        places.add_to_path(self._project)

    def compose(
        self, overrides: Sequence[str] = (), *, roots: Sequence[str] = reading.ROOTS, check: bool = True
    ) -> Composed:
        """Compose the overrides of a command line, as the function `compose` does.

        Raises: ConfigError with a message of one line.
        """
        parsed = parse(overrides)
        names = [str(override.value).removesuffix(".yaml") for override in parsed if override.key == CONFIG_NAME]
        if names and names != [self._primary]:
            return self._named(*names).compose(overrides, roots=roots, check=check)
        typed = {override.key: override.value for override in parsed if override.key in FOLDERS}
        noted = [override.text for override in parsed if override.key not in FOLDERS]
        parsed = [override for override in parsed if override.key not in (CONFIG_NAME, *FOLDERS)]
        for override in parsed if self._primary != MULTIRUN else ():
            if override.key.split(".")[0] in OF_SWEEPS:
                raise ConfigError(f"{override.text}: this is for a sweep: rlrun train -m …")
        chosen = [override for override in parsed if self._chooses(override)]
        settings = [override for override in parsed if override not in chosen]
        names_env = any(override.key in ("env", *map(dotted, NAMES_OF_ENV)) for override in settings)

        selection = self._select(chosen, settings, with_preset=not names_env)
        config = selection.config
        if check and "trainer" in roots:
            require_ours(config, selection.layers)
        settings_of_hydra = typed
        if self._primary != MULTIRUN:
            settings_of_hydra = _of_hydra(selection.layers) | typed
            with open_dict(config):
                config.pop("sweep", None)
        of_resolvers = [override for override in settings if override.key.split(".")[0] == RESOLVERS]
        for override in of_resolvers:
            apply(config, override, self._groups)
        register_resolvers({**plain(config), "typed": [override.value for override in settings]})
        replaced = [override.key.rpartition(".")[0] for override in settings if override.key.endswith("._target_")]
        for override in settings:
            if override not in of_resolvers:
                apply(config, override, self._groups, replaced)
        reading.require_own_resolvers(plain(config), plugins.resolvers())
        layers = [*selection.layers, layer_of_overrides(settings)]
        mark(config, layers, {override.group for override in chosen})
        composed = Composed(
            config, noted, selection.choices, layers, self._project, selection.preset, settings_of_hydra
        )
        if check:
            with naming_file(composed):
                _check(composed, roots)
        return composed

    def _named(self, name: str) -> "Composer":
        """Return a composer of the same folders that starts from another file."""
        if not self._path.has(name) or self._path.is_packaged(name):
            raise ConfigError(f"--config-name {name}: there is no file {name}.yaml in {self._path}")
        ConfigStore.instance().store(f"{OURS}_{name}", {"defaults": [name, "_self_"]})
        composer = copy.copy(self)
        composer._primary = name
        return composer

    def _chooses(self, override: Override) -> bool:
        """Return True if an override chooses a file of a group; an override with a dict sets keys, as in Hydra."""
        named = not isinstance(override.value, dict) and "." not in override.group
        return named and self._path.is_group(override.group)

    def _select(self, chosen: list[Override], settings: list[Override], *, with_preset: bool) -> Selection:
        """Return the merged config of the chosen files: Hydra lists them, and the preset is looked up."""
        key = (self._primary, str(self._path), with_preset, *(f"{item.sign}{item.key}={item.value}" for item in chosen))
        if key not in self._selections:
            for override in chosen:
                self._require_options(override)
            try:
                with _hydra(self._primary) as loader:
                    selection = self._compose(loader, chosen, with_preset=with_preset)
            except RecursionError as error:
                way_out = "include each other in a circle, or a block is nested too deeply"
                raise ConfigError(f"the files of {self._path} {way_out}") from error
            except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
                raise ConfigError(self._mistyped_group(settings) or self._rewritten(error)) from error
            if any(layer.label.startswith(OF_STORE) for layer in selection.layers):
                return selection  # entries of a user's ConfigStore may change between two calls
            self._selections[key] = pickle.dumps(selection)
        restored: Selection = pickle.loads(self._selections[key])
        return restored

    def _compose(self, loader: ConfigLoader, chosen: list[Override], *, with_preset: bool) -> Selection:
        preset = self._likely_preset(chosen) if with_preset else None
        listing, typed = self._listed(loader, chosen, preset)
        layers = self._layers(listing, preset)
        setter = listing.overrides.override_metadata.get("env")
        if not with_preset and "algorithm/" in str(setter and setter.containing_config_path):
            # An environment that the user names by id or class replaces the algorithm's choice.
            chosen = [*chosen, Override("", "", "env", "gym")]
            listing, typed = self._listed(loader, chosen, preset)
            layers = self._layers(listing, preset)
        applying = self._tuned_preset(listing, layers, chosen, preset) if with_preset else None
        if applying != preset:
            preset = applying
            listing, typed = self._listed(loader, chosen, preset)
            layers = self._layers(listing, preset)
        of_store = any(layer.label.startswith(OF_STORE) for layer in layers)  # its types check the merged values
        config = hydra.compose(f"{OURS}_{self._primary}", typed) if of_store else merged(layers)
        if preset is not None and self._path.is_packaged(f"{PRESET}/{preset}"):
            layers = _yield_to_own(config, layers, preset)
        for name in OPEN:
            node = OmegaConf.select(config, name, throw_on_missing=False, throw_on_resolution_failure=False)
            if isinstance(node, DictConfig):
                OmegaConf.set_struct(node, False)
        choices = {
            group: name for group, name in listing.overrides.known_choices.items() if group.split("/")[0] != "hydra"
        }
        for override in chosen:  # Hydra does not record a choice of several options
            if isinstance(override.value, list) or (override.key == ADDITIONS and override.value is not None):
                choices[override.key] = override.value
        return Selection(config, choices, layers, preset)

    def _listed(self, loader: ConfigLoader, chosen: Sequence[Override], preset: str | None) -> tuple[Any, list[str]]:
        """Return the defaults list for overrides and a preset, and the overrides as Hydra expects them.

        The defaults lists show whether `+` is needed, so both `with=rnd` and `+with=rnd` work. `group=null` removes a
        listed group.
        """
        chosen = [Override("", "", PRESET, preset), *chosen] if preset is not None else chosen
        added = {override.key for override in chosen if override.sign == "+" or override.key == ADDITIONS}
        chosen_keys = [override.key for override in chosen if override.value is not None]
        absent: set[str] = set()
        doubled: set[str] = set()
        emptied: set[str] = set()  # Hydra cannot remove a group of several options, but accepts an empty list
        while True:
            spelled = ((override.key, _spelled(override, added)) for override in chosen if override.key not in absent)
            typed = [f"{key}=[]" if key in emptied else text for key, text in spelled]
            try:
                config_name, wanted = f"{OURS}_{self._primary}", [*typed, self._path.override]
                return loader.compute_defaults_list(config_name, wanted, RunMode.RUN), wanted
            except HydraException as error:
                if (match := _DOUBLED.search(str(error))) and match[1] in added - doubled:
                    added.remove(match[1])  # a file that was added meanwhile lists it
                    doubled.add(match[1])
                    continue
                if "You must specify" in str(error) and (typed_only := {*chosen_keys} - added - doubled):
                    added |= typed_only  # one of them may choose the missing option
                    continue
                match = _UNLISTED.match(str(error))
                verb, key = ("", "") if match is None else filter(None, match.groups())
                if verb == "delete" and key not in emptied and f"~{key}" in typed:
                    emptied.add(key)
                    continue
                keys = added if verb == "override" and key not in emptied else absent
                if not verb or key in keys:
                    raise
                deleted = [override.text for override in chosen if override.key == key and override.sign == "~"]
                if key != ADDITIONS and deleted:
                    raise ConfigError(f"{deleted[0]}: that was not chosen") from error
                keys.add(key)

    def _layers(self, listing: Any, preset: str | None) -> list[Layer]:
        layers = []
        for default in listing.defaults:
            if default.config_path.endswith(".yaml"):  # a second name of the same file, for which no preset is found
                way_out = "=".join(default.config_path.removesuffix(".yaml").rsplit("/", 1))
                raise ConfigError(f"{default.config_path}: a config file is named without its ending: {way_out}")
            source = self._path.source_of(default.config_path)
            if source is None:
                if default.config_path.split("/")[0] != "hydra" and default.config_path != f"{OURS}_{self._primary}":
                    of_store = (f"{OF_STORE} {default.config_path}", default.config_path, False)
                    layers.append(layer_of_file(*of_store, stored(default.config_path), default.package or ""))
                continue
            label, packaged = source.label(default.config_path), source.place.packaged
            label += " (found by algorithm and env)" if default.config_path == f"{PRESET}/{preset}" else ""
            content = source.content(default.config_path)
            inside = default.config_path.removeprefix(f"{OURS}/") if packaged else default.config_path
            layers.append(layer_of_file(label, inside, packaged, content, default.package or ""))
        return layers

    def _likely_preset(self, chosen: Sequence[Override]) -> str | None:
        """Guess the preset from the typed algorithm and environment; a right guess saves one listing by Hydra."""
        typed = {override.key: override.value for override in chosen if override.sign != "~"}
        name = f"{typed.get('algorithm')}_{typed.get('env')}"
        files = (f"algorithm/{typed.get('algorithm')}", f"env/{typed.get('env')}", f"{PRESET}/{name}")
        return name if PRESET not in typed and all(map(self._path.is_packaged, files)) else None

    def _tuned_preset(
        self, listing: Any, layers: Sequence[Layer], chosen: Sequence[Override], likely: str | None
    ) -> str | None:
        """Return the name of the preset for the chosen algorithm and environment, if it may apply.

        A packaged preset does not apply if the algorithm's or environment's file is the user's own, or if another file
        names the environment.
        """
        choices = listing.overrides.known_choices
        algorithm, env = choices.get("algorithm"), choices.get("env")
        if choices.get(PRESET) != likely or any(override.key == PRESET for override in chosen):
            return None
        name = f"{algorithm}_{env}"
        source = self._path.source_of(f"{PRESET}/{name}")
        files = (f"algorithm/{algorithm}", f"env/{env}")
        if source is None or (source.place.packaged and not all(self._path.is_packaged(file) for file in files)):
            return None
        others = [layer for layer in layers if not layer.config_path.startswith(("env/", f"{PRESET}/{likely}"))]
        names_env = any(path in NAMES_OF_ENV for layer in others for path, _ in leaves(layer.content))
        return None if names_env else name

    def _require_options(self, override: Override) -> None:
        """Refuse an option that does not exist, with a ConfigError."""
        if isinstance(override.value, list) and override.sign == "~":
            raise ConfigError(
                f"{override.text}: ~{override.key} takes out the group, and ~{override.key}=NAME a choice"
            )
        if isinstance(override.value, list) and override.group in ONE_OF:
            several = f"{override.key}={','.join(map(str, override.value))}"
            raise ConfigError(f"{override.text}: one run has one {override.group}; rlrun train -m {several} tries each")
        for option in override.value if isinstance(override.value, list) else [override.value]:
            if option is None or override.sign == "~":
                continue
            known = isinstance(option, str) and "${" not in option
            if not known or not self._path.has(f"{override.group}/{option}"):
                raise ConfigError(f"{override.key}: {self._unknown(override.group, str(option))}")

    def _unknown(self, group: str, option: str) -> str:
        """Return a message that an option does not exist, with the nearest option or all of them."""
        if not self._path.is_group(group):
            return f"there is no group '{group}'{self._near_group(group)}"
        options = self._path.options(group)
        known = f"algorithm={option}" if self._path.has(f"algorithm/{option}") else None
        near = near_addition(option, options, known) if group == ADDITIONS else did_you_mean(option, options)
        if self._path.has_yml(f"{group}/{option}"):
            near = f": {group}/{option}.yml is not read, as config files end in .yaml"
        if option in options:
            near = f": {group}/{option}.yaml is no file that can be read"
        if group == "env" and GYM_ID.fullmatch(option):
            near += f"; an id of Gymnasium is given by env.id={option}"
        elif group in ("env", "optimizer") and is_class(option):
            near = f"; a class is given by {'env.target' if group == 'env' else 'optimizer._target_'}={option}"
        return f"there is no '{option}'" + (near or f"; there are {', '.join(options) or 'none'}")

    def _near_group(self, group: str) -> str:
        return did_you_mean(f"/{group.rpartition('/')[2]}", [f"/{name}" for name in self._groups])

    def _mistyped_group(self, settings: Sequence[Override]) -> str | None:
        """Return a message if an override looks like a choice from a group with a misspelt name."""
        for override in settings:
            near = nearest(override.key, self._groups)
            if "." not in override.key and near is not None and near != override.key:
                return f"{override.key}: no such key or group (did you mean '{near}'?)"
        return None

    def _rewritten(self, error: BaseException) -> str:
        """Return an error of Hydra as one line that names the file and a remedy."""
        text = re.sub(r"\w+ raised while composing config:\n", "", str(error))
        if match := re.search(r"You must specify '([^']+)'", text):
            group = match[1].split("@")[0]
            options = self._path.options(group)
            return f"{group}: nothing is chosen: {group}=NAME with one of {', '.join(options) or 'none'}"
        if match := re.search(r"In '([^']+)': Could not (?:find|load) '([^']+)'", text):
            parent, (group, _, option) = self._path.label(match[1]), match[2].rpartition("/")
            near = self._unknown(group, option) if group else "no such file"
            if f"/{OURS}/" in match[2] and self._path.is_packaged(path := match[2][match[2].index(f"{OURS}/") :]):
                return f"{parent}: its defaults name '{path}'; the packaged file is '/{path}'"
            return f"{parent}: its defaults name '{match[2]}': {near}"
        if match := re.search(r"In '([^']+)': Could not override '([^']+)'", text):
            place, group = self._path.label(match[1]), match[2].split("@")[0]
            if not self._path.is_group(group):
                return f"{place}: its defaults override '{group}', which is not a group{self._near_group(group)}"
            if self._path.is_packaged(match[1]) and not self._path.is_packaged(self._primary):
                own = self._path.label(self._primary)
                return f"{own}: lists no group '{group}'; let it begin with `defaults: [/rlrun/train, _self_]`"
            if not (places.packaged_dir() / group).is_dir():
                way_out = f"`- /{group}: NAME` without override chooses it"
                return f"{place}: 'override /{group}': no file before this one chooses {group}; {way_out}"
            return (
                f"{place}: 'override /{group}' comes too early, {group} is chosen after this file; "
                f"leave the line out and give {group}=NAME, or choose both in a file of {PRESET}/"
            )
        if match := re.search(r"In '?([^':]+)'?: (.*)", text, re.S):
            return f"{self._path.label(match[1])}: {one_line(match[2])}"
        return one_line(text)


_check = check
_one_at_a_time = threading.RLock()  # Hydra keeps its state in one global object
_of_packaged: dict[Any, bytes] = {}  # selections of only packaged files, shared by all composers of a process


@contextmanager
def _hydra(primary: str) -> Iterator[ConfigLoader]:
    """Initialize Hydra on the folder of primary configs; afterwards the user's own Hydra application is restored."""
    base = version.VersionBase.instance()
    with _one_at_a_time:
        previous = base.version_base
        try:
            with initialize_config_dir(str(Path(__file__).parent / "primary"), job_name=OURS, version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            base.version_base = previous


def _yield_to_own(config: DictConfig, layers: Sequence[Layer], preset: str) -> list[Layer]:
    """Restore the values of a user's files over those of a preset; return the layers, the preset's without them."""
    index = next(index for index, layer in enumerate(layers) if layer.config_path == f"{PRESET}/{preset}")
    own = [leaf for layer in layers[:index] if not layer.packaged for leaf in leaves(layer.content) if leaf[1] != {}]
    content: dict[str, Any] = {}
    for path, value in leaves(layers[index].content):
        inside = [leaf for leaf in own if path[: len(leaf[0])] == leaf[0] or leaf[0][: len(path)] == path]
        for key, own_value in inside:
            OmegaConf.update(config, dotted(key), own_value, merge=False, force_add=True)
        if not inside:
            node = content
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = value
    return [layer._replace(content=content) if layer is layers[index] else layer for layer in layers]


def _of_hydra(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the settings of Hydra's own keys in the user's files; `sweep.params` means `hydra.sweeper.params`.

    Raises: ConfigError for a key that has no meaning here.
    """
    settings: dict[str, Any] = {}
    for layer in (layer for layer in layers if not layer.packaged and isinstance(layer.content, dict)):
        blocks = {name: value for name, value in layer.content.items() if name in ("hydra", "sweep")}
        grids = {"hydra": ("hydra", "sweeper", "params"), "sweep": ("sweep", "params")}
        for path, value in leaves(blocks) if blocks else ():
            grid = grids[path[0]]
            if path[: len(grid)] == grid and len(path) > len(grid):
                settings.setdefault(GRID, {})[".".join(path[len(grid) :])] = value
            elif dotted(path) in FOLDERS:
                settings[dotted(path)] = value
            elif path != ("hydra", "searchpath"):  # the file may also serve another application
                raise ConfigError(f"{layer.label}: {dotted(path)}: {unused(dotted(path))}")
    return settings


def folder_of(key: str, composed: Composed) -> str | None:
    """Return the folder for a pattern such as `runs/${hydra:runtime.choices.algorithm}/${seed}`; None without one.

    key: one of FOLDERS, at which the config has the pattern. The number of a job stays in the text as NUMBER, because
    the sweep numbers its jobs.

    Raises: ConfigError if an interpolation leads nowhere, or to something other than text.
    """
    if (pattern := composed.hydra.get(key)) is None:
        return None
    if not isinstance(pattern, str | int | float):
        raise ConfigError(f"{key}={pattern}: wanted the name of a folder")
    own = sorted(text for text in composed.overrides if not text.startswith("hydra."))
    of_hydra = {
        "folder": str(pattern).replace("${hydra:", "${hydra."),
        "job": {"name": TRAIN, "override_dirname": ",".join(own), **({"num": f"\\{NUMBER}"} if key == SUBDIR else {})},
        "runtime": {"choices": composed.choices, "cwd": str(Path.cwd())},
    }
    tree = {**plain(composed.config), "hydra": of_hydra}
    for path in mentions(of_hydra["folder"], ()):
        if isinstance(reduce(child, path, tree), dict | list):
            names = f"${{hydra:runtime.choices.{path[0]}}}"
            raise ConfigError(
                f"{key}={pattern}: '{dotted(path)}' is a block of keys; {names} is the name that was chosen"
            )
    try:
        folder = OmegaConf.create(tree).hydra.folder
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={pattern}: {one_line(error)}") from error
    if folder in (None, ""):
        raise ConfigError(f"{key}={pattern}: wanted the name of a folder, got {folder!r}")
    return str(folder)


def _spelled(override: Override, added: set[str]) -> str:
    """Return an override that chooses files in Hydra's syntax; quoted, as Hydra would read the name nan as a number."""
    if override.sign == "~" or override.value is None:
        return f"~{override.key}={override.value}" if isinstance(override.value, str) else f"~{override.key}"
    is_list = isinstance(override.value, list) or override.key == ADDITIONS
    names = override.value if isinstance(override.value, list) else [override.value]
    quoted = ",".join(f"'{name}'" for name in names)
    return f"{'+' if override.key in added else ''}{override.key}={f'[{quoted}]' if is_list else quoted}"


def describe_presets(presets: Iterable[str | None]) -> str:
    """Return one line with the applied presets and how to switch them off; "" without a preset."""
    applied = ", ".join(dict.fromkeys(preset for preset in presets if preset is not None))
    return f"preset: {applied} (tuned for this algorithm and environment; preset=null for none)" if applied else ""
