"""Programs that nobody can change: those with checkpoint files of their own, and those with none (DMTCP)."""
