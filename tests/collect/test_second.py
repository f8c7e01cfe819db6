"""A second collector beside the first, with another environment, agent and table; and a second table of the first."""

import numpy as np
import pytest
from tests.docs.pages import ROOT, blocks
from tests.identical import compare, records
from tests.short import copy_as_killed

import rlrun
from rlrun.commands.check import check
from rlrun.core.errors import RequestError

PAGE = {block.name: block.text for block in blocks((ROOT / "docs" / "memory.md").read_text())}
SHORT = [
    *("algorithm=dqn", "env=cartpole", "preset=null", "+with=second", "stop.env_steps=60", "algorithm.hidden=[4]"),
    *("algorithm.batch_size=8", "algorithm.warmup_steps=20", "memory.length=90", "second.memory.length=90"),
    *("evaluation.every=0", "checkpoint.every=20", "checkpoint.keep_last=null", "log.every=20"),
    "+second.env.kwargs.sutton_barto_reward=true",
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Begin in a folder with the file that the page shows."""
    (tmp_path / "conf" / "with").mkdir(parents=True)
    (tmp_path / "conf" / "with" / "second.yaml").write_text(PAGE["conf/with/second.yaml"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_both_fill_their_tables_the_budget_counts_the_first_and_a_resume_is_exact(folder):
    run = rlrun.train(SHORT, run_dir=folder / "run")
    first, second = (run.trainer.callbacks[name] for name in ("collector", "second"))
    assert (first.steps, second.steps) == (60, 30)
    assert [len(part.table) for part in (first, second)] == [60 - 1, 30 - 2]  # without the open step of each env
    assert run.trainer.state["step"] == run.summary["env_steps"] == 60
    drawn = run.trainer.state["batches"]["default"]["reward"].tolist()
    assert (drawn.count(1.0), len(drawn)) == (6, 8), "the second environment pays 0 or less"
    last = records(run.run_dir)[-1]
    assert (last["env_steps"], last["second/env_steps"]) == (60, 30)
    assert last["episode/count"] == first.episodes
    assert last["second/episode/count"] == second.episodes
    killed = folder / "killed"
    copy_as_killed(run.run_dir, killed, at=40)
    rlrun.resume(killed)
    assert all(compare(run.run_dir, killed).values())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("second.agent=${agent}", "^agent: it is that of `first`.*; callbacks.second.agent reads it"),
        ("callbacks.second.steps_per_step=0", "^callbacks.second.steps_per_step must be a number above 0"),
        ("+with=[async,second]", "^collector: a AsyncCollector steps by itself.*callbacks.second.first reads it"),
    ],
)
def test_what_it_cannot_follow_is_refused(override, message):
    with pytest.raises(RequestError, match=message):
        check([*(text for text in SHORT if not override.startswith(text.split("=")[0])), override])


TABLE = (
    *("_target_: rlrun.memory.Table", "spaces: '${spaces}'", "num_envs: '${env.num_envs}'"),
    *("length: '${memory.length}'", "columns: '${memory.columns}'"),
)
COPY = [
    f"+copied={{{', '.join(TABLE)}}}",
    "+callbacks.copied={_target_: rlrun.collect.SecondTable, collector: '${collector}', table: '${copied}'}",
]
FIRST = [*(text for text in SHORT if "second" not in text and "memory" not in text), "memory.length=60"]


@pytest.mark.parametrize(
    "overrides",
    [("num_envs=3",), ("env.vectorization=native", "num_envs=3"), ("+with=async", "async.kind=thread", "num_envs=2")],
    ids=["sync", "native", "async"],
)
def test_a_second_table_has_the_same_rows(overrides, folder):
    run = rlrun.train([*FIRST, *COPY, *overrides, "stop.env_steps=84"], run_dir=folder / "run")
    require_alike(run.trainer)
    killed = folder / "killed"
    copy_as_killed(run.run_dir, killed, at=40)
    require_alike(rlrun.resume(killed).trainer)  # those of native and parallel environments break off open episodes


def require_alike(trainer):
    own, copied = trainer.callbacks["collector"].table, trainer.callbacks["copied"].table
    assert own.index.complete.any()
    for name, column in own.storage.arrays.items():
        assert np.array_equal(column, copied.storage.arrays[name]), name
    for name in ("stamp", "status", "complete"):
        assert np.array_equal(getattr(own.index, name), getattr(copied.index, name)), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [*COPY, "callbacks.copied.collector=null"],
            "callbacks.copied.collector: .*; nothing is collected",
        ),
        (
            [COPY[1].replace("copied}", "memory}")],
            "memory: wanted .* of its own, .*; callbacks.copied.table reads it",
        ),
        ([*COPY, "copied.num_envs=2"], "copied.num_envs: wanted the 1 envs of the collector, got 2"),
        ([*COPY, "copied.columns={log_prob: {}}"], "copied.columns.log_prob: wanted a column of the collector's"),
    ],
)
def test_a_second_table_that_cannot_be_filled_is_refused(overrides, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        check([*FIRST, *overrides])
