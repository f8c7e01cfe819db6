"""An environment that is waited for; a module of its own, for each job of a sweep imports it."""

from __future__ import annotations

import time
from typing import Any

from rlrun.env.toys import Bandit

SECONDS = 0.1  # that a step takes


class Wait(Bandit):
    """Take a tenth of a second for a step, and no processor."""

    def step(self, action: Any) -> Any:
        time.sleep(SECONDS)
        return super().step(action)
