"""The trainer, its callbacks, and the plan by which hooks get the data that they name."""
