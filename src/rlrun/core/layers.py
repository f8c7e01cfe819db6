"""The packages of rlrun in their order: imports go strictly down."""

# From the lowest to the highest. The first sentence of each package's docstring describes it.
LAYERS = (
    *("core", "compile", "ops", "nn", "training", "checkpointing", "env", "memory", "collect", "runs"),
    *("callbacks", "algorithms", "config", "loading", "export", "commands", "sweep", "analysis", "devtools", "cli"),
)
# The packages whose classes a config names as parts of a run.
PARTS = ("algorithms", "callbacks", "collect", "compile", "core", "env", "export", "memory", "nn", "ops", "training")
