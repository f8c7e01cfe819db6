"""The packaged config files; Hydra reads them as `pkg://rlrun.conf`, and wants this file for it."""
