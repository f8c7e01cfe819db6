"""Reports of many runs, diagnosis of one run, and checks of a machine."""
