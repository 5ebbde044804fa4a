"""Which copies of a checkpoint there are, where, and in what order they are made and read."""
