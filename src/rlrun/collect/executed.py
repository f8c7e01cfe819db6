"""Values stored from the infos of steps: executed actions, such as an expert's, and columns."""

from collections.abc import Sequence

import numpy as np

from rlrun.collect.agents import Response
from rlrun.core.errors import DataError
from rlrun.core.spaces import Box, Discrete, Leaf, leaves, leaves_of, map_tree, put_rows
from rlrun.core.typing import Array
from rlrun.env import Env, Step
from rlrun.env.spaces import policy_actions
from rlrun.memory.table.columns import Column


class Executed:
    """Replaces the agent's actions by those that the environment reports as executed, and adds columns from infos.

    Args:
        env: the environment.
        name: key of the executed action in infos, in the environment's own units; a step may lack it. None = actions
            stay.
        columns: each is filled by the entry of its name in the info of every step.
    """

    def __init__(self, env: Env, name: str | None, columns: Sequence[Column] = ()) -> None:
        self.outer, self.space, self.name, self.columns = env.outer[1], env.spaces.action, name, columns

    def __call__(self, response: Response, step: Step) -> Response:
        """Return the response to store.

        Raises:
            DataError: the reported action is invalid, or a column's value is missing or of another shape.
        """
        for column in self.columns:
            response = {**response, column.name: _values(column, step)}
        if self.name is None:
            return response
        named = {env_index: info.get(self.name) for env_index, info in step.info.items()}
        executed = {env_index: value for env_index, value in named.items() if value is not None}
        if not executed:
            return response
        action = map_tree(np.array, response["action"])
        for env_index, value in executed.items():
            try:
                row = policy_actions(self.outer, value)
                fits = all(map(holds, (leaf for _, leaf in leaves(self.space)), leaves_of(self.space, row)))
            except (TypeError, ValueError, LookupError):
                fits = False
            if not fits:
                raise DataError(
                    f"env {env_index} executed {self.name}={str(value)[:100]}, by its info; that is no action"
                )
            put_rows(action, env_index, row)
        return {**response, "action": action}


def _values(column: Column, step: Step) -> Array:
    values = np.zeros((len(step.reward), *column.shape), column.dtype)
    for env_index in np.flatnonzero(np.ones(len(values)) if step.valid is None else step.valid).tolist():
        value = (step.info.get(env_index) or {}).get(column.name)
        if value is None or np.shape(value) != column.shape or np.asarray(value).dtype.kind not in "biuf":
            got = "nothing" if value is None else f"{value!r:.100}"
            wanted = f"numbers {list(column.shape)} in the info of every step"
            raise DataError(f"memory.columns.{column.name}: wanted {wanted}, got {got}")
        values[env_index] = value
    return values


def holds(leaf: Leaf, value: Array) -> bool:
    """Return True if a policy action lies in a leaf of the space."""
    if np.shape(value) != tuple(leaf.shape) or not np.isfinite(value).all():
        return False
    if isinstance(leaf, Box):
        return True
    return bool(((value >= 0) & (value < (leaf.n if isinstance(leaf, Discrete) else leaf.nvec))).all())
