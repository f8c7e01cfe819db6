"""Networks as particles by rlrun: python -m benchmarks.rivals.particles_rlrun WORKS.

WORKS: a JSON file, a list of works with `overrides`, `run_dir` and `rows`, an .npz with `places` [P, 1]. Prints a JSON
object with the results: the outputs of all particles at the places, and the processor seconds of training.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rlrun


def trained(work: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the outputs [N, P] with the seconds."""
    started = time.process_time()
    result = rlrun.train([*work["overrides"], "evaluation.every=0", "logger=[]"], run_dir=work["run_dir"])
    seconds = time.process_time() - started
    votes: Any = result.trainer.callbacks["validation"].network  # type: ignore[attr-defined]
    with torch.no_grad():
        outputs = votes.members(torch.from_numpy(np.load(work["rows"])["places"])).squeeze(-1)
    return {"outputs": outputs.tolist(), "seconds": seconds}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"results": [trained(work) for work in json.loads(Path(sys.argv[1]).read_text())]}))
