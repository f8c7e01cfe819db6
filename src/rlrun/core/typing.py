"""Types that several packages share."""

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tree: TypeAlias = Any  # an array, a tensor, or a dict of trees
Batch: TypeAlias = dict[str, Any]  # column -> tree
Groups: TypeAlias = dict[str, Batch]  # data group -> batch


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state goes into a checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...
