"""Who agrees? Ranks talk through the store that started them, never through collectives of the training."""
