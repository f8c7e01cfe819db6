"""`python -m rlrun`."""

from rlrun.cli.main import main

main()
