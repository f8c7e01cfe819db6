"""Try to import modules in separate processes: a broken package can crash its process."""

import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PATIENCE = 240.0  # seconds until a process is killed


@dataclass(frozen=True)
class Import:
    """The result of importing a module.

    Attributes:
        error: the first line of the error, or None.
        about: facts about the machine that the module provides.
    """

    error: str | None = None
    about: dict[str, Any] = field(default_factory=dict)


def try_imports(modules: Iterable[str]) -> dict[str, Import]:
    """Import modules in other processes; return the result of each.

    If a module ends its process, the modules after it are tried in another one.
    """
    names = list(dict.fromkeys(modules))
    results: dict[str, Import] = {}
    while remaining := names[len(results) :]:
        imported, end = _import_in_process(remaining)
        results |= imported
        if len(imported) < len(remaining):
            results[remaining[len(imported)]] = Import(error=end)
    return results


def _import_in_process(modules: Sequence[str]) -> tuple[dict[str, Import], str]:
    """Return the results from one process, and how it ended."""
    program = "from rlrun.analysis.doctor.imports import print_results; print_results()"
    command = [sys.executable, "-P", "-c", program, *modules]  # -P: no module of the working directory
    quiet = {**os.environ, "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    try:
        process = subprocess.run(command, capture_output=True, timeout=PATIENCE, env=quiet, check=False)
        text, end = process.stdout, f"importing it ends Python (exit code {process.returncode})"
    except subprocess.TimeoutExpired as error:
        text, end = error.stdout or b"", f"importing it takes more than {PATIENCE:.0f} s"
    records = [json.loads(line) for line in text.decode(errors="replace").splitlines() if line.endswith("}")]
    return {module: Import(**record) for module, record in zip(modules, records, strict=False)}, end


def print_results() -> None:
    """Import the modules that the command line names, in order.

    Standard output gets one line of JSON for each module, and nothing that the modules print.
    """
    warnings.simplefilter("ignore")
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        for module in sys.argv[1:]:
            print(json.dumps(asdict(try_import(module))), file=output, flush=True)


def try_import(module: str) -> Import:
    """Import a module in this process; return its facts about the machine, or the first line of the error."""
    try:
        importlib.import_module(module)
        return Import(about=ABOUT[module]() if module in ABOUT else {})
    except BaseException as error:  # also SystemExit: some packages exit on machines without support
        lines = str(error).strip().splitlines() or [""]
        return Import(f"{type(error).__name__}: {lines[0]}".rstrip(": "))


def about_torch() -> dict[str, Any]:
    """Return torch's platform, its usable GPUs and threads, and whether the CPU has bfloat16."""
    import torch

    from rlrun.runs.manifest import has_bfloat16

    usable = torch.cuda.is_available()
    return {
        "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if usable else [],
        "threads": torch.get_num_threads(),
        "bfloat16": has_bfloat16("cpu"),
    }


def about_encoder() -> dict[str, Any]:
    """Return the program that encodes videos."""
    import imageio_ffmpeg

    return {"program": imageio_ffmpeg.get_ffmpeg_exe(), "version": imageio_ffmpeg.get_ffmpeg_version()}


ABOUT: dict[str, Callable[[], dict[str, Any]]] = {"torch": about_torch, "imageio_ffmpeg": about_encoder}
