"""Command lines of users: their configs are those of the commit before Hydra composed them, by digest."""

import hashlib
import json
from pathlib import Path

import pytest

from rlrun.config.interpolation import plain

HEADER = "# @package _global_\n"
OWN = {  # files of a user's project
    "conf/network/big.yaml": f"{HEADER}algorithm: {{lr: 0.25}}\n",
    "conf/network/small.yaml": f"{HEADER}algorithm: {{lr: 0.125}}\n",
    "conf/algorithm/nested.yaml": f"{HEADER}defaults: [/rlrun/algorithm/dqn, /network: big, _self_]\n",
    "conf/algorithm/mine.yaml": f"{HEADER}defaults: [/rlrun/algorithm/sac, _self_]\nalgorithm: {{discount: 0.5}}\n",
    "conf/algorithm/sac.yaml": f"{HEADER}defaults: [/rlrun/algorithm/sac, _self_, override /memory: replay]\n"
    "algorithm: {hidden: [8]}\n",
    "conf/env/mine.yaml": "defaults: [gym]\nid: A-v0\nkwargs: {a: 012, b: 1e-3, c: '012', d: 1_000, e: 12:30}\n",
    "conf/memory/mine.yaml": "defaults: [/rlrun/memory/replay, _self_]\nlength: 5\n",
    "conf/memory/prioritized.yaml": "defaults: [/rlrun/memory/prioritized, _self_]\nlength: 6\n",
    "conf/with/wide.yaml": f"{HEADER}defaults: [/network: big]\n",
    "conf/with/both.yaml": f"{HEADER}defaults: [/with/rnd, _self_]\nalgorithm: {{discount: 0.25}}\n",
    "conf/with/wrapped.yaml": f"{HEADER}env: {{wrappers: [{{_target_: parts.Wrap, size: 1}}]}}\n",
    "conf/preset/mine.yaml": f"{HEADER}defaults: [/network: big, override /algorithm: dqn, override /env: pendulum]\n",
    "conf/preset/dqn_pendulum.yaml": f"{HEADER}defaults: [override /algorithm: dqn]\nseed: 9\n",
    "elsewhere/conf/env/pendulum.yaml": "defaults: [gym, _self_]\nid: First-v0\n",
    "conf/train.yaml": "defaults: [/rlrun/train, _self_]\nseed: 5\nstop: {env_steps: 77}\n",
}
DIGESTS = json.loads((Path(__file__).parent / "command_lines.json").read_text())


def digest(config):
    return hashlib.sha256(json.dumps(plain(config), sort_keys=True, default=str).encode()).hexdigest()[:16]


@pytest.mark.parametrize("line", DIGESTS)
def test_a_command_line_has_the_config_that_it_had(line, compose, write, tmp_path):
    whose, *overrides = line.split(" | ")
    for path, text in OWN.items() if whose != "packaged" else ():
        write(path, text)
    folder = tmp_path / "elsewhere" / "conf" if whose == "elsewhere" else None
    composed = compose(*overrides, config_dir=folder, check=False)
    assert [digest(composed.config), composed.preset] == DIGESTS[line], composed.config
