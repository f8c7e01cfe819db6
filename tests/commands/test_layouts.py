"""Layouts of images from a command's keys to its networks, and to those of a policy that was loaded or exported."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import rlrun
from rlrun.commands.check import check
from rlrun.commands.train import explain
from rlrun.core.errors import RequestError

STACKED = "env.wrappers=[{_target_: gymnasium.wrappers.FrameStackObservation, _partial_: true, stack_size: 10}]"
BOARD = ["algorithm=dqn", f"env.target={__name__}.Board"]


class Board(gymnasium.Env):
    """Shows a random board."""

    def __init__(self, shape=(10, 10), dtype="bool", pushes=False):
        self.action_space = Box(-1, 1, (2,)) if pushes else Discrete(5)
        self.observation_space = Box(0, 1, tuple(shape), np.dtype(dtype).type)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def _seen(self):
        return self.np_random.integers(0, 2, self.observation_space.shape).astype(self.observation_space.dtype)


def layouts(*overrides):
    """Return what `check` and `explain` say, if both say the same."""
    lines = [line.split(maxsplit=1)[1] for line in check([*BOARD, *overrides]) if line.startswith("layout")]
    explained = explain([*BOARD, *overrides]).splitlines()
    assert lines == [line.split(maxsplit=1)[1] for line in explained if line.startswith("layout")]
    assert lines == explain([*BOARD, *overrides], form="data")["layouts"]
    return [line.partition(": ")[2].partition(";")[0] for line in lines]


def test_check_and_explain_print_the_layout():
    assert layouts(STACKED) == ["an image of 10 × 10 with 10 channels (channels_first"]
    assert layouts(STACKED, "env.vectorization=async") == ["an image of 10 × 10 with 10 channels (channels_first"]
    assert layouts(STACKED, "encoder.layout=vector") == ["no image, 1000 numbers (vector"]
    assert layouts("encoder.layout=gray") == ["an image of 10 × 10 with 1 channel (gray"]
    assert layouts("env.kwargs={shape: [100]}") == []
    with pytest.raises(RequestError, match=r"encoder\.layout: no part of the observation can be stack_last"):
        check([*BOARD, "encoder.layout=stack_last"])


@pytest.mark.parametrize("layout", ["auto", "channels_last"])
def test_a_loaded_and_an_exported_policy_have_the_layout_of_the_run(layout, tmp_path):
    pytest.importorskip("onnxruntime")
    small = ["algorithm.warmup_steps=32", "algorithm.batch_size=8", "stop.env_steps=40", "evaluation.every=1000"]
    overrides = [
        *BOARD,
        "algorithm=sac",
        "env.kwargs={pushes: true}",
        STACKED,
        f"encoder.layout={layout}",
        *small,
        "evaluation.episodes=1",
    ]
    rlrun.train(overrides, run_dir=tmp_path / "run")
    exported = rlrun.export_onnx(tmp_path / "run")
    boards = np.random.default_rng(0).integers(0, 2, (64, 10, 10, 10)).astype(np.bool_)
    answers = [rlrun.load(source).predict(boards)[0] for source in (tmp_path / "run", exported.path)]
    assert (answers[0].std(0) > 1e-4).all()
    np.testing.assert_allclose(*answers, atol=1e-5)
