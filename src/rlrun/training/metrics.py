"""Metrics of an update: tensors, reduced only when they are read; histograms, images, videos and texts."""

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun import ops
from rlrun.core.typing import Array

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
BINS = 64  # of a histogram
LARGEST = 1e300  # numbers of a histogram are clamped to this, so that its range is finite
AXES = ("env_steps", "updates", "seconds", "samples")  # of a record; metrics may not have these names
WINDOWED = re.compile(r"windowed\[[1-9]\d{0,8}\]:\S.*")
LIKE_WINDOWED = re.compile(r"window\w*[\[(]", re.IGNORECASE)
UNREAD = 256  # values of a window that stay on their device, at most
WANTED = "a metric is one number, or a Histogram, Image, Video or Text of rlrun"


class Metric(NamedTuple):
    """Tensors of an update with the reduction that makes them one number.

    tensors: [...] each, detached when they are stored.
    by: name of the reduction, a key of `REDUCTIONS`; or a function of the tensors.
    valid: flags [...] of the entries that count; None = all.
    """

    tensors: tuple[Tensor, ...]
    by: str | Callable[..., Tensor] = "mean"
    valid: Tensor | None = None


class Histogram(NamedTuple):
    """Numbers whose distribution is logged; `metrics.jsonl` has their quantiles as NAME/q05 to NAME/q95.

    values: [...], a tensor, an array or a list; NaN and infinity are left out.
    """

    values: Any


class Image(NamedTuple):
    """An image for TensorBoard and W&B.

    pixels: [H, W] or [H, W, channels] with 1, 3 or 4 channels, of bytes, or of numbers from 0 to 1.
    """

    pixels: Any


class Video(NamedTuple):
    """A video for TensorBoard and W&B.

    frames: [T, H, W] or [T, H, W, channels], as those of an `Image`.
    fps: frames a second.
    """

    frames: Any
    fps: float = 30.0


class Text(NamedTuple):
    """A text for TensorBoard and W&B."""

    text: str


class Distribution(NamedTuple):
    """A histogram in a record: counts [N] in bins with edges [N + 1], and its `QUANTILES`."""

    counts: Array
    edges: Array
    quantiles: list[float]


MEDIA = (Image, Video, Text)
KINDS = (Histogram, Distribution, *MEDIA)  # of metrics other than numbers


def explained_variance(value: Tensor, return_: Tensor) -> Tensor:
    """Return 1 - Var(return - value) / Var(return): 1 for exact values, 0 for a constant."""
    return 1.0 - (return_ - value).var() / return_.var().clamp(min=1e-12)


REDUCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "mean": lambda value: value.float().mean(),
    "size": lambda value: value.abs().mean(),
    "squares": lambda value: value.square().sum(-1).mean(),  # of rows of numbers
    "saturated": ops.saturated,  # of actions within [-1, 1]
    "saturated_mean": lambda mean: ops.saturated(mean.tanh()),
    "explained_variance": explained_variance,
}


@dataclass
class Window:
    """The newest numbers of a metric, and the sum of all finite ones; they stay on their device until they are read."""

    newest: deque[float]
    total: float = 0.0
    unread: list[Any] = field(default_factory=list)

    def catch_up(self) -> None:
        """Add the unread numbers; the result does not depend on when this is called."""
        for number in to_host(dict(enumerate(self.unread))).values():
            self.newest.append(number)
            self.total += number if math.isfinite(number) else 0.0
        self.unread = []


class Windows:
    """Windows of metrics with names `windowed[N]:NAME`: NAME is the mean of the newest N values."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}  # by the whole name

    def take(self, metrics: dict[str, Any]) -> bool:
        """Move the metrics with such names into their windows; return True if there are any."""
        names = [name for name in metrics if name.startswith("windowed[") and WINDOWED.fullmatch(name)]
        if not names:
            return False
        values = {name: value for name in names if is_number(value := reduced(metrics[name]))}
        for name, value in values.items():
            del metrics[name]
            window = self._window(name)
            window.unread.append(value.clone() if isinstance(value, Tensor) else float(value))
            if len(window.unread) == UNREAD:
                window.catch_up()
        return bool(values)

    def read(self) -> dict[str, float]:
        """Return the means as NAME, and the sums of all values as NAME/cumulative."""
        metrics: dict[str, float] = {}
        for whole, window in self._windows.items():
            window.catch_up()
            name = whole.partition(":")[2]
            metrics |= {name: sum(window.newest) / len(window.newest), f"{name}/cumulative": window.total}
        return metrics

    def state_dict(self) -> dict[str, list[float]]:
        """Return the sum and the newest numbers of each window."""
        for window in self._windows.values():
            window.catch_up()
        return {name: [window.total, *window.newest] for name, window in self._windows.items()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        """Restore the result of `state_dict`."""
        self._windows = {}
        for name, (total, *newest) in state.items():
            numbers = all(type(number) in (int, float) for number in (total, *newest))
            if not (WINDOWED.fullmatch(name) and newest and numbers):
                raise ValueError(f"no window: {name}")
            self._window(name).newest.extend(newest)
            self._window(name).total = total

    def _window(self, name: str) -> Window:
        if name not in self._windows:
            self._windows[name] = Window(deque(maxlen=int(name[name.index("[") + 1 : name.index("]")])))
        return self._windows[name]


class MetricStore:
    """The newest metrics of one callback; each mapping from a hook replaces the previous one.

    They are reduced when they are read, without a network and without random numbers.

    Attributes:
        windows: means of metrics named `windowed[N]:NAME`; the logger saves them.
    """

    def __init__(self) -> None:
        self.newest: dict[str, Any] = {}
        self.fresh = False  # True if they are of an update of this process
        self.windows = Windows()

    def load(self, metrics: Mapping[str, float]) -> None:
        """Keep the numbers of a checkpoint until the next update."""
        self.newest, self.fresh = dict(metrics), False

    def put(self, metrics: Mapping[str, Any]) -> None:
        """Replace the metrics by others: tensors, which stand for their mean, numbers or other kinds."""
        self.newest, self.fresh = {name: detached(value) for name, value in metrics.items()}, True
        self.windows.take(self.newest)

    @torch.no_grad()
    def read(self) -> dict[str, Any]:
        """Return numbers, tensors of one number, and other kinds, by name."""
        return {name: reduced(value) for name, value in self.newest.items()} | self.windows.read()


def detached(value: Any) -> Any:
    """Return a metric without the graph of its tensors."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if isinstance(value, Metric):
        return Metric(tuple([detached(tensor) for tensor in value.tensors]), value.by, value.valid)
    if isinstance(value, np.ndarray):
        return value.copy()  # its owner may use it again
    if isinstance(value, list):
        return [detached(part) for part in value]
    if isinstance(value, tuple):
        return getattr(type(value), "_make", tuple)([detached(part) for part in value])
    return value


def reduced(value: Any) -> Any:
    """Return a metric as a number or a tensor of one number; histograms, images, videos and texts stay unchanged."""
    if isinstance(value, Metric):
        tensors = value.tensors if value.valid is None else tuple(tensor[value.valid] for tensor in value.tensors)
        return (REDUCTIONS[value.by] if isinstance(value.by, str) else value.by)(*tensors)
    if isinstance(value, Tensor) and value.dim():
        return value.float().mean()
    return value


def is_number(value: Any) -> bool:
    """Return True for a number, or a tensor of one."""
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float | np.number | np.bool_)


def _in_record(value: Any) -> Any:
    """Return a metric in the form of records: a histogram as a `Distribution`, frames as bytes [..., H, W, channels].

    Raises:
        ValueError: it is not a metric; the message describes it.
    """
    if isinstance(value, Histogram):
        return _distribution(_array(value.values))
    if isinstance(value, Image):
        return Image(_bytes(_array(value.pixels), dimensions=3))
    if isinstance(value, Video):
        if not 0.0 < value.fps < 1e6:
            raise ValueError(f"fps={value.fps}; frames a second are above 0")
        return Video(_bytes(_array(value.frames), dimensions=4), float(value.fps))
    if isinstance(value, Text) and not isinstance(value.text, str):
        raise ValueError(f"a Text of the type {type(value.text).__name__}")
    if isinstance(value, Distribution | Text):
        return value
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"the shape {list(value.shape)}; {WANTED}")
        return value
    try:
        return value if type(value) in (int, float) else float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the type {type(value).__name__}; {WANTED}") from None


def as_record(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return metrics in the form of records, and for each invalid one a description of its fault."""
    values, faults = {}, {}
    for name, value in metrics.items():
        try:
            if name in AXES:
                raise ValueError("the name of an axis")
            if LIKE_WINDOWED.match(name) and not (WINDOWED.fullmatch(name) and is_number(reduced(value))):
                number = "a whole number in brackets and a number as value"
                raise ValueError(f"a name like windowed[100]:NAME, which needs {number}")
            values[name] = _in_record(value)
        except ValueError as fault:
            faults[name] = str(fault)
    return to_host(values), faults


def to_host(metrics: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return metrics without tensors, in the same order; one copy for all tensors of a device."""
    values = dict(metrics)
    by_device: dict[torch.device, list[Any]] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            by_device.setdefault(value.device, []).append(name)
    for names in by_device.values():
        stacked = torch.stack([values[name].detach().reshape(()).float() for name in names])  # [number of metrics]
        values.update(zip(names, stacked.tolist(), strict=True))
    return values


def numbers_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without images, videos and texts, and with the quantiles of histograms."""
    numbers: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Distribution):
            numbers |= {
                f"{name}/{quantile}": number for quantile, number in zip(QUANTILES, value.quantiles, strict=True)
            }
        elif not isinstance(value, MEDIA):
            numbers[name] = value
    return numbers


def as_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers, for a checkpoint: quantiles of histograms, and no images, videos and texts."""
    return numbers_of(as_record(metrics)[0])


def packed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics of a record as plain lists and numbers, for a checkpoint."""
    return {
        name: [type(value).__name__, *value] if isinstance(value, KINDS) else value for name, value in metrics.items()
    }


def unpacked(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics from the result of `packed`."""
    kinds = {kind.__name__: kind for kind in KINDS}
    return {name: kinds[value[0]](*value[1:]) if isinstance(value, list) else value for name, value in metrics.items()}


def _array(values: Any) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # NumPy knows no bfloat16
    try:
        array = np.asarray(values)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"values that are no array ({str(error).splitlines()[0]})") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"values of the type {array.dtype.name}, wanted numbers")
    return array


def _distribution(values: Array) -> Distribution:
    values = values.astype(np.float64).ravel()
    values = values[np.isfinite(values)]
    if not values.size:
        return Distribution(np.zeros(1, np.int64), np.array([0.0, 1.0]), [np.nan] * len(QUANTILES))
    values = np.sort(values).clip(-LARGEST, LARGEST)
    low, high = values[0], values[-1]
    largest = max(abs(low), abs(high))
    margin = max(1e-6 * largest, 1e-300) if largest else 1e-6  # nearly equal numbers leave no space for bins
    counts, edges = np.histogram(values, BINS, (low - margin, high + margin) if high - low < margin else (low, high))
    places = np.array([*QUANTILES.values()]) * (len(values) - 1)
    return Distribution(counts, edges, np.interp(places, np.arange(len(values)), values).tolist())


def _bytes(frames: Array, dimensions: int) -> Array:
    """Return frames as bytes with this number of dimensions, the last of them channels."""
    frames = frames[..., None] if frames.ndim == dimensions - 1 else frames
    if frames.ndim != dimensions or frames.shape[-1] not in (1, 3, 4) or not frames.size:
        raise ValueError(f"the shape {list(frames.shape)}; frames have [H, W, channels], and 1, 3 or 4 channels")
    if frames.dtype.kind in "iu":
        return frames.clip(0, 255).astype(np.uint8)
    return (np.nan_to_num(frames).clip(0.0, 1.0) * 255.0).round().astype(np.uint8)
