"""Live objects from a config or a checkpoint, also of a run that is not trusted."""
