"""The directory of a run: its lock, heartbeat, manifest, progress and trust."""
