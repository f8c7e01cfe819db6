"""Import modules and say what came of each: a process of its own, for a broken package can take its process along.

    python -P -m rlrun.health.probe torch numpy

One line of JSON a module goes to standard output; whatever the modules print does not.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any


def about_torch() -> dict[str, Any]:
    """Return what torch was built for, the GPUs that it can use, its threads, and whether the CPU has bfloat16."""
    import torch

    from rlrun.manifest import has_bfloat16

    usable = torch.cuda.is_available()
    return {
        "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if usable else [],
        "threads": torch.get_num_threads(),
        "bfloat16": has_bfloat16("cpu"),
    }


def about_encoder() -> dict[str, Any]:
    """Return the program that writes videos."""
    import imageio_ffmpeg

    return {"program": imageio_ffmpeg.get_ffmpeg_exe(), "version": imageio_ffmpeg.get_ffmpeg_version()}


ABOUT: dict[str, Callable[[], dict[str, Any]]] = {"torch": about_torch, "imageio_ffmpeg": about_encoder}


def examine(module: str) -> dict[str, Any]:
    """Import a module; return what is known of it, or the first line of what went wrong."""
    record: dict[str, Any] = {"module": module, "error": None, "about": {}}
    try:
        importlib.import_module(module)
        if module in ABOUT:
            record["about"] = ABOUT[module]()
    except BaseException as error:  # also SystemExit: some packages leave where they do not fit
        lines = str(error).strip().splitlines() or [""]
        record["error"] = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
    return record


def main() -> None:
    """Examine the modules that the command line names, in order."""
    warnings.simplefilter("ignore")
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for module in sys.argv[1:]:
            print(json.dumps(examine(module)), file=answers, flush=True)


if __name__ == "__main__":
    main()
