"""The command line: one thin file for each command; torch is imported only by commands that need it."""
