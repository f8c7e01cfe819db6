"""Every file in conf/ composes and is read completely; tests/resume/test_completeness.py runs them."""

import importlib.util
import io
import pickle
import re
import shlex
from pathlib import Path

import hydra
import pytest
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from tests.configs import env_of

from rlrun.collect import Collector, RandomAgent
from rlrun.config import compose, replaced, unread
from rlrun.config.build import Builder
from rlrun.config.interpolation import plain
from rlrun.config.places import packaged_dir
from rlrun.memory import Table
from rlrun.memory.formats import table_file

CONF = packaged_dir()
OF_SWEEPS = ("multirun", "launcher/", "sweep/")  # tests/sweep/test_means.py composes these
FILES = sorted(path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml"))
FILES = [file for file in FILES if not file.startswith((*OF_SWEEPS, "episodes"))]  # tests/export composes the last
EXPERIMENTS = [file for file in FILES if file.startswith("preset/")]
# tests/memory/test_dataset.py, tests/memory/test_offline.py and tests/algorithms/test_imitation.py run these
ALONE = ("env/none", "with/offline_alone", "with/expert")
RUN = [file for file in FILES if file not in ALONE]
UNTRAINED = [file for file in FILES if file.startswith(("algorithm/handcrafted", "preset/handcrafted"))]
DENSITIES = ("algorithm/particles", "algorithm/generator")  # they learn without data, and nothing judges them
PAIRS = [file for file in EXPERIMENTS if (CONF / "env" / f"{file.partition('_')[2]}.yaml").exists()]
COMMANDED = [file for file in FILES if file.startswith(("preset/", "with/"))]
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
DENSE = ["encoder._target_=torch.nn.LazyLinear", "+encoder.out_features=32"]
FRAMES = "env.wrappers=[{_target_: rlrun.env.wrappers.FrameStack, count: 32}]"
MIRRORED = ["symmetry.observation={sign: [1,-1,-1]}", "symmetry.action={sign: [-1]}"]
OVERRIDES_OF_FILE = {
    "with/reward_model": ["algorithm=mbrl", "env=pendulum"],
    "algorithm/mbpo": ["env=cartpole", "algorithm.updates_per_step=1"],
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
    "env/gym": ["algorithm=sac", "env.id=CartPole-v1"],
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
    "with/autoencoder_shared": ["algorithm=sac", PICTURES],
    "with/drq": ["algorithm=sac", "env=reacher_pixels"],
    "with/curl": ["algorithm=sac", PICTURES],
    "with/spr": ["algorithm=sac", PICTURES],
    "with/smoothed_policy": ["algorithm=sarsa_ddpg", "env=pendulum"],
    "with/mirror": ["algorithm=sac", "env=pendulum", *MIRRORED],
    "with/symmetry": ["algorithm=sac", "env=pendulum", *MIRRORED],
    "with/symmetry_data": ["algorithm=sac", "env=pendulum", *MIRRORED],
    "with/symmetry_adversarial": ["algorithm=sac", "env=pendulum", *MIRRORED],
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


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: None) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Let Hydra parse what each file says once, and not for each of the compositions that it is part of."""
    parse, known = OmegaConf.load, {}

    def load(file):
        if (text := file.read()) not in known:
            known[text] = pickle.dumps(parse(io.StringIO(text)))
        return pickle.loads(known[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", staticmethod(load))
        yield


@pytest.mark.parametrize("file", RUN)
def test_a_file_composes_and_is_read_completely(file):
    composed = compose(overrides_of(file))
    encoder = {f"encoder.{key}" for key in ("_target_", "_partial_")}
    idle = {"optimizer"} | encoder if file in UNTRAINED else set()
    idle |= {f"algorithm.temperature.{key}" for key in ("target", "share") if file == "with/entropy_target"}
    idle |= {"env", "memory", "spaces"} if composed.config.env is None else set()
    idle |= {"encoder", "seeds"} if file in DENSITIES else set()
    assert set(unread(composed.config)) == idle


@pytest.mark.parametrize("file", PAIRS)
def test_a_preset_is_the_tuned_pair_too(file):
    name = file.partition("/")[2]
    algorithm, _, env = name.partition("_")
    beside = OVERRIDES_OF_FILE.get(file, [])
    pair = compose([f"algorithm={algorithm}", f"env={env}", *beside])
    assert pair.preset == name
    preset = compose([file.replace("/", "="), *beside])
    assert plain(pair.config) == plain(preset.config)  # OmegaConf's own comparison takes seconds


@pytest.mark.parametrize("file", FILES)
def test_hydra_alone_composes_a_file(file):
    overrides = overrides_of(file)
    composed = compose(overrides, check=False)
    additions = [override for override in overrides if re.match(r"\+?with=", override)]
    names = ",".join(override.partition("=")[2].strip("[]") for override in additions)
    others = [override for override in overrides if override not in additions]
    typed = [f"++{override}" if override.startswith("env.kwargs") else override for override in others] + [
        f"+with=[{names}]"
    ] * bool(names)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        alone = hydra.compose("train", typed + [f"preset={composed.preset}"] * bool(composed.preset))
    assert plain(alone) == unmarked(plain(composed.config))


def unmarked(node):
    """Return a config without the marks of classes that an override replaced."""
    if not isinstance(node, dict):
        return node
    return {key: unmarked(value) for key, value in node.items() if key not in replaced.KEYS}


@pytest.mark.parametrize("file", FILES)
def test_the_first_comment_says_what_a_file_is(file):
    first = text(file)[0]
    assert re.match(r"# [A-Z]", first)
    assert len(first) <= 120


@pytest.mark.parametrize("file", COMMANDED)
def test_the_second_comment_is_a_command_that_uses_the_file(file):
    program, command, *overrides = shlex.split(text(file)[1].removeprefix("# "))
    settings = [override for override in overrides if "." in override.partition("=")[0] or override.startswith("+")]
    assert (program, command) == ("rlrun", "train")
    assert plain(compose(overrides).config) == plain(compose(overrides_of(file) + settings).config)


@pytest.mark.parametrize("file", EXPERIMENTS)
def test_a_preset_promises_one_measure_within_its_budget(file):
    config = compose(overrides_of(file)).config
    (budget,) = {"env_steps", "updates"} & set(config.expect)
    assert config.expect[budget] == config.stop[budget]
    assert len(set(config.expect) - {budget, "seeds"}) == 1
    assert len(config.expect.seeds) >= 5


@pytest.mark.parametrize("file", [file for file in EXPERIMENTS if re.match(r"preset/(ppo|ppg|trac)_", file)])
def test_a_preset_of_ppo_states_the_numbers_that_defaults_of_ppo_may_change(file):
    preset = OmegaConf.create("\n".join(text(file)))
    assert any("override /optimizer" in default for default in preset.defaults)
    keys = ("num_envs", *(f"algorithm.{name}" for name in ("horizon", "epochs", "batch_size", "lr")))
    assert [key for key in keys if OmegaConf.select(preset, key) is None] == []
    assert "learning_rate" in preset.callbacks


def test_numbers_are_written_as_every_reader_of_yaml_reads_them():
    lines = [f"{file}: {line}" for file in FILES for line in text(file) if re.search(r"(?<![\d.])\d+e[-+]?\d", line)]
    assert lines == []
