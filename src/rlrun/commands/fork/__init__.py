"""A new run that takes parts of others: `rlrun train --from RUN`, and `init: {PART: RUN}` in the config.

`parents` finds a run and composes the config with its overrides; `transfer` loads the parts.
"""
