"""Episodes through onnxruntime alone, with the policy looking on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.collect.evaluate import undisturbed
from rlrun.env import Env
from rlrun.errors import RlrunError
from rlrun.export.checking import Columns, Reference

APART = 1e-4  # at most, between a number in an action of the file and of the policy


def played(data: bytes, reference: Reference, env: Env, about: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return what episodes came to that the file acted in, as `play_onnx.py` plays them.

    Args:
        data: the file.
        reference: its policy, asked at each step for its own action, which nobody takes.
        env: of one lane.
        about: what FILE.json will say.
        count: how many; episode i begins with `reset(seed=seed + i)`.

    Raises:
        RlrunError: the policy would have acted otherwise somewhere.
    """
    from rlrun.export import play_onnx  # which needs onnxruntime

    seed, limits = about["seed"], about["env"]
    policy = play_onnx.Policy(data, about, seed)
    watch = _Watch(policy, reference)
    with undisturbed():
        env.renew()
        results = [
            play_onnx.episode(watch, env.lanes[0], seed + index, limits["max_steps"], limits["reset_options"])
            for index in range(count)
        ]
    return {
        "seeds": [seed + index for index in range(count)],
        "returns": [total for total, _ in results],
        "lengths": [steps for _, steps in results],
        "largest": watch.largest,
    }


class _Watch:
    """Acts as the file does, and compares."""

    def __init__(self, policy: Any, reference: Reference) -> None:
        self.policy, self.reference = policy, reference
        self.largest = 0.0
        self._given: Columns = {}
        self._run = policy.session.run
        policy.session = self  # so that its inputs are seen

    def reset(self) -> None:
        self.policy.reset()

    def act(self, observation: Any) -> Any:
        return self.policy.act(observation)

    def run(self, names: list[str], inputs: Columns) -> list[Any]:
        """Return what the file answers, if the policy answers the same."""
        outputs = self._run(names, inputs)
        wanted = self.reference(inputs)
        for name, value in zip(names, outputs, strict=True):
            if name.startswith("action"):
                self._compare(name, value, wanted[name])
        return list(outputs)

    def _compare(self, name: str, value: Any, wanted: Any) -> None:
        whole = np.issubdtype(wanted.dtype, np.integer)
        apart = np.abs(value.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
        if (whole and apart.any()) or not (apart < APART).all():
            raise RlrunError(
                f"the exported policy disagrees in an episode: '{name}' is {value[0].tolist()}, "
                f"not {wanted[0].tolist()}"
            )
        self.largest = max(self.largest, float(apart.max(initial=0.0)))
