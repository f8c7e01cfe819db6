"""`python -m rlrun`: as `rlrun`, it does not import from the current folder before all others."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # the folder was deleted
    # It stays where rlrun itself was found there, as in a checkout's src/.
    if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]

from rlrun.cli.main import main

main()
