"""For tests of callbacks."""

import pytest

from rlrun.runs.directory import RunDir


@pytest.fixture(scope="session", autouse=True)
def ordered_event_files():
    """Let TensorBoard read files of one second in the order of writing: by their names, 10 would come before 9."""
    from tensorboard.summary.writer import event_file_writer

    event_file_writer._global_uid = event_file_writer.AtomicCounter(1_000)


@pytest.fixture
def run(tmp_path):
    """A new run directory."""
    return RunDir.claim(tmp_path / "run")
