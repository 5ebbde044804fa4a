"""holdfast: automatic checkpointing for deep-learning training."""
