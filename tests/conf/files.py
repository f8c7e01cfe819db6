"""The files of `conf/`, the overrides of a command that uses each, and the runs that together use them all."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.configs import env_of
from tests.short import RESUMED, shrink

from rlrun.collect import Collector, RandomAgent
from rlrun.config import Composed, compose
from rlrun.config.build import Builder
from rlrun.config.interpolation import leaves
from rlrun.config.places import packaged_dir
from rlrun.memory import Table
from rlrun.memory.formats import table_file

CONF = packaged_dir()
OF_SWEEPS = ("multirun", "launcher/", "sweep/")  # tests/sweep composes these
FILES = sorted(path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml"))
FILES = [file for file in FILES if not file.startswith((*OF_SWEEPS, "episodes"))]  # tests/export composes the last
PRESETS = [file for file in FILES if file.startswith("preset/")]
# tests/memory/test_dataset.py, tests/memory/test_offline.py and tests/algorithms/test_imitation.py run these
ALONE = ("env/none", "with/offline_alone", "with/expert")
PACKAGES = {
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "atari": "ale_py",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
    "export": "onnx",
    "digits": "sklearn",
}

DATASET = "dataset=demonstrations.zip"
CONSTRAINED = ["env=constrainedbandit", "lagrangian.thresholds=[null,-0.25]"]
PICTURES = "env.target=rlrun.env.toys.ImageObservation"
LATENT = ["algorithm=genrl", "env=thrusters", "init={networks.vae: null}"]  # the autoencoder has initial values
OF_PICTURES = ("autoencoder_shared", "curl", "spr", "[autoencoder_shared,image_scale]", "[curl,spr]")
DENSE = ["encoder._target_=torch.nn.LazyLinear", "+encoder.out_features=32"]
FRAMES = "env.wrappers=[{_target_: rlrun.env.wrappers.FrameStack, count: 32}]"
SYMMETRIES = ("mirror", "symmetry", "symmetry_data", "symmetry_adversarial", "[symmetry,symmetry_data]")
MIRRORED = ["symmetry.observation={sign: [1,-1,-1]}", "symmetry.action={sign: [-1]}"]
OVERRIDES_OF_FILE = {
    "with/reward_model": ["algorithm=mbrl", "env=pendulum"],
    "algorithm/mbpo": ["env=pendulum", "algorithm.updates_per_step=1"],
    "algorithm/gail": ["env=cartpole", DATASET],
    "algorithm/airl": ["env=pendulum", DATASET],
    "algorithm/bc": ["env=cartpole", DATASET],
    "algorithm/causal_bc": ["env=pendulum", DATASET],
    "algorithm/genrl": LATENT[1:],
    "algorithm/seditor": CONSTRAINED,
    **{f"preset/{name}_{env}": [DATASET] for name in ("gail", "airl") for env in ("cartpole", "pendulum")},
    "preset/bc_cartpole": [DATASET],
    "preset/bc_pendulum": [DATASET],
    "preset/genrl_thrusters": LATENT[2:],
    "data/digits": ["algorithm=classifier", "env=none"],
    "data/file": ["algorithm=classifier", "data.dataset={observation: [0.5, 1.5, 2.5], label: [0, 1, 0]}"],
    "data/gaussians": ["algorithm=mutual_information", "env=none"],
    "data/sprites": ["algorithm=monet", "env=none"],
    "encoder/flat": ["algorithm=classifier"],
    "train": ["algorithm=sac", "env=cartpole"],
    "memory/rollout": ["algorithm=ppo", "env=cartpole"],
    "encoder/auto": ["algorithm=dqn", PICTURES],
    "encoder/impala": ["algorithm=dqn", PICTURES],
    "encoder/recurrent": ["algorithm=sac", "env=recall", "algorithm.recurrent=null"],
    "encoder/nature": ["algorithm=dqn", "env=cartpole_pixels"],
    "encoder/small": ["algorithm=ppo", PICTURES],
    "encoder/signals": ["algorithm=sac", "env=pendulum", FRAMES],
    "env/gym": ["algorithm=dqn", "env.id=CartPole-v1", "memory=drop_any"],
    "env/atari": ["algorithm=dqn"],
    "env/pong": ["algorithm=dqn"],
    "env/riskybranch": ["algorithm=sac", "memory=recent"],
    "env/bandit": ["algorithm=sac"],
    "env/mountaincar": ["algorithm=dqn", "memory=coverage"],
    "env/bipedalwalker": ["algorithm=taac_l", "optimizer=sgd"],
    "env/halfcheetah": ["algorithm=taac_q", "optimizer=adamw"],
    "env/inverted_pendulum": ["algorithm=sarsa_recurrent", "optimizer=rmsprop"],
    "env/lunarlandercontinuous": ["algorithm=sarsa_ddpg_recurrent", "memory=stratified"],
    "env/mountaincarcontinuous": ["algorithm=sac", "memory=sequential"],
    "env/lunarlander": ["algorithm=merlin"],
    "env/sprites": ["algorithm=sac", "encoder=small"],
    "env/minigrid": ["algorithm=dqn"],
    "env/constrainedbandit": ["algorithm=sac", "+with=reward_weights"],
    "with/by_id": ["algorithm=dqn", "env.target=rlrun.env.by_id.Crowd"],
    "with/costs": ["algorithm=ppo", "env=constrainedbandit", "env.kwargs.form=info", "+with=reward_weights"],
    "with/lagrangian": ["algorithm=ppo", *CONSTRAINED],
    "with/lagrangian_evaluated": ["algorithm=sac", *CONSTRAINED],
    "with/reward_weights": ["algorithm=ppo", "env=constrainedbandit"],
    "with/reward_critics": ["algorithm=sac", *CONSTRAINED, "+with=lagrangian"],
    "with/action_repeat": ["algorithm=dqn", "env=cartpole"],
    "with/reward_values": ["algorithm=ppo", *CONSTRAINED, "+with=lagrangian"],
    "with/anneal": ["algorithm=ppo", "env=cartpole"],
    "with/[anneal,entropy_target_sgd]": ["algorithm=ppo", "env=cartpole"],
    "with/entropy_target": ["algorithm=sac", "env=mixedaction"],
    "with/entropy_target_sgd": ["algorithm=ppo", "env=cartpole"],
    "with/encoded_actions": LATENT,
    "with/hlgauss": ["algorithm=sac", "env=pendulum", "hlgauss.least=-800", "hlgauss.largest=100"],
    "with/hindsight": ["algorithm=sac", "env=pointreach"],
    "with/image_scale": ["algorithm=dqn", PICTURES],
    "with/on_policy": ["algorithm=sarsa", "env=pendulum", "num_envs=8"],
    "with/latent_maps": ["algorithm=muzero", "env=connectfour"],
    "with/atari_search": ["algorithm=muzero", "env=cartpole_pixels"],
    "with/board_search": ["algorithm=alphazero", "env=connectfour"],
    "with/muzero_representation": ["algorithm=dqn", "env=cartpole"],
    "with/shared_encoder": ["algorithm=sac", "env=pendulum", *DENSE],
    **{f"with/{name}": ["algorithm=sac", PICTURES] for name in OF_PICTURES},
    "with/drq": ["algorithm=sac", "env=reacher_pixels"],
    "with/smoothed_policy": ["algorithm=sarsa_ddpg", "env=pendulum"],
    **{f"with/{name}": ["algorithm=sac", "env=pendulum", *MIRRORED] for name in SYMMETRIES},
    "with/trust_region": ["algorithm=a2c", "env=cartpole"],
    "with/amp": ["algorithm=sac", "env=pendulum", DATASET],
    "with/reference": ["algorithm=sac", "env=pendulum", DATASET],
    "with/expert": ["algorithm=handcrafted", "env=pendulum", "expert=RUN"],
    "with/offline": ["algorithm=sac", "env=pendulum", DATASET],
    "with/offline_alone": ["algorithm=iql", DATASET],
    "with/offline_share": ["algorithm=sac", "env=pendulum", DATASET],
    "with/offline_then_online": ["algorithm=iql", "env=pendulum", DATASET],
}
AUGMENTATIONS = ("random_shift", "random_crop", "cut_out", "pixel_noise", "color_jitter")
for name in (*AUGMENTATIONS, f"[{','.join(AUGMENTATIONS)}]"):
    OVERRIDES_OF_FILE[f"with/{name}"] = ["algorithm=dqn", "env=cartpole_pixels"]
BESIDE = {
    "env": ["algorithm=sac"],
    "memory": ["algorithm=sac", "env=cartpole"],
    "optimizer": ["algorithm=sac", "env=pendulum"],
    "with": ["algorithm=sac", "env=pendulum"],
}
TOGETHER = (  # additions that share a run: what one of them forgets is found beside the others
    "with/[reward_clip,reward_scale,reward_shift,reward_function,untransformed,colored_noise,value_bias,policy_prior]",
    "with/[reward_norm,target_scale,prioritized,emote_names,uniform_prior,observation_norm]",
    "with/[rnd,step_reward,learned_goal,same_action_prior,return_norm,parameter_logs,profile,weight_decay]",
    f"with/[{','.join(AUGMENTATIONS)}]",
    "with/[executed_action,joint,export_onnx,parameter_groups,mutual_information]",
    "with/[prefetch,td_lambda,random_goal]",
    "with/[anneal,entropy_target_sgd]",
    "with/[symmetry,symmetry_data]",
    "with/[autoencoder_shared,image_scale]",
    "with/[curl,spr]",
)
APPROXIMATE = ("env/atari", "env/pong", "with/async")  # they go on with new episodes and say so
ONE_ENV = ("with/by_id",)
FULL = {"memory.length": 56, "stop.updates": 60}  # so that rows leave the memory


def overrides_of(file: str) -> list[str]:
    """Return the overrides of a command that uses a file."""
    group, _, name = file.partition("/")
    choice = [f"{group}={name}"] if name else []
    beside = [env_of(name)] if group == "algorithm" else BESIDE.get(group, [])
    return choice + OVERRIDES_OF_FILE.get(file, beside)


def text(file: str) -> list[str]:
    """Return the lines of a file after its header, `# @package`."""
    lines = (CONF / f"{file}.yaml").read_text().splitlines()
    return lines[lines[0].startswith("# @package") :]


def used(file: str) -> set[str]:
    """Return the files that the command of a file names, or that its preset does."""
    overrides = overrides_of(file)
    chosen = [override.lstrip("+").partition("=") for override in overrides]
    files = {f"{group}/{name}" for group, _, names in chosen for name in names.strip("[]").split(",")} & {*FILES}
    for preset in files & {*PRESETS}:
        for default in yaml.safe_load("\n".join(text(preset)))["defaults"]:
            for key, names in default.items() if isinstance(default, dict) else ():
                group = re.sub(r"override |/|@.*", "", key)
                files |= {f"{group}/{name}" for name in ([names] if isinstance(names, str) else names)}
    pair = {group: name for group, _, name in chosen}
    tuned = f"preset/{pair.get('algorithm')}_{pair.get('env')}"
    return files | ({tuned} & {*PRESETS} if "preset=null" not in overrides else set())


def has_memory(file: str) -> bool:
    """Whether the command of a file names a memory."""
    return any(override.startswith("memory=") for override in overrides_of(file))


def only_numbers(preset: str) -> bool:
    """Whether a preset sets nothing but numbers: such a run resumes as others of its algorithm and environment do."""
    content = yaml.safe_load("\n".join(text(preset)))
    chosen = [next(iter(default)) if isinstance(default, dict) else default for default in content.pop("defaults")]
    plain = not any(isinstance(value, str) for _, value in leaves(content))
    return plain and set(chosen) <= {"override /algorithm", "override /env", "override /optimizer"}


def runs() -> Iterator[str]:
    """Yield files whose commands together use every file: those first that say most of what a run is."""
    rest = [file for file in FILES if file not in (*ALONE, *APPROXIMATE, *ONE_ENV, *PRESETS)]
    additions = sorted((file for file in rest if file.startswith("with/")), key=lambda file: -len(used(file)))
    done: set[str] = set()
    own = [file for file in rest if file in OVERRIDES_OF_FILE]
    for file in (*TOGETHER, *additions, *own, *sorted(PRESETS, key=only_numbers), *rest):
        if file not in done:
            done |= {file} | used(file)
            yield file


RUNS = list(runs())


def provide(overrides: list[str]) -> None:
    """Make the demonstrations that overrides name, of random actions."""
    if DATASET not in overrides:
        return
    env = Builder(compose(overrides).config).get("env")
    table = Table(spaces=env.spaces, length=200, num_envs=env.num_envs)
    collector = Collector(env, RandomAgent(env.spaces.action, seed=1), table)
    collector.begin_training()
    collector.collect(50)
    table_file.store(table, Path(DATASET.partition("=")[2]))
    env.close()


def missing_extra(file: str) -> str | None:
    """Return the extra that the first comment names, if its package is not installed."""
    match = re.search(r"\(extra: (\w+)\)", text(file)[0])
    return match[1] if match and importlib.util.find_spec(PACKAGES[match[1]]) is None else None


def small(file: str, *, envs: int) -> Composed:
    """Return what a command composes that uses a file, with small numbers for the keys that there are."""
    provide(overrides_of(file))
    return shrink(compose(overrides_of(file)), {**RESUMED, **(FULL if has_memory(file) else {}), "num_envs": envs})
