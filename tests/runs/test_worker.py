"""A process that calls a function: its messages, its failures, and its end."""

import os
import sys
import threading

import pytest
import torch

from rlrun.core import worker
from rlrun.core.errors import ConfigError
from rlrun.core.worker import Failed, Worker


@pytest.fixture(autouse=True)
def warm(children, monkeypatch):
    monkeypatch.setattr(worker, "start", children.worker)


def double(factor, jobs, give):
    while (job := jobs.receive()) is not None:
        give(factor * job)


def leave(how, jobs, give):
    give("here")
    if how == "raise":
        raise ValueError("the arm broke")
    if how == "sys.exit":
        sys.exit(3)
    os._exit(4)


def test_jobs_and_messages_are_sent_by_value_until_the_end():
    beside = Worker(double, torch.full((1000, 1000), 2.0))  # more than a pipe holds
    for number in range(3):
        beside.send(number)
    assert [float(beside.messages.receive(30).mean()) for _ in range(3)] == [0.0, 2.0, 4.0]
    assert beside.alive()
    assert beside.close()
    assert beside.cause() == "it left with exit code 0"


@pytest.mark.parametrize(("how", "line"), [("raise", "ValueError: the arm broke"), ("sys.exit", "called sys.exit(3)")])
def test_a_failure_is_the_last_message(how, line):
    beside = Worker(leave, how)
    assert beside.messages.receive(30) == "here"
    failed = beside.messages.receive(30)
    assert isinstance(failed, Failed)
    assert line in failed.line
    assert "in leave" in failed.trace
    assert beside.messages.receive(30) is None
    assert beside.messages.closed
    assert beside.close()


def test_a_process_that_disappears_is_found():
    beside = Worker(leave, "os._exit")
    assert [beside.messages.receive(30) for _ in range(2)] == ["here", None]
    assert beside.messages.closed
    assert beside.cause() == "it left with exit code 4"
    assert beside.close()


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(ConfigError, match="env cannot be sent to a separate process: "):
        Worker(double, threading.Lock())
