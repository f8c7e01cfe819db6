"""First of all in the process from which jobs are forked: let go of where the process prints that has started it.

Who reads that waits until nobody can write there any more, and importing takes longer than to refuse a command.
"""

import os

nowhere = os.open(os.devnull, os.O_WRONLY)
for number in (1, 2):
    os.dup2(nowhere, number)
os.close(nowhere)
