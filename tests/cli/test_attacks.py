"""Overrides and configs of somebody else reach for nothing outside: each shape of an attack on each command once.

All attacks on all commands are tried by `python -m benchmarks resilience attacks`.
"""

import os
from pathlib import Path

import pytest
from tests.cli import attacks


@pytest.mark.parametrize(("name", "command"), attacks.one_of_each_shape())
def test_an_attack_is_refused(name, command, honest, project):
    attacks.prepare(project, attacks.ATTACKS[name], honest)
    trial = attacks.attempt(attacks.ATTACKS[name], command, project)
    assert trial.faults == [], trial.line


def test_a_run_without_an_attack_passes_each_command(honest, project):
    """Else a project that nobody can use would pass for one that is safe."""
    nobody = attacks.Attack("none", changed="{}")
    for number, command in enumerate(attacks.COMMANDS):
        (project / f"{number}").mkdir()
        os.chdir(project / f"{number}")
        attacks.prepare(Path.cwd(), nobody, honest)
        assert attacks.attempt(nobody, command, Path.cwd()).code == 0, command
