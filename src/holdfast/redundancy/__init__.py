"""Surviving lost nodes: schemes, sets, codes, layouts. Pure: no I/O, no clock, no torch."""
