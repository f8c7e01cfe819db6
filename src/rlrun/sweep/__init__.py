"""Many runs by one command: jobs, the processes or machines that run them, and searches.

A sweep's folder:

    sweep.json        the overrides of the command, and where and by whom it was begun
    jobs.jsonl        the jobs: key and overrides of each
    jobs/<key>/       the run directory of a job, which contains its state; `hydra.sweep.subdir` sets another place
    logs/<key>.txt    the output of its process

This module imports nothing, so that `children.prepare` can run in parallel to the imports.
"""
