"""Check that a plugin's algorithms and environments keep a run's promises: equivalent to `rlrun plugin test`."""

import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rlrun.commands import check as checking
from rlrun.config.overrides import parse
from rlrun.config.places import brought, fault
from rlrun.core.errors import ConfigError, RequestError, SpaceError
from rlrun.devtools.conformance.checks import WITH_FILE, ConformanceReport, Examined, Verdict, examine
from rlrun.security import plugins

__all__ = ["ConformanceReport", "Examined", "Verdict", "plugin_test"]

GROUPS = ("algorithm", "env", "memory", "with")
EXAMPLE = "# rlrun train "
ENVS = ("env=cartpole", "env=pendulum")  # discrete and continuous actions


def plugin_test(
    name: str,
    overrides: Sequence[str] = (),
    *,
    config_dir: Path | None = None,
    report: Callable[[Examined], None] = lambda examined: None,
) -> ConformanceReport:
    """Test each config file of a plugin's algorithms, environments, memories and additions in a command.

    Args:
        name: of the plugin.
        overrides: added to each command; they replace the file's defaults. A file is left out if they choose another
            one of its group.
        config_dir: the user's own conf folder.
        report: called with the result of each command.

    Raises:
        RequestError: there is no such plugin, it is broken, or no file is left to test.
        ConfigError: the command at the head of a file is invalid.
    """
    plugin = plugins.named(name)
    assert plugin.folder is not None
    wrong = fault(plugin.folder)
    if wrong is not None:
        raise RequestError(f"plugin '{name}' is broken: {wrong}")
    files = [file for file in brought(plugin.folder) if file.partition("/")[0] in GROUPS]
    commands: dict[frozenset[str], tuple[str, list[str]]] = {}
    for file in files:
        command = command_of(plugin.folder, file, overrides)
        if command is not None:
            commands.setdefault(frozenset(command), (file, command))  # of an algorithm, before its environment's
    if not commands:
        raise RequestError(f"plugin '{name}': nothing to try among {', '.join(files) or 'no files'}")
    examined = []
    for file, command in commands.values():
        with tempfile.TemporaryDirectory(prefix="rlrun-") as folder:
            of_environment = file.startswith("env/")
            fitting = command if set(ENVS) & set(overrides) else _fitting(command, config_dir)
            result = examine(fitting, Path(folder), config_dir=config_dir, own=overrides, of_environment=of_environment)
        examined.append(result)
        report(result)
    return ConformanceReport(name, examined)


def command_of(folder: Path, file: str, overrides: Sequence[str]) -> list[str] | None:
    """Return the overrides of a command that uses a config file, or None where the overrides choose another one."""
    group, _, option = file.partition("/")
    settings = {override.key: override.value for override in parse(overrides)}
    if group != "with" and settings.get(group, option) != option:
        return None
    choice = f"+with={option}" if group == "with" else f"{group}={option}"
    wanted = [choice, *(_example(folder / f"{file}.yaml") or WITH_FILE[group])]
    defaults = [override for override in wanted if override == choice or parse([override])[0].key not in settings]
    return list(dict.fromkeys([*defaults, *overrides]))


def _example(path: Path) -> list[str]:
    """Return the overrides of the command in the comments at the head of a config file.

    Raises:
        ConfigError: a shell could not parse it.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.startswith("#"):
            break
        if line.startswith(EXAMPLE):
            try:
                return shlex.split(line.removeprefix(EXAMPLE), comments=True)
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}: no command to try: {error}") from error
    return []


def _fitting(command: list[str], config_dir: Path | None) -> list[str]:
    """Return a command with an environment that its algorithm can handle."""
    for env in sorted(ENVS, key=lambda env: env not in command):
        candidate = [env if override in ENVS else override for override in command]
        try:
            checking.check(candidate, config_dir=config_dir)
        except SpaceError:
            continue
        except Exception:  # the checks report it
            return candidate
        return candidate
    return command
