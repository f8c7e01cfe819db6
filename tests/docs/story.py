"""A page acted out: its blocks one after another in one folder, as a newcomer types them."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

from rlrun.core.errors import RlrunError
from rlrun.devtools import init as scaffold

from . import props
from .alone import called
from .pages import KINDS, PROJECT, ROOT, Block, Page, blocks, commands
from .programs import PROGRAMS, SCRIPTS
from .shell import Answer, Shell, whole_lines

IN_A_PROJECT = ("docs/plugins.md", "src/rlrun/devtools/template/README.md.template")  # where the reader begins


class Story:
    """Act out a page.

    folder: an empty one; store: has the runs that pages speak of; `faults` says what went wrong, by page and line;
    `played` holds each command line with what it came to.
    """

    def __init__(self, page: Page, folder: Path, store: props.Store) -> None:
        self.page, self.store = page, store
        self.home = folder / "home"
        self.home.mkdir()
        self.shell = Shell(self.home, folder / "box", PROGRAMS, self._answer, SCRIPTS)
        self.faults: list[str] = []
        self.played: list[tuple[str, Answer]] = []
        self.written: list[tuple[Block, str]] = []  # files that wait for a command which uses them

    def play(self) -> list[str]:
        """Act out all blocks; return what went wrong."""
        page_blocks, path = blocks(self.page.text), list(sys.path)
        try:
            if self.page.name in IN_A_PROJECT:
                self.shell.folder = self.home = scaffold.init(self.home / PROJECT)
            for block in page_blocks:
                if block.kind not in KINDS:
                    self._fault(block.line, f"a block of no known kind: '{block.text.splitlines()[0]}'")
                elif block.kind in ("python", "yaml", "toml"):
                    self._file(block)
                for line, text in whole_lines(commands(block)):
                    self._command(line, text)
        finally:
            self.shell.close()
            sys.path[:] = path  # without what was installed
        for block, use in self.written:
            self._fault(block.line, f"no command of the page uses {block.name} by {use}")
        return self.faults

    def _fault(self, line: int, message: str) -> None:
        self.faults.append(f"{self.page.name}:{line}: {message}")

    # --- commands

    def _command(self, line: int, text: str) -> None:
        props.set_up(self.page.name, text, self.shell.folder, self.store)
        answer = self.shell.run(text)
        self.played.append((text, answer))
        if answer.code != 0:
            self._fault(line, f"exit code {answer.code} of '{text.strip()}': {answer.out.strip()[-600:]}")
        self.written = [(block, use) for block, use in self.written if not re.search(use, text)]

    def _answer(self, program: str, overrides: list[str], folder: Path) -> Answer:
        try:
            return PROGRAMS[program](overrides, folder)
        except RlrunError as error:
            return Answer(error.exit_code, "", str(error))

    # --- files

    def _file(self, block: Block) -> None:
        """Compare a block with the file that it shows, or write the file that it is."""
        try:
            fault = {"python": self._python, "yaml": self._yaml, "toml": self._toml}[block.kind](block)
        except (yaml.YAMLError, tomllib.TOMLDecodeError) as error:
            fault = f"no {block.kind}: {' '.join(str(error).split())}"
        if fault:
            self._fault(block.line, fault)

    def _python(self, block: Block) -> str:
        """Execute a block in its folder; one that a paragraph names is a file from then on."""
        if block.name:
            self._write(block, rf"\b{Path(block.name).stem}\b")
        code = "\n" * (block.line - 1) + block.text

        def execute() -> None:
            exec(compile(code, self.page.name, "exec"), {"__name__": "page"})

        answer = called(execute, [""], self.shell.folder, script=True)
        return answer.err if answer.code else ""

    def _yaml(self, block: Block) -> str:
        """An excerpt is of a file in the folder, or of a packaged one; a file begins with its defaults or is new."""
        shown, own, packaged = yaml.safe_load(block.text), self.shell.folder / block.name, ROOT / block.name
        if not block.name:
            return "the paragraph before does not name the file"
        if own.exists():
            return differences(shown, own, block)
        if packaged.exists() and "defaults" not in shown:
            return differences(shown, packaged, block)
        group = re.fullmatch(r"conf/(.*)/(.*)\.yaml", block.name)
        self._write(block, rf"\b{group[1]}={group[2]}\b" if group else re.escape(block.name))
        return ""

    def _toml(self, block: Block) -> str:
        """A table is added to a file that has to be there."""
        path = self.shell.folder / block.name
        if not path.is_file():
            return f"there is no {block.name or 'file of a name'} to which it could be added"
        path.write_text(f"{path.read_text()}\n{block.text}")
        tomllib.loads(path.read_text())
        return ""

    def _write(self, block: Block, use: str) -> None:
        path = self.shell.folder / block.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        self.written.append((block, use))


def differences(shown: Any, path: Path, block: Block) -> str:
    """Tell what an excerpt says otherwise than its file: values, and whole lines of comment."""
    text = path.read_text()
    wrong = _missing(shown, yaml.safe_load(text), "")
    wrong += [line for line in block.text.splitlines() if line.startswith("#") and line not in text.splitlines()]
    return f"{block.name} does not have {'; '.join(wrong)}" if wrong else ""


def _missing(shown: Any, whole: Any, place: str) -> list[str]:
    if isinstance(shown, dict) and isinstance(whole, dict):
        absent = [f"{place}{key}" for key in shown if key not in whole]
        within = [_missing(shown[key], whole[key], f"{place}{key}.") for key in shown if key in whole]
        return [*absent, *(name for names in within for name in names)]
    return [] if shown == whole else [f"{place.rstrip('.')}: {shown}"]
