"""`rlrun plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.common import AsJson, ConfigDir, Overrides, print_json
from rlrun.core.errors import printable

if TYPE_CHECKING:
    from rlrun.devtools.conformance import Examined

app = typer.Typer(help="Installed packages that bring config files and classes.", rich_markup_mode=None)


@app.command("list")
def listing(as_json: AsJson = False) -> None:
    """List plugins: name, package, and their files or errors. This imports nothing of them."""
    from rlrun.config.places import brought, fault
    from rlrun.security import plugins

    rows: list[dict[str, Any]] = []
    for plugin in plugins.installed():
        folder = plugin.folder
        problem = plugin.problem or (None if folder is None else fault(folder))
        files = [] if folder is None or problem else brought(folder)
        about = {"name": plugin.name, "module": plugin.module, "package": plugin.package, "version": plugin.version}
        rows.append({**about, "files": files, "problem": problem})
    if as_json:
        print_json(rows)
        return
    for row in rows:
        brings = f"left out: {row['problem']}" if row["problem"] else " ".join(row["files"])
        origin = f"{row['package']} {row['version']}".strip() or row["module"]
        typer.echo(printable(f"{row['name']}  {origin}  {brings}"))
    if not rows:
        typer.echo("no plugins are installed", err=True)


@app.command("test")
def conformance(
    name: Annotated[str, typer.Argument(help="Name of the plugin, from rlrun plugin list.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
    config_dir: ConfigDir = None,
) -> None:
    """Test the files of a plugin: seeds, checkpoints, exact resume, truncation; exit code 1 if one fails."""
    from rlrun.devtools.conformance import plugin_test

    report = plugin_test(
        name, overrides or [], config_dir=config_dir, report=(lambda command: None) if as_json else _show
    )
    if as_json:
        print_json(report.to_json())
    raise typer.Exit(0 if report.passed else 1)


def _show(command: Examined) -> None:
    typer.echo(printable(" ".join(command.overrides)))
    for verdict in command.verdicts:
        typer.echo(printable(f"  {verdict.outcome:<7}  {verdict.check:<12}  {verdict.text}".rstrip()))
