"""Names and layout of a run directory.

runs/<algorithm>-<env>/<date>_<time>_s<seed>[-k]/
├── config.yaml, overrides.txt      the request
├── manifest.json                   versions, source, machine (written last: with it the folder is a run)
├── status.json                     running, completed, failed, stopped or pruned; host, pid, heartbeat, failed attempts
├── lock                            locked by the process that works on the run, and signed by it
├── metrics.jsonl, summary.json     results
├── checkpoints/<env_steps>-<updates>/, checkpoints/latest, checkpoints/best
└── log.txt, trace.json, tensorboard/, wandb/, mlflow/, videos/, exports/
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from rlrun.core.errors import RlrunError, RunDirError, printable
from rlrun.core.files import head, known, place_of, read_bytes, read_json, reason, write_json, write_text
from rlrun.runs import lock as locks
from rlrun.runs import trust

Status = Literal["running", "completed", "failed", "stopped", "pruned"]
STATUS = ("status", "host", "pid", "heartbeat")
SILENT = 300.0  # seconds without a heartbeat after which a run counts as interrupted, if its lock cannot be tested
PIDS = 2**31 - 1  # the largest number of a process
NAME = 255  # bytes of a folder's name, at most
_output = logging.getLogger("rlrun.output")  # messages that commands print beside their result
_NOTES = r"(config\.yaml|overrides\.txt|status\.json|manifest\.json)"
_STEP = r"\d{10,}-\d{10,}"
CHECKPOINT = re.compile(_STEP)
FOLDERS_OF_A_START = re.compile(rf"checkpoints(/(segments|{_STEP}|\.{_STEP}\.\d+\.(tmp|old)))?")
FILES_OF_A_START = re.compile(
    rf"lock|log\.txt|{_NOTES}|\.{_NOTES}\.\d+-\d+\.tmp|checkpoints/(latest|\.latest\.\d+-\d+\.tmp)"
    r"|checkpoints/segments/([0-9a-f]{64}\.safetensors|\.\d+-\d+\.tmp)"
    rf"|checkpoints/({_STEP}|\.{_STEP}\.\d+\.(tmp|old))/(manifest\.json|state\.json|tensors(\.\d+)?\.safetensors)"
)
BEFORE_STATUS = re.compile(r"lock|\.status\.json\.\d+-\d+\.tmp")  # the files of a start that come first


class RunDir:
    """A run's folder: the paths in it, and functions that make, claim, open and discard it.

    Attributes:
        path: absolute.
        config, overrides, manifest, status, lock, metrics, summary, log, trace: files.
        checkpoints, tensorboard, wandb, mlflow, videos, exports: folders.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = place_of(path)
        self.config = self.path / "config.yaml"
        self.overrides = self.path / "overrides.txt"
        self.manifest = self.path / "manifest.json"
        self.status = self.path / "status.json"
        self.lock = self.path / "lock"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "summary.json"
        self.log = self.path / "log.txt"
        self.trace = self.path / "trace.json"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.wandb = self.path / "wandb"
        self.mlflow = self.path / "mlflow"
        self.videos = self.path / "videos"
        self.exports = self.path / "exports"
        self._owned = False  # made or claimed by this object, so that it may be discarded
        self._made: list[Path] = []  # folders made by this object, outermost first
        self._found: list[Path] = []  # files that it had before

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def create(cls, root: str | os.PathLike[str] = "runs", *, algorithm: str, env: str, seed: int) -> RunDir:
        """Make a new folder under `root`; two runs of the same second get different ones.

        Raises:
            RunDirError: `root` is not writable.
        """
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{algorithm}-{env}").strip("-.")[:100]
        family = Path(root).absolute() / name
        stem = f"{datetime.now():%Y-%m-%d_%H-%M-%S}_s{seed}"
        k = 1
        while not (run := cls(family / (stem if k == 1 else f"{stem}-{k}")))._make():
            k += 1
        return run

    @classmethod
    def claim(cls, path: str | os.PathLike[str], *, restart: bool = False) -> RunDir:
        """Take the folder that the user named: make it if it is missing, use it if it is empty.

        restart: delete the files of a start that was killed before the folder was a run, except its status.

        Raises:
            RunDirError: it holds a run or other files, is a file, or is not writable.
        """
        run = cls(path)
        if run.path.exists() and not run.path.is_dir():
            raise RunDirError(f"run directory {run.path} is a file")
        if not run._make():
            if is_run(run.path):
                way_out = f"continue it: rlrun resume {run.path}, or name another folder"
                raise RunDirError(f"run directory {run.path} holds a run already; {way_out}")
            run.require_begun()
            run._found = [path for path in (run.lock, run.status) if path.exists()]  # of a job that failed to start
            entries = [entry for entry in run.path.iterdir() if entry not in run._found]
            for entry in entries if restart else ():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            if (entries and not restart) or not run._take():
                content = _some(sorted(entry.name for entry in entries) or ["checkpoints"])
                raise RunDirError(
                    f"run directory {run.path} is not empty: it holds {content}; --continue begins anew there"
                )
        return run

    def require_begun(self) -> None:
        """Refuse a folder with other files than those of a start that was killed before the folder was a run.

        Raises:
            RunDirError: naming the other files.
        """
        lock_is_ours = head(self.lock, 8).strip(b"\0") in (b"", b'{"token"')  # zeros after a power cut
        begun = known(self.status).get("status") in get_args(Status)
        files_of_a_start = FILES_OF_A_START if begun else BEFORE_STATUS
        others = [] if lock_is_ours else ["lock"]
        for root, folders, files in os.walk(self.path):
            for names, pattern in ((folders, FOLDERS_OF_A_START), (files, files_of_a_start)):
                for name in list(names):
                    place = Path(root, name)
                    within = place.relative_to(self.path).as_posix()
                    if place.is_symlink() or not pattern.fullmatch(within):
                        names.remove(name)  # so that the user's folders are not searched
                        others.append(within)
        if others:
            raise RunDirError(f"run directory {self.path} is not empty: it holds {_some(sorted(others))}")

    def _make(self) -> bool:
        """Make the folder by one atomic mkdir; return False if it exists."""
        self._made = [folder for folder in (*reversed(self.path.parents), self.path) if not folder.exists()]
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            self._made = []
            return False
        except OSError as error:
            self._remove_made()
            raise RunDirError(f"run directory {self.path} cannot be made: {reason(error)}") from error
        return self._take()

    def _take(self) -> bool:
        """Make the subfolder that marks a folder as taken, atomically; return False if another process was faster."""
        try:
            self.checkpoints.mkdir()
        except FileExistsError:
            return False
        except OSError as error:
            self._remove_made()
            raise RunDirError(f"run directory {self.path} is not writable: {reason(error)}") from error
        self._owned = True
        return True

    def discard(self) -> None:
        """Remove the content of a failed start, and every folder made for it."""
        if not self._owned:
            return
        for entry in [entry for entry in self.path.iterdir() if entry not in self._found]:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._remove_made()
        self._owned = False

    def _remove_made(self) -> None:
        for folder in reversed(self._made):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # it holds another run by now
                return

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDir:
        """Return an existing run.

        Raises:
            RunDirError: there is no run; the message names the nearest one.
        """
        place = place_of(path)
        if is_run(place):
            return cls(place)
        if not place.exists():
            run, _, checkpoint = str(place).rpartition("@")
            hint = f" (did you mean '{run}' with --checkpoint {checkpoint}?)" if run and is_run(Path(run)) else ""
            raise RunDirError(f"{place} does not exist{hint}")
        for parent in place.parents:
            if is_run(parent):
                raise RunDirError(f"{place} is inside a run, not a run itself (did you mean '{parent}'?)")
        beneath = max(runs_beneath(place), key=lambda run: run.manifest.stat().st_mtime, default=None)
        hint = f"; the newest run beneath it is {beneath.path}" if beneath is not None else ""
        raise RunDirError(f"{place} is not a run directory: it has no config.yaml with a manifest.json{hint}")

    def start(self, *, config: str, overrides: Iterable[str], manifest: Mapping[str, Any]) -> None:
        """Write config and overrides, and trust them; then the manifest, with which the folder becomes a run."""
        self.keep(config, overrides)
        self.write_status("running")
        write_json(self.manifest, manifest)

    def keep(self, config: str, overrides: Iterable[str]) -> None:
        """Write the config and the overrides, and trust them."""
        listed = "".join(f"{override}\n" for override in overrides)
        trust.remember(config, listed)  # first, so that a kill in between leaves a trusted run
        write_text(self.config, config)
        write_text(self.overrides, listed)

    def write_status(self, status: Status, *, error: str | None = None, attempts: int | None = None) -> None:
        """Write the run's status, with this process and the time.

        A run that a search has pruned stays pruned until it completes, or gets new attempts.

        Args:
            status: of the run.
            error: cause of a failure, in one line.
            attempts: number of failed attempts; None = count this one, and 0 once the run completes.
        """
        before = known(self.status)
        if attempts is None:
            attempts = 0 if status == "completed" else failures(before) + (status == "failed")
            status = "pruned" if before.get("status") == "pruned" and status in ("running", "stopped") else status
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"status": status, "host": socket.gethostname(), "pid": os.getpid(), "heartbeat": now}
        about |= {"attempts": attempts} if attempts else {}
        write_json(self.status, about | ({"error": error} if error else {}))

    def read_status(self, *, ours: bool = False) -> dict[str, Any]:
        """Return the status file's content; `running` becomes `interrupted` if no process works on the run.

        ours: this process holds the lock, so that the lock says nothing about the process of the status.
        """
        try:
            status: dict[str, Any] = dict.fromkeys(STATUS) | read_json(self.status)
            known_status = status["status"] in get_args(Status)
            if not known_status or (status["status"] == "running" and not self._is_alive(status, ours)):
                status["status"] = "interrupted"
        except (RunDirError, TypeError, ValueError, OverflowError):  # a running process leaves no such file
            return {**dict.fromkeys(STATUS), "status": "interrupted"}
        return status

    def read_overrides(self) -> list[str]:
        """Return the overrides of the run; empty if the file is missing.

        Raises:
            RunDirError: the file cannot be read.
        """
        if not self.overrides.is_file():
            return []
        lines = read_bytes(self.overrides).decode(errors="replace")
        return lines.splitlines()

    def _is_alive(self, status: Mapping[str, Any], ours: bool) -> bool:
        """Return True if the process of a status is alive: by its lock, else by its number, else by its heartbeat.

        A heartbeat in the future, from a wrong clock, does not count.
        """
        age = (datetime.now(UTC) - datetime.fromisoformat(status["heartbeat"])).total_seconds()
        if not isinstance(status["pid"], int) or not 1 <= status["pid"] <= PIDS:
            raise ValueError(f"no process has the number {status['pid']}")
        locked = False if ours else locks.is_held(self.lock)
        if locked:
            return True
        signature = known(self.lock)
        if locked is False and signature.get("locked") and signature.get("boot") == locks.boot():
            return False
        alive = locks.is_alive(signature)
        return abs(age) <= SILENT if alive is None else alive

    def note(self, text: str) -> None:
        """Append to the log, with the time.

        Raises:
            RlrunError: the disk does not take it.
        """
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text.rstrip()}\n")
        except OSError as error:
            raise RlrunError(f"{self.log} cannot be written: {reason(error)}") from error

    def echo(self, text: str, level: int = logging.INFO) -> None:
        """Append to the log, and print for the user; warnings are also printed when rlrun is used from Python."""
        self.note(text)
        _output.log(level, "%s", text)

    @contextmanager
    def noting_warnings(self) -> Iterator[None]:
        """Append the warnings of rlrun to the log, too, while the context lasts."""
        messages, notes = logging.getLogger("rlrun"), logging.Handler(logging.WARNING)
        silent = not messages.hasHandlers()  # if so, Python prints warnings itself, until a handler is added

        def emit(record: logging.LogRecord) -> None:
            text = printable(" ".join(record.getMessage().split()))
            if record.name != _output.name:  # `echo` has written it
                with suppress(RlrunError):
                    self.note(text)
            if silent and logging.lastResort is not None:
                logging.lastResort.handle(logging.makeLogRecord({**vars(record), "msg": text, "args": None}))

        notes.emit = emit  # type: ignore[method-assign]
        messages.addHandler(notes)
        try:
            yield
        finally:
            messages.removeHandler(notes)

    def checkpoint_dirs(self, place: Path | None = None) -> list[Path]:
        """Return all checkpoints, oldest step first; those in the folder `place` for another rank."""
        paths = folder.iterdir() if (folder := place or self.checkpoints).is_dir() else ()
        return sorted((path for path in paths if CHECKPOINT.fullmatch(path.name)), key=checkpoint_key)

    def newest_first(self) -> list[Path]:
        """Return all checkpoints in the order in which a resume tries them.

        First comes the one that `latest` names, then those before it. Those after it come last: a run may have
        continued from an older one since, so that they differ from its course; or a process died before `latest` named
        its newest, which a resume makes again.
        """
        folders = self.checkpoint_dirs()
        named = [path for path in folders if path.name == self.pointed("latest")]
        past = folders[: folders.index(named[0]) + 1] if named else folders
        return [*reversed(past), *reversed(folders[len(past) :])]

    def evaluation_video(self, env_steps: int, updates: int, *, offline: bool = False) -> Path:
        """Return the file for the video of an evaluation; offline: updates may come before environment steps."""
        if offline and not env_steps:
            return self.videos / f"{env_steps:010d}_offline_{updates:010d}.mp4"
        return self.videos / f"{env_steps or updates:010d}.mp4"

    def pointed(self, pointer: str) -> str | None:
        path = self.checkpoints / pointer
        return head(path, NAME).decode(errors="replace").strip() or None

    def checkpoint(self, which: str | int = "latest") -> Path:
        """Return the folder of a checkpoint: `latest`, `best`, or a step (with `-updates` if several share it).

        Raises:
            RunDirError: there is no such checkpoint; the message lists the existing ones.
        """
        wanted = str(which)
        folders = self.checkpoint_dirs()
        if wanted in ("latest", "best"):
            name = self.pointed(wanted)
            matching = [path for path in folders if path.name == name]
        else:
            step = int(wanted.replace("_", "")) if wanted.replace("_", "").isdecimal() else None
            matching = [path for path in folders if path.name == wanted or checkpoint_key(path)[0] == step]
        if not matching:
            steps = [str(checkpoint_key(path)[0]) for path in folders]
            names = [name for name in ("latest", "best") if self.pointed(name) in {path.name for path in folders}]
            raise RunDirError(f"{self.path} has no checkpoint '{wanted}'; it has {_some(names + steps)}")
        return matching[-1]


def failures(status: Mapping[str, Any]) -> int:
    """Return the number of failed attempts in the content of a status file."""
    attempts = status.get("attempts", 0)
    return attempts if isinstance(attempts, int) else 0


def is_run(path: Path) -> bool:
    """Return True if a folder is a run's."""
    return (path / "manifest.json").is_file() and os.path.lexists(path / "config.yaml")


def in_a_run(folder: Path) -> bool:
    """Return True if a folder is a run or a sweep, or inside one; code and conf/ there are never used."""
    above = {path for place in (folder.absolute(), folder.resolve()) for path in (place, *place.parents)}
    return any(is_run(path) or (path / "sweep.json").is_file() for path in above)


def runs_beneath(path: Path) -> list[RunDir]:
    """Return the runs in a folder and in the folders under it, in the order of their paths, each once.

    A run's own folders are not searched. If links lead to a folder, too, its path without links counts.
    """
    runs: list[RunDir] = []
    folders, links = [path], list[Path]()
    seen = {_identity(parent) for parent in path.absolute().parents}  # a link to them would lead back here
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        if (identity := _identity(folder)) is None or identity in seen:
            continue
        seen.add(identity)
        if is_run(folder):
            runs.append(RunDir(folder))
            continue
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and (entry.is_symlink() or entry.is_dir()):
                    (links if entry.is_symlink() else folders).append(folder / entry.name)
    return sorted(runs, key=lambda run: run.path.parts)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of a folder, which links to it share; None if it cannot be read."""
    try:
        about = folder.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


def checkpoint_name(axis: int, update: int) -> str:
    """Return a checkpoint's folder name; `axis` is the environment step (the update, without an environment)."""
    return f"{axis:010d}-{update:010d}"


def checkpoint_key(path: Path) -> tuple[int, int]:
    """Return the axis and the update in a checkpoint's name."""
    axis, update = path.name.split("-")
    return int(axis), int(update)


def rank_folder(checkpoints: Path, rank: int) -> Path:
    """Return the folder of a rank's checkpoints; for rank 0 the folder that every run has."""
    return checkpoints / f"rank-{rank}" if rank else checkpoints


def rank_folders(checkpoints: Path) -> list[Path]:
    """Return the folders of all ranks, the first one's first."""
    return [checkpoints, *sorted(path for path in checkpoints.glob("rank-*") if not path.is_symlink())]


def _some(names: list[str], most: int = 12) -> str:
    shown = ", ".join(names[-most:]) or "none"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
