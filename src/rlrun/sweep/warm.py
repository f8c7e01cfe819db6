"""What the process does from which jobs are forked, before the first of them: import, and fill what is kept.

It starts no thread and opens no file that a child would share.
"""

import gc
import signal

import torch._dynamo  # noqa: F401  what an optimiser imports at its first use; it takes as long as all the rest

import rlrun.algorithms.sac
import rlrun.sweep.work  # noqa: F401
from rlrun.config.words import parse
from rlrun.manifest import versions

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which tells its jobs
parse(["algorithm=sac", "+with=[rnd,icm]", "algorithm.lr=3.0e-4"])  # the grammar's tables are built by use
versions()
gc.collect()
gc.freeze()  # else the first collection in a child touches, and thereby copies, all that it has from here
