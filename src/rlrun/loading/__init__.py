"""Build objects from a config or a checkpoint."""
