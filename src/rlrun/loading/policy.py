"""A run's policy as it was at a checkpoint: what is evaluated, looked at and exported."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf

from rlrun.checkpointing import load
from rlrun.collect import Agent
from rlrun.config.build import Builder
from rlrun.core.errors import BuildError, ConfigError, RequestError, RunDirError
from rlrun.env import Env
from rlrun.env.descriptions import RecordedSpaces
from rlrun.loading.assembly import builder_of, machine_of, prepare_process, process_restored, restore_part, stateful
from rlrun.loading.untrusted import Arrival, arrived
from rlrun.runs.directory import checkpoint_key


class Frozen:
    """The agent and the environment of a run, built once; `take` gives them the state of a checkpoint.

    Attributes:
        config: of the run, unresolved.
        about: its manifest.
        directory: the run's.
        agent: what acts.
        env: what its own envs are copied from, never stepped; `RecordedSpaces` of a policy that only acts.
        max_steps: of an episode of the run's evaluations, or None.
    """

    def __init__(self, arrival: Arrival, device: str | None = None, *, only_acts: bool = False) -> None:
        self.directory, self.config, self.about = arrival
        config = self.config if device is None else OmegaConf.merge(self.config, {"device": device})
        device = prepare_process(cast(DictConfig, config), machine_of(arrival.about))
        recorded = None
        if only_acts and (spaces := arrival.about.get("spaces")) is not None:
            recorded = RecordedSpaces(spaces, str(self.directory.manifest))
        try:
            builder, agent, env = self._built(device, recorded)
        except BuildError:
            if recorded is None:
                raise
            builder, agent, env = self._built(device, None)  # a part reads more of the environment than its spaces
        for path, fits, kind, part in (
            ("agent", callable(agent), "something to call", agent),
            ("env", isinstance(env, Env | RecordedSpaces), "an environment", env),
        ):
            if not fits:
                raise ConfigError(f"{path}: wanted {kind}, got a {type(part).__name__}")
        self.agent: Agent = agent
        self.env: Env = env
        self.max_steps: int | None = OmegaConf.select(arrival.config, "evaluation.max_steps")
        # Environments begin a new episode, whatever those of the run were doing.
        self._parts = {path: part for path, part in stateful(builder.built).items() if not isinstance(part, Env)}

    def _built(self, device: str, recorded: RecordedSpaces | None) -> tuple[Builder, Any, Any]:
        builder = builder_of(self.config, recorded=recorded, device=device, num_envs=1)
        with torch.device(device):
            return builder, builder.get("agent"), builder.get("env")

    def take(self, where: Path) -> None:
        """Give the agent the state of a checkpoint.

        Raises:
            RunDirError: it is damaged, or does not fit.
        """
        states = load(where, self._parts)
        for path, part in self._parts.items():
            restore_part(part, states[path], f"{where}: part '{path}'")

    def take_only(self, where: Path) -> None:
        """Give the agent the state of the one checkpoint that was asked for.

        Raises:
            RequestError: it is damaged; the message names the newest of the others that is not.
            RunDirError: all are.
        """
        try:
            self.take(where)
        except RunDirError as error:
            override = self._newest_good(where)
            if override is None:
                raise
            raise RequestError(f"{error}; --checkpoint {override} is the newest good one") from error

    def _newest_good(self, damaged: Path) -> str | None:
        for checkpoint in self.directory.newest_first():
            with suppress(RunDirError):
                if checkpoint != damaged and load(checkpoint, self._parts):
                    step = checkpoint_key(checkpoint)[0]
                    shared = [path for path in self.directory.checkpoint_dirs() if checkpoint_key(path)[0] == step]
                    return checkpoint.name if len(shared) > 1 else str(step)
        return None


@contextmanager
def frozen(
    run: Path | str,
    trust: Iterable[str] = (),
    *,
    typed: Mapping[str, Any] | None = None,
    device: str | None = None,
    only_acts: bool = False,
) -> Iterator[Frozen]:
    """Open a run that another person may have made, build its agent and environment, and close them in the end.

    Args:
        run: a run directory.
        trust: packages that its config may import, beyond those of any run and of the user's project.
        typed: config key -> value, what the user typed; the names among the values are admitted, too.
        device: where the policy goes; None = as in the run.
        only_acts: make no environment, if the manifest has its spaces.

    Raises:
        RequestError: there is no such run, it is damaged, or it names code that is not trusted.
    """
    with process_restored(), arrived(run, trust, typed) as arrival:
        policy = Frozen(arrival, device, only_acts=only_acts)
        try:
            yield policy
        finally:
            policy.env.close()
