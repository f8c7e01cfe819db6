"""Export the policy during training."""

import json
import logging
import queue
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rlrun.callbacks.schedule import following
from rlrun.collect.agents import alone
from rlrun.collect.evaluate import restored_generators
from rlrun.collect.normalized import Unwrapper
from rlrun.collect.unroll import freeze, thaw
from rlrun.core.errors import ConfigError, RequestError, RlrunError, describe_error
from rlrun.core.files import reason, replace
from rlrun.env import Env
from rlrun.export import making
from rlrun.export.checking import Reference, compare, edges, running
from rlrun.export.graph import Graph, Outer
from rlrun.export.making import environment, interface
from rlrun.runs.items import Item, Items
from rlrun.training.callback import Callback, Stop

_messages = logging.getLogger("rlrun")


class ExportedFiles(Items):
    """The files `PREFIX<number>.onnx` of a folder; safe to call from any thread."""

    def __init__(self, folder: Path, prefix: str) -> None:
        super().__init__(folder, prefix, ".onnx")

    def run_of(self, item: Item) -> Any:
        """Return the run directory that a file's `.json` names; None if it names none."""
        try:
            return json.loads(item.path.with_name(f"{item.path.name}.json").read_text()).get("run")
        except (OSError, ValueError, AttributeError):
            return None

    def delete(self, handle: int) -> None:
        """Remove a file and its `.json`.

        Raises:
            RlrunError: there is no file of this number.
        """
        super().delete(handle)
        path = self.path_of(handle)
        path.with_name(f"{path.name}.json").unlink(missing_ok=True)


class OnnxExport(Callback):
    """Export the policy during training as `PREFIX<number>.onnx`; training pauses for a second or two.

    The numbers of training do not change. A file gets its name only after it acted as its policy on extreme inputs;
    `rlrun export-onnx` checks more. If a file cannot be written, a warning is logged and training continues.

    Args:
        agent: with the policy.
        env: its environment.
        every: environment steps (updates, if there is no collector) between files; 0 = only at the end of training,
            where there is always one, and when `export` is called.
        stochastic: sample actions, by noise that is an input.
        keep: number of files to keep, the newest; None = all.
        metadata: further entries for the files, name -> text.
        directory: folder of the files, used by one run at a time; None = `exports/` of the run.
        prefix: beginning of the files' names.

    Raises:
        ConfigError: a number is out of range, a name of the metadata is not a text, or the prefix cannot begin a
            file's name.
        RequestError: the agent cannot be exported.
        MissingExtra: a package is not installed.
    """

    leads = True
    momentary = ("_requests", "_unwrapper", "_about", "items", "training")  # of this process

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
        self.count = 0  # number of exports so far, and of the newest file
        self._axis, self._newest, self._due = 0, 0, following(0, every)
        self.training = False
        self._unwrapper: Unwrapper | None = None
        self._requests: queue.SimpleQueue[tuple[Mapping[str, str], Future[Item]]] = queue.SimpleQueue()

    def begin_training(
        self, run_dir: Path | None, config: Mapping[str, Any] | None = None, update: int = 0, step: int | None = None
    ) -> None:
        if config:
            self._about["env"] = environment(config)
        if run_dir is not None:
            self._about["run"] = str(run_dir.absolute())
            self.items = self._files(run_dir)
            for handle in [item.handle for item in self.items.items() if item.handle > self.count]:
                self.items.delete(handle)  # from updates after the checkpoint, which will be repeated
            self._axis, self.training = update if step is None else step, True

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
        if not self.training:
            return
        if self._axis >= self._due:
            self._due = following(self._axis, self.every)
            self._answer({}, Future())
        while not self._requests.empty():
            self._answer(*self._requests.get())

    def end_training(self, error: BaseException | None, update: int = 0, step: int | None = None) -> None:
        self._axis = update if step is None else step
        if self.training and (error is None or isinstance(error, Stop)) and self._axis > self._newest:
            self._answer({}, Future())
        self.training = False
        if self._unwrapper is not None:
            self._unwrapper.close()
            self._unwrapper = None
        while not self._requests.empty():
            self._requests.get()[1].set_exception(RlrunError("training is over"))

    def export(self, metadata: Mapping[str, str] | None = None) -> Item:
        """Export now and return the file; call it from the training thread.

        Raises:
            RlrunError: the file cannot be written, or no training is in progress.
        """
        if not self.training or self.items is None:
            raise RlrunError("nothing is being trained whose policy could be exported")
        self.count, self._newest = self.count + 1, self._axis
        try:
            return self._write(self.items, {**self.metadata, **(metadata or {}), **self._about})
        except Exception as error:  # a policy that cannot be copied, a full disk
            problem = describe_error(error)
            _messages.warning("export %d failed: %s", self.count, problem)
            raise RlrunError(problem) from error

    def export_threadsafe(self, metadata: Mapping[str, str] | None = None) -> Item:
        """Export at the end of the current update and wait for the file; call it from any other thread.

        Raises:
            RlrunError: the file cannot be written, or training ended meanwhile.
        """
        future: Future[Item] = Future()
        self._requests.put((dict(metadata or {}), future))
        if not self.training:
            raise RlrunError("nothing is being trained whose policy could be exported")
        return future.result()

    def _answer(self, metadata: Mapping[str, str], future: Future[Item]) -> None:
        """Export and set the result of a future; training continues after a failure."""
        try:
            future.set_result(self.export(metadata))
        except RlrunError as error:
            future.set_exception(error)

    def _write(self, items: ExportedFiles, about: Mapping[str, Any]) -> Item:
        agent, outer, path = alone(self.agent), Outer.of(self.env.outer), items.path_of(self.count)
        if states := self.env.wrapper_states():
            self._unwrapper = self._unwrapper or Unwrapper(self.env)
            agent, bare = self._unwrapper(agent, states)
            outer = Outer.of(bare.outer)
        about = {**about, "env_steps": self._axis, "model_version": self.count}
        write_file(agent, outer, path, about, stochastic=self.stochastic)
        written = items.items()
        for older in written[: -self.keep if self.keep else 0]:
            items.delete(older.handle)
        return written[-1]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "newest": self._newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._newest = state["count"], state["newest"]
        self._due = following(self._newest, self.every)


def write_file(agent: Any, outer: Outer, path: Path, metadata: Mapping[str, Any], *, stochastic: bool) -> None:
    """Write the file of a policy, if it acts as the policy on extreme inputs.

    Raises:
        RlrunError: the policy cannot be exported, or the file would act differently.
    """
    agent = thaw(freeze(agent))  # on the CPU, and apart from training
    with restored_generators():
        graph = Graph(agent, outer, stochastic=stochastic)
        data = making.onnx_bytes(graph, metadata, version=metadata["model_version"])
        parity = compare(running(data, graph), Reference(agent, graph), edges(graph), lenient=True)
    about = {**metadata, **interface(graph), "parity": {"edges": parity.rows, "largest_at_edges": parity.largest}}
    making.write_about(path, about)
    replace(path, data)
