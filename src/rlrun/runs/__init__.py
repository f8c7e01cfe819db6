"""The directory of a run: its lock, heartbeat, files and trust, and the processes that work in it."""
