"""The packaged files in a built wheel, as Hydra finds them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = "import os, sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
COMPOSE = """
import hydra
with hydra.initialize_config_dir(sys.argv[1], version_base="1.3"):
    config = hydra.compose("mine", ["algorithm=dqn", "env=cartpole"])
print(config.seed, config.env.id)
"""


def test_hydra_finds_the_files_of_a_wheel_as_a_package(tmp_path):
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(*tmp_path.glob("*.whl")) as wheel:
        wheel.extractall(tmp_path / "site")
    (tmp_path / "own").mkdir()
    text = "defaults: [train, _self_]\nseed: 4\nhydra: {searchpath: ['pkg://rlrun.conf']}\n"
    (tmp_path / "own" / "mine.yaml").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", f"import sys{COMPOSE}", str(tmp_path / "own")]
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert outcome.stdout == "4 CartPole-v1\n"
