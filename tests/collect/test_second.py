"""A second collector beside the first: another environment, agent and table."""

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
        ("second.agent=${agent}", "callbacks.second: agent: it is that of `first`"),
        ("callbacks.second.steps_per_step=0", "callbacks.second: steps_per_step must be a number above 0"),
        ("+with=[async,second]", "first: a AsyncCollector steps by itself"),
    ],
)
def test_what_it_cannot_follow_is_refused(override, message):
    with pytest.raises(RequestError, match=message):
        check([*(text for text in SHORT if not override.startswith(text.split("=")[0])), override])
