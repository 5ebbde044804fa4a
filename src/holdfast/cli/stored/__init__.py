"""Verbs about what is stored: list, show, verify, diff, export, prune."""
