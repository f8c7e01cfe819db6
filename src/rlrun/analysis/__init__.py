"""Reports of many runs, diagnosis of one run, cost estimates, and checks of a machine."""
