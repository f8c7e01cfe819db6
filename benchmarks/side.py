"""One side of a comparison, in this process: python -m benchmarks.side bare|rlrun|plain CASE FIRST LAST.

Prints one JSON object: env steps, seconds, processor seconds and optimizer steps between the marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

import rlrun
from benchmarks import bare, bare_lasting, bare_others, bare_ppo, bare_soft, plain
from benchmarks.clock import Clock
from rlrun import config as configuration
from rlrun.core.processes import tune_process
from rlrun.loading.assembly import set_precision
from rlrun.memory.table.columns import LENGTH

LOOPS: dict[str, bare.Loop] = {
    "sac": bare.off_policy(bare_soft.SacUpdate),
    "sarsa": bare.off_policy(bare_soft.SarsaUpdate),
    "oac": bare.off_policy(bare_soft.OacUpdate),
    "qrsac": bare.off_policy(bare_soft.QrsacUpdate),
    "dsac": bare.off_policy(bare_soft.DsacUpdate),
    "doac": bare.off_policy(bare_soft.DoacUpdate),
    "sac-hlgauss": bare.off_policy(bare_soft.HlgaussUpdate),
    "ddpg": bare.off_policy(bare_others.DdpgUpdate),
    "mdq": bare.off_policy(bare_others.MdqUpdate),
    "seditor": bare.off_policy(bare_others.SeditorUpdate),
    "iql": bare.off_policy(bare_others.IqlUpdate),
    "taac": bare_lasting.taac,
    "action-repeat": bare_lasting.action_repeat,
    "dqn": bare.dqn,
    "ppo": bare_ppo.ppo,
    "a2c": bare_ppo.a2c,
}


class Case(NamedTuple):
    """A run to measure: its overrides, its bare loop, and the least share of the bare loop's speed."""

    overrides: tuple[str, ...]
    loop: str
    bar: float
    first: int  # environment steps of the window
    last: int


MEMBER = 0.9  # of the off-policy family
SPREAD = ("+with=hlgauss", "hlgauss.least=-800", "hlgauss.largest=100")
GREEDY = "algorithm.epsilon.steps=1"  # hardly a random action in the window: the dearest case
QUIET = ("evaluation.every=0", "checkpoint.every=0", "checkpoint.keep_best=false", "logger=[]", "log.every=0")
CASES = {
    "sac-pendulum": Case(("algorithm=sac", "env=pendulum", "preset=null"), "sac", 0.92, 1_200, 2_200),
    "dqn-cartpole": Case(("algorithm=dqn", "env=cartpole", "preset=null", GREEDY), "dqn", 0.85, 1_500, 6_500),
    "ppo-cartpole": Case(("algorithm=ppo", "env=cartpole"), "ppo", 0.85, 2_560, 12_800),
    **{
        f"{loop}-pendulum": Case((f"algorithm={name}", "env=pendulum", "preset=null"), loop, MEMBER, 1_200, 2_200)
        for name, loop in (
            *(("ddpg", "ddpg"), ("sarsa", "sarsa"), ("oac", "oac"), ("qrsac", "qrsac"), ("mdq", "mdq")),
            *(("iql", "iql"), ("taac", "taac"), ("action_repeat", "action-repeat")),
        )
    },
    "td3-pendulum": Case(("algorithm=td3", "env=pendulum", "preset=null"), "ddpg", MEMBER, 1_200, 2_200),
    **{
        f"{name}-pendulum": Case((f"algorithm={name}", "env=pendulum", "preset=null"), name, MEMBER, 1_050, 1_250)
        for name in ("dsac", "doac")
    },
    "sac-hlgauss-pendulum": Case(
        ("algorithm=sac", "env=pendulum", "preset=null", *SPREAD), "sac-hlgauss", MEMBER, 1_200, 2_200
    ),
    "seditor-constrained": Case(
        ("algorithm=seditor", "env=constrainedbandit", "preset=null", "lagrangian.thresholds=[null,-0.25]"),
        "seditor",
        MEMBER,
        1_200,
        2_200,
    ),
    **{
        f"dqn-{name}-cartpole": Case(
            ("algorithm=dqn", "env=cartpole", "preset=null", GREEDY, *overrides), "dqn", MEMBER, 1_500, 4_500
        )
        for name, overrides in (
            ("dueling", ("algorithm.dueling=true",)),
            ("quantile", ("algorithm.quantiles=32", "algorithm.huber=1.0")),
            ("hlgauss", ("+with=hlgauss", "hlgauss.least=0", "hlgauss.largest=100")),
        )
    },
    "dqn-cartpole-tuned": Case(("algorithm=dqn", "env=cartpole", GREEDY), "dqn", 0.85, 1_500, 9_500),
}


def measure_rlrun(case: Case, *, first: int, last: int) -> dict[str, float]:
    """Train as the command does, with a probe next to the algorithm's own callbacks."""
    probe = [f"+callbacks.probe={{_target_:benchmarks.probe.Probe,first:{first},last:{last}}}"]
    tune_process()
    with TemporaryDirectory() as folder:
        result = rlrun.train([*case.overrides, *QUIET, *probe], run_dir=Path(folder) / "run")
    clock: Clock = result.trainer.callbacks["probe"].clock  # type: ignore[attr-defined]
    return clock.report()


def measure_bare(
    case: Case, *, first: int, last: int, loops: Mapping[str, bare.Loop] = MappingProxyType(LOOPS)
) -> dict[str, float]:
    """Run a hand-written loop with the numbers that the same overrides compose to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    clock = Clock(first=first, last=last)
    config = configuration.compose(list(case.overrides)).config
    set_precision(str(config.precision))
    loops[case.loop](partial(bare.opened, config.env), numbers_of(config), clock)
    return clock.report()


def numbers_of(config: Any) -> dict[str, Any]:
    """Return the numbers of a composed config that a hand-written loop reads."""
    numbers: Any = OmegaConf.to_container(config.algorithm, resolve=True)
    return {**numbers, "length": OmegaConf.select(config, "memory.length") or LENGTH, "num_envs": config.num_envs}


SIDES = {"rlrun": measure_rlrun, "bare": measure_bare, "plain": partial(measure_bare, loops=plain.LOOPS)}


def main(side: str, case: str, first: str, last: str) -> None:
    """Measure one side and print the result."""
    print(json.dumps(SIDES[side](CASES[case], first=int(first), last=int(last))))


if __name__ == "__main__":
    main(*sys.argv[1:])
