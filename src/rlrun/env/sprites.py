"""Drawings of two sprites, for the data and the environment of the same name."""

import numpy as np

from rlrun.core.typing import Array

SIDE, RADIUS = 32, 5.0  # pixels of an image, and from a sprite's center to its edge
LEAST, LARGEST = RADIUS, SIDE - 1.0 - RADIUS  # of a center's row and column: the whole sprite is in the image
PALETTE = np.array(  # gray, of the background; and colors of sprites
    [[30, 30, 30], [230, 60, 50], [60, 190, 70], [60, 90, 230], [240, 210, 50], [200, 70, 210], [60, 210, 220]],
    np.uint8,
)
SHAPES = {
    "square": np.maximum,
    "disk": np.hypot,
    "diamond": lambda down, right: 0.8 * (down + right),
    "cross": lambda down, right: np.maximum(np.maximum(down, right), 3.0 * np.minimum(down, right)),
}


def placed(draw: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return centers [2, 2], shapes [2] and colors [2] of two sprites, as `drawn` takes them; they differ in both."""
    shapes, colors = draw.permutation(len(SHAPES))[:2], 1 + draw.permutation(len(PALETTE) - 1)[:2]
    return draw.uniform(LEAST, LARGEST, (2, 2)), shapes, colors


def drawn(centers: Array, shapes: Array, colors: Array) -> tuple[Array, Array]:
    """Return an image, uint8 [32, 32, 3], and its segmentation, uint8 [32, 32]: 0 the background, 1 or 2 a sprite.

    Colors are plain, without shades. The second sprite is in front of the first.

    Args:
        centers: row and column of each sprite, [2, 2].
        shapes: of each, an index into `SHAPES`, [2].
        colors: of each, an index into `PALETTE`, [2].
    """
    segmentation = np.zeros((SIDE, SIDE), np.uint8)
    norms = [*SHAPES.values()]
    for number, ((row, column), shape) in enumerate(zip(centers, shapes, strict=True), 1):
        down, right = abs(np.arange(SIDE) - row)[:, None], abs(np.arange(SIDE) - column)
        segmentation[norms[shape](down, right) <= RADIUS] = number
    return PALETTE[np.array([0, *colors])][segmentation], segmentation
