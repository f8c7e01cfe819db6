"""Overrides that make runs of a moment."""

SMALL = ("algorithm.hidden=[8,8]", "evaluation.every=0", "logger=[]", "log.every=8", "stop.env_steps=null")
REPLAY = (*SMALL, "algorithm.batch_size=16", "algorithm.warmup_steps=40", "stop.updates=12")
ROLLOUT = (*SMALL, "num_envs=2", "algorithm.horizon=16", "stop.updates=6")
