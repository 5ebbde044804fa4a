"""Where checkpoints live: bytes at names."""
