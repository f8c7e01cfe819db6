"""The directory of a run: its lock, heartbeat and files, and the processes that work in it."""
