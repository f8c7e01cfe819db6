"""A new run that starts from parts of another: `rlrun train --from RUN`, and `init:` in the config.

`parents` finds the parent, composes the config, and reads `init:`; `sources` reads the parent's values by name; `parts`
loads values into each part of a run; `transfer` decides for each name, loads, reports, and writes the new run's first
checkpoint.
"""
