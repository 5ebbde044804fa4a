"""Verbs that keep work running: run, app, slurm, halt."""
