"""A toy with a changing number of agents."""

import numpy as np

from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory.proxy import DictObservation, DictResponse, EpisodeState


class Crowd:
    """Each agent sees a sign and is rewarded for the choice that names it; up to five are there, or none.

    An agent stays for 2 to 6 rounds; even ids end by themselves, odd ones are cut off.
    """

    name = "Crowd"
    spaces = Spaces(Box((2,), np.full(2, -1.0, np.float32), np.ones(2, np.float32)), Discrete(2))

    def __init__(self, *, arrivals: float = 0.6) -> None:
        self.arrivals, self.closed = arrivals, False

    def dict_reset(self, seed: int | None = None) -> dict[int, DictObservation]:
        self.rng, self.ids, self.left = np.random.default_rng(seed), 0, {}
        self.signs: dict[int, float] = {}
        return self.arrive({})

    def dict_step(self, responses: dict[int, DictResponse]) -> dict[int, DictObservation]:
        assert responses.keys() == self.left.keys()
        seen = {}
        for agent, response in responses.items():
            reward = float(response.array_data["action"] == (self.signs[agent] > 0))
            self.left[agent] -= 1
            over = EpisodeState.INTERRUPTED if agent % 2 else EpisodeState.TERMINAL
            seen[agent] = self.look(agent, over if self.left[agent] == 0 else EpisodeState.RUNNING, reward)
        self.left = {agent: steps for agent, steps in self.left.items() if steps}
        return self.arrive(seen)

    def arrive(self, seen: dict[int, DictObservation]) -> dict[int, DictObservation]:
        while len(self.left) < 5 and self.rng.random() < self.arrivals:
            self.left[self.ids] = int(self.rng.integers(2, 7))
            seen[self.ids] = self.look(self.ids, EpisodeState.INITIAL)
            self.ids += 1
        return seen

    def look(self, agent: int, state: EpisodeState, reward: float | None = None) -> DictObservation:
        self.signs[agent] = self.rng.choice([-1.0, 1.0])
        rewards = {} if reward is None else {"reward": reward}
        return DictObservation(state, {"view": np.array([self.signs[agent], 0.5])}, rewards)

    def close(self) -> None:
        self.closed = True
