"""Every algorithm that has a value learns one that is known exactly."""

import pytest
import torch
from tests.values import known

from rlrun.core import machine

CASES = {case.name: case for case in known.in_ci()}


@pytest.mark.parametrize("name", CASES)
def test_a_known_value_is_learned(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no repository, whose state every run would ask for
    has_bfloat16 = machine.has_bfloat16("cpu")
    monkeypatch.setattr("rlrun.nn.precision.has_bfloat16", lambda device: True)
    with torch.backends.mkldnn.flags(enabled=has_bfloat16):  # oneDNN computes in it with such instructions only
        result = known.learned(CASES[name], tmp_path / "run")
    assert result["error"] <= result["bar"], (result["values"], result["true"])


@pytest.mark.parametrize(("states", "ending"), [(1, "terminated"), (1, "truncated"), (2, "both")])
def test_values_are_those_of_long_sums(states, ending):
    env = known.Known(states, ending=ending)
    stays = 1.0 - env.ends
    for first, value in enumerate(env.value()):
        rewards = [known.REWARDS[states][(first + step) % states] for step in range(300)]
        assert value == pytest.approx(sum((known.DISCOUNT * stays) ** step * r for step, r in enumerate(rewards)))


def test_episodes_end_as_often_as_they_should():
    env = known.Known(ending="both")
    steps = episode_end = cut = 0
    for _ in range(known.EPISODES):
        env.reset()
        terminated = truncated = False
        while not (terminated or truncated):
            _, _, terminated, truncated, _ = env.step(0)
            steps, episode_end, cut = steps + 1, episode_end + terminated, cut + truncated
    assert episode_end / steps == pytest.approx(known.ENDS, abs=0.003)
    assert cut == pytest.approx(100 * 0.8**5, abs=1.0)
