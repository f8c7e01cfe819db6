"""The logger, and the sinks of its records."""
