"""Targets over windows of steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun import ops
from rlrun.callbacks import LambdaReturn
from rlrun.errors import ConfigError
from rlrun.memory import Table, Uniform

STEPS = 4
FLAG = {"dtype": "bool"}
COLUMNS = {"observation": {}, "reward": {}, "terminated": FLAG, "truncated": FLAG}
NEVER = torch.zeros(1, STEPS, dtype=torch.bool)


def at(*steps: int) -> torch.Tensor:
    return torch.isin(torch.arange(STEPS), torch.tensor(steps)).unsqueeze(0)


def one_step(reward: float = 3.0, value: float = 2.0, terminated: torch.Tensor = NEVER) -> dict[str, torch.Tensor]:
    """Values, rewards and discount of the worked numbers: V = 2, r = 3, γ = 0.9."""
    rewards, values = torch.full((1, STEPS), reward), torch.full((1, STEPS), value)
    target = ops.one_step_return(rewards, values, terminated=terminated, discount=0.9)
    return {"q_target": target, "reward": rewards, "terminated": terminated}


def longer(given: dict[str, torch.Tensor], lambda_: float = 2 / 3, **more: torch.Tensor) -> list[float]:
    target = LambdaReturn(lambda_=lambda_, discount=0.9)
    targets = target.begin_batch(**{"truncated": NEVER, **given, **more})["q_target"]
    return [round(value, 5) for value in targets.flatten().tolist()]


def test_worked_numbers():
    assert longer(one_step()) == [8.0928, 7.488, 6.48, 4.8]
    assert longer(one_step(), truncated=at(2)) == [7.488, 6.48, 4.8, 4.8]
    assert longer(one_step(terminated=at(1))) == [5.4, 3.0, 6.48, 4.8]
    assert longer(one_step(), 0.0) == [4.8] * 4
    assert longer(one_step(), 1.0) == [11.6292, 9.588, 7.32, 4.8]  # the last: 3 + 0.9 · 2


def test_what_is_repeated_behind_an_episode_does_not_count():
    assert longer(one_step(), valid=at(0, 1)) == [6.48, 4.8, 4.8, 4.8]
    assert longer(one_step(), valid=at(0, 1, 2, 3)) == [8.0928, 7.488, 6.48, 4.8]


def test_the_batchs_discount_goes_before_and_rewards_may_have_dimensions():
    assert longer(one_step(), discount=torch.full((1, STEPS), 0.9)) == [8.0928, 7.488, 6.48, 4.8]
    single, doubled = one_step(), one_step(6.0, 4.0)
    both = {name: torch.stack((single[name], doubled[name]), -1) for name in ("q_target", "reward")}
    value = LambdaReturn(lambda_=2 / 3, discount=0.9).begin_batch(**both, terminated=NEVER, truncated=NEVER)["q_target"]
    torch.testing.assert_close(value[..., 1], 2.0 * value[..., 0])
    assert round(value[0, 0, 0].item(), 4) == 8.0928


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r"td_lambda\.lambda: wanted a number from 0 to 1, got 1\.5"):
        LambdaReturn(lambda_=1.5, discount=0.9)
    with pytest.raises(ConfigError, match=r"algorithm\.n_step=1, not 3"):
        LambdaReturn(lambda_=0.5, discount=0.9, n_step=3)
    flat = {name: value[0] for name, value in one_step().items()}
    with pytest.raises(ConfigError, match=r"td_lambda\.length must be at least 2"):
        longer(flat, truncated=NEVER[0])
    several = {**one_step(), "q_target": torch.zeros(1, STEPS, 5)}
    with pytest.raises(ConfigError, match="mixes means of returns, and these critics tell more"):
        longer(several)


@pytest.mark.parametrize(("lambda_", "length"), [(0.9, 4), (0.5, 16)])
def test_one_state_has_its_known_value(lambda_, length):
    """Reward 1, and an end with probability 0.05 after each step."""
    table = Table(length=2000, columns=COLUMNS, short="pad", sampler=Uniform(seed=2))
    ends = np.random.default_rng(5).random(1990) < 0.05
    for end in ends.tolist():
        table.add(None, {"observation": [0.0], "reward": [1.0], "terminated": [end], "truncated": [False]})
        if end:
            table.close(None, [0.0])
    longer, value, values = LambdaReturn(lambda_=lambda_, discount=0.9), torch.zeros(()), []
    for _ in range(60):
        batch = table.sample(2000, length)
        q_target = 1.0 + 0.9 * value * ~batch["terminated"]
        columns = {name: batch[name] for name in ("reward", "terminated", "truncated", "valid")}
        targets = longer.begin_batch(q_target, **columns)["q_target"]
        value = (batch["weight"] * targets).sum() / batch["weight"].sum()
        values.append(float(value))
    assert np.mean(values[20:]) == pytest.approx(1.0 / (1.0 - 0.9 * (1.0 - ends.mean())), rel=0.02)
