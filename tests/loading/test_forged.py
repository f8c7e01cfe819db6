"""States of checkpoints that somebody forged: each is refused by the part that gets it, before training."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import rlrun
from rlrun import checkpointing
from rlrun.commands.train import Experiment
from rlrun.core.errors import RunDirError
from rlrun.loading.assembly import restore_part
from rlrun.runs.directory import RunDir

TINY = (
    *("preset=null", "algorithm.hidden=[8]", "logger=[]", "checkpoint.every=20", "stop.env_steps=60"),
    *("evaluation.every=20", "evaluation.episodes=1", "evaluation.max_steps=20"),
)
DQN = ("algorithm=dqn", "algorithm.warmup_steps=20", "algorithm.batch_size=4", "memory.length=200")
BURST = ("memory.sampler.feedback=burst", "algorithm.collect_steps=8")  # the run ends within one
RUNS = {
    "dqn": (*DQN, "env=cartpole", "memory.storage=ram"),
    "prioritized": (*DQN, "env=cartpole", "+with=prioritized", *BURST),
    "ppo": (
        *("algorithm=ppo", "env=recall", "num_envs=2", "algorithm.horizon=10", "algorithm.batch_size=10"),
        *("algorithm.recurrent=lstm", "algorithm.unroll=5", "algorithm.core_size=4"),
    ),
    "by id": (*DQN, "env.target=rlrun.env.by_id.Crowd", "+with=by_id", "algorithm.discount=0.5"),
    "classifier": ("algorithm=classifier", "stop.env_steps=null", "stop.updates=40"),
}
NAN, NOTHING = float("nan"), np.zeros(0)
FIRST = "the first"
AGENT = ("observations", FIRST)
LOSS, GROUP = "callbacks.q_loss", ("optimizer", "param_groups", 0)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return the parts of a run that has not begun, and the states in a checkpoint of one that ended."""

    @cache
    def parts_and_states(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = tmp_path_factory.mktemp("runs") / "run"
        rlrun.train([*TINY, *RUNS[name]], run_dir=folder)
        parts = Experiment(rlrun.config.compose([*TINY, *RUNS[name]])).parts
        return parts, checkpointing.load(RunDir(folder).checkpoint())

    return parts_and_states


def put(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a tree with another value at the end of a path."""
    if not path:
        return value
    key, *rest = path
    key = next(iter(tree)) if key == FIRST else key
    changed = dict(tree) if isinstance(tree, dict) else list(tree)
    changed[key] = put(tree[key], tuple(rest), value) if rest else value
    return type(tree)(changed)


@pytest.mark.parametrize("name", RUNS)
def test_states_of_a_run_are_restored(load, name):
    parts, states = load(name)
    for path, part in parts.items():
        restore_part(part, states[path], path)


SLOTS = np.arange(4)
BURSTS = {  # 7 samples of 4 rows that are drawn, and priorities of 4 rows that are not written
    ("start",): (
        *(np.full((7, 4), slot) for slot in (9999, 199, -1, 0.0, np.int8(0))),  # row 199 is not written yet
        *(np.zeros((7, 3), np.int64), np.zeros(28), "x"),
    ),
    ("weight",): (
        *(np.full((7, 4), value, np.float32) for value in (NAN, float("inf"), -1.0)),
        *(np.ones((7, 4), kind) for kind in (np.float64, np.longdouble)),
    ),
    ("length",): (0, -1, NAN, "x", 1 << 40),
    ("pending",): ([NOTHING], 3 * [NOTHING], "xy", None, [SLOTS, np.ones(3)]),
    ("pending", 0): (SLOTS + 9999, SLOTS - 9999, SLOTS * 1.0, SLOTS[None]),
    ("pending", 1): tuple(np.full(4, value) for value in (NAN, float("inf"), -1.0, 1e200, 1j)),
}
FORGED = {
    "dqn": [
        *(("loader", (key,), value) for key in ("updates", "start", "since") for value in (NAN, -1, "x", 0.5, True)),
        *(("loader", ("updates",), value) for value in (None, 1 << 63, torch.ones(2))),
        *((LOSS, (*GROUP, "lr"), value) for value in (NAN, float("inf"), "x", [1e-3])),
        *((LOSS, (*GROUP, "betas"), value) for value in ((NAN, 0.999), (0.9, "x"), (0.9,), 0.9, "x", None)),
        (LOSS, ("optimizer", "state", 0), []),
        *((LOSS, (*GROUP, "eps"), value) for value in (NAN, None)),
        (LOSS, GROUP, {"params": [0, 1, 2, 3]}),
        *(("collector", ("observation",), value) for value in (NOTHING, np.zeros((1, 4, 1)), {"x": NOTHING}, "x")),
        *(("collector", ("observation",), value) for value in (np.zeros((1, 4), np.int64), torch.zeros(1, 4))),
        ("collector", ("state",), np.zeros((1, 8))),
        *(("collector", ("returns",), value) for value in (["x"], [None], [[1.0]])),
        *(("collector", (key,), value) for key in ("return", "length") for value in (5, NOTHING, np.zeros((1, 3)))),
        ("collector", ("infos",), {"score": ["x"]}),
        *(("collector", (key,), -1) for key in ("steps", "episodes")),
        *(("memory", ("sampler", "rate"), value) for value in (NAN, -0.5, 2.0, 0)),
        *(("callbacks.checkpoint", ("best",), [value]) for value in ((1.5, 2), ("x", 2), (-1, 2), (None, 2), (1,))),
        *(("callbacks.checkpoint", (key,), value) for key in ("axis", "update") for value in (-1, NAN, None)),
        *(("callbacks.evaluation", ("last", "mean_return"), value) for value in ("x", [1.0], None, torch.ones(2))),
        *(("callbacks.evaluation", ("best", "mean_return"), value) for value in (NAN, "x")),
        *(("callbacks.evaluation", (key,), value) for key in ("last", "best") for value in ({}, [], "x", 3, NAN)),
        ("callbacks.evaluation", ("last", "mean_totals"), ["x"]),
        *(("callbacks.evaluation", ("evaluated",), value) for value in (("x", 4), (20,), (20, NAN), 3)),
    ],
    "prioritized": [
        *(("memory", ("sampler", "picks"), value) for value in (-1, NAN, None)),
        *(("memory", ("sampler", key), value) for key in ("largest", "highest") for value in (NAN, -1.0, "x", 0)),
        *(("memory", ("sampler", "tree", "leaves"), torch.tensor([value, 1.0])) for value in (NAN, -1.0, float("inf"))),
        *(("memory", ("sampler", "burst", *path), value) for path, values in BURSTS.items() for value in values),
        ("memory", ("index", "too_short"), "x"),
    ],
    "ppo": [
        *(("loader", (key,), value) for key in ("epoch", "served", "number") for value in (-1, NAN)),
        ("loader", ("served",), 99),
        *(("loader", ("starts",), np.array([0, value])) for value in (-1, 19)),
        *(("loader", ("rows", "action"), torch.tensor(value)) for value in ([0] * 19, [-1] * 20, [2] * 20)),
        *(("collector", ("state",), value) for value in (None, np.zeros((2, 3, 8)), np.zeros((1, 8)), [1.0])),
        ("collector", ("state",), np.zeros((2, 8), "U1")),
    ],
    "by id": [
        *(("collector", ("running",), {0: value}) for value in (("x", 1), (1.0,), (1.0, 2, 3), (None, 1))),
        ("collector", ("steps",), -1),
        *(("collector", (*AGENT, "rewards"), value) for value in ({"reward": "x"}, {"reward": [1.0]}, 3, [1.0])),
        *(("collector", (*AGENT, "array_data"), {"view": value}) for value in ("x", None, np.full(2, "x"))),
        *(("collector", (*AGENT, "metadata"), value) for value in ([], 3)),
    ],
    "classifier": [
        *(("callbacks.validation", (key,), {"accuracy": value}) for key in ("last", "best") for value in ("x", None)),
        *(("callbacks.validation", ("last",), value) for value in ({}, [1.0], "x", 3)),
    ],
}


@pytest.mark.parametrize(
    ("name", "part", "path", "value"), [(name, *row) for name, rows in FORGED.items() for row in rows], ids=str
)
def test_a_forged_state_is_refused(load, name, part, path, value):
    parts, states = load(name)
    with pytest.raises(RunDirError, match=f"^{part}") as refusal:
        restore_part(parts[part], put(states[part], path, value), part)
    assert "\n" not in str(refusal.value)
