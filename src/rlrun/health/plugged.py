"""The plugins that are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlrun import plugins
from rlrun.files import counted
from rlrun.health.findings import Finding
from rlrun.health.imports import Tried


def modules() -> list[str]:
    """Return the modules that plugins name."""
    return [plugin.module for plugin in plugins.sound()]


def findings(tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Tell of each plugin, and of the files that those of one hide."""
    installed = plugins.installed()
    if not installed:
        return
    from rlrun.config import places, plugged

    for plugin in installed:
        about = f"{plugin.package} {plugin.version} ({plugin.module})".strip()
        error = tried.get(plugin.module, Tried()).error
        problem = plugin.problem or (plugin.folder and plugged.fault(plugin.folder))
        if problem:
            yield Finding("note", "plugin", plugin.name, f"is left out: {problem}", _removal(plugin))
        elif error is not None:
            text = f"importing '{plugin.module}' fails: {error}"
            yield Finding("note", "plugin", plugin.name, text, _removal(plugin))
        elif plugin.folder is not None:
            files = counted(len(plugged.brought(plugin.folder)), "config file")
            yield Finding("ok", "plugin", plugin.name, f"{about}: {files}")
    for config_path, by, place in plugged.hidden(places.search_path()):
        whose = f"that of {place.owner}" if place.owner else "the packaged one"
        yield Finding("note", "plugin", by.plugin or "", f"its {config_path} goes before {whose}")


def _removal(plugin: plugins.Plugin) -> str | None:
    return f"mend it, or pip uninstall {plugin.package}" if plugin.package else None
