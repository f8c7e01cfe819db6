"""The runs of docs/trust.md: each is made elsewhere, and brings along what the command that the page shows allows."""

import shutil
from pathlib import Path

from rlrun.cli.main import main

from .alone import called
from .small import small_runs

PAGE = "docs/trust.md"
MINE = "from rlrun.env.toys import Bandit\n\nclass Mine(Bandit): pass\n"
ROAD = "import gymnasium\n\ngymnasium.register(id='highway-v0', entry_point='rlrun.env.toys:Bandit')\n"
QUICK = "{_target_: torch.compile, disable: true, model: '${networks.q}'}"  # which would take seconds
# What a run has that `--trust` is asked for.
WORDS = {
    "mine": ["env.target=mine.Mine"],
    "highway_env": ["env.id=highway_env:highway-v0"],
    "torch.compile": ["env=bandit", f"+networks.quick={QUICK}", "callbacks.q_loss.network=${networks.quick}"],
    "oc.env": ["env.id=${oc.env:DATA,CartPole-v1}"],
}


def set_up(line: str, home: Path) -> Path:
    """Make the run that a command line is about; return the folder where the line is typed."""
    if "RUN" not in line:
        _train(WORDS["mine"], home / "walker", home / "walker" / "runs" / "…")
        return home
    project = home.parent / "project"  # of somebody else; or, of `--trust mine`, that of the page
    overrides = next(
        (args for name, args in WORDS.items() if line.split()[-1:] == [name] or f"--trust {name} " in line)
    )
    shutil.rmtree(home / "RUN", ignore_errors=True)
    _train(overrides, project, home / "RUN")
    return home


def _train(overrides: list[str], project: Path, run: Path) -> None:
    """Train for a moment from a project's folder; its budget is not used up."""
    project.mkdir(exist_ok=True)
    (project / "mine.py").write_text(MINE)
    (project / "highway_env.py").write_text(ROAD)
    with small_runs():
        command = ["rlrun", "train", "algorithm=dqn", *overrides, "stop.env_steps=10_000", "--run-dir", str(run)]
        answer = called(main, command, project)
    assert answer.code == 0, answer.err
