"""When to save: pure arithmetic. No clock, no I/O, no torch."""
