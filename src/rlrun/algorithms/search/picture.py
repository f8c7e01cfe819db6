"""SVG pictures of a search: the most visited nodes of a tree."""

from collections.abc import Callable
from functools import partial
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.algorithms.search.agent import SearchAgent
from rlrun.algorithms.search.tree import SearchTrees
from rlrun.collect.agents import Agent, Response
from rlrun.core.errors import RequestError
from rlrun.core.files import require_writable, write_text
from rlrun.core.typing import Tree

LETTER, LINE, PAD = 7.5, 16, 8  # width of a letter, height of a line, and padding
GAP = (14, 34)  # between boxes, to the right and below
STYLE = """\
svg{--paper:#fff;--ink:#1c2128;--faint:#5a6370}
@media(prefers-color-scheme:dark){svg{--paper:#14171c;--ink:#e8eaed;--faint:#a7afba}}
text{font:12px monospace;fill:var(--ink);white-space:pre;text-anchor:middle}
.edge{fill:var(--faint);paint-order:stroke;stroke:var(--paper);stroke-width:4px}line,rect{stroke:var(--faint);fill:var(--paper)}.best{stroke:var(--ink);stroke-width:2}"""


def picture(
    trees: SearchTrees,
    tree: int = 0,
    *,
    nodes: int = 16,
    text: Callable[[int], str] | None = None,
    action: Callable[[int, int], str] | None = None,
) -> str:
    """Return an SVG of one tree: its most visited nodes, each below the action that leads there.

    A box shows a node's visits, and its mean value for the player to move. An edge shows the action and its prior.
    The edge of the most visited action of each node is bold.

    Args:
        trees: of a search.
        tree: number of the tree.
        nodes: largest number of nodes.
        text: function from a node's row to a text of its state, shown above its numbers.
        action: function from a node's row and an action's index to its text; None = the index.
    """
    name = action or (lambda row, number: f"{number}")
    rows = np.flatnonzero(trees.tree[: trees.used] == tree)
    chosen = rows[np.argsort(-trees.visits[rows], kind="stable")[:nodes]].tolist()  # no child has more visits
    below: dict[int, list[tuple[str, int]]] = {row: [] for row in chosen}
    for row in chosen:
        for number in np.argsort(-trees.child_visits[row], kind="stable").tolist():
            if (child := int(trees.child[row, number])) in below:
                below[row].append((f"{name(row, number)}  p {trees.prior[row, number]:.2f}", child))
    shown = {
        row: [
            *(text(row).splitlines() if text else []),
            f"{trees.visits[row]:.0f} visits",
            f"value {trees.value[row]:+.2f}",
        ]
        for row in chosen
    }
    labels = [label for children in below.values() for label, _ in children]
    width = PAD * 2 + LETTER * max(map(len, chain(labels, *shown.values())))
    height = PAD * 2 + LINE * max(map(len, shown.values()))
    column: dict[int, float] = {}

    def place(row: int, used: int) -> int:
        """Set the columns of a node and of those below it; return the number of columns used so far."""
        first = used
        for _, child in below[row]:
            used = place(child, used)
        ends = [column[child] for _, child in below[row]]
        column[row] = (ends[0] + ends[-1]) / 2 if ends else first
        return used if ends else first + 1

    columns = place(chosen[0], 0)
    center = {row: (column[row] + 0.5) * (width + GAP[0]) for row in chosen}
    top = {row: 1 + float(trees.level[row]) * (height + GAP[1]) for row in chosen}
    edges, boxes = [], []
    for row in chosen:
        for number, (label, child) in enumerate(below[row]):
            ends = f'x1="{center[row]:.1f}" y1="{top[row] + height}" x2="{center[child]:.1f}" y2="{top[child]:.1f}"'
            best = ' class="best"' if number == 0 else ""
            edges.append(f"<line {ends}{best}/>")
            boxes.append(f'<text class="edge" x="{center[child]:.1f}" y="{top[child] - PAD / 2}">{label}</text>')
        corner = f'x="{center[row] - width / 2:.1f}" y="{top[row]}"'
        boxes.append(f'<rect {corner} width="{width}" height="{height}" rx="4"/>')
        for number, line in enumerate(shown[row], 1):
            at = f'x="{center[row]:.1f}" y="{top[row] + PAD / 2 + number * LINE}"'
            boxes.append(f"<text {at}>{escape(line)}</text>")
    size = f"{columns * (width + GAP[0]):.0f} {max(top.values()) + height + 1:.0f}"
    lines = "\n".join(edges + boxes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}">\n<style>{STYLE}</style>\n{lines}\n</svg>\n'


class Pictured(Agent):
    """A search agent that writes a picture of its first search to a file.

    Args:
        agent: a `SearchAgent`, which acts.
        path: of the file.

    Raises:
        RequestError: the agent does not search, or the path does not end in .svg.
    """

    def __init__(self, agent: Any, path: Path) -> None:
        if not isinstance(agent, SearchAgent):
            raise RequestError("--tree: this policy does not search; runs of algorithm=alphazero and muzero do")
        if path.suffix != ".svg":
            raise RequestError(f"--tree {path}: wanted a file that ends in .svg")
        require_writable(path.parent)
        self.agent, self.policy, self.outputs, self.path = agent, agent.policy, agent.outputs, path
        self._written = False

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if not self._written:
            self._written = True
            trees = self.agent.grow(observation)
            model: Any = self.agent.model
            texts = [partial(describe, trees.state) for describe in (model.text, model.action)]
            write_text(self.path, picture(trees, text=texts[0], action=texts[1]))
        return self.agent(observation, state, explore=explore)

    def initial_state(self, count: int) -> Tree | None:
        return self.agent.initial_state(count)
