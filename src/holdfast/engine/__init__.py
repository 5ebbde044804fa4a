"""Run: sequences the rest, decides nothing itself."""
