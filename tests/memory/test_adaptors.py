"""Adaptors against numbers worked by hand."""

from __future__ import annotations

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
from rlrun.memory.adaptors import PerStep, Select, TerminalOverride, Untransformed, arrange, spared
from rlrun.memory.transforms import ImageScale, RewardClip, RewardFunction, RewardScale, RewardShift
from rlrun.nn.normalizer import Normalizer, ReturnNormalizer

SPACES = Spaces(Box((1,), np.zeros(1), np.ones(1)), Discrete(2))
REWARD_CHAIN = [RewardClip(-1, 1), RewardScale(0.5), RewardShift(1.0), RewardFunction(torch.neg)]


def table_of(
    *rewards: float, adaptors: Sequence[Any] | Mapping[str, Any], end: str | None = "terminated", **settings: Any
) -> Table:
    """Return a table with one episode; observation i is [i]. `end`: terminated, truncated, or None for an open one."""
    table = Table(length=20, spaces=SPACES, adaptors=adaptors, **settings)
    for i, reward in enumerate(rewards):
        last = i == len(rewards) - 1
        episode_end = {"terminated": [last and end == "terminated"], "truncated": [last and end == "truncated"]}
        table.add(None, {"observation": [[i]], "action": [0], "reward": [reward]} | episode_end)
    if end:
        table.close(None, [[len(rewards)]])
    return table


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


# -- n-step ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_horizon_shortens_before_the_end(end: str) -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=3, discount=0.5)], end=end)
    assert by_start(table, "reward") == [3.0, 6.0, 8.0, 8.0]  # 1+2/2+4/4, 2+4/2+8/4, 4+8/2, 8
    assert by_start(table, "next_observation") == [3, 4, 4, 4]
    assert by_start(table, "discount") == [0.125, 0.125, 0.25, 0.5]
    assert by_start(table, end) == [False, True, True, True]
    other_end = "truncated" if end == "terminated" else "terminated"
    assert by_start(table, other_end) == [False] * 4


def test_open_episode_is_used_as_far_as_stored() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=2, discount=0.5)], end=None)
    assert by_start(table, "reward") == [2.0, 4.0, 4.0]  # the last reward waits for its next observation
    assert by_start(table, "next_observation") == [2, 3, 3]
    assert by_start(table, "discount") == [0.25, 0.25, 0.5]


def test_steps_never_reach_another_episode_or_the_cursor() -> None:
    table = Table(length=12, num_envs=2, spaces=SPACES, adaptors=[NStep(steps=5, discount=1.0)])
    for i in range(100):
        episode_end = np.array([i % 4 == 3] * 2)
        table.add(
            None,
            {
                "observation": [[i], [i + 1000]],
                "action": [0, 0],
                "reward": [1.0, 1000.0],
                "terminated": episode_end,
                "truncated": ~episode_end,
            },
        )
        if episode_end[0]:
            table.close(None, [[i + 1], [i + 1001]])
        if i > 1:
            batch = table.sample(50)
            steps = (batch["next_observation"] - batch["observation"]).flatten()
            assert torch.equal(batch["reward"] / torch.where(batch["observation"].flatten() >= 1000, 1000, 1), steps)
            assert torch.equal(batch["observation"].flatten() // 4, (batch["next_observation"].flatten() - 1) // 4)


def test_steps_work_on_windows_too() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=2, discount=0.5)])
    batch = table.sample(40, 3)
    first = batch["reward"][batch["observation"][:, 0, 0] == 1][0]
    assert first.tolist() == [4.0, 8.0, 8.0]
    assert batch["next_observation"].shape == (40, 3, 1)


def test_rewards_of_several_dimensions_are_summed_one_by_one() -> None:
    columns = {"observation": {}, "reward": {"shape": [2]}, "terminated": {"dtype": "bool"}}
    table = Table(
        length=20, columns=columns | {"truncated": {"dtype": "bool"}}, adaptors=[NStep(steps=2, discount=0.5)]
    )
    for i, reward in enumerate([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]):
        table.add(None, {"observation": [i], "reward": [reward], "terminated": [False], "truncated": [False]})
    table.close(None, [3])
    batch = table.sample(60)
    assert batch["reward"][batch["observation"] == 0][0].tolist() == [2.0, 20.0]
    assert batch["reward"][batch["observation"] == 2][0].tolist() == [4.0, 40.0]
    assert table.sample(4, 2)["reward"].shape == (4, 2, 2)


def test_one_step_changes_nothing_but_adds_discount() -> None:
    table = table_of(1.0, 2.0, adaptors=[NStep(steps=1, discount=0.9)])
    assert by_start(table, "reward") == [1.0, 2.0]
    assert by_start(table, "next_observation") == [1.0, 2.0]
    assert by_start(table, "discount") == pytest.approx([0.9, 0.9])
    assert table.sample(3, 2)["discount"].shape == (3, 2)


def test_no_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        NStep(steps=0, discount=0.9)


def test_steps_without_a_table_are_refused() -> None:
    with pytest.raises(RlrunError, match="comes from none"):
        NStep(steps=2, discount=0.9)({"reward": torch.zeros(3)}, None)


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


def test_sum_stops_where_an_earlier_adaptor_lets_the_episode_end() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=3, discount=0.5), EndsAt(1)])
    assert by_start(table, "reward") == [2.0, 2.0, 4.0, 8.0]  # the first looks one step ahead, the others end at once
    assert by_start(table, "next_observation") == [2, 2, 3, 4]
    assert by_start(table, "terminated") == [True] * 4


# -- order -------------------------------------------------------------------------------------


def test_rewards_are_changed_before_they_are_summed_wherever_they_stand() -> None:
    table = table_of(1.0, 2.0, 4.0, 8.0, adaptors=[NStep(steps=3, discount=0.5), *REWARD_CHAIN])
    assert by_start(table, "reward") == [-2.625, -2.625, -2.25, -1.5]  # each step's is -(1 / 2 + 1)


def test_rewards_of_one_tier_change_in_the_order_of_the_config() -> None:
    there = table_of(4.0, adaptors={"shift": RewardShift(1.0), "scale": RewardScale(2.0)})
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


def test_entries_set_to_null_are_left_out() -> None:
    clip = RewardClip()
    assert arrange({"n_step": None, "clip": clip}) == (clip,)


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
def test_what_the_division_by_returns_undoes_is_told(first, on_policy, undone, caplog) -> None:
    last = ReturnNormalize(ReturnNormalizer(discount=0.9, num_envs=1))
    arrange({"last": last, "none": None, "first": first()}, on_policy=on_policy)
    wanted = "memory.adaptors.first is undone by last, which .*; memory.adaptors.last=null keeps"
    assert bool(re.search(wanted, caplog.text)) == undone == bool(caplog.records)


def test_two_of_a_kind_that_undo_one_another_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory.adaptors.again: NStep would undo n_step"):
        arrange({"n_step": NStep(steps=2, discount=0.9), "again": NStep(steps=3, discount=0.9)})


def test_only_what_somebody_reads_is_fetched() -> None:
    n_step = NStep(steps=2, discount=0.9)
    assert spared([n_step]) == {"reward", "next_observation", "terminated", "truncated"}
    assert spared([RewardClip(), n_step]) == {"next_observation", "terminated", "truncated"}
    assert spared([Untransformed(["truncated"]), n_step]) == {"reward", "next_observation", "terminated"}
    assert spared([NStep(steps=1, discount=0.9)]) == set()


@pytest.mark.parametrize(
    ("adaptor", "message"),
    [
        (Cast("rewards"), r"Cast reads 'rewards'; .* \(did you mean 'reward'\?\)"),
        (Scale("observation.camera", factor=2), r"Scale reads 'observation.camera'"),
        (Rename({"gain": "reward"}), r"Rename reads 'gain'"),
        (TerminalOverride("terminated", tag="interupted"), r"TerminalOverride reads 'interupted'"),
    ],
)
def test_names_that_nobody_provides_are_refused_when_the_table_is_built(adaptor: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table_of(1.0, adaptors=[adaptor])


# -- values ------------------------------------------------------------------------------------

PER_STEP: list[PerStep] = [
    *REWARD_CHAIN,
    Cast("reward", dtype="float64"),
    Scale("observation.arm", factor=3.0),
    ImageScale(),
    ImageScale(0, 1, leaves=["camera"]),
]


@pytest.mark.parametrize("adaptor", PER_STEP, ids=lambda adaptor: type(adaptor).__name__)
def test_windows_keep_their_shapes_and_given_tensors_their_numbers(adaptor: PerStep) -> None:
    batch = nested_batch()
    before = copy.deepcopy(batch)
    adapted = adaptor(batch, None)
    assert adapted["reward"].shape == (2, 3, 2)
    assert adapted["next_observation"]["camera"].shape == (2, 3, 5, 5)
    assert str(batch) == str(before)
    assert str(adapted) != str(before)


def test_rewards_of_several_dimensions_are_changed_in_each() -> None:
    batch = nested_batch()
    for adaptor in REWARD_CHAIN:
        batch = adaptor(batch, None)
    assert batch["reward"][0, 0].tolist() == [-1.5, -0.5]


def test_pixels_reach_both_ends_of_the_range() -> None:
    batch = {"observation": torch.tensor([[0, 51, 255]], dtype=torch.uint8)}
    assert ImageScale()(batch, None)["observation"].tolist() == [pytest.approx([-1.0, -0.6, 1.0], abs=1e-6)]
    assert ImageScale(0, 2)(batch, None)["observation"].tolist() == [pytest.approx([0.0, 0.4, 2.0], abs=1e-6)]


def test_only_chosen_leaves_are_scaled_in_both_observations() -> None:
    batch = Scale("observation.arm.angle", factor=2.0)(nested_batch(), None)
    for name in ("observation", "next_observation"):
        assert float(batch[name]["arm"]["angle"].mean()) == 2.0
        assert batch[name]["camera"].dtype == torch.uint8


def test_chosen_pixels_of_another_dtype_are_refused() -> None:
    with pytest.raises(RlrunError, match=r"wanted pixels of uint8, got torch.float32"):
        ImageScale(leaves=["arm"])(nested_batch(), None)


def test_agents_see_what_samples_are() -> None:
    scale, batch = ImageScale(), nested_batch()
    seen = scale.preprocess(batch["observation"])
    assert str(seen) == str(scale(batch, None)["observation"])


def test_scaled_image_becomes_floats() -> None:
    batch = {"observation": {"image": torch.full((2, 3), 255, dtype=torch.uint8)}}
    scaled = Scale("observation", factor=1 / 255)(batch, None)
    assert scaled["observation"]["image"].tolist() == [[1.0] * 3] * 2
    assert batch["observation"]["image"].dtype == torch.uint8


def test_cast_changes_the_dtype_of_every_leaf() -> None:
    batch = Cast("observation", dtype="float16")(nested_batch(), None)
    assert batch["observation"]["arm"]["angle"].dtype == batch["next_observation"]["camera"].dtype == torch.float16


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="'flaot32' is not a torch dtype"):
        Cast("reward", dtype="flaot32")


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lowest 1.0 is not below highest -1.0"):
        RewardClip(1.0, -1.0)


# -- shape and names ---------------------------------------------------------------------------


def test_untransformed_keeps_what_was_stored() -> None:
    adaptors = [RewardClip(0, 1), NStep(steps=2, discount=0.5), Untransformed(["reward", "next_observation"])]
    table = table_of(4.0, 8.0, adaptors=adaptors)
    batch = table.sample(50)
    untransformed = batch["untransformed"]
    assert torch.equal(untransformed["reward"], 4 * 2 ** batch["observation"][:, 0])
    assert torch.equal(untransformed["next_observation"], batch["observation"] + 1)
    assert by_start(table, "reward") == [1.5, 1.0]
    assert "untransformed" in table.names()


def test_a_leaf_becomes_the_observation() -> None:
    batch = Select("arm.angle")(nested_batch(), None)
    assert batch["observation"].shape == batch["next_observation"].shape == (2, 3, 4)


def test_chosen_leaves_stay_in_the_observation() -> None:
    batch = nested_batch()
    batch["observation"]["goal"] = batch["next_observation"]["goal"] = torch.zeros(2, 3, 1)
    adapted = Select(["arm.angle", "goal"])(batch, None)
    assert list(adapted["observation"]) == list(adapted["next_observation"]) == ["arm", "goal"]
    assert list(batch["observation"]) == ["arm", "camera", "goal"]


def test_leaves_become_columns_of_their_own() -> None:
    select = Select({"observation": "arm", "picture": "camera"})
    batch = select(nested_batch(), None)
    assert list(batch["observation"]) == ["angle"]
    assert batch["picture"].dtype == batch["next_picture"].dtype == torch.uint8
    assert set(batch) == {"reward", *select.provides}


def test_selection_sees_the_observation_after_several_steps() -> None:
    space = Composite({"a": Box((), np.zeros(()), np.ones(())), "b": Box((), np.zeros(()), np.ones(()))})
    adaptors = [Select({"goal": "b"}), NStep(steps=2, discount=1.0)]
    table = Table(length=20, spaces=Spaces(space, Discrete(2)), adaptors=adaptors)
    for i in range(5):
        row = {"observation": {"a": [i], "b": [10 * i]}, "action": [0], "reward": [0.0]}
        table.add(None, row | {"terminated": [False], "truncated": [False]})
    batch = table.sample(40)
    first = batch["observation"]["a"] == 0
    assert batch["next_goal"][first][0].tolist() == 20.0
    assert set(batch) == set(table.names())


def test_leaf_that_is_not_there_is_refused() -> None:
    space = Composite({"position": Box((), np.zeros(()), np.ones(()))})
    with pytest.raises(ConfigError, match=r"'observation.positon'; .* \(did you mean 'observation.position'\?\)"):
        Table(length=5, spaces=Spaces(space, Discrete(2)), adaptors=[Select("positon")])


@pytest.mark.parametrize(("tag", "expected"), [(1.0, [1.0, 1.0, 1.0]), (0.0, [1.0, 1.0, 0.0])])
def test_value_goes_on_after_an_interrupted_episode_only(tag: float, expected: list[float]) -> None:
    batch = {"continues": torch.tensor([[1.0, 1.0, 0.0]]), "interrupted": torch.tensor([tag])}
    adapted = TerminalOverride("continues", tag="interrupted")(batch, None)
    assert adapted["continues"].tolist() == [expected]
    assert batch["continues"].tolist() == [[1.0, 1.0, 0.0]]


def test_override_answers_for_every_window_by_itself() -> None:
    batch = {"continues": torch.tensor([0.0, 0.0, 1.0]), "interrupted": torch.tensor([1, 0, 0])}
    assert TerminalOverride("continues", tag="interrupted")(batch, None)["continues"].tolist() == [1.0, 0.0, 1.0]


def test_override_may_leave_one_value_a_window() -> None:
    batch = {
        "continues": torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]),
        "interrupted": torch.tensor([True, False, False]),
    }
    adapted = TerminalOverride("continues", tag="interrupted", only_last=True)(batch, None)
    assert adapted["continues"].tolist() == [1.0, 0.0, 1.0]


def test_emote_names_stand_beside_or_in_place_of_ours() -> None:
    batch = {"action": torch.zeros(2), "reward": torch.ones(2), "weight": torch.ones(2)}
    assert set(Rename(preset="emote")(batch, None)) == {"actions", "rewards", "weight"}
    assert set(Rename(preset="emote", keep=True)(batch, None)) == {*batch, "actions", "rewards"}


def test_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"wanted one of emote, got 'emotes' \(did you mean 'emote'\?\)"):
        Rename(preset="emotes")
