"""The `rlrun` command: one file for each command; heavy imports wait until a command needs them."""

import functools
import importlib
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Annotated, Any

import typer

from rlrun import config as configuration
from rlrun.cli import completion, streams
from rlrun.core import distributed, processes
from rlrun.core.errors import RequestError, RlrunError, describe_error, did_you_mean, printable
from rlrun.core.version import VERSION

INTERRUPTED = 128 + signal.SIGINT  # typer's exit code after a KeyboardInterrupt
COMMANDS = (  # in the order of the help
    *("train", "resume", "eval", "export-onnx", "play", "checkpoints", "ls", "query", "diff", "report", "watch", "why"),
    *("upload", "trust", "check", "config", "explain", "schema", "list", "doctor", "init"),
)

app = typer.Typer(
    name="rlrun",
    help="Train reinforcement learning agents from YAML: rlrun train algorithm=sac env=cartpole",
    epilog="In Python, rlrun.train and others do the same; rlrun.load(RUN_OR_FILE).predict(observation) acts.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich help would double the import time
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name in COMMANDS:
    module = importlib.import_module(f"rlrun.cli.{name.replace('-', '_')}")
    app.command(name)(getattr(module, name.replace("-", "_")))

OF_COMPLETION = (["--show-completion"], ["--install-completion"])  # options of typer
OF_RANKS = (["train"], ["resume"])  # commands that may run as several ranks of torchrun
OF_HYDRA = {  # option of a Hydra application -> hint at the equivalent here
    "--cfg": "; rlrun config OVERRIDES prints the config, with --resolve and --package",
    "--info": "; rlrun config OVERRIDES takes it, and --provenance says which file or override set each key",
    "--config-name": "; train, config, explain and check take it",
    "-cn": "; train, config, explain and check take it",
    "--config-path": "; --config-dir names a folder of yours that is searched first",
    "-cp": "; --config-dir names a folder of yours that is searched first",
    "-c": "; rlrun config OVERRIDES prints the config, with --resolve and --package",
}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlrun {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and warnings; allowed at any position.")
    ] = False,
) -> None:
    """Train reinforcement learning agents from YAML: rlrun train algorithm=sac env=cartpole"""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@functools.cache
def command() -> Any:
    """Return typer's command for the app; cached, as building it is slow and a process may run several commands."""
    return typer.main.get_command(app)


def main() -> None:
    """Run a command and exit: 0 done, 1 failed, 2 wrong request, 75 resumable. A failure is printed as one line."""
    overrides = sys.argv[1:]
    streams.prepare()
    debug = "--debug" in overrides
    overrides = [override for override in overrides if override != "--debug"]
    if not debug:
        warnings.simplefilter("ignore")
    processes.listen()
    completion.join_words()
    try:
        _require_folder()
        with _ranks() if distributed.launched() > 1 and overrides[:1] in OF_RANKS else nullcontext():
            result = command().main(overrides, prog_name="rlrun", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        if code == INTERRUPTED:
            code = _stopped(overrides)
        sys.stdout.flush()
    except BrokenPipeError:  # the output's reader has ended, as in `| head`
        code = 1
    except SystemExit as error:
        if "_RLRUN_COMPLETE" in os.environ or overrides[:1] in OF_COMPLETION:  # typer exits by itself
            raise
        code = 1 if _is_unread(error) else _fail(describe_error(error), 1, debug)
    except RlrunError as error:
        code = _fail(str(error), error.exit_code, debug) if str(error) else error.exit_code
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError) and not processes.received:  # typer turns EOFError into Abort
            code = _fail("EOFError: there is no more input (--debug shows where)", 1, debug)
        else:
            code = _stopped(overrides)
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of typer: unknown option, missing value
            code = _fail(_usage(error, overrides), 2, debug)
        elif isinstance(error, OSError) and error.filename in streams.OUTPUTS:  # such as a full disk
            code = _fail(f"{error.filename} cannot be written: {error.strerror}", 1, debug)
        else:
            code = _fail(f"{describe_error(error)} (--debug shows where)", 1, debug)
    streams.drop()
    sys.exit(code)


@contextmanager
def _ranks() -> Iterator[None]:
    """Join the ranks of torchrun during a command. The first one prints the result; all end with torchrun."""
    processes.end_with_parent()
    if os.environ.get("RANK", "0") != "0":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        with distributed.joined():
            yield
    finally:
        for number in processes.STOPS:  # torchrun signals the others when one ends, and this one is ending anyway
            signal.signal(number, signal.SIG_IGN)


def _require_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise RequestError("the folder that this command runs in was deleted; cd to another one") from error


def _is_unread(error: SystemExit) -> bool:
    """Return True if typer exited because the output's reader has ended, as in `| head`."""
    if not isinstance(error.__context__, BrokenPipeError):
        return False
    pipes = select.poll()
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        pipes.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in pipes.poll(0))


def _stopped(overrides: list[str]) -> int:
    """Report a signal that came before the run began; return the exit code."""
    number = processes.received[-1] if processes.received else signal.SIGINT
    command = "resume" if "--continue" in overrides else overrides[0] if overrides else ""
    after = {"train": "; no run was started", "resume": "; the run is unchanged"}.get(command, "")
    code = 75 if command == "resume" else 128 + number
    return _fail(f"stopped by {signal.Signals(number).name}{after}", code, debug=False)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    line = " ".join(message.split())
    with suppress(OSError):  # such as a full disk
        print("rlrun:", printable(line), file=sys.stderr)
    return code


def _usage(error: Any, overrides: Sequence[str]) -> str:
    """Return a usage error of typer as one line with the command, the error, and the nearest match.

    overrides: the command line; for options of other libraries in it, overrides are suggested.

    Errors are recognized by attributes, because the module of their classes differs between versions of typer.
    """
    context = error.ctx
    path = "rlrun" if context is None else context.command_path
    command = path.removeprefix("rlrun").strip()
    place = f"{command}: " if command else ""
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        flag = error.option_name
        known = [name for option in context.command.params for name in option.opts if name.startswith("--")]
        takes_overrides = any(item.name == "overrides" for item in context.command.params)
        hint = _overrides_without_dashes(overrides, known) if takes_overrides else ""
        hint = next((why for option, why in OF_HYDRA.items() if option in [*overrides, flag]), hint)
        near = hint or did_you_mean(flag, known) or f"; there are {', '.join(known) or 'none'}"
        return f"{place}there is no option {flag}{near}"
    return f"{place}{error.format_message()} ({path} --help)"


def _overrides_without_dashes(overrides: Sequence[str], known: list[str]) -> str:
    """Return a hint with overrides in place of unknown options such as `--algo ppo`."""
    hints = []
    pairs = [text.partition("=") for text in overrides]
    algorithm = next((value for name, _, value in pairs if name == "algorithm"), None)
    for (name, equals, value), after in zip(pairs, (*overrides[1:], ""), strict=True):
        value = value if equals else "" if after.startswith("-") or "=" in after else after
        if name.startswith("--") and name not in known and (hint := configuration.override_of(name, value, algorithm)):
            hints.append(hint)
    return f": overrides have no dashes (did you mean '{' '.join(hints)}'?)" if hints else ""
