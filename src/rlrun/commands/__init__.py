"""The commands as functions of Python: train, resume, evaluate, play, fork, check, diff, ls, checkpoints."""
