"""A new run that starts from parts of another: `rlrun train --from RUN`, and `init:` in the config.

`parents` finds where it starts from, composes its config, and reads `init:`; `sources` reads what the parent holds,
by name; `parts` knows what each part of a run can take over; `taking` decides name by name, loads, reports, and
makes the new run's first checkpoint.
"""
