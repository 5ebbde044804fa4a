"""What would checkpointing cost on a machine that is not there yet?

Entry modules: `model`, `strategies`, `monte_carlo`, `forecast`. Imported by the command line only.
"""
