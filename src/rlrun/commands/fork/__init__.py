"""A new run that takes parts of others: `rlrun train --from RUN`, and `init: {PART: RUN}` in the config.

`parents` finds a run and composes the config with its overrides. `sources` reads checkpoints, `fits` compares their
states with the parts of the new run, and `transfer` loads the parts.
"""
