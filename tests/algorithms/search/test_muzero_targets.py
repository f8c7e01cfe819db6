"""What MuZero's latents learn to predict: arrays of two tracks of episodes, known by hand."""

import numpy as np
import pytest
import torch

from rlrun.algorithms.search.muzero import targets
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import Table, Trajectory

STEPS, DISCOUNT = 4, 0.5
TRACKS = ("FMMMLFMMLFMMMM", "FMMMMMLFMMMMLF")
VALUES = {  # of each position, by what is paid, rewards of a return, and whether rewards are predicted
    ("all", 2, True): (
        [2.25, 3.875, 5, 4, 0, 10.375, 11, 8, 0, 16.875, 18.5, 20.125, 16.25, 6.5],
        [2.25, 3.875, 5.5, 7.125, 8, 6, 0, 13.625, 15.25, 16.875, 17, 12, 0, 6.5],
    ),
    ("last", 2, False): (
        [0.25, 0.375, 2, 4, 4, 0.875, 4, 8, 8, 1.375, 1.5, 1.625, 3.25, 6.5],
        [0.25, 0.375, 0.5, 0.625, 3, 6, 6, 1.125, 1.25, 1.375, 6, 12, 12, 6.5],
    ),
    ("last", -1, True): (
        [0.5, 1, 2, 4, 0, 2, 4, 8, 0, 0.40625, 0.8125, 1.625, 3.25, 3.25],
        [0.1875, 0.375, 0.75, 1.5, 3, 6, 0, 0.75, 1.5, 3, 6, 12, 0, 3.25],
    ),
    ("last", -1, False): (
        [0.5, 1, 2, 4, 4, 2, 4, 8, 8, 0.40625, 0.8125, 1.625, 3.25, 3.25],
        [0.1875, 0.375, 0.75, 1.5, 3, 6, 6, 0.75, 1.5, 3, 6, 12, 12, 3.25],
    ),
}
REANALYZED = (  # values and policies are twice those that were stored
    [0.5, 0.75, 2, 4, 0, 1.75, 4, 8, 0, 2.75, 3, 3.25, 6.5, 13],
    [0.5, 0.75, 1, 1.25, 3, 6, 0, 2.25, 2.5, 2.75, 6, 12, 0, 13],
)
PARTIAL = ({9, 10, 11, 12, 13}, {0, 1, 7, 13})  # starts from which four steps reach no end


def end_of(track, start):
    end = start
    while end + 1 < len(track) and track[end] != "L":
        end += 1
    return end


def known(track, start, length, paid, factor=1.0):
    """Return what is known of positions from a start on, up to the end of its episode, and the last of these."""
    end = end_of(track, start)
    here = [min(start + number, end) for number in range(length)]
    reward = [float(at) if paid == "all" or track[at] == "L" else 0.0 for at in here]
    discount = [0.0 if track[at] == "L" else DISCOUNT for at in here]
    value = [0.5 * factor * at for at in here]
    policy = [[factor * at, factor * at + 1.0] for at in here[: STEPS + 1]]
    return (*map(torch.tensor, (reward, discount, value, policy)), torch.tensor(end - start))


def of_starts(paid, td_steps, predicted, factor=1.0):
    """Yield track, start and targets, of single starts."""
    for number, track in enumerate(TRACKS):
        for start in range(len(track)):
            rows = known(track, start, 14, paid, factor)
            rows = (*rows[:-1], rows[-1].clamp(max=13))
            yield number, start, targets(*rows, td_steps=td_steps, rewards=predicted)


@pytest.mark.parametrize(("paid", "td_steps", "predicted"), VALUES)
def test_values_are_those_of_the_position_or_of_the_end(paid, td_steps, predicted):
    for number, start, wanted in of_starts(paid, td_steps, predicted):
        values, track = VALUES[paid, td_steps, predicted][number], TRACKS[number]
        here = [min(start + step, end_of(track, start)) for step in range(STEPS + 1)]
        assert wanted.value.tolist() == [values[at] for at in here], (number, start)


def test_values_of_new_searches_take_the_place_of_stored_ones():
    for number, start, wanted in of_starts("last", 2, True, factor=2.0):
        here = [min(start + step, end_of(TRACKS[number], start)) for step in range(STEPS + 1)]
        assert wanted.value.tolist() == [REANALYZED[number][at] for at in here]
        assert wanted.policy.tolist() == [[2.0 * at, 2.0 * at + 1.0] for at in here]


def test_rewards_policies_and_flags():
    for number, start, wanted in of_starts("all", 2, True):
        track, end = TRACKS[number], end_of(TRACKS[number], start)
        steps = range(start, start + STEPS + 1)
        assert wanted.reward.tolist() == [float(at) if at <= end else 0.0 for at in steps]
        assert wanted.policy[:, 0].tolist() == [min(at, end) for at in steps]
        assert wanted.ended.tolist() == [at >= end and track[end] == "L" for at in steps]
        assert wanted.beyond.tolist() == [at > end for at in steps]
        assert bool(wanted.partial) == (start in PARTIAL[number])


def test_values_of_the_other_player_count_with_a_minus():
    reward, value = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([0.5, 0.6, 0.7, 0.8])
    policy, end = torch.ones(4, 2), torch.tensor(3)
    over = torch.tensor([0.0, -0.5, -0.5, 0.0])
    assert targets(reward, over, value, policy, end, td_steps=-1).value.tolist() == [0.25, -0.5, 1.0, 0.0]
    final = targets(reward, over, value, policy, end, td_steps=-1, rewards=False, turns=True).value
    assert final.tolist() == [0.25, -0.5, 1.0, -1.0]
    open_end = torch.tensor([0.0, -0.5, -0.5, -0.5])
    returns = targets(torch.zeros(4), open_end, value, policy, end, td_steps=1).value
    torch.testing.assert_close(returns, torch.tensor([-0.3, -0.35, -0.4, 0.8]))


SPACES = Spaces(Box((1,), np.full(1, -1e3), np.full(1, 1e3)), Discrete(2))


def stored(td_steps, paid="all", **seen):
    """Return a table of the tracks: observations, values, actions and rewards that lead there are known by position."""
    columns = {"search_policy": {"shape": 2}, "search_value": {}}
    adaptors = [Trajectory(steps=STEPS, td_steps=td_steps, **seen)]
    table = Table(spaces=SPACES, num_envs=2, length=100, adaptors=adaptors, columns=columns)
    for env, track in enumerate(TRACKS):
        for position, kind in enumerate(track):
            here = np.full((1, 1), 100 * env + position, np.float32)
            if kind == "L":
                table.close(np.array([env]), here)
                continue
            ends = track[position + 1 :][:1] == "L"
            row = {
                "observation": here,
                "action": np.array([position % 2]),
                "reward": np.array([position + 1.0 if paid == "all" or ends else 0.0], np.float32),
                "terminated": np.array([ends]),
                "truncated": np.array([False]),
                "search_policy": np.array([[position, position + 1.0]], np.float32),
                "search_value": np.array([0.5 * position], np.float32),
            }
            table.add(np.array([env]), row)
    return table


@pytest.mark.parametrize(("paid", "td_steps", "predicted"), VALUES)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_windows_of_a_table_have_the_values_of_their_rows(paid, td_steps, predicted, length):
    batch = stored(td_steps, paid, searched=1.0).sample(100, length)
    trajectory, first = batch["trajectory"], batch["observation"].reshape(100, -1)
    discount = torch.where(trajectory["terminated"], 0.0, DISCOUNT)
    known = (trajectory[name].flatten(0, int(length > 1)) for name in ("reward", "value", "policy", "end"))
    reward, value, policy, end = known
    discount = discount.flatten(0, int(length > 1))
    wanted = targets(reward, discount, value, policy, end, td_steps=td_steps, rewards=predicted)
    for row, here in enumerate(first.flatten().int().tolist()):
        number, start = divmod(here, 100)
        values, last = VALUES[paid, td_steps, predicted][number], end_of(TRACKS[number], start)
        at = [min(start + step, last) for step in range(STEPS + 1)]
        assert wanted.value[row].tolist() == [values[place] for place in at]
        assert wanted.ended[row].tolist() == [start + step >= last and TRACKS[number][last] == "L" for step in range(5)]
        assert wanted.beyond[row].tolist() == [start + step > last for step in range(5)]
        assert bool(wanted.partial[row]) == (start in PARTIAL[number])
        seen = batch["later"].flatten(0, int(length > 1))[row].flatten() % 100
        assert seen[: STEPS + 1].tolist() == at
        assert seen[-1] == start + int(end[row])
        assert trajectory["action"].flatten(0, int(length > 1))[row, 0] == start % 2


def test_only_observations_that_are_asked_for_are_looked_up():
    table = stored(2, compared=0.5, fresh=True, searched=True)
    batch = table.sample(20)
    assert batch["later"].shape == (20, 4 + 5 + 7 + 1, 1)
    positions = [*range(1, 5), *range(2, 7), *range(7), 6]
    for here, seen in zip(batch["observation"][:, 0].int().tolist(), batch["later"][..., 0].tolist(), strict=True):
        number, start = divmod(here, 100)
        assert seen == [100 * number + min(start + step, end_of(TRACKS[number], start)) for step in positions]
    assert stored(2).sample(8)["later"].shape == (8, 1, 1)


def test_actions_behind_the_end_may_be_those_of_other_rows():
    plain, random = (stored(2, random_beyond=random).sample(200)["trajectory"] for random in (False, True))
    within = torch.arange(1, STEPS + 1) <= plain["end"].unsqueeze(-1)
    assert torch.equal(plain["action"][within], random["action"][within])
    beyond = random["action"][~within].float()
    assert 0.3 < beyond.mean() < 0.7


def test_the_first_reward_is_0_where_an_episode_begins():
    batch = stored(2).sample(200)
    start = (batch["observation"][:, 0] % 100).int()
    first = batch["trajectory"]["reward"][:, 0]
    begins = torch.tensor([TRACKS[int(here) // 100][int(here) % 100] == "F" for here in batch["observation"][:, 0]])
    assert torch.equal(first, torch.where(begins, 0.0, start.float()))


def test_a_number_of_rewards_is_refused_in_one_line():
    for wrong in (0, -2, None, "abc", 1.5):
        with pytest.raises(ConfigError, match=r"^td_steps.*: wanted a whole number from 1, or -1, got"):
            Trajectory(steps=1, td_steps=[wrong, 5])
        with pytest.raises(ConfigError, match=r"^td_steps.*: wanted a whole number from 1, got"):
            Trajectory(steps=1, td_steps=[5, wrong])
