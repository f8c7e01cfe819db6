"""Which file, or which override, set each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlrun.config.tree import Path, dotted, leaves, plain

if TYPE_CHECKING:
    from rlrun.config.composition import Composed

WORD = "word"


class Layer(NamedTuple):
    """What one file or one override put into the config, in the order of merging."""

    label: str
    config_path: str  # "" for an override
    packaged: bool
    content: Any  # a plain tree from the top


def provenance(composed: Composed) -> dict[str, str]:
    """Return for each key of the composed config the file that set it last, or `override`."""
    return {dotted(path): layer.label for path, layer in origins(composed.config, composed.layers).items()}


def origins(config: Any, layers: Sequence[Layer]) -> dict[Path, Layer]:
    """Return the last layer that set each leaf of a config."""
    setters: dict[Path, tuple[int, Layer]] = {}
    for number, layer in enumerate(layers):
        for path, value in leaves(layer.content):
            # Neither an empty block nor `???` takes the place of what is there.
            if path and not (value in ({}, "???") and any(leaf[: len(path)] == path for leaf in setters)):
                setters[path] = number, layer
    layer_of = {}
    for path, _ in leaves(plain(config)):
        candidates = [setters[path[:length]] for length in range(len(path) + 1) if path[:length] in setters]
        if candidates:
            layer_of[path] = max(candidates, key=lambda candidate: candidate[0])[1]
    return layer_of
