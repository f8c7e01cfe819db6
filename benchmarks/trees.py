"""How fast trees grow by a small learned model, next to a tree of Python objects, which asks the model node by node."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algorithms.search import Gumbel, Node, Puct, Search
from rlrun.core.typing import Array

WIDTH, ACTIONS, SIMULATIONS = 64, 4, 25
BATCHES = (8, 64)
OBJECTS = "PUCT by objects"
LEAST = 20.0  # times as fast as trees of objects: PUCT with the larger batch
DISCOUNT = 0.997
SEARCHES = {
    "PUCT": Puct(simulations=SIMULATIONS),
    "PUCT 5 at a time": Puct(simulations=SIMULATIONS, parallel=5),
    "PUCT adding all children": Puct(simulations=SIMULATIONS, expand="all"),
    "PUCT by the regularized policy": Puct(simulations=SIMULATIONS, regularized=("search",)),
    "Gumbel": Gumbel(simulations=SIMULATIONS),
}


class Networks(nn.Module):
    """Dynamics and prediction of one hidden layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.dynamics = nn.Sequential(nn.Linear(WIDTH + ACTIONS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH + 1))
        self.prediction = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS + 1))
        self.codes = torch.eye(ACTIONS)

    @torch.no_grad()
    def forward(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the latents after actions, rewards, and logits with values."""
        after = self.dynamics(torch.cat((latent, self.codes[action]), 1))
        latent = after[:, :WIDTH].tanh()
        return latent, after[:, WIDTH], self.prediction(latent)


class Learned:
    """The networks as a model of a search."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks

    @torch.no_grad()
    def root(self, latent: Tensor) -> Node:
        return self.node(latent, torch.zeros(len(latent)), self.networks.prediction(latent))

    def node(self, latent: Tensor, reward: Tensor, prediction: Tensor) -> Node:
        logits, value = prediction[:, :ACTIONS].numpy(), prediction[:, ACTIONS].numpy()
        return Node(latent.numpy(), logits, value, reward.numpy(), np.full(len(value), DISCOUNT))

    def __call__(self, state: Array, action: Array) -> Node:
        return self.node(*self.networks(torch.from_numpy(state), torch.from_numpy(action)))


class Range:
    """Values of a tree, by which they are scaled to [0, 1]."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf

    def update(self, value: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)

    def scaled(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low) if self.high > self.low else value


class Branch:
    """A node of a tree of objects, as in the pseudocode of MuZero (arXiv 1911.08265): each child has its prior."""

    def __init__(self, prior: float) -> None:
        self.prior, self.reward = prior, 0.0
        self.visits, self.total = 0, 0.0
        self.latent: Tensor | None = None
        self.children: dict[int, Branch] = {}

    def expand(self, latent: Tensor, reward: float, logits: list[float]) -> None:
        self.latent, self.reward = latent, reward
        powers = {action: math.exp(logit) for action, logit in enumerate(logits)}
        total = sum(powers.values())
        for action, power in powers.items():
            self.children[action] = Branch(power / total)

    def value(self) -> float:
        return self.total / self.visits if self.visits else 0.0

    def score(self, child: Branch, bounds: Range) -> float:
        weight = 1.25 + math.log((self.visits + 19652.0 + 1.0) / 19652.0)
        weight *= math.sqrt(self.visits) / (child.visits + 1)
        value = bounds.scaled(child.reward + DISCOUNT * child.value()) if child.visits else 0.5
        return weight * child.prior + value

    def best(self, bounds: Range) -> tuple[int, Branch]:
        _, action, child = max(
            ((self.score(child, bounds), action, child) for action, child in self.children.items()),
            key=lambda scored: scored[0],
        )
        return action, child


def searched(networks: Networks, latent: Tensor) -> list[int]:
    """Return how often each action at the root of one tree was taken."""
    root, bounds = Branch(1.0), Range()
    prediction = networks.prediction(latent)[0].tolist()
    root.expand(latent, 0.0, prediction[:ACTIONS])
    root.visits, root.total = 1, prediction[ACTIONS]
    bounds.update(root.value())
    for _ in range(SIMULATIONS):
        node, path, action = root, [root], 0
        while node.children:
            parent = node
            action, node = node.best(bounds)
            path.append(node)
        after, reward, predicted = networks(parent.latent, torch.tensor([action]))
        prediction = predicted[0].tolist()
        node.expand(after, reward.item(), prediction[:ACTIONS])
        gain = prediction[ACTIONS]
        for passed in reversed(path):
            passed.total += gain
            passed.visits += 1
            if passed is not root:
                bounds.update(passed.reward + DISCOUNT * passed.value())
            gain = passed.reward + DISCOUNT * gain
    return [child.visits for child in root.children.values()]


@torch.no_grad()
def measure(*, rounds: int = 20, searches: int = 4) -> dict[str, Any]:
    """Return thousands of simulations a second of one thread: medians over rounds in which all take turns."""
    torch.manual_seed(0)
    networks, latent = Networks(), torch.randn(max(BATCHES), WIDTH)
    model = Learned(networks)

    def grown(search: Search, batch: int) -> Callable[[], Any]:
        return lambda: search.grow(model, model.root(latent[:batch]))

    cases = {(name, batch): grown(search, batch) for name, search in SEARCHES.items() for batch in BATCHES}
    cases[OBJECTS, 1] = lambda: searched(networks, latent[:1])
    speeds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for number in range(rounds + 1):
        for (name, batch), search in cases.items():
            begin = time.process_time()
            for _ in range(searches):
                search()
            took = time.process_time() - begin
            if number:  # the first round warms up
                speeds[name, batch].append(1e-3 * searches * batch * SIMULATIONS / took)
    ratio = float(np.median(np.divide(speeds["PUCT", max(BATCHES)], speeds[OBJECTS, 1])))
    thousands: dict[str, dict[int, float]] = {}
    for (name, batch), values in speeds.items():
        thousands.setdefault(name, {})[batch] = float(np.median(values))
    return {"thousands": thousands, "ratio": ratio, "bar": LEAST, "rounds": rounds, "passed": ratio >= LEAST}
