"""The `rlrun` command: one file a command, nothing heavy imported before a command needs it."""

from __future__ import annotations

import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from rlrun import __version__
from rlrun.cli import check, config, evaluate, explain, listing, resume, train, usage
from rlrun.errors import RlrunError

app = typer.Typer(
    name="rlrun",
    help="Train reinforcement learning agents from YAML: rlrun train algorithm=sac env=cartpole",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("resume")(resume.resume)
app.command("eval")(evaluate.evaluate)
app.command("check")(check.check)
app.command("config")(config.config)
app.command("explain")(explain.explain)
app.command("list")(listing.listing)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlrun {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and warnings; may stand anywhere.")] = False,
) -> None:
    """Train reinforcement learning agents from YAML: rlrun train algorithm=sac env=cartpole"""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run a command; every failure is one line and an exit code (0 done, 1 failed, 2 wrong request, 75 stopped)."""
    words = sys.argv[1:]
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not debug:
        warnings.simplefilter("ignore")
    sys.exit(_run(words, debug))


def _run(words: list[str], debug: bool) -> int:
    try:
        return _code(typer.main.get_command(app).main(words, prog_name="rlrun", standalone_mode=False))
    except RlrunError as error:
        return _fail(str(error), error.exit_code, debug)
    except BrokenPipeError:
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", 75, debug=False)
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of typer's: unknown option, missing value
            return _fail(usage.explain(error), 2, debug)
        return _fail(f"{type(error).__name__}: {error} (--debug shows where)", 1, debug)


def _code(result: Any) -> int:
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"rlrun: {' '.join(message.split())}", file=sys.stderr)
    return code
