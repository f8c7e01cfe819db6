"""Recurrent layers (GRU and LSTM), and observations that carry a recurrent state."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rlrun.core.errors import ConfigError, RequestError, require_one_of
from rlrun.core.spaces import Space, leaves, leaves_of, map_tree, tree_of, without_mask
from rlrun.core.typing import Tree
from rlrun.nn.mlp import require_widths, zeros
from rlrun.nn.precision import products

KINDS: dict[str, type[nn.GRU | nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}
Plain = Literal["gru", "lstm"]
Kind = Plain | Callable[..., nn.Module]  # or a recipe of a layer such as `rlrun.nn.MemoryCore`

# An observation for recurrent networks is a dict of `observation` and the state before it. Windows also have `at`: the
# rows `at` [B, T'] of the successive observations [B, T, …] after the state [B, S] are meant. FEATURES is in single
# steps that were encoded already: features [B, F] of each encoder, in the order of their states.
STATE, FEATURES = "recurrent_state", "features_of_encoders"
STATELESS = (
    "a recurrent network or encoder needs the state before a step, which this algorithm does not keep; rollouts do by "
    "memory.columns.state.shape=${networks.actor_critic.state_size}, or by longer windows"
)


def with_state(observation: Tree, state: Tensor, at: Tensor | None = None) -> dict[str, Tree]:
    """Return an observation with its recurrent state; networks without a state accept it, too."""
    return {"observation": observation, STATE: state} | ({} if at is None else {"at": at})


def has_state(observation: Tree) -> bool:
    """Return True for an observation that carries a state."""
    return isinstance(observation, dict) and STATE in observation


def encoded(encoder: Any, observation: Tree) -> Tensor:
    """Return an encoder's features of observations that carry a state.

    The encoder's part are the first `state_size` numbers, or the last ones if it is `behind` another; zeros if missing.
    """
    if FEATURES in observation:
        features: Tensor = observation[FEATURES][-1 if encoder.behind else 0]
        return features
    every, seen, size = observation[STATE], observation["observation"], encoder.state_size
    own = every[..., -size:] if encoder.behind else every[..., :size]
    own = own if own.shape[-1] else own.new_zeros(len(own), size)
    if "at" not in observation:
        return encoder.step(seen, own)[0]  # type: ignore[no-any-return]
    return rows_at(encoder(seen, own), observation["at"])


def rows_at(values: Tensor, at: Tensor | None) -> Tensor:
    """Return the rows `at` [B, T'] of values [B, T, …]: [B, T', …]; None = all."""
    return values if at is None else values[torch.arange(len(at), device=at.device).unsqueeze(1), at]


def present(observation: Tree) -> Tree:
    """Return an observation without its state and without the earlier steps of a window."""
    if not has_state(observation):
        return observation
    return map_tree(lambda part: rows_at(part, observation.get("at")), observation["observation"])


class Core(nn.Module):
    """A recurrent layer: from features and a state to features that depend on earlier steps.

    The state of an env is one row of numbers: h of a GRU (arXiv 1406.1078), h and c of an LSTM side by side. Episodes
    begin with zeros. The gates that keep the state have an initial bias of 1 (Jozefowicz et al. 2015).

    Args:
        kind: gru or lstm. On a CPU an LSTM learns from long windows several times faster, since torch has a single
            kernel for it.
        inputs: width of the features.
        size: width of the result, [B, size] or [B, T, size].

    Raises:
        ConfigError: there is no such kind.
    """

    def __init__(self, kind: Plain, inputs: int, size: int) -> None:
        super().__init__()
        require_one_of("core", kind, KINDS)
        self.layer = KINDS[kind](inputs, size, batch_first=True)
        self.size = size
        self.work = size * max(inputs, size)
        self.state_size = size if kind == "gru" else 2 * size
        self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        for name, parameter in self.layer.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                parameter.zero_()
        # a GRU's gates lie as reset, update, new; an LSTM's as input, forget, cell, output
        bias = self.weights()[2]
        bias[self.size : 2 * self.size] = 1.0

    def weights(self) -> list[nn.Parameter]:
        """Return the arguments of a cell: weights of features and state, biases of both."""
        weights: list[nn.Parameter] = self.layer.all_weights[0]
        return weights

    def forward(self, features: Tensor, state: Tensor | None, episode_end: Tensor | None = None) -> Tensor:
        """Return features that depend on earlier steps.

        features: [B, F] of single steps, or [B, T, F] of windows.
        state: [B, S] before them; None = windows begin with their episodes.
        episode_end: [B, T], true in the last row of an episode; the next row begins with a state of zeros.

        Raises:
            RequestError: single steps come without the state before them.
        """
        if state is None:
            if features.dim() < 3 or features.shape[1] == 1:
                raise RequestError(STATELESS)
            state = features.new_zeros(features.shape[0], self.state_size)
        if features.dim() < 3:
            return self.step(features, state)[0]
        if episode_end is None or features.shape[1] == 1 or not bool(episode_end[:, :-1].any()):
            output: Tensor = self._through(features, state)
            return output.to(features.dtype)
        return self._cut(features, state, episode_end)

    def step(self, features: Tensor, state: Tensor, weights: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return features [B, size] and the state after them, from [B, F] and the state [B, S] before them.

        weights: of another layer of the same shape, in place of its own.
        """
        weights = self.weights() if weights is None else weights
        with products(features, self.work):
            if self.state_size == self.size:  # a bare cell takes a fifth of the layer's time
                state = torch.gru_cell(features, state, *weights).to(features.dtype)
                return state, state
            states = torch.lstm_cell(features, state.chunk(2, -1), *weights)
        parts = [part.to(features.dtype) for part in states]
        return parts[0], torch.cat(parts, -1)

    def _through(self, features: Tensor | PackedSequence, state: Tensor) -> Any:
        """Return the layer's outputs for features, from the state [B, S] before them."""
        with products(state, self.work):
            return self.layer(features, self._parts(state))[0]

    def _parts(self, state: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return a state [B, S] in the layer's form, [1, B, size]."""
        if self.state_size == self.size:
            return state.unsqueeze(0)
        return tuple(part.contiguous() for part in state.unsqueeze(0).chunk(2, -1))

    def _cut(self, features: Tensor, state: Tensor, episode_end: Tensor) -> Tensor:
        """Cut windows where episodes end, and process all pieces as one packed batch; each row is computed once."""
        windows, steps = episode_end.shape
        begins = torch.ones_like(episode_end)
        begins[:, 1:] = episode_end[:, :-1]
        first = begins.flatten().nonzero().squeeze(1)
        piece = begins.flatten().cumsum(0) - 1  # of each row
        at = torch.arange(windows * steps, device=episode_end.device) - first[piece]  # which row of its piece it is
        by_length = torch.bincount(piece).argsort(descending=True, stable=True)
        rank = inverse(by_length)
        order = (at * len(first) + rank[piece]).argsort()  # the first rows of all pieces, then the second ones, …
        packed = PackedSequence(features.flatten(0, 1)[order], torch.bincount(at).cpu())
        before = state.new_zeros(len(first), self.state_size)
        before = before.index_put((rank[piece.view(windows, steps)[:, 0]],), state)
        output: Tensor = self._through(packed, before).data.to(features.dtype)
        return output[inverse(order)].view(windows, steps, self.size)


class Stack(nn.Module):
    """Recurrent layers above each other; their states stand side by side in a row [B, state_size].

    Args:
        inputs: width of the features.
        sizes: widths of the layers.
        kind: gru or lstm.

    Raises:
        ConfigError: `sizes` is empty, or the kind is unknown.
    """

    def __init__(self, inputs: int, sizes: Sequence[int], *, kind: Plain = "lstm") -> None:
        super().__init__()
        require_widths("lstm_size", sizes)
        if not sizes:
            raise ConfigError("lstm_size: wanted the width of one layer at least, got []")
        cores = [*map(partial(Core, kind), (inputs, *sizes), sizes)]
        self.cores: Any = nn.ModuleList(cores)
        self.size, self.sizes = sizes[-1], [core.state_size for core in cores]
        self.state_size = sum(self.sizes)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, size] and the state after them, from [B, F] and the state [B, S] before them."""
        after = []
        for core, own in zip(self.cores, torch.split(state, self.sizes, -1), strict=True):
            features, own = core.step(features, own)
            after.append(own)
        return features, torch.cat(after, -1)


class StatefulEncoder(nn.Module):
    """A user's encoder with a state that begins with zeros, such as a filter or a memory; masks are removed first.

        module.state_size -> S
        module.step(observation, state) -> features [B, F], state after     of observations [B, …], states [B, S]
        module(observation, state) -> features [B, T, F]                    of windows [B, T, …], the state before them

    Raises:
        ConfigError: the module lacks a call, or its outputs have other shapes; the message begins with `place`.
    """

    def __init__(self, module: Any, space: Space, *, place: str) -> None:
        super().__init__()
        self.module, self.state_size, self.behind = module, int(module.state_size), False
        self.observed = without_mask(space)
        self._alone = self.observed is not space and len([*leaves(self.observed)]) == 1
        place, training = f"{place}: {type(module).__name__}", module.training
        module.eval()
        try:
            with torch.no_grad():
                state = torch.zeros(2, self.state_size)
                parts = *self.step(zeros(space), state), self(zeros(space, 2, 3), state)
            shapes = [[*part.shape] for part in parts]
        except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise ConfigError(f"{place} does not fit: {str(error).partition(chr(10))[0]}") from error
        module.train(training)
        self.size: int = shapes[0][-1]
        if shapes != (wanted := [[2, self.size], [2, self.state_size], [2, 3, self.size]]):
            raise ConfigError(f"{place} makes features, states and windows {shapes} of 2 rows, wanted {wanted}")

    def forward(self, observation: Tree, state: Tensor | None = None) -> Tensor:
        """Return features of windows, or of observations that carry a state (`rlrun.nn.recurrent.with_state`)."""
        if has_state(observation):
            return encoded(self, observation)
        if state is None:
            raise RequestError(STATELESS)
        return self.module(self._bare(observation), state)  # type: ignore[no-any-return]

    def step(self, observation: Tree, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, F] of single steps and the state [B, S] after them."""
        features, after = self.module.step(self._bare(observation), state)
        return features, after

    def _bare(self, observation: Tree) -> Tree:
        """Return observations without an action mask."""
        values = leaves_of(self.observed, observation)
        return values[0] if self._alone else tree_of(self.observed, values)


def core_of(kind: Kind, inputs: int, size: int) -> Any:
    """Return a recurrent layer: a `Core`, or a module of the same calls from a recipe of `inputs` and `size`.

    Raises:
        ConfigError: there is no such kind, or the recipe lacks a call.
    """
    if not callable(kind):
        return Core(kind, inputs, size)
    core: Any = kind(inputs=inputs, size=size)
    for name in ("size", "state_size", "step"):
        if not hasattr(core, name):
            raise ConfigError(f"algorithm.recurrent: a {type(core).__name__} has no '{name}'; see rlrun.nn.Core")
    return core


def inverse(permutation: Tensor) -> Tensor:
    """Return the permutation that undoes another one."""
    inverted = torch.empty_like(permutation)
    inverted[permutation] = torch.arange(len(permutation), device=permutation.device)
    return inverted
