"""Where we are in the data: every sample once per epoch."""
