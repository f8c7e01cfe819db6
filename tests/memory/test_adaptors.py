"""Adaptors against numbers worked by hand."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces
from rlrun.memory import Cast, NStep, Rename, ReturnNormalize, RewardNormalize, Scale, Table
from rlrun.memory.adaptors.adaptor import PerStep, Select, Untransformed, arrange, spared
from rlrun.memory.adaptors.transforms import (
    ImageScale,
    RewardClip,
    RewardFunction,
    RewardScale,
    RewardShift,
    WeighRewards,
)
from rlrun.nn import Rewards
from rlrun.nn.normalizer import Normalizer, ReturnNormalizer

from .tables import add_steps

SPACES = Spaces(Box((1,), np.zeros(1), np.ones(1)), Discrete(2))
REWARD_CHAIN = [RewardClip(-1, 1), RewardScale(0.5), RewardShift(1.0), RewardFunction(torch.neg)]


def table_of(
    *rewards: float, adaptors: Sequence[Any] | Mapping[str, Any], end: str | None = "terminated", **settings: Any
) -> Table:
    """Return a table with one episode; observation i is [i]. `end`: terminated, truncated, or None for an open one."""
    table = Table(length=20, spaces=SPACES, adaptors=adaptors, **settings)
    last = [[len(rewards)]] if end else None
    return add_steps(
        table, len(rewards), lambda i: {"observation": [[i]], "action": [0], "reward": [rewards[i]]}, end=end, last=last
    )


def by_start(table: Table, name: str) -> list[float]:
    """Return a column of the transitions in the order of their observations."""
    batch = table.sample(300)
    value = batch[name].flatten()
    return [value[batch["observation"].flatten() == i][0].tolist() for i in range(len(table))]


def nested_batch() -> dict[str, Any]:
    """Return a batch of windows [2, 3] with a nested observation and a reward of two dimensions."""
    observation = {"arm": {"angle": torch.ones(2, 3, 4)}, "camera": torch.full((2, 3, 5, 5), 255, dtype=torch.uint8)}
    return {
        "observation": observation,
        "next_observation": copy.deepcopy(observation),
        "reward": torch.tensor([[[2.0, -4.0]] * 3] * 2),
    }


@pytest.mark.parametrize(
    ("end", "steps", "reward", "successor", "discount"),
    [
        # 1+2/2+4/4, 2+4/2+8/4, 4+8/2, 8
        ("terminated", 3, [3.0, 6.0, 8.0, 8.0], [3, 4, 4, 4], [0.125, 0.125, 0.25, 0.5]),
        ("truncated", 3, [3.0, 6.0, 8.0, 8.0], [3, 4, 4, 4], [0.125, 0.125, 0.25, 0.5]),
        ("terminated", 1, [1.0, 2.0, 4.0, 8.0], [1, 2, 3, 4], [0.5] * 4),
        (None, 2, [2.0, 4.0, 4.0], [2, 3, 3], [0.25, 0.25, 0.5]),  # the last reward waits for its next observation
    ],
)
def test_horizon_shortens_before_the_end(end: Any, steps: int, reward: Any, successor: Any, discount: Any) -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=steps, discount=0.5)], end=end)
    assert by_start(table, "reward") == reward
    assert by_start(table, "next_observation") == successor
    assert by_start(table, "discount") == discount
    for name in ("terminated", "truncated"):
        ends = [following == 4 for following in successor] if name == end else [False] * len(successor)
        assert by_start(table, name) == ends
    assert table.sample(3, 2)["discount"].shape == (3, 2)


def test_steps_work_on_windows_too() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=2, discount=0.5)])
    batch = table.sample(40, 3)
    first = batch["reward"][batch["observation"][:, 0, 0] == 1][0]
    assert first.tolist() == [4.0, 8.0, 8.0]
    assert batch["next_observation"].shape == (40, 3, 1)


@pytest.mark.parametrize("discount", [0.5, [0.5, 0.25]])
def test_reward_dimensions_are_summed_separately(discount) -> None:
    adaptors = [NStep(steps=2, discount=discount), WeighRewards([1.0, 1.0], apart=Rewards([1.0, 1.0]))]
    table = Table(length=20, spaces=Spaces(SPACES.observation, SPACES.action, rewards=2), adaptors=adaptors)
    rewards = [[2.0**i, 10.0 * 2.0**i] for i in range(3)]
    add_steps(table, 3, lambda i: {"observation": [[i]], "action": [0], "reward": [rewards[i]]}, last=[[3]])
    batch = table.sample(60)
    first, last = (int((batch["observation"] == i).nonzero()[0, 0]) for i in (0, 2))
    assert batch["reward"][first].tolist() == [2.0, 10.0 + np.broadcast_to(discount, 2)[1] * 20.0]
    assert batch["discount"][first].tolist() == np.square(discount).tolist()
    assert batch["reward"][last].tolist() == [4.0, 40.0]
    one_step = NStep(steps=1, discount=discount)(batch, batch.parts[0][1])["discount"]
    assert one_step[0].tolist() == discount
    assert one_step.shape == batch["discount"].shape
    assert table.sample(4, 2)["reward"].shape == (4, 2, 2)


class EndsAt:
    """Pretend that episodes terminate where the observation reaches a number."""

    provides = ("terminated",)
    removes = replaces = ()
    tier = 1

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, batch, rows):
        rows.through("terminated", lambda name, value, slots: rows.stored("observation", slots)[..., 0] >= self.number)
        return batch | {"terminated": batch["observation"][..., 0] >= self.number}


def test_sum_stops_at_relabelled_ends() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=3, discount=0.5), EndsAt(1)])
    assert by_start(table, "reward") == [2.0, 2.0, 4.0, 8.0]  # the first looks one step ahead, the others end at once
    assert by_start(table, "next_observation") == [2, 2, 3, 4]
    assert by_start(table, "terminated") == [True] * 4


def test_rewards_change_before_sums() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=3, discount=0.5), *REWARD_CHAIN])
    assert by_start(table, "reward") == [-2.625, -2.625, -2.25, -1.5]  # each step's is -(1 / 2 + 1)


def test_one_tier_keeps_the_config_order() -> None:
    there = table_of(4.0, adaptors={"shift": RewardShift(1.0), "n_step": None, "scale": RewardScale(2.0)})
    back = table_of(4.0, adaptors={"scale": RewardScale(2.0), "shift": RewardShift(1.0)})
    assert (by_start(there, "reward"), by_start(back, "reward")) == ([10.0], [9.0])


def test_adaptors_follow_one_another() -> None:
    adaptors = [
        Rename({"reward": "gain"}),
        NStep(steps=2, discount=0.5),
        Scale("reward", factor=10.0),
        Scale("discount", factor=2.0),
        Cast("terminated"),
    ]
    table = table_of(1.0, 2.0, adaptors=adaptors)
    assert by_start(table, "gain") == [20.0, 20.0]
    assert by_start(table, "discount") == [0.5, 1.0]
    assert by_start(table, "terminated") == [1.0, 1.0]
    assert set(table.sample(2)) == set(table.names())
    assert "reward" not in table.names()


@pytest.mark.parametrize(
    ("first", "on_policy", "undone"),
    [
        (lambda: RewardScale(0.1), True, True),
        (lambda: RewardNormalize(Normalizer([], form="rms")), True, True),
        (lambda: RewardNormalize(Normalizer([], form="centered")), True, False),  # the mean is not put back
        (RewardClip, True, False),
        (lambda: RewardScale(0.1), False, False),  # statistics are of rewards as they enter the memory
    ],
)
def test_undone_adaptors_are_warned_about(first, on_policy, undone, caplog) -> None:
    last = ReturnNormalize(ReturnNormalizer(discount=0.9, num_envs=1))
    arrange({"last": last, "none": None, "first": first()}, on_policy=on_policy)
    wanted = "memory.adaptors.first is undone by last, which .*; memory.adaptors.last=null keeps"
    assert bool(re.search(wanted, caplog.text)) == undone == bool(caplog.records)


def test_only_read_columns_are_fetched() -> None:
    n_step = NStep(steps=2, discount=0.9)
    assert spared([n_step]) == {"reward", "next_observation", "terminated", "truncated"}
    assert spared([RewardClip(), n_step]) == {"next_observation", "terminated", "truncated"}
    assert spared([Untransformed(["truncated"]), n_step]) == {"reward", "next_observation", "terminated"}
    assert spared([NStep(steps=1, discount=0.9)]) == set()


POSITION = Composite({"position": Box((), np.zeros(()), np.ones(()))})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (lambda adaptor=adaptor: table_of(1.0, adaptors=[adaptor]), ConfigError, message)
            for adaptor, message in (
                (Cast("rewards"), r"Cast reads 'rewards'; .*did you mean 'reward'"),
                (Scale("observation.camera", factor=2), "reads 'observation.cam"),
                (Rename({"gain": "reward"}), "Rename reads 'gain'"),
            )
        ),
        (
            lambda: Table(length=5, spaces=Spaces(POSITION, Discrete(2)), adaptors=[Select("positon")]),
            ConfigError,
            r"'observation.positon'; .* \(did you mean 'observation.position'\?\)",
        ),
        (
            lambda: arrange({"n_step": NStep(steps=2, discount=0.9), "again": NStep(steps=3, discount=0.9)}),
            ConfigError,
            r"memory.adaptors.again: NStep would undo n_step",
        ),
        (lambda: NStep(steps=0, discount=0.9), ConfigError, "at least 1, not 0"),
        (lambda: NStep(steps=2, discount=0.9)({"reward": torch.zeros(3)}, None), RlrunError, "is not of one"),
        (
            lambda: ImageScale(leaves=["arm"])(nested_batch(), None),
            RlrunError,
            "wanted pixels of uint8, got torch.float32",
        ),
        (lambda: Cast("reward", dtype="flaot32"), ConfigError, "'flaot32' is not a torch dtype"),
        (lambda: RewardClip(1.0, -1.0), ConfigError, r"lowest 1.0 is not below highest -1.0"),
    ],
)
def test_wrong_uses_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


PER_STEP: list[PerStep] = [
    *REWARD_CHAIN,
    Cast("reward", dtype="float64"),
    Scale("observation.arm", factor=3.0),
    ImageScale(),
    ImageScale(0, 1, leaves=["camera"]),
    RewardNormalize(Normalizer([], form="rms", clip=0.1)),
]


@pytest.mark.parametrize("adaptor", PER_STEP, ids=lambda adaptor: type(adaptor).__name__)
def test_adaptors_keep_shapes_and_inputs(adaptor: PerStep) -> None:
    batch = nested_batch()
    before = copy.deepcopy(batch)
    adapted = adaptor(batch, None)
    assert adapted["reward"].shape == (2, 3, 2)
    assert adapted["next_observation"]["camera"].shape == (2, 3, 5, 5)
    assert str(batch) == str(before)
    assert str(adapted) != str(before)


def test_values_worked_by_hand() -> None:
    batch = nested_batch()
    for adaptor in REWARD_CHAIN:
        batch = adaptor(batch, None)
    assert batch["reward"][0, 0].tolist() == [-1.5, -0.5]
    half = Cast("observation", dtype="float16")(nested_batch(), None)
    assert half["observation"]["arm"]["angle"].dtype == half["next_observation"]["camera"].dtype == torch.float16
    scaled = Scale("observation.camera", factor=1 / 255)(nested_batch(), None)
    assert (scaled["observation"]["camera"] == 1.0).all()
    leaf = Scale("observation.arm.angle", factor=2.0)(nested_batch(), None)
    for name in ("observation", "next_observation"):
        assert float(leaf[name]["arm"]["angle"].mean()) == 2.0
        assert leaf[name]["camera"].dtype == torch.uint8
    pixels = {"observation": torch.tensor([[0, 51, 255]], dtype=torch.uint8)}
    assert ImageScale()(pixels, None)["observation"].tolist() == [pytest.approx([-1.0, -0.6, 1.0], abs=1e-6)]
    assert ImageScale(0, 2)(pixels, None)["observation"].tolist() == [pytest.approx([0.0, 0.4, 2.0], abs=1e-6)]
    assert ImageScale().preprocess(pixels["observation"]).equal(ImageScale()(pixels, None)["observation"])


def test_untransformed_keeps_what_was_stored() -> None:
    adaptors = [RewardClip(0, 1), NStep(steps=2, discount=0.5), Untransformed(["reward", "next_observation"])]
    table = table_of(4.0, 8.0, adaptors=adaptors)
    batch = table.sample(50)
    untransformed = batch["untransformed"]
    assert torch.equal(untransformed["reward"], 4 * 2 ** batch["observation"][:, 0])
    assert torch.equal(untransformed["next_observation"], batch["observation"] + 1)
    assert by_start(table, "reward") == [1.5, 1.0]
    assert "untransformed" in table.names()


def test_selected_leaves() -> None:
    batch = nested_batch()
    batch["observation"]["goal"] = batch["next_observation"]["goal"] = torch.zeros(2, 3, 1)
    leaf = Select("arm.angle")(batch, None)
    assert leaf["observation"].shape == leaf["next_observation"].shape == (2, 3, 4)
    several = Select(["arm.angle", "goal"])(batch, None)
    assert list(several["observation"]) == list(several["next_observation"]) == ["arm", "goal"]
    select = Select({"observation": "arm", "picture": "camera"})
    columns = select(batch, None)
    assert list(columns["observation"]) == ["angle"]
    assert columns["picture"].dtype == columns["next_picture"].dtype == torch.uint8
    assert set(columns) == {"reward", *select.provides}
    assert list(batch["observation"]) == ["arm", "camera", "goal"]


def test_selection_follows_n_step() -> None:
    space = Composite(dict.fromkeys("ab", POSITION.parts["position"]))
    adaptors = [Select({"goal": "b"}), NStep(steps=2, discount=1.0)]
    table = Table(length=20, spaces=Spaces(space, Discrete(2)), adaptors=adaptors)
    row = [{"observation": {"a": [i], "b": [10.0 * i]}, "action": [0], "reward": [i]} for i in range(6)]
    add_steps(table, 5, row.__getitem__, last=row[5]["observation"])
    batch = table.sample(40)
    first = batch["observation"]["a"] == 0
    assert batch["next_goal"][first][0].tolist() == 20.0
    assert set(batch) == set(table.names())


def test_emote_names_are_added_or_replace() -> None:
    batch = {"action": torch.zeros(2), "reward": torch.ones(2), "weight": torch.ones(2)}
    names = {"action": "actions", "reward": "rewards"}
    assert set(Rename(names)(batch, None)) == {"actions", "rewards", "weight"}
    assert set(Rename(names, keep=True)(batch, None)) == {*batch, "actions", "rewards"}
