"""The packages of rlrun in their order: imports go strictly down."""

# From the lowest to the highest. The first sentence of each package's docstring says what it is for.
LAYERS = (
    *("core", "security", "runs", "compile", "ops", "nn", "training", "checkpointing", "env", "memory", "collect"),
    *("callbacks", "algorithms", "config", "loading", "export", "commands", "sweep", "analysis", "devtools", "cli"),
)
# Those that any config may name, also another person's; `security.trust` says which of their classes.
PARTS = ("algorithms", "callbacks", "collect", "compile", "core", "env", "export", "memory", "nn", "ops", "training")
