"""The command line: one file a command, thin, no torch before a command needs it."""
