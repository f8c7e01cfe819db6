"""What no environment may give."""

from __future__ import annotations

import math

import numpy as np

from rlrun.errors import DataError
from rlrun.typing import Tree


def require_finite(tree: Tree, name: str, step: int) -> None:
    """Refuse NaN and infinity before they enter memory.

    Raises:
        DataError: with lane, step and value.
    """
    if isinstance(tree, dict):
        for key, part in tree.items():
            require_finite(part, f"{name}.{key}", step)
    elif tree.dtype.kind == "f" and not math.isfinite(np.vdot(tree, tree)) and not np.isfinite(tree).all():
        lane, *rest = np.argwhere(~np.isfinite(tree))[0].tolist()
        place = f"{name}{rest}" if rest else name
        value = tree[(lane, *rest)]
        largest = f"; {tree.dtype} holds numbers up to {np.finfo(tree.dtype).max:.2g}" if np.isinf(value) else ""
        raise DataError(
            f"the environment gave {place} = {value} in lane {lane} after {step} environment steps{largest}"
        )
