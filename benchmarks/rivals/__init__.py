"""The replay memories that rlrun's is measured against, each in a process and an environment of its own."""
