"""Export the policy during training, in a separate process."""

import json
import logging
import os
import pickle
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rlrun.callbacks.schedule import following
from rlrun.collect.links import ProcessLink
from rlrun.collect.normalized import Unwrapper
from rlrun.collect.unroll import Give, Inbox, freeze, thaw
from rlrun.core.errors import ConfigError, RequestError, RlrunError
from rlrun.env import Env
from rlrun.export import making
from rlrun.export.checking import Reference, compare, edges, running
from rlrun.export.graph import Graph, Outer
from rlrun.export.making import environment, interface
from rlrun.runs.files import reason, replace, write_json
from rlrun.runs.items import Item, Items
from rlrun.runs.processes import describe_error
from rlrun.security import trust
from rlrun.training.callback import Callback, Stop

_messages = logging.getLogger("rlrun")


class ExportedFiles(Items):
    """The files `PREFIX<number>.onnx` of a folder; any thread may ask for them."""

    def __init__(self, folder: Path, prefix: str) -> None:
        super().__init__(folder, prefix, ".onnx")

    def run_of(self, item: Item) -> Any:
        """Return the folder of the run that wrote a file, as its `.json` names it; None where nothing does."""
        try:
            return json.loads(item.path.with_name(f"{item.path.name}.json").read_text()).get("run")
        except (OSError, ValueError, AttributeError):
            return None

    def delete(self, handle: int) -> None:
        """Remove a file and its `.json`.

        Raises:
            RlrunError: there is no such number.
        """
        super().delete(handle)
        path = self.path_of(handle)
        path.with_name(f"{path.name}.json").unlink(missing_ok=True)


class OnnxExport(Callback):
    """Write `PREFIX<number>.onnx` now and then, in a separate process; training continues meanwhile.

    A file gets its name after it answered edge values as its policy does; `rlrun export-onnx` proves more. A file
    that cannot be written is a warning, and training continues.

    Args:
        agent: whose policy it is.
        env: its environment.
        every: environment steps (updates, where there is no collector); 0 = only at the end of training, where there
            is always one, and when `export` is called.
        stochastic: whether actions are drawn, by noise that is an input.
        keep: files that stay, the newest; None = all. Where writing takes longer than `every`, older ones are left out.
        metadata: further entries for the files, names to texts.
        directory: folder of the files, which one run may use at a time; None = `exports/` of the run.
        prefix: what the names of files begin with.

    Raises:
        ConfigError: a number is out of range, metadata are no texts by name, the prefix is no beginning of a file's
            name, or an untrusted run names a folder.
        MissingExtra: a package is not installed.
    """

    leads = True
    momentary = ("_requests", "_worker", "_unwrapper", "_about", "items")  # of this process

    def __init__(
        self,
        agent: Any,
        env: Env,
        *,
        every: int = 0,
        stochastic: bool = False,
        keep: int | None = None,
        metadata: Mapping[str, str] | None = None,
        directory: str | None = None,
        prefix: str = "policy_",
    ) -> None:
        making.require("export")
        if not prefix or Path(prefix).name != prefix:
            raise ConfigError(f"export.prefix: wanted the beginning of a file's name, got '{prefix}'")
        if directory is not None:
            trust.admit_place(directory, Path(directory), "export.directory")
        self.directory, self.prefix = None if directory is None else Path(directory).absolute(), prefix
        if every < 0 or (keep is not None and keep < 1):
            raise ConfigError(f"export: wanted every >= 0 and keep >= 1, got every={every} and keep={keep}")
        if any(not isinstance(key, str) for key in metadata or {}):
            raise ConfigError("export.metadata: wanted names with texts")
        self.agent, self.env = agent, env
        if not hasattr(agent, "respond"):
            raise RequestError(f"export: a {type(agent).__name__} cannot be exported; see docs/export.md")
        self.every, self.stochastic, self.keep = every, stochastic, keep
        self.metadata = {key: str(value) for key, value in (metadata or {}).items()}
        self.items: ExportedFiles | None = None
        self._about: dict[str, Any] = {}
        self.count = 0  # exports asked for, each the number of its file
        self._axis, self._newest, self._due = 0, 0, following(0, every)
        self._worker: _Worker | None = None
        self._unwrapper: Unwrapper | None = None
        self._requests: queue.SimpleQueue[tuple[Mapping[str, str], Future[Future[Item]]]] = queue.SimpleQueue()

    def begin_training(
        self, run_dir: Path | None, config: Mapping[str, Any] | None = None, update: int = 0, step: int | None = None
    ) -> None:
        if config:
            self._about["env"] = environment(config)
        if run_dir is not None:
            self._about["run"] = str(run_dir.absolute())
            self.items = self._files(run_dir)
            for handle in [item.handle for item in self.items.items() if item.handle > self.count]:
                self.items.delete(handle)  # of updates that were lost, and will be made again
            self._axis, self._worker = update if step is None else step, _Worker(self.items, self.keep)

    def _files(self, run_dir: Path) -> ExportedFiles:
        """Return the files of this run.

        Raises:
            RlrunError: the folder cannot be made, or has files of another run.
        """
        if self.directory is None:
            return ExportedFiles(run_dir / "exports", self.prefix)
        try:
            files = ExportedFiles(self.directory, self.prefix)
        except OSError as error:
            raise RlrunError(f"export.directory: {self.directory} cannot be made: {reason(error)}") from error
        for item in files.items():
            if files.run_of(item) != self._about["run"]:
                way_out = "another export.directory or export.prefix keeps both"
                raise RlrunError(f"export.directory: {item.path} was not written by this run; {way_out}")
        return files

    def end_batch(self, update: int, step: int | None = None) -> None:
        self._axis = update if step is None else step
        if self._worker is None:
            return
        if self._axis >= self._due:
            self._due = following(self._axis, self.every)
            self._send({}, spare=True)
        while not self._requests.empty():
            metadata, future = self._requests.get()
            future.set_result(self._send(metadata))

    def end_training(self, error: BaseException | None, update: int = 0, step: int | None = None) -> None:
        if self._worker is None:
            return
        self._axis = update if step is None else step
        try:
            if (error is None or isinstance(error, Stop)) and self._axis > self._newest:
                self._send({})
        except BaseException:  # a second signal: the process leaves now, and its thread with it
            self._worker.link.kill()
            raise
        finally:
            self._worker.close()
            self._worker = None
            if self._unwrapper is not None:
                self._unwrapper.close()
                self._unwrapper = None
        while not self._requests.empty():
            self._requests.get()[1].set_exception(RlrunError("training is over"))

    def export(self, metadata: Mapping[str, str] | None = None) -> Item:
        """Export now and wait for the file; to be called by the thread that trains.

        Raises:
            RlrunError: it cannot be written, or nothing is being trained.
        """
        return self._send(metadata or {}).result()

    def export_threadsafe(self, metadata: Mapping[str, str] | None = None) -> Item:
        """Export at the end of the current update and wait for the file; to be called by any other thread.

        Raises:
            RlrunError: it cannot be written, or training ended meanwhile.
        """
        future: Future[Future[Item]] = Future()
        self._requests.put((dict(metadata or {}), future))
        if self._worker is None:
            raise RlrunError("nothing is being trained whose policy could be exported")
        return future.result().result()

    def _send(self, metadata: Mapping[str, str], *, spare: bool = False) -> Future[Item]:
        if self._worker is None or self.items is None:
            raise RlrunError("nothing is being trained whose policy could be exported")
        self.count, self._newest = self.count + 1, self._axis
        path = self.items.path_of(self.count)
        about = {**self.metadata, **metadata, **self._about, "env_steps": self._axis, "model_version": self.count}
        try:
            agent, outer = self.agent, Outer(*self.env.outer)
            if states := self.env.wrapper_states():
                self._unwrapper = self._unwrapper or Unwrapper(self.env)
                agent, bare = self._unwrapper(agent, states)
                outer = Outer(*bare.outer)
            parts = request(agent, outer, stochastic=self.stochastic, path=path, about=about)
            return self._worker.send(self.count, parts, spare=spare)
        except Exception as error:  # a policy that cannot be copied, a full disk: training continues
            future: Future[Item] = Future()
            future.set_exception(_failure(self.count, f"{type(error).__name__}: {error}"))
            return future

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "newest": self._newest}

    def load_numbers(self, state: dict[str, Any]) -> None:
        self.count, self._newest = state["count"], state["newest"]
        self._due = following(self._newest, self.every)


class ExportJob(NamedTuple):
    """Write the file of this request."""

    request: bytes


class _Worker:
    """The process that writes files, and a thread that waits for it.

    Args:
        items: the files.
        keep: number of newest files that stay; None = all.
    """

    def __init__(self, items: ExportedFiles, keep: int | None) -> None:
        self.items, self.keep = items, keep
        self.link = ProcessLink(None, write_files)
        self._newest = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="export")

    def send(self, handle: int, parts: bytes, *, spare: bool) -> Future[Item]:
        """Hand over a request; return the future of its file.

        spare: whether to leave the file out if newer requests would remove it at once.
        """
        self._newest = handle
        return self._thread.submit(self._write, handle, parts, spare=spare)

    def _write(self, handle: int, parts: bytes, *, spare: bool) -> Item:
        if spare and self.keep is not None and self._newest - handle >= self.keep:
            raise RlrunError("newer files replace this one")
        problem, item = self._carry_out(parts), self.items.get(handle)
        if problem or item is None:
            raise _failure(handle, problem or f"{self.items.path_of(handle)} is not there")
        try:
            for older in self.items.items()[: -self.keep if self.keep else 0]:
                self.items.delete(older.handle)
        except (RlrunError, OSError) as error:  # another process removed a file, or the folder is read-only
            _messages.warning("%s", error)
        return item

    def _carry_out(self, parts: bytes) -> str:
        """Let the process write the file of a request; return what went wrong, or an empty text."""
        self.link.send(ExportJob(parts))
        answer: str | None = self.link.rows.receive()
        return "the process that exports has ended" if answer is None else answer

    def close(self) -> None:
        """Wait until all requests are written."""
        self._thread.shutdown()
        self.link.close()


def _failure(handle: int, problem: str) -> RlrunError:
    _messages.warning("export %d failed: %s", handle, problem)
    return RlrunError(problem)


def request(agent: Any, outer: Outer, *, stochastic: bool, path: Path, about: Mapping[str, Any]) -> bytes:
    """Return a request for a worker, with a copy of the agent; the graph is built by the worker."""
    return pickle.dumps((outer, stochastic, path, about, freeze(agent)))


def carry_out(request: bytes) -> None:
    """Write the file of a request.

    Raises:
        RlrunError: the policy cannot be exported, or the file would act otherwise.
    """
    outer, stochastic, path, metadata, frozen = pickle.loads(request)
    agent = thaw(frozen)
    graph = Graph(agent, outer, stochastic=stochastic)
    about = {**metadata, **interface(graph)}
    data = making.onnx_bytes(graph, making.traced(graph), about=metadata, version=about["model_version"])
    parity = compare(running(data, graph, "onnx"), Reference(agent, graph), edges(graph), lenient=True)
    about["parity"] = {"edges": parity.rows, "largest_at_edges": parity.largest}
    write_json(path.with_name(f"{path.name}.json"), about)
    replace(path, data)


def write_files(_load: Callable[[], None], jobs: Inbox, give: Give) -> None:
    """Carry out requests until there are no more; give an empty text for each, or the error."""
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(10)  # training comes first
    making.keep_operators()
    # what exporters print is for nobody
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        while isinstance(job := jobs.receive(), ExportJob):
            try:
                carry_out(job.request)
                give("")
            except Exception as error:
                give(describe_error(error))
