"""A run that is built and not begun."""

import pytest
import torch
from gymnasium.spaces import Box
from tests.env.test_outputs import Gives

from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.commands.check import check
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.core.errors import BuildError, ConfigError, RequestError

DQN = ("algorithm=dqn", "env=cartpole", "algorithm.hidden=[4]", "memory.length=100")
OWN = f"networks.q._target_={__name__}"


class Screen(Gives):
    """Images of 100 × 120 pixels."""

    def __init__(self, side=100):
        super().__init__(space=Box(0, 255, (side, side + 20, 3), "uint8"))


def acting(name, change):
    """Return a class of Q-networks whose actions are changed."""

    def act(self, observation, explore=False):
        return change(QNetwork.act(self, observation))

    return type(name, (QNetwork,), {"act": act})


Wide = acting("Wide", lambda action: action.unsqueeze(0))  # a row too many
Numbers = acting("Numbers", torch.Tensor.float)  # in place of choices
Beyond = acting("Beyond", lambda action: action * 0 + 2)  # a choice too many
Broken = acting("Broken", lambda action: action[99])  # cannot act


class Plain(torch.nn.Linear):
    """A module of torch without a method of rlrun."""

    def __init__(self, spaces, hidden):
        super().__init__(4, 2)


class Sized(torch.nn.Linear):
    """Has a size of its own."""

    def __init__(self, hidden=(3,)):
        super().__init__(4, 2)


class One(torch.nn.Sequential):
    """Has one number for its size, as networks of CleanRL do."""

    def __init__(self, hidden: int):
        super().__init__(torch.nn.Linear(4, hidden), torch.nn.Linear(hidden, 2))


class Narrow(One):
    """Has a number of its own."""

    def __init__(self, hidden=3):
        super().__init__(hidden)


class Bare(torch.nn.Module):
    """A module whose constructor is that of torch."""

    def forward(self, observation):
        return observation[:, :2]


class Half(Plain):
    """One of the two things that DQN asks of a network."""

    codec = None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wide", r"actions of shape \[1, 2\] int64; the action space wants \[2\] int64 for Discrete\(2\)"),
        ("Numbers", r"actions of shape \[2\] float32; the action space wants \[2\] int64"),
        ("Beyond", r"actions from 2 to 2; the action space wants choices from 0 for Discrete\(2\)"),
        ("Broken", r"IndexError"),
    ],
)
def test_a_network_whose_actions_are_no_actions_is_named(name, message):
    with pytest.raises(BuildError, match=rf"^networks\.q \({name}\): acting on 2 observations: .*{message}"):
        check([*DQN, f"{OWN}.{name}"])


@pytest.mark.parametrize("outputs", [1, 5])
def test_layers_with_other_outputs_than_choices_are_refused(outputs):
    layers = f"{{_target_: torch.nn.Linear, in_features: 4, out_features: {outputs}}}"
    with pytest.raises(ConfigError, match=rf"^networks\.q: Linear gives \[B, {outputs}\], wanted \[B, 2\] \(choices\)"):
        check([*DQN, f"+networks.q.layers={layers}"])


def test_an_actor_critic_of_ones_own_gives_policy_and_value():
    overrides = ["algorithm=ppo", "env=cartpole", f"networks.actor_critic._target_={__name__}.Plain"]
    with pytest.raises(ConfigError, match=r"Plain gives \[B, 2\], wanted \[B, 3\] \(0 means and 2 logits, then 1 of"):
        check(overrides)


def test_what_a_network_of_ones_own_lacks_is_one_message():
    with pytest.raises(BuildError, match=r"Half; it lacks act: What DQN calls on its network"):
        check([*DQN, f"{OWN}.Half"])


def test_keys_that_a_network_of_ones_own_does_not_take_are_named():
    (line,) = [line for line in check([*DQN, f"{OWN}.Plain"]) if line.startswith("own")]
    assert line == (
        f"own       networks.q: {__name__}.Plain does not take the packaged encoder, layer_norm, dropout, "
        "dueling, core, core_size: left out"
    )


def test_keys_that_a_class_gets_in_place_of_its_defaults_are_named():
    lines = [line for line in check([*DQN, f"{OWN}.Sized"]) if line.startswith("own")]
    assert lines[0].startswith(
        f"own       networks.q: {__name__}.Sized gets the packaged hidden and does not take the packaged "
    )


def test_a_list_of_packaged_sizes_is_not_given_for_one_number():
    (line,) = [line for line in check([*DQN, f"{OWN}.Narrow"]) if line.startswith("own")]
    assert "gets" not in line
    assert "hidden" in line
    with pytest.raises(BuildError, match=r"One needs the argument 'hidden'$"):
        check([*DQN, f"{OWN}.One"])
    with pytest.raises(ConfigError, match=r"algorithm.hidden: no part reads this key; the part that read it was repla"):
        check([*DQN, f"{OWN}.One", "networks.q.hidden=3"])


@pytest.mark.parametrize(("key", "name"), [("+networks.q.width=3", "width"), ("networks.q.dropout=0.5", "dropout")])
def test_a_key_that_a_user_gave_is_never_left_out(key, name):
    with pytest.raises(BuildError, match=rf"networks.q.{name}: .*Plain takes no argument '{name}'"):
        check([*DQN, f"{OWN}.Plain", key])


def test_a_network_without_a_constructor_takes_nothing():
    assert check([*DQN, f"{OWN}.Bare"])


def test_a_network_that_is_not_there_is_told_by_those_that_are():
    with pytest.raises(ConfigError, match=r"networks.critics.hidden: no such key; there are q$"):
        check([*DQN, "networks.critics.hidden=[4]"])


def test_large_images_and_layers_are_reported():
    overrides = ["algorithm=ppo", f"env.target={__name__}.Screen", "algorithm.hidden=[4]"]
    (line,) = [line for line in check(overrides) if line.startswith("images")]
    assert line.startswith("images    observations of 100 × 120 × 3: env=atari or ResizeGray")
    assert not [line for line in check([*overrides, "+env.kwargs.side=70"]) if line.startswith(("images", "layers"))]
    (line,) = [line for line in check([*DQN, "algorithm.hidden=[2300,2300]"]) if line.startswith("layers")]
    assert line == "layers    networks.q.layers.layers.1.weight has 5,290,000 parameters"


@pytest.mark.parametrize("partial", ["", "_partial_: true, "])
@pytest.mark.parametrize("place", ["env.wrappers=[{%s}]", "+env.around.mine={%s}"])
def test_a_wrapper_may_leave_partial_away(partial, place):
    node = f"_target_: gymnasium.wrappers.TimeLimit, {partial}max_episode_steps: 3"
    env = Experiment(compose([*DQN, place % node])).builder.get("env")
    assert env.envs[0]._max_episode_steps == 3


def test_a_files_own_class_becomes_environments(write):
    write("conf/env/mine.yaml", f"_target_: {__name__}.Screen\nside: 20\n")
    experiment = Experiment(compose(["algorithm=ppo", "env=mine", "num_envs=2", "algorithm.hidden=[4]"]))
    env = experiment.builder.get("env")
    assert (env.num_envs, env.name, env.spaces.observation.shape) == (2, "screen", (20, 40, 3))
    write("conf/env/mine.yaml", f"_target_: {__name__}.Screen\nsid: 20\n")
    with pytest.raises(BuildError, match=r"env.kwargs.sid: .* takes no such argument \(did you mean 'side'\?\)"):
        check(["algorithm=ppo", "env=mine"])


@pytest.mark.parametrize(
    ("algorithm", "env", "override", "message"),
    [
        *(("dqn", "cartpole", f"algorithm.huber={value}", "huber: wanted a number above 0, got") for value in (-1, 0)),
        ("dqn", "cartpole", "algorithm.huber=nan", "huber: wanted a number"),
        ("ppo", "cartpole", "algorithm.huber=much", "algorithm.huber: wanted a number or null, got 'much'"),
        ("dsac", "pendulum", "algorithm.huber=-1", "huber: wanted a number above 0, got -1"),
        ("ppg", "cartpole", "algorithm.huber=-1", "huber: wanted a number above 0, got -1"),
        ("ppo", "cartpole", "algorithm.clip=-1", "clip: wanted a number above 0, got -1"),
        ("ppo", "cartpole", "algorithm.value_clip=0", "value_clip: wanted a number above 0, got 0"),
        (
            "iql",
            "pendulum",
            "algorithm.largest_weight=-1",
            "^algorithm.largest_weight: wanted a number above 0, got -1",
        ),
        ("dsac", "pendulum", "algorithm.fractions=0", "fractions must be at least 1, not 0"),
        ("sac", "pendulum", "algorithm.dropout=-0.5", "dropout: wanted a number from 0 to below 1, got -0.5"),
    ],
)
def test_a_number_that_no_loss_takes_is_refused(algorithm, env, override, message):
    with pytest.raises(ConfigError, match=message):
        check([f"algorithm={algorithm}", f"env={env}", override])


MERLIN = ("algorithm=merlin", "env=recall", "algorithm.hidden=[4]", "algorithm.slots=4")
DECODER = "algorithm.predictor.decoders.observation"
MUZERO = ("algorithm=muzero", "env=cartpole", "algorithm.latent=4", "memory.length=100")
BEFORE = (*DQN, "+with=muzero_representation")
REFUSED = {
    "in a recipe": ((*MERLIN, "algorithm.actor.keys=0"), r"^algorithm\.actor\.keys: wanted a whole number from 1"),
    "within a recipe": ((*MERLIN, f"{DECODER}.weight=-1"), rf"^{DECODER}\.weight: wanted a number from 0, got -1"),
    "a factor that never fades": ((*MERLIN, "algorithm.retroactive=1"), r"^algorithm\.retroactive: .* to below 1"),
    "a term": ((*MERLIN, "algorithm.actor.loss_weight=-1"), r"^algorithm\.actor\.loss_weight: wanted a number from 0"),
    "no layer": ((*MERLIN, "algorithm.predictor.lstm_size=[]"), r"^algorithm\.predictor\.lstm_size: wanted the width"),
    "no decoder": ((*MERLIN, f"{DECODER}=abc"), rf"^{DECODER}: wanted a part \{{_target_: …\}} or null, got 'abc'$"),
    "no network": ((*MERLIN, f"{DECODER}.network=abc"), rf"^{DECODER}\.network: wanted a part .*, got 'abc'$"),
    "an image of numbers": (
        (*MERLIN, f"{DECODER}.network={{_target_: rlrun.nn.ResNetDecoder, _partial_: true}}"),
        rf"^{DECODER}\.network: a ResNetDecoder .*the observation is Box\[1\] float32; null = dense layers$",
    ),
    "a class without its arguments": (
        (*MERLIN, f"{DECODER}.network={{_target_: rlrun.nn.ResNetDecoder}}"),
        r"needs the argument 'inputs'; `_partial_: true` leaves the rest to the network that calls it$",
    ),
    "a class alone": (
        ("algorithm=a2c", "env=cartpole", "algorithm.recurrent=rlrun.nn.MemoryCore"),
        r"^algorithm\.recurrent: .* or \{_target_: rlrun\.nn\.MemoryCore, _partial_: true\}, got",
    ),
    "the class of null": (
        ("algorithm=a2c", "env=cartpole", "algorithm.recurrent._target_=rlrun.nn.MemoryCore"),
        r"algorithm\.recurrent is null, and has no keys; 'algorithm\.recurrent=\{_target_: rlrun\.nn\.MemoryCore, …\}'",
    ),
    "a schedule for a number": (
        (*MUZERO, "algorithm.lr={_target_: rlrun.core.schedules.Linear, first: 0.1, last: 0.0, steps: 9}"),
        r"^algorithm\.lr: wanted a number, got a Linear; \+with=anneal lowers it to 0, and \+callbacks\.",
    ),
    "a text for a number of torch": (("algorithm=dqn", "env=cartpole", "optimizer.lr=abc"), r"^optimizer\.lr: want"),
    "a list within a list": ((*MUZERO, "algorithm.td_steps=0"), r"^algorithm\.td_steps: wanted .* from 1, or -1"),
    "another list": ((*MUZERO, "algorithm.reanalyze.td_steps=0"), r"^algorithm\.reanalyze\.td_steps: wanted a whole"),
    "a rate of a data group": (
        (*BEFORE, "muzero_representation.every=0"), r"^muzero_representation\.every must be at least 1, not 0"),
    "a loader of a data group": (
        (*BEFORE, "muzero_representation.batch_size=0"), r"^muzero_representation\.batch_size must be at least"),
    "a second memory": ((*BEFORE, "muzero_representation.alpha=-1"), r"^muzero_representation\.alpha must be between"),
    "a second optimizer": ((*BEFORE, "muzero_representation.lr=-1"), r"^muzero_representation\.lr: wanted a number"),
    "a second search": (
        (*BEFORE, "muzero_representation.reanalyze.simulations=0"), r"^muzero_representation\.reanalyze\.simulations:"),
    "maps without their algorithm": ((*DQN, "+with=latent_maps"), r"^networks\.muzero: .* algorithm=dqn lacks it"),
    "learning where nothing is trained": (
        ("algorithm=handcrafted", "env=pendulum", "+with=rnd"), r"^\+with=rnd: .*=handcrafted trains nothing"),
    "an expert for a policy that learns": (
        (*DQN, "+with=expert", "expert=RUN"), r"^expert: it would act in place of the policy .*algorithm=handcrafted"),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_value_is_refused_by_the_key_that_was_typed(overrides, message):
    with pytest.raises(RequestError, match=message):
        check(overrides)
