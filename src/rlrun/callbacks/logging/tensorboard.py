"""TensorBoard."""

from collections.abc import Mapping
from typing import Any

from rlrun.callbacks.logging.record import Record, Tracker, gif
from rlrun.core.errors import MissingExtra
from rlrun.runs.directory import RunDir
from rlrun.training.metrics import Distribution, Image, Text, Video


class TensorBoard(Tracker):
    """`tensorboard/`: tags are the metrics' names; the config is the text `config`."""

    media = True

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("logger tensorboard", "tensorboard", "tensorboard") from None
        self._make = SummaryWriter
        self._writer: Any = None

    def open(self, run: RunDir | None, config: Mapping[str, Any], *, records: int = 0, axis: int = 0) -> None:
        assert run is not None
        purge = axis + 1 if records else 0  # hides records after the checkpoint of an interrupted run
        self._writer = self._make(str(run.tensorboard), purge_step=purge)  # type: ignore[no-untyped-call]
        if run.config.is_file():
            text = run.config.read_text(encoding="utf-8", errors="replace")
            self._writer.add_text("config", f"```\n{text}\n```", axis)

    def log(self, record: Record, at: int) -> None:
        write = self._writer
        for name, value in record.items():
            if isinstance(value, Distribution):
                counts, edges = value.counts.tolist(), value.edges.tolist()
                # TensorBoard's first bin ends at the first edge
                write.add_histogram_raw(name, edges[0], edges[-1], sum(counts), 0, 0, edges, [0, *counts], at)
            elif isinstance(value, Image):
                write.add_image(name, value.pixels, at, dataformats="HWC")
            elif isinstance(value, Video):
                self._add_gif(name, value, at)
            elif isinstance(value, Text):
                write.add_text(name, value.text, at)
            else:
                write.add_scalar(name, value, at)
        write.flush()  # a full disk is noticed by this record, not by a later one

    def _add_gif(self, name: str, value: Video, at: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        height, width = value.frames.shape[1:3]
        # torch's `add_video` writes the same, by moviepy
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif(value))
        self._writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), at)

    def close(self, failed: bool = False) -> None:
        self._writer.close()
