"""The training loops that rlrun's is measured against, a file a peer: `train(work)` goes on until the meter ends it."""
