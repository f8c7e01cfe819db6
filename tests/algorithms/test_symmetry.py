"""Mirror maps, the mirror loss, mirrored rows and the adversary of right and left."""

import json

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.imitation.sides import Confusion, Sides, SidesLoss
from rlrun.algorithms.imitation.symmetry import MirrorLoss
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete, MultiDiscrete, Spaces
from rlrun.memory import Mirrored, Sample
from rlrun.memory.adaptors.adaptor import arrange
from rlrun.nn import ActionCodec, ActorCritic, DeterministicPolicy, Mirror

OARS = ["env.target=rlrun.env.toys.Oars", "num_envs=2", "logger=[]", "symmetry.observation={sign: [1,-1]}"]
OARS += ["symmetry.action={order: [1,0]}", "algorithm.hidden=[8]", "evaluation.every=0"]


def box(*shape, dtype="float32"):
    bound = np.ones(shape, dtype)
    return Box(shape, -bound if dtype == "float32" else 0 * bound, bound if dtype == "float32" else 255 * bound, dtype)


LEGS = Spaces(box(3), box(2))
SIGNED = {"observation": {"order": [1, 0, 2], "sign": [1, 1, -1]}, "action": {"order": [1, 0]}}


def test_maps_by_hand():
    mirror = Mirror(LEGS, **SIGNED)
    assert mirror.observation(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[2.0, 1.0, -3.0]]
    picture = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
    parts = {
        "camera": box(8, 8, 1, dtype="uint8"),
        "side": Discrete(3),
        "action_mask": MultiDiscrete(*[np.full(4, 2)] * 2),
    }
    nvec = np.array([2, 2])
    spaces = Spaces(Composite(parts), MultiDiscrete(nvec, 0 * nvec))
    observation = {"camera": "flip", "side": {"order": [2, 1, 0]}}
    mirror = Mirror(spaces, observation=observation, action={"order": [1, 0]})
    mask = torch.tensor([[1, 0, 0, 1]])  # the first decision may be 0, the second 1
    seen = mirror.observation({"camera": torch.tensor(picture), "side": torch.tensor([0]), "action_mask": mask})
    assert (seen["camera"].numpy() == picture[:, :, ::-1]).all()
    assert seen["side"].tolist() == [2]
    assert seen["action_mask"].tolist() == [[0, 1, 1, 0]]
    assert mirror.choices(ActionCodec(spaces)).tolist() == [0, 2, 1, 3]  # of (0, 0), (0, 1), (1, 0), (1, 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observation": {"order": [1, 2, 0]}}, r"symmetry.observation.order\[0\]: 0 becomes 1, and 1 becomes 2"),
        ({"observation": {"order": [0, 0, 1]}}, r"symmetry.observation.order\[1\]: wanted each of 0 to 2 once, got 0"),
        ({"observation": {"sign": [1, -1]}}, r"symmetry.observation.sign: wanted 3 whole numbers.* got 2"),
        ({"observation": {"sign": [1, 0, 1]}}, r"symmetry.observation.sign\[1\]: wanted 1 or -1, got 0"),
        ({"action": {"order": [1, 0], "sign": [1, -1]}}, r"symmetry.action.sign\[0\]: 1, but 1 has -1"),
        ({"action": "flip"}, r"symmetry.action: flip is for images"),
        ({"action": None}, r"symmetry.action: wanted \{order"),
        ({"observation": torch.exp}, r"symmetry.observation: entry 0 mirrored twice.*; a mirror is its own inverse"),
        ({"observation": lambda tree: tree[..., :2]}, r"symmetry.observation: the image of Box\[3\]"),
    ],
)
def test_a_wrong_map_is_refused_by_its_entry(changed, message):
    with pytest.raises(ConfigError, match=message):
        Mirror(LEGS, **{**SIGNED, **changed})


def test_the_mirror_loss_is_the_squared_distance():
    torch.manual_seed(0)
    policy, mirror = DeterministicPolicy(LEGS, hidden=[8]), Mirror(LEGS, **SIGNED)
    loss = MirrorLoss(policy, mirror, weight=3.0)
    seen = torch.randn(5, 3)
    image = seen[:, [1, 0, 2]] * torch.tensor([1.0, 1.0, -1.0])
    apart = policy(seen) - policy(image)[:, [1, 0]]
    term = loss.policy_term(seen, image)
    torch.testing.assert_close(term, 3.0 * apart.square().sum(-1))
    torch.testing.assert_close(loss.loss(seen, image)[2]["symmetry/asymmetry"], apart.abs().mean(-1) / 2)
    choices = Spaces(box(3), Discrete(3))
    network = ActorCritic(choices, hidden=[8], output_gain=1.0)
    mirror = Mirror(choices, observation=SIGNED["observation"], action={"order": [2, 1, 0]})
    loss = MirrorLoss(network, mirror, weight=1.0)
    before, after = (network.heads(part).choices.exp() for part in (seen, image))
    torch.testing.assert_close(loss.policy_term(seen, image), (before - after.flip(-1)).square().sum(-1))


def test_rows_are_doubled_and_priorities_folded():
    mirror = Mirror(LEGS, **SIGNED)
    adaptor = Mirrored(mirror, DeterministicPolicy(LEGS, hidden=[8]), double=True)
    seen, action, reward = torch.randn(2, 3), torch.randn(2, 2), torch.tensor([1.0, 2.0])
    batch = adaptor({"observation": seen, "next_observation": seen + 1, "action": action, "reward": reward}, None)
    torch.testing.assert_close(batch["next_observation"], torch.cat((seen + 1, mirror.observation(seen + 1))))
    torch.testing.assert_close(batch["action"], torch.cat((action, action.flip(-1))))
    torch.testing.assert_close(batch["mirrored"], batch["observation"].roll(2, 0))
    assert batch["reward"].tolist() == [1.0, 2.0, 1.0, 2.0]
    given = {}

    class Table:
        class sampler:
            feedback = staticmethod(lambda rows, priority: given.update(priority=priority.tolist()))

    class Rows:
        index = np.arange(2)

    Sample({}, [(Table, Rows)], copies=2).feedback(torch.tensor([1.0, 5.0, 3.0, 4.0]))
    assert given == {"priority": [3.0, 5.0]}


def test_log_probabilities_of_mirrored_actions_are_those_at_mirrored_observations():
    overrides = ["algorithm=ppo", *OARS, "+with=symmetry_data", "algorithm.horizon=4", "algorithm.batch_size=16"]
    overrides += ["device=cpu"]
    builder = Builder(compose(overrides).config)
    loader, network = builder.get("loader"), builder.get("networks.actor_critic")
    loader.collector.begin_training()
    batch = next(iter(loader))["default"]  # all rows
    assert len(batch["observation"]) == 2 * 2 * 4
    with torch.no_grad():
        evaluated = network.evaluate_actions(batch["observation"], batch["action"])
    torch.testing.assert_close(evaluated.log_prob, batch["log_prob"])
    torch.testing.assert_close(evaluated.value, batch["value"])
    turns = batch["observation"][:, 1].sort().values
    torch.testing.assert_close(turns, -turns.flip(0))


FORMS = {
    "sac": "symmetry",
    "td3": "symmetry_data",
    "ppo": "symmetry",
    "a2c": "symmetry_data",
    "ddpg": "symmetry_adversarial",
}


@pytest.mark.parametrize("algorithm", FORMS)
def test_a_run_logs_its_asymmetry(algorithm, tmp_path):
    short = ["stop.env_steps=60", "symmetry.every=1"]
    short += ["algorithm.horizon=8"] if algorithm in ("ppo", "a2c") else ["algorithm.warmup_steps=40"]
    result = rlrun.train(
        [f"algorithm={algorithm}", f"+with={FORMS[algorithm]}", *OARS, *short], run_dir=tmp_path / "run"
    )
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert 0.0 <= rows[-1]["symmetry/asymmetry"] <= 1.0


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_critics_that_choose_have_the_term(algorithm):
    overrides = [
        f"algorithm={algorithm}",
        "env.target=rlrun.env.toys.Bandit",
        "env.kwargs.means=[0.0,1.0]",
        "logger=[]",
    ]
    overrides += ["+with=symmetry", "symmetry.observation=same", "symmetry.action={order: [1,0]}"]
    builder = Builder(compose([*overrides, "device=cpu"]).config)
    builder.get("trainer")
    loss, symmetry = builder.get("callbacks.q_loss"), builder.get("callbacks.symmetry")
    assert "mirrored" in loss.hook("backward").arguments
    seen = torch.ones(4, 1)
    own, image = symmetry.values(seen, seen)
    torch.testing.assert_close(own, image.flip(-1))


def test_confusion_by_hand():
    spaces, layers = Spaces(box(3), box(2)), torch.nn.Linear(1, 1)
    torch.nn.init.constant_(layers.weight, 0.5)
    torch.nn.init.zeros_(layers.bias)
    sides = Sides(spaces, Mirror(spaces, **SIGNED), layers=layers)
    action = torch.tensor([[1.0, -1.0], [4.0, -4.0]])  # scores 0.5 and -0.5; 2 and -2, clamped
    bonus, view = Confusion(sides).learn({"action": action, "reward": torch.zeros(2)}, None)
    assert view["right"].tolist() == [[1.0], [4.0]]
    torch.testing.assert_close(bonus, torch.tensor([2 * (1 - 2.25 / 4), 0.0]))
    elements = SidesLoss(sides, None, grad_loss_weight=2.0).loss(view | {"bonus": bonus})[0]
    torch.testing.assert_close(elements, torch.tensor([0.25 + 0.25 + 0.5, 1.0 + 1.0 + 0.5]))
    with pytest.raises(ConfigError, match=r"intrinsic.sides: symmetry.action exchanges no numbers"):
        Sides(spaces, Mirror(spaces, observation=None, action="same"))


def test_mirrors_come_before_normalizers():
    adaptors = arrange({"mirrored": Mirrored(Mirror(LEGS, **SIGNED), None), "n": rlrun.memory.Cast("observation")})
    assert isinstance(adaptors[0], Mirrored)
