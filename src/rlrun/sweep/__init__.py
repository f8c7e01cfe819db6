"""Many runs by one command: jobs, the processes or machines that run them, and searches.

A sweep's folder:

    sweep.json        the overrides of the command, where and by whom it was begun
    jobs.jsonl        the jobs: key and overrides of each
    jobs/<key>/       the run directory of each, and with it its state; `hydra.sweep.subdir` names others
    logs/<key>.txt    what its process printed

Nothing is imported here: jobs are prepared for (`children.prepare`) while the rest is imported.
"""
