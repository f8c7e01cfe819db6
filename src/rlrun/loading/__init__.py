"""Build objects from a config or a checkpoint, also of an untrusted run."""
