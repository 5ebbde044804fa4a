"""Verbs to try and to plan: demo, bench, plan, doctor, rehearse."""
