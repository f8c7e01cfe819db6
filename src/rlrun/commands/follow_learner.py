"""A learner other than the first: it trains on its share, and saves its state; the first one does all else."""

import os
import pickle
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection

from rlrun import checkpointing as storage
from rlrun.commands.train import Experiment
from rlrun.core.errors import LearnerError, describe_error
from rlrun.runs import learners, processes
from rlrun.runs.directory import RunDir
from rlrun.runs.heartbeat import tokens
from rlrun.runs.learners import AFTER, READY, LearnerJob, place_of


def serve(handle: int, parent: int) -> None:
    """Train by a job from a connection; end at once when the process that started this one ends.

    That process handles signals, and stops all learners in order.
    """
    for number in processes.STOPS:
        signal.signal(number, signal.SIG_IGN)
    connection, code = Connection(handle), 1
    try:
        job: LearnerJob = pickle.loads(connection.recv_bytes())
        threading.Thread(target=_leave_with, args=(connection,), daemon=True).start()
        follow(job, connection)
        code = 0
    except LearnerError:
        code = AFTER
    except BaseException as error:
        try:
            connection.send((describe_error(error), traceback.format_exc()))
        except OSError:  # the first learner has ended
            code = AFTER
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skips cleanup, which takes time


def follow(job: LearnerJob, connection: Connection) -> None:
    """Train as one of several learners, in the run directory that the first one has started."""
    learners.be(job.number)
    run = RunDir(job.run)
    if job.token is not None:
        tokens[run.path] = job.token
    experiment = Experiment(job.composed)
    if job.checkpoint is not None:
        own = place_of(run.checkpoints, job.number) / job.checkpoint
        experiment.restore(storage.load(own), own)
    connection.send(READY)
    with learners.joined(job.place, job.count, job.backend):
        experiment.follow(run)


def _leave_with(connection: Connection) -> None:
    """Wait until the other end is closed, then end this process."""
    try:
        connection.recv_bytes()  # blocks: nothing is sent
    except (EOFError, OSError):
        os._exit(AFTER)
