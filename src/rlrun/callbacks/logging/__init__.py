"""The logger, and the sinks that its records go to."""
