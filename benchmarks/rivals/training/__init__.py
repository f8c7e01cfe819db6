"""The training loops of the peers, one file each: `train(work)` runs until the meter ends the process."""
