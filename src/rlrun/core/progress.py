"""How much of a run's budget is used up."""

from typing import Any

from rlrun.core.errors import ConfigError


class Progress:
    """The share of a run's budget that is used up, from 0 to 1.

    With limits of both environment steps and updates it is the larger share. Agents and adaptors get it by `progress:
    ${progress}` and call it; hooks request `progress` by name.

    Args:
        env_steps: the limit, all envs together; None = no limit.
        updates: likewise, counted as `stop.updates` is.

    Attributes:
        step, update: so far, as collectors and the budget count them.
    """

    inherited = ()  # a fork begins at 0

    def __init__(self, env_steps: int | None = None, updates: int | None = None) -> None:
        self.env_steps, self.updates = env_steps, updates
        self.step = self.update = 0

    @property
    def limited(self) -> bool:
        """Whether there is a limit, and so a share."""
        return self.env_steps is not None or self.updates is not None

    def __call__(self) -> float:
        """Return the share by now.

        Raises:
            ConfigError: there is no limit.
        """
        return self.at(self.step, self.update)

    def at(self, step: int, update: int) -> float:
        """Return the share after some environment steps and updates.

        Raises:
            ConfigError: there is no limit.
        """
        if not self.limited:
            raise ConfigError(NO_LIMIT)
        pairs = (step, self.env_steps), (update, self.updates)
        return max(min(count / limit, 1.0) if limit else 1.0 for count, limit in pairs if limit is not None)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "update": self.update}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.update = state["step"], state["update"]


NO_LIMIT = "progress is a share of stop.env_steps or stop.updates, and neither is set"
