"""Weights & Biases."""

import html
import os
import secrets
import shlex
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from rlrun.callbacks.logging.record import (
    Record,
    Tracker,
    gif,
    kept_id,
    noted,
    pillow,
    position,
    titles,
)
from rlrun.core.errors import ConfigError, MissingExtra
from rlrun.runs.directory import RunDir
from rlrun.training.metrics import Distribution, Image, Video

MODES = ("offline", "online", "disabled", "shared", "dryrun", "run")  # of W&B


class Wandb(Tracker):
    """Weights & Biases, by default offline; files are in the run's `wandb/`.

    An active wandb run of this process stays active.
    No code is stored. Git is not called, as it runs programs that a repository names; the manifest has the commit.

    Args:
        project: on the server.
        name: of the run there; WANDB_NAME unless given, else its overrides and its seed.
        mode: `offline`, `online` or `disabled`; the variable WANDB_MODE unless given, else `offline`, but `online`
            where an agent of a wandb sweep has started the run.
        tags: of the run.
        group: of runs; WANDB_RUN_GROUP unless given, else the overrides without the seed.
        entity: user or team.
    """

    media = True

    def __init__(
        self,
        project: str = "rlrun",
        *,
        name: str | None = None,
        mode: str | None = None,
        tags: Iterable[str] = (),
        group: str | None = None,
        entity: str | None = None,
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it sends durations and versions offline, too
        try:
            import wandb
        except ImportError:
            raise MissingExtra("logger wandb", "wandb", "wandb") from None
        self._wandb: Any = wandb
        self._mode = mode or os.environ.get("WANDB_MODE", "online" if "WANDB_SWEEP_ID" in os.environ else "offline")
        if self._mode not in MODES:
            raise ConfigError(f"logger.wandb.mode: wanted one of {', '.join(MODES)}, got {self._mode!r}")
        self._name, self._group = name or os.environ.get("WANDB_NAME"), group or os.environ.get("WANDB_RUN_GROUP")
        self._project, self._tags, self._entity = project, list(tags), entity
        self._session: Any = None
        self._next = 0

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int = 0, axis: int = 0) -> None:
        assert run is not None
        run.wandb.mkdir(exist_ok=True)
        group, name = titles(run, config)
        notes = noted(config)
        tags = (config.get("notes") or {}).get("tags")
        self._session = self._wandb.init(
            project=self._project,
            entity=self._entity,
            tags=[*self._tags, *map(str, tags if isinstance(tags, list) else [])],
            notes="\n".join(f"{key}: {value}" for key, value in notes.items()) or None,
            name=self._name or name,
            group=self._group or group or None,
            reinit="create_new" if self._wandb.run is not None else None,
            id=kept_id(run.wandb / "id", lambda: secrets.token_hex(4)),  # not from a generator that training uses
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            dir=str(run.path),
            config=dict(config),
            settings=self._wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True),
        )
        if self._mode == "offline":
            run.echo(f"wandb: offline; to send the run: wandb sync {shlex.quote(str(Path(self._session.dir).parent))}")
        elif self._mode == "online":
            run.echo(f"wandb: online at {self._session.url}")
        # with updates before the first step, a place counts both
        self._axis = "axis" if self.offline and self.axis == "env_steps" else self.axis
        self._session.define_metric(self._axis)
        self._session.define_metric("*", step_metric=self._axis)
        self.newest = position({"env_steps": 0, "updates": -1, **dict(self._session.summary)})
        # the service's counter must rise; a resumed session starts at 0 offline, and at its last value online
        self._next = max(records, self._session.step)

    def log(self, record: Record, at: int) -> None:
        values = {name: self._of(value) if isinstance(value, tuple) else value for name, value in record.items()}
        self._session.log({**values, self._axis: at}, step=self._next)
        self._next += 1

    def _of(self, value: Any) -> Any:
        if isinstance(value, Distribution):
            return self._wandb.Histogram(np_histogram=(value.counts.tolist(), value.edges.tolist()))
        if isinstance(value, Image):
            return self._wandb.Image(pillow(value.pixels))
        if isinstance(value, Video):
            return self._wandb.Video(BytesIO(gif(value)), format="gif")
        return self._wandb.Html(f"<pre>{html.escape(value.text)}</pre>", inject=False)

    def close(self, failed: bool = False) -> None:
        self._session.finish(exit_code=int(failed))
