"""The hooks of an update, those of targets, losses and target networks as graphs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch

from rlrun.callbacks.loss import LossCallback
from rlrun.callbacks.target import TargetCallback
from rlrun.compile import graph, hooks
from rlrun.compile.hooks import Inputs, Wanted
from rlrun.compile.piece import Piece
from rlrun.compile.untraceable import Untraceable, first_line
from rlrun.core.errors import ConfigError
from rlrun.core.typing import Groups
from rlrun.training.wiring import Call, HookCall, State

_messages = logging.getLogger("rlrun")

LIMIT = 16  # graphs of the same hooks; what changes more often is no constant


class FusedUpdate:
    """Make one function of the hooks of an update: targets, losses, their optimizers and target networks in one graph.

    Hooks that follow one another are one graph, and what no graph can be made of is called as ever between them: hooks
    of other callbacks, optimizers other than plain Adam, losses that look at the numbers they compute. Results are the
    same but for rounding.

    Args:
        compile: false leaves all hooks as they are.
        device: of networks.

    Raises:
        ConfigError: a CPU's graph is compiled by a C++ compiler, and there is none.
    """

    def __init__(self, compile: bool, device: str) -> None:
        self.compile = compile
        self.device = device
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch has it
        if compile and device == "cpu" and not shutil.which(compiler):
            raise ConfigError(
                f"compile=true: updates on a CPU need a C++ compiler, and there is no '{compiler}' here; "
                "CXX may name another one, clang++ say"
            )

    def __call__(self, steps: Sequence[HookCall]) -> list[Call]:
        """Return the calls of an update."""
        if not self.compile:
            return [step.call() for step in steps]
        graph.keep_compiled()
        calls: list[Call] = []
        run: list[HookCall] = []
        for step in steps:
            fits = hooks.fits(step)
            # not every batch holds every data group
            if run and not (fits and step.callback.data_group == run[0].callback.data_group):
                calls.append(_Run(run, self.device))
                run = []
            if fits:
                run.append(step)
            else:
                calls.append(step.call())
        return [*calls, _Run(run, self.device)] if run else calls


class _Run:
    """Hooks that follow one another, by graphs where these can be made."""

    def __init__(self, steps: Sequence[HookCall], device: str) -> None:
        self.steps = steps
        self.device = device
        self._wanted = Wanted(steps)
        self._group = steps[0].callback.data_group or ""
        self._copies = {
            id(step.callback): step.callback
            for step in steps
            if step.event == "end_batch" and isinstance(step.callback, TargetCallback)
        }
        self._losses = {id(step.callback): step.callback for step in steps if isinstance(step.callback, LossCallback)}
        self._pieces: dict[Any, Piece] = {}
        self._of_any_size: dict[Any, Piece] = {}
        self._shapes: dict[Any, list[list[torch.Size]]] = {}  # that were seen
        self._count = 0  # of graphs
        self._calls = [step.call() for step in steps]
        # alone, a target network is one call anyway
        self._apart: list[Call] | None = None if any(step.event != "end_batch" for step in steps) else self._calls

    def __call__(self, groups: Groups, state: State) -> None:
        if self._apart is None and self._group in groups:
            inputs = self._wanted.of(groups)
            piece = self._piece(inputs, groups) if inputs is not None else None
            if inputs is not None and piece is not None:
                piece(groups, inputs)
                return
        for call in self._apart or self._calls:
            call(groups, state)

    def _piece(self, inputs: Inputs, groups: Groups) -> Piece | None:
        """Return the graph for what is given; None where there can be none."""
        due = {key: copy.due() for key, copy in self._copies.items()}
        due |= {key: loss.due() for key, loss in self._losses.items()}
        form = (inputs.form, tuple(due.values()))
        try:
            piece = self._pieces.get(form)
            if piece is None or not piece.fits():
                piece = self._pieces[form] = self._new_piece(inputs, groups, due)
        except Untraceable as error:
            self._leave_out(error)
            return None
        except (TypeError, ValueError) as error:  # what is given is no key, or an optimizer has several groups by now
            self._leave_out(Untraceable(None, first_line(error)))
            return None
        return piece

    def _new_piece(self, inputs: Inputs, groups: Groups, due: dict[int, bool]) -> Piece:
        """Return a graph; one for any size of what comes in more than one size."""
        pattern = (inputs.pattern, tuple(due.values()))
        known = self._of_any_size.get(pattern)
        if known is not None and known.allows(inputs) and known.fits():
            return known
        if self._count == LIMIT:
            raise Untraceable(None, f"{LIMIT} graphs of them were not enough")
        for number, step in enumerate(self.steps):
            if not hooks.fits(step):
                raise Untraceable(number, "its optimizer or its parameters are not what they were")
        if any(tensor.requires_grad for tensor in inputs.tensors):
            raise Untraceable(None, "what they are given has a gradient, which ends where a graph does")
        self._count += 1
        seen = self._shapes.setdefault(pattern, [])
        seen.append([tensor.shape for tensor in inputs.tensors])
        varying = [
            [place for place, sizes in enumerate(zip(*shapes, strict=True)) if len({*sizes}) > 1]
            for shapes in zip(*seen, strict=True)
        ]
        # of one row or none much is not what it is of several
        single = any(
            tensor.shape[place] < 2 for tensor, places in zip(inputs.tensors, varying, strict=True) for place in places
        )
        if single or not any(varying):
            return Piece(self.steps, self._wanted, inputs, groups, due, self.device)
        piece = Piece(self.steps, self._wanted, inputs, groups, due, self.device, varying)
        self._of_any_size[pattern] = piece
        return piece

    def _leave_out(self, error: Untraceable) -> None:
        """Call a hook as ever that no graph can be made of, or all of them."""
        self._pieces.clear()
        self._of_any_size.clear()
        steps = self.steps if error.step is None else [self.steps[error.step]]
        names = ", ".join(f"callbacks.{step.callback.name}.{step.label}" for step in steps)
        _messages.warning("compile: not %s: %s", names, error)
        if error.step is None:
            self._apart = self._calls
            return
        parts = (self.steps[: error.step], self.steps[error.step + 1 :])
        before, behind = ([_Run(part, self.device)] if part else [] for part in parts)
        self._apart = [*before, self._calls[error.step], *behind]
