"""The files of `conf/` whose runs are resumed."""

import yaml
from tests.conf.test_every_config import AUGMENTATIONS, RUN, missing_extra, overrides_of, provide, text
from tests.short import RESUMED, shrink

from rlrun.config import Composed, compose
from rlrun.config.interpolation import leaves

APPROXIMATE = (  # go on with new episodes and say so
    "with/async",  # tests/cli/test_async.py
    "env/atari",  # test_completeness.py
)
ONE_ENV = ("with/by_id",)
TOGETHER = (  # additions that share a run: what one of them forgets is found beside the others
    "with/[reward_clip,reward_scale,reward_shift,reward_function,untransformed,colored_noise,value_bias,policy_prior]",
    "with/[reward_norm,target_scale,prioritized,emote_names,uniform_prior,observation_norm]",
    "with/[rnd,step_reward,learned_goal,same_action_prior,return_norm,parameter_logs,profile,weight_decay]",
    f"with/[{','.join(AUGMENTATIONS)}]",
)
ALIKE = (  # the same classes as in the run of another file: train, env/atari, env/halfcheetah, env/lunarlander
    *("env/connectfour", "env/riskybranch"),  # env/tictactoe, env/bandit
    *("env/cartpole", "env/pendulum", "env/gym", "env/pong", "env/hopper", "env/lunarlandercontinuous"),
    *("with/reward_weights", "with/random_goal"),  # with/costs and with/learned_goal have them
)


def _only_numbers(file: str) -> bool:
    """Whether a preset sets nothing but numbers: such a run resumes as those of its algorithm and environment do."""
    preset = yaml.safe_load("\n".join(text(file)))
    chosen = [next(iter(default)) if isinstance(default, dict) else default for default in preset.pop("defaults")]
    values = [value for _, value in leaves(preset)]
    plain = not any(isinstance(value, str) for value in values)
    return plain and set(chosen) <= {"override /algorithm", "override /env", "override /optimizer"}


def _runs_elsewhere(file: str) -> bool:
    """Whether another file makes the same run: one that sets nothing, or finds this preset by itself."""
    group, _, name = file.partition("/")
    if group == "preset":
        return _only_numbers(file) or f"algorithm/{name.removesuffix('_cartpole')}" in RUN
    together = {name for names in TOGETHER for name in names[6:-1].split(",")}
    return file in (*ALIKE, *ONE_ENV) or (group == "with" and name in together)


FILES: list[str] = [
    *(file for file in RUN if missing_extra(file) is None and file not in APPROXIMATE and not _runs_elsewhere(file)),
    *TOGETHER,
]
FULL = {"memory.length": 56, "stop.updates": 60}  # so that rows leave the memory


def small(file: str, *, envs: int) -> Composed:
    """Return what a command composes that uses a file, with small numbers for the keys that there are."""
    provide(overrides_of(file))
    composed = compose(overrides_of(file))
    full = FULL if file.startswith("memory/") else {}
    return shrink(composed, {**RESUMED, **full, "num_envs": envs})
