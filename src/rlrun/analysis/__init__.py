"""Reports of many runs, what is wrong with one run, what runs cost, and what a machine lacks."""
