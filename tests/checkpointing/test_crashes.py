"""A process that dies, or a disk that fails, at any call to the system amidst a save."""

import errno
import os
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from rlrun import checkpointing as storage
from rlrun.callbacks.checkpointer import Checkpointer
from rlrun.core.errors import RlrunError
from rlrun.memory import Table
from rlrun.memory.table.ejectors import Fifo
from rlrun.runs.directory import RunDir, checkpoint_key

WRITING = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")
CALLS = (*WRITING, "close", "lstat", "stat", "scandir")


class Counter:
    """A part whose state is one number, and a tensor of it."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count, "weight": torch.full((3,), float(self.count))}

    def load_state_dict(self, state):
        self.count = state["count"]


class Process:
    """What trains: it begins anew, or goes on from the newest checkpoint."""

    def __init__(self, path):
        self.run = RunDir(path)
        self.memory = Table(
            length=40, num_envs=2, columns={"observation": {"shape": [3]}, "reward": {}}, ejector=Fifo(whole=True)
        )
        self.counter = Counter()
        self.checkpointer = Checkpointer(1, keep_last=1)
        self.parts = {"memory": self.memory, "counter": self.counter, "checkpointer": self.checkpointer}
        checkpoints = self.run.checkpoint_dirs()
        for name, state in storage.load(checkpoints[-1]).items() if checkpoints else ():
            self.parts[name].load_state_dict(state)
        self.checkpointer.begin_training(self.parts, self.run.path, self.counter.count)

    def train(self):
        """Do what the number of the update says."""
        self.counter.count += 1
        random = np.random.default_rng(self.counter.count)
        for _ in range(12):
            row = {"observation": random.normal(size=(2, 3)), "reward": random.normal(size=2)}
            self.memory.add(None, row)
            if random.random() < 0.3:
                self.memory.close(0, random.normal(size=(1, 3)))

    def save(self):
        if self.counter.count % 2:
            self.checkpointer.mark_best(self.counter.count, self.counter.count)
        self.checkpointer.end_cycle(self.counter.count)
        self.checkpointer.wait()

    def digest(self):
        return storage.digest([self.memory.state_dict(), self.counter.state_dict()])


@pytest.fixture(scope="module", params=[2, 3])
def begun(request, tmp_path_factory):
    """A run that has made some checkpoints, and what its memory held after each and will hold after the next."""
    run = RunDir.claim(tmp_path_factory.mktemp("begun") / "run")
    process, digests = Process(run.path), {}
    for _ in range(request.param - 1):
        process.train()
        process.save()
        digests[process.counter.count] = process.digest()
    process.train()
    digests[process.counter.count] = process.digest()
    return run, digests


class Fault:
    """Counts calls to the system; something happens at one of them."""

    def __init__(self, at, happen, names):
        self.left, self.happen = at, happen
        self._calls = {name: getattr(os, name) for name in names}

    def __enter__(self):
        for name, call in self._calls.items():
            setattr(os, name, lambda *args, name=name, call=call, **named: self._pass(name, call, args, named))
        return self

    def __exit__(self, *error):
        for name, call in self._calls.items():
            setattr(os, name, call)

    def _pass(self, name, call, args, named):
        self.left -= 1
        if self.left == 0:
            if name == "write":
                call(args[0], memoryview(args[1])[: len(args[1]) // 2])
            self.happen()
        return call(*args, **named)


def check(run, digests):
    """Every checkpoint under its name is whole; the newest is the one before or the new one."""
    checkpoints = run.checkpoint_dirs()
    assert checkpoints
    assert [storage.verify(path) for path in checkpoints] == [[]] * len(checkpoints)
    assert run.checkpoint("latest") in checkpoints
    for path in checkpoints:
        states = storage.load(path)
        assert storage.digest([states["memory"], states["counter"]]) == digests[checkpoint_key(path)[1]]
    return checkpoint_key(checkpoints[-1])[1]


def check_tidy(run):
    """Nothing lies about: neither temporary files nor segments that no checkpoint needs."""
    hidden = [path for path in run.checkpoints.rglob("*") if path.name.startswith(".")]
    needed = {name for path in run.checkpoint_dirs() for name in storage.read_manifest(path).segments}
    assert hidden == []
    assert {path.name for path in (run.checkpoints / "segments").iterdir()} == needed


def copied(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run", dirs_exist_ok=False)
    return RunDir(tmp_path / "run")


def test_a_process_that_dies_at_any_call_leaves_good_checkpoints(begun, tmp_path):
    template, digests = begun
    newest, at = set(), len(digests) % 2 - 1  # every other call, of the second checkpoint or of the third
    died = True
    while died:
        at += 2
        run = copied(template, tmp_path)
        child = os.fork()
        if child == 0:
            try:
                process = Process(run.path)
                process.train()
                with Fault(at, lambda: os._exit(9), WRITING):
                    process.save()
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9)
        died = code == 9
        newest.add(check(run, digests))
        process = Process(run.path)
        if process.counter.count < max(digests):
            process.train()
            process.save()
            assert process.digest() == digests[max(digests)]
            check_tidy(run)
        assert check(run, digests) == max(digests)
        shutil.rmtree(run.path)
    assert newest == {max(digests) - 1, max(digests)}
    assert at > 30


def test_a_disk_that_fails_at_any_call_leaves_good_checkpoints(begun, tmp_path):
    template, digests = begun
    messages, at, remaining = [], len(digests) % 2, 0  # every other call, of the second checkpoint or of the third
    while remaining <= 0:
        at += 2
        number = (errno.ENOSPC, errno.EACCES, errno.EIO)[at % 3]
        run = copied(template, tmp_path)
        process = Process(run.path)
        process.train()
        with Fault(at, partial(fail, number), CALLS) as fault:
            message = failure(process.save)
        remaining = fault.left
        assert message is None or ("\n" not in message and os.strerror(number) in message)
        messages += [message] if message else []
        check(run, digests)
        assert process.digest() == digests[max(digests)]
        process.checkpointer.end_training(None, update=process.counter.count)
        assert check(run, digests) == max(digests)
        shutil.rmtree(run.path)
    assert len(messages) > 10


def fail(number):
    raise OSError(number, os.strerror(number))


def failure(call):
    """Return what an error says, or None where there is none."""
    try:
        call()
    except RlrunError as error:
        return str(error)
    return None
