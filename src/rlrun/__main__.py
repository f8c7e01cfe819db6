"""`python -m rlrun`, which imports from the current folder last, and from that of a run never, as `rlrun` does."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # the folder was deleted
    if sys.path[0] == os.getcwd() and not __file__.startswith(sys.path[0]):
        del sys.path[0]

from rlrun.cli.main import main

main()
